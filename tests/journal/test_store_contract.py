"""The contract of every store of recorded sessions: SQLite and PostgreSQL, the same rows with the same numbers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from harness import PATIENCE_S
from store_watch import StoreWatch
from zot.errors import NoSuchSession, SessionBusy, StoreFailed, UserError
from zot.events import AssistantStart, Done, TextDelta, TurnEnd, TurnStart, Usage, UserMessage
from zot.files import sha256
from zot.journal import replay
from zot.journal.journal import Journal
from zot.journal.opening import open_journal
from zot.journal.portable import ImportTarget, checked, exported, imported
from zot.journal.postgres.connection import parsed
from zot.journal.postgres.journal import PostgresJournal
from zot.journal.queries import spent
from zot.journal.recorded_sessions import SessionJournal
from zot.journal.session_store import SessionStore
from zot.messages import Counters, ImageBlock, Message, TextBlock
from zot.session.recovery import recover_unusable
from zot.session.transcripts import TranscriptPast
from zot.store import Answers, FileChanged, MessageAdded, Row, SettingsChanged, StoredRequest

NOON = "2026-01-01T12:00:00.000Z"
HI = MessageAdded(Message("user", (TextBlock("Hi there"),), NOON))
HELLO = MessageAdded(Message("assistant", (TextBlock("Hello"),), NOON))
PICTURE = MessageAdded(Message("user", (ImageBlock("image/png", b"\x89PNG" * 500),), NOON))
SETTINGS = SettingsChanged("lab", "lab-1", "", "off", "/home")
COST = Usage(1, 2, 3, 4, 0.5, Counters(10, 20, 30, 40, 5.0))
#: A prompt, the way a run begins.
BEGUN: list[Row] = [UserMessage((TextBlock("Hi there"),), NOON), TurnStart(1), AssistantStart()]

#: Opens the same journal again, as another process does.
Elsewhere = Callable[[], Awaitable[SessionJournal]]


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty journal. Leases in PostgreSQL are short: a test waits for their end."""
    if request.param == "sqlite":
        return str(tmp_path / "journal.db")
    return f"{request.getfixturevalue('database')}&lease_s=0.6"


@pytest.fixture
async def journal(address: str) -> AsyncIterator[SessionJournal]:
    opened = await open_journal(address)
    yield opened
    await opened.close()


@pytest.fixture
async def elsewhere(address: str) -> AsyncIterator[Elsewhere]:
    """Open the journal as another process does."""
    others: list[SessionJournal] = []

    async def open_another() -> SessionJournal:
        made: SessionJournal
        if address.startswith("postgresql:"):
            made = await asyncio.to_thread(PostgresJournal, parsed(address))
        else:
            made = await asyncio.to_thread(Journal, address)
        others.append(made)
        return made

    yield open_another
    for other in others:
        await other.close()


async def tell(journal: SessionJournal, session_id: str, *rows: Row, run: int = 1, cwd: str = "/home") -> SessionStore:
    """Add rows to a session, as one run."""
    record = await journal.record(session_id, cwd=cwd)
    await record.begin()
    record.append(rows, run=run, ends=isinstance(rows[-1], Done))
    await record.settled()
    record.end()
    return record


async def free(record: SessionStore) -> None:
    """Wait until no process holds the lease."""
    async with asyncio.timeout(PATIENCE_S):
        while not await record.is_free():
            await asyncio.sleep(0.01)


# Rows.


async def test_rows_are_numbered_without_a_gap_and_read_back_by_all(
    journal: SessionJournal, elsewhere: Elsewhere
) -> None:
    record = await journal.record("a", cwd="/home")
    assert (await record.begin()).rows == []
    safe: list[int] = []
    record.watch(StoreWatch(safe.append, lambda problem: pytest.fail(str(problem))))
    assert record.append([SETTINGS, HI], run=1) == 1
    assert record.append([TextDelta("x"), TextDelta("\0é\N{LINE SEPARATOR}")], run=1) == 3
    assert record.append([HELLO, Done()], run=1, ends=True) == 5
    await record.settled()
    await record.synced()
    assert (safe[-1], record.last_seq, record.last_run, record.full) == (6, 6, 1, False)
    record.end()
    other = await (await elsewhere()).record("a", create=False)
    assert (other.last_seq, other.epoch, other.left_behind) == (6, record.epoch, False)
    rows = await other.read(0, 100)
    assert rows == [*enumerate([SETTINGS, HI, TextDelta("x"), TextDelta("\0é\N{LINE SEPARATOR}"), HELLO, Done()], 1)]
    assert await other.read(2, 2) == rows[2:4]
    assert list(await other.changes()) == [rows[0], rows[1], rows[4]]
    assert list(await other.newest()) == rows


