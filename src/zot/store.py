"""Append-only history of a session; a row is recorded before any client sees it.

Two kinds of rows share one sequence: *events*, from which clients' views are built, and *changes*, from which the
transcript for the provider is built.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, Literal, Protocol, TypeAlias

import msgspec

from zot.errors import StoreFailed, UserError
from zot.events import AgentEvent
from zot.messages import Counters, Message


class MessageAdded(msgspec.Struct, frozen=True, gc=False, tag="said", tag_field="type"):
    """A message was added to the transcript."""

    message: Message


class MessagesReplaced(msgspec.Struct, frozen=True, gc=False, tag="spliced", tag_field="type", omit_defaults=True):
    """``messages`` replaced those from ``start`` up to ``stop``: a compaction, a clearing, a replacement.

    The replaced messages stay in the history: a transcript is a view. Only a compaction (``why``) can be undone.
    """

    start: int
    stop: int
    messages: tuple[Message, ...]
    why: Literal["", "compaction", "undo"] = ""

    @property
    def is_clearing(self) -> bool:
        """True if the change removed the whole conversation."""
        return not self.start and not self.messages and not self.why


class SettingsChanged(msgspec.Struct, frozen=True, gc=False, tag="configured", tag_field="type", omit_defaults=True):
    """The session's settings from here on; a resumed session sends identical requests.

    ``agent`` names the agent if several are configured; ``guarded`` is set for sessions with untrusted users.
    """

    provider: str
    model: str
    system: str
    reasoning: str
    cwd: str
    agent: str = ""
    guarded: bool = False


#: Digest of a content that was not kept: too large or unreadable.
NOT_KEPT: Final = ""


Digest: TypeAlias = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")]


class FileChanged(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="wrote", tag_field="type"):
    """A change of a file, by the tool call ``call`` or by a rewind. Does not change the transcript.

    A tool's change is recorded before it is made: it happened if the call's result is no error, and may have
    happened otherwise. A rewind's change is recorded afterwards.

    ``path`` is relative to the session's directory for files below it, else absolute, with links resolved.
    ``before`` and ``after`` are SHA-256 in hex, None without a file, or `UNKEPT`; ``mode`` has the permissions of a
    removed file. ``contents`` are those the store may not have yet; it stores them apart from the row.
    """

    path: str
    before: Digest | None
    after: Digest | None
    call: str | None = None
    mode: int = 0
    contents: Mapping[str, bytes] = {}


class PermissionGranted(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="allowed", tag_field="type"):
    """A person allowed a ``tool`` for the rest of the session: for one command, for one path, or always.

    ``revoked`` withdraws the permission.
    """

    tool: str
    command: str | None = None
    path: str | None = None
    revoked: bool = False

    @property
    def subject(self) -> str:
        """The allowed command or path; "" if the tool is always allowed."""
        return self.command or self.path or ""


class CallStarted(msgspec.Struct, frozen=True, gc=False, tag="began", tag_field="type"):
    """A tool ``call`` is about to start; without a result, it may or may not have run.

    Recorded in a turn with an approval, and in sessions whose runs another process may continue.
    """

    call: str


class GuardSet(msgspec.Struct, frozen=True, gc=False, tag="guarded", tag_field="type"):
    """A self-connected extension guards the session: ``intercept`` is blocked while it is disconnected.

    ``intercept`` is empty after a person has dismissed the extension. Only one with the same ``token``, by its name,
    may take its place; "" binds it to none.
    """

    name: str
    intercept: tuple[str, ...]
    token: str = ""


class LockChanged(msgspec.Struct, frozen=True, gc=False, tag="locked", tag_field="type"):
    """A person confined the tools to the directory, or lifted that, overriding the configuration."""

    locked: bool


class UsageCounted(msgspec.Struct, frozen=True, gc=False, tag="counted", tag_field="type"):
    """A model call for the session outside of any run; ``cumulative`` is the session's usage including it."""

    time: str
    counters: Counters
    cumulative: Counters


Change: TypeAlias = (
    MessageAdded
    | MessagesReplaced
    | SettingsChanged
    | FileChanged
    | PermissionGranted
    | CallStarted
    | GuardSet
    | LockChanged
    | UsageCounted
)
Row: TypeAlias = AgentEvent | Change


