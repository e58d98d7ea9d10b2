"""Extensions in a session: each decides in order, gets events in order, and delays no run."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from zot.errors import NoSuchCommand, RunCancelled, UserError
from zot.extensions.peer import BURST
from zot.extensions.sources import ExtensionProcess
from zot.messages import timestamp
from zot.session.transcripts import endings, past_message

from .stage import WATCHER, Extension, Stage, results, typed

TOOL = """
hello("tools")
say("register_tool", name="lookup", description="Look it up.", schema={"type": "object"})
say("ready")
for frame in frames():
    if frame["type"] == "tool_call":
        say("tool_result", id=frame["id"], content=[{"type": "text", "text": "found " + frame["args"]["q"]}])
    elif frame["type"] == "shutdown":
        say("shutdown_ack")
        break
"""


def interceptor(*events: str, then: str, on_failure: str = "allow", watch: bool = False) -> str:
    """A script that decides about ``events`` with the code ``then``, which has ``frame``."""
    heard = list(events) if watch else []
    return f"""
hello("events")
say("subscribe", events={heard!r}, intercept={list(events)!r}, on_failure={on_failure!r})
say("ready")
for frame in frames():
    if frame["type"] == "event_intercept":
        {then}
    elif frame["type"] == "shutdown":
        say("shutdown_ack")
        break
