"""What every store must do. A new one joins the list of makers and passes the same tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import ListStore
from zot.events import Done, TextDelta, TurnStart
from zot.messages import Message, TextBlock
from zot.store import MemoryStore, MessageRow, Row, Store

MESSAGE = Message("user", (TextBlock("hi"),), "2026-01-01T12:00:00.000Z")
ROWS: Sequence[Row] = (
    MessageRow(MESSAGE),
    TurnStart(1),
    TextDelta("a"),
    TextDelta("a"),
    MessageRow(None, replaces=1),
    MessageRow(MESSAGE, replaces=2),
    Done(),
)


@pytest.mark.parametrize("make", [lambda: MemoryStore(keep=None), ListStore], ids=["memory", "list"])
class TestStore:
    """The contract."""

    def test_a_new_store_is_empty(self, make: Callable[[], Store]) -> None:
        store = make()
        assert (store.last_seq, list(store.read())) == (0, [])

    def test_rows_come_back_as_they_were_in_order_and_numbered_from_one(self, make: Callable[[], Store]) -> None:
        store = make()
        assert store.append(ROWS) == 1
        assert list(store.read()) == list(enumerate(ROWS, 1))
        assert store.last_seq == len(ROWS)

    def test_each_append_says_the_number_of_its_first_row(self, make: Callable[[], Store]) -> None:
        store = make()
        assert [store.append(ROWS[:2]), store.append(ROWS[2:3]), store.append(ROWS[3:])] == [1, 3, 4]
        assert list(store.read()) == list(enumerate(ROWS, 1))

    def test_appending_nothing_changes_nothing(self, make: Callable[[], Store]) -> None:
        store = make()
        store.append(ROWS[:2])
        assert store.append([]) == 3
        assert (store.last_seq, len(list(store.read()))) == (2, 2)

    def test_reading_can_begin_anywhere(self, make: Callable[[], Store]) -> None:
        store = make()
        store.append(ROWS)
        for after in range(len(ROWS) + 3):
            assert list(store.read(after)) == list(enumerate(ROWS, 1))[after:]

    def test_equal_rows_are_different_rows(self, make: Callable[[], Store]) -> None:
        store = make()
        store.append([Done(), Done()])
        store.append([Done()])
        assert list(store.read()) == [(1, Done()), (2, Done()), (3, Done())]

    @given(sizes=st.lists(st.integers(0, 5), max_size=8))
    def test_numbers_increase_without_gaps_however_rows_arrive(
        self, make: Callable[[], Store], sizes: list[int]
    ) -> None:
        store = make()
        firsts = [
            store.append([TextDelta(f"{batch}.{row}") for row in range(size)]) for batch, size in enumerate(sizes)
        ]
        numbers = [seq for seq, _ in store.read()]
        assert numbers == list(range(1, sum(sizes) + 1))
        assert store.last_seq == sum(sizes)
        assert all(after - before == size for (before, after), size in zip(pairwise(firsts), sizes, strict=False))


@pytest.mark.parametrize("keep", [0, 1, 3, 100])
def test_memory_keeps_only_the_newest_rows_and_still_numbers_all(keep: int) -> None:
    store = MemoryStore(keep=keep)
    store.append(ROWS[:4])
    store.append(ROWS[4:])
    kept = list(enumerate(ROWS, 1))[max(0, len(ROWS) - keep) :]
    assert store.last_seq == len(ROWS)
    assert list(store.read()) == kept
    assert list(store.read(after=5)) == [(seq, row) for seq, row in kept if seq > 5]


def test_memory_keeps_nothing_unless_it_is_told_to() -> None:
    store = MemoryStore()
    assert store.append(ROWS) == 1
    assert (list(store.read()), store.last_seq) == ([], len(ROWS))
