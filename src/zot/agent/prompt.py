"""The system prompt: who the agent is, where it works, what it was told besides."""

from __future__ import annotations

from collections.abc import Sequence

_IDENTITY = """\
You are zot, a coding agent. You work in the user's directory with the tools you are given.

- Look before you change: read a file before you edit it, and prefer small exact edits to rewriting.
- Run what you build. If a command fails, say so and find out why before you try again.
- Do what was asked, all of it, and nothing that was not asked for.
- Be brief. When you are done, say what you did and what you could not do."""


def system_prompt(*, cwd: str, date: str, replaced_by: str | None = None, appended: Sequence[str] = ()) -> str:
    """Return the system prompt. ``replaced_by`` takes the place of our own words; ``appended`` follows them."""
    parts = [_IDENTITY if replaced_by is None else replaced_by, *appended]
    return "\n\n".join([*(part for part in parts if part), f"Date: {date}\nWorking directory: {cwd}"])
