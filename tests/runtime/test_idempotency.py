"""Idempotent requests: which must run, which continues, and which is answered from the journal; with its own clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness import PATIENCE_S
from zot.agent.compaction import Summary, summary_of
from zot.errors import SessionBusy
from zot.events import AgentEvent, AssistantMessage, Done, Error, TurnEnd, TurnStart, Usage, UserMessage
from zot.journal.answers import Clock
from zot.journal.journal import Journal
from zot.journal.record import Record
from zot.messages import ZERO, Message, TextBlock
from zot.run_summary import RunSummary
from zot.runtime.idempotency import (
    IdempotentRequest,
    IdempotentRun,
    PromptPosition,
    StoredAnswer,
    answer_of,
    fingerprint,
)
from zot.store import MessageAdded

NOW = "2026-01-31T12:00:00.000Z"
HELLO = StoredAnswer("Hello", 3, 2)
ENCODED_HELLO = b'{"text":"Hello","prompt_tokens":3,"completion_tokens":2}'


class Machine:
    """A machine whose clocks a test sets: its uptime and its time of day."""

    def __init__(self) -> None:
        self.boot, self.up, self.wall = "first", 100.0, 1000.0

    def clock(self) -> Clock:
        return Clock(self.boot, lambda: self.up, lambda: self.wall)

    def wait(self, seconds: float) -> None:
        self.up += seconds
        self.wall += seconds


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    opened = await Journal.open(tmp_path / "journal.db")
    yield opened
    await opened.close()


class Bench:
    """A session, and requests to it."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.machine = Machine()
        self.came = 0.0

    async def once(
        self,
        key: str | None = "k",
        prompt: str = "hi",
        *,
        ttl_s: float = 60.0,
        polite_s: float = PATIENCE_S,
        again_s: float = PATIENCE_S,
    ) -> tuple[IdempotentRun, Record]:
        record, _ = await self.journal.resume("s")
        self.came += 1.0
        demand = IdempotentRequest("s", "r", prompt, "a", key, ttl_s, came=self.came, deadline=0.0)
        record.journal.clock = self.machine.clock()
        return IdempotentRun(record, demand, polite_s=polite_s, again_s=again_s), record

    async def run(self, *events: AgentEvent, key: str | None = "k", prompt: str = "hi") -> IdempotentRun:
        """Let a request run and emit these events; its answer is not stored."""
        once, record = await self.once(key, prompt)
        await record.begin(once.stored_answer)
        message = Message("user", (TextBlock(prompt),), NOW)
        rows = [MessageAdded(message), UserMessage((TextBlock(prompt),), NOW), *events]
        record.append(rows, run=record.last_run + 1)
        await record.settled()
        record.end()
        return once

    async def stands(self, key: str | None = "k", prompt: str = "hi") -> bool:
        """True if a request would continue the recorded run; it is then given up."""
        once, record = await self.once(key, prompt)
        await record.begin(once.stored_answer)
        record.end()
        return once.position is PromptPosition.LAST


@pytest.fixture
def bench(journal: Journal) -> Bench:
    return Bench(journal)


def said(text: str) -> list[AgentEvent]:
    usage = Usage(3, 2, 0, 0, 0.0, ZERO)
    return [TurnStart(1), usage, AssistantMessage((TextBlock(text),), NOW), TurnEnd("end_turn")]


async def test_a_delivered_answer_is_repeated_until_its_ttl(bench: Bench) -> None:
    once = await bench.run(*said("Hello"), Done())
    await once.keep(HELLO)
    await once.delivered()
    again, record = await bench.once()
    bench.machine.wait(59.9)
    assert await again.kept() == HELLO
    assert (await record.begin(again.stored_answer)).answer == ENCODED_HELLO
    bench.machine.wait(0.2)
    assert await again.kept() is None
    await record.begin(again.stored_answer)
    record.end()
    assert again.position is PromptPosition.NOWHERE


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
async def test_a_clock_change_neither_repeats_a_request_nor_extends_its_answer(bench: Bench, step_s: float) -> None:
    once = await bench.run(*said("Hello"), Done())
    await once.keep(HELLO)
    bench.machine.wall += step_s
    await once.delivered()
    again, record = await bench.once()
    bench.machine.wall -= 2 * step_s
    bench.machine.wait(59.9)
    assert await again.kept() == HELLO
    assert (await record.begin(again.stored_answer)).answer is not None
    bench.machine.wait(0.2)
    assert await again.kept() is None
    await record.begin(again.stored_answer)
    record.end()
    assert again.position is PromptPosition.NOWHERE


