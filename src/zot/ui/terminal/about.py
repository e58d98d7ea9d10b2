"""What a tool call would change, in colours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zot.ui import about
from zot.ui.terminal.looks import frank

_STYLES = {"+": "green", "-": "red"}


def changes(args: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a call would change in a file, as the lines of a diff, each with its style."""
    return ((row, _STYLES.get(row[:1], "dim")) for row in about.changes(args, frank))
