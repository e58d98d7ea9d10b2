"""The question whether what a project brings along may run. A clone must not be able to run code."""

from __future__ import annotations

from typing import Literal

from zot.ui.conversation import Untrusted
from zot.ui.terminal.terminal import Option, Terminal


async def ask_trust(terminal: Terminal, *kinds: Literal["extension", "skill"]) -> None:
    """Ask about each extension and skill of the project that nobody trusts yet, or those of some kinds."""
    for one in await terminal.home.untrusted():
        if kinds and one.kind not in kinds:
            continue
        yes = await terminal.choose(f"Trust the {one.kind} {one.name} of this project?", _OPTIONS, body=_about(one))
        if yes:
            await terminal.home.trust(one)


_OPTIONS = [Option(value=False, label="not now", key="n"), Option(value=True, label="trust it, as it is now", key="y")]


def _about(one: Untrusted) -> str:
    what = (
        "It is a program, which could do what you can do."
        if one.kind == "extension"
        else "It is text that the model may follow."
    )
    shadows = f"\nIt would take the place of the one in {one.shadows}." if one.shadows else ""
    return f"{one.directory}\n{what}{shadows}"
