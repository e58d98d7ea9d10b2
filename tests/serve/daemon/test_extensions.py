"""Extensions in the daemon: panels for all followers of a session, and bad extensions that block no other session."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from daemons import PATIENCE_S, Caller, running
from extensions.stage import Extension
from extensions.test_zoo import ZOO
from tools.shells import left
from zot.commands.ext import main

#: Sleeps when it is asked, and has to be asked.
SLEEPER = """
hello("events")
say("subscribe", intercept=["turn_start"])
say("ready")
for frame in frames():
    if frame["type"] == "event_intercept":
        time.sleep(60)
"""
MUTE = "never says hello"
SILENT = "closes its output"
UNMOVED = "did not end within 0.1 s of shutdown"
#: What `zot ext list` says of those of which the zoo expects nothing, something else, or something that came before.
EXPLAINED = {
    MUTE: "did not say hello within 0.3 s",
    "says half a hello": "did not say hello first, but wrote a line that is not a frame",
    "floods": UNMOVED,
    "talks all the time": "sends too much: ",
    "floods with nonsense": "wrote ",  # A line that is not a frame, or too many.
    SILENT: "was killed by signal 15",  # For that: it is waited for.
    "sleeps when it is called": "did not answer within 0.1 s: tool",
    "does not read": "did not answer within 0.1 s: tool",
    "ignores being told to end": UNMOVED,
    "leaves a daemon behind": UNMOVED,
    "answers twice": "tool_result: the call 1 ",  # Was answered already, or had failed by then.
    "answers what nobody asked": "tool_result: the call ",  # 9999 is not known, or the other had failed by then.
    "sleeper": "did not answer within 0.1 s: intercept turn_start",
}
AGENTS = """
[agents.plain]
no_ext = true

[agents.zoo]
policy = ["*=allow"]
ext_deadlines = { hello = 60, ready = 60, tool = 0.1, intercept = 0.1, shutdown = 0.1, terminate = 0.1 }

[agents.mute]
no_ext = true
ext = ["%s"]
ext_deadlines = { hello = 0.3, shutdown = 0.1, terminate = 0.1 }
"""


@asynccontextmanager
async def beating() -> AsyncIterator[list[float]]:
    """Measure, repeatedly, how long the loop's thread works before another task has a turn."""
    turns: list[float] = []

    async def beat() -> None:
        while True:
            start = time.thread_time()
            await asyncio.sleep(0.001)
            turns.append(time.thread_time() - start)

    gc.collect()
    gc.freeze()  # The modules that the tests have loaded are not measured.
    beats = asyncio.ensure_future(beat())
    try:
        yield turns
    finally:
        beats.cancel()
        gc.unfreeze()


async def test_bad_extensions_affect_no_other_session_and_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    home, mark = tmp_path / "home", uuid.uuid4().hex
    monkeypatch.setenv("ZOT_HOME", str(home))
    monkeypatch.setenv("ZOT_TEST_CALL", mark)
    names = {kind: f"animal{at}" for at, kind in enumerate(ZOO)}
    for kind, (script, _, _) in ZOO.items():
        place = tmp_path if kind == MUTE else home / "extensions"
        more = {"exec": "./missing"} if kind == "cannot be started" else {}
        Extension(place, names[kind], script.replace('name="bad"', "name=NAME"), **more)
    Extension(home / "extensions", "sleeper", SLEEPER)
    (tmp_path / "config.toml").write_text(AGENTS % (tmp_path / names[MUTE]))
    async with running(tmp_path) as service:
        caller, other = await service.caller(), await service.caller()
        for at in range(20):
            await other.get("session/new", agentAlias="plain", sessionId=f"plain{at}")
        async with beating() as turns:
            for agent in ("zoo", "mute"):
                await caller.get("session/new", agentAlias=agent, sessionId=agent)
            silent = caller.call("session/prompt", sessionId="mute", prompt="!echo heard")
            calls = " ;; ".join(f"call {names[kind]} {{}}" for kind, (_, _, result) in ZOO.items() if result)
            played = caller.call("session/prompt", sessionId="zoo", prompt=f"!script {calls} ;; --- ;; say done")
            playing = asyncio.ensure_future(both(caller, silent, played))
            for at in count():
                told = await other.get("session/prompt", sessionId=f"plain{at % 20}", prompt="!echo here")
                assert told["content"] == "here"
                if playing.done():
                    break
            assert playing.result() == ["heard", "done"]
            await until_logged(home, names[SILENT], "was killed by signal 15")  # Else the session may end before that.
            for agent in ("zoo", "mute"):
                await caller.get("session/close", sessionId=agent)
    assert sorted(turns)[-3] < 0.05  # The machine may have had a hiccup or two of its own.
    assert left(mark) == []
    (tmp_path / names[MUTE]).rename(home / "extensions" / names[MUTE])
    assert await asyncio.to_thread(main, ["list", "--json"]) == 0
    listed = {one["name"]: one["last_problem"]["text"] for one in map(json.loads, capfd.readouterr().out.splitlines())}
    explained = {kind: EXPLAINED.get(kind, said) for kind, (_, said, _) in ZOO.items()}
    wrong = {kind: listed[names[kind]] for kind, said in explained.items() if said not in listed[names[kind]]}
    assert wrong == {}
    assert EXPLAINED["sleeper"] in listed["sleeper"]


