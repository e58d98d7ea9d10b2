"""Extensions that have connected by themselves: a carrier instead of a process, and otherwise like any other."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from harness import PATIENCE_S
from timing import Stopwatch
from zot.agent.hooks import Extensions, NoExtensions
from zot.config.config import Config
from zot.encoding import encode
from zot.errors import AgentError, UserError
from zot.events import AgentEvent, ExtNotify
from zot.extensions.peer import BURST
from zot.extensions.sources import MAX_UNREAD_BYTES
from zot.messages import CallBlock, ImageBlock, ResultBlock, TextBlock, show, text_of
from zot.panels import CommandAnswer, CommandInfo
from zot.runtime.extensions import manager_of, open_extensions
from zot.runtime.open import OpenRequest
from zot.runtime.shared import SharedResources
from zot.runtime.toolbox import Toolbox
from zot.store import GuardSet
from zot.tools.base import ToolContext
from zot.version import __version__

from .remote import Remote
from .stage import WATCHER, Extension, Stage, results

CALL = CallBlock("c1", "bash", {"command": "ls"}, "")


def hello(name: str = "afar") -> dict[str, Any]:
    return {"type": "hello", "name": name, "version": "1"}


READY = {"type": "ready"}
LOOKUP = {"type": "register_tool", "name": "lookup", "schema": {"type": "object"}}
GREET = {"type": "register_command", "name": "greet", "description": "say hi"}
GUARD = {"type": "subscribe", "intercept": ["tool_call"], "on_failure": "block"}


def found(frame: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_result", "id": frame["id"], "content": [{"type": "text", "text": frame["args"]["q"]}]}


@asynccontextmanager
async def joinable(tmp_path: Path, *, reloadable: bool = False, **settings: Any) -> AsyncIterator[Extensions]:
    """A session without extensions of its own that others may join."""
    env = {"ZOT_HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    config = Config(provider="lab", cwd=str(tmp_path), env=env, **settings)
    resources = SharedResources()
    toolbox = Toolbox(config, resources, cwd=str(tmp_path), key="k")
    request = OpenRequest(config=config, joinable=True, reloadable=reloadable)
    extensions = open_extensions(request, toolbox, "lab-1")
    assert extensions is not None
    async with asyncio.timeout(PATIENCE_S):
        try:
            yield extensions
        finally:
            await extensions.close()
            await toolbox.close()
            await resources.close()


async def test_a_connected_extension_says_hello_registers_and_is_shut_down(tmp_path: Path) -> None:
    remote = Remote(
        tool_call=found,
        command_invoked=lambda frame: {
            "type": "command_response", "id": frame["id"], "action": "display", "display": frame["args"],
        },
    )  # fmt: skip
    async with joinable(tmp_path) as extensions:
        await extensions.ready()
        extension = manager_of(extensions).join("afar", remote.link)
        await remote.says(hello(), LOOKUP, GREET, {"type": "subscribe", "events": ["session_start"]}, READY)
        await extensions.ready()
        (tool,) = extensions.tools()
        context = ToolContext(str(tmp_path), {})
        assert await tool.run({"q": "it"}, context) == (TextBlock("it"),)
        assert tool.spec.extension == "afar"
        assert extensions.commands() == [CommandInfo("greet", "say hi", "afar")]
        assert await extensions.run_command("/greet", "Ada") == CommandAnswer("afar", "display", display="Ada")
    assert [frame["type"] for frame in remote.heard] == [
        "hello_ack", "event", "tool_call", "command_invoked", "shutdown",
    ]  # fmt: skip
    assert remote.heard[0] == {
        "type": "hello_ack", "protocol_version": 1, "zot_version": __version__, "provider": "lab", "model": "lab-1",
        "cwd": str(tmp_path), "extension_dir": "", "data_dir": "",
    }  # fmt: skip
    assert remote.hung_up_on
    assert extension.is_over


async def test_an_extension_that_disconnects_offers_nothing_and_may_reconnect(tmp_path: Path) -> None:
    async with joinable(tmp_path) as extensions:
        shown: list[bytes] = []
        extensions.attach(lambda events: shown.extend(map(encode, events)))
        for _ in range(2):
            remote = Remote()
            extension = manager_of(extensions).join("afar", remote.link)
            await remote.says(hello(), LOOKUP, READY)
            await extension.settled()
            assert [tool.spec.name for tool in extensions.tools()] == ["lookup"]
            remote.link.hung_up()
            await extension.over()
            assert extensions.tools() == []
        assert shown == [encode(ExtNotify("afar", "error", "disconnected"))] * 2


async def test_a_disconnected_guard_blocks_until_it_reconnects(tmp_path: Path) -> None:
    async with joinable(tmp_path) as extensions:
        first = Remote(event_intercept=lambda frame: {"type": "event_intercept_response", "id": frame["id"]})
        extension = manager_of(extensions).join("afar", first.link)
        await first.says(hello(), GUARD, READY)
        await extension.settled()
        assert (await extensions.tool_called(CALL, {})).refusal is None
        first.link.hung_up()
        await extension.over()
        gone = "extension afar, which guards this, is not running"
        assert (await extensions.tool_called(CALL, {})).refusal == gone
        others = Remote()
        other = manager_of(extensions).join(
            "other", others.link
        )  # It removes files of ended processes, but not this one.
        await others.says(hello("other"), READY)
        await other.settled()
        assert (await extensions.tool_called(CALL, {})).refusal == gone
        second = Remote(event_intercept=lambda frame: {"type": "event_intercept_response", "id": frame["id"]})
        manager_of(extensions).join("afar", second.link)
        refusal = (await extensions.tool_called(CALL, {})).refusal
        assert refusal == gone
        await second.says(hello(), GUARD, READY)
        await second.hears("hello_ack")
        await extensions.ready()
        assert (await extensions.tool_called(CALL, {})).refusal is None


async def test_a_dismissed_guard_blocks_nothing(tmp_path: Path) -> None:
    async with joinable(tmp_path) as extensions:
        shown: list[bytes] = []
        extensions.attach(lambda events: shown.extend(map(encode, events)))
        remote = Remote()
        extension = manager_of(extensions).join("afar", remote.link)
        await remote.says(hello(), GUARD, READY)
        await extension.settled()
        extensions.recall(GuardSet("afar", ("tool_call",)))
        assert extensions.is_connected("afar")
        remote.link.hung_up()
        await extension.over()
        assert not extensions.is_connected("afar")
        assert (await extensions.tool_called(CALL, {})).refusal is not None
        extensions.recall(GuardSet("afar", ()))
        assert (await extensions.tool_called(CALL, {})).refusal is None
        assert shown[-1] == encode(ExtNotify("afar", "warn", "was dismissed and no longer blocks"))


async def test_a_guard_that_reconnects_during_its_dismissal_is_recorded_again(tmp_path: Path) -> None:
    async with joinable(tmp_path) as extensions:
        extensions.recall(GuardSet("afar", ("tool_call",)))
        await extensions.ready()
        remote, recorded = Remote(), list[GuardSet]()
        extension = manager_of(extensions).join("afar", remote.link, recorded.append)
        await remote.says(hello(), GUARD, READY)
        await extension.settled()
        extensions.recall(GuardSet("afar", ()))
    assert recorded == [GuardSet("afar", ("tool_call",))] * 2


async def test_a_missing_guard_stays_missing_after_a_reload(tmp_path: Path) -> None:
    async with joinable(tmp_path, reloadable=True) as extensions:
        extensions.recall(GuardSet("afar", ("tool_call",)))
        await manager_of(extensions).reload(lambda: None)
        gone = "extension afar, which guards this, is not running"
        assert (await extensions.tool_called(CALL, {})).refusal == gone


async def test_closing_a_session_ends_the_extensions_that_a_reload_has_just_started(tmp_path: Path) -> None:
    slow = Extension(tmp_path, "slow", 'hello("events")\nfor frame in frames(): pass\n')
    async with joinable(tmp_path, reloadable=True, ext=(str(slow.directory),)) as extensions:
        reloading = asyncio.create_task(manager_of(extensions).reload(lambda: None))
        heard = slow.directory / "data" / "heard"
        while not (heard.exists() and heard.read_text()):  # It was greeted. `joinable` bounds this wait.
            await asyncio.sleep(0.01)
        await extensions.close()
        with pytest.raises(UserError, match="the extensions were not reloaded: slow: "):
            await reloading
    assert "shutdown" in slow.heard_types()


async def test_a_name_belongs_to_one_connection_at_a_time(tmp_path: Path) -> None:
    async with joinable(tmp_path) as extensions:
        manager_of(extensions).join("afar", Remote().link)
        with pytest.raises(UserError, match="the session has an extension named 'afar' already"):
            manager_of(extensions).join("afar", Remote().link)
        with pytest.raises(UserError, match="'a b' is not a valid name for an extension: letters, digits"):
            manager_of(extensions).join("a b", Remote().link)
    with pytest.raises(UserError, match="the session is over"):
        manager_of(extensions).join("late", Remote().link)
    with pytest.raises(UserError, match="this session has no extensions, and none can join or be loaded"):
        manager_of(NoExtensions()).join("afar", Remote().link)


async def test_a_silent_or_invalid_connection_is_closed(tmp_path: Path) -> None:
    async with joinable(tmp_path, ext_deadlines={"hello": 0.05}) as extensions:
        silent, rude = Remote(), Remote()
        extension = manager_of(extensions).join("silent", silent.link)
        other = manager_of(extensions).join("rude", rude.link)
        await rude.link.bring(b"GET / HTTP/1.1\r\n")
        await extension.over()
        await other.over()
        assert (silent.hung_up_on, extension.problem) == (
            True,
            "did not say hello within 0.05 s (--ext-deadline hello=SECONDS changes that)",
        )
        assert rude.hung_up_on
        assert other.problem.startswith("did not say hello first, but wrote a line that is not a frame")


async def test_a_connected_extension_is_asked_after_the_session_s_own(tmp_path: Path) -> None:
    reason = {"type": "event_intercept_response", "block": True, "reason": "not from afar"}
    remote = Remote(event_intercept=lambda frame: {**reason, "id": frame["id"]})
    async with Stage(tmp_path, Extension(tmp_path, "watcher", WATCHER)) as stage:
        manager_of(stage.session.agent.extensions).join("afar", remote.link)
        await remote.says(hello(), GUARD, READY)
        told = await stage.prompt('call read {"path": "."} ;; --- ;; say done')
    assert results(told) == [("not from afar", True)]


async def test_an_error_result_keeps_its_images(tmp_path: Path) -> None:
    content = [{"type": "text", "text": "broken"}, {"type": "image", "mime_type": "image/png", "data": "aGk="}]
    remote = Remote(
        tool_call=lambda frame: {"type": "tool_result", "id": frame["id"], "is_error": True, "content": content}
    )
    async with Stage(tmp_path, Extension(tmp_path, "watcher", WATCHER)) as stage:
        manager_of(stage.session.agent.extensions).join("afar", remote.link)
        await remote.says(hello(), LOOKUP, READY)
        told = await stage.prompt("call lookup {} ;; --- ;; say done")
        kept = stage.session.history.transcript.messages[2].content
    [result] = [event for event in told if event["type"] == "tool_result"]
    assert result["is_error"]
    assert [block["type"] for block in result["content"]] == ["text", "image"]
    output = (TextBlock("broken"), ImageBlock("image/png", b"hi"))
    assert [(block.is_error, block.content) for block in kept if isinstance(block, ResultBlock)] == [(True, output)]


@pytest.mark.parametrize(
    ("decision", "shown"),
    [({"replace_text": "[redacted]"}, "[redacted]"), ({"block": True, "reason": "secret"}, "(held back: secret)")],
)
async def test_an_interceptor_of_messages_decides_about_summaries_too(
    tmp_path: Path, decision: dict[str, Any], shown: str
) -> None:
    def decide(frame: dict[str, Any]) -> dict[str, Any]:
        guarded = decision if "Summary" in frame["text"] else {}
        return {"type": "event_intercept_response", "id": frame["id"], **guarded}

    remote = Remote(event_intercept=decide)
    async with Stage(tmp_path, Extension(tmp_path, "watcher", WATCHER)) as stage:
        manager_of(stage.session.agent.extensions).join("afar", remote.link)
        await remote.says(hello(), {"type": "subscribe", "intercept": ["assistant_message"]}, READY)
        for _ in range(4):
            await stage.prompt("say hi")
        stage.session.compact()
        await stage.session.worker.finish()
        [summary] = [event["summary"] for event in stage.events if event["type"] == "compact_done"]
        first = stage.session.history.transcript.messages[0]
    assert summary == shown
    assert text_of(show(first).content) == f"## Context Summary (compacted)\n\n{shown}"
    assert "Summary: " in text_of(first.content).removeprefix("## Context Summary (compacted)")


async def test_a_fast_extension_waits_for_zot_to_read() -> None:
    link = Remote().link
    await link.bring(b"x" * MAX_UNREAD_BYTES)
    bringing = asyncio.ensure_future(link.bring(b"y"))
    await asyncio.sleep(0)
    assert not bringing.done()
    assert await link.read() == b"x" * MAX_UNREAD_BYTES
    await bringing
    link.hung_up()
    assert [await link.read(), await link.read()] == [b"y", b""]


async def test_a_lost_extension_does_not_wait_to_be_read() -> None:
    link = Remote().link
    await link.bring(b"x" * MAX_UNREAD_BYTES)
    bringing = asyncio.ensure_future(link.bring(b"y"))
    await asyncio.sleep(0)
    assert not bringing.done()
    link.lost()
    await bringing
    await link.bring(b"z")
    link.hung_up()
    assert [await link.read() for _ in range(4)] == [b"x" * MAX_UNREAD_BYTES, b"y", b"z", b""]


async def test_the_end_of_a_talkative_extension_is_noticed_at_once(tmp_path: Path) -> None:
    remote = Remote()
    async with joinable(tmp_path) as extensions:
        shown: list[bytes] = []
        extensions.attach(lambda events: shown.extend(map(encode, events)))
        extension = manager_of(extensions).join("afar", remote.link)
        await remote.says(hello(), LOOKUP, READY)
        await extension.settled()
        (tool,) = extensions.tools()
        watch = Stopwatch()
        asked = asyncio.ensure_future(tool.run({"q": "it"}, ToolContext(str(tmp_path), {})))
        await remote.hears("tool_call")
        await remote.says(*[{"type": "notify", "message": "hey"}] * 5000)
        remote.link.hung_up()
        with pytest.raises(AgentError, match="disconnected"):
            await asked
        await extension.over()
    assert watch.read_s() < 5
    told = shown.count(encode(ExtNotify("afar", "info", "hey")))
    assert BURST <= told < 2 * BURST
    assert shown[-1] == encode(ExtNotify("afar", "error", "disconnected"))


async def test_an_endless_talker_is_dropped_when_the_session_ends(tmp_path: Path) -> None:
    remote, shown = Remote(shutdown=lambda frame: None), list[AgentEvent]()
    async with joinable(tmp_path, ext_deadlines={"shutdown": 0.1}) as extensions:
        extensions.attach(shown.extend)
        extension = manager_of(extensions).join("afar", remote.link)
        await remote.says(hello(), READY, *[{"type": "notify", "message": "hey"}] * 20_000)
        await extension.settled()
        watch = Stopwatch()
        await extensions.close()
        assert watch.read_s() < 2
    assert remote.hung_up_on
    assert len(shown) < 2 * BURST


async def test_an_answer_that_arrived_counts_although_its_deadline_has_passed(tmp_path: Path) -> None:
    def hold_up_the_loop(frame: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.1)
        return {"type": "event_intercept_response", "id": frame["id"], "block": True, "reason": "not today"}

    remote = Remote(event_intercept=hold_up_the_loop)
    async with joinable(tmp_path, ext_deadlines={"intercept": 0.05}) as extensions:
        extension = manager_of(extensions).join("afar", remote.link)
        await remote.says(hello(), {"type": "subscribe", "intercept": ["tool_call"]}, READY)
        await extension.settled()
        assert (await extensions.tool_called(CALL, {})).refusal == "not today"