"""


@pytest.mark.parametrize("kept", [False, True])
async def test_events_come_in_order_and_after_the_question_about_them(tmp_path: Path, *, kept: bool) -> None:
    watcher = Extension(tmp_path, "watcher", WATCHER)
    guard = Extension(
        tmp_path, "guard", interceptor("turn_start", "tool_call", "assistant_message", then="answer(frame)", watch=True)
    )
    async with Stage(tmp_path, watcher, guard, kept=kept) as stage:
        await stage.prompt('say first ;; call read {"path": "."} ;; --- ;; say last')
    assert watcher.heard_types() == [
        "session_start", "turn_start", "assistant_message", "tool_call", "turn_end", "turn_start", "assistant_message",
        "turn_end", "shutdown",
    ]  # fmt: skip
    assert guard.heard_types() == [
        "turn_start ?", "turn_start", "assistant_message ?", "assistant_message", "tool_call ?", "tool_call",
        "turn_start ?", "turn_start", "assistant_message ?", "assistant_message", "shutdown",
    ]  # fmt: skip


async def test_an_extension_s_tool_is_offered_to_the_model_and_names_its_owner(tmp_path: Path) -> None:
    async with Stage(tmp_path, Extension(tmp_path, "finder", TOOL)) as stage:
        events = await stage.prompt('call lookup {"q": "it"} ;; --- ;; say done')
    assert results(events) == [("found it", False)]
    [result] = [event for event in events if event["type"] == "tool_result"]
    assert result["details"] == {"extension": "finder"}


async def test_the_model_gets_the_beginning_and_the_end_of_a_long_result(tmp_path: Path) -> None:
    long = TOOL.replace('"found " + frame["args"]["q"]', '"begin" + "x" * 3_000_000 + "end"')
    async with Stage(tmp_path, Extension(tmp_path, "finder", long)) as stage:
        [(text, _)] = results(await stage.prompt('call lookup {"q": "it"} ;; --- ;; say done'))
    assert text.startswith("beginx")
    assert text.endswith("xend")
    assert len(text) < 60_000


@pytest.mark.parametrize(
    ("settings", "offered"),
    [({}, True), ({"tools": ("lookup",)}, True), ({"tools": ("read",)}, False), ({"tools": ()}, False)],
)
async def test_the_tool_list_applies_to_extensions_too(
    tmp_path: Path, settings: dict[str, Any], *, offered: bool
) -> None:
    async with Stage(tmp_path, Extension(tmp_path, "finder", TOOL), **settings) as stage:
        [(text, is_error)] = results(await stage.prompt('call lookup {"q": "it"} ;; --- ;; say done'))
    assert is_error is not offered
    assert text.startswith("found it" if offered else "there is no tool named 'lookup'")


async def test_interceptors_run_in_order_and_each_sees_the_previous_change(tmp_path: Path) -> None:
    then = 'answer(frame, modified_args={"path": frame["tool_args"]["path"] + NAME})'
    extensions = [Extension(tmp_path, name, interceptor("tool_call", then=then)) for name in ("b", "a", "c")]
    async with Stage(tmp_path, *extensions) as stage:
        events = await stage.prompt('call read {"path": "x"} ;; --- ;; say done')
    [(text, _)] = results(events)
    assert "xbac" in text
    [call] = [event for event in events if event["type"] == "tool_call"]
    assert call["args"] == {"path": "x"}


async def test_the_first_block_wins_and_the_model_gets_the_reason(tmp_path: Path) -> None:
    first = Extension(tmp_path, "first", interceptor("tool_call", then='answer(frame, block=True, reason="not today")'))
    second = Extension(tmp_path, "second", interceptor("tool_call", then="answer(frame)"))
    async with Stage(tmp_path, first, second) as stage:
        events = await stage.prompt(f'call write {{"path": "{tmp_path}/made", "content": ""}} ;; --- ;; say done')
    assert results(events) == [("not today", True)]
    assert second.heard_types() == ["shutdown"]
    assert not (tmp_path / "made").exists()


async def test_a_turn_can_be_blocked(tmp_path: Path) -> None:
    guard = Extension(tmp_path, "guard", interceptor("turn_start", then='answer(frame, block=True, reason="closed")'))
    async with Stage(tmp_path, guard) as stage:
        events = await stage.prompt("say hi")
    assert typed(events) == ["user_message", "turn_start", "turn_end", "done"]
    assert events[2] == {"type": "turn_end", "stop": "error", "error": "closed"}


async def test_a_message_is_held_until_every_interceptor_decided(tmp_path: Path) -> None:
    guard = Extension(
        tmp_path, "guard", interceptor("assistant_message", then='answer(frame, replace_text="[redacted]")')
    )
    async with Stage(tmp_path, guard) as stage:
        events = await stage.prompt("say se ;; say cret")
        [_, message] = stage.session.history.transcript.messages
    assert [event["delta"] for event in events if event["type"] == "text_delta"] == ["[redacted]"]
    [shown] = [event for event in events if event["type"] == "assistant_message"]
    assert shown["content"] == [{"type": "text", "text": "[redacted]"}]
    assert "".join(getattr(block, "text", "") for block in message.content) == "secret"


@pytest.mark.parametrize("kept", [False, True])
async def test_a_client_learns_which_extension_holds_a_message(tmp_path: Path, *, kept: bool) -> None:
    guard = Extension(tmp_path, "guard", interceptor("assistant_message", then="answer(frame)"))
    async with Stage(tmp_path, guard, Extension(tmp_path, "watcher", WATCHER), kept=kept) as stage:
        await stage.prompt('say first ;; say er ;; call read {"path": "."} ;; --- ;; say last')
    told = [(event["type"], event.get("what", "")) for event in stage.events]
    told = [one for one in told if one[0] in ("assistant_start", "text_delta", "usage") or one[1].startswith("held")]
    held = [("assistant_start", ""), ("ext_waiting", "held assistant_message"), ("text_delta", ""), ("usage", "")]
    assert told == [*held, *held]
    assert {event["extension"] for event in stage.events if event.get("what", "").startswith("held")} == {"guard"}


async def test_text_is_not_held_for_an_extension_that_intercepts_other_events(tmp_path: Path) -> None:
    script = interceptor("tool_call", "turn_start", then="answer(frame)").replace(
        "events=[]", 'events=["assistant_message"]'
    )
    guard = Extension(tmp_path, "guard", script, on_failure="block", intercept=["tool_call", "turn_start"])
    async with Stage(tmp_path, guard) as stage:
        events = await stage.prompt("say fi ;; say rst")
    assert [event["delta"] for event in events if event["type"] == "text_delta"] == ["fi", "rst"]
    assert not [event for event in stage.events if event.get("what", "").startswith("held")]
    assert "assistant_message" in guard.heard_types()


async def test_the_reason_for_a_blocked_message_is_recorded(tmp_path: Path) -> None:
    guard = Extension(
        tmp_path, "guard", interceptor("assistant_message", then='answer(frame, block=True, reason="secret")')
    )
    async with Stage(tmp_path, guard, kept=True) as stage:
        await stage.prompt("say hi")
        ended = endings(await stage.session.store.changes_with_failures())
        past = [past_message(message, ended) for message in stage.session.history.transcript.messages]
    assert [(message.content, message.stop, message.error) for message in past[1:]] == [
        ((), "end_turn", "held back by guard: secret")
    ]


# People's commands and panels.

PANEL = """
hello("commands", "panels")
for name in ("ask", "put", "tell", "open", "nothing", "fail"):
    say("register_command", name=name, description="Does " + name + ".")
