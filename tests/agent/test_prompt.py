"""The system prompt names the agent, the date and the directory."""

from __future__ import annotations

from zot.runtime.system_prompt import system_prompt

WHERE = "Date: 2026-01-01\nWorking directory: /srv"


def test_the_prompt_names_the_agent_and_the_directory() -> None:
    text = system_prompt(cwd="/srv", date="2026-01-01")
    assert text.startswith("You are zot, a coding agent.")
    assert text.endswith(f"\n\n{WHERE}")


def test_the_prompt_can_be_replaced_and_extended() -> None:
    assert system_prompt(cwd="/srv", date="2026-01-01", replaced_by="Me.", appended=["One.", "", "Two."]) == (
        f"Me.\n\nOne.\n\nTwo.\n\n{WHERE}"
    )


def test_an_empty_replacement_leaves_the_environment_section_only() -> None:
    assert system_prompt(cwd="/srv", date="2026-01-01", replaced_by="") == WHERE
