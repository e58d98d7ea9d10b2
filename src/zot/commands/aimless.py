"""`zot` with flags but without a prompt or a terminal: reports the mistake."""

from __future__ import annotations

from collections.abc import Sequence

from zot.commands.terminal import parse_command_line
from zot.errors import UsageError


def main(argv: Sequence[str]) -> int:
    """Show the requested help, or raise the error in the flags, else UsageError for the missing prompt."""
    if parse_command_line(argv) is None:
        return 0
    raise UsageError("say what to do with it: zot -p PROMPT answers a prompt, with the flags before or behind it")
