"""What was spent, by session, day and model, remembered: only sessions that were used since are read again."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator

import msgspec

from zot.journal import queries, replay
from zot.journal.queries import SessionRecord
from zot.journal.search import Spent, spent
from zot.messages import ZERO
from zot.serve.daemon.costs import DAY, Span


class _Day(msgspec.Struct, frozen=True, gc=False):
    """The calls of one day and model, as one, and from when to when they were."""

    first: str
    last: str
    calls: Spent


class _Page(msgspec.Struct, frozen=True):
    """What a session has spent, as it was when ``seen`` was so."""

    seen: tuple[str, int, int]
    agent: str
    days: tuple[_Day, ...]


class Ledger:
    """Usable in any thread, with any connection to the same journal."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._pages: dict[int, _Page] = {}

    def calls(self, connection: sqlite3.Connection, span: Span, agent: str | None) -> Iterator[tuple[str, Spent]]:
        """Yield all model calls that may fall into a span, of one agent or of all, with their agents.

        Those of a whole day come as one. Raise JournalDamaged.
        """
        with self._guard:
            records = {record.number: record for record in queries.listed(connection) if record.totals != ZERO}
            self._pages = {number: page for number, page in self._pages.items() if number in records}
            for record in records.values():
                if record.updated < span.since:
                    continue
                page = self._page(connection, record)
                if agent not in (None, page.agent):
                    continue
                if any(span.divides(day.first, day.last) for day in page.days):
                    yield from ((page.agent, one) for one in spent(connection, record))
                else:
                    yield from ((page.agent, day.calls) for day in page.days)

    def _page(self, connection: sqlite3.Connection, record: SessionRecord) -> _Page:
        seen = record.updated, record.epoch, queries.last_seq(connection, record.number)
        page = self._pages.get(record.number)
        if page is None or page.seen != seen:
            days = _by_day(spent(connection, record))
            page = self._pages[record.number] = _Page(seen, replay.agent_of(connection, record), days)
        return page


def _by_day(calls: Iterable[Spent]) -> tuple[_Day, ...]:
    days: dict[tuple[str, str], list[Spent]] = {}
    for call in calls:
        days.setdefault((call.time[:DAY], call.model), []).append(call)
    return tuple(_as_one(some) for some in days.values())


def _as_one(calls: list[Spent]) -> _Day:
    times = [call.time for call in calls]
    whole = sum((call.counters for call in calls), ZERO)
    return _Day(min(times), max(times), Spent(times[0], calls[0].model, whole, len(calls)))
