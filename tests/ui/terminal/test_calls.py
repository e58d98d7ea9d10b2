"""Tool calls in a terminal: shown while they run, folded and unfolded, approved or not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ui.terminal.stage import stage
from zot.ui.terminal.entries import CallEntry, ThoughtEntry
from zot.ui.terminal.question_views import QuestionView
from zot.ui.terminal.slash import Option
from zot.ui.terminal.styles import Look

OUTPUT = """\
!script think "one" " two" ;; call bash {"command": "seq 30; until [ -e go ]; do sleep 0.02; done"}
---
say "over"
"""
EDIT = """\
!script call read {"path": "a.txt"}
---
call edit {"path": "a.txt", "edits": [{"oldText": "green", "newText": "blue"}]}
---
say "edited"
"""


class Clock:
    """A time that a test advances, and that records whether it was read since."""

    def __init__(self) -> None:
        self._now_s = 100.0
        self.is_read = False

    def __call__(self) -> float:
        self.is_read = True
        return self._now_s

    def pass_(self, seconds: float) -> None:
        self._now_s += seconds
        self.is_read = False


async def test_a_call_shows_its_output_while_it_runs_and_unfolds_by_key_and_click(tmp_path: Path) -> None:
    async with stage(tmp_path, size=(80, 60)) as person:
        await person.sees("ready")
        await person.says(OUTPUT)
        await person.sees("│ 30")
        assert "│ 24\n" not in person.screen
        assert "earlier lines" in person.screen
        (tmp_path / "go").touch()
        await person.sees("over")
        await person.idle()
        assert "▸ thought, 2 words" in person.screen
        assert "│ 7\n" not in person.screen
        await person.pilot.press("ctrl+o")
        await person.sees("│ 30")
        assert "one two" in person.screen
        await person.pilot.press("ctrl+o")
        await person.misses("│ 30")
        call, thought = (
            next(one for one in person.app.transcript.entries if isinstance(one, kind))
            for kind in (CallEntry, ThoughtEntry)
        )
        row = next(y for y, line in enumerate(person.screen.split("\n")) if "▸ bash" in line)
        await person.pilot.click("TranscriptView", offset=(3, row))
        await person.sees("│ 30")
        assert (call.folded, thought.folded) == (False, True)
        await person.pilot.press("shift+tab", "j", "enter")
        await person.sees("one two")
        assert not thought.folded


async def test_the_end_of_a_long_command_is_shown_folded_and_unfolded(tmp_path: Path) -> None:
    async with stage(tmp_path, size=(80, 30)) as person:
        await person.sees("ready")
        await person.says("!bash seq 1 5000; exit 3")
        await person.idle()
        await person.sees("│ [exit 3]")
        rows = _body(person.screen)
        assert rows[:5] == ["1", "2", "3", "4", "5"]
        assert rows[5].endswith("more lines")
        assert [row.split("  ")[0] for row in rows[6:]] == ["[exit 3]"]
        await person.pilot.press("ctrl+o", "ctrl+end")
        await person.sees("│ 5000\n")
        assert "│ [exit 3]" in person.screen
        assert "more lines" not in person.screen


@pytest.mark.parametrize("character", ["y", "\u6f22"], ids=["narrow", "wide"])
async def test_a_long_line_is_folded_by_its_screen_rows(tmp_path: Path, character: str) -> None:
    (tmp_path / "long").write_text(f"begin{character * 9000}end")
    async with stage(tmp_path, size=(80, 30)) as person:
        await person.sees("ready")
        await person.says("!bash cat long; until [ -e go ]; do sleep 0.02; done; exit 3")
        await person.sees(f"{character}end")
        assert "begin" not in person.screen
        assert len(_body(person.screen)) == 7
        assert "earlier lines" in _body(person.screen)[0]
        (tmp_path / "go").touch()
        await person.idle()
        *shown, hidden, end = _body(person.screen)
        assert shown[0].startswith(f"begin{character}")
        assert (len(shown), end.split("  ")[0]) == (5, "[exit 3]")
        await person.pilot.press("ctrl+o", "ctrl+end")
        await person.sees(f"{character}end")
        call = next(one for one in person.app.transcript.entries if isinstance(one, CallEntry))
        width = person.app.transcript.virtual_size.width - 2
        total = len(_body("\n".join(strip.text for strip in call.draw(width, Look()))))
        # A row of wide characters may end with a cell of nothing, so that there are a few more.
        assert hidden.endswith(" more lines")
        assert abs(int(hidden.split()[1]) - (total - 6)) <= (0 if character == "y" else total // 50)


def _body(screen: str) -> list[str]:
    """Return the rows below the head of a call."""
    return [line.split("\u2502 ")[1].strip() for line in screen.split("\n") if "  \u2502 " in line]


async def test_a_change_is_shown_as_a_diff_and_approved_with_all_of_it_visible(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("red\ngreen\n")
    async with stage(tmp_path, policy=("edit=ask", "bash=ask")) as person:
        await person.sees("ready")
        await person.says(EDIT)
        await person.sees("edit wants to run; may it?")
        assert "-green" in person.screen
        assert "+blue" in person.screen
        await person.decides("may it?", "y")
        await person.sees("edited")
        await person.idle()
        assert (tmp_path / "a.txt").read_text() == "red\nblue\n"


async def test_a_command_is_refused_allowed_always_and_asked_about_again(tmp_path: Path) -> None:
    async with stage(tmp_path, policy=("bash=ask",)) as person:
        await person.sees("ready")
        await person.says("!bash echo one >> log")
        await person.decides("bash wants to run; may it?", "escape")
        await person.sees("the user refused")
        await person.idle()
        await person.says("!bash echo two >> log")
        await person.decides("bash wants to run; may it?", "a")
        await person.idle()
        await person.says("!bash echo two >> log")
        await person.until(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text() == "two\ntwo\n")
        await person.idle()
        await person.says("/approvals ")
        await person.sees("bash  echo two >> log")
        await person.pilot.press("enter")
        await person.sees("revoked: zot asks again before")
        await person.says("!bash echo two >> log")
        await person.decides("bash wants to run; may it?", "n")
        await person.idle()


async def test_a_question_about_a_command_shows_its_other_arguments(tmp_path: Path) -> None:
    async with stage(tmp_path, policy=("bash=ask",)) as person:
        await person.sees("ready")
        await person.says("""!script call bash {"command": "true", "timeout": 7} ;; --- ;; say "z" """)
        await person.sees("bash wants to run; may it?")
        assert "\n true\n timeout: 7\n" in person.screen
        await person.decides("may it?", "escape")
        await person.idle()


async def test_a_question_about_a_file_shows_the_resolved_path_and_that_a_file_exists(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old\n")
    (tmp_path / "link.txt").symlink_to("real.txt")
    async with stage(tmp_path, policy=("write=ask",)) as person:
        await person.sees("ready")
        await person.says("""!script call write {"path": "link.txt", "content": "new"} ;; --- ;; say "z" """)
        await person.sees("write wants to run; may it?")
        place = " write: real.txt (3 bytes), replacing the existing file\n written as link.txt\n +new\n"
        assert place in person.screen
        await person.decides("may it?", "escape")
        await person.idle()
        await person.says("""!script call write {"path": "./new.txt", "content": "new"} ;; --- ;; say "z" """)
        await person.sees(" write: new.txt (3 bytes)\n +new\n")
        await person.decides("may it?", "escape")
        await person.idle()


async def test_a_question_disappears_when_the_run_is_aborted(tmp_path: Path) -> None:
    async with stage(tmp_path, policy=("bash=ask",)) as person:
        await person.sees("ready")
        await person.says("!bash true")
        await person.sees("bash wants to run; may it?")
        await person.app.live.conversation.abort()
        await person.misses("bash wants to run; may it?")
        await person.idle()
        assert person.app.focused is person.app.editor


async def test_a_question_escapes_characters_that_would_hide_the_command(tmp_path: Path) -> None:
    async with stage(tmp_path, policy=("bash=ask", "write=ask")) as person:
        await person.sees("ready")
        command = r'{"command": "touch x #\recho \u001b[2Kharmless\u202e\u200b\nsecond"}'
        await person.says(f"!script call bash {command} ;; --- ;; say 'z'")
        await person.sees("bash wants to run; may it?")
        assert "touch x #\\recho \\x1b[2Kharmless\\u202e\\u200b\n second" in person.screen
        await person.decides("may it?", "escape")
        await person.idle()
        await person.says(r'!script call write {"path": "a\rb", "content": "evil\rgood\n"} ;; --- ;; say "z"')
        await person.sees("write wants to run; may it?")
        assert " a\\rb\n +evil\\rgood\n" in person.screen
        await person.decides("may it?", "escape")
        await person.idle()


async def test_the_lines_of_a_file_that_is_written_are_counted(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        for content, count in ((r"one\ntwo\nthree\n", "3 lines"), ("one", "1 line"), ("", "0 lines")):
            await person.says(f'!script call write {{"path": "{count}", "content": "{content}"}} ;; --- ;; say "z"')
            await person.sees(f"write  {count} ({count})")
            await person.idle()


async def test_keys_typed_as_a_question_appears_go_to_the_editor_and_enter_approves_nothing(
    tmp_path: Path,
) -> None:
    clock = Clock()
    async with stage(tmp_path, policy=("bash=ask",), clock=clock) as person:
        await person.sees("ready")
        await person.says("!bash touch x")
        await person.sees("stop typing to answer")
        # A user who types without a pause types into the editor, however long that takes.
        for pause_s, character in ((0.0, "a"), (0.5, "y"), (0.3, "a"), (0.3, "y")):
            clock.pass_(pause_s)
            await person.until(lambda: clock.is_read, "that the time is looked at")
            await person.pilot.press(character)
        assert person.app.editor.text == "ayay"
        clock.pass_(0.5)
        await person.misses("stop typing to answer")
        assert "y  allow it this time" in person.screen
        await person.pilot.press("enter", "q", "backspace", "space", "enter")
        assert "press y, a or n; Esc is n" in person.screen
        await person.pilot.press("up", "enter")
        await person.sees("the user refused")
        await person.idle()
        assert not (tmp_path / "x").exists()
        assert person.app.editor.text == "ayay"


async def test_a_question_fits_a_small_screen_and_counts_the_hidden_lines(tmp_path: Path) -> None:
    async with stage(tmp_path, policy=("bash=ask",), size=(40, 10)) as person:
        await person.sees("ready")
        command = "\\n".join(f"line {number}" for number in range(1, 8))
        await person.says(f'!script call bash {{"command": "{command}"}} ;; --- ;; say "z"')
        await person.sees("n  do not allow it")
        await person.sees("more lines; PageDown scrolls")
        rows = [row.strip() for row in person.screen.split("\n")]
        shown = [row for row in rows if row.startswith("line ")]
        assert shown == ["line 1"]
        assert rows[-6].startswith("6 more lines; PageDown scrolls")
        assert [row[:2] for row in rows[-5:-2]] == ["y ", "a ", "n "]
        await person.until(lambda: isinstance(person.app.focused, QuestionView), "that it takes keys")
        for number in range(2, 8):
            await person.pilot.press("pagedown")
            await person.sees(f"line {number}")
        await person.sees("this is the end; PageUp scrolls")
        await person.pilot.press("escape")
        await person.idle()


async def test_a_tiny_screen_shows_the_choices(tmp_path: Path) -> None:
    async with stage(tmp_path, policy=("bash=ask",), size=(20, 5)) as person:
        await person.says('!script call bash {"command": "echo 1\\necho 2\\necho 3\\ntouch it-ran"} ;; --- ;; say "z"')
        await person.sees("y al a al n do +3")
        rows = [row.strip() for row in person.screen.split("\n")]
        assert rows[1:3] == ["bash wants to run;", "echo 1"]
        await person.until(lambda: "waiting" in person.screen.split("\n")[4], "the status")
        await person.until(lambda: isinstance(person.app.focused, QuestionView), "that it takes keys")
        await person.pilot.press("pagedown", "pagedown", "pagedown")
        await person.sees("touch it-ran")
        await person.decides("bash wants to run;", "y")
        await person.idle()
        assert (tmp_path / "it-ran").exists()
        await person.says("/model")
        await person.sees("Model (now lab-1)")
        await person.sees("lab/lab-1  200k")
        await person.pilot.press("escape")
        await person.misses("Model (now lab-1)")


async def test_the_screen_may_resize_at_the_moment_a_question_appears(tmp_path: Path) -> None:
    async with stage(tmp_path, size=(80, 30)) as person:
        await person.sees("ready")
        for height in (24, 20, 16):
            asked = asyncio.create_task(person.app.terminal.choose("Which one?", [Option(1, "one")]))
            await person.pilot.resize_terminal(80, height)
            await person.sees("Which one?")
            await person.pilot.press("escape")
            assert await asked is None


async def test_a_long_choice_leaves_the_keys_visible_on_a_small_screen(tmp_path: Path) -> None:
    async with stage(tmp_path, size=(40, 10)) as person:
        await person.sees("ready")
        options: list[Option[int | None]] = [Option(number, f"{number}" + 150 * "x") for number in range(5)]
        asked = asyncio.create_task(person.app.terminal.choose("Which one of all these is meant by that?", options))
        await person.sees("Enter selects, Esc")
        await person.pilot.press("x")
        await person.sees("/x")
        # The layout follows the filter in a later frame.
        await person.until(lambda: "Enter selects, Esc" in person.screen.split("\n")[-2])
        assert "Which one" in person.screen
        await person.pilot.press("escape")
        assert await asked is None


async def test_control_c_refuses_and_twice_leaves(tmp_path: Path) -> None:
    async with stage(tmp_path, policy=("bash=ask",)) as person:
        await person.sees("ready")
        await person.says("!bash touch x")
        await person.decides("bash wants to run; may it?", "ctrl+c")
        await person.sees("Ctrl+C again quits")
        await person.pilot.press("ctrl+c")
        await person.until(lambda: person.app.return_value == 0)
        assert not (tmp_path / "x").exists()


async def test_an_unfolded_call_shows_all_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("red\ngreen\n")
    async with stage(tmp_path, size=(80, 60)) as person:
        await person.sees("ready")
        calls = [
            ("bash", f'{{"command": "echo {"a" * 90}; echo tail of it | wc -c", "timeout": 7}}', "timeout: 7"),
            ("read", '{"path": "a.txt", "offset": 2, "limit": 1}', "limit: 1"),
            ("look_up", f'{{"long": "{"b" * 90}", "deep": {{"last": "word"}}}}', '"last": "word"'),
        ]
        for name, args, _ in calls:
            await person.says(f"!script call {name} {args} ;; --- ;; say 'z'")
            await person.idle()
        person.app.transcript.fold_all()  # The prompt is on the screen, too; only calls count here.
        shown = [one for one in person.app.transcript.entries if isinstance(one, CallEntry)]
        for entry, (name, _, last) in zip(shown, calls, strict=True):
            rows = [strip.text.rstrip() for strip in entry.draw(80, person.app.look)]
            assert rows[0].startswith("▾ " if name != "look_up" else "✗ ")
            body = "".join(row.removeprefix("  │ ") for row in rows[1:])
            assert last in body
            assert ("tail of it | wc -c" in body) == (name == "bash")
        person.app.transcript.fold_all()
        assert not any(last in entry.text.partition("\n")[2] for entry, (_, _, last) in zip(shown, calls, strict=True))


async def test_a_call_summed_up_in_its_head_is_not_repeated(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says("!bash echo 'x  y' > a")
        await person.idle()
        await person.says("!bash true")
        await person.idle()
        person.app.transcript.fold_all()
        spaced, short = (one.text.split("\n") for one in person.app.transcript.entries if isinstance(one, CallEntry))
        assert spaced[:2] == ["echo 'x y' > a", "$ echo 'x  y' > a"]
        drawn = [one.draw(80, person.app.look) for one in person.app.transcript.entries if isinstance(one, CallEntry)]
        assert "$ true" not in "".join(strip.text for strip in drawn[1])
        assert short[0] == "true"


async def test_a_choice_longer_than_a_line_is_shown_in_full(tmp_path: Path) -> None:
    async with stage(tmp_path, policy=("bash=ask",), size=(80, 30)) as person:
        await person.sees("ready")
        for end in ("first", "second"):
            await person.says(f"!bash true {'a' * 90} {end}")
            await person.decides("bash wants to run; may it?", "a")
            await person.idle()
        await person.says("/clear ")
        await person.sees("the conversation was cleared")
        await person.says("/approvals ")
        await person.sees("a first")
        assert "a second" not in person.screen
        await person.pilot.press("down")
        await person.sees("a second")
        await person.pilot.press("escape")
