"""Sessions in PostgreSQL: leases that expire, fences that hold, and a server that comes back."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from harness import PATIENCE_S
from store_watch import StoreWatch
from zot.errors import ConfigError, LeaseLost, StoreFailed
from zot.events import Done, TextDelta
from zot.journal.connection import Connection
from zot.journal.opening import open_journal
from zot.journal.postgres.connection import parsed
from zot.journal.postgres.journal import PostgresJournal
from zot.journal.postgres.leases import end_frozen
from zot.messages import Message, TextBlock
from zot.store import MessageAdded

HI = MessageAdded(Message("user", (TextBlock("Hi there"),), "2026-01-01T12:00:00.000Z"))
HELLO = MessageAdded(Message("assistant", (TextBlock("Hello"),), "2026-01-01T12:00:00.000Z"))
_OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.fixture
async def journals(database: str) -> AsyncIterator[tuple[PostgresJournal, PostgresJournal]]:
    """The same sessions, opened by two processes."""
    address = parsed(f"{database}&lease_s=1")
    both = [await asyncio.to_thread(PostgresJournal, address) for _ in range(2)]
    yield both[0], both[1]
    for one in both:
        await one.close()


async def ask(database: str, query: str) -> list[tuple[object, ...]]:
    """Ask the server."""
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        return await (await connection.execute(query)).fetchall()


async def tell(database: str, statement: str) -> None:
    """Have the server do something."""
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        await connection.execute(statement)


async def test_a_worker_that_slept_through_its_lease_writes_nothing(
    journals: tuple[PostgresJournal, PostgresJournal], database: str
) -> None:
    mine, theirs = [await journal.record("a") for journal in journals]
    await mine.begin()
    assert mine.append([HI], run=1) == 1
    await mine.settled()
    journals[0].leases.drop(mine)  # As if its thread were stopped.
    await tell(database, "UPDATE leases SET until = now() - interval '1 hour'")
    acquired = await theirs.begin()
    assert [row for _, row in acquired.rows] == [HI]
    failures: list[StoreFailed] = []
    mine.watch(StoreWatch(lambda seq: pytest.fail(f"row {seq} was reported safe"), failures.append))
    mine.append([TextDelta("late")], run=1)
    with pytest.raises(LeaseLost, match="taken over by another worker"):
        await mine.settled()
    assert [type(one) for one in failures] == [LeaseLost]
    assert mine.is_broken
    theirs.append([HELLO, Done()], run=2, ends=True)
    await theirs.settled()
    mine.end()
    theirs.end()
    assert await theirs.read(0, 9) == [(1, HI), (2, HELLO), (3, Done())]
    assert await journals[1].left_behind() == []


async def test_a_worker_learns_from_its_renewal_that_it_was_replaced(
    journals: tuple[PostgresJournal, PostgresJournal], database: str
) -> None:
    mine, theirs = [await journal.record("a") for journal in journals]
    lost = asyncio.get_running_loop().create_future()
    mine.watch(StoreWatch(failed=lost.set_result))
    await mine.begin()
    # In one step: a renewal between the two would give the lease back.
    await tell(database, "UPDATE leases SET fence = fence + 1, until = now() - interval '1 hour'")
    await theirs.begin()
    assert isinstance(await asyncio.wait_for(lost, PATIENCE_S), LeaseLost)
    theirs.end()


async def test_a_run_ends_with_its_lease_when_the_server_is_gone(
    journals: tuple[PostgresJournal, PostgresJournal], database: str
) -> None:
    record = await journals[0].record("a")
    lost = asyncio.get_running_loop().create_future()
    record.watch(StoreWatch(failed=lost.set_result))
    await record.begin()
    name = parsed(database).shown.rpartition("/")[2]
    elsewhere = database.replace(f"/{name}?", "/postgres?")
    await tell(elsewhere, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    try:
        others = f"FROM pg_stat_activity WHERE datname = '{name}'"
        await ask(elsewhere, f"SELECT pg_terminate_backend(pid) {others}")
        began = asyncio.get_running_loop().time()
        assert isinstance(await asyncio.wait_for(lost, PATIENCE_S), LeaseLost)
        assert asyncio.get_running_loop().time() - began < 5.0
        with pytest.raises(LeaseLost):
            record.append([HI], run=1)
    finally:
        await tell(elsewhere, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    record.end()
    assert await record.read(0, 9) == []


async def test_dropped_connections_lose_no_row_and_repeat_none(
    journals: tuple[PostgresJournal, PostgresJournal], database: str
) -> None:
    record = await journals[0].record("a")
    await record.begin()
    deltas = [TextDelta(str(number)) for number in range(120)]
    async with asyncio.timeout(2 * PATIENCE_S):
        for at, delta in enumerate(deltas):
            record.append([delta], run=1)
            if at % 20 == 10:
                await ask(database, f"SELECT pg_terminate_backend(pid) {_OTHERS}")
            await record.settled()
    record.append([Done()], run=1, ends=True)
    await record.settled()
    record.end()
    assert await record.read(0, 999) == [*enumerate([*deltas, Done()], 1)]


async def test_a_worker_that_freezes_in_a_transaction_does_not_hold_up_others(
    journals: tuple[PostgresJournal, PostgresJournal],
) -> None:
    mine, theirs = [await journal.record("a") for journal in journals]
    await mine.begin()
    frozen, thawed = threading.Event(), threading.Event()

    def freeze(connection: Connection) -> str:
        connection.execute("SELECT 1 FROM sessions WHERE number = ? FOR UPDATE", (mine.number,))
        if not frozen.is_set():
            frozen.set()
            thawed.wait(PATIENCE_S)
        return str(connection.execute("SELECT 'tried again'").fetchone()[0])

    stuck = asyncio.create_task(journals[0].writing(freeze))
    await asyncio.to_thread(frozen.wait, PATIENCE_S)
    journals[0].leases.drop(mine)
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        while not await theirs.is_free():
            await asyncio.sleep(0.05)
        beginning = asyncio.create_task(theirs.begin())
        while not beginning.done():
            await journals[1].reading(end_frozen, 0.5)
            await asyncio.wait({beginning}, timeout=0.1)
        await beginning
    assert not stuck.done()
    theirs.end()
    thawed.set()
    assert await stuck == "tried again"


async def test_two_machines_may_create_the_tables_and_a_session_at_once(database: str) -> None:
    both = await asyncio.gather(*(asyncio.to_thread(PostgresJournal, parsed(database)) for _ in range(2)))
    records = await asyncio.gather(*(journal.record("a") for journal in both))
    assert len({record.number for record in records}) == 1
    for journal in both:
        await journal.close()


async def test_the_tables_of_a_later_zot_are_left_alone(database: str) -> None:
    await (await open_journal(database)).close()
    await tell(database, "UPDATE zot_schema SET version = version + 1")
    with pytest.raises(StoreFailed, match="was written by a later zot"):
        await open_journal(database)


async def test_a_role_with_the_documented_grants_is_enough(database: str) -> None:
    await (await open_journal(database)).close()
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "fleet.md").read_text()
    role = f"zot_run_{database.partition('?')[0][-8:]}"
    [grants] = re.findall(r"```sql\n(CREATE ROLE zot_run .*?)```", page, re.DOTALL)
    await tell(database, grants.replace("zot_run", role))
    journal = await open_journal(database.replace("//zot@", f"//{role}@"))
    record = await journal.record("a")
    await record.begin()
    record.append([HI, Done()], run=1, ends=True)
    await record.settled()
    record.end()
    assert [hit.session for hit in await journal.search("hi")] == ["a"]
    await journal.delete("a")
    await journal.close()
    await tell(database, f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_an_open_journal_is_shared(database: str) -> None:
    first, second = await open_journal(database), await open_journal(database)
    assert first is second
    await first.close()
    assert await second.sessions() == []
    await second.close()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("postgresql://me:secret@127.0.0.1:1/sessions", "cannot be reached"),
        ("postgresql://me:secret@127.0.0.1:1/sessions?lease_s=0.1", "lease_s must be from 0.5 to 3600 seconds"),
        ("postgresql://me:secret@127.0.0.1:1/sessions?colour=red", "cannot be understood"),
    ],
)
async def test_an_error_tells_no_password(address: str, said: str) -> None:
    with pytest.raises((StoreFailed, ConfigError), match=said) as caught:
        await open_journal(address)
    assert "secret" not in str(caught.value)
    assert "me" not in parsed("postgresql://me:secret@host:1/sessions").shown