async def test_the_newest_run_and_the_past_are_those_of_the_last_writer(
    journal: SessionJournal, elsewhere: Elsewhere
) -> None:
    first = await tell(journal, "a", HI, COST, TurnEnd("end_turn"), Done())
    await tell(await elsewhere(), "a", HELLO, Done(), run=2)
    await free(first)
    acquired = await first.begin()
    assert [row for _, row in acquired.rows] == [HELLO, Done()]
    assert (first.last_seq, first.last_run) == (6, 2)
    assert [row for _, row in await first.newest()] == [HELLO, Done()]
    first.end()
    _, past = await journal.resume("a", create=False)
    assert (list(past.changes), past.run) == ([HI, COST, TurnEnd("end_turn"), HELLO], 2)
    assert await first.changes_with_failures() == []


async def test_images_and_files_are_stored_once_and_kept_while_a_session_has_them(journal: SessionJournal) -> None:
    before, after = b"old", b"new" * 9000
    digests = [sha256(data).hexdigest() for data in (before, after)]
    changed = FileChanged("a.txt", digests[0], digests[1], contents=dict(zip(digests, (before, after), strict=True)))
    await tell(journal, "a", PICTURE, changed)
    record = await tell(journal, "b", PICTURE)
    await journal.delete("a")
    assert [row for _, row in await record.changes()] == [PICTURE]
    assert await record.content(digests[1]) is None
    await tell(journal, "c", changed)
    assert (await record.content(digests[0]), await record.content(digests[1])) == (before, after)
    assert await journal.collect() == 0


async def test_rows_need_a_lease(journal: SessionJournal) -> None:
    record = await journal.record("a")
    with pytest.raises(StoreFailed, match="it was not begun"):
        record.append([HI], run=1)
    await record.begin()
    record.append([HI], run=1)
    await record.settled()
    record.end()
    with pytest.raises(StoreFailed, match="it was not begun"):
        record.append([HI], run=2)
    assert record.last_seq == 1


# Leases.


async def test_one_process_writes_at_a_time(journal: SessionJournal, elsewhere: Elsewhere) -> None:
    mine = await journal.record("a")
    other_journal = await elsewhere()
    theirs = await other_journal.record("a")
    await mine.begin()
    mine.append([HI], run=1)
    with pytest.raises(SessionBusy, match="is running in process"):
        await theirs.begin()
    with pytest.raises(SessionBusy, match="running here already"):
        await mine.begin()
    with pytest.raises(SessionBusy):
        await other_journal.delete("a")
    [listed] = await other_journal.sessions()
    assert other_journal.is_running(listed)
    assert not await theirs.is_free()
    assert not other_journal.is_run_here(listed)
    assert journal.is_run_here(listed)
    with pytest.raises(SessionBusy):
        await other_journal.check_elsewhere("a")
    await mine.settled()
    mine.end()
    await free(theirs)
    acquired = await theirs.begin()
    assert [row for _, row in acquired.rows] == [HI]
    assert theirs.append([HELLO], run=2) == 2
    await theirs.settled()
    theirs.end()


async def test_a_lease_lasts_as_long_as_its_run(journal: SessionJournal, elsewhere: Elsewhere) -> None:
    mine = await journal.record("a")
    theirs = await (await elsewhere()).record("a")
    await mine.begin()
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(12):  # Longer than a lease in PostgreSQL lasts without a renewal.
            await asyncio.sleep(0.1)
            assert not await theirs.is_free()
    mine.append([HI], run=1)
    await mine.settled()
    mine.end()


async def test_a_cancelled_begin_leaves_no_lease(journal: SessionJournal) -> None:
    record = await journal.record("a")
    beginning = asyncio.create_task(record.begin())
    await asyncio.sleep(0)
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    await free(record)
    await record.begin()
    record.end()


