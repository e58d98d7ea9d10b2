"""The journal: many sessions in one file, found, forked, searched and removed."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness import PATIENCE_S
from store_watch import StoreWatch
from zot.errors import JournalDamaged, NoSuchSession, SessionBusy, StoreFailed, UserError
from zot.events import AssistantMessage, ConversationReplaced, Done, TextDelta, ToolResult, TurnEnd, Usage, UserMessage
from zot.journal.journal import Journal
from zot.journal.queries import Hit, create
from zot.journal.record import Record
from zot.journal.repair import CheckReport, check_contents
from zot.messages import Counters, ImageBlock, Message, ResultBlock, TextBlock, timestamp
from zot.serve.daemon.feed import RecordedEvents
from zot.store import MessageAdded, MessagesReplaced, Row, SettingsChanged

NOON = "2026-01-01T12:00:00.000Z"
HI = MessageAdded(Message("user", (TextBlock("Hi there"),), NOON))
HELLO = MessageAdded(Message("assistant", (TextBlock("Hello"),), NOON))
COST = Usage(1, 2, 3, 4, 0.5, Counters(10, 20, 30, 40, 5.0))
PICTURE = MessageAdded(Message("user", (ImageBlock("image/png", b"\x89PNG" * 500),), NOON))
RESULT = MessageAdded(Message("tool", (ResultBlock("c1", False, (ImageBlock("image/png", b"\x89PNG" * 500),)),), NOON))


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    opened = await Journal.open(tmp_path / "journal.db")
    yield opened
    await opened.close()


async def tell(journal: Journal, session_id: str, *rows: Row, run: int = 1, cwd: str = "") -> Record:
    """Add rows to a session, as one run."""
    record = await journal.record(session_id, cwd=cwd)
    await record.begin()
    record.append(rows, run=run)
    await record.settled()
    record.end()
    return record


# Sessions.


async def test_message_counts_of_another_version_are_corrected_when_the_session_runs(journal: Journal) -> None:
    def miscount(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE sessions SET messages = -7")

    async def shown() -> list[int]:
        return [one.messages for one in await journal.sessions()]

    await tell(journal, "a", HI, HELLO, HI, HELLO, MessagesReplaced(0, 1, ()))
    await journal.writing(miscount)
    assert await shown() == [0]
    record, _ = await journal.resume("a")
    await tell(journal, "a", HI)  # Another process, which has not seen the earlier rows.
    await record.begin()
    assert await shown() == [4]
    record.append([MessagesReplaced(0, 3, ()), HELLO], run=3)
    await record.settled()
    record.end()
    await journal.writing(miscount)
    await record.begin()
    assert await shown() == [2]
    record.end()


async def test_appended_rows_are_there_after_reopening(tmp_path: Path) -> None:
    rows: list[Row] = [HI, TextDelta("Hel"), TextDelta("lo"), HELLO, PICTURE, RESULT, COST, Done()]
    journal = await Journal.open(tmp_path / "journal.db")
    await tell(journal, "a", *rows)
    await journal.close()
    journal = await Journal.open(tmp_path / "journal.db")
    record, past = await journal.resume("a", create=False)
    assert (record.last_seq, record.epoch) == (len(rows), 1)
    assert await record.read(0, 100) == list(enumerate(rows, 1))
    assert list(past.changes) == [HI, HELLO, PICTURE, RESULT]
    assert (past.run, list(past.rows)) == (1, rows)
    await journal.close()


async def test_opening_a_new_file_waits_for_concurrent_openers(tmp_path: Path) -> None:
    path = str(tmp_path / "journal.db")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    asyncio.get_running_loop().call_later(0.2, other.close)
    async with asyncio.timeout(PATIENCE_S):
        journal = await Journal.open(path)
    assert await journal.sessions() == []
    await journal.close()


async def test_a_page_of_client_events_costs_the_same_at_any_offset(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, page = 40, 50
    record = await journal.record("a")
    await record.begin()
    for run in range(1, pages * page // 2 + 1):
        record.append([HI, HELLO], run=run)
        record.append([Done()], run=run)
        record.append([MessagesReplaced(0, 2, ())], run=run)
    await record.settled()
    record.end()
    reading, costs = journal.reading, [0] * pages

    async def counted(look: Callable[[sqlite3.Connection], Any]) -> Any:
        def step() -> None:
            costs[number] += 1

        def watched(connection: sqlite3.Connection) -> Any:
            connection.set_progress_handler(step, 10)
            try:
                return look(connection)
            finally:
                connection.set_progress_handler(None, 0)

        return await reading(watched)

    monkeypatch.setattr(journal, "reading", counted)
    past = RecordedEvents(journal, "a")
    for number in range(pages):
        after = number * page * 2
        told = [[(after + at - 1, Done()), (after + at, ConversationReplaced(0))] for at in range(4, page * 2 + 1, 4)]
        assert await past.events_after(after, page) == [one for pair in told for one in pair]
    assert 0 < max(costs) <= 2 * costs[0], costs


async def test_the_history_has_the_newest_run_only(journal: Journal) -> None:
    await tell(journal, "a", HI, TextDelta("x"), Done(), run=1)
    await tell(journal, "a", HELLO, TextDelta("y"), run=2)
    _, past = await journal.resume("a")
    assert (past.run, list(past.rows)) == (2, [HELLO, TextDelta("y")])
    assert list(past.changes) == [HI, HELLO]


@pytest.mark.parametrize(
    "session_id", ["", "a/b\\c:*?", "\0", "日本語 \u2028", "half \ud800", "'; DROP TABLE sessions", "x" * 10_000]
)
async def test_any_string_names_a_session(journal: Journal, session_id: str) -> None:
    await tell(journal, session_id, Done())
    assert [found.id for found in await journal.sessions()] == [session_id]
    assert await (await journal.record(session_id, create=False)).read(0, 9) == [(1, Done())]


async def test_the_list_has_title_time_and_size(journal: Journal) -> None:
    await tell(
        journal, "a", HI, SettingsChanged("lab", "lab-1", "", "off", "/w"), TextDelta("x"), HELLO, COST, cwd="/w"
    )
    await tell(journal, "b", cwd="/other")
    await journal.rename("b", "My\nplan " + "z" * 100)
    await journal.fork("a", "c", at=4)
    b, c, a = sorted(await journal.sessions(), key=lambda found: "bca".index(found.id))
    assert (a.cwd, a.title, a.messages, a.totals, a.parent) == ("/w", "Hi there", 2, COST.cumulative, None)
    assert (b.cwd, b.title, b.messages, b.totals.cost_usd) == ("/other", "My plan " + "z" * 71 + "…", 0, 0.0)
    assert (c.cwd, c.title, c.messages, c.totals.cost_usd, c.parent, c.fork_seq) == ("/w", "Hi there", 2, 0.0, "a", 4)
    assert a.created <= a.updated
    assert a.owner is None


async def test_the_newest_of_a_directory_is_found(journal: Journal) -> None:
    assert await journal.newest("/w", but="not:") is None
    for session_id, cwd in (("a", "/w"), ("b", "/w"), ("c", "/x"), ("d", "/half \udcff"), ("not:e", "/w")):
        await journal.record(session_id, cwd=cwd)
    newest = [await journal.newest(cwd, but="not:") for cwd in ("/w", "/x", "/half \udcff", "/nowhere")]
    assert [found and found.id for found in newest] == ["b", "c", "d", None]
    assert [found.id for found in await journal.sessions(cwd="/w")] == ["not:e", "b", "a"]


async def test_a_missing_session_is_reported(journal: Journal) -> None:
    await journal.record("a")
    with pytest.raises(UserError, match="'a' already"):
        await journal.writing(create, "a", cwd="", title="", now=timestamp())
    with pytest.raises(NoSuchSession, match="'b'"):
        await journal.record("b", create=False)
    with pytest.raises(NoSuchSession):
        await journal.rename("b", "x")
    with pytest.raises(NoSuchSession):
        await journal.delete("b")
    with pytest.raises(NoSuchSession):
        await journal.find("b")
    with pytest.raises(NoSuchSession):
        await journal.fork("b", "c", at=0)
    with pytest.raises(UserError, match="no row 1 to fork at"):
        await journal.fork("a", "c", at=1)


async def test_a_fork_has_the_rows_up_to_its_point_and_continues_independently(journal: Journal) -> None:
    rows: list[Row] = [HI, TextDelta("a"), TextDelta("b"), PICTURE, TextDelta("c"), Done()]
    await tell(journal, "a", *rows)
    for at in range(len(rows) + 1):
        await journal.fork("a", f"at {at}", at=at)
        fork = await journal.record(f"at {at}", create=False)
        assert await fork.read(0, 99) == list(enumerate(rows, 1))[:at]
        await fork.begin()
        assert fork.append([Done()], run=2) == at + 1
        await fork.settled()
        fork.end()
    assert await (await journal.record("a")).read(0, 99) == list(enumerate(rows, 1))
    await journal.delete("a")
    last = await (await journal.record("at 6")).read(0, 99)
    assert last == [*enumerate(rows, 1), (7, Done())]
    assert (await journal.reading(check_contents)).problems == ()


async def test_an_image_is_stored_once_and_removed_with_its_last_session(journal: Journal, tmp_path: Path) -> None:
    def blobs() -> int:
        with sqlite3.connect(tmp_path / "journal.db") as connection:
            count: int = connection.execute("SELECT COUNT(*) FROM blobs").fetchone()[0]
        connection.close()
        return count

    await tell(journal, "a", PICTURE, RESULT)
    await tell(journal, "b", RESULT)
    assert blobs() == 1
    await journal.delete("a")
    assert (blobs(), await (await journal.record("b")).read(0, 9)) == (1, [(1, RESULT)])
    await journal.delete("b")
    assert (blobs(), await journal.collect(), await journal.sessions()) == (0, 0, [])


async def test_collecting_frees_space(journal: Journal, tmp_path: Path) -> None:
    await tell(journal, "a", *[TextDelta("x" * 1000)] * 1000)
    await journal.delete("a")
    await journal.collect()
    assert (tmp_path / "journal.db").stat().st_size < 100_000


async def test_search_finds_messages_in_any_case(journal: Journal) -> None:
    await tell(
        journal, "a", HI, MessageAdded(Message("tool", (ResultBlock("c", False, (TextBlock("Ärger hier"),)),), NOON))
    )
    await tell(
        journal, "b", TextDelta("there"), MessageAdded(Message("assistant", (TextBlock("over THERE " * 50),), NOON))
    )
    hits = await journal.search("there")
    assert [(hit.session, hit.seq, hit.role) for hit in hits] == [("b", 2, "assistant"), ("a", 1, "user")]
    assert await journal.search("äRGER") == [Hit("a", 2, "tool", "Ärger hier")]
    assert (await journal.search("nowhere"), len(await journal.search("h", limit=1))) == ([], 1)


async def test_search_finds_the_shown_text_and_not_the_withheld(journal: Journal) -> None:
    held = Message("assistant", (TextBlock("a secret"),), NOON, shown_text="")
    redacted = Message("assistant", (TextBlock("one secret"),), NOON, shown_text="one [redacted]")
    await tell(journal, "a", MessageAdded(held), MessageAdded(redacted))
    assert await journal.search("secret") == []
    assert await journal.search("redacted") == [Hit("a", 2, "assistant", "one [redacted]")]


# Writing.


async def test_a_session_runs_in_one_place_and_the_owner_is_named(journal: Journal) -> None:
    one, other = await journal.record("a"), await journal.record("a")
    await one.begin()
    for again in (one, other):
        with pytest.raises(SessionBusy) as caught:
            await again.begin()
        assert (caught.value.pid, caught.value.host) == (os.getpid(), os.uname().nodename)
    with pytest.raises(SessionBusy, match=rf"'a' is running in process {os.getpid()}, since 20"):
        await journal.delete("a")
    one.end()
    assert (await other.begin()).rows == []
    other.end()


async def test_beginning_a_run_yields_rows_added_by_others(journal: Journal) -> None:
    one, other = await journal.record("a"), await journal.record("a")
    for run in (1, 3):
        for record, other_record, seq in ((one, other, run), (other, one, run + 1)):
            del other_record
            missed = (await record.begin()).rows
            assert list(missed) == ([(seq - 1, TextDelta(str(seq - 1)))] if seq > 1 else [])
            assert record.append([TextDelta(str(seq))], run=seq) == seq
            await record.settled()
            record.end()


async def test_closing_early_writes_pending_rows_first(journal: Journal) -> None:
    one, other = await journal.record("a"), await journal.record("a")
    await one.begin()
    one.append([Done()], run=1)
    one.end()
    # Queued after the append, and after the end.
    assert list((await other.begin()).rows) == [(1, Done())]
    other.end()


async def test_the_run_marker_is_removed_with_the_end_of_the_run_and_not_before(journal: Journal) -> None:
    async def marked() -> list[str]:
        return [one.id for one in await journal.sessions() if one.owner is not None]

    record = await journal.record("a")
    await record.begin()
    record.append([HI, Done()], run=1)  # What another process had left without an end.
    await record.settled()
    assert await marked() == ["a"]
    record.append([HELLO, Done()], run=2, ends=True)
    await record.settled()
    assert await marked() == []  # A process that dies now has left nothing to recover.
    record.end()
    await record.begin()
    assert await marked() == ["a"]
    record.append([Done()], run=3, ends=True)
    record.end()  # Before it is safe.
    await journal.writing(lambda connection: None)
    assert (await marked(), await record.is_free()) == ([], True)


async def test_no_row_is_accepted_before_the_begin_or_after_the_end(journal: Journal) -> None:
    record = await journal.record("a")
    with pytest.raises(StoreFailed, match="was not begun"):
        record.append([Done()], run=1)
    await record.begin()
    record.end()
    record.end()
    with pytest.raises(StoreFailed, match="was not begun"):
        record.append([Done()], run=1)


async def test_a_deleted_session_cannot_be_begun(journal: Journal) -> None:
    record = await tell(journal, "a", HI)
    await journal.delete("a")
    with pytest.raises(NoSuchSession):
        await record.begin()
    await tell(journal, "a", HELLO)
    with pytest.raises(NoSuchSession):
        await record.begin()


async def test_a_cancelled_begin_leaves_no_lease(journal: Journal) -> None:
    for _ in range(20):
        record = await journal.record("a")
        task = asyncio.ensure_future(record.begin())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # After it in the writer's queue.
        await journal.rename("a", "x")
        assert journal.leases.held == frozenset()


async def test_rows_of_one_tick_are_committed_together(journal: Journal) -> None:
    records = [await journal.record(str(number)) for number in range(20)]
    safe: list[int] = []
    for record in records:
        await record.begin()
        number = record.number
        record.watch(StoreWatch(lambda seq, number=number: safe.append(number)))  # type: ignore[misc]  # a default argument
    for _ in range(10):
        for record in records:
            record.append([TextDelta("x")] * 3, run=1)
    await asyncio.gather(*(record.settled() for record in records))
    assert sorted(safe) == sorted(record.number for record in records)
    assert [await record.read(0, 999) for record in records] == [[(seq, TextDelta("x")) for seq in range(1, 31)]] * 20


async def test_rows_of_one_tick_are_summed_up_by_session(journal: Journal) -> None:
    records = [await journal.record(f"s{number}", cwd="/here") for number in range(75)]
    for record in records:
        await record.begin()
    for number, record in enumerate(records):
        words = MessageAdded(Message("user", (TextBlock(f"words {number}"),), NOON))
        spent = Usage(1, 1, 1, 1, 0.0, Counters(number, 0, 0, 0, 0.0))
        moved = SettingsChanged("lab", "lab-1", "", "off", f"/there/{number}") if number % 2 else HELLO
        record.append([words, *[HELLO] * number, spent, moved], run=1, ends=number % 3 > 0)
    await asyncio.gather(*(record.settled() for record in records))
    known = {one.id: one for one in await journal.sessions()}
    for number, record in enumerate(records):
        one = known[f"s{number}"]
        assert (one.title, one.totals.input, one.messages) == (f"words {number}", number, 1 + number + (not number % 2))
        assert one.cwd == (f"/there/{number}" if number % 2 else "/here")
        assert (one.owner is None) == (number % 3 > 0)
        record.end()


async def test_a_full_record_has_room_again_when_the_disk_has_caught_up(journal: Journal) -> None:
    record = await journal.record("a")
    await record.begin()
    big = TextDelta("x" * (1 << 20))
    record.append([big] * 9, run=1)
    was_full = record.full
    async with asyncio.timeout(PATIENCE_S):
        await record.room()
    assert (was_full, record.full) == (True, False)
    assert len(await record.read(0, 99)) == 9


async def test_reading_continues_while_a_session_is_written(journal: Journal) -> None:
    record = await journal.record("a")
    reader = await journal.record("a")
    await record.begin()
    seen: list[tuple[int, Row]] = []
    for number in range(200):
        record.append([TextDelta(str(number))] * 2, run=1)
        seen += await reader.read(len(seen), 7)
    await record.settled()
    while more := await reader.read(len(seen), 7):
        seen += more
    assert seen == [(seq, TextDelta(str((seq - 1) // 2))) for seq in range(1, 401)]


async def test_a_wait_does_not_exceed_its_timeout(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path / "journal.db")
    other = await journal.record("a")
    record = Record(journal, await journal.find("a"), 0, patience_s=0.2)
    await record.begin()
    failures: list[StoreFailed] = []
    record.watch(StoreWatch(failed=failures.append))
    blocked = asyncio.Event()
    loop = asyncio.get_running_loop()
    release = threading.Event()

    def sleep(connection: sqlite3.Connection) -> None:
        loop.call_soon_threadsafe(blocked.set)
        release.wait(PATIENCE_S)

    sleeping = journal.writer.run(sleep)
    await blocked.wait()
    record.append([Done()], run=1)
    with pytest.raises(StoreFailed, match=r"has not been written for 0\.2 s"):
        await record.settled()
    with pytest.raises(StoreFailed, match=r"has not been written for 0\.2 s"):
        record.append([Done()], run=1)
    assert len(failures) == 1
    release.set()
    await asyncio.wrap_future(sleeping)
    record.end()
    # Rows on their way have arrived nevertheless; the next process sees them.
    assert list((await other.begin()).rows) == [(1, Done())]
    await journal.close()


# The file.


async def test_a_process_has_one_journal_for_a_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    one, other = await Journal.open(tmp_path / "journal.db"), await Journal.open(tmp_path / "link" / "journal.db")
    assert one is other
    await one.close()
    await tell(other, "a", HI)
    await other.close()
    with pytest.raises(StoreFailed, match="is closed"):
        await other.record("b")


async def test_a_journal_that_is_closed_has_written_everything(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path / "journal.db")
    record = await journal.record("a")
    await record.begin()
    record.append([TextDelta("x")] * 1000, run=1)
    await journal.close()
    journal = await Journal.open(tmp_path / "journal.db")
    assert (await journal.record("a")).last_seq == 1000
    await journal.close()


async def test_files_are_private_and_no_other_directory_is_touched(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "theirs" / "made" / "deep", tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    theirs.chmod(0o755)
    journal = await Journal.open(ours / "journal.db")
    await tell(journal, "a", HI)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (theirs, ours.parent, ours, *ours.iterdir())}
    assert modes == {
        "theirs": 0o755, "made": 0o700, "deep": 0o700, "journal.db": 0o600, "journal.db-wal": 0o600,
        "journal.db-shm": 0o600, "journal.db.lock": 0o600,
    }  # fmt: skip
    await journal.close()


async def test_a_file_of_a_later_version_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = await Journal.open(path)
    await journal.close()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE later (x)")
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreFailed, match=r"written by a later zot \(its version is 99, .*: update zot"):
        await Journal.open(path)
    assert path.read_bytes() == before


async def test_a_file_of_the_first_version_can_be_continued(tmp_path: Path) -> None:
    """Yesterday's file has no answers; everything else in it stays as it is."""
    path = tmp_path / "journal.db"
    journal = await Journal.open(path)
    record, _ = await journal.resume("s")
    await record.begin()
    record.append([Done()], run=1)
    await record.settled()
    record.end()
    await journal.close()
    with sqlite3.connect(path) as connection:
        connection.executescript("DROP TABLE answers; DROP TABLE losses; DROP TABLE clock; DROP TABLE closed")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    journal = await Journal.open(path)
    record, past = await journal.resume("s")
    assert list(past.rows) == [Done()]
    assert not await journal.is_closed("s")
    await record.begin()
    record.end()
    assert await journal.reading(check_contents) == CheckReport(1, 1, ())
    assert journal.notices == []
    await journal.close()


