"""Where a session's history goes before anybody sees it.

Two kinds of row under one increasing number: *events*, what clients saw, and *changes* of the transcript, what the
provider needs. A client's view is read from the first, the transcript from the second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, Literal, Protocol, TypeAlias

import msgspec

from zot.errors import StoreFailed, UserError
from zot.events import AgentEvent
from zot.messages import Counters, Message


class Said(msgspec.Struct, frozen=True, gc=False, tag="said", tag_field="type"):
    """A message was added to the transcript."""

    message: Message


class Spliced(msgspec.Struct, frozen=True, gc=False, tag="spliced", tag_field="type", omit_defaults=True):
    """``messages`` took the place of those from ``start`` up to ``stop``: a compaction, a clearing, a replacement.

    What was replaced stays in the history: a transcript is a view. ``why`` tells what can be undone.
    """

    start: int
    stop: int
    messages: tuple[Message, ...]
    why: Literal["", "compaction", "undo"] = ""

    @property
    def is_clearing(self) -> bool:
        """True if nothing is left of the conversation."""
        return not self.start and not self.messages and not self.why


class Configured(msgspec.Struct, frozen=True, gc=False, tag="configured", tag_field="type", omit_defaults=True):
    """What the session works with from here on, so that one that is resumed asks exactly as it would have.

    ``agent`` is the name of its agent where there are several to choose from, ``guarded`` if strangers talk to it.
    """

    provider: str
    model: str
    system: str
    reasoning: str
    cwd: str
    agent: str = ""
    guarded: bool = False


#: Stands for a content that was not kept, because it is too large or could not be read.
UNKEPT: Final = ""


Digest: TypeAlias = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")]


class Wrote(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="wrote", tag_field="type"):
    """A file gets another content: by the ``call`` of a tool, or by a rewind. No change of the transcript.

    What a tool does is recorded before it is done: it has happened if the result of the call is no error, and may have
    if it is one. What a rewind does is recorded afterwards.

    ``path`` is relative to the directory the session works in where it is below it, else absolute, with all links
    followed. ``before`` and ``after`` are SHA-256 in hex, None where there is no file, or `UNKEPT`; ``mode`` has the
    permissions of a file that was removed. ``contents`` are those that the store may not have yet; it keeps them apart
    from the row.
    """

    path: str
    before: Digest | None
    after: Digest | None
    call: str | None = None
    mode: int = 0
    contents: Mapping[str, bytes] = {}


class Allowed(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="allowed", tag_field="type"):
    """A person allowed a ``tool`` for good in this session: for one command or one path, or whatever it is about.

    Or has ``revoked`` that.
    """

    tool: str
    command: str | None = None
    path: str | None = None
    revoked: bool = False

    @property
    def subject(self) -> str:
        """What a person calls it: the command or the path; "" if it is allowed whatever it is about."""
        return self.command or self.path or ""


class Began(msgspec.Struct, frozen=True, gc=False, tag="began", tag_field="type"):
    """A ``call`` of a turn in which a person was asked is about to run: if its result is lost, it may have."""

    call: str


class Guarded(msgspec.Struct, frozen=True, gc=False, tag="guarded", tag_field="type"):
    """An extension that has connected by itself guards the session, and blocks ``intercept`` whenever it is away.

    Nothing is left to ``intercept`` once a person has dismissed it.
    """

    name: str
    intercept: tuple[str, ...]


class Locked(msgspec.Struct, frozen=True, gc=False, tag="locked", tag_field="type"):
    """A person has had the tools kept inside the directory from here on, or let out, whatever is configured."""

    locked: bool


class Counted(msgspec.Struct, frozen=True, gc=False, tag="counted", tag_field="type"):
    """A model was asked for the session outside of any run; ``cumulative`` is what it has used by then."""

    time: str
    counters: Counters
    cumulative: Counters


Change: TypeAlias = Said | Spliced | Configured | Wrote | Allowed | Began | Guarded | Locked | Counted
Row: TypeAlias = AgentEvent | Change


class Store(Protocol):
    """An append-only history of one session. A row is *safe* when it would survive whatever the store can survive."""

    @property
    def shared(self) -> bool:
        """True if others may write to it, too, so that a run must `begin` before it can say anything."""

    @property
    def keeps(self) -> bool:
        """True if what is recorded can be had back, so that it makes sense to record the contents of files."""

    async def begin(self) -> Sequence[tuple[int, Row]]:
        """Become the only writer, for a run; return the rows that others added since we last looked.

        Raise SessionBusy if somebody else is the writer, StoreFailed.
        """

    def end(self, *, parked: bool = False) -> None:
        """Let others write; called when everything is settled. Never blocks.

        What is ``parked`` did not come to its end: whoever looks for what was left behind finds it.
        """

    @property
    def left_behind(self) -> bool:
        """True if it was found without the end of its newest run, which somebody had begun here."""

    def append(self, rows: Sequence[Row], *, run: int, ends: bool = False) -> int:
        """Number ``rows``, in order, and take them, all or none; return the number of the first. Never blocks.

        Between `begin` and `end` only; if they are what ``ends`` the run, nothing follows. Raise StoreFailed if they
        are refused at once.
        """

    def watch(self, safe: Callable[[int], None], failed: Callable[[StoreFailed], None]) -> None:
        """Call ``safe`` with the number up to which all rows are safe, ``failed`` when rows could not be made safe.

        In the thread of the event loop; at once, inside `append`, where nothing has to be waited for.
        """

    @property
    def is_broken(self) -> bool:
        """True if rows could not be made safe, or are gone: it takes no more, and who goes on opens the session again.

        Costs next to nothing.
        """

    @property
    def full(self) -> bool:
        """True while so much is not yet safe that no more should be said."""

    async def room(self) -> None:
        """Wait until it is not full any more. Raise StoreFailed if that takes too long."""

    async def settled(self) -> None:
        """Wait until every row is safe that has been taken so far. Raise StoreFailed."""

    async def synced(self) -> None:
        """Wait until every row that has been taken so far survives a loss of power. Raise StoreFailed."""

    async def read(self, after: int, limit: int) -> list[tuple[int, Row]]:
        """Return the oldest safe rows numbered above ``after`` that are still held, with their numbers."""

    async def newest(self) -> Sequence[tuple[int, Row]]:
        """Return the safe rows of the newest run that are still held, with their numbers."""

    async def changes(self) -> Sequence[tuple[int, Change]]:
        """Return the safe changes that are still held, with their numbers."""

    async def troubled(self) -> Sequence[Row]:
        """Return the safe changes that are still held, with the events of all runs in which something failed or was cut
        off among them; nothing if there is no such run. May return more events."""

    async def content(self, digest: str) -> bytes | None:
        """Return the content of a file that a row refers to; None if it is not there any more."""

    async def fork(self, new_id: str, at: int) -> None:
        """Make another session of the rows up to number ``at``. Raise UserError if that cannot be."""

    @property
    def epoch(self) -> int:
        """What differs between two sessions of one name, and between before and after a loss of rows."""

    @property
    def last_seq(self) -> int:
        """The number of the newest row; 0 before the first."""

    @property
    def last_run(self) -> int:
        """The number of the newest run; 0 before the first."""


class MemoryStore:
    """A store that lives and dies with its process: a row is safe as soon as it is here.

    Nothing can come back to it after a crash, so it keeps only the newest ``keep`` rows; every row still gets its
    number.
    """

    full = False
    is_broken = False
    shared = False
    keeps = False
    left_behind = False
    epoch = 1

    def __init__(self, *, keep: int | None = 0) -> None:
        self._rows: deque[Row] = deque(maxlen=keep)
        self._safe: Callable[[int], None] = lambda seq: None
        self.last_seq = 0
        self.last_run = 0
        self._run_began = 0

    async def begin(self) -> Sequence[tuple[int, Row]]:
        """There are no others."""
        return ()

    def end(self, *, parked: bool = False) -> None:
        """There are no others."""

    def append(self, rows: Sequence[Row], *, run: int, ends: bool = False) -> int:
        """Take ``rows`` and say that they are safe."""
        if run != self.last_run:
            self.last_run, self._run_began = run, self.last_seq
        first = self.last_seq + 1
        self._rows.extend(rows)
        self.last_seq += len(rows)
        self._safe(self.last_seq)
        return first

    def watch(self, safe: Callable[[int], None], failed: Callable[[StoreFailed], None]) -> None:
        """Call ``safe`` from now on; nothing can fail."""
        del failed
        self._safe = safe

    async def room(self) -> None:
        """There always is."""

    async def settled(self) -> None:
        """Everything is."""

    async def synced(self) -> None:
        """Nothing here survives its process, let alone a loss of power."""

    async def read(self, after: int, limit: int) -> list[tuple[int, Row]]:
        """Return the rows above ``after`` that are still held."""
        oldest = self.last_seq - len(self._rows) + 1
        return [(seq, row) for seq, row in enumerate(self._rows, oldest) if seq > after][:limit]

    async def newest(self) -> Sequence[tuple[int, Row]]:
        """Return the rows since the run began, as far as they are held."""
        return await self.read(self._run_began, len(self._rows))

    async def changes(self) -> Sequence[tuple[int, Change]]:
        """Return the changes that are still held."""
        rows = await self.read(0, len(self._rows))
        return [(seq, row) for seq, row in rows if isinstance(row, Change)]

    async def troubled(self) -> Sequence[Row]:
        """Return all that is still held."""
        return tuple(self._rows)

    async def content(self, digest: str) -> bytes | None:
        """Nothing is kept."""
        del digest
        return None

    async def fork(self, new_id: str, at: int) -> None:
        """Nothing is kept that could be."""
        raise UserError("this conversation is not kept, so it cannot be forked: use --session")