async def test_after_a_restart_with_the_clock_set_back_an_answer_is_repeated_until_its_ttl(bench: Bench) -> None:
    once = await bench.run(*said("Hello"), Done())
    await once.keep(HELLO)
    await once.delivered()
    bench.machine.boot, bench.machine.up, bench.machine.wall = "second", 1.0, -5000.0
    again, record = await bench.once()
    assert await again.kept() == HELLO
    assert (await record.begin(again.stored_answer)).answer is not None
    other, record = await bench.once("another key")  # the first to be written since the restart
    await record.begin(other.stored_answer)
    record.end()
    bench.machine.wait(59.0)
    assert await again.kept() == HELLO
    bench.machine.wait(1.1)
    assert await again.kept() is None
    # A clock that is right again counts for the time between two starts.
    await other.keep(HELLO)
    bench.machine.boot, bench.machine.up, bench.machine.wall = "third", 1.0, 5000.0
    late, _ = await bench.once("another key")
    assert await late.kept() is None


async def test_an_undelivered_answer_is_repeated_for_longer(bench: Bench) -> None:
    once = await bench.run(*said("Hello"), Done())
    await once.keep(HELLO)
    bench.machine.wait(599)
    again, _ = await bench.once()
    assert await again.kept() == HELLO
    await again.delivered()
    bench.machine.wait(59)
    assert await again.kept() == HELLO
    bench.machine.wait(2)
    assert await again.kept() is None


async def test_an_answer_counts_as_given_if_the_process_died_before_recording_it(bench: Bench) -> None:
    await bench.run(*said("Hello"), Done())
    once, record = await bench.once()
    assert (await record.begin(once.stored_answer)).answer == ENCODED_HELLO


async def test_an_answer_is_recorded_once(bench: Bench) -> None:
    once = await bench.run(*said("Hello"), Done())
    await once.keep(HELLO)
    bench.machine.wait(599)
    await once.keep(StoredAnswer("Another", 1, 1))
    assert await once.kept() == HELLO
    bench.machine.wait(2)
    assert await once.kept() is None


@pytest.mark.parametrize(
    "events",
    [[], [TurnStart(1)], said("Hello"), [*said("Hello"), Error("no"), Done()], [*said("  "), Done()],
     [TurnStart(1), TurnEnd("error", "no"), Error("no"), Done()], [TurnStart(1), TurnEnd("aborted"), Done()]],
)  # fmt: skip
async def test_an_unanswered_request_is_continued(bench: Bench, events: list[AgentEvent]) -> None:
    await bench.run(*events)
    assert await bench.stands() is True
    # The process that was about to continue died before its first event.
    assert await bench.stands() is True
    assert await bench.stands(prompt="another") is False


async def test_a_prompt_that_was_never_recorded_is_not_continued(bench: Bench) -> None:
    assert [await bench.stands(), await bench.stands()] == [False, False]


async def test_a_prompt_followed_by_other_prompts_is_not_repeated(bench: Bench) -> None:
    await bench.run(TurnStart(1))
    assert await bench.stands() is True  # it may have been the second run, but never began it
    await bench.run(TurnStart(1), key=None, prompt="other")
    once, record = await bench.once()
    await record.begin(once.stored_answer)
    record.end()
    assert once.position is PromptPosition.EARLIER
    said = [Message("user", (TextBlock(text),), NOW) for text in ("hi", "other")]
    words = once.text_after(said)
    assert words is not None
    assert words.startswith("Your answer to an earlier message of mine was interrupted.")
    assert once.text_after([summary_of(Summary("They said hi.", "They said hi."), NOW), said[1]]) == words
    assert once.text_after(said[1:]) == "hi"  # It was cleared away.


