"""Side question: answered from the conversation without becoming part of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from zot.agent.hooks import MessageDecision
from zot.config.config import Config
from zot.errors import RunCancelled, UserError
from zot.messages import ZERO, Counters
from zot.run_summary import RunSummary
from zot.session.history import Batch, Subscriber
from zot.session.session import Session


class SideAnswer(NamedTuple):
    """The model's text, and the tokens it used."""

    text: str
    usage: Counters


def side_config(config: Config) -> Config:
    """Return the settings of a session that answers a side question: no tools, no extensions, nothing kept."""
    return msgspec.structs.replace(config, session=None, tools=(), no_ext=True, ext=(), record=None)


async def ask(session: Session, opened: Callable[[], Session], question: str) -> SideAnswer:
    """Ask a second session that ``opened`` makes with the same past; only its usage is recorded.

    The session's extensions guard question and answer. Raise UserError, or the error that kept the model from
    answering.
    """
    extensions = session.agent.extensions
    await extensions.ready()
    # No turn of a run has the number 0, so decisions about real turns stay pending.
    if (reason := await extensions.turn_starting(0)) is not None:
        raise UserError(f"not asked: {reason}")
    answer = await _answer(session, opened(), question)
    decision = await extensions.message_written(answer.text) if answer.text else MessageDecision("")
    if decision.refusal is not None:
        raise UserError(f"held back: {decision.refusal}")
    return SideAnswer(decision.text, answer.usage)


async def _answer(session: Session, asked: Session, question: str) -> SideAnswer:
    outcome = _Outcome()
    asked.history.subscribe(outcome)
    try:
        job = asked.prompt(question)
        await asked.worker.finish()
        if job.error is not None:
            raise job.error
        if job.aborted:
            raise RunCancelled("aborted")
        return SideAnswer(outcome.text, outcome.usage)
    finally:
        await asked.close()
        if outcome.usage != ZERO:
            await session.add_used(outcome.usage)  # Also after an abort.


class _Outcome(RunSummary, Subscriber):
    """Collects a run that has no other subscriber."""

    def deliver(self, batch: Batch) -> None:
        self.take(batch.events)
