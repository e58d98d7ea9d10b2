"""The system prompt says who, when and where."""

from __future__ import annotations

from zot.runtime.system_prompt import system_prompt

WHERE = "Date: 2026-01-01\nWorking directory: /srv"


def test_it_says_who_and_where() -> None:
    text = system_prompt(cwd="/srv", date="2026-01-01")
    assert text.startswith("You are zot, a coding agent.")
    assert text.endswith(f"\n\n{WHERE}")


def test_it_can_be_replaced_and_added_to() -> None:
    assert system_prompt(cwd="/srv", date="2026-01-01", replaced_by="Me.", appended=["One.", "", "Two."]) == (
        f"Me.\n\nOne.\n\nTwo.\n\n{WHERE}"
    )


def test_an_empty_replacement_leaves_only_where_we_are() -> None:
    assert system_prompt(cwd="/srv", date="2026-01-01", replaced_by="") == WHERE
