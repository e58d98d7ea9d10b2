"""The screen of a resumed session: the earlier conversation, and the pending approval."""

from __future__ import annotations

from pathlib import Path

from ui.terminal.stage import stage
from zot.messages import text_of
from zot.ui.terminal.question_views import QuestionView


async def test_a_question_waits_for_the_next_terminal_that_opens_the_session(tmp_path: Path) -> None:
    async with stage(tmp_path, policy=("bash=ask",)) as person:
        await person.sees("ready")
        session = (await person.app.live.conversation.state()).session
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


async def test_a_question_takes_the_keys_without_failing_while_its_screen_closes(tmp_path: Path) -> None:
    async with stage(tmp_path, policy=("bash=ask",)) as person:
        await person.sees("ready")
        await person.says("!bash echo decided >> log")
        await person.sees("bash wants to run; may it?")
        question = person.app.screen.query_one(QuestionView)
        await question.query_children("*").remove()  # A closing screen removes the inner widgets first.
        question.listen()


async def test_thoughts_of_a_resumed_session_are_folded_as_before(tmp_path: Path) -> None:
    script = tmp_path / "thinks.lab"
    script.write_text('think "Look at the sky."\nsay "It is blue."\n---\nsay "At once."\n')
    async with stage(tmp_path, script=str(script)) as person:
        await person.sees("ready")
        session = (await person.app.live.conversation.state()).session
        for said, answered in (("why?", "It is blue."), ("and?", "At once.")):
            await person.says(said)
            await person.sees(answered)
            await person.idle()
        live = person.screen
        assert "▸ thought, 4 words" in live
    async with stage(tmp_path, session=session) as person:
        await person.sees("At once.")
        await person.idle()
        assert _above(person.screen) == _above(live)
        assert person.screen.count("thought, ") == 1
        await person.pilot.press("ctrl+o")
        await person.sees("Look at the sky.")


async def test_a_long_recalled_prompt_does_not_trap_the_cursor(tmp_path: Path) -> None:
    long = "!echo " + "\n".join(f"line {number}" for number in range(3000))
    async with stage(tmp_path) as person:
        await person.sees("ready")
        session = (await person.app.live.conversation.state()).session
        for text in ("!echo first", long):
            await person.says(text)
            await person.idle()
    async with stage(tmp_path, session=session) as person:
        await person.sees("line 2999")
        await person.idle()
        await person.pilot.press("up")
        assert person.app.editor.text == "!echo line 0[pasted #1: 2998 lines]line 2999"
        await person.pilot.press("up")
        assert person.app.editor.text == "!echo first"
        await person.pilot.press("down", "enter")
        await person.idle()
        said = [text_of(one.content) for one in await person.app.live.conversation.messages() if one.role == "user"]
        assert said == ["!echo first", long, long]


async def test_the_ends_of_answers_are_shown_again_after_a_resume(tmp_path: Path) -> None:
    async with stage(tmp_path, size=(100, 60)) as person:
        await person.sees("ready")
        session = (await person.app.live.conversation.state()).session
        for said, begun in (
            ('!script say "one" ;; stall', "   one"),
            ("!stall", "❯ !stall"),
            ("!loop sleep 9", "bash  "),
        ):
            await person.says(said)
            await person.sees(begun)
            await person.pilot.press("escape")
            await person.idle()
        await person.says("!cut")
        await person.decides("try again", "escape")
        await person.says("!length")
        await person.sees("│ cut off at the model's length limit")
        await person.idle()
        live = [line for line in _above(person.screen).split("\n") if "|" not in line]
        assert [line for line in live if line.startswith(" │ ")] == [
            " │ aborted",
            " │ aborted",
            " │ aborted",
            " │ lab: the connection was cut (try again)",
            " │ cut off at the model's length limit",
        ]
        path = tmp_path / "page.html"
        await person.says(f"/export {path}")
        await person.sees("exported the conversation to")
    async with stage(tmp_path, session=session, size=(100, 60)) as person:
        await person.sees("This goes on and")
        await person.idle()
        assert _above(person.screen).split("\n") == live
        assert "Ask again?" not in person.screen
    ended = [line for line in path.read_text().split("\n") if 'class="ended"' in line]
    assert [line.partition(">")[2].partition("<")[0][:7] for line in ended] == ["aborted"] * 3 + ["lab: th", "cut off"]


async def test_an_answer_is_whole_although_a_compaction_failed_after_it(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        session = (await person.app.live.conversation.state()).session
        await person.says("!echo the answer")
        await person.sees("   the answer")
        await person.idle()
        await person.says("/compact ")
        await person.sees("│ nothing to compact")
        await person.idle()
    async with stage(tmp_path, session=session) as person:
        await person.sees("   the answer")
        await person.idle()
        assert "nothing to compact" not in person.screen


def _above(screen: str) -> str:
    """Return the text above the editor."""
    return screen.partition("───")[0]


async def test_a_session_without_messages_is_not_kept(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        home = person.home
    assert await home.sessions() == []
