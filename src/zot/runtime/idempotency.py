"""Idempotent requests: one answer per key, across processes and crashes."""

from __future__ import annotations

import asyncio
import enum
import math
import time
from collections.abc import Sequence

import msgspec

from zot.agent.compaction import first_new
from zot.encoding import thread_safe_type
from zot.events import AgentEvent, Done, Error
from zot.files import sha256
from zot.journal import answers
from zot.journal.connection import Connection
from zot.journal.lease import WaitingPlace
from zot.journal.queries import key_of
from zot.journal.session_store import SessionStore
from zot.messages import Message, text_of
from zot.run_summary import RunSummary
from zot.session.queue import RepeatedPrompt
from zot.store import Answers, Change, StoredReply, StoredRequest
from zot.text import printable_line

#: How long an undelivered or unfinished answer is replayed, if not for longer.
LOST_TTL_S = 600.0
_DAY_S = 24 * 3600.0
#: Poll intervals for the session's lease, growing from first to last. Every few polls, which are cheap, the stored
#: answer is looked up, too.
_FIRST_POLL_S = 0.002
_LAST_POLL_S = 0.03
_POLLS_PER_LOOKUP = 4
#: How long an idle session is left to earlier waiters: a stopped process must not block the line.
_POLITE_S = 5.0
#: How long earlier waiters have to line up again after the answering process ended.
_AGAIN_S = 2.0
_CHARACTERS_PER_TOKEN = 4
_MAX_NAME = 80
_MAX_QUOTED = 120


class StoredAnswer(msgspec.Struct, frozen=True):
    """The answer to a request: never blank. Tokens are estimated where the service reported none."""

    text: str
    prompt_tokens: int
    completion_tokens: int


def answer_of(outcome: RunSummary, prompt: str) -> StoredAnswer | None:
    """Return the answer of a run; None if it did not end by itself, or without text."""
    text, usage = outcome.text, outcome.usage
    if outcome.stop != "end_turn" or not text.strip():
        return None
    asked, said = usage.input + usage.cache_read + usage.cache_write, usage.output
    if asked + said < 1:
        asked, said = _estimated(prompt), _estimated(text)
    return StoredAnswer(text, asked, said)


def fingerprint(*parts: str) -> bytes:
    """Return a digest of a request's contents."""
    total = sha256()
    for part in map(key_of, parts):
        total.update(len(part).to_bytes(8, "big"))
        total.update(part)
    return total.digest()


class IdempotentRequest(msgspec.Struct, frozen=True):
    """A request to a session, with its arrival and deadline on the clock of `time.monotonic`.

    ``key`` identifies retries; None if the request may run as often as it is sent.
    """

    session_id: str
    request_id: str
    prompt: str
    agent: str
    key: str | None
    ttl_s: float
    came: float
    deadline: float

    @property
    def name(self) -> str:
        """Its name in the log."""
        return f"session {_name(self.session_id)}, request {_name(self.request_id)}"

    def left_s(self) -> float:
        """Return the seconds until the deadline."""
        return self.deadline - time.monotonic()


class PromptPosition(enum.Enum):
    """Position of a request's prompt in the transcript when its run begins."""

    NOWHERE = "not in the transcript"
    LAST = "the newest prompt in the transcript"
    EARLIER = "in the transcript, and other prompts follow"


