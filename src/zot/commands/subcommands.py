"""Commands with subcommands: the table and its dispatcher, requests, output, choosing a session."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from zot.config import flags
from zot.config.flags import Flag, Manual
from zot.encoding import standard_json
from zot.errors import ConfigError, NoSuchSession, UsageError
from zot.extensions.log import follow
from zot.text import did_you_mean, escaped
from zot.ui.readable import match_session_id

if TYPE_CHECKING:  # Not every command needs the journal.
    from zot.journal.queries import SessionRecord
    from zot.journal.recorded_sessions import SessionReader

#: Exit codes: the command failed; it was called wrongly; the daemon that it needs does not run.
FAILED = 1
MISUSED = 2
NOT_RUNNING = 3
JSON_FLAG = Flag("--json", "Print one JSON object per line.")

#: How often a log that is followed is looked at.
_POLL_S = 0.2


class CommandRequest(msgspec.Struct, frozen=True):
    """The words after the subcommand, and the flags."""

    words: Sequence[str]
    settings: Mapping[str, Any]

    @property
    def json(self) -> bool:
        """True if the output is for programs."""
        return bool(self.settings.get("json"))


class Subcommand(msgspec.Struct, frozen=True):
    """A subcommand. ``takes`` names its words, of which there are as many as the bounds ``words`` allow.

    ``handler`` runs it and returns the exit code, or is the module and function to import for that. ``manual`` is its
    help, if that is not made from the other fields.
    """

    name: str
    takes: str
    summary: str
    handler: Callable[[CommandRequest], int] | str
    words: tuple[int, int] = (0, 0)
    flags: tuple[Flag, ...] = ()
    alias: str = ""
    manual: Manual | None = None

    def run(self, request: CommandRequest) -> int:
        """Run the subcommand; return its exit code."""
        if not isinstance(self.handler, str):
            return self.handler(request)
        module, _, function = self.handler.partition(".")
        code: int = getattr(__import__(f"zot.commands.{module}", fromlist=[function]), function)(request)
        return code


_EXITS = {0: "Done.", FAILED: "Failed.", MISUSED: "Wrong usage."}


class CommandGroup:
    """A command with subcommands. All of them take ``flags``; ``note`` ends the help.

    ``examples`` are in the help of the command; those and ``more_examples`` are in the help of their subcommand.
    """

    def __init__(
        self,
        command: str,
        summary: str,
        subcommands: Sequence[Subcommand],
        *,
        flags: Sequence[Flag] = (),
        note: str = "",
        examples: Sequence[tuple[str, str]] = (),
        more_examples: Sequence[tuple[str, str]] = (),
        exits: Mapping[int, str] = _EXITS,
    ) -> None:
        self.subcommands: Mapping[str, Subcommand] = {one.name: one for one in subcommands}
        self.command = command
        self.summary = summary
        self.examples = examples
        self.exits = exits
        self._more_examples = more_examples
        self._flags = flags
        self._note = note

    def main(self, argv: Sequence[str]) -> int:
        """Run the subcommand that ``argv`` names; return its exit code, 2 for wrong usage."""
        name, rest = (argv[0], argv[1:]) if argv else ("", argv)
        if name in (flags.HELP.name, flags.HELP.short, flags.HELP_ALL.name, "help"):
            sys.stdout.write(self.text() + "\n")
            return 0
        found = next((one for one in self.subcommands.values() if name and name in (one.name, one.alias)), None)
        try:
            return self._run(name, found, rest)
        except UsageError as problem:
            command = self.command if found is None else f"{self.command} {found.name}"
            end = "" if str(problem).endswith(("?", "...")) else "."
            print_note(f"{problem}{end} Try: {command} --help")
            return MISUSED

    def manual(self, found: Subcommand) -> Manual:
        """Return the help of a subcommand."""
        if found.manual is not None:
            return found.manual
        name = f"{self.command} {found.name}"
        examples = [one for one in (*self.examples, *self._more_examples) if f"{one[0]} ".startswith(f"{name} ")]
        usage = f"{name} {found.takes}".rstrip()
        return Manual(usage, found.summary, (*found.flags, *self._flags), examples=examples, exits=self.exits)

    def text(self) -> str:
        """Return the help of the command."""
        rows = [(f"{one.name} {one.takes}".rstrip(), one.summary) for one in self.subcommands.values()]
        examples = "\n".join(f"  {line}\n      {purpose}" for line, purpose in self.examples)
        blocks = [
            f"Usage: {self.command} SUBCOMMAND [flags]",
            self.summary,
            flags.table("Subcommands", rows, left=max(len(left) for left, _ in rows)),
            f"Examples:\n{examples}" if examples else "",
            flags.table("Exit codes", [(str(code), meaning) for code, meaning in self.exits.items()], left=3),
            f"{self._note} Flags of a subcommand: {self.command} {next(iter(self.subcommands))} --help".lstrip(),
        ]
        return "\n\n".join(filter(None, blocks))

    def _run(self, name: str, found: Subcommand | None, argv: Sequence[str]) -> int:
        if found is None:
            if not name:
                raise UsageError(f"{self.command} needs a subcommand: {', '.join(self.subcommands)}")
            near = did_you_mean(name, self.subcommands) or f"; known: {', '.join(self.subcommands)}"
            raise UsageError(f"{self.command} has no subcommand {name!r}{near}")
        if (given := flags.parse_or_help(argv, self.manual(found))) is None:
            return 0
        settings, words = given
        least, most = found.words
        if not least <= len(words) <= most or not all(words):
            raise UsageError(f"{self.command} {name} takes {found.takes or 'no words'}")
        return found.run(CommandRequest(words, settings))


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
        text = standard_json().dumps(msgspec.to_builtins(value), ensure_ascii=False, separators=(",", ":"))
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


def follow_log(path: str, put: Callable[[Iterable[bytes]], None]) -> int:
    """Pass what a log has, and then each addition, to ``put``, until a signal ends it or standard output is closed.

    Return the exit code.
    """

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        put(follow(path, _wait_for_more))
    except KeyboardInterrupt:  # The usual way to end it.
        sys.stdout.flush()
    return 0


def _wait_for_more() -> bool:
    """Wait a moment for more; False if standard output is closed."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return not poll.poll(_POLL_S * 1000)


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


async def find_session(journal: SessionReader, name: str) -> SessionRecord:
    """Return the session with this id, or the only one whose id starts with it. Raise NoSuchSession, UserError."""
    known = {session.id: session for session in await journal.sessions()}
    found = match_session_id(name, [*known])
    if found is None:
        near = did_you_mean(name, known)
        raise NoSuchSession(f"no session matches {name!r}{near or '; list them with: zot sessions list --all'}")
    return known[found]


def absolute_directory(path: str | None) -> str:
    """Return a directory as an absolute path. Raise ConfigError if the current one is gone."""
    try:
        return os.path.abspath(path or os.getcwd())
    except FileNotFoundError:
        raise ConfigError("the current directory no longer exists; change to another") from None
