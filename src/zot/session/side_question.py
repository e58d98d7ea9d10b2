"""Side question: answered from the conversation without becoming part of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from zot.agent.hooks import MessageDecision
from zot.config.config import Config
from zot.errors import RunCancelled, UserError
from zot.messages import ZERO, Counters
from zot.run_summary import Outcome
from zot.session.history import Batch
from zot.session.session import Session


class Answer(NamedTuple):
    """What the model said, and what that used."""

    text: str
    usage: Counters


def bare(config: Config) -> Config:
    """Return how a session works that answers a question by the way: it has no tools, and nothing of it is kept."""
    return msgspec.structs.replace(config, session=None, tools=(), no_ext=True, ext=(), record=None)


async def ask(session: Session, opened: Callable[[], Session], question: str) -> Answer:
    """Ask another session that was ``opened`` with the same past, and leave no trace but what it used.

    Whoever guards the conversation guards this, too. Raise UserError, or what kept the model from answering.
    """
    extensions = session.agent.extensions
    await extensions.ready()
    # No turn of a run has this number: what waits for a decision about one of those goes on waiting.
    if (reason := await extensions.turn_starting(0)) is not None:
        raise UserError(f"not asked: {reason}")
    answer = await _answer(session, opened(), question)
    decision = await extensions.message_written(answer.text) if answer.text else MessageDecision("")
    if decision.refusal is not None:
        raise UserError(f"held back: {decision.refusal}")
    return Answer(decision.text, answer.usage)


async def _answer(session: Session, asked: Session, question: str) -> Answer:
    outcome = _Outcome()
    asked.subscribe(outcome)
    try:
        job = asked.prompt(question)
        await asked.finish()
        if job.error is not None:
            raise job.error
        if job.aborted:
            raise RunCancelled("aborted")
        return Answer(outcome.text, outcome.usage)
    finally:
        await asked.close()
        if outcome.usage != ZERO:
            await session.add_used(outcome.usage)  # Also what an abort has left.


class _Outcome(Outcome):
    """Hears a run that nobody follows."""

    can_approve = False
    full = False

    def deliver(self, batch: Batch) -> None:
        self.take(batch.events)

    async def room(self) -> None:
        return
