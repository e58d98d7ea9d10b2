"""What is there when a session is gone on with: what was said, and what somebody still has to decide."""

from __future__ import annotations

from pathlib import Path

from tui.stage import stage


async def test_a_question_waits_for_whoever_opens_the_session_next(tmp_path: Path) -> None:
    async with stage(tmp_path, policy=("bash=ask",)) as person:
        await person.sees("ready")
        session = (await person.app.conversation.state()).session
        await person.says("!bash echo decided >> log")
        await person.sees("bash wants to run; may it?")
    assert not (tmp_path / "log").exists()
    async with stage(tmp_path, session=session, policy=("bash=ask",)) as person:
        await person.sees("bash wants to run; may it?")
        assert "❯ !bash echo decided >> log" in person.screen
        await person.decides("bash wants to run; may it?", "y")
        await person.sees("finished.")
        await person.idle()
    assert (tmp_path / "log").read_text() == "decided\n"


async def test_a_session_in_which_nothing_was_said_is_not_kept(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        home = person.home
    assert await home.sessions() == []
