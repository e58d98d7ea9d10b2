"""`zot sessions`: list, show, search, move and remove recorded sessions."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from zot.commands.sessions_change import REWIND_FLAGS, delete, diff, export, fork, gc, import_, rename, rewind
from zot.commands.sessions_read import backup, check, list_, search, show
from zot.commands.subcommands import CommandRequest, print_note
from zot.config import flags
from zot.config.config import Config, journal_path
from zot.config.flags import Flag
from zot.config.paths import journal_in
from zot.errors import ConfigError, JournalDamaged, NoSuchSession, StoreFailed, UsageError

if TYPE_CHECKING:
    from zot.journal.journal import Journal, ReadOnlyJournal

Action: TypeAlias = Callable[["Journal", CommandRequest], Awaitable[int]]
ReadAction: TypeAlias = Callable[["ReadOnlyJournal", CommandRequest], Awaitable[int]]

_HELP = Flag("--help", "this text", short="-h")
_JSON = Flag("--json", "one JSON object a line, for programs")
_CONFIG_DIR = Flag("--config-dir", "the sessions of the daemon that has this directory", value="DIR")
_YES = Flag("--yes", "do not ask", short="-y")
_AS = Flag("--as", "the id of the new session", value="ID")

_CENTURY_S = 100 * 365 * 86400


class Subcommand(msgspec.Struct, frozen=True):
    """A subcommand of `zot sessions`. ``words`` is the least and the greatest number of words that it takes.

    One without an ``action`` must not open the journal, since opening a damaged one starts its recovery.
    """

    action: Action | None
    words: tuple[int, int]
    takes: str
    help: str
    flags: tuple[Flag, ...] = ()
    #: True if it works without a journal.
    alone: bool = False


def _days(text: str) -> float:
    """Parse a duration such as 30d, 2w or 12h into seconds."""
    seconds = {"h": 3600, "d": 86400, "w": 7 * 86400}.get(text[-1:])
    if seconds is None or not text[:-1].isascii() or not text[:-1].isdigit():
        raise ValueError("must be a number of hours, days or weeks, such as 12h, 30d or 4w")
    if (time := float(text[:-1]) * seconds) > _CENTURY_S:
        raise ValueError("must be a century at most")
    return time


_MANY = 1 << 30
SUBCOMMANDS: Mapping[str, Subcommand] = {
    "list": Subcommand(list_, (0, 0), "", "the sessions of this directory, the newest first", (
        Flag("--all", "those of all directories"),
        Flag("--cwd", "those of another directory", value="DIR"),
    ), alone=True),
    "show": Subcommand(show, (1, 1), "ID", "what was said, as text", (
        Flag("--full", "also what the model thought, and all of what tools returned"),
    )),
    "search": Subcommand(search, (1, _MANY), "TEXT", "where something was said, in all sessions", (
        Flag("--limit", "at most so many places (50)", value="N", parse=flags.positive),
    ), alone=True),
    "export": Subcommand(export, (1, 1), "ID", "the session as a file that can be read elsewhere", (
        Flag("--output", "where to, instead of standard output; must not exist", value="FILE", short="-o"),
        Flag("--html", "as one page for people, which needs nothing else"),
    )),
    "import": Subcommand(import_, (1, 1), "FILE", "a session that was exported; - is standard input", (
        _AS,
        Flag("--cwd", "where it works from now on", value="DIR"),
    ), alone=True),
    "fork": Subcommand(fork, (1, 1), "ID", "another session that begins as this one does", (
        Flag("--messages", "with its first N messages only", value="N", parse=flags.positive),
        Flag("--at", "with its rows up to this number only", value="SEQ", parse=flags.positive),
        _AS,
    )),
    "rewind": Subcommand(rewind, (1, 1), "ID", "back to an earlier point, with the files that tools have changed since",
                         REWIND_FLAGS),
    "diff": Subcommand(diff, (2, 2), "ID ID", "what two sessions said and wrote since they parted"),
    "rename": Subcommand(rename, (2, _MANY), "ID TITLE", "another title"),
    "delete": Subcommand(delete, (1, _MANY), "ID...", "remove sessions for good", (_YES,)),
    "gc": Subcommand(gc, (0, 0), "", "remove images that nobody shows, and give space back", (
        Flag("--older-than", "remove sessions, too, that were not used for so long: 30d, 4w", value="TIME",
             parse=_days),
        _YES,
    ), alone=True),
    "check": Subcommand(None, (0, 0), "", "is everything there, and as it was written? Changes nothing", (
        Flag("--acknowledge", "take note of what is lost for good, so that it is a problem no more"),
    ), alone=True),
    "backup": Subcommand(None, (1, 1), "FILE", "copy all sessions to a new file, also while they run", alone=True),
}  # fmt: skip


#: Subcommands that work on a read-only journal.
READ_ONLY: Mapping[str, ReadAction] = {"list": list_, "show": show, "search": search, "export": export}
#: Subcommands that do not open the journal.
_UNOPENED: Mapping[str, Callable[[str, CommandRequest], Awaitable[int]]] = {"check": check, "backup": backup}


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code: 0 done, 1 failed, 2 wrong usage."""
    name, rest = (argv[0], argv[1:]) if argv else ("", argv)
    if name in ("--help", "-h"):
        sys.stdout.write(_usage() + "\n")
        return 0
    subcommand = SUBCOMMANDS.get(name)
    try:
        if subcommand is None:
            raise UsageError(f"zot sessions cannot {name!r}" if name else "say what zot sessions should do")
        settings, words = flags.parse(rest, (*subcommand.flags, _CONFIG_DIR, _JSON, _HELP))
        if settings.get("help"):
            sys.stdout.write(_usage_of(name, subcommand) + "\n")
            return 0
        _check_words(name, subcommand, words)
    except UsageError as problem:
        return _misused(problem)
    import asyncio
    import signal

    # The journal rolls back unfinished changes, so there is nothing to wind down.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        request = CommandRequest(words, settings)
        return asyncio.run(_run(name, subcommand, request, _journal(request)))
    except UsageError as problem:
        return _misused(problem)