async def test_an_answer_followed_by_other_prompts_is_given(bench: Bench) -> None:
    await bench.run(*said("Hello"), Done())
    await bench.run(*said("Bye"), Done(), key=None, prompt="other")
    once, record = await bench.once()
    assert (await record.begin(once.stored_answer)).answer == ENCODED_HELLO


async def test_an_old_request_is_not_continued(bench: Bench) -> None:
    await bench.run(TurnStart(1))
    bench.machine.wait(600)
    patient, record = await bench.once(ttl_s=601)
    await record.begin(patient.stored_answer)
    record.end()
    assert patient.position is PromptPosition.LAST
    bench.machine.wait(600)
    assert await bench.stands() is False


async def test_a_session_that_is_in_use_is_busy_until_it_is_free(bench: Bench) -> None:
    first, holding = await bench.once()
    await holding.begin(first.stored_answer)
    waiting, record = await bench.once("k2")
    assert await record.is_free() is False
    with pytest.raises(SessionBusy):
        await record.begin(waiting.stored_answer)
    holding.end()
    assert await waiting.turn() is None
    assert await record.is_free() is True


async def test_the_first_request_in_line_runs_first(bench: Bench) -> None:
    first, holding = await bench.once()
    await holding.begin(first.stored_answer)
    requests = [await bench.once(f"k{n}") for n in range(5)]
    went: list[int] = []

    async def go(n: int) -> None:
        once, record = requests[n]
        await once.turn()
        await record.begin(once.stored_answer)
        went.append(n)
        record.end()

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for n in (2, 0, 4, 1):
            group.create_task(go(n))
        await asyncio.sleep(0)  # They have their places.
        holding.end()
    assert went == [0, 1, 2, 4]


async def test_a_free_session_is_reserved_for_the_first_in_line_for_a_while_only(bench: Bench) -> None:
    stopped, _ = await bench.once("stopped")
    assert await stopped.turn() is None
    hasty, patient = await bench.once("k1", polite_s=0.05), await bench.once("k2")
    behind = asyncio.create_task(patient[0].turn())
    began = time.monotonic()
    async with asyncio.timeout(PATIENCE_S):
        assert await hasty[0].turn() is None
    assert (time.monotonic() - began > 0.05, behind.done()) == (True, False)
    hasty[0].leave()
    stopped.leave()
    async with asyncio.timeout(PATIENCE_S):
        assert await behind is None


async def test_a_request_yields_to_earlier_ones_but_not_for_long(bench: Bench) -> None:
    first, second = await bench.once("k1"), await bench.once("k2")
    went: list[str] = []

    async def go(name: str, one: tuple[IdempotentRun, Record], *, behind: bool) -> None:
        assert await one[0].turn(gives_way=behind) is None
        await one[1].begin(one[0].stored_answer)
        went.append(name)
        one[1].end()

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(go("second", second, behind=True))
        assert await second[0].kept() is None  # It has looked, and there was no answer.
        group.create_task(go("first", first, behind=False))
    assert went == ["first", "second"]
    alone, _ = await bench.once("k3", again_s=0.05)
    began = time.monotonic()
    async with asyncio.timeout(PATIENCE_S):
        assert await alone.turn(gives_way=True) is None
    assert time.monotonic() - began >= 0.05


def test_equal_requests_have_equal_fingerprints() -> None:
    assert fingerprint("a", "b") == fingerprint("a", "b")
    assert len({fingerprint("a", "b"), fingerprint("ab", ""), fingerprint("a", "c"), fingerprint("\ud800", "b")}) == 4


def test_tokens_are_estimated_only_where_none_were_reported() -> None:
    outcome = RunSummary()
    outcome.take(said("Hello"))
    assert answer_of(outcome, "hi") == HELLO
    silent = RunSummary()
    silent.take([AssistantMessage((TextBlock("Hello, world"),), NOW), TurnEnd("end_turn")])
    assert answer_of(silent, "hi") == StoredAnswer("Hello, world", 1, 3)
