"""Flags without anything to do, where nobody sits who could say it."""

from __future__ import annotations

from collections.abc import Sequence

from zot.commands.terminal import wanted
from zot.errors import UsageError


def main(argv: Sequence[str]) -> int:
    """Show the help that was asked for, or raise what is wrong: with the flags, or else that they are all there is."""
    if wanted(argv) is None:
        return 0
    raise UsageError("say what to do with it: zot -p PROMPT answers a prompt, with the flags before or behind it")
