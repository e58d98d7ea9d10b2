"""Keys that arrive together take effect in the order in which they were pressed."""

from __future__ import annotations

from pathlib import Path

from textual.events import Key, Paste
from textual.widgets import Input

from ui.terminal.stage import Stage, stage


def press_at_once(person: Stage, *keys: str) -> None:
    """Press keys faster than the app can handle them."""
    for key in keys:
        person.app.post_message(Key("space" if key == " " else key, key if len(key) == 1 else None))


async def test_a_deletion_acts_on_the_text_at_the_time_of_the_key(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        press_at_once(person, "x", "backspace", "y", "z", "left", "a", "end", "b", "ctrl+w", "c", "ctrl+u", "d", "e")
        await person.until(lambda: person.app.editor.text.endswith("e"))
        assert person.app.editor.text == "de"
        press_at_once(person, "x", "ctrl+u", *"!echo", "enter")
        await person.sees("❯ !echo")


async def test_only_an_offer_for_the_current_text_completes_it(tmp_path: Path) -> None:
    async with stage(tmp_path, size=(100, 60)) as person:
        await person.sees("ready")
        await person.pilot.press("/", "c")
        await person.until(lambda: person.app.editor.offers)
        press_at_once(person, *"ost burst entry", "enter", *"/he")
        await person.until(lambda: person.app.editor.offers and person.app.editor.text == "/he")
        press_at_once(person, "down", "enter", *"!echo next", "enter")
        await person.sees("❯ !echo next")
        await person.idle()
        for text in ("!echo next", "/help ", "/cost burst entry"):
            await person.pilot.press("up")
            assert person.app.editor.text == text
            await person.pilot.pause()
            person.app.composer.withdraw()


async def test_the_same_holds_for_an_input_line(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        answers: list[str | None] = []

        async def ask() -> None:
            answers.append(await person.app.terminal.ask("Your key", secret=True))

        person.app.run_worker(ask())
        await person.until(lambda: isinstance(person.app.focused, Input))
        press_at_once(person, "x", "backspace", "y", "z", "left", "a", "enter")
        await person.until(lambda: bool(answers))
        assert answers == ["yaz"]


async def test_prompts_submitted_at_once_queue_in_order_and_can_be_withdrawn(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        press_at_once(person, *"!slow 1000 0.02", "enter", *"first", "enter", *"second", "enter")
        await person.sees("2. second")
        assert "1. first" in person.screen
        await person.sees("answering")
        await person.pilot.press("escape")
        await person.sees("aborted")
        await person.idle()
        assert person.app.editor.text == "first\n\nsecond"


async def test_a_simultaneous_abort_ends_the_prompt_being_sent(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        press_at_once(person, *"!slow 1000 0.02", "enter", *"never said", "enter", "escape")
        await person.sees("aborted")
        await person.idle()
        assert person.app.editor.text == "never said"


async def test_typing_in_the_transcript_goes_to_the_editor_with_every_key(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.pilot.press("shift+tab")
        assert person.app.focused is person.app.transcript
        press_at_once(person, *"!echo hello j k", "left", "backspace", "x", "enter")
        await person.sees("   hello jxk")


async def test_keys_that_write_nothing_do_in_the_transcript_what_they_do_in_the_editor(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says("!slow 300 0.1")
        await person.sees("answering")
        await person.says("waits")
        await person.sees("1. waits")
        await person.pilot.press("shift+tab", "ctrl+r")
        await person.misses("1. waits")
        person.app.editor.put("written")
        await person.pilot.press("shift+tab", "backspace")
        assert person.app.editor.text == "writte"
        await person.pilot.press("shift+tab", "ctrl+s")
        await person.sees("steering: writte")
        await person.pilot.press("shift+tab", "escape")
        await person.sees("aborted")
        await person.idle()
        person.app.editor.text = ""
        await person.pilot.press("shift+tab", "ctrl+d")
        await person.until(lambda: person.app.return_value == 0)


async def test_keys_that_do_something_in_the_transcript_or_everywhere_stay_there(tmp_path: Path) -> None:
    async with stage(tmp_path, size=(60, 12)) as person:
        await person.sees("ready")
        await person.says("!bash seq 1 40")
        await person.idle()
        await person.pilot.press("shift+tab", "ctrl+o", "j", "home", "down", "up", "end", "pageup", "space", "ctrl+c")
        assert person.app.focused is person.app.transcript
        assert "Ctrl+C again quits" in person.screen
        await person.pilot.press("tab")
        assert person.app.editor.has_focus
        assert person.app.editor.text == ""


async def test_a_paste_in_the_transcript_goes_to_the_editor(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.pilot.press("shift+tab")
        person.app.post_message(Paste("some words"))
        await person.until(lambda: person.app.editor.text == "some words")
