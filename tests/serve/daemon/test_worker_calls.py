"""What clients of gateways do with sessions of workers besides prompting: panels, commands, questions, settings."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from daemons import PATIENCE_S, Caller, Frame, running
from extensions.stage import Extension
from zot.config.flags import McpServer

from .test_extensions import TODO, panels
from .test_gateway import opened, seen_as, working

SERVER = str(Path(__file__).parent.parent.parent / "mcp_client" / "server.py")
NOTIFIER = """
hello("commands", "panels")
say("register_command", name="tell", description="")
say("register_command", name="go", description="")
say("ready")
for frame in frames():
    if frame["type"] == "command_invoked" and frame["name"] == "tell":
        say("notify", level="info", message="told")
        say("command_response", id=frame["id"], action="noop")
    elif frame["type"] == "command_invoked":
        say("command_response", id=frame["id"], action="prompt", prompt="!echo prompted")
    elif frame["type"] == "shutdown":
        break
"""


@asynccontextmanager
async def fleet(tmp_path: Path, database: str, **flags: Any) -> AsyncIterator[tuple[Caller, Caller]]:
    """Run two gateways and a worker; yield a client of each gateway, the first with an open session."""
    for name in ("one", "two", "work"):
        (tmp_path / name).mkdir()
    async with (
        running(tmp_path / "one", store=seen_as(database, "one")) as one,
        running(tmp_path / "two", store=seen_as(database, "two")) as two,
        working(tmp_path, database, "worker", **flags),
    ):
        callers = [await one.caller(), await two.caller()]
        for caller in callers:
            await caller.get("initialize", protocolVersion=1, features=["events", "questions"])
        await opened(callers[0], "s", tmp_path / "work")
        await callers[1].get("session/attach", sessionId="s")
        yield callers[0], callers[1]
        # Nothing ran at a gateway.
        assert all(session.is_resting for service in (one, two) for session in service.daemon.sessions.pool.sessions)


async def event(caller: Caller, kind: str, **wanted: Any) -> Frame:
    """Read until an event of this kind has arrived, and return it."""
    while True:
        for update in caller.updates("s"):
            found: Frame = update.get("event", {})
            if found.get("type") == kind and all(found.get(key) == value for key, value in wanted.items()):
                return found
        await caller.read()


async def test_a_panel_of_a_worker_is_shown_at_all_gateways_and_takes_keys_from_any(
    tmp_path: Path, database: str
) -> None:
    extension = Extension(tmp_path, "todo", TODO)
    async with fleet(tmp_path, database, ext=(str(extension.directory),)) as (one, two):
        commands = await two.get("session/commands", sessionId="s")
        assert [(command["name"], command["extension"]) for command in commands["commands"]] == [("todo", "todo")]
        answer = await one.get("session/run_command", sessionId="s", name="todo")
        assert (answer["action"], answer["panelId"]) == ("open_panel", "list")
        await panels(two, 1)
        await two.get("session/panel_key", sessionId="s", panelId="list", key="rune", text="x")
        await panels(one, 2)
        await panels(two, 2)
        await one.get("session/panel_close", sessionId="s", panelId="list")
        seen = [await panels(caller, 3) for caller in (one, two)]
        code, why = await two.error("session/panel_key", sessionId="s", panelId="list", key="enter")
        assert (code, why) == (-32602, "no panel 'list' is open")
    shown = {"extension": "todo", "panel_id": "list"}
    assert seen == [
        [
            {"type": "panel_open", **shown, "title": "Todo", "lines": ["ship"], "footer": "x done"},
            {"type": "panel_render", **shown, "title": "Todo", "lines": ["rune x"]},
            {"type": "panel_close", **shown},
        ]
    ] * 2  # fmt: skip


async def test_panels_close_with_their_worker_and_are_shown_to_later_clients(tmp_path: Path, database: str) -> None:
    extension = Extension(tmp_path, "todo", TODO)
    (tmp_path / "one").mkdir()
    (tmp_path / "work").mkdir()
    async with running(tmp_path / "one", store=seen_as(database, "one")) as one:
        caller = await one.caller(protocolVersion=1, features=["events"])
        await opened(caller, "s", tmp_path / "work")
        async with working(tmp_path, database, "worker", ext=(str(extension.directory),)):
            await caller.get("session/run_command", sessionId="s", name="todo")
            await panels(caller, 1)
            later = await one.caller(protocolVersion=1, features=["events"])
            await later.get("session/attach", sessionId="s")
            assert (await panels(later, 1))[0]["lines"] == ["ship"]
        assert (await panels(caller, 2))[-1]["type"] == "panel_close"


async def test_notices_of_extensions_reach_clients_once_and_a_command_may_prompt(tmp_path: Path, database: str) -> None:
    extension = Extension(tmp_path, "teller", NOTIFIER)
    async with fleet(tmp_path, database, ext=(str(extension.directory),)) as (one, two):
        await one.get("session/run_command", sessionId="s", name="tell")
        for caller in (one, two):
            assert (await event(caller, "ext_notify"))["message"] == "told"
        answer = await one.get("session/run_command", sessionId="s", name="go")
        assert answer["prompt"] == "!echo prompted"
        for caller in (one, two):
            await event(caller, "done")
            notices = [one for one in caller.updates("s") if one.get("event", {}).get("type") == "ext_notify"]
            assert len(notices) == 1
        state = await two.get("session/state", sessionId="s")
        assert state["messageCount"] == 2


async def test_a_question_of_a_tool_is_answered_once_at_any_gateway(tmp_path: Path, database: str) -> None:
    servers = {"s": McpServer(command=sys.executable, args=(SERVER, "form"))}
    async with fleet(tmp_path, database, mcp=servers) as (one, two):
        asked: Frame = {}
        while not asked:  # The first run only learns the tools.
            number = one.call("session/prompt", sessionId="s", prompt="!script call mcp__s__echo {} ;; --- ;; say done")
            while not asked:
                frame = await one.read()
                if frame.get("id") == number:
                    break
                found = frame.get("params", {}).get("event", {})
                asked = found if found.get("type") == "question_request" else {}
        state = await two.get("session/state", sessionId="s")
        assert [question["id"] for question in state["questions"]] == [asked["id"]]
        later = await two.get("session/attach", sessionId="s")
        assert [question["id"] for question in later["questions"]] == [asked["id"]]
        wrong = {"sessionId": "s", "requestId": asked["id"], "action": "accept", "content": {}}
        assert await two.error("session/answer", **wrong) == (-32602, "name is required")
        await two.get("session/answer", sessionId="s", requestId=asked["id"], action="decline")
        answer = await one.error("session/answer", sessionId="s", requestId=asked["id"], action="decline")
        assert (answer[0], "is waiting: it was answered" in answer[1]) == (-32602, True)
        await one.answer(number)
        assert '"action":"decline"' in json.dumps(one.heard, separators=(",", ":"))


async def test_the_conversation_and_the_settings_change_on_the_worker(tmp_path: Path, database: str) -> None:
    async with fleet(tmp_path, database) as (one, two):
        for text in ("one", "two", "three", "four"):
            await one.get("session/prompt", sessionId="s", prompt=f"!echo {text}")
        aside = await two.get("session/aside", sessionId="s", question="!echo aside")
        assert aside["content"] == "aside"
        compacted = await two.get("session/compact", sessionId="s")
        assert compacted["sessionId"] == "s"
        kinds = [update.get("event", {}).get("type") for update in two.updates("s")]
        assert "compact_done" in kinds  # Before the answer.
        assert (await one.get("session/undo_compact", sessionId="s"))["messageCount"] == 8
        rewound = await two.get("session/rewind", sessionId="s", messages=2)
        assert rewound["messageCount"] == 2
        await event(one, "conversation_replaced")
        assert (await one.get("session/state", sessionId="s"))["messageCount"] == 2
        changed = await one.get("session/configure", sessionId="s", overrides={"reasoning": "high"})
        assert changed["overrides"]["reasoning"] == "high"
        await event(two, "reconfigured")
        await one.get("session/prompt", sessionId="s", prompt="!echo five")
        kept = await two.get("session/configure", sessionId="s")
        assert kept["overrides"]["reasoning"] == "high"
        await two.get("session/clear", sessionId="s")
        assert (await one.get("session/state", sessionId="s"))["messageCount"] == 0


async def test_settings_hold_on_a_worker_that_had_the_session_loaded_before(tmp_path: Path, database: str) -> None:
    for name in ("one", "work"):
        (tmp_path / name).mkdir()
    async with running(tmp_path / "one", store=seen_as(database, "one")) as one:
        caller = await one.caller()
        await opened(caller, "s", tmp_path / "work")
        async with working(tmp_path, database, "first", pool="default"):
            await caller.get("session/prompt", sessionId="s", prompt="!echo one")
            async with one.daemon.sessions.pool.use("s") as session:  # As another process would.
                session.use_reasoning("low")
                await session.worker.record_settings()
            await caller.get("session/prompt", sessionId="s", prompt="!echo two")
        found = await caller.get("session/list")
        assert len(found["sessions"]) == 1
        rows = await one.journal.record("s", create=False)
        settings = [row for _, row in await rows.changes() if type(row).__name__ == "SettingsChanged"]
        assert settings[-1].reasoning == "low"  # type: ignore[union-attr]


async def test_a_call_without_a_worker_waits_for_one(tmp_path: Path, database: str) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "work").mkdir()
    async with running(tmp_path / "one", store=seen_as(database, "one")) as one:
        caller = await one.caller()
        await opened(caller, "s", tmp_path / "work")
        number = caller.call("session/extensions", sessionId="s")
        async with working(tmp_path, database, "worker"), asyncio.timeout(PATIENCE_S):
            assert (await caller.answer(number))["result"]["extensions"] == []
