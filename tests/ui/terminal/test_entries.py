"""Entries of a transcript, and of a list to choose from, differ without colours."""

from __future__ import annotations

from pathlib import Path

import pytest

from ui.terminal.stage import stage
from zot.ui.terminal.entries import CallEntry, DisplayEntry
from zot.ui.terminal.slash import Option
from zot.ui.terminal.styles import ASCII, Look


@pytest.mark.parametrize(("look", "marks"), [(Look(), "●✗"), (ASCII, "*!")], ids=["utf-8", "ascii"])
def test_a_failed_call_has_its_own_mark(look: Look, marks: str) -> None:
    drawn = ""
    for is_error in (False, True):
        call = CallEntry("1", "read")
        call.called({"path": "there.txt"})
        call.finish("what came of it", is_error=is_error)
        drawn += call.draw(40, look)[0].text[0]
    assert drawn == marks


def test_an_extension_s_text_has_a_bar_before_every_line() -> None:
    lines = DisplayEntry("one\n\n- two\n\nthree", source="notes").draw(40, Look())
    assert [line.text.rstrip() for line in lines] == ["│ [notes]", "│ one", "│", "│  • two", "│", "│ three"]


async def test_a_long_list_counts_its_hidden_entries(tmp_path: Path) -> None:
    async with stage(tmp_path, size=(60, 24)) as person:
        await person.sees("ready")
        person.app.run_worker(
            person.app.terminal.choose("Which one?", [Option(number, f"no {number}") for number in range(30)])
        )
        await person.sees("22 more; Enter selects, Esc cancels; type to search")
        await person.pilot.press("2", "9")
        await person.sees("/29")
        assert "more;" not in person.screen
        await person.pilot.press("escape")
        await person.misses("Which one?")
