"""Spending: each model call counts once, on the day on which it was made."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from daemons import running
from zot.errors import UserError
from zot.journal.queries import SessionRecord, Spent, spent
from zot.messages import Counters, timestamp
from zot.serve.daemon import spending
from zot.serve.daemon.spending import Span, added_up
from zot.wire.daemon_types import Spending

TOKENS = 120
CALLS = [
    ("a", Spent("2026-01-31T23:59:59.999Z", "lab/one", Counters(1, 2, 3, 4, 1.0))),
    ("a", Spent("2026-02-01T00:00:00.000Z", "lab/two", Counters(10, 0, 0, 0, 2.0))),
    ("b", Spent("2026-02-02T12:00:00.000Z", "lab/two", Counters(0, 10, 0, 0, 4.0))),
]


def test_spending_is_reported_by_day_month_model_and_agent() -> None:
    costs = added_up(CALLS, Span(None, None), "2026-02-02T13:00:00.000Z")
    assert (costs.session_cost_usd, costs.monthly_cost_usd, costs.daily_cost_usd) == (7.0, 6.0, 4.0)
    assert (costs.total_tokens, costs.request_count) == (30, 3)
    assert costs.by_model == {"lab/one": Spending(1.0, 10, 1), "lab/two": Spending(6.0, 20, 2)}
    assert costs.by_agent == {"a": Spending(3.0, 20, 2), "b": Spending(4.0, 10, 1)}


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        ("2026-02-01", None, 2),
        (None, "2026-01-31", 1),
        ("2026-02-02", "2026-02-02", 1),
        ("2026-02-01T01:00:00+01:00", "2026-02-02T11:59:59Z", 1),
        ("2026-03-01", None, 0),
    ],
)
def test_only_calls_in_the_span_count(since: str | None, until: str | None, expected: int) -> None:
    assert added_up(CALLS, Span(since, until), "2026-02-02T13:00:00.000Z").request_count == expected


@pytest.mark.parametrize("wrong", ["x", "", "2026-02-30", "2026-02", "9" * 1000])
def test_an_invalid_time_is_refused(wrong: str) -> None:
    with pytest.raises(UserError, match=r"from: .* is not a time"):
        Span(wrong, None)
    with pytest.raises(UserError, match=r"to: .* is not a time"):
        Span(None, wrong)


async def test_each_model_call_counts_once_as_long_as_its_session_is_kept(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        await caller.get("session/new", agentAlias="default", sessionId="s")
        await caller.get("session/prompt", sessionId="s", prompt="!echo one")
        await caller.get("session/prompt", sessionId="s", prompt="!bash true")
        await caller.get("session/fork", sessionId="s", newSessionId="copy")
        await caller.get("session/prompt", sessionId="copy", prompt="!echo two")
        await caller.get("session/compact", sessionId="s")
        today = timestamp()[:10]
        costs = await caller.get("cost/query", **{"from": today, "to": today})
        assert (costs["requestCount"], costs["totalTokens"]) == (5, 5 * TOKENS)
        every = {"costUsd": 0.0, "totalTokens": 5 * TOKENS, "requestCount": 5}
        assert (costs["byModel"], costs["byAgent"]) == ({"lab/lab-1": every}, {"default": every})
        assert costs["byDay"] == {today: every}
        assert (await caller.get("cost/query", to="2026-01-01"))["requestCount"] == 0
        assert (await caller.get("cost/query", agent="none"))["requestCount"] == 0
        assert (await caller.error("cost/query", **{"from": "x"}))[0] == -32602
        old = await daemon.caller(protocol_version=1)
        assert (await old.get("cost/query"))["by_agent"]["default"]["request_count"] == 5
        await caller.get("session/delete", sessionId="s")
        assert (await caller.get("cost/query"))["requestCount"] == 1


async def test_a_remembered_day_is_split_at_the_boundary_of_the_span(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def count(connection: sqlite3.Connection, record: SessionRecord) -> list[Spent]:
        read.append(record.id)
        return spent(connection, record)

    monkeypatch.setattr(spending, "spent", count)
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        for name in ("s", "t"):
            await caller.get("session/new", agentAlias="default", sessionId=name)
            await caller.get("session/prompt", sessionId=name, prompt="!echo one")
        assert [(await caller.get("cost/query"))["requestCount"] for _ in "ab"] == [2, 2]
        assert sorted(read) == ["s", "t"]  # The second time, nothing was.
        between = timestamp(time.time() + 0.001)
        await caller.get("session/prompt", sessionId="s", prompt="!script wait 5ms ;; say two")
        read.clear()
        assert (await caller.get("cost/query"))["requestCount"] == 3
        assert read == ["s"]
        assert (await caller.get("cost/query", **{"from": between}))["requestCount"] == 1
        assert (await caller.get("cost/query", to=between))["requestCount"] == 2
        await caller.get("session/delete", sessionId="t")
        assert (await caller.get("cost/query"))["totalTokens"] == 2 * TOKENS
