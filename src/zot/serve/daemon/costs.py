"""What was spent, added up: by day, by model and by agent. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from zot.errors import UserError
from zot.messages import timestamp
from zot.wire import daemon_server as said

if TYPE_CHECKING:
    from zot.journal.search import Spent

#: How much of a time says the day, and the month.
DAY, _MONTH = len("2026-01-31"), len("2026-01")


class Span:
    """From when until when, both included: each a time in RFC 3339, a day (all of it, in UTC), or not bounded."""

    def __init__(self, since: str | None, until: str | None) -> None:
        """Raise UserError for what is none of these."""
        self.since = "" if since is None else _moment("from", since, "T00:00:00.000Z")
        self._until = "~" if until is None else _moment("to", until, "T23:59:59.999Z")

    def __contains__(self, time: str) -> bool:
        return self.since <= time <= self._until

    def divides(self, first: str, last: str) -> bool:
        """True if only a part of what was from ``first`` to ``last`` may fall into it."""
        return first < self.since <= last or first <= self._until < last


def added_up(calls: Iterable[tuple[str, Spent]], span: Span, now: str) -> said.Costs:
    """Add up the model calls of agents that fall into ``span``; ``now`` says which day and which month it is."""
    whole, day, month = said.Spending(), said.Spending(), said.Spending()
    by_model: dict[str, said.Spending] = {}
    by_agent: dict[str, said.Spending] = {}
    for agent, call in calls:
        if call.time not in span:
            continue
        one = _spending(call)
        whole += one
        day += one if call.time[:DAY] == now[:DAY] else said.Spending()
        month += one if call.time[:_MONTH] == now[:_MONTH] else said.Spending()
        by_model[call.model] = by_model.get(call.model, said.Spending()) + one
        by_agent[agent] = by_agent.get(agent, said.Spending()) + one
    return said.Costs(
        session_cost_usd=whole.cost_usd,
        daily_cost_usd=day.cost_usd,
        monthly_cost_usd=month.cost_usd,
        total_tokens=whole.total_tokens,
        request_count=whole.request_count,
        by_model=by_model,
        by_agent=by_agent,
    )


def _spending(call: Spent) -> said.Spending:
    used = call.counters
    return said.Spending(used.cost_usd, used.input + used.output + used.cache_read + used.cache_write, call.calls)


def _moment(name: str, text: str, rest_of_day: str) -> str:
    """Return a time as the journal writes it. Raise UserError if ``text`` is neither a time nor a day."""
    from datetime import UTC, datetime  # Rare enough not to be paid for at every start.

    try:
        moment = datetime.fromisoformat(text + rest_of_day if len(text) == DAY else text)
        return timestamp((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        raise UserError(f"{name}: {text[:40]!r} is no time in RFC 3339, nor a day such as 2026-01-31") from None