async def test_a_run_that_a_dead_process_left_is_ended_by_the_next(
    journal: SessionJournal, elsewhere: Elsewhere
) -> None:
    dying = await elsewhere()
    record = await dying.record("a", cwd="/home")
    await record.begin()
    record.append([SETTINGS, HI, *BEGUN, TextDelta("He")], run=1)
    await record.settled()
    await dying.close()  # Its lease ends with it, or later.
    found, past = await journal.resume("a", create=False)
    assert found.left_behind
    await free(found)
    assert await journal.left_behind() == ["a"]
    await recover_unusable(found, TranscriptPast(past.changes, past.rows, found.totals), now=lambda: NOON)
    said = MessageAdded(Message("assistant", (TextBlock("He"),), NOON))
    rows = [row for _, row in await found.read(6, 100)]
    assert rows[0] == said
    assert rows[-2:] == [TurnEnd("aborted"), Done()]
    assert [seq for seq, _ in await found.read(0, 100)] == list(range(1, 7 + len(rows)))
    assert await journal.left_behind() == []


async def test_a_parked_run_is_left_to_another_process(journal: SessionJournal) -> None:
    record = await journal.record("a")
    await record.begin()
    record.append([HI, *BEGUN], run=1)
    await record.settled()
    record.end(parked=True)
    assert await journal.left_behind() == ["a"]
    session = await journal.find("a")
    assert session.owner is not None
    assert session.owner.parked
    await record.begin()
    record.append([Done()], run=1, ends=True)
    await record.settled()
    record.end()
    assert await journal.left_behind() == []


async def test_a_session_of_the_same_name_is_another_one(journal: SessionJournal) -> None:
    before = await tell(journal, "a", HI)
    assert (await journal.delete("a")).epoch == before.epoch
    after = await tell(journal, "a", HELLO)
    assert after.epoch != before.epoch
    with pytest.raises(NoSuchSession):
        await before.begin()
    assert before.is_broken
    assert not after.is_broken
    assert [row for _, row in await after.read(0, 9)] == [HELLO]


# Answers of requests.


async def test_a_prompt_is_answered_once(journal: SessionJournal, elsewhere: Elsewhere) -> None:
    record = await tell(journal, "a", HI, Done())
    asked = StoredRequest(record.number, b"key", b"digest")
    times: list[float] = []

    def none_yet(answers: Answers, newest: int) -> bytes | None:
        assert (newest, answers.find(asked)) == (1, None)
        times.append(answers.now())
        assert list(answers.rows_of(newest)) == [HI, Done()]
        answers.begin(asked, first_run=2, latest_run=2, forget_s=60.0)
        return None

    assert (await record.begin(none_yet)).answer is None
    record.append([HELLO, Done()], run=2, ends=True)
    await record.settled()
    record.end()
    other = await (await elsewhere()).record("a")

    def known(answers: Answers, newest: int) -> bytes | None:
        kept = answers.find(asked)
        assert kept is not None
        assert (newest, kept.first_run, kept.latest_run, kept.answer) == (2, 2, 2, None)
        assert times[0] <= kept.began <= answers.now()
        return b"the answer"

    assert (await other.begin(known)).answer == b"the answer"
    assert await record.is_free()  # An answer needs no lease.


async def test_a_run_that_never_began_is_forgotten(journal: SessionJournal) -> None:
    record = await journal.record("a")
    asked = StoredRequest(record.number, b"key", b"digest")

    def announce(answers: Answers, newest: int) -> bytes | None:
        answers.begin(asked, first_run=newest + 1, latest_run=newest + 1, forget_s=60.0)
        return None

    await record.begin(announce)
    record.end()
    found: list[int] = []

    def look(answers: Answers, newest: int) -> bytes | None:
        kept = answers.find(asked)
        found.append(-1 if kept is None else kept.latest_run - newest)
        return None

    await record.begin(look)
    record.end()
    assert found == [0]


# The catalogue.