say("ready")
ANSWERS = {
    "ask": {"action": "prompt", "prompt": "!script say asked"},
    "put": {"action": "insert", "insert": "text"},
    "tell": {"action": "display", "display": "note"},
    "open": {"action": "open_panel", "open_panel": {"id": "p", "title": "T", "lines": ["one"], "footer": "f"}},
    "nothing": {"action": "noop"},
    "fail": {"action": "noop", "error": "cannot"},
}
for frame in frames():
    if frame["type"] == "command_invoked":
        say("command_response", id=frame["id"], **ANSWERS[frame["name"]])
    elif frame["type"] == "panel_key":
        say("panel_render", panel_id="p", title="T", lines=[frame["key"] + frame.get("text", "")])
    elif frame["type"] == "shutdown":
        say("shutdown_ack")
        break
"""


async def test_a_command_s_action_is_carried_out(tmp_path: Path) -> None:
    async with Stage(tmp_path, Extension(tmp_path, "menu", PANEL)) as stage:
        commands = await stage.session.commands()
        assert [(command.name, command.extension) for command in commands][:2] == [("ask", "menu"), ("put", "menu")]
        answers = [await stage.session.run_command(name, "") for name in ("ask", "put", "tell", "nothing")]
        assert [(answer.action, answer.prompt or answer.insert or answer.display) for answer in answers] == [
            ("prompt", "!script say asked"), ("insert", "text"), ("display", "note"), ("noop", ""),
        ]  # fmt: skip
        with pytest.raises(UserError, match="cannot"):
            await stage.session.run_command("fail", "")
        with pytest.raises(UserError, match="there is no command named 'x'; there are: ask, put"):
            await stage.session.run_command("x", "")


async def test_a_panel_is_open_until_either_side_closes_it(tmp_path: Path) -> None:
    async with Stage(tmp_path, Extension(tmp_path, "menu", PANEL)) as stage:
        await stage.session.run_command("open", "")
        stage.session.extensions.panels.send_key("p", "rune", "x")
        await stage.until(lambda: len(stage.events) == 2)
        stage.session.extensions.panels.close("p")
        with pytest.raises(UserError, match="no panel 'p' is open"):
            stage.session.extensions.panels.send_key("p", "up", "")
    about = {"extension": "menu", "panel_id": "p"}
    assert stage.events == [
        {"type": "panel_open", **about, "title": "T", "lines": ["one"], "footer": "f"},
        {"type": "panel_render", **about, "title": "T", "lines": ["runex"]},
        {"type": "panel_close", **about},
    ]


async def test_a_panel_s_first_content_follows_its_opening(tmp_path: Path) -> None:
    hasty = """
hello("commands", "panels"); say("register_command", name="open"); say("ready")
for frame in frames():
    if frame["type"] == "command_invoked":
        panel = {"id": "p", "lines": ["one"]}
        answer = {"type": "command_response", "id": frame["id"], "action": "open_panel", "open_panel": panel}
        more = [{"type": "panel_render", "panel_id": "p", "lines": ["two"]}, {"type": "panel_close", "panel_id": "p"}]
        sys.stdout.write("".join(json.dumps(one) + "\\n" for one in [answer, *more]))
        sys.stdout.flush()
    elif frame["type"] == "shutdown":
        break