class IdempotentRun(RepeatedPrompt):
    """One request on its way to its answer. Its owner calls `leave` in the end."""

    def __init__(
        self,
        record: SessionStore,
        demand: IdempotentRequest,
        *,
        polite_s: float = _POLITE_S,
        again_s: float = _AGAIN_S,
    ) -> None:
        self.position = PromptPosition.NOWHERE
        self._journal = record.journal
        self._record = record
        self._asked: StoredRequest | None = None
        if demand.key is not None:
            self._asked = StoredRequest(record.number, key_of(demand.key), fingerprint(demand.prompt, demand.agent))
        self._prompt = demand.prompt
        self._ttl_s = demand.ttl_s
        self._came = demand.came
        self._clock = record.journal.clock
        self._polite_s = polite_s
        self._again_s = again_s
        self._ticket: WaitingPlace | None = None

    async def kept(self) -> StoredAnswer | None:
        """Return the stored answer if it may be replayed."""
        asked = self._asked
        if asked is None:
            return None
        return await self._journal.reading(
            lambda connection: self._replay(answers.find(connection, asked), self._clock.now(connection))
        )

    async def turn(self, *, gives_way: bool = False) -> StoredAnswer | None:
        """Wait until the session is idle and it is our turn; return the answer if it is stored before that.

        Requests are served in order of arrival, across processes. After a crash of the answering process, a retry gives
        earlier requests some time to line up again (``gives_way``). Raise StoreFailed.
        """
        if self._ticket is None:
            self._ticket = self._record.line_up(self._came)
        comes_until = time.monotonic() + self._again_s if gives_way else -math.inf
        pause_s, polls, free_since = _FIRST_POLL_S, 0, math.inf
        while True:
            if polls % _POLLS_PER_LOOKUP == 0 and (kept := await self.kept()) is not None:
                return kept
            # In this order: an earlier waiter that has left the line holds the lease by now, or is done.
            is_first, is_free, now = self._ticket.is_first, await self._record.is_free(), time.monotonic()
            if not (is_first and is_free):
                comes_until = -math.inf
            if is_free and (is_first or now - free_since > self._polite_s) and now >= comes_until:
                return None
            polls = 0 if is_free and free_since == math.inf else polls + 1  # A run has just ended.
            free_since = min(free_since, now) if is_free else math.inf
            if polls:
                await asyncio.sleep(pause_s)
                pause_s = min(1.5 * pause_s, _LAST_POLL_S)

    def leave(self) -> None:
        """Leave the line. Idempotent."""
        if self._ticket is not None:
            self._ticket.leave()

    def text_after(self, messages: Sequence[Message]) -> str | None:
        """Return the text to add to the conversation; None if the prompt is the newest one in it.

        A prompt that was cleared since is added again; one that was summarised is not.
        """
        if self.position is PromptPosition.NOWHERE or not self._is_in(messages):
            return self._prompt
        return None if self.position is PromptPosition.LAST else _continuation(self._prompt)

    async def keep(self, answer: StoredAnswer) -> None:
        """Store the answer, durably, before it is sent. Raise StoreFailed."""
        if (asked := self._asked) is not None:
            data = msgspec.json.encode(answer)
            await self._journal.writing_durably(
                lambda connection: answers.keep(connection, asked, data, now=self._clock.now(connection))
            )

    async def delivered(self) -> None:
        """Record that the answer was sent, after everything written before. Raise StoreFailed."""

        def note(connection: Connection) -> None:
            if self._asked is not None:
                answers.deliver(connection, self._asked, now=self._clock.now(connection))

        await self._journal.writing(note)

    def stored_answer(self, answers: Answers, newest_run: int) -> bytes | None:
        """Return the answer if there is one; otherwise note that the request runs, and where its prompt is."""
        self.leave()  # The next waiter may be polling for our place.
        asked = self._asked
        kept = None if asked is None else answers.find(asked)
        now = answers.now()
        self.position = self._find_prompt(kept, newest_run, now)
        if (answer := self._replay(kept, now) or self._finished(answers, kept)) is not None:
            return msgspec.json.encode(answer)
        if asked is not None:
            first = newest_run + 1 if kept is None or self.position is PromptPosition.NOWHERE else kept.first_run
            forget_s = max(_DAY_S, 2 * self._ttl_s)
            answers.begin(asked, first_run=first, latest_run=newest_run + 1, forget_s=forget_s)
        return None

    def _is_in(self, messages: Sequence[Message]) -> bool:
        said = (text_of(message.content) for message in messages if message.role == "user")
        return first_new(messages) > 0 or self._prompt in said

    def _replay(self, kept: StoredReply | None, now: float) -> StoredAnswer | None:
        """Return an answer that is young enough to be replayed."""
        if kept is None or kept.answer is None or kept.answered is None:
            return None
        lost = kept.delivered is None
        since, ttl_s = (kept.answered, max(LOST_TTL_S, self._ttl_s)) if lost else (kept.delivered, self._ttl_s)
        assert since is not None
        return msgspec.json.decode(kept.answer, type=thread_safe_type(StoredAnswer)) if now - since < ttl_s else None

    def _find_prompt(self, kept: StoredReply | None, newest: int, now: float) -> PromptPosition:
        """Say whether a run added this prompt without reaching an answer, and whether other prompts followed.

        Runs that were announced but never began have been disowned by now.
        """
        if kept is None or kept.answer is not None or now - kept.began >= max(LOST_TTL_S, self._ttl_s):
            return PromptPosition.NOWHERE
        if kept.first_run > min(newest, kept.latest_run):
            return PromptPosition.NOWHERE
        return PromptPosition.LAST if newest <= kept.latest_run else PromptPosition.EARLIER

    def _finished(self, answers: Answers, kept: StoredReply | None) -> StoredAnswer | None:
        """Return the answer of a run that ended, but whose process died before it stored the answer."""
        if kept is None or self.position is PromptPosition.NOWHERE:
            return None
        events: Sequence[AgentEvent] = [row for row in answers.rows_of(kept.latest_run) if not isinstance(row, Change)]
        if not any(isinstance(event, Done) for event in events) or any(isinstance(event, Error) for event in events):
            return None
        outcome = RunSummary()
        outcome.take(events)
        return answer_of(outcome, self._prompt)


def _continuation(prompt: str) -> str:
    """Return the message that replaces an interrupted prompt after which others have been added."""
    return (
        "Your answer to an earlier message of mine was interrupted. That message begins with "
        f"'{printable_line(prompt, _MAX_QUOTED)}'. Answer it now. "
        "What has been done for it stands above: do not do it again."
    )


def _name(one: str) -> str:
    return f"'{printable_line(one, _MAX_NAME)}'"


def _estimated(text: str) -> int:
    return max(1, len(text) // _CHARACTERS_PER_TOKEN)
