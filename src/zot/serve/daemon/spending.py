"""Spending of all sessions: model calls in a period, added up by model, agent and day."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime

import msgspec

from zot.errors import UserError
from zot.journal import queries, replay
from zot.journal.connection import Connection
from zot.journal.queries import SessionRecord, Spent, spent
from zot.messages import ZERO, timestamp
from zot.wire import daemon_types

#: Prefix lengths of a timestamp that give the day and the month.
DAY, _MONTH = len("2026-01-31"), len("2026-01")


class Span:
    """Period of time, both ends included: each a time in RFC 3339, a whole day in UTC, or unbounded."""

    def __init__(self, since: str | None, until: str | None) -> None:
        """Raise UserError for anything else."""
        self.since = "" if since is None else _moment("from", since, "T00:00:00.000Z")
        self._until = "~" if until is None else _moment("to", until, "T23:59:59.999Z")

    def __contains__(self, time: str) -> bool:
        return self.since <= time <= self._until

    def divides(self, first: str, last: str) -> bool:
        """True if the period from ``first`` to ``last`` may lie only partly inside."""
        return first < self.since <= last or first <= self._until < last


def added_up(calls: Iterable[tuple[str, Spent]], span: Span, now: str) -> daemon_types.Costs:
    """Add up the agents' model calls within ``span``; ``now`` gives the current day and month."""
    whole, day, month = daemon_types.Spending(), daemon_types.Spending(), daemon_types.Spending()
    by_model: dict[str, daemon_types.Spending] = {}
    by_agent: dict[str, daemon_types.Spending] = {}
    by_day: dict[str, daemon_types.Spending] = {}
    for agent, call in calls:
        if call.time not in span:
            continue
        one = _spending(call)
        whole += one
        day += one if call.time[:DAY] == now[:DAY] else daemon_types.Spending()
        month += one if call.time[:_MONTH] == now[:_MONTH] else daemon_types.Spending()
        by_model[call.model] = by_model.get(call.model, daemon_types.Spending()) + one
        by_agent[agent] = by_agent.get(agent, daemon_types.Spending()) + one
        by_day[call.time[:DAY]] = by_day.get(call.time[:DAY], daemon_types.Spending()) + one
    return daemon_types.Costs(
        session_cost_usd=whole.cost_usd,
        daily_cost_usd=day.cost_usd,
        monthly_cost_usd=month.cost_usd,
        total_tokens=whole.total_tokens,
        request_count=whole.request_count,
        by_model=by_model,
        by_agent=by_agent,
        by_day=dict(sorted(by_day.items())),
    )


def _spending(call: Spent) -> daemon_types.Spending:
    used = call.counters
    return daemon_types.Spending(
        used.cost_usd, used.input + used.output + used.cache_read + used.cache_write, call.calls
    )


def _moment(name: str, text: str, rest_of_day: str) -> str:
    """Return a time in the journal's format. Raise UserError if ``text`` is neither a time nor a day."""
    try:
        moment = datetime.fromisoformat(text + rest_of_day if len(text) == DAY else text)
        return timestamp((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        raise UserError(f"{name}: {text[:40]!r} is not a time in RFC 3339 or a day such as 2026-01-31") from None


class _Day(msgspec.Struct, frozen=True, gc=False):
    """Sum of one model's calls on one day, with the times of the first and the last."""

    first: str
    last: str
    calls: Spent


class _Page(msgspec.Struct, frozen=True):
    """Spending of a session as of the state ``seen``."""

    seen: tuple[str, int, int]
    agent: str
    days: tuple[_Day, ...]


class SpendingCache:
    """Cache of every session's spending. Usable in any thread, with any connection to the same journal."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._pages: dict[int, _Page] = {}

    def calls(
        self, connection: Connection, span: Span, agent: str | None, only: Collection[str] | None = None
    ) -> Iterator[tuple[str, Spent]]:
        """Yield the model calls of one agent or of all that may lie in a span, with their agents.

        With ``only``, those of these sessions. Calls of a whole day are merged into one. Raise JournalDamaged.
        """
        with self._guard:
            records = {record.number: record for record in queries.listed(connection) if record.totals != ZERO}
            self._pages = {number: page for number, page in self._pages.items() if number in records}
            for record in records.values():
                if record.updated < span.since or (only is not None and record.id not in only):
                    continue
                page = self._page(connection, record)
                if agent not in (None, page.agent):
                    continue
                if any(span.divides(day.first, day.last) for day in page.days):
                    yield from ((page.agent, one) for one in spent(connection, record))
                else:
                    yield from ((page.agent, day.calls) for day in page.days)

    def _page(self, connection: Connection, record: SessionRecord) -> _Page:
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
    return tuple(_merged(some) for some in days.values())


def _merged(calls: list[Spent]) -> _Day:
    times = [call.time for call in calls]
    whole = sum((call.counters for call in calls), ZERO)
    return _Day(min(times), max(times), Spent(times[0], calls[0].model, whole, len(calls)))
