"""Guards that had connected to a session of the daemon and are away: they block until they are back, or dismissed."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from daemons import Caller, running
from harness import PATIENCE_S
from zot.store import GuardSet

CALL = '!script call read {"path":"."} ;; --- ;; say done'
BLOCKED = "extension afar, which guards this, is not running"


async def outcome(caller: Caller) -> str:
    """Let the model read a file, and return the result."""
    caller.heard.clear()
    await caller.get("session/prompt", sessionId="s", prompt=CALL)
    [result] = [one for one in caller.updates() if one["type"] == "tool_result"]
    return str(result["rawOutput"])


async def test_a_guard_is_dismissed_during_a_run_once_that_is_committed(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        caller = await service.caller()
        await caller.get("session/new", agentAlias="default", sessionId="s")
        async with service.daemon.sessions.pool.use("s") as session:
            await session.keep_guard(GuardSet("afar", ("tool_call",)))
        runs = caller.call("session/prompt", sessionId="s", prompt="!stall")
        await caller.until(type="state")
        is_there = threading.Event()
        service.daemon.parts.journal.writer.run(lambda _: is_there.wait(PATIENCE_S))
        dismisses = caller.call("session/dismiss", sessionId="s", name="afar")
        for _ in range(10):
            await caller.get("agents/list")
        assert dismisses not in [one.get("id") for one in caller.heard]
        is_there.set()
        assert (await caller.answer(dismisses))["result"] == {"sessionId": "s", "dismissed": True}
        await caller.get("session/cancel", sessionId="s")
        await caller.answer(runs)


async def test_a_session_name_cannot_break_a_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path) as service:
        caller, name = await service.caller(), "s\nzot: all is well\x1b[2J"
        await caller.get("session/new", agentAlias="default", sessionId=name)
        async with service.daemon.sessions.pool.use(name) as session:
            await session.keep_guard(GuardSet("afar", ("tool_call",)))
        await caller.get("session/close", sessionId=name)
        await caller.get("session/new", agentAlias="default", sessionId=name)
        await caller.get("session/dismiss", sessionId=name, name="afar")
    told = r"the guard afar of session s\nzot: all is well\x1b[2J was dismissed"
    assert [one for one in caplog.messages if "afar" in one] == [told]


async def test_an_operator_dismisses_a_guard_that_does_not_return(tmp_path: Path) -> None:
    async with running(tmp_path, policy=("*=allow",)) as service:
        caller = await service.caller()
        await caller.get("session/new", agentAlias="default", sessionId="s")
        async with service.daemon.sessions.pool.use("s") as session:
            await session.keep_guard(GuardSet("afar", ("tool_call",)))
        await caller.get("session/close", sessionId="s")
        await caller.get("session/new", agentAlias="default", sessionId="s")
        assert await outcome(caller) == BLOCKED
        nobody = (-32602, "no guard named 'other' is missing from this session")
        assert await caller.error("session/dismiss", sessionId="s", name="other") == nobody
        caller.heard.clear()
        dismissed = {"sessionId": "s", "dismissed": True}
        assert await caller.get("session/dismiss", sessionId="s", name="afar") == dismissed
        assert await outcome(caller) != BLOCKED
        again = (-32602, "no guard named 'afar' is missing from this session")
        assert await caller.error("session/dismiss", sessionId="s", name="afar") == again
        service.daemon.parts.audit.flush()
    async with running(tmp_path, policy=("*=allow",)) as service:
        caller = await service.caller()
        await caller.get("session/new", agentAlias="default", sessionId="s")
        assert await outcome(caller) != BLOCKED
    for name, expected in (("audit.log", [("s", "ok")]), ("access.log", [("s", "-32602"), ("s", "-32602")])):
        noted = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        told = [(one["session"], one["outcome"]) for one in noted if one.get("method") == "session/dismiss"]
        assert told == expected