def messages_of(row: Row) -> tuple[Message, ...]:
    """Return the messages that ``row`` adds to the transcript."""
    match row:
        case MessageAdded(message=message):
            return (message,)
        case MessagesReplaced(messages=messages):
            return messages
        case _:
            return ()


class Acquired(msgspec.Struct, frozen=True):
    """Result of `Store.begin`: the rows that others added since the last look.

    If ``answer`` is set, the prompt to run has been answered already, and the lease was not acquired. If
    ``was_aborted``, a client has aborted the newest run, whether or not its process recorded the end.
    """

    rows: Sequence[tuple[int, Row]] = ()
    answer: bytes | None = None
    was_aborted: bool = False


class StoredRequest(msgspec.Struct, frozen=True):
    """The identity of a request: its session's number, its key, and a digest of its contents."""

    session: int
    key: bytes
    request: bytes


class StoredReply(msgspec.Struct, frozen=True):
    """The stored state of a request. ``first_run`` added its prompt; runs up to ``latest_run`` continued it."""

    first_run: int
    latest_run: int
    began: float
    answer: bytes | None
    answered: float | None
    delivered: float | None


class Answers(Protocol):
    """The stored answers of a session's requests. Writes join the transaction that acquires the lease."""

    def now(self) -> float:
        """Return the time in seconds, by the store's clock, which never goes back."""

    def find(self, asked: StoredRequest) -> StoredReply | None:
        """Return the stored state of a request."""

    def begin(self, asked: StoredRequest, *, first_run: int, latest_run: int, forget_s: float) -> None:
        """Store that ``latest_run`` is about to begin for a request; forget those that began ``forget_s`` ago."""

    def rows_of(self, run: int) -> Sequence[Row]:
        """Return the rows of a run."""


#: Looks for the stored answer of a prompt, given the number of the newest run. Called in another thread, by the writer
#: that is about to hold the lease.
FindAnswer: TypeAlias = Callable[[Answers, int], bytes | None]


class StoreObserver:
    """Receives a store's reports about its rows, in the event loop's thread. By default it ignores them."""

    def on_safe(self, seq: int) -> None:
        """Handle that all rows up to ``seq`` are safe."""

    def on_failed(self, problem: StoreFailed) -> None:
        """Handle that rows could not be made safe."""


class Store(Protocol):
    """Append-only history of one session. A row is *safe* once it survives any failure the store can survive."""

    @property
    def shared(self) -> bool:
        """True if other processes may write too: a run must `begin` before it appends."""

    @property
    def keeps(self) -> bool:
        """True if rows can be read back later, so file contents are worth recording."""

    async def begin(self, find_answer: FindAnswer | None = None) -> Acquired:
        """Become the only writer for a run, unless ``find_answer`` finds that it is not needed.

        Raise SessionBusy if another writer is active, or StoreFailed.
        """

    def end(self, *, parked: bool = False) -> None:
        """Release the store to other writers, once everything is settled. Never blocks.

        A ``parked`` run is unfinished; recovery finds it.
        """

    @property
    def is_continued(self) -> bool:
        """True if another process may continue a run that this one leaves: it must know which calls have begun."""

    @property
    def left_behind(self) -> bool:
        """True if the newest run was found unfinished when the store was opened."""

    def append(self, rows: Sequence[Row], *, run: int, ends: bool = False) -> int:
        """Number and take ``rows``, all or none; return the first number. Never blocks.

        Only between `begin` and `end`; ``ends`` marks the last rows of the run. Raise StoreFailed if the rows are
        refused at once.
        """

    def watch(self, observer: StoreObserver) -> None:
        """Report to ``observer`` from now on; inside `append` if no wait is needed."""

    @property
    def is_broken(self) -> bool:
        """True if rows could not be made safe, or are lost: the store takes no more.

        The session must be reopened. Cheap to read.
        """

    @property
    def full(self) -> bool:
        """True while too many rows are not yet safe to append more."""

    async def room(self) -> None:
        """Wait until the store is not full. Raise StoreFailed if that takes too long."""

    async def settled(self) -> None:
        """Wait until every row appended so far is safe. Raise StoreFailed."""

    async def synced(self) -> None:
        """Wait until every row appended so far survives a power loss. Raise StoreFailed."""

    async def read(self, after: int, limit: int) -> list[tuple[int, Row]]:
        """Return the oldest safe rows numbered above ``after`` that are still held, with their numbers."""

    async def newest(self) -> Sequence[tuple[int, Row]]:
        """Return the safe rows of the newest run that are still held, with their numbers."""

    async def changes(self) -> Sequence[tuple[int, Change]]:
        """Return the safe changes that are still held, with their numbers."""

    async def changes_with_failures(self) -> Sequence[Row]:
        """Return the safe changes still held, with the events of all runs that failed or were cut off.

        Nothing without such a run. May include more events.
        """

    async def content(self, digest: str) -> bytes | None:
        """Return the content of a file by its digest; None if it is no longer stored."""

    async def fork(self, new_id: str, at: int) -> None:
        """Copy the rows up to number ``at`` into a new session. Raise UserError if that is impossible."""

    @property
    def epoch(self) -> int:
        """Distinguishes sessions that reuse a name, and a session before and after a loss of rows."""

    @property
    def last_seq(self) -> int:
        """The number of the newest row; 0 before the first."""

    @property
    def last_run(self) -> int:
        """The number of the newest run; 0 before the first."""