"""
    async with Stage(tmp_path, Extension(tmp_path, "hasty", hasty)) as stage:
        assert (await stage.session.run_command("open", "")).panel_id == "p"
    assert typed(stage.events) == ["panel_open", "panel_render", "panel_close"]


async def test_a_slow_subscriber_misses_notices_but_no_panel(tmp_path: Path) -> None:
    chatty = PANEL.replace("in frames():\n", 'in frames():\n    say("notify", message="hi")\n')
    async with Stage(tmp_path, Extension(tmp_path, "menu", chatty)) as stage:
        await stage.session.run_command("open", "")
        assert typed(stage.events)[-1] == "panel_open"
        heard = len(stage.notices())
        stage.full = True
        stage.session.extensions.panels.close("p")
        await stage.session.run_command("open", "")
    assert len(stage.notices()) == heard > 0
    assert [kind for kind in typed(stage.events) if kind != "ext_notify"] == ["panel_open", "panel_close"] * 2


async def test_the_first_of_two_extensions_keeps_a_shared_name_and_the_other_is_notified(tmp_path: Path) -> None:
    first, second = (Extension(tmp_path, name, TOOL) for name in ("first", "second"))
    menus = [Extension(tmp_path, name, PANEL) for name in ("menu", "other")]
    async with Stage(tmp_path, first, second, *menus) as stage:
        events = await stage.prompt('call lookup {"q": "it"} ;; --- ;; say done')
        commands = await stage.session.commands()
    assert [event["details"] for event in events if event["type"] == "tool_result"] == [{"extension": "first"}]
    assert {command.extension for command in commands} == {"menu"}
    assert "the tool lookup is not offered: first has one of that name" in stage.log("second")
    assert "the command ask is not offered: menu has one of that name" in stage.log("other")


async def test_a_panel_is_not_taken_from_its_owner(tmp_path: Path) -> None:
    menu = Extension(tmp_path, "menu", PANEL)
    other = Extension(tmp_path, "other", PANEL.replace('"open"', '"show"'))
    async with Stage(tmp_path, menu, other) as stage:
        await stage.session.run_command("open", "")
        with pytest.raises(UserError, match="extension menu has a panel 'p' open; close that first"):
            await stage.session.run_command("show", "")
        stage.session.extensions.panels.close("p")
        assert (await stage.session.run_command("show", "")).extension == "other"


# Notices never delay an answer.

FLOOD = 20_000
NOTICES = f"""os.write(1, b'{{"type":"notify","message":"x"}}\\n' * {FLOOD})"""


@pytest.mark.parametrize("when", ["before its answer", "before the question"])
async def test_a_guard_s_answer_counts_however_many_notices_it_sends(tmp_path: Path, when: str) -> None:
    block = 'answer(frame, block=True, reason="not today")'
    if when == "before its answer":
        script = interceptor("tool_call", then=f"{NOTICES}; {block}")
    else:
        script = interceptor("tool_call", then=block).replace('say("ready")', f'say("ready"); {NOTICES}')
    async with Stage(tmp_path, Extension(tmp_path, "guard", script), ext_deadlines={"intercept": 60}) as stage:
        events = await stage.prompt(f'call write {{"path": "{tmp_path}/made", "content": ""}} ;; --- ;; say done')
    assert results(events) == [("not today", True)]
    assert not (tmp_path / "made").exists()
    shown = stage.notices().count(("guard", "x"))
    assert BURST <= shown < FLOOD
    dropped = [int(count) for count in re.findall(r"sends too much: (\d+) notices were dropped", stage.log("guard"))]
    assert sum(dropped) + shown == FLOOD
    assert len([text for _, text in stage.notices() if "sends too much" in text]) == 1


async def test_a_tool_may_send_notices_before_its_result(tmp_path: Path) -> None:
    chatty = TOOL.replace('        say("tool_result"', f'        {NOTICES}\n        say("tool_result"')
    async with Stage(tmp_path, Extension(tmp_path, "finder", chatty)) as stage:
        assert results(await stage.prompt('call lookup {"q": "it"} ;; --- ;; say done')) == [("found it", False)]


async def test_an_answer_in_the_pipe_counts_although_zot_was_blocked_past_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = 'answer(frame, block=True, reason="not today"); open("data/answered", "w").close()'
    guard = Extension(tmp_path, "guard", interceptor("tool_call", then=then))
    send = ExtensionProcess.send

    def held_up(process: ExtensionProcess, data: bytes) -> None:
        send(process, data)
        give_up_at = time.monotonic() + 30
        while b"event_intercept" in data and time.monotonic() < give_up_at:
            if (guard.directory / "data" / "answered").exists():
                time.sleep(0.1)
                return
            time.sleep(0.005)

    monkeypatch.setattr(ExtensionProcess, "send", held_up)
    async with Stage(tmp_path, guard, ext_deadlines={"intercept": 0.05}) as stage:
        events = await stage.prompt('call read {"path": "."} ;; --- ;; say done')
    assert results(events) == [("not today", True)]


async def test_a_fast_panel_shows_its_newest_content(tmp_path: Path) -> None:
    hasty = PANEL.replace(
        '        say("panel_render", panel_id="p", title="T", lines=[frame["key"] + frame.get("text", "")])',
        '        for n in range(5000): say("panel_render", panel_id="p", title="T", lines=[str(n)])',
    )
    async with Stage(tmp_path, Extension(tmp_path, "menu", hasty)) as stage:
        await stage.session.run_command("open", "")
        stage.session.extensions.panels.send_key("p", "up", "")
        # A notice may follow the newest content.
        await stage.until(lambda: any(event.get("lines") == ["4999"] for event in stage.events))
    rendered = [int(event["lines"][0]) for event in stage.events if event["type"] == "panel_render"]
    assert rendered == sorted(rendered)
    assert len(rendered) < 5000
    assert "panel updates merged" in stage.log("menu")


# A failure affects the extension alone.

SILENT_GUARD = interceptor("tool_call", then="time.sleep(60)", on_failure="block")


async def test_a_guard_that_fails_closed_blocks_when_it_is_killed_in_the_middle(tmp_path: Path) -> None:
    guard = Extension(tmp_path, "guard", interceptor("tool_call", then="os.kill(os.getpid(), 9)", on_failure="block"))
    async with Stage(tmp_path, guard) as stage:
        write = f'call write {{"path": "{tmp_path}/made", "content": ""}} ;; --- ;; say done'
        [(first, is_error)] = results(await stage.prompt(write))
        assert (first, is_error) == ("extension guard was killed by signal 9", True)
        [(_, is_error)] = results(await stage.prompt(write))
        assert is_error
    assert not (tmp_path / "made").exists()


async def test_a_guard_of_the_manifest_blocks_before_it_is_ready(tmp_path: Path) -> None:
    guard = Extension(tmp_path, "guard", "sys.exit(1)", on_failure="block", intercept=["tool_call"])
    async with Stage(tmp_path, guard) as stage:
        [(text, is_error)] = results(await stage.prompt('call read {"path": "."} ;; --- ;; say done'))
    assert (text, is_error) == ("extension guard, which guards this, is not running", True)
    assert ("guard", "exited with 1 before it said hello") in stage.notices()


async def test_a_guard_of_the_manifest_that_never_says_hello_blocks(tmp_path: Path) -> None:
    guard = Extension(tmp_path, "guard", "time.sleep(60)", on_failure="block", intercept=["tool_call"])
    async with Stage(tmp_path, guard, ext_deadlines={"hello": 0.2, "terminate": 0.1}) as stage:
        [(text, is_error)] = results(await stage.prompt('call read {"path": "."} ;; --- ;; say done'))
    assert (text, is_error) == ("extension guard, which guards this, is not running", True)
    assert stage.notices()[0][1].endswith("(--ext-deadline hello=SECONDS changes that)")


async def test_a_sleeping_interceptor_is_abandoned_at_its_deadline(tmp_path: Path) -> None:
    sleeper = Extension(tmp_path, "sleeper", interceptor("tool_call", then="time.sleep(60)"))
    async with Stage(tmp_path, sleeper, ext_deadlines={"intercept": 0.2, "shutdown": 0.1, "terminate": 0.1}) as stage:
        [(_, is_error)] = results(await stage.prompt('call read {"path": "."} ;; --- ;; say done'))
    assert not is_error
    reason = "did not answer within 0.2 s: intercept tool_call"
    assert stage.notices() == [("sleeper", reason)]
    assert reason in stage.log("sleeper")


async def test_an_abort_ends_the_wait_for_a_command_at_once(tmp_path: Path) -> None:
    mute = Extension(tmp_path, "mute", PANEL.replace('if frame["type"] == "command_invoked"', "if False"))
    async with Stage(tmp_path, mute) as stage:
        running = asyncio.create_task(stage.session.run_command("ask", ""))
        while mute.heard_types() != ["command_invoked"]:
            await asyncio.sleep(0.01)
        stage.session.abort()
        with pytest.raises(RunCancelled, match="aborted before the extension answered"):
            await running


async def test_an_abort_ends_the_wait_for_the_list_of_commands(tmp_path: Path) -> None:
    async with Stage(tmp_path, Extension(tmp_path, "slow", "time.sleep(60)"), ext_deadlines={"shutdown": 0.1}) as stage:
        listing = asyncio.create_task(stage.session.commands())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stage.session.abort()
        assert await asyncio.wait_for(listing, 1) == []


async def test_an_abort_ends_the_wait_for_a_guard_at_once(tmp_path: Path) -> None:
    guard = Extension(tmp_path, "guard", SILENT_GUARD)
    async with Stage(tmp_path, guard, ext_deadlines={"shutdown": 0.1, "terminate": 0.1}) as stage:
        stage.session.prompt('!script call read {"path": "."} ;; --- ;; say done')
        while "tool_call ?" not in guard.heard_types():
            await asyncio.sleep(0.01)
        stage.session.abort()
        await stage.session.worker.finish()
    assert typed(stage.events)[-2:] == ["turn_end", "done"]
    assert stage.events[-2]["stop"] == "aborted"


async def test_an_abort_ends_the_wait_for_a_tool_at_once(tmp_path: Path) -> None:
    mute = Extension(tmp_path, "mute", TOOL.replace('if frame["type"] == "tool_call"', "if False"))
    async with Stage(tmp_path, mute) as stage:
        stage.session.prompt('!script call lookup {"q": "it"} ;; --- ;; say done')
        while "tool_call" not in mute.heard_types():
            await asyncio.sleep(0.01)
        stage.session.abort()
        await stage.session.worker.finish()
    assert stage.events[-2]["stop"] == "aborted"


async def test_it_does_not_see_zot_s_keys(tmp_path: Path) -> None:
    script = 'hello(); say("notify", message=" ".join(n for n in ("ANTHROPIC_API_KEY", "MINE") if n in os.environ))\n'
    env = {"ZOT_HOME": str(tmp_path), "PATH": os.environ["PATH"], "ANTHROPIC_API_KEY": "s3cret", "MINE": "1"}
    async with Stage(
        tmp_path, Extension(tmp_path, "nosy", script + "next(frames())\nnext(frames())"), env=env
    ) as stage:
        stage.session.extensions.start()
        await stage.until(lambda: bool(stage.notices()))
    assert stage.notices() == [("nosy", "MINE")]


async def test_a_crashed_extension_is_restarted_and_works(tmp_path: Path) -> None:
    once = "if not os.path.exists('data/crashed'):\n    open('data/crashed', 'w'); hello(); sys.exit(3)\n" + TOOL
    async with Stage(tmp_path, Extension(tmp_path, "shaky", once)) as stage:
        await stage.prompt("say hi")
        assert stage.notices() == [("shaky", "exited with 3")]
        await stage.until_offered("lookup")
        assert results(await stage.prompt('call lookup {"q": "it"} ;; --- ;; say done')) == [("found it", False)]


async def test_a_restarted_extension_gets_session_start_again(tmp_path: Path) -> None:
    once = "if not os.path.exists('data/crashed'):\n    open('data/crashed', 'w'); hello(); sys.exit(3)\n" + WATCHER
    shaky = Extension(tmp_path, "shaky", once)
    async with Stage(tmp_path, shaky) as stage:
        await stage.prompt("say hi")
        while not shaky.heard():
            await asyncio.sleep(0.01)
    assert shaky.heard_types() == ["session_start", "shutdown"]


async def test_an_extension_that_stops_reading_because_it_exits_counts_as_exited(tmp_path: Path) -> None:
    async with Stage(tmp_path, Extension(tmp_path, "hasty", "os.close(0); hello(); sys.exit(3)")) as stage:
        stage.session.extensions.start()
        await stage.until(lambda: bool(stage.notices()))
    assert stage.notices() == [("hasty", "exited with 3")]


async def test_an_extension_that_keeps_crashing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zot.extensions.supervisor._PAUSES_S", (0.01, 0.01, 0.01))
    async with Stage(tmp_path, Extension(tmp_path, "shaky", "hello(); sys.exit(3)")) as stage:
        await stage.prompt("say hi")
        await stage.until(lambda: len(stage.notices()) >= 5)
    assert stage.notices()[3:] == [
        ("shaky", "exited with 3"),
        ("shaky", "is not started again: it has crashed 4 times"),
    ]
    assert stage.log("shaky").count("starting again: shaky") == 3


async def test_old_crashes_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zot.extensions.supervisor._PAUSES_S", (0.01, 0.01, 0.01))
    monkeypatch.setattr("zot.extensions.supervisor._WINDOW_S", 0.0)
    async with Stage(tmp_path, Extension(tmp_path, "shaky", "hello(); sys.exit(3)")) as stage:
        await stage.prompt("say hi")
        await stage.until(lambda: len(stage.notices()) >= 6)
    assert {*stage.notices()} == {("shaky", "exited with 3")}
    assert stage.log("shaky").count("starting again: shaky") >= 5


async def test_during_a_restart_its_tools_stay_and_a_call_waits(tmp_path: Path) -> None:
    leave = '    elif frame["type"] == "command_invoked":\n        sys.exit(3)\n'
    once = TOOL.replace('say("ready")', 'say("register_command", name="leave"); say("ready")') + leave
    async with Stage(tmp_path, Extension(tmp_path, "shaky", once)) as stage:
        await stage.prompt("say hi")
        with pytest.raises(UserError, match="extension shaky exited with 3"):
            await stage.session.run_command("leave", "")
        assert [command.name for command in await stage.session.commands()] == ["leave"]
        assert results(await stage.prompt('call lookup {"q": "it"} ;; --- ;; say done')) == [("found it", False)]
    assert stage.log("shaky").count("starting again: shaky") == 1


async def test_an_abandoned_extension_offers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zot.extensions.supervisor._PAUSES_S", ())
    fleeting = TOOL.replace('say("ready")', 'say("register_command", name="greet"); say("ready"); sys.exit(3)')
    async with Stage(tmp_path, Extension(tmp_path, "fleeting", fleeting)) as stage:
        await stage.prompt("say hi")
        await stage.until(lambda: stage.notices() == [("fleeting", "exited with 3")])
        told = await stage.prompt('call lookup {"q": "it"} ;; --- ;; say done')
        assert await stage.session.commands() == []
    assert [text.partition(";")[0] for text, is_error in results(told) if is_error] == [
        "there is no tool named 'lookup'"
    ]


async def test_a_waiting_client_learns_for_which_extension_and_since_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zot.extensions.supervisor.PATIENCE_S", 0.05)
    slow = """
