"""Questions of running tool calls to the user: asked of every client that can answer, until a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, cast, get_args

import msgspec

from zot.agent.run import Run
from zot.errors import UserError
from zot.events import QuestionAction, QuestionAnswer, QuestionRequest, Undecided
from zot.messages import timestamp
from zot.questions import DECLINED, Question, QuestionReply, checked

#: The most questions that may be open at once; further ones are declined.
MAX_OPEN: Final = 16


class _Open(msgspec.Struct):
    """An open question."""

    run: Run
    request: QuestionRequest
    reply: asyncio.Future[QuestionReply]


class PendingQuestions:
    """The open questions of a session. The first answer wins."""

    def __init__(self, *, timeout_s: float, clock: Callable[[], float]) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._asked = 0
        self._open: dict[str, _Open] = {}

    @property
    def open(self) -> tuple[QuestionRequest, ...]:
        """The questions that wait for an answer."""
        return tuple(one.request for one in self._open.values())

    def prompted_by(self, request_id: str) -> Collection[str]:
        """Return the names of the tokens whose clients prompted or steered the run of a question."""
        opened = self._open.get(request_id)
        return frozenset() if opened is None else frozenset(opened.run.prompted_by)

    async def ask(self, run: Run, question: Question, *, call: str, number: int, can_ask: bool) -> QuestionReply:
        """Ask and return the answer; if no user can be asked, a refusal at once. ``number`` is the run's.

        Raise StoreFailed if the question cannot be recorded.
        """
        if not can_ask or len(self._open) >= MAX_OPEN:
            return DECLINED
        self._asked += 1
        request_id = f"question_{number}_{self._asked}"
        deadline = timestamp(self._clock() + self._timeout_s)
        request = QuestionRequest(
            request_id, question.origin, question.message, deadline, question.fields, question.url, call
        )
        opened = _Open(run, request, asyncio.get_running_loop().create_future())
        run.recorder.emit([request])
        self._open[request_id] = opened
        try:
            await asyncio.wait({opened.reply}, timeout=self._timeout_s)
            if not opened.reply.done():
                self._close(opened, "expired", f"no user answered within {self._timeout_s:g} s")
        finally:
            if not opened.reply.done():
                self._close(opened, "aborted", "the run was aborted")
            self._open.pop(request_id, None)
        return opened.reply.result()

    def answer(self, request_id: str, action: str, content: Mapping[str, Any] | None = None, by: str = "") -> None:
        """Answer a question; ``by`` names the person. The first answer counts.

        Raise UserError if the question is not open, the action is unknown or the content does not fit; StoreFailed.
        """
        if action not in get_args(QuestionAction):
            raise UserError(f"{action!r} is not an action; it is one of {', '.join(get_args(QuestionAction))}")
        opened = self._open.get(request_id)
        if opened is None or opened.reply.done():
            raise UserError(f"no question {request_id!r} is waiting: it was answered, expired or never asked")
        kind = cast(QuestionAction, action)
        values = checked(opened.request.fields, content or {}) if kind == "accept" else {}
        opened.run.recorder.emit([QuestionAnswer(request_id, kind, by)])
        opened.reply.set_result(QuestionReply(kind, values))

    def give_up(self) -> None:
        """Decline the open questions: no client is left that could answer."""
        for opened in list(self._open.values()):
            if not opened.reply.done():
                self._close(opened, "unanswerable", DECLINED.reason)

    def _close(self, opened: _Open, why: Undecided, reason: str) -> None:
        opened.reply.set_result(QuestionReply("cancel" if why == "expired" else "decline", reason=reason))
        opened.run.recorder.emit([QuestionAnswer(opened.request.id, why)])