class MemoryStore:
    """In-memory store: a row is safe at once and lost with the process.

    It keeps only the newest ``keep`` rows, since nothing is recovered from it; every row is still numbered.
    """

    full = False
    is_broken = False
    shared = False
    keeps = False
    is_continued = False
    left_behind = False
    epoch = 1

    def __init__(self, *, keep: int | None = 0) -> None:
        self._rows: deque[Row] = deque(maxlen=keep)
        self._observer = StoreObserver()
        self.last_seq = 0
        self.last_run = 0
        self._run_began = 0

    async def begin(self, find_answer: FindAnswer | None = None) -> Acquired:
        """Return nothing: there are no other writers."""
        del find_answer
        return Acquired()

    def end(self, *, parked: bool = False) -> None:
        """Do nothing: there are no other writers."""

    def append(self, rows: Sequence[Row], *, run: int, ends: bool = False) -> int:
        """Take ``rows`` and report them safe."""
        if run != self.last_run:
            self.last_run, self._run_began = run, self.last_seq
        first = self.last_seq + 1
        self._rows.extend(rows)
        self.last_seq += len(rows)
        self._observer.on_safe(self.last_seq)
        return first

    def watch(self, observer: StoreObserver) -> None:
        """Report safe rows to ``observer``; appending never fails."""
        self._observer = observer

    async def room(self) -> None:
        """Return at once: memory is never full."""

    async def settled(self) -> None:
        """Return at once: rows are safe when appended."""

    async def synced(self) -> None:
        """Return at once: nothing here survives the process anyway."""

    async def read(self, after: int, limit: int) -> list[tuple[int, Row]]:
        """Return the rows above ``after`` that are still held."""
        oldest = self.last_seq - len(self._rows) + 1
        return [(seq, row) for seq, row in enumerate(self._rows, oldest) if seq > after][:limit]

    async def newest(self) -> Sequence[tuple[int, Row]]:
        """Return the rows of the newest run that are still held."""
        return await self.read(self._run_began, len(self._rows))

    async def changes(self) -> Sequence[tuple[int, Change]]:
        """Return the changes that are still held."""
        rows = await self.read(0, len(self._rows))
        return [(seq, row) for seq, row in rows if isinstance(row, Change)]

    async def changes_with_failures(self) -> Sequence[Row]:
        """Return all rows still held."""
        return tuple(self._rows)

    async def content(self, digest: str) -> bytes | None:
        """Return None: no contents are kept."""
        del digest
        return None

    async def fork(self, new_id: str, at: int) -> None:
        """Raise UserError: nothing is kept to fork."""
        raise UserError("this session is not recorded, so it cannot be forked; start one with a session name")
