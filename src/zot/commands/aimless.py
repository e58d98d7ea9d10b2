"""`zot` with flags but without a prompt or a terminal: reports the mistake."""

from __future__ import annotations

from collections.abc import Sequence

from zot.commands.terminal import parse_command_line
from zot.errors import UsageError


def main(argv: Sequence[str]) -> int:
    """Show the requested help, or raise the error in the flags, else UsageError for the missing prompt."""
    if (opening := parse_command_line(argv)) is None:
        return 0
    what = repr(opening.words[0]) if opening.words else "it"
    raise UsageError(f"say what to do with {what}: zot -p PROMPT answers a prompt, with the flags before or behind it")
