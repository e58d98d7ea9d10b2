"""A journal survives killed processes, full disks and changed bytes: rows reported safe are still there."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from types import NoneType

import pytest

from harness import PATIENCE_S
from journal_crash import CONTENDERS, CRASHES
from store_watch import StoreWatch
from zot.agent.transcript import Transcript, repaired
from zot.errors import JournalDamaged, StoreFailed, UserError
from zot.events import Done, TextDelta, ToolResult
from zot.journal import schema
from zot.journal.chunks import Chunk
from zot.journal.journal import Journal
from zot.journal.lease import mark_damaged
from zot.journal.queries import put
from zot.journal.repair import check_contents, check_file
from zot.messages import CallBlock, ImageBlock, Message, ResultBlock, TextBlock
from zot.session.recovery import Interrupted, inspect
from zot.store import Change, MessageAdded, MessagesReplaced, Row, SettingsChanged

NOON = "2026-01-01T12:00:00.000Z"


def suffer(what: str, path: Path) -> list[list[str]]:
    """Return the output of the processes, split into words."""
    program = str(Path(__file__).parents[1] / "journal_crash.py")
    result = subprocess.run(
        [sys.executable, program, what, str(path)], capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    return [line.split(" ", 1) for line in result.stdout.rstrip("\n").split("\n")]


async def test_committed_rows_survive_a_kill_at_every_append(tmp_path: Path) -> None:
    said = suffer("crash", tmp_path / "journal.db")
    assert {word for word, _ in said} == {"safe"}
    numbers = [int(seq) for _, seq in said]
    assert len(numbers) >= CRASHES
    journal = await Journal.open(tmp_path / "journal.db")
    record = await journal.record("a", create=False)
    rows = await record.read(0, 1_000_000)
    assert rows == [(seq, TextDelta(f"{seq}")) for seq in range(1, len(rows) + 1)]
    assert len(rows) >= max(numbers)
    # No number was given twice to rows that any subscriber has received.
    assert numbers == sorted(set(numbers))
    assert (record.epoch, (await journal.reading(check_contents)).problems) == (1, ())
    await journal.close()


async def test_twenty_processes_contend_for_a_session_and_one_runs(tmp_path: Path) -> None:
    said = suffer("contend", tmp_path / "journal.db")
    (runner,) = [pid for word, pid in said if word == "runs"]
    assert sorted(said) == sorted([["runs", runner], *[["busy", runner]] * (CONTENDERS - 1)])
    journal = await Journal.open(tmp_path / "journal.db")
    rows = [row for _, row in await (await journal.record("a")).read(0, 1000)]
    assert rows[0] == TextDelta("first")
    runs = [tuple(rows[at : at + 5]) for at in range(1, len(rows), 5)]
    writers = {row.delta.partition(".")[0] for row in rows[1:] if isinstance(row, TextDelta)}
    assert (len(rows), len(writers)) == (1 + 5 * CONTENDERS, CONTENDERS)
    assert {*runs} == {tuple(TextDelta(f"{pid}.{number}") for number in range(5)) for pid in writers}
    await journal.close()


async def test_a_full_disk_is_reported_loses_no_committed_row_and_can_be_recovered_from(tmp_path: Path) -> None:
    said = suffer("fill", tmp_path / "journal.db")
    words = [line[0] for line in said]
    assert words == ["failed", "told", "safe", "refused", "refused", "resumed", "problems"]
    facts = {line[0]: line[-1] for line in said}
    assert "then resume" in facts["failed"]
    assert facts["told"] == facts["failed"]
    assert facts["resumed"] == f"{facts['safe']} {facts['safe']}"
    assert facts["problems"] == "()"


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Path]:
    """A directory that another user can reach."""
    directory = Path(mkdtemp(prefix="zot-test-"))
    yield directory
    directory.chmod(0o700)
    shutil.rmtree(directory)


async def test_a_journal_that_may_not_be_written_says_so_and_can_be_looked_at(public: Path) -> None:
    journal = await Journal.open(public / "journal.db")
    record = await journal.record("a")
    await record.begin()
    record.append([Done()], run=1)
    await journal.close()
    for path in public.iterdir():
        path.chmod(0o444)
    public.chmod(0o555)
    (word, problem), *looked = suffer("read-only", public / "journal.db")
    assert word == "failed"
    assert f"{public}/journal.db" in problem
    assert "cannot be" in problem
    assert looked == [["seen", "False a 1"], ["checked", "()"]]


async def test_the_write_ahead_log_can_be_read_on_a_read_only_disk(public: Path, tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path / "journal.db")
    record = await journal.record("a")
    await record.begin()
    record.append([Done()], run=1)
    await record.settled()
    for name in ("journal.db", "journal.db-wal", "journal.db.lock"):  # As a killed process leaves them.
        shutil.copy(tmp_path / name, public / name)
    await journal.close()
    for path in public.iterdir():
        path.chmod(0o444)
    public.chmod(0o555)
    _, *looked = suffer("read-only", public / "journal.db")
    assert looked == [["seen", "False a 1"], ["checked", "()"]]
    assert {path.name for path in public.iterdir()} == {"journal.db", "journal.db-wal", "journal.db.lock"}


async def test_a_locked_file_is_an_error_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "BUSY_S", 0.1)
    journal = await Journal.open(tmp_path / "journal.db")
    record = await journal.record("a")
    await record.begin()
    failures: list[StoreFailed] = []
    record.watch(StoreWatch(failed=failures.append))
    other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    record.append([Done()], run=1)
    with pytest.raises(StoreFailed, match=r"kept .* locked for 0\.1 s: end it, then resume"):
        await record.settled()
    assert len(failures) == 1
    other.execute("ROLLBACK")
    other.close()
    with pytest.raises(StoreFailed, match="locked"):
        record.append([Done()], run=1)
    record.end()
    again, _ = await journal.resume("a")
    await again.begin()
    assert again.append([Done()], run=1) == 1
    await again.settled()
    await journal.close()


async def test_the_end_of_the_writer_ends_every_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(safe: Mapping[int, int]) -> None:
        raise ZeroDivisionError("a bug")

    journal = await Journal.open(tmp_path / "journal.db")
    record = await journal.record("a")
    await record.begin()
    monkeypatch.setattr(journal.leases, "mark", stumble)
    record.append([Done()], run=1)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(StoreFailed, match=r"cannot be written to \(a bug\): restart zot"):
            await record.settled()
        with pytest.raises(StoreFailed, match="cannot be written to"):
            await journal.record("b")
        with pytest.raises(StoreFailed, match="cannot be written to"):
            await (await journal.record("a")).begin()
        record.end()
        await journal.close()


async def test_a_callback_that_raises_costs_no_other_writer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def stumble(seq: int) -> None:
        raise ZeroDivisionError("a bug")

    journal = await Journal.open(tmp_path / "journal.db")
    records = [await journal.record(name) for name in ("a", "b")]
    heard: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    for record, safe in zip(records, (stumble, heard.set_result), strict=True):
        await record.begin()
        record.watch(StoreWatch(safe))
    is_queued = threading.Event()
    journal.writer.run(lambda _: is_queued.wait(PATIENCE_S))
    for record in records:
        record.append([Done()], run=1)
    is_queued.set()
    async with asyncio.timeout(PATIENCE_S):
        assert await heard == records[1].last_seq
    assert "a bug" in caplog.text
    for record in records:
        record.end()
    await journal.close()


@pytest.mark.parametrize("plain", [False, True])
async def test_a_task_that_loses_the_transaction_fails_every_task_in_it(tmp_path: Path, plain: bool) -> None:
    def spoil(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT OR ROLLBACK INTO said VALUES ('before')")  # As after an error of the disk.

    def say(what: str, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO said VALUES (?)", (what,))

    journal = await Journal.open(tmp_path / "journal.db")
    await asyncio.wrap_future(journal.writer.run(lambda it: it.execute("CREATE TABLE said (what PRIMARY KEY)")))
    is_queued = threading.Event()
    journal.writer.run(lambda _: is_queued.wait(PATIENCE_S))
    group = [
        journal.writer.run(partial(say, "before")),
        journal.writer.run(spoil, plain=plain),
        journal.writer.run(partial(say, "after"), plain=True),
    ]
    is_queued.set()
    async with asyncio.timeout(PATIENCE_S):
        told = await asyncio.gather(*map(asyncio.wrap_future, group), return_exceptions=True)
    assert [type(one) for one in told] == [StoreFailed] * 3
    with closing(sqlite3.connect(journal.path)) as connection:
        assert connection.execute("SELECT what FROM said").fetchall() == []
    await journal.close()


@pytest.mark.parametrize("alone", [True, False])
async def test_a_task_that_fails_is_rolled_back_and_costs_no_other_task(tmp_path: Path, alone: bool) -> None:
    def say(what: str, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO said VALUES (?)", (what,))
        if what == "refused":
            raise UserError("not that")

    journal = await Journal.open(tmp_path / "journal.db")
    await asyncio.wrap_future(journal.writer.run(lambda it: it.execute("CREATE TABLE said (what PRIMARY KEY)")))
    is_queued = threading.Event()
    journal.writer.run(lambda _: is_queued.wait(PATIENCE_S))
    # Only tasks that are not bare are done in one transaction with others.
    journal.writer.run(lambda _: None, bare=alone)
    group = [journal.writer.run(partial(say, "refused"))]
    journal.writer.run(lambda _: None, bare=alone)
    group += [journal.writer.run(partial(say, what)) for what in ("first", "second")]
    is_queued.set()
    async with asyncio.timeout(PATIENCE_S):
        told = await asyncio.gather(*map(asyncio.wrap_future, group), return_exceptions=True)
    assert [type(one) for one in told] == [UserError, NoneType, NoneType]
    with closing(sqlite3.connect(journal.path)) as connection:
        assert connection.execute("SELECT what FROM said ORDER BY what").fetchall() == [("first",), ("second",)]
    await journal.close()


# Damage.

MESSAGES = (
    Message("user", (TextBlock("look " * 30), ImageBlock("image/png", b"\x89PNG" * 700)), NOON),
    Message("assistant", (TextBlock("I see"), CallBlock("c1", "bash", {"command": "ls"})), NOON),
    Message("tool", (ResultBlock("c1", False, (TextBlock("a.txt\n" * 50),)),), NOON),
    Message("assistant", (TextBlock("done " * 60),), NOON),
)
SESSIONS = ("one", "two", "three")
DAMAGES = 100


async def fill(path: Path) -> dict[str, list[tuple[int, Row]]]:
    """Make a journal of a few sessions; return their rows."""
    journal = await Journal.open(path)
    records = [await journal.record(session_id) for session_id in SESSIONS]
    for record in records:
        await record.begin()
    for run in range(1, 7):
        for record in records:
            for message in MESSAGES:
                record.append([MessageAdded(message), *[TextDelta(f"{record.id} {run} " * 3)] * 7], run=run)
                await record.settled()
            record.append([ToolResult("c1", False, ()), MessagesReplaced(1, 3, MESSAGES[:1]), Done()], run=run)
            await record.settled()
    everything = {record.id: await record.read(0, 1_000_000) for record in records}
    await journal.close()
    return everything


def damage(path: Path, dice: random.Random) -> str:
    """Do something to the file."""
    data = bytearray(path.read_bytes())
    at = dice.randrange(len(data))
    match dice.randrange(5):
        case 0:
            del data[at:]
            what = f"cut at {at}"
        case 1:
            data[at] ^= 1 << dice.randrange(8)
            what = f"a bit at {at}"
        case 2:
            length = dice.randrange(1, 3 * 4096)
            data[at : at + length] = bytes(min(length, len(data) - at))
            what = f"zeros at {at}"
        case 3:
            page = at // 4096 * 4096
            data[page : page + 4096] = dice.randbytes(4096)
            what = f"noise in page {page // 4096 + 1}"
        case _:
            for _ in range(20):
                data[dice.randrange(len(data))] = dice.randrange(256)
            what = "twenty bytes"
    path.write_bytes(data)
    return what


async def readable(journal: Journal, session_id: str) -> list[tuple[int, Row]]:
    """Return the rows of a session, if need be after a repair."""
    try:
        return await (await journal.record(session_id)).read(0, 1_000_000)
    except JournalDamaged as problem:
        await journal.salvage(problem)
        return await (await journal.record(session_id)).read(0, 1_000_000)


async def check_damaged(path: Path, everything: dict[str, list[tuple[int, Row]]], what: str) -> int:
    """Open a damaged journal and look at all of it; return how many rows were lost."""
    journal = await Journal.open(path)
    lost = 0
    for session_id, before in everything.items():
        after = await readable(journal, session_id)
        gone = {seq for seq, _ in before} - {seq for seq, _ in after}
        lost += len(gone)
        originals = dict(before)
        strangers = [(seq, row) for seq, row in after if row != originals.get(seq) and not is_note(row)]
        assert strangers == [], what
        if gone and not journal.notices:
            # A page with a false count; readers of the other rows cannot notice that.
            assert any(
                "missing" in problem or "the file" in problem
                for problem in (await journal.reading(check_contents)).problems
            ), what
        record, past = await journal.resume(session_id)
        transcript = Transcript()
        for change in past.changes:
            assert isinstance(change, MessageAdded | MessagesReplaced | SettingsChanged)
            transcript.apply(change)
        found = inspect(transcript, past.rows, now=lambda: NOON)
        ending = found.ending if isinstance(found, Interrupted) else []
        if session_id == SESSIONS[0]:
            try:
                await record.begin()
            except JournalDamaged:
                # A place that is written, not read. It is remembered: the next process repairs it.
                await journal.close()
                journal = await Journal.open(path)
                record, _ = await journal.resume(session_id)
                await record.begin()
            record.append([*ending, Done()], run=past.run + 1)
            await record.settled()
            record.end()
        apply(transcript, ending)
        assert repaired(transcript.messages) == list(transcript.messages), what
    report = await journal.reading(check_contents)
    if any("the file" in problem for problem in report.problems):
        # A place that was not read so far; now it was.
        await journal.salvage(JournalDamaged(report.problems[0]))
        report = await journal.reading(check_contents)
    assert [problem for problem in report.problems if "the file" in problem or "cannot be read" in problem] == [], what
    await journal.close()
    return lost


def apply(transcript: Transcript, rows: object) -> None:
    assert isinstance(rows, list)
    for row in rows:
        if isinstance(row, MessageAdded | MessagesReplaced | SettingsChanged):
            change: Change = row
            transcript.apply(change)


def is_note(row: Row) -> bool:
    """True for the placeholder of a message whose image was lost."""
    return isinstance(row, MessageAdded | MessagesReplaced) and "its data was lost" in repr(row)


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if there is one: a hundred files are made safe on their way through it."""
    memory = Path("/dev/shm")
    directory = Path(mkdtemp(prefix="zot-test-", dir=memory)) if os.access(memory, os.W_OK) else tmp_path
    yield directory
    shutil.rmtree(directory)


