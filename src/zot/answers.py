"""A request is answered once, whoever asks for it and however often: in this process, another, or after a crash."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import time
from collections.abc import Callable, Sequence

import msgspec

from zot.errors import AlreadyAnswered
from zot.events import AgentEvent, Done, Error
from zot.journal import answers
from zot.journal.answers import Asked, Kept
from zot.journal.journal import Journal
from zot.journal.record import Record
from zot.journal.tables import key_of, last_run, rows_after
from zot.outcome import Outcome
from zot.store import Change

#: How long an answer is given again that got out, and one that did not, or that was not finished.
TTL_S = 60.0
LOST_TTL_S = 600.0
_DAY_S = 24 * 3600.0
#: How often we look if a session is free: soon at first, then less often. Every so many looks, which cost next to
#: nothing, we look if the answer is there, too.
_FIRST_LOOK_S = 0.002
_LAST_LOOK_S = 0.03
_LOOKS = 4
_ALL = 1 << 62
_CHARACTERS_PER_TOKEN = 4


class Answer(msgspec.Struct, frozen=True):
    """What came of a request: never blank, and never for nothing. Tokens are estimated where the service told none."""

    text: str
    prompt_tokens: int
    completion_tokens: int


def answer_of(outcome: Outcome, prompt: str) -> Answer | None:
    """Return what a run came to; None if that is no answer: it did not end by itself, or with nothing to say."""
    text, usage = outcome.text, outcome.usage
    if outcome.stop != "end_turn" or not text.strip():
        return None
    asked, said = usage.input + usage.cache_read + usage.cache_write, usage.output
    if asked + said < 1:
        asked, said = _estimated(prompt), _estimated(text)
    return Answer(text, asked, said)


def fingerprint(*parts: str) -> bytes:
    """Return one value for what a request says."""
    total = hashlib.sha256()
    for part in map(key_of, parts):
        total.update(len(part).to_bytes(8, "big"))
        total.update(part)
    return total.digest()


class Once:
    """One request on its way to its answer. ``key`` is what it came with, None if it may run as often as it is sent."""

    def __init__(
        self,
        journal: Journal,
        record: Record,
        *,
        key: str | None,
        prompt: str,
        agent: str,
        ttl_s: float = TTL_S,
        now: Callable[[], float] = time.time,
    ) -> None:
        #: True if the prompt stands in the transcript already: said by a run that did not come to an answer.
        self.stands = False
        self._journal = journal
        self._record = record
        self._asked = None if key is None else Asked(record.number, key_of(key), fingerprint(prompt, agent))
        self._prompt = prompt
        self._ttl_s = ttl_s
        self._now = now
        record.admit = self._admit

    async def kept(self) -> Answer | None:
        """Return the answer if it is on record and may be given again."""
        asked = self._asked
        if asked is None:
            return None
        return self._replay(await self._journal.reading(lambda connection: answers.find(connection, asked)))

    async def turn(self) -> None:
        """Wait until the session seems to be free, or the answer is there."""
        looks, pause_s = 0, _FIRST_LOOK_S
        while not self._record.is_free:
            looks += 1
            if looks % _LOOKS == 0 and await self.kept() is not None:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _LAST_LOOK_S)

    async def keep(self, answer: Answer) -> None:
        """Put the answer on record, before anybody is given it. Raise StoreFailed."""
        if (asked := self._asked) is not None:
            data = msgspec.json.encode(answer)
            await self._journal.writing(lambda connection: answers.keep(connection, asked, data, now=self._now()))

    async def delivered(self) -> None:
        """Put on record that the answer got out. Everything said before is on record then, too. Raise StoreFailed."""

        def note(connection: sqlite3.Connection) -> None:
            if self._asked is not None:
                answers.deliver(connection, self._asked, now=self._now())

        await self._journal.writing(note)

    def _admit(self, connection: sqlite3.Connection, newest: int) -> None:
        """In the writer's thread, as the session's only writer: say if the request must run, and from where."""
        asked, now = self._asked, self._now()
        kept = None if asked is None else answers.find(connection, asked)
        if (answer := self._replay(kept) or self._finished(connection, kept, newest)) is not None:
            raise AlreadyAnswered("the request has been answered", answer=msgspec.json.encode(answer))
        self.stands = self._goes_on(kept, newest)
        if asked is not None:
            first = kept.first_run if kept is not None and self.stands else newest + 1
            answers.begin(connection, asked, first_run=first, latest_run=newest + 1, now=now)
            answers.forget(connection, before=now - max(_DAY_S, 2 * self._ttl_s))

    def _replay(self, kept: Kept | None) -> Answer | None:
        """Return an answer that may be given again."""
        if kept is None or kept.answer is None or kept.answered is None:
            return None
        lost = kept.delivered is None
        since, ttl_s = (kept.answered, max(LOST_TTL_S, self._ttl_s)) if lost else (kept.delivered, self._ttl_s)
        assert since is not None
        return msgspec.json.decode(kept.answer, type=Answer) if self._now() - since < ttl_s else None

    def _goes_on(self, kept: Kept | None, newest: int) -> bool:
        """True if a run for this request did not come to an answer, and nobody has said anything since."""
        if kept is None or kept.answer is not None or self._now() - kept.began >= LOST_TTL_S:
            return False
        return kept.first_run <= newest <= kept.latest_run

    def _finished(self, connection: sqlite3.Connection, kept: Kept | None, newest: int) -> Answer | None:
        """Return the answer of a run that came to its end, but whose process died before it could say so."""
        if not self._goes_on(kept, newest):
            return None
        _, first = last_run(connection, self._record.number)
        rows = [row for _, row in rows_after(connection, self._record.number, first - 1, _ALL)]
        events: Sequence[AgentEvent] = [row for row in rows if not isinstance(row, Change)]
        if not any(isinstance(event, Done) for event in events) or any(isinstance(event, Error) for event in events):
            return None
        outcome = Outcome()
        outcome.take(events)
        return answer_of(outcome, self._prompt)


def _estimated(text: str) -> int:
    return max(1, len(text) // _CHARACTERS_PER_TOKEN)
