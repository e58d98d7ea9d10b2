"""The audit log: one hash-chained JSON line per request, without message contents."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from zot.encoding import learned
from zot.messages import timestamp
from zot.serve.daemon.logs import LogFile
from zot.text import printable_line

if TYPE_CHECKING:
    from zot.serve.daemon.metrics import Metrics

try:  # Without what else hashlib knows, which takes longer to load than all of this.
    from _sha2 import sha256  # type: ignore[import-not-found]  # from Python 3.12 on
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found]  # before that
    except ImportError:
        from hashlib import sha256

_MAX_NAME = 128
_MAX_WAITING = 1000
_NOTHING = "0" * 32
#: How each line ends: the hash of all that stands before it in the line.
_HASH = b',"hash":"'
_END_BYTES = len(_HASH) + 32 + len(b'"}')
_TAIL_BYTES = 64 * 1024


class Who(msgspec.Struct, frozen=True):
    """Who acts: a local process by its uid and pid, or the bearer of a token by its name, never by the token."""

    transport: str
    uid: int | None = None
    pid: int | None = None
    token: str | None = None


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. ``prev`` is the hash of the line before, whose number is one less.

    ``event`` is `opened` (a daemon begins to write), `call` (a method was called), `lost` (so many ``lines`` could not
    be written before) or what the daemon has to say of a connection, such as `connected` and `refused`.
    """

    n: int
    time: str
    event: str
    transport: str | None = None
    uid: int | None = None
    pid: int | None = None
    token: str | None = None
    method: str | None = None
    session: str | None = None
    outcome: str | None = None
    lines: int | None = None
    prev: str = _NOTHING


class Audit:
    """The audit log. What is noted in one tick is written at its end, in one piece. Never raises, hardly ever waits.

    Other daemons may write to the same file: each goes on behind the others.
    """

    def __init__(self, file: LogFile, *, soon: Callable[[Callable[[], None]], object]) -> None:
        """Go on with what is in ``file``. ``soon`` calls a function later, such as the event loop's `call_soon`."""
        self._file = file
        self._soon = soon
        self._waiting: list[Entry] = []
        self._is_called = False
        self._n, self._hash = 0, _NOTHING
        self._lost = 0
        #: Whoever has something to note at the end.
        self.when_closing: list[Callable[[], None]] = []
        self.note("opened", Who("", pid=os.getpid()))

    def call(self, who: Who, method: str, *, session: str = "", outcome: str = "ok") -> None:
        """Note that a method was called, on which session, and what came of it: `ok`, or the number of the error.

        Nothing that was said belongs here: names are cut, as clients choose them.
        """
        self.note("call", who, method=method, session=session, outcome=outcome)

    def note(self, event: str, who: Who, *, method: str = "", session: str = "", outcome: str = "") -> None:
        """Note something else of a connection."""
        entry = Entry(
            n=0,
            time=timestamp(),
            event=event,
            transport=who.transport or None,
            uid=who.uid,
            pid=who.pid,
            token=who.token,
            method=printable_line(method, _MAX_NAME) or None,
            session=printable_line(session, _MAX_NAME) or None,
            outcome=printable_line(outcome, _MAX_NAME) or None,
        )
        self._waiting.append(entry)
        if len(self._waiting) >= _MAX_WAITING:
            self.flush()
        elif not self._is_called:
            self._is_called = True
            self._soon(self.flush)

    def flush(self) -> None:
        """Write what has been noted. What cannot be written is counted, and the count is written when it can."""
        self._is_called = False
        entries, self._waiting = self._waiting, []
        if not entries:
            return
        if self._lost:
            entries = [Entry(0, timestamp(), "lost", lines=self._lost), *entries]
        with self._file.alone():
            if self._write(entries):
                self._lost = 0
            else:
                self._lost += len(entries) - bool(self._lost)

    def _write(self, entries: Iterable[Entry]) -> bool:
        """Add ``entries`` to the chain, behind what other daemons have added. False if they cannot be written."""
        if not self._file.is_as_we_left_it:
            self._n, self._hash = max((self._n, self._hash), _last(self._file.path), key=lambda last: last[0])
        n, hashed, lines = self._n, self._hash, []
        for entry in entries:
            n += 1
            line, hashed = _chained(msgspec.structs.replace(entry, n=n, prev=hashed))
            lines.append(line)
        if not self._file.append(b"".join(lines)):
            return False
        self._n, self._hash = n, hashed
        return True

    def close(self) -> None:
        """Write the rest and close the file."""
        for call in self.when_closing:
            call()
        self.flush()
        self._file.close()


