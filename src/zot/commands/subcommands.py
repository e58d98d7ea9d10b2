"""Shared parts of commands with subcommands: requests, output, choosing a session."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from zot.errors import ConfigError, NoSuchSession, UserError
from zot.text import escaped
from zot.ui.readable import one_line

if TYPE_CHECKING:  # Not every command needs the journal.
    from zot.journal.journal import ReadOnlyJournal
    from zot.journal.queries import SessionRecord

#: Sessions listed if an abbreviation is ambiguous.
_NAMED = 5


class CommandRequest(msgspec.Struct, frozen=True):
    """The words after the subcommand, and the flags."""

    words: Sequence[str]
    settings: Mapping[str, Any]

    @property
    def json(self) -> bool:
        """True if the output is for programs."""
        return bool(self.settings.get("json"))


def write(text: str) -> None:
    """Write UTF-8 to standard output, whatever the locale."""
    write_bytes(text.encode("utf-8", "replace"))


def write_bytes(data: bytes) -> None:
    """Write to standard output, if there is one."""
    if sys.stdout is not None:
        sys.stdout.buffer.write(data)


def write_json(value: object) -> None:
    """Write a line of JSON. Surrogates, as in an id that is not UTF-8, become escapes that can be read back."""
    try:
        line = msgspec.json.encode(value)
    except UnicodeEncodeError:
        import json

        text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False, separators=(",", ":"))
        line = text.encode("utf-8", "backslashreplace")
    write_bytes(line + b"\n")


def print_note(text: str) -> None:
    """Print a message to standard error."""
    sys.stderr.write(f"zot: {escaped(text)}\n")


def aligned(rows: Iterable[Sequence[str]]) -> str:
    """Return rows of equally many cells as lines of a table."""
    table = [*rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    padded = ((cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)
    return "".join("  ".join(cells).rstrip() + "\n" for cells in padded)


def confirm(question: str, request: CommandRequest) -> bool:
    """True if the user agrees, or gave --yes."""
    if request.settings.get("yes"):
        return True
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    try:
        answer = input()
    except (EOFError, UnicodeDecodeError, RuntimeError):  # the end, no text, or no standard input at all
        answer = ""
        sys.stderr.write("\n")
    return answer.strip().lower() in ("y", "yes")


async def find_session(journal: ReadOnlyJournal, name: str) -> SessionRecord:
    """Return the session with this id, or the only one whose id starts with it. Raise NoSuchSession, UserError."""
    sessions = await journal.sessions()
    found = [session for session in sessions if session.id == name]
    found = found or [session for session in sessions if name and session.id.startswith(name)]
    if not found:
        raise NoSuchSession(f"there is no session {name!r}; zot sessions list --all shows those that there are")
    if len(found) > 1:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        names = ", ".join(one_line(session.id, 80) for session in found[:_NAMED])
        raise UserError(f"{name!r} is the beginning of several sessions: {names}{more}")
    return found[0]


def absolute_directory(path: str | None) -> str:
    """Return a directory as an absolute path. Raise ConfigError if the current one is gone."""
    try:
        return os.path.abspath(path or os.getcwd())
    except FileNotFoundError:
        raise ConfigError("the current directory no longer exists") from None
