"""What a tool call is about, in a line, and what it would change. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from zot.ui.readable import counted


def summary(args: dict[str, Any]) -> str:
    """Return what a call is about."""
    match args:
        case {"command": str(command)}:
            return command.strip()
        case {"path": str(path), "edits": list(edits)}:
            return f"{path} ({counted(len(edits), 'change')})"
        case {"path": str(path), "content": str(content)}:
            return f"{path} ({counted(_lines(content), 'line')})"
        case {"path": str(path)}:
            return path
        case {"name": str(name), **rest} if not rest:
            return name
        case {}:
            return msgspec.json.encode(args).decode() if args else ""


def changes(args: dict[str, Any], clean: Callable[[str], str]) -> Iterator[str]:
    """Yield what a call would change in a file, as the rows of a diff. ``clean`` makes text safe to be shown."""
    match args:
        case {"path": str(), "edits": list(edits)}:
            for edit in edits:
                match edit:
                    case {"oldText": str(old), "newText": str(new)}:
                        yield from _diff(clean(old), clean(new))
                    case _:
                        continue
        case {"path": str(), "content": str(content)}:
            yield from (f"+{line}" for line in clean(content).rstrip("\n").split("\n"))
        case _:
            return


def _lines(content: str) -> int:
    return content.count("\n") + (not content.endswith("\n") if content else 0)


def _diff(old: str, new: str) -> Iterator[str]:
    from difflib import unified_diff  # Only who compares needs it.

    rows = unified_diff(old.split("\n"), new.split("\n"), lineterm="", n=2)
    yield from (row for number, row in enumerate(rows) if number > 2)  # Files have no names here, and no place.
