"""Talking in a terminal: prompts, streaming, aborts and the queue."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

from textual._xterm_parser import XTermParser
from textual.drivers import linux_driver
from textual.events import Key, Paste

from ui.terminal.stage import stage
from zot.messages import text_of
from zot.ui.terminal.composer import Completion, Composer, Offers

#: A prompt that runs until there is a file named `go`.
HELD = """!script call bash {"command": "while ! [ -e go ]; do sleep 0.02; done"} ;; --- ;; say "released" """


async def test_model_output_is_shown_as_markdown_and_the_status_shows_usage(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says('!script say "# Title\\n\\nSome `code` and\\n\\n- one\\n- two" ;; usage input=50000 output=5')
        await person.sees("• two")
        await person.idle()
        rows = [line.strip() for line in person.screen.split("\n") if line.strip()]
        assert rows[1:5] == ["Title", "Some code and", "• one", "• two"]
        assert "lab-1 · 25% of 200k · $0.0000" in rows[-1]


async def test_escape_aborts_and_restores_queued_prompts_to_the_editor(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says("!slow 1000 0.02")
        await person.sees("answering")
        await person.says("first of those that wait")
        await person.says("second")
        await person.sees("2. second")
        await person.pilot.press("up")
        assert person.app.editor.text == "second"
        await person.misses("2. second")
        await person.pilot.press("escape")
        await person.sees("aborted")
        await person.idle()
        assert person.app.editor.text == "first of those that wait\n\nsecond"


async def test_escape_aborts_and_restores_steering_messages_to_the_editor(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says("!slow 1000 0.02")
        await person.sees("answering")
        await person.says("never said", "ctrl+s")
        await person.sees("steering: never said")
        await person.says("nor this")
        await person.pilot.press("escape")
        await person.sees("aborted")
        await person.idle()
        assert person.app.editor.text == "never said\n\nnor this"
        assert [message.role for message in await person.app.live.conversation.messages()] == ["user", "assistant"]


async def test_a_queued_prompt_is_sent_after_the_run_and_can_be_removed(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says(HELD)
        await person.sees("running bash")
        await person.says("!echo one that waits")
        await person.says("!echo never said")
        await person.pilot.press("ctrl+r")
        (tmp_path / "go").touch()
        await person.sees("❯ !echo one that waits")
        await person.idle()
        assert "never said" not in person.screen


async def test_of_two_waits_the_unfinished_one_is_shown(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        first, second = person.app.terminal.busy("the first thing"), person.app.terminal.busy("the second thing")
        first.__enter__()
        with second:
            await person.sees("the second thing")
            first.__exit__(None, None, None)
            assert "the second thing" in person.screen
        await person.sees("ready")


async def test_steering_reaches_the_running_prompt(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        wait = '{"command": "until test -e go; do sleep 0.02; done"}'
        await person.says(f"!script call bash {wait} ;; --- ;; say 'steered'")
        await person.sees("running bash")
        await person.says("!echo to the left", "ctrl+s")
        await person.sees("steering: !echo to the left")
        (tmp_path / "go").touch()
        await person.sees("❯ !echo to the left")
        await person.sees("   to the left")
        await person.idle()
        assert "steering:" not in person.screen


async def test_a_steering_message_can_be_changed_and_removed_until_it_is_sent(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says(HELD)
        await person.sees("running bash")
        await person.says("!echo to the left", "ctrl+s")
        await person.says("!echo nowhere", "ctrl+s")
        await person.sees("steering: !echo nowhere")
        await person.pilot.press("ctrl+r")
        await person.misses("!echo nowhere")
        await person.pilot.press("up")
        await person.until(lambda: person.app.editor.text == "!echo to the left")
        assert "steering:" not in person.screen
        await person.says(" hand", "ctrl+s")
        await person.sees("steering: !echo to the left hand")
        (tmp_path / "go").touch()
        await person.sees("   to the left hand")
        await person.idle()
        said = [text_of(one.content) for one in await person.app.live.conversation.messages() if one.role == "user"]
        assert said == [HELD, "!echo to the left hand"]


async def test_a_sent_message_cannot_be_withdrawn(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says(HELD)
        await person.sees("running bash")
        await person.says("!echo to the left", "ctrl+s")
        await person.sees("steering: !echo to the left")
        name = person.app.queue.last_steering
        (tmp_path / "go").touch()
        await person.sees("❯ !echo to the left")
        await person.idle()
        person.app.queue.steer(name, "!echo to the left")  # As if the key had come before the news.
        await person.pilot.press("up")
        await person.sees("it cannot be withdrawn: it has been sent or dropped already")
        assert person.app.editor.text == ""


async def test_control_c_twice_leaves_and_once_does_not(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        person.app.editor.insert("half a thought")
        await person.pilot.press("ctrl+c")
        await person.sees("Ctrl+C again quits")
        assert person.app.editor.text == ""
        assert person.app.is_running
        await person.pilot.press("ctrl+c")
        await person.until(lambda: person.app.return_value == 0)


async def test_text_typed_after_control_c_is_cleared_by_the_next_one_which_does_not_leave(tmp_path: Path) -> None:
    async with stage(tmp_path, clock=lambda: 0.0) as person:
        await person.sees("ready")
        await person.pilot.press("ctrl+c", "n", "e", "w", "ctrl+c")
        await person.until(lambda: not person.app.editor.text)
        person.app.post_message(Paste("pasted"))
        await person.until(lambda: person.app.editor.text == "pasted")
        await person.pilot.press("ctrl+c")
        await person.until(lambda: not person.app.editor.text)
        assert person.app.is_running
        assert person.app.return_value is None
        await person.pilot.press("ctrl+c")
        await person.until(lambda: person.app.return_value == 0)


async def test_the_selection_is_copied(tmp_path: Path) -> None:
    async with stage(tmp_path, size=(60, 20)) as person:
        await person.sees("ready")
        await person.says("!echo Hello brave new world")
        await person.sees("   Hello brave new world")
        await person.idle()
        await person.pilot.mouse_down("TranscriptView", offset=(3, 2))
        await person.pilot.hover("TranscriptView", offset=(13, 2))
        await person.pilot.mouse_up("TranscriptView", offset=(13, 2))
        await person.pilot.press("ctrl+c")
        assert person.app.clipboard == "Hello brave"
        assert person.app.is_running


async def test_new_lines_are_written_in_several_ways_and_an_empty_editor_can_be_left(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        editor = person.app.editor
        for keys in (["ctrl+j"], ["shift+enter"], ["\\", "enter"]):
            await person.pilot.press("a", *keys)
        for key in XTermParser().feed("\x1b\r"):  # Alt+Enter
            assert isinstance(key, Key)
            await person.pilot.press(key.key)
        assert editor.text == "a\na\na\n\n"
        await person.pilot.press("left", "ctrl+d")
        assert editor.text == "a\na\na\n"
        editor.text = ""
        await person.pilot.press("ctrl+d")
        await person.until(lambda: person.app.return_value == 0)


async def test_line_breaks_of_an_answer_are_kept(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says('!script say "a list\\n  of lines\\nwithout marks"')
        await person.idle()
        rows = [line.strip() for line in person.screen.split("\n") if line.strip()]
        assert rows[1:4] == ["a list", "of lines", "without marks"]


async def test_a_carriage_return_in_an_answer_hides_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says(r'!script say "before\rafter"')
        await person.sees("after")
        await person.idle()
        rows = [line.strip() for line in person.screen.split("\n") if line.strip()]
        assert rows[1:3] == ["before", "after"]


async def test_typing_goes_to_the_editor_wherever_the_focus_is(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.pilot.press("a", "tab", "b", "shift+tab")
        assert person.app.focused is person.app.transcript
        await person.pilot.press("j", "k", "space", "c")
        await person.until(lambda: person.app.focused is person.app.editor)
        await person.pilot.press("j")
        assert person.app.editor.text == "abcj"


def test_a_paste_with_escape_sequences_stays_in_one_piece_however_it_comes() -> None:
    sent = "a\x1b[200~one \x1b[31mtwo\x1b[0m\x1b[20 \x1b\x1b[201~b\x1b[200~\x1b[201~\x1b[A"
    for size in (len(sent), 1, 2, 3, 7):
        parser = linux_driver.XTermParser()  # type: ignore[attr-defined]
        pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
        heard = [event for piece in pieces for event in parser.feed(piece) if isinstance(event, Key | Paste)]
        said = [event.text if isinstance(event, Paste) else event.key for event in heard]
        assert said == ["a", "one \\x1b[31mtwo\\x1b[0m\\x1b[20 \\x1b", "b", "", "up"]


async def test_control_characters_that_are_pasted_become_text(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        person.app.editor.post_message(Paste("a\x07\x9bb\r\n\tc\x1b"))
        await person.until(lambda: person.app.editor.text == "a\\x07\\x9bb\n\tc\\x1b")


async def test_no_foreign_text_reaches_the_terminal_raw_through_the_editor(tmp_path: Path) -> None:
    raw, shown = "\x1b]0;owned\x07 \u202eback\r\n\tend", "\\x1b]0;owned\\x07 \\u202eback\n\tend"
    async with stage(tmp_path) as person:
        await person.sees("ready")
        editor = person.app.editor
        editor.remember([raw])
        await person.pilot.press("up")
        assert editor.text == shown
        editor.text = ""
        person.app.terminal.insert(raw)
        assert editor.text == shown
        editor.text = ""
        person.app.query_one(Composer).put_back([raw])
        assert editor.text == shown
        editor.text = ""
        editor.post_message(Paste(raw))
        await person.until(lambda: editor.text == shown)


async def test_an_extension_s_description_of_its_commands_is_one_clean_line(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        person.app.query_one(Offers).show("/ze", [Completion("/zeal ", "a \x1b]0;owned\x07b\n\u202ec \x07")])
        await person.sees("/zeal   a b \\u202ec \\x07")


async def test_a_long_list_of_offers_counts_the_hidden_ones(tmp_path: Path) -> None:
    async with stage(tmp_path, size=(40, 10)) as person:
        await person.sees("ready")
        await person.pilot.press("/")
        await person.sees("/help")
        await person.sees("16 more: Up, Down; Tab takes it")
        await person.pilot.press("up")
        await person.sees("/exit   leave")
        await person.sees("16 more")
        await person.pilot.press(*"se")
        await person.sees("/session ")
        assert "more:" not in person.screen


async def test_work_that_is_cancelled_before_it_begins_leaves_no_warning_on_the_terminal(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.says("!say 1 hi")
        await person.sees("hi")
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            person.app.do(person.app._refresh_state())
            person.app.workers.cancel_all()
            await person.until(lambda: not [*person.app.workers], "all work is over")
            gc.collect()
        assert [str(one.message) for one in shown] == []
