"""The contract of every store. A new one joins the list of makers and passes the same tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import TypeAlias

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import ListStore
from store_watch import StoreWatch
from zot.events import Done, TextDelta, TurnStart
from zot.journal.journal import Journal
from zot.messages import ImageBlock, Message, ResultBlock, TextBlock
from zot.store import MemoryStore, MessageAdded, MessagesReplaced, Row, SettingsChanged, Store

MESSAGE = Message("user", (TextBlock("hi"),), "2026-01-01T12:00:00.000Z")
IMAGE = ImageBlock("image/png", b"\x89PNG" * 100)
PICTURE = Message("user", (TextBlock("look"), IMAGE), "2026-01-01T12:00:00.000Z")
PICTURES = Message("tool", (ResultBlock("c1", False, (IMAGE, TextBlock("two"), IMAGE)),), "2026-01-01T12:00:00.000Z")
ROWS: Sequence[Row] = (
    MessageAdded(MESSAGE),
    TurnStart(1),
    TextDelta("a"),
    TextDelta("a"),
    MessagesReplaced(0, 1, ()),
    MessagesReplaced(0, 0, (MESSAGE, PICTURE)),
    SettingsChanged("anthropic", "claude", "Be brief.", "low", "/work"),
    MessageAdded(PICTURES),
    Done(),
)
PATIENCE_S = 60


async def all_rows(store: Store, after: int = 0) -> list[tuple[int, Row]]:
    return await store.read(after, 1_000_000)


Make: TypeAlias = Callable[[], AbstractAsyncContextManager[Store]]


@asynccontextmanager
async def in_memory() -> AsyncIterator[Store]:
    yield MemoryStore(keep=None)


@asynccontextmanager
async def in_a_list() -> AsyncIterator[Store]:
    yield ListStore()


@asynccontextmanager
async def in_the_journal() -> AsyncIterator[Store]:
    with TemporaryDirectory() as directory:
        journal = await Journal.open(f"{directory}/journal.db")
        yield await journal.record("a session")
        await journal.close()


@pytest.mark.parametrize("make", [in_memory, in_a_list, in_the_journal], ids=["memory", "list", "journal"])
class TestStore:
    """The contract."""

    async def test_a_new_store_is_empty(self, make: Make) -> None:
        async with make() as store:
            assert (store.last_seq, await all_rows(store)) == (0, [])
            assert not (await store.begin()).rows

    async def test_rows_are_returned_unchanged_in_order_and_numbered_from_one(self, make: Make) -> None:
        async with make() as store:
            await store.begin()
            assert store.append(ROWS, run=1) == 1
            await store.settled()
            assert await all_rows(store) == list(enumerate(ROWS, 1))
            assert store.last_seq == len(ROWS)

    async def test_each_append_returns_the_number_of_its_first_row(self, make: Make) -> None:
        async with make() as store:
            await store.begin()
            firsts = [store.append(rows, run=1) for rows in (ROWS[:2], ROWS[2:3], ROWS[3:])]
            assert firsts == [1, 3, 4]
            await store.settled()
            assert await all_rows(store) == list(enumerate(ROWS, 1))

    async def test_appending_nothing_changes_nothing(self, make: Make) -> None:
        async with make() as store:
            await store.begin()
            store.append(ROWS[:2], run=1)
            assert store.append([], run=1) == 3
            await store.settled()
            assert (store.last_seq, len(await all_rows(store))) == (2, 2)

    async def test_reading_can_begin_and_stop_anywhere(self, make: Make) -> None:
        async with make() as store:
            await store.begin()
            store.append(ROWS[:4], run=1)
            store.append(ROWS[4:], run=2)
            await store.settled()
            for after in range(len(ROWS) + 3):
                for limit in range(len(ROWS) + 1):
                    assert await store.read(after, limit) == list(enumerate(ROWS, 1))[after : after + limit]

    async def test_equal_rows_are_different_rows(self, make: Make) -> None:
        async with make() as store:
            await store.begin()
            store.append([Done(), Done()], run=1)
            store.append([Done()], run=2)
            await store.settled()
            assert await all_rows(store) == [(1, Done()), (2, Done()), (3, Done())]

    async def test_a_watcher_is_notified_when_everything_is_committed(self, make: Make) -> None:
        async with make() as store:
            await store.begin()
            safe: list[int] = []
            store.watch(StoreWatch(safe.append, lambda problem: pytest.fail(str(problem))))
            store.append(ROWS[:3], run=1)
            store.append(ROWS[3:], run=1)
            async with asyncio.timeout(PATIENCE_S):
                await store.settled()
            assert safe[-1] == len(ROWS)
            assert safe == sorted(safe)

    async def test_an_empty_store_has_room_and_nothing_pending(self, make: Make) -> None:
        async with make() as store:
            assert not store.full
            async with asyncio.timeout(PATIENCE_S):
                await store.room()
                await store.settled()

    async def test_a_writer_that_was_alone_has_missed_nothing(self, make: Make) -> None:
        async with make() as store:
            for run in range(1, 4):
                assert not (await store.begin()).rows
                assert store.append([Done()], run=run) == run
                await store.settled()
                store.end()
            assert await all_rows(store) == [(1, Done()), (2, Done()), (3, Done())]

    @settings(max_examples=25)
    @given(sizes=st.lists(st.integers(0, 5), max_size=8))
    async def test_numbers_increase_without_gaps_however_rows_arrive(self, make: Make, sizes: list[int]) -> None:
        async with make() as store:
            await store.begin()
            firsts = [
                store.append([TextDelta(f"{batch}.{row}") for row in range(size)], run=batch)
                for batch, size in enumerate(sizes)
            ]
            await store.settled()
            numbers = [seq for seq, _ in await all_rows(store)]
            assert numbers == list(range(1, sum(sizes) + 1))
            assert store.last_seq == sum(sizes)
            assert all(after - before == size for (before, after), size in zip(pairwise(firsts), sizes, strict=False))


@pytest.mark.parametrize("keep", [0, 1, 3, 100])
async def test_memory_keeps_only_the_newest_rows_and_still_numbers_all(keep: int) -> None:
    store = MemoryStore(keep=keep)
    store.append(ROWS[:4], run=1)
    store.append(ROWS[4:], run=1)
    kept = list(enumerate(ROWS, 1))[max(0, len(ROWS) - keep) :]
    assert store.last_seq == len(ROWS)
    assert await all_rows(store) == kept
    assert await all_rows(store, after=5) == [(seq, row) for seq, row in kept if seq > 5]


async def test_memory_keeps_nothing_unless_asked_to() -> None:
    store = MemoryStore()
    assert store.append(ROWS, run=1) == 1
    assert (await all_rows(store), store.last_seq) == ([], len(ROWS))


def test_every_row_can_be_encoded_and_decoded() -> None:
    decoder: msgspec.json.Decoder[Row] = msgspec.json.Decoder(Row)
    assert [decoder.decode(msgspec.json.encode(row)) for row in ROWS] == list(ROWS)
