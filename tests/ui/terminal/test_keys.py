"""Independent keys and commands: leaving, undoing, scrolling, searching, storing a key."""

from __future__ import annotations

import json
import os
from pathlib import Path

from textual.events import Paste

from auth_server import guarding
from ui.terminal.stage import Stage, stage
from zot.ui.terminal.entries import CallEntry
from zot.ui.terminal.question_views import QuestionView


async def _talked(person: Stage, so_many: int) -> None:
    await person.sees("ready")
    for number in range(so_many):
        await person.says(f"!echo word {number}.")
        await person.until(lambda number=number: f"\n   word {number}." in person.screen)  # type: ignore[misc]
        await person.idle()


async def test_control_q_leaves(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.pilot.press("ctrl+q")
        await person.until(lambda: person.app.return_value == 0)


async def test_control_underscore_undoes(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        person.app.editor.insert("kept")
        person.app.editor.history.checkpoint()
        person.app.editor.insert(" and gone")
        await person.pilot.press("ctrl+underscore")
        assert person.app.editor.text == "kept"


async def test_control_c_copies_what_is_selected_in_the_editor(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        person.app.editor.insert("half a thought")
        person.app.editor.select_all()
        await person.pilot.press("ctrl+c")
        assert person.app.clipboard == "half a thought"
        assert person.app.editor.text == "half a thought"
        assert "Ctrl+C again quits" not in person.screen


async def test_the_transcript_scrolls_from_the_editor_jumps_and_follows_new_output(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, size=(60, 12)) as person:
        await _talked(person, 6)
        assert "❯ !echo word 0." not in person.screen
        await person.pilot.press("pageup", "pageup", "pageup", "pageup")
        await person.sees("❯ !echo word 0.")
        await person.pilot.press("pagedown", "pagedown", "pagedown", "pagedown")
        await person.misses("❯ !echo word 0.")
        await person.says("/jump ")
        await person.sees("Go to")
        await person.pilot.press(*"word 0", "enter")
        await person.misses("Go to")
        await person.sees("❯ !echo word 0.")
        await person.says("!echo at the end")
        await person.sees("\n   at the end")
        await person.idle()
        assert "❯ !echo word 0." not in person.screen


async def test_j_and_k_move_between_blocks_in_both_directions(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        for word in ("one", "two", "three"):
            await person.says(f"!bash echo {word}")
            await person.idle()
        await person.pilot.press("shift+tab", "j", "j", "j", "k", "enter")
        calls = [entry for entry in person.app.transcript.entries if isinstance(entry, CallEntry)]
        assert [call.folded for call in calls] == [True, False, True]


async def test_backspace_shortens_a_search_letter_by_letter(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await _talked(person, 2)
        await person.says("/jump ")
        await person.sees("Go to")
        await person.pilot.press(*"1.x")
        await person.sees("/1.x")
        await person.pilot.press("backspace")
        await person.sees("/1.\n")
        await person.pilot.press("enter")
        await person.misses("Go to")


async def test_a_paste_into_a_list_is_searched_for(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says("/model ")
        await person.sees("type to search")
        await person.pilot.press("l")
        person.app.post_message(Paste("ab-\n"))
        await person.sees("/lab-")
        person.app.post_message(Paste("1" * 1001))
        await person.sees("the pasted text is in the editor")
        assert "/lab-\n" in person.screen.replace(" ", "")
        await person.pilot.press("escape")
        await person.sees("[pasted #1: 1001 characters]")


async def test_a_paste_decides_nothing_and_is_in_the_editor_after_the_question(tmp_path: Path) -> None:
    async with stage(tmp_path, policy=("write=ask",)) as person:
        await person.sees("ready")
        await person.says('!script call write {"path": "a.txt", "content": "a"} ;; --- ;; say "it is over"')
        await person.until(lambda: isinstance(person.app.focused, QuestionView), "a question")
        person.app.post_message(Paste("y"))
        await person.sees("the pasted text is in the editor")
        assert isinstance(person.app.focused, QuestionView)
        await person.pilot.press("n")
        await person.sees("   it is over")
        await person.idle()
        assert person.app.editor.text == "y"
        assert not (tmp_path / "a.txt").exists()


async def test_an_answer_cut_off_by_the_model_is_marked(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says("!length")
        await person.sees("cut off at the model's length limit")
        await person.idle()


async def test_a_new_session_starts_empty_and_a_copy_has_as_many_messages_as_wanted(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await _talked(person, 2)
        first = await person.app.live.conversation.state()
        await person.says("/session fork 2")
        await person.sees("the original is unchanged")
        await person.sees("ready")
        copy = await person.app.live.conversation.state()
        assert (first.message_count, copy.message_count) == (4, 2)
        assert "word 1." not in person.screen
        await person.says("/session new")
        await person.misses("word 0.")
        await person.sees("ready")
        new = await person.app.live.conversation.state()
        assert new.message_count == 0
        assert len({first.session, copy.session, new.session}) == 3


async def test_an_accepted_key_is_stored_and_a_refused_one_is_not(tmp_path: Path) -> None:
    with guarding("sk-right") as gate:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ZOT_HOME": str(tmp_path / "home")}
        async with stage(tmp_path, env={**env, "ANTHROPIC_BASE_URL": gate.url}) as person:
            await person.sees("ready")
            for key, said in (("sk-wrong", "nothing was stored"), ("sk-right", "stored for anthropic in")):
                assert not (tmp_path / "home" / "auth.json").exists()
                await person.says("/login anthropic")
                await person.sees("Key for anthropic (it is not shown)")
                await person.pilot.press(*key, "enter")
                await person.sees(said)
            assert json.loads((tmp_path / "home" / "auth.json").read_text())["anthropic"]["key"] == "sk-right"


async def test_a_key_that_writes_nothing_leaves_a_choice_unchanged(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says("/login")
        await person.until(lambda: isinstance(person.app.focused, QuestionView), "a question")
        await person.pilot.press("down", "down")
        marked = _marked(person)
        await person.pilot.press("left", "home", "f5")
        assert _marked(person) == marked != 0


def _marked(person: Stage) -> int:
    return person.app.screen.query_one(QuestionView)._at