async def test_a_damaged_file_loses_only_the_damaged_part_and_is_reported(quick: Path) -> None:
    tmp_path = quick
    everything = await fill(tmp_path / "journal.db")
    total = sum(map(len, everything.values()))
    losses: list[int] = []
    for seed in range(DAMAGES):
        directory = tmp_path / str(seed)
        directory.mkdir()
        for name in ("journal.db", "journal.db.lock"):
            shutil.copy(tmp_path / name, directory / name)
        what = f"{seed}: {damage(directory / 'journal.db', random.Random(seed))}"
        losses.append(await check_damaged(directory / "journal.db", everything, what))
        shutil.rmtree(directory)
    assert any(losses)
    # Half of the damage costs next to nothing.
    assert sorted(losses)[len(losses) // 2] < total / 10


async def test_a_damaged_write_ahead_log_loses_the_end_and_is_reported(quick: Path) -> None:
    tmp_path = quick
    journal = await Journal.open(tmp_path / "journal.db")
    record = await journal.record("one")
    await record.begin()
    for number in range(60):
        record.append([MessageAdded(MESSAGES[0]), TextDelta(str(number)), Done()], run=number)
        await record.settled()
    everything = {"one": await record.read(0, 1000)}
    for seed in range(20):
        directory = tmp_path / str(seed)
        directory.mkdir()
        for name in ("journal.db", "journal.db-wal", "journal.db.lock"):
            shutil.copy(tmp_path / name, directory / name)
        what = f"{seed}: {damage(directory / 'journal.db-wal', random.Random(seed))}"
        await check_damaged(directory / "journal.db", everything, what)
    record.end()
    await journal.close()


async def test_the_damaged_file_is_kept_and_its_name_reported(tmp_path: Path) -> None:
    everything = await fill(tmp_path / "journal.db")
    journal = await Journal.open(tmp_path / "journal.db")
    await journal.mark_closed(SESSIONS[0], closed=True)
    await journal.close()
    data = bytearray((tmp_path / "journal.db").read_bytes())
    data[:4096] = bytes(4096)
    (tmp_path / "journal.db").write_bytes(data)
    journal = await Journal.open(tmp_path / "journal.db")
    (aside,) = tmp_path.glob("journal.db.damaged-*")
    assert journal.notices == [
        f"{tmp_path}/journal.db was damaged; what could be read is in a new file, the old one is {aside}"
    ]
    assert aside.read_bytes() == data
    assert aside.stat().st_mode & 0o777 == 0o600
    # Only the first page was gone, and that says the same in every journal.
    assert {name: await readable(journal, name) for name in SESSIONS} == everything
    assert [await journal.is_closed(name) for name in SESSIONS] == [True, False, False]
    assert [session.epoch % (1 << 20) for session in await journal.sessions()] == [2, 2, 2]  # Each has as many.
    await journal.close()
    assert {path.name for path in tmp_path.iterdir()} == {"journal.db", "journal.db.lock", aside.name}


async def test_a_loss_is_a_problem_until_repaired_and_history_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    await fill(path)
    with sqlite3.connect(path) as connection:
        number, first, count = connection.execute("SELECT session, first, count FROM chunks WHERE first > 3").fetchone()
        connection.execute("DELETE FROM chunks WHERE (session, first) = (?, ?)", (number, first))
    connection.close()
    hole, saved = f"rows {first} to {first + count - 1} are missing", []
    assert [hole in problem for problem in check_file(str(path)).problems] == [True]
    for _ in range(2):
        journal = await Journal.open(path)
        await journal.salvage(JournalDamaged("a page is damaged"))
        saved.append([notice for notice in journal.notices if "rows were lost" in notice])
        report = await journal.reading(check_contents)
        await journal.close()
        assert report.problems == ()
        (told,) = report.repaired
        assert re.search(rf"{hole} since the repair of \d{{4}}-", told)
    assert (len(saved[0]), saved[1], check_file(str(path))) == (1, [], report)


@pytest.mark.parametrize("bit", [0, 1, 2, 6, 31])
async def test_a_flipped_bit_of_the_version_is_damage_and_not_a_later_version(tmp_path: Path, bit: int) -> None:
    everything = await fill(tmp_path / "journal.db")
    data = bytearray((tmp_path / "journal.db").read_bytes())
    data[63 - bit // 8] ^= 1 << bit % 8  # where the header has it, the lowest byte last
    (tmp_path / "journal.db").write_bytes(data)
    journal = await Journal.open(tmp_path / "journal.db")
    assert len(journal.notices) == 1
    assert {name: await readable(journal, name) for name in SESSIONS} == everything
    await journal.close()


async def test_a_process_that_dies_replacing_a_file_leaves_the_rest_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    everything = await fill(path)
    shutil.copy(path, f"{path}.salvaged")
    path.write_bytes(b"\xff" * 8192)
    os.link(path, f"{path}.damaged-1")
    Path(f"{path}-wal").write_bytes(b"what was written ahead")
    journal = await Journal.open(path)
    assert (journal.notices, {name: await readable(journal, name) for name in SESSIONS}) == ([], everything)
    await journal.close()
    left = {"journal.db", "journal.db.lock", "journal.db.damaged-1", "journal.db.damaged-1-wal"}
    assert {file.name for file in tmp_path.iterdir()} == left


async def test_rows_of_another_version_are_not_damage(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path / "journal.db")
    record = await journal.record("one")
    await journal.writing(put, Chunk(record.number, 0, 1, 1, 1, b'{"type":"sung"}\n'))
    with pytest.raises(StoreFailed, match="row 1 cannot be understood, another zot wrote them") as caught:
        await journal.resume("one")
    assert not isinstance(caught.value, JournalDamaged)
    report = await journal.reading(check_contents)
    assert (report.problems, report.damaged, report.rows) == ((), False, 1)
    assert [told.startswith("session 'one': row 1 cannot be understood") for told in report.unknown] == [True]
    assert journal.notices == []
    await journal.close()


async def test_a_duplicate_row_is_repaired_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    await fill(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        number, kind, first = connection.execute("SELECT session, kind, first FROM chunks WHERE first > 3").fetchone()
        put(connection, Chunk(number, 1 - kind, first, 1, 1, b'{"type":"done"}\n'))
    for copies in (1, 1):
        if check_file(str(path)).damaged:
            mark_damaged(str(path))
        await (await Journal.open(path)).close()
        assert len([*tmp_path.glob("journal.db.damaged-*")]) == copies
    assert check_file(str(path)).problems == ()


async def test_damage_met_only_by_writing_is_repaired_on_the_next_open(tmp_path: Path) -> None:
    everything = await fill(tmp_path / "journal.db")
    with closing(sqlite3.connect(tmp_path / "journal.db")) as connection:
        query = "SELECT rootpage FROM sqlite_schema WHERE name = 'sessions_by_cwd'"
        ((page,),) = connection.execute(query).fetchall()
    data = bytearray((tmp_path / "journal.db").read_bytes())
    data[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    (tmp_path / "journal.db").write_bytes(data)
    journal = await Journal.open(tmp_path / "journal.db")
    record, _ = await journal.resume("one")
    with pytest.raises(JournalDamaged):
        await record.begin()
    assert (journal.notices, journal.leases.held) == ([], frozenset())
    await journal.close()
    journal = await Journal.open(tmp_path / "journal.db")
    assert len(journal.notices) == 1
    assert {name: await readable(journal, name) for name in SESSIONS} == everything
    record, _ = await journal.resume("one")
    await record.begin()
    await journal.close()


async def test_a_file_in_use_is_not_replaced(tmp_path: Path) -> None:
    await fill(tmp_path / "journal.db")
    journal = await Journal.open(tmp_path / "journal.db")
    record = await journal.record("one")
    await record.begin()
    with pytest.raises(StoreFailed, match="other sessions are running here"):
        await journal.salvage(JournalDamaged("a page is damaged"))
    record.end()
    await journal.salvage(JournalDamaged("a page is damaged"))
    # Processes that had it open continue with the new file.
    await record.begin()
    record.append([Done()], run=99)
    await record.settled()
    await journal.close()