async def _run(name: str, subcommand: Subcommand, request: CommandRequest, path: str) -> int:
    import asyncio

    from zot.journal.journal import Journal, can_be_written, open_read_only
    from zot.journal.lease import read_marks
    from zot.journal.schema import is_there

    if name != "import" and not await asyncio.to_thread(is_there, path):
        if name == "check" and any(await asyncio.to_thread(lambda: read_marks(f"{path}.lock"))):
            return await check(path, request)
        if not subcommand.alone:
            raise NoSuchSession(f"there is no session {request.words[0]!r}: nothing has been kept yet")
        print_note("nothing has been kept yet")
        return 0
    if subcommand.action is None:
        return await _UNOPENED[name](path, request)
    glance = READ_ONLY.get(name)
    if glance is not None and not await asyncio.to_thread(can_be_written, path):
        return await _look(await open_read_only(path), glance, request)
    try:
        journal = await Journal.open(path)
    except StoreFailed as problem:  # As on a full disk.
        if glance is None or isinstance(problem, JournalDamaged):
            raise
        return await _look(await open_read_only(path), glance, request)
    try:
        return await subcommand.action(journal, request)
    finally:
        await journal.close()


async def _look(journal: ReadOnlyJournal, glance: ReadAction, request: CommandRequest) -> int:
    try:
        return await glance(journal, request)
    finally:
        await journal.close()


def _journal(request: CommandRequest) -> str:
    """Return the path of the journal. Raise ConfigError."""
    directory: str | None = request.settings.get("config_dir")
    if directory is None:
        return journal_path(Config())
    if not os.path.isdir(directory):
        raise ConfigError(f"--config-dir {directory}: no such directory")
    return journal_in(directory)


def _misused(problem: UsageError) -> int:
    print_note(f"{problem}; zot sessions --help tells more")
    return 2


def _check_words(name: str, subcommand: Subcommand, words: Sequence[str]) -> None:
    least, most = subcommand.words
    if not least <= len(words) <= most or not all(words):
        raise UsageError(f"zot sessions {name} takes {subcommand.takes or 'no words'}")


def _usage() -> str:
    rows = [(f"{name} {command.takes}".rstrip(), command.help) for name, command in SUBCOMMANDS.items()]
    lines = [f"  zot sessions {left:<16}  {text}" for left, text in rows]
    tail = "An id may be cut short if it is clear which one is meant. `zot sessions list --help` and so on tell more."
    return "\n".join(["usage: zot sessions SUBCOMMAND [flags]", "", *lines, "", tail])


def _usage_of(name: str, subcommand: Subcommand) -> str:
    words = f"zot sessions {name} {subcommand.takes}".rstrip()
    return flags.usage(
        words, f"{subcommand.help[0].upper()}{subcommand.help[1:]}.", (*subcommand.flags, _CONFIG_DIR, _JSON)
    )
