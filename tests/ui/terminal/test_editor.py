"""The editor sends its text unchanged, and recalls earlier prompts unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.drivers import linux_driver
from textual.events import Key, Paste

from ui.terminal.stage import Stage, stage
from zot.messages import text_of
from zot.ui.terminal.composer import FoldedPastes
from zot.ui.terminal.textual_patches import as_keys

#: An ideographic space, joiners and their opposite, a no-break space, a soft hyphen, a zero width space, a character
#: for private use, and one that Python does not know yet.
RARE = "漢\u3000字 می\u200cخواهم 👩\u200d💻 a\u00a0b co\u00adop x\u200by \ue0a0 \U0001fae8 \U000e0067"


def typed(person: Stage, sent: str) -> None:
    """Type the bytes that a terminal would send."""
    for event in linux_driver.XTermParser().feed(sent):  # type: ignore[attr-defined]
        person.app.post_message(event)


async def test_every_visible_character_is_sent_and_invisible_ones_as_the_escapes_that_are_shown(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        typed(person, f"!echo {RARE}.\r")
        await person.until(lambda: any(entry.text.startswith("!echo 漢") for entry in person.app.transcript.entries))
        await person.idle()
        said = [text_of(one.content) for one in await person.app.live.conversation.messages()]
        sent = RARE.replace("\xad", "\\xad").replace("\u200b", "\\u200b").replace("\U000e0067", "\\U000e0067")
        assert said == [f"!echo {sent}.", f"{sent}."]


async def test_invisible_typed_characters_are_shown_escaped_and_controls_write_nothing(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        typed(person, "a\u202eb\u2028c\x00\x07\x1c\x9b\x85\x1b[31md\x1b[25~")
        await person.until(lambda: person.app.editor.text.endswith("d"))
        assert person.app.editor.text == "a\\u202eb\\u2028cd"


async def test_a_character_that_python_does_not_call_printable_moves_from_the_transcript_to_the_editor(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.pilot.press("shift+tab")
        assert person.app.focused is person.app.transcript
        typed(person, "\u3000字")
        await person.until(lambda: person.app.editor.text == "\u3000字")


async def test_a_search_takes_every_character_and_escapes_invisible_ones(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        for text in ("!echo می\u200cخواهم", "!echo other"):
            await person.says(text)
            await person.idle()
        await person.says("/jump ")
        await person.sees("Go to")
        typed(person, "می\u200cخ\u202e")
        await person.sees("/می\u200cخ\\u202e")
        await person.pilot.press("backspace")
        rows = [row.strip() for row in person.screen.partition("Go to")[2].split("\n")]
        assert rows[1:3] == ["/می\u200cخ", "!echo می\u200cخواهم"]
        assert "!echo other" not in rows


@pytest.mark.parametrize("control", ["\x00", "\x07", "\x1b", "\x7f", "\x9b", "\ud800", None])
def test_no_control_character_counts_as_written(control: str | None) -> None:
    assert not Key("f35", control).is_printable


async def test_control_c_forgets_the_recalled_prompt(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        for text in ("!echo one", "!echo two"):
            await person.says(text)
            await person.idle()
        await person.pilot.press("up", "ctrl+c")
        assert person.app.editor.text == ""
        await person.pilot.press("up")
        assert person.app.editor.text == "!echo two"
        await person.pilot.press("ctrl+c", *"draft", "down")
        assert person.app.editor.text == "draft"
        await person.pilot.press("up", "up", "down", "down")
        assert person.app.editor.text == "draft"


async def test_text_cleared_by_control_c_or_replaced_by_up_can_be_restored(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says("!echo one")
        await person.idle()
        editor = person.app.editor
        editor.post_message(Paste("\n".join(map(str, range(40)))))
        await person.sees("[pasted #1: 40 lines]")
        await person.pilot.press(*" draft", "backspace", "up", "ctrl+c")
        stood = [editor.text]
        for _ in range(3):
            await person.pilot.press("ctrl+underscore")
            stood.append(editor.text)
        pasted = "[pasted #1: 40 lines]"
        assert stood == ["", "!echo one", f"{pasted} draf", f"{pasted} draft"]
        await person.pilot.press("ctrl+c", "ctrl+underscore", "enter")
        await person.sees("   39 draft")


async def test_a_recalled_paste_is_folded_again(tmp_path: Path) -> None:
    lines = "\n".join(f"line {number}" for number in range(3000))
    async with stage(tmp_path, size=(80, 24)) as person:
        await person.sees("ready")
        editor = person.app.editor
        await person.says("!echo before")
        await person.idle()
        editor.insert("!echo ")
        editor.post_message(Paste(lines))
        await person.sees("!echo [pasted #1: 3000 lines]")
        await person.says("\nend")
        await person.idle()
        typed_lines = "\n".join(f"typed {number}" for number in range(50))
        await person.says(f"!echo {typed_lines}")
        await person.idle()
        await person.pilot.press("up")
        assert editor.text == f"!echo {typed_lines}"
        editor.move_cursor((0, 0))
        await person.pilot.press("up")
        assert editor.text == "!echo [pasted #1: 3000 lines]\nend"
        await person.pilot.press("up", "up")
        assert editor.text == "!echo before"
        await person.pilot.press("down", "enter")
        await person.idle()
        said = [text_of(one.content) for one in await person.app.live.conversation.messages() if one.role == "user"]
        assert said[-1] == said[1] == f"!echo {lines}\nend"


async def test_a_paste_that_could_not_be_sent_is_folded_when_it_is_restored(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says("!slow 1000 0.02")
        await person.sees("answering")
        person.app.editor.post_message(Paste("\n".join(map(str, range(40)))))
        await person.sees("[pasted #1: 40 lines]")
        await person.pilot.press("enter")
        await person.sees("1. 0 1 2")
        await person.pilot.press(*"more", "escape")
        await person.sees("aborted")
        await person.idle()
        assert person.app.editor.text == "[pasted #1: 40 lines]\n\nmore"


@pytest.mark.parametrize(
    ("said", "stands"),
    [
        ("Look:\n" + 40 * "line\n" + "What is it?", "Look:[pasted #1: 40 lines]What is it?"),
        (3001 * "x", "[pasted #1: 3001 characters]"),
        ("Look:\n" + 3001 * "x", "Look:[pasted #1: 3002 characters]"),
        (30 * "line\n", "line[pasted #1: 29 lines]"),
        (29 * "line\n", 29 * "line\n"),
    ],
    ids=["lines", "one-line", "a-long-line", "too-many", "not-too-many"],
)
async def test_a_long_recalled_prompt_shows_its_ends_and_is_sent_whole(tmp_path: Path, said: str, stands: str) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        person.app.editor.remember(["!echo first", said])
        await person.pilot.press("up")
        stood = person.app.editor.text
        if "pasted" in stands:
            await person.pilot.press("up")
            assert person.app.editor.text == "!echo first"
            await person.pilot.press("down")
        await person.pilot.press("enter")
        await person.idle()
        assert text_of((await person.app.live.conversation.messages())[0].content) == said
        assert stood == stands


async def test_the_hint_about_control_c_lasts_as_long_as_its_effect(tmp_path: Path) -> None:
    time_s = 0.0
    async with stage(tmp_path, clock=lambda: time_s) as person:
        await person.sees("ready")
        for ends in ("a key", "the time"):
            await person.pilot.press(*"draft", "ctrl+c")
            assert "Ctrl+C again quits; Esc aborts the run" in person.screen.split("\n")[-1]
            if ends == "a key":
                await person.pilot.press("x", "backspace")
            else:
                time_s += 2.0
            await person.misses("Ctrl+C again quits")
            await person.sees("ready")
        assert person.app.transcript.entries == []


async def test_undone_and_changed_drafts_are_what_recall_returns_to(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says("!echo one")
        await person.idle()
        editor = person.app.editor
        editor.insert("abc")
        await person.pilot.press("up", "ctrl+underscore")
        assert editor.text == "abc"
        editor.insert(" and more")
        await person.pilot.press("down")
        assert editor.text == "abc and more"
        await person.pilot.press("up")
        assert editor.text == "!echo one"
        await person.pilot.press("down")
        assert editor.text == "abc and more"


async def test_typing_the_mark_of_an_earlier_paste_sends_just_the_mark(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        editor, lines = person.app.editor, "\n".join(f"line {number}" for number in range(10))
        editor.insert("!echo ")
        editor.post_message(Paste(lines))
        await person.until(lambda: editor.text == "!echo [pasted #1: 10 lines]")
        await person.pilot.press("enter")
        await person.idle()
        await person.says("!echo why [pasted #1: 10 lines]?")
        await person.idle()
        said = [text_of(one.content) for one in await person.app.live.conversation.messages() if one.role == "user"]
        assert said == [f"!echo {lines}", "!echo why [pasted #1: 10 lines]?"]
        await person.pilot.press("up", "up")
        assert editor.text == "!echo [pasted #1: 10 lines]"
        await person.pilot.press("enter")
        await person.idle()
        assert text_of((await person.app.live.conversation.messages())[-2].content) == f"!echo {lines}"


def test_an_unsent_paste_is_not_kept() -> None:
    folds = FoldedPastes()
    for number in range(50):
        folds.paste(f"{number}\n" * 100)
    folds.say("something else")
    assert folds._folded == {}


def test_a_paste_is_inserted_verbatim_except_for_control_characters() -> None:
    assert as_keys(f"{RARE}\tx\r\ny\x1b\x9b\ud800\n") == f"{RARE} x y"
    assert as_keys("x" * 1001) is None