class Verified(msgspec.Struct, frozen=True):
    """What a look at an audit log found: how many lines, which are wrong and why, and the last number and hash.

    Keep those two elsewhere: whoever may write the file can make all of it anew.
    """

    lines: int
    problems: tuple[str, ...]
    last: int
    hash: str


def verify(paths: Iterable[str]) -> Verified:
    """Look if the lines of an audit log, in files with the oldest first, are as they were written. Raise OSError."""
    number, problems = 0, []
    before: Entry | None = None
    hashed = _NOTHING
    for path, at, line in _lines(paths):
        number += 1
        entry = _read(line)
        if entry is None:
            problems.append(f"{path}:{at}: is not as it was written")
            continue
        if before is not None and (entry.n, entry.prev) != (before.n + 1, hashed):
            problems.append(f"{path}:{at}: does not follow the line before it")
        before, hashed = entry, _hash_in(line)
    return Verified(number, tuple(problems), before.n if before else 0, hashed)


def _chained(entry: Entry) -> tuple[bytes, str]:
    """Return the line of an entry, and its hash."""
    body = msgspec.json.encode(entry)[:-1]
    hashed = _hash(body)
    return body + _HASH + hashed.encode() + b'"}\n', hashed


def _hash(body: bytes) -> str:
    hashed: str = sha256(body).hexdigest()
    return hashed[:32]


def _hash_in(line: bytes) -> str:
    return line[-_END_BYTES:][len(_HASH) : -2].decode()


def _read(line: bytes) -> Entry | None:
    """Return the entry of a line without its end; None if the line is not as it was written."""
    body, end = line[:-_END_BYTES], line[-_END_BYTES:]
    if end != _HASH + _hash(body).encode() + b'"}':
        return None
    from zot.files import UNDECODABLE  # Imported lazily: start-up budget.

    try:
        return msgspec.json.decode(line, type=learned(Entry))
    except UNDECODABLE:
        return None


def _last(path: str) -> tuple[int, str]:
    """Return the number and the hash of the last whole line of a log."""
    for one in (path, f"{path}.1"):
        try:
            with open(one, "rb", opener=_opened) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                lines = file.read(_TAIL_BYTES).split(b"\n")
        except OSError:  # There is none, or it cannot be read: then a new chain begins.
            continue
        for line in reversed(lines):
            if entry := _read(line):
                return entry.n, _hash_in(line)
    return 0, _NOTHING


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _lines(paths: Iterable[str]) -> Iterator[tuple[str, int, bytes]]:
    for path in paths:
        with open(path, "rb") as file:
            for at, line in enumerate(file, 1):
                yield path, at, line.removesuffix(b"\n")


#: So many refusals are written down in so many seconds.
_NOTED, _NOTED_S = 100, 10.0


class Refusals:
    """What is refused: counted, and written down as long as it is not too much. How much more it was is written, too.

    Needs a running loop; what is left to be written when the audit log is closed is written then.
    """

    def __init__(self, audit: Audit, metrics: Metrics, *, within_s: float = _NOTED_S) -> None:
        self._audit = audit
        self._metrics = metrics
        self._within_s = within_s
        self._since = 0.0
        self._noted = 0
        self._transport = ""
        self._summing_up: asyncio.TimerHandle | None = None
        audit.when_closing.append(self._sum_up)

    def note(self, who: Who, method: str, outcome: str) -> bool:
        """Count a refusal, and write down whose it is. False if it is too much to be written down.

        Nothing of it that a stranger chose is written.
        """
        self._metrics.refused += 1
        if (now := time.monotonic()) - self._since > self._within_s:
            self._sum_up()
            self._since, self._noted = now, 0
        self._noted += 1
        if self._noted <= _NOTED:
            self._audit.note("refused", who, method=method, outcome=outcome)
            return True
        self._transport = who.transport
        if self._summing_up is None:
            self._summing_up = asyncio.get_running_loop().call_later(self._within_s, self._sum_up)
        return False

    def _sum_up(self) -> None:
        """Write down how many there were that nobody wrote down, if there were any."""
        if self._summing_up is not None:
            self._summing_up.cancel()
            self._summing_up = None
            self._audit.note("refused", Who(self._transport), outcome=f"{self._noted - _NOTED} more")
            self._since, self._noted = time.monotonic(), 0