time.sleep(0.2)
hello("tools", "events", "commands")
say("register_tool", name="lookup", schema={"type": "object"})
say("register_command", name="greet")
say("subscribe", intercept=["tool_call"])
say("ready")
for frame in frames():
    if frame["type"] == "event_intercept":
        time.sleep(0.2)
        answer(frame)
    elif frame["type"] == "tool_call":
        time.sleep(0.2)
        say("tool_result", id=frame["id"])
    elif frame["type"] == "command_invoked":
        time.sleep(0.2)
        say("command_response", id=frame["id"])
    elif frame["type"] == "shutdown":
        break
"""
    async with Stage(tmp_path, Extension(tmp_path, "slow", slow), Extension(tmp_path, "quick", WATCHER)) as stage:
        before = timestamp()
        await stage.prompt("call lookup {} ;; --- ;; say done")
        await stage.session.run_command("greet", "")
        after = timestamp()
    waits = [event for event in stage.events if event["type"] == "ext_waiting" and event["extension"] == "slow"]
    assert [event["what"] for event in waits] == ["start", "intercept tool_call", "tool lookup", "command greet"]
    since = [event["since"] for event in waits]
    assert [before, *since, after] == sorted([before, *since, after])


async def test_processes_it_leaves_running_are_ended_and_reported(tmp_path: Path) -> None:
    forking = "import subprocess\nhello(); say('ready'); subprocess.Popen(['sleep', '60'])\n"
    async with Stage(tmp_path, Extension(tmp_path, "forking", forking + "next(frames()); next(frames())")) as stage:
        await stage.prompt("say hi")
    assert "left processes behind, which were ended: sleep 60" in stage.log("forking")


async def test_one_extension_s_long_line_delays_no_other(tmp_path: Path) -> None:
    blocks = """