async def test_a_file_that_is_not_a_journal_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "directory").mkdir()
    for path in (tmp_path / "file" / "journal.db", tmp_path / "directory"):
        with pytest.raises(StoreFailed, match="cannot be"):
            await Journal.open(path)


async def test_a_thousand_open_sessions_need_no_descriptor_each(journal: Journal) -> None:
    records = [await journal.record("0")]
    await records[0].begin()
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    await journal.writing(_create_many)
    records += [await journal.record(str(number)) for number in range(1, 1000)]
    for record in records[1:100]:
        await record.begin()
    assert len(journal.leases.held) == 100
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before
    for record in records[:100]:
        record.append([Done()], run=1)
    await asyncio.gather(*(record.settled() for record in records))
    assert await journal.reading(check_contents) == CheckReport(1000, 100, ())


def _create_many(connection: sqlite3.Connection) -> None:
    query = "INSERT INTO sessions (id, created, updated, cwd, title) VALUES (?, '', '', x'', '')"
    connection.executemany(query, [(str(number).encode(),) for number in range(1, 1000)])


async def test_two_loops_share_a_journal(journal: Journal, tmp_path: Path) -> None:
    async def elsewhere() -> list[tuple[int, Row]]:
        own = await Journal.open(tmp_path / "journal.db")
        assert own is journal
        record = await tell(own, "b", *[TextDelta("b")] * 10)
        await own.close()
        return await record.read(0, 99)

    there = asyncio.to_thread(lambda: asyncio.run(elsewhere()))
    here, rows = await asyncio.gather(tell(journal, "a", *[TextDelta("a")] * 10), there)
    assert rows == [(seq, TextDelta("b")) for seq in range(1, 11)]
    assert await here.read(0, 99) == [(seq, TextDelta("a")) for seq in range(1, 11)]


