"""Once: which request must run, which goes on, and which is answered from the record; by a clock of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from zot.answers import Answer, Once, answer_of, fingerprint
from zot.errors import AlreadyAnswered, SessionBusy
from zot.events import AgentEvent, AssistantMessage, Done, Error, TurnEnd, TurnStart, Usage, UserMessage
from zot.journal.journal import Journal
from zot.journal.record import Record
from zot.messages import ZERO, Message, TextBlock
from zot.outcome import Outcome
from zot.store import Said

NOW = "2026-01-31T12:00:00.000Z"
HELLO = Answer("Hello", 3, 2)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    opened = await Journal.open(tmp_path / "journal.db")
    yield opened
    await opened.close()


class Bench:
    """A session, and requests that come to it."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.clock = Clock()

    async def once(self, key: str | None = "k", prompt: str = "hi", *, ttl_s: float = 60.0) -> tuple[Once, Record]:
        record, _ = await self.journal.resume("s")
        return Once(self.journal, record, key=key, prompt=prompt, agent="a", ttl_s=ttl_s, now=self.clock), record

    async def run(self, *events: AgentEvent, key: str | None = "k", prompt: str = "hi") -> Once:
        """Let a request run and say these events; nobody puts its answer on record."""
        once, record = await self.once(key, prompt)
        await record.begin()
        message = Message("user", (TextBlock(prompt),), NOW)
        rows = [Said(message), UserMessage((TextBlock(prompt),), NOW), *events]
        record.append(rows, run=record.last_run + 1)
        await record.settled()
        record.end()
        return once

    async def stands(self, key: str | None = "k", prompt: str = "hi") -> bool:
        """True if a request would go on with what was said; it is then given up."""
        once, record = await self.once(key, prompt)
        await record.begin()
        record.end()
        return once.stands


@pytest.fixture
def bench(journal: Journal) -> Bench:
    return Bench(journal)


def said(text: str) -> list[AgentEvent]:
    usage = Usage(3, 2, 0, 0, 0.0, ZERO)
    return [TurnStart(1), usage, AssistantMessage((TextBlock(text),), NOW), TurnEnd("end_turn")]


async def test_an_answer_that_got_out_is_given_again_for_its_time(bench: Bench) -> None:
    once = await bench.run(*said("Hello"), Done())
    await once.keep(HELLO)
    await once.delivered()
    again, record = await bench.once()
    bench.clock.now += 59.9
    assert await again.kept() == HELLO
    with pytest.raises(AlreadyAnswered) as caught:
        await record.begin()
    assert caught.value.answer == b'{"text":"Hello","prompt_tokens":3,"completion_tokens":2}'
    bench.clock.now += 0.2
    assert await again.kept() is None
    await record.begin()
    record.end()
    assert again.stands is False


async def test_one_that_did_not_is_given_again_for_longer(bench: Bench) -> None:
    once = await bench.run(*said("Hello"), Done())
    await once.keep(HELLO)
    bench.clock.now += 599
    again, _ = await bench.once()
    assert await again.kept() == HELLO
    await again.delivered()
    bench.clock.now += 59
    assert await again.kept() == HELLO
    bench.clock.now += 2
    assert await again.kept() is None


async def test_whoever_died_before_the_answer_was_on_record_has_given_it(bench: Bench) -> None:
    await bench.run(*said("Hello"), Done())
    _, record = await bench.once()
    with pytest.raises(AlreadyAnswered) as caught:
        await record.begin()
    assert caught.value.answer == b'{"text":"Hello","prompt_tokens":3,"completion_tokens":2}'


async def test_an_answer_is_put_on_record_once(bench: Bench) -> None:
    once = await bench.run(*said("Hello"), Done())
    await once.keep(HELLO)
    bench.clock.now += 599
    await once.keep(Answer("Another", 1, 1))
    assert await once.kept() == HELLO
    bench.clock.now += 2
    assert await once.kept() is None


@pytest.mark.parametrize(
    "events",
    [[], [TurnStart(1)], said("Hello"), [*said("Hello"), Error("no"), Done()], [*said("  "), Done()],
     [TurnStart(1), TurnEnd("error", "no"), Error("no"), Done()], [TurnStart(1), TurnEnd("aborted"), Done()]],
)  # fmt: skip
async def test_what_did_not_come_to_an_answer_is_gone_on_with(bench: Bench, events: list[AgentEvent]) -> None:
    await bench.run(*events)
    assert await bench.stands() is True
    # Whoever was about to go on died before he said a word.
    assert await bench.stands() is True
    assert await bench.stands(prompt="another") is False


async def test_nothing_is_gone_on_with_that_was_never_said(bench: Bench) -> None:
    assert [await bench.stands(), await bench.stands()] == [False, False]


async def test_nothing_is_gone_on_with_behind_what_others_said_since(bench: Bench) -> None:
    await bench.run(TurnStart(1))
    assert await bench.stands() is True  # it may have been the second run, but never began it
    await bench.run(TurnStart(1), key=None, prompt="other")
    assert await bench.stands() is False


async def test_nothing_is_gone_on_with_after_a_long_time(bench: Bench) -> None:
    await bench.run(TurnStart(1))
    bench.clock.now += 600
    assert await bench.stands() is False


async def test_a_session_that_is_in_use_is_busy_until_it_is_free(bench: Bench) -> None:
    _, holding = await bench.once()
    await holding.begin()
    waiting, record = await bench.once("k2")
    assert record.is_free is False
    with pytest.raises(SessionBusy):
        await record.begin()
    holding.end()
    await waiting.turn()
    assert record.is_free is True


def test_what_a_request_says_has_one_value() -> None:
    assert fingerprint("a", "b") == fingerprint("a", "b")
    assert len({fingerprint("a", "b"), fingerprint("ab", ""), fingerprint("a", "c"), fingerprint("\ud800", "b")}) == 4


def test_tokens_are_estimated_only_where_there_are_none() -> None:
    outcome = Outcome()
    outcome.take(said("Hello"))
    assert answer_of(outcome, "hi") == HELLO
    silent = Outcome()
    silent.take([AssistantMessage((TextBlock("Hello, world"),), NOW), TurnEnd("end_turn")])
    assert answer_of(silent, "hi") == Answer("Hello, world", 1, 3)