async def until_logged(home: Path, name: str, text: str) -> None:
    """Wait until an extension's log contains a text."""
    async with asyncio.timeout(PATIENCE_S):
        while text not in (home / "logs" / f"ext-{name}.log").read_text():
            await asyncio.sleep(0.005)


async def both(caller: Caller, *numbers: int) -> list[Any]:
    """Return the answers to prompts, in the order of their arrival."""
    answers: dict[int, Any] = {}
    while {*numbers} - {*answers}:
        frame = await caller.read()
        if "method" not in frame:
            answers[frame["id"]] = frame["result"]["content"]
    return [answers[number] for number in numbers]


TODO = """
hello("commands", "panels")
say("register_command", name="todo", description="what there is to do")
say("ready")
for frame in frames():
    if frame["type"] == "command_invoked":
        panel = {"id": "list", "title": "Todo", "lines": ["ship"], "footer": "x done"}
        say("command_response", id=frame["id"], action="open_panel", open_panel=panel)
    elif frame["type"] == "panel_key":
        say("panel_render", panel_id="list", title="Todo", lines=[frame["key"] + " " + frame.get("text", "")])
    elif frame["type"] == "shutdown":
        break
"""


async def test_a_panel_is_shown_to_every_subscriber_and_takes_keys_from_any(tmp_path: Path) -> None:
    extension = Extension(tmp_path, "todo", TODO)
    async with running(tmp_path, ext=(str(extension.directory),)) as service:
        one, two = [await service.caller(protocolVersion=1, features=["events"]) for _ in range(2)]
        await one.get("session/new", agentAlias="default", sessionId="s")
        await two.get("session/attach", sessionId="s")
        opened = await one.get("session/run_command", sessionId="s", name="todo")
        assert (opened["action"], opened["panelId"]) == ("open_panel", "list")
        await panels(two, 1)
        await two.get("session/panel_key", sessionId="s", panelId="list", key="rune", text="x")
        await panels(two, 2)
        await two.get("session/panel_close", sessionId="s", panelId="list")
        seen = [await panels(client, 3) for client in (one, two)]
    shown = {"extension": "todo", "panel_id": "list"}
    drawn = {"type": "panel_render", **shown, "title": "Todo", "lines": ["rune x"]}
    assert seen == [
        [
            {"type": "panel_open", **shown, "title": "Todo", "lines": ["ship"], "footer": "x done"},
            drawn,
            {"type": "panel_close", **shown},
        ]
    ] * 2  # fmt: skip
    told = [frame for frame in extension.heard() if frame["type"].startswith("panel")]
    assert told == [
        {"type": "panel_key", "panel_id": "list", "key": "rune", "text": "x"},
        {"type": "panel_close", "panel_id": "list"},
    ]


async def test_a_client_with_an_open_panel_does_not_get_it_again_for_events_elsewhere(tmp_path: Path) -> None:
    extension = Extension(tmp_path, "todo", TODO)
    async with running(tmp_path, ext=(str(extension.directory),)) as service:
        caller = await service.caller(protocolVersion=1, features=["events"])
        await caller.get("session/new", agentAlias="default", sessionId="s")
        await caller.get("session/run_command", sessionId="s", name="todo")
        feed = service.daemon.sessions.feed("s")
        for heard, key in enumerate(("x", "y"), 2):
            feed.on_foreign_rows(feed.seq + 1)  # as if another process had added something
            await caller.get("session/panel_key", sessionId="s", panelId="list", key="rune", text=key)
            await panels(caller, heard)
        feed.on_foreign_rows(feed.seq + 1)
        await caller.get("session/panel_close", sessionId="s", panelId="list")
        seen = await panels(caller, 4)
    assert [event["type"] for event in seen] == ["panel_open", "panel_render", "panel_render", "panel_close"]


async def panels(caller: Caller, so_many: int) -> list[dict[str, Any]]:
    """Read until this many panel events have arrived, and return them."""
    while True:
        told = [update["event"] for update in caller.updates() if "event" in update]
        found = [event for event in told if event["type"].startswith("panel")]
        if len(found) >= so_many:
            return found
        await caller.read()