async def test_sessions_are_listed_found_renamed_closed_and_deleted(journal: SessionJournal) -> None:
    await tell(journal, "a", SETTINGS, HI, COST, cwd="/one")
    await tell(journal, "b", HELLO, cwd="/two")
    assert [one.id for one in await journal.sessions()] == ["b", "a"]
    assert [one.id for one in await journal.sessions(cwd="/two")] == ["b"]
    a = await journal.find("a")
    assert (a.title, a.messages, a.totals, a.cwd, a.owner) == ("Hi there", 1, COST.cumulative, "/home", None)
    assert (await journal.newest("/two", but="host:")) == await journal.find("b")
    assert await journal.newest("/two", but="b") is None
    [hit] = await journal.search("THERE")
    assert (hit.session, hit.seq, hit.excerpt) == ("a", 2, "Hi there")
    [call] = await journal.reading(spent, a)
    assert (call.model, call.counters) == ("lab/lab-1", COST.counters)
    await journal.rename("a", "A\0 title")
    assert (await journal.find("a")).title.replace("\0", "�") == "A� title"
    assert not await journal.is_closed("a")
    await journal.mark_closed("a", closed=True)
    await journal.mark_closed("a", closed=True)
    assert await journal.is_closed("a")
    await journal.mark_closed("a", closed=False)
    assert not await journal.is_closed("a")
    await journal.delete("a")
    with pytest.raises(NoSuchSession):
        await journal.find("a")
    with pytest.raises(NoSuchSession):
        await journal.record("a", create=False)
    await journal.check_writing()


async def test_a_fork_has_the_rows_up_to_its_point(journal: SessionJournal) -> None:
    record = await tell(journal, "a", PICTURE, HI, TextDelta("x"), HELLO)
    await record.fork("b", 2)
    with pytest.raises(UserError, match="there is a session 'b' already"):
        await record.fork("b", 2)
    with pytest.raises(UserError, match="no row 5"):
        await journal.fork("a", "c", at=5)
    made = await journal.find("b")
    assert (made.parent, made.fork_seq, made.messages, made.title) == ("a", 2, 2, "Hi there")
    fork = await journal.record("b", create=False)
    assert [row for _, row in await fork.read(0, 9)] == [PICTURE, HI]
    await fork.begin()
    assert fork.append([Done()], run=2, ends=True) == 3
    await fork.settled()
    fork.end()


async def test_any_id_and_any_path_can_be_recorded(journal: SessionJournal) -> None:
    odd = "a/../b\0\ud800%s?\N{SNOWMAN}"
    await tell(journal, odd, HI, cwd="/tmp/\udcff")
    [found] = await journal.sessions(cwd="/tmp/\udcff")
    assert found.id == odd
    assert [row for _, row in await (await journal.record(odd, create=False)).read(0, 9)] == [HI]


async def test_a_session_moves_through_an_export(journal: SessionJournal) -> None:
    await tell(journal, "a", SETTINGS, PICTURE, HI, TextDelta("x"), COST, HELLO, Done())
    session = await journal.find("a")
    lines = await journal.reading(lambda connection: [*exported(connection, session, home="/home")])
    target = ImportTarget("spare", "/home")
    made = await journal.writing(lambda connection: imported(connection, checked(enumerate(lines, 1), "file"), target))
    assert (made.id, made.messages, made.totals) == ("spare", 3, COST.cumulative)
    record = await journal.record("spare", create=False)
    assert await record.read(0, 99) == await (await journal.record("a")).read(0, 99)
    await record.begin()
    assert record.append([HI], run=2) == 8
    await record.settled()
    record.end()


async def test_events_are_replayed_from_any_cursor(journal: SessionJournal) -> None:
    deltas = [TextDelta(str(number)) for number in range(300)]
    record = await journal.record("a")
    await record.begin()
    for delta in deltas:
        record.append([delta], run=1)
        if delta.delta == "150":
            await record.settled()
    record.append([HELLO, Done()], run=1, ends=True)
    await record.settled()
    record.end()
    for after in (0, 1, 149, 152, 299):
        found = await journal.reading(replay.events_after, "a", after, 100)
        assert [seq for seq, _ in found] == [*range(after + 1, min(after + 101, 301)), 302][:100]
    assert [event for _, event in await journal.reading(replay.events_after, "a", 0, 1000)] == [*deltas, Done()]
    assert await journal.reading(replay.last_event, "a", 301) == 300