hello("tools")
say("register_tool", name="lookup", schema={"type": "object"})
say("ready")
for frame in frames():
    if frame["type"] == "tool_call":
        block = '{"type":"t"},' * int(frame["args"]["q"])
        sys.stdout.write('{"type":"tool_result","id":"%s","content":[%s{"type":"text","text":"%s"}]}\\n'
            % (frame["id"], block, "\\\\n" * int(frame["args"]["n"])))
        sys.stdout.flush()
    elif frame["type"] == "shutdown":
        break
"""
    async with Stage(tmp_path, Extension(tmp_path, "long", blocks)) as stage:
        many = await stage.prompt('call lookup {"q": 260000, "n": 0} ;; --- ;; say done')
        escapes = await stage.prompt('call lookup {"q": 0, "n": 1500000} ;; --- ;; say done')
    assert results(many) == [("extension long wrote a line with more than 20000 values", True)]
    ((text, is_error),) = results(escapes)
    assert (text[:2], is_error) == ("\n\n", False)


async def test_a_wanted_tool_that_no_extension_has_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = ("read", "lookup", "teleport")
    async with Stage(tmp_path, Extension(tmp_path, "finder", TOOL), tools=wanted) as stage:
        assert caplog.messages == []
        assert results(await stage.prompt('call lookup {"q": "it"} ;; --- ;; say done')) == [("found it", False)]
        await stage.prompt("say hi")
        assert caplog.messages == ["no extension provides the requested tool teleport"]
    (tmp_path / "extensions").mkdir()
    async with Stage(tmp_path, tools=("teleport",)):
        assert caplog.messages[1:] == ["no extension provides the requested tool teleport"]


async def test_the_notice_of_a_crash_has_its_last_lines_and_the_command_that_shows_the_log(tmp_path: Path) -> None:
    script = 'print("one\\n\\n[zot] not zot\\nt\\x1bwo", file=sys.stderr)\nimport nowhere\n'
    async with Stage(tmp_path, Extension(tmp_path, "broken", f"import sys\n{script}")) as stage:
        await stage.prompt("say done")
        [(name, notice)] = stage.notices()
        assert name == "broken"
        assert notice.startswith("exited with 1 before it said hello: File ")
        assert notice.endswith(
            " | import nowhere | ModuleNotFoundError: No module named 'nowhere' (all of it: zot ext logs broken)"
        )
        with pytest.raises(NoSuchCommand) as caught:
            await stage.session.run_command("anything", "")
        assert caught.value.absent == f"extension broken does not run: {notice}"
    again = Extension(tmp_path, "quiet", "import sys; sys.exit(3)")
    async with Stage(tmp_path, again) as stage:
        await stage.prompt("say done")
        assert stage.notices() == [("quiet", "exited with 3 before it said hello")]


async def test_a_notice_shows_the_output_of_this_run_only(tmp_path: Path) -> None:
    script = """
import os, sys
if os.path.exists("data/before"): sys.exit(3)
open("data/before", "w").close()
print("x" * 100000, "the end", file=sys.stderr)
sys.exit(2)
"""
    extension = Extension(tmp_path, "shy", script)
    for notice in (f"exited with 2 before it said hello: {'x' * 200}... (all of it: zot ext logs shy)", None):
        async with Stage(tmp_path, extension) as stage:
            await stage.prompt("say done")
            assert stage.notices() == [("shy", notice or "exited with 3 before it said hello")]
