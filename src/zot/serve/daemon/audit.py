"""Audit log: hash-chained JSON lines, without message contents.

`audit.log` has what changed something. `access.log` beside it has connections, refusals, failed calls, and how many
calls only read. So no flood of these can rotate out what matters.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from zot.encoding import thread_safe_type
from zot.files import UNDECODABLE
from zot.messages import timestamp
from zot.serve.daemon.logs import LogFile
from zot.text import printable_line

if TYPE_CHECKING:
    from zot.serve.daemon.metrics import Metrics

try:  # hashlib takes longer to load than the rest of this module.
    from _sha2 import sha256  # type: ignore[import-not-found]  # from Python 3.12 on
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found]  # before that
    except ImportError:
        from hashlib import sha256

_MAX_NAME = 128
_MAX_WAITING = 1000
_FIRST_HASH = "0" * 32
#: Each line ends with the hash of everything before it in the line.
_HASH = b',"hash":"'
_END_BYTES = len(_HASH) + 32 + len(b'"}')
_TAIL_BYTES = 64 * 1024

#: Interval of the summaries of calls that are counted. Of a token's changes, so many are listed in each; the others are
#: counted by method and session, and of so many pairs at most: none may rotate out what others did.
_SUMMARY_S = 60.0
_MAX_LISTED, _MAX_COUNTED = 100, 1000
#: Number of refusals recorded per period, and the period.
_MAX_RECORDED, _PERIOD_S = 100, 10.0


class Identity(msgspec.Struct, frozen=True):
    """Identity of a client: uid and pid of a local process, or the name of a token, never the token itself."""

    transport: str
    uid: int | None = None
    pid: int | None = None
    token: str | None = None


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. ``prev`` is the hash of the preceding line, whose number is one less.

    ``event`` is `opened` (a daemon starts writing), `call` (a method was called; ``lines`` counts further calls that
    are not listed), `reads` (``lines`` calls only read), `lost` (``lines`` entries could not be written), an event
    of a connection: `connected`, `refused`, `revoked`, or of a browser: `paired` or `unpaired`.
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
    prev: str = _FIRST_HASH


class _Chain:
    """One file of hash-chained lines. Other daemons may append to it; the chain continues across them."""

    def __init__(self, file: LogFile) -> None:
        self._file = file
        self._pending: list[AuditEntry] = []
        self._n, self._hash = 0, _FIRST_HASH
        self._lost = 0

    def add(self, entry: AuditEntry) -> int:
        """Enqueue an entry; return how many wait."""
        self._pending.append(entry)
        return len(self._pending)

    def flush(self) -> None:
        """Write pending entries. Entries that cannot be written are counted, and the count is written later."""
        entries, self._pending = self._pending, []
        if not entries:
            return
        if self._lost:
            entries = [AuditEntry(0, timestamp(), "lost", lines=self._lost), *entries]
        with self._file.alone():
            if self._write(entries):
                self._lost = 0
            else:
                self._lost += len(entries) - bool(self._lost)

    def close(self) -> None:
        """Write the rest and close the file."""
        self.flush()
        self._file.close()

    def _write(self, entries: Iterable[AuditEntry]) -> bool:
        """Append ``entries`` to the chain, after those of other daemons. False if they cannot be written."""
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


def access_path(path: str) -> str:
    """Return the path of the access log beside an audit log."""
    return os.path.join(os.path.dirname(path), "access.log")


class Audit:
    """Writer of the audit log and the access log. Entries of one tick are written together at its end.

    Never raises, rarely blocks.
    """

    def __init__(self, file: LogFile, *, soon: Callable[[Callable[[], None]], object]) -> None:
        """Continue the chains in ``file`` and beside it. ``soon`` schedules a function, such as `call_soon`."""
        self.path = file.path
        self._changes = _Chain(file)
        self._access = _Chain(LogFile(access_path(file.path)))
        self._soon = soon
        self._is_scheduled = False
        #: Read-only calls since the last summary, by caller.
        self._reads: dict[Identity, int] = {}
        #: Changes of tokens since then: how many are listed, and how many are counted, by caller, method and session.
        self._listed: dict[Identity, int] = {}
        self._counted: dict[tuple[Identity, str, str], int] = {}
        self._summing_up: asyncio.TimerHandle | None = None
        #: Called by `close` before the last flush.
        self.when_closing: list[Callable[[], None]] = []
        self.note("opened", Identity("", pid=os.getpid()))

    def call(self, who: Identity, method: str, *, session: str = "", outcome: str = "ok") -> None:
        """Record a method call, its session and its outcome: `ok`, or the error code.

        Never pass message contents. Names are truncated because clients choose them.
        """
        if who.token is None or outcome != "ok":
            self.note("call", who, method=method, session=session, outcome=outcome)
            return
        self._listed[who] = self._listed.get(who, 0) + 1
        self._sum_up_later()
        if self._listed[who] <= _MAX_LISTED:
            self.note("call", who, method=method, session=session, outcome=outcome)
            return
        pair = (who, method, session)
        if pair not in self._counted and len(self._counted) >= _MAX_COUNTED:
            pair = (who, method, "")
        self._counted[pair] = self._counted.get(pair, 0) + 1

    def read(self, who: Identity) -> None:
        """Count a successful call that only read; one line per caller and interval says how many there were."""
        who = msgspec.structs.replace(who, pid=None)
        self._reads[who] = self._reads.get(who, 0) + 1
        self._sum_up_later()

    def _sum_up_later(self) -> None:
        if self._summing_up is None:
            self._summing_up = asyncio.get_running_loop().call_later(_SUMMARY_S, self._sum_up)

    def _sum_up(self) -> None:
        if self._summing_up is not None:
            self._summing_up.cancel()
            self._summing_up = None
        reads, self._reads = self._reads, {}
        for who, number in reads.items():
            self._add(self._access, _entry("reads", who, lines=number))
        counted, self._counted, self._listed = self._counted, {}, {}
        for (who, method, session), number in counted.items():
            self._add(self._changes, _entry("call", who, method=method, session=session, outcome="ok", lines=number))

    def note(self, event: str, who: Identity, *, method: str = "", session: str = "", outcome: str = "") -> None:
        """Record another event of a connection."""
        entry = _entry(event, who, method=method, session=session, outcome=outcome)
        self._add(self._changes if _is_change(entry) else self._access, entry)

    def _add(self, chain: _Chain, entry: AuditEntry) -> None:
        if chain.add(entry) >= _MAX_WAITING:
            self.flush()
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._soon(self.flush)

    def flush(self) -> None:
        """Write pending entries."""
        self._is_scheduled = False
        self._changes.flush()
        self._access.flush()

    def close(self) -> None:
        """Write the rest and close the files."""
        for call in self.when_closing:
            call()
        self._sum_up()
        self._changes.close()
        self._access.close()


def _entry(
    event: str, who: Identity, *, method: str = "", session: str = "", outcome: str = "", lines: int | None = None
) -> AuditEntry:
    return AuditEntry(
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
        lines=lines,
    )


def _is_change(entry: AuditEntry) -> bool:
    """True for what must stay on record: a successful change, an extension that connected, a token that changed."""
    match entry.event:
        case "call":
            # A request of the host protocol, or of MCP, may fail after its tools have run.
            return entry.outcome == "ok" or entry.method in ("/v1/respond", "/mcp tools/call")
        case "connected":
            return entry.method == "/ext"
        case _:
            return entry.event in ("opened", "revoked", "paired", "unpaired")


class Verified(msgspec.Struct, frozen=True):
    """Result of verifying an audit log: number of lines, problems, and the last number and hash.

    From number ``whole_from`` on, no line is missing or altered; 0 if that is true of none. Earlier ones were rotated
    out, removed or altered. Keep the last number and hash elsewhere: an attacker who can write the file can also
    rebuild the whole chain.
    """

    lines: int
    problems: tuple[str, ...]
    last: int
    hash: str
    whole_from: int


def verify(paths: Iterable[str]) -> Verified:
    """Verify the hash chain of an audit log; ``paths`` are its files, oldest first. Raise OSError."""
    number, whole_from, problems = 0, 0, []
    before: AuditEntry | None = None
    hashed = _FIRST_HASH
    for path, at, line in _lines(paths):
        number += 1
        entry = _read(line)
        if entry is None:
            problems.append(f"{path}:{at}: is not as it was written")
            whole_from = 0
            continue
        if before is not None and (entry.n, entry.prev) != (before.n + 1, hashed):
            problems.append(f"{path}:{at}: does not follow the line before it")
            whole_from = 0
        before, hashed = entry, _hash_in(line)
        whole_from = whole_from or entry.n
    return Verified(number, tuple(problems), before.n if before else 0, hashed, whole_from)


def _chained(entry: AuditEntry) -> tuple[bytes, str]:
    """Return the line of an entry, and its hash."""
    body = msgspec.json.encode(entry)[:-1]
    hashed = _hash(body)
    return body + _HASH + hashed.encode() + b'"}\n', hashed


def _hash(body: bytes) -> str:
    hashed: str = sha256(body).hexdigest()
    return hashed[:32]


def _hash_in(line: bytes) -> str:
    return line[-_END_BYTES:][len(_HASH) : -2].decode()


def _read(line: bytes) -> AuditEntry | None:
    """Return the entry in a line without its line feed; None if the line was altered."""
    body, end = line[:-_END_BYTES], line[-_END_BYTES:]
    if end != _HASH + _hash(body).encode() + b'"}':
        return None

    try:
        return msgspec.json.decode(line, type=thread_safe_type(AuditEntry))
    except UNDECODABLE:
        return None


def recent(path: str, limit: int) -> list[AuditEntry]:
    """Return up to ``limit`` whole lines at the end of a log, the newest first; fewer after a rotation."""
    entries: list[AuditEntry] = []
    for line in _tail(path):
        if len(entries) >= limit:
            break
        if entry := _read(line):
            entries.append(entry)
    return entries


def _last(path: str) -> tuple[int, str]:
    """Return the number and the hash of the last whole line of a log."""
    for line in _tail(path):
        if entry := _read(line):
            return entry.n, _hash_in(line)
    return 0, _FIRST_HASH


def _tail(path: str) -> Iterator[bytes]:
    """Yield the lines at the end of a log, then of the one that was rotated out before it, the newest first."""
    for one in (path, f"{path}.1"):
        try:
            with open(one, "rb", opener=_open) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                lines = file.read(_TAIL_BYTES).split(b"\n")
        except OSError:  # Missing or unreadable: a new chain begins.
            continue
        yield from reversed(lines)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _lines(paths: Iterable[str]) -> Iterator[tuple[str, int, bytes]]:
    for path in paths:
        with open(path, "rb") as file:
            for at, line in enumerate(file, 1):
                yield path, at, line.removesuffix(b"\n")


class Refusals:
    """Counter of refusals that records them up to a rate limit, then only how many more there were.

    Needs a running loop; closing the audit log records the rest.
    """

    def __init__(self, audit: Audit, metrics: Metrics, *, within_s: float = _PERIOD_S) -> None:
        self._audit = audit
        self._metrics = metrics
        self._within_s = within_s
        self._since = 0.0
        self._count = 0
        self._transport = ""
        self._summing_up: asyncio.TimerHandle | None = None
        audit.when_closing.append(self._sum_up)

    def note(self, who: Identity, method: str, outcome: str) -> bool:
        """Count a refusal and record its origin. False if the rate limit suppressed the record.

        Pass nothing that an unauthenticated client chose.
        """
        self._metrics.refused += 1
        if (now := time.monotonic()) - self._since > self._within_s:
            self._sum_up()
            self._since, self._count = now, 0
        self._count += 1
        if self._count <= _MAX_RECORDED:
            self._audit.note("refused", who, method=method, outcome=outcome)
            return True
        self._transport = who.transport
        if self._summing_up is None:
            self._summing_up = asyncio.get_running_loop().call_later(self._within_s, self._sum_up)
        return False

    def _sum_up(self) -> None:
        """Record how many refusals were suppressed, if any."""
        if self._summing_up is not None:
            self._summing_up.cancel()
            self._summing_up = None
            self._audit.note("refused", Identity(self._transport), outcome=f"{self._count - _MAX_RECORDED} more")
            self._since, self._count = time.monotonic(), 0