# The epoch.


async def test_the_epoch_stays_as_long_as_nothing_that_was_sent_is_lost(tmp_path: Path) -> None:
    for run in range(1, 4):
        journal = await Journal.open(tmp_path / "journal.db")
        record = await tell(journal, "a", HI, run=run)
        assert (record.epoch, record.last_seq) == (1, run)
        await journal.close()


async def test_the_epoch_changes_if_the_journal_ends_before_the_last_number_sent(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = await Journal.open(path)
    await tell(journal, "a", HI)
    await journal.close()
    before = path.read_bytes()
    journal = await Journal.open(path)
    await tell(journal, "a", HELLO, Done(), run=2)
    await journal.close()
    path.write_bytes(before)
    journal = await Journal.open(path)
    record = await journal.record("a")
    assert (record.epoch, record.last_seq) == (2, 1)
    assert journal.notices == ["session 'a': rows 2 to 3 were lost"]
    assert (await tell(journal, "a", HELLO, run=2)).epoch == 2
    assert (await journal.record("a")).epoch == 2
    await journal.close()


async def test_no_two_sessions_of_one_name_have_the_same_epoch(journal: Journal) -> None:
    epochs = set()
    for _ in range(3):
        epochs.add((await journal.record("a")).epoch)
        await journal.delete("a")
    assert len(epochs) == 3
    assert min(b - a for a, b in pairwise(sorted(epochs))) > 1000  # However often power is lost.


async def test_the_epoch_changes_if_the_machine_went_down_in_a_run(journal: Journal) -> None:
    def boot_elsewhere(connection: sqlite3.Connection) -> None:
        (owner,) = connection.execute("SELECT owner FROM sessions").fetchone()
        changed = msgspec.json.encode({**msgspec.json.decode(owner), "boot": "another"})
        connection.execute("UPDATE sessions SET owner = ?", (changed,))

    record = await journal.record("a")
    await record.begin()
    await journal.writing(boot_elsewhere)
    journal.leases.release(record.number)
    assert (await journal.record("a")).epoch == 2
    assert (await journal.record("a")).epoch == 2


async def test_a_session_entry_nested_too_deeply_is_reported_as_damage(journal: Journal) -> None:
    def nest(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE sessions SET owner = ?", (b"[" * 10_000,))

    await tell(journal, "a", HI)
    await journal.writing(nest)
    with pytest.raises(JournalDamaged, match="the entry of a session cannot be read"):
        await journal.find("a")


# Costs for sessions that do not use it.


def test_the_database_is_loaded_only_with_the_journal() -> None:
    heavy = "'sqlite' in name or 'journal' in name"
    code = f"import sys, zot.runtime.open, zot.session.session; print([name for name in sys.modules if {heavy}])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert result.stdout == "[]\n"


def test_events_of_each_kind_round_trip_through_the_journal() -> None:
    from zot.journal.chunks import pack, unpack

    rows: list[Row] = [
        UserMessage((TextBlock("é\u2028\n"),), NOON), AssistantMessage((TextBlock(""),), NOON), COST,
        ToolResult("c", True, (TextBlock("x"),)), TurnEnd("error", "why"), TextDelta("\0"), Done(),
    ]  # fmt: skip
    (chunk,), blobs = pack(rows, session=1, first=1, run=1)
    assert (unpack(chunk), blobs) == (rows, {})
