"""Two terminals at one session without a daemon: each shows the other's events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from harness import PATIENCE_S, Zot
from ui.terminal.stage import Stage, stage

HELD = """!script call bash {"command": "while ! [ -e go ]; do sleep 0.02; done"} ;; --- ;; say "released" """
AT_WORK = "another process is running this session"


@asynccontextmanager
async def two(tmp_path: Path) -> AsyncIterator[tuple[Stage, Stage]]:
    """Two terminals at one session."""
    async with stage(tmp_path) as one:
        await one.sees("ready")
        await one.says("!echo how it began")
        await one.idle()
        session = (await one.app.live.conversation.state()).session
        async with stage(tmp_path, session=session) as other:
            await other.sees("how it began")
            await other.sees("ready")
            yield one, other


async def test_another_process_s_messages_are_shown_and_can_be_continued(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        await one.says(HELD)
        await other.sees(AT_WORK)
        await other.sees("running bash")
        await other.says("!echo said afterwards")
        await other.sees("1. !echo said afterwards")
        await other.pilot.press("escape")
        await other.sees("abort it there")
        assert other.app.editor.text == "!echo said afterwards"
        await other.pilot.press("enter")
        (tmp_path / "go").touch()
        await one.sees("   released")
        await other.sees("   said afterwards")
        assert other.screen.index("released") < other.screen.index("said afterwards")
        await one.sees("   said afterwards")
        await other.idle()
        said = await other.app.live.conversation.messages()
        assert [message.role for message in said].count("user") == 3


async def test_a_prompt_sent_just_as_another_process_begins_returns_to_the_editor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zot.session.foreign_runs._LOOK_S", 3600.0)  # It has not seen yet that the other has begun.
    async with two(tmp_path) as (one, other):
        await one.says(HELD)
        await one.sees("running bash")
        await other.says("!echo said too late")
        await other.sees("is running in process")
        await other.idle()
        assert other.app.editor.text == "!echo said too late"
        assert "❯ !echo said too late" not in other.screen
        (tmp_path / "go").touch()
        await one.sees("   released")
        await one.idle()
        await other.pilot.press("enter")
        await other.sees("   said too late")
        await other.idle()


async def test_another_process_s_run_cannot_be_steered_and_queued_prompts_keep_waiting(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        await one.says(HELD)
        await other.sees("running bash")
        await other.says("!echo said afterwards")
        await other.says("to the left", "ctrl+s")
        await other.sees("it cannot be steered from here")
        assert other.app.editor.text == "to the left"
        other.app.editor.text = ""
        await other.says("/compact")
        await other.sees("running this session; wait until it ends")
        assert "1. !echo said afterwards" in other.screen
        assert "running bash" in other.screen
        assert "steering:" not in other.screen
        (tmp_path / "go").touch()
        await other.sees("   said afterwards")
        await other.idle()
        assert other.screen.count("released") == 2


async def test_settings_that_cannot_be_recorded_during_another_process_s_run_do_not_change(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        await other.says("/lock ")
        await other.sees("· locked")
        await one.says(HELD)
        await other.sees("running bash")
        await other.says("/unlock ")
        await other.sees("is running in process")
        (tmp_path / "go").touch()
        await other.sees("   released")
        await other.idle()
        assert (await other.app.live.conversation.state()).locked
        await other.says(f"!write {tmp_path}/../outside.txt x")
        await other.sees("tools are locked")
        await other.idle()
        assert not (tmp_path.parent / "outside.txt").exists()


async def test_an_interrupted_run_of_a_dead_process_is_ended(tmp_path: Path, zot: Callable[..., Zot]) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says("!echo how it began")
        await person.idle()
        session = (await person.app.live.conversation.state()).session
        env = {"HOME": str(tmp_path), "ZOT_HOME": str(tmp_path / "home")}
        other = zot("--session", session, env=env)
        other.send({"type": "prompt", "message": "!slow 1000 0.02"})
        await person.sees(AT_WORK)
        await person.sees("answering")
        other.process.kill()
        other.process.wait(PATIENCE_S)
        await person.pilot.press("escape")
        await person.sees("aborted")
        await person.idle()
        await person.says("!echo it goes on")
        await person.sees("   it goes on")


async def test_a_terminal_that_joins_in_mid_answer_shows_all_of_it(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        await one.says('!script say "what was said first" ;; say " and then" ;; stall')
        await one.sees("   what was said first and then")
        session = (await one.app.live.conversation.state()).session
        async with stage(tmp_path, session=session) as late:
            await late.sees("   what was said first and then")
            assert late.screen.count("❯ !script say") == 1
            await one.pilot.press("escape")
            for person in (one, other, late):
                await person.sees("aborted")
                await person.idle()
                assert person.screen.count("what was said first and then") == 1


async def test_the_other_terminals_follow_a_clear(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        await one.says("/clear")
        for person in (one, other):
            await person.sees("the conversation was cleared")
            assert "how it began" not in person.screen
        await one.says("!echo said afterwards")
        for person in (one, other):
            await person.sees("   said afterwards")
            assert person.screen.index("was cleared") < person.screen.index("said afterwards")
            await person.idle()
