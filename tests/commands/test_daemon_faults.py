"""A running daemon survives a full disk and a jumping clock, and loses no update it has sent."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from daemon_process import Daemons
from daemons import PATIENCE_S
from forked import ForkServer

JUMPING = str(Path(__file__).parents[1] / "jumping_clock.py")
DAY_S = 86_400


@pytest.fixture
async def daemons(tmp_path: Path, fork_server: ForkServer) -> AsyncIterator[Daemons]:
    made = Daemons(tmp_path, fork_server)
    yield made
    await made.close()


@contextmanager
def full(pid: int, *files: Path, but_for: int = 0) -> Iterator[None]:
    """Let no file of a process become longer than the longest of these is: to it, that is a full disk.

    ``but_for``: this many bytes still fit.
    """
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    most = max(path.stat().st_size for path in files) + but_for
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


async def test_on_a_full_disk_turns_fail_with_the_reason_and_succeed_once_there_is_room(daemons: Daemons) -> None:
    daemon = daemons.start()
    caller = await daemons.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    await caller.get("session/prompt", sessionId="s", prompt="!echo before")
    told = caller.updates()
    caller.heard.clear()
    with full(daemon.pid, daemons.home / "journal.db", daemons.home / "journal.db-wal"):
        code, why = await caller.error("session/prompt", sessionId="s", prompt="!echo lost")
        assert code == -32603
        assert "cannot be written" in why or "full" in why, why
        caller.tell("session/prompt", sessionId="s", prompt="!echo lost, too", promptId="quiet")
        ended = await caller.until(type="turn_complete", promptId="quiet")
        assert (ended["outcome"], ended["content"], "seq" in ended) == ("failed", why, False)
        assert (await caller.get("status"))["serverPid"] == daemon.pid
        assert (await caller.ask("session/new", agentAlias="default", sessionId="t"))["error"]["code"] == -32603
    assert (await caller.get("session/prompt", sessionId="s", prompt="!echo after"))["content"] == "after"
    again = await daemons.caller()
    attached = await again.get("session/attach", sessionId="s", after=0)
    await again.until(seq=attached["lastSeq"])
    assert again.updates()[: len(told)] == told
    assert [one["content"] for one in again.updates() if one["type"] == "turn_complete"] == ["before", "after"]
    assert await daemons.end(daemon) == 0


async def test_a_turn_whose_first_rows_do_not_fit_ends_with_its_prompt_id(daemons: Daemons) -> None:
    """The rows that begin a run are small and fit; the prompt does not."""
    daemon = daemons.start()
    caller, other = await daemons.caller(), await daemons.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    await caller.get("session/prompt", sessionId="s", prompt="!echo before")
    attached = await other.get("session/attach", sessionId="s", after=0)
    await other.until(seq=attached["lastSeq"])
    with full(daemon.pid, daemons.home / "journal.db", daemons.home / "journal.db-wal", but_for=64 << 10):
        asked = caller.call("session/prompt", sessionId="s", prompt="!echo " + 300_000 * "x", promptId="long")
        for one in (caller, other):
            ended = await one.until(type="turn_complete", promptId="long")
            assert (ended["outcome"], "seq" in ended) == ("failed", False)
        assert (await caller.answer(asked))["error"]["code"] == -32603
    names = [one.get("promptId") for one in caller.updates() if one["type"] == "turn_complete"]
    assert names == [None, "long"]
    assert (await caller.get("session/prompt", sessionId="s", prompt="!echo after"))["content"] == "after"
    assert await daemons.end(daemon) == 0


async def test_a_clock_jump_ends_and_keeps_nothing_wrongly(daemons: Daemons, tmp_path: Path) -> None:
    (daemons.home / "config.toml").write_text('[agents.careful]\nprovider = "lab"\npolicy = ["bash=ask"]\n')
    clock = tmp_path / "clock"
    clock.write_text("0")
    process = subprocess.Popen(
        [sys.executable, JUMPING, str(clock), "daemon", "--provider", "lab"],
        cwd=daemons.cwd, env=daemons.env, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert b"listens at" in process.stderr.readline()
        caller = await daemons.caller()
        for session, agent in (("asks", "careful"), ("rests", "default")):
            await caller.get("session/new", agentAlias=agent, sessionId=session)
        await caller.get("session/prompt", sessionId="rests", prompt="!echo before")
        asked = caller.call("session/prompt", sessionId="asks", prompt="!bash true")
        request = await caller.until(type="approval_request")
        for ahead_s in (DAY_S, -DAY_S):
            clock.write_text(str(ahead_s))
            assert sorted((await caller.get("status"))["sessionIds"]) == ["asks", "rests"]
            assert (await caller.get("session/state", sessionId="asks"))["state"] == "waiting_approval"
            again = await daemons.caller()
            await again.get("session/attach", sessionId="rests", after=0)
            answer = await caller.get("session/prompt", sessionId="rests", prompt="!echo after")
            assert answer["content"] == "after"
            await again.until(seq=caller.updates("rests")[-1]["seq"])
        await caller.get("session/approve", sessionId="asks", requestId=request["requestId"], decision="allow_once")
        assert (await caller.answer(asked))["result"]["stopReason"] == "end_turn"
        assert [one["isError"] for one in caller.updates("asks") if one["type"] == "tool_result"] == [False]
        numbers = [one["seq"] for one in caller.updates("rests")]
        assert numbers == sorted(set(numbers))
        assert (await caller.get("health"))["uptimeSeconds"] < PATIENCE_S
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        if process.poll() is None:
            os.kill(process.pid, 9)
            process.wait()
        assert process.stderr is not None
        process.stderr.close()
    assert "ERROR" not in daemons.log()


DYING = """\
import os, sys
import zot.journal.writer as writer
from zot.cli import main

take = writer.Writer._take

def fail(self):
    if os.path.exists("die"):
        raise MemoryError("injected")
    return take(self)

writer.Writer._take = fail
sys.argv = ["zot", "daemon", "--provider", "lab"]
main()
"""


async def test_a_daemon_that_can_no_longer_record_reports_it_and_ends(daemons: Daemons) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", DYING], cwd=daemons.cwd, env=daemons.env, stderr=subprocess.PIPE
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert b"listens at" in process.stderr.readline()
        caller = await daemons.caller()
        await caller.get("session/new", agentAlias="default", sessionId="s")
        await caller.get("session/prompt", sessionId="s", prompt="!echo before")
        (daemons.cwd / "die").touch()
        code, why = await caller.error("session/prompt", sessionId="s", prompt="!echo lost")
        assert (code, "cannot be written to" in why) == (-32603, True)
        assert await asyncio.to_thread(process.wait, 30) == 1
        assert b"the daemon ends, since nothing can be recorded" in process.stderr.read()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        assert process.stderr is not None
        process.stderr.close()
    assert "CRITICAL the daemon ends" in daemons.log()
    (daemons.cwd / "die").unlink()
    daemon = daemons.start()
    again = await daemons.caller()
    await again.get("session/attach", sessionId="s", after=0)
    assert (await again.get("session/prompt", sessionId="s", prompt="!echo after"))["content"] == "after"
    assert await daemons.end(daemon) == 0
