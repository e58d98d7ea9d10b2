"""Questions to one extension, and how each gets its one answer: the extension's own, or a failure. Does no I/O."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from zot.extensions import answers
from zot.extensions.calls import Calls, Kind, Waiting
from zot.extensions.deadlines import Deadlines
from zot.extensions.happenings import Answered, Complained, Decided, Happening, Late
from zot.text import printable
from zot.wire import extension as wire

Reply: TypeAlias = wire.ToolResult | wire.CommandResponse | wire.EventInterceptResponse


class Questions:
    """What an extension was asked. ``closed`` are the events that are blocked when it does not decide about them."""

    def __init__(self, name: str, deadlines: Deadlines, closed: frozenset[wire.Intercepted]) -> None:
        self.closed = closed
        self._name = name
        self._deadlines = deadlines
        self._calls = Calls()

    def open(self, kind: Kind, subject: str, now: float) -> Waiting:
        """Ask something: of a tool, of a command, about an event."""
        return self._calls.open(kind, subject, now + self._deadlines.of(kind))

    def new_id(self) -> str:
        """Return an id for a question that has its answer already."""
        return self._calls.new_id()

    def next_deadline(self) -> float | None:
        """Return when `expire` has something to do."""
        return self._calls.next_deadline()

    def give_up(self, call_id: str) -> None:
        """Nobody waits for this any more."""
        waiting = self._calls.get(call_id)
        if waiting is not None:
            self._calls.close(waiting, "was given up")

    def meant(self, frame_id: bytes) -> Waiting | None:
        """Return the question that a wrong frame was to answer, by what could be read of its id."""
        return self._calls.get(str(msgspec.json.decode(frame_id))) if frame_id else None

    def all(self) -> tuple[Waiting, ...]:
        """Return those that wait, in the order in which they were asked."""
        return self._calls.all()

    def take(self, reply: Reply) -> list[Happening]:
        """Take an answer: late, twice or invented ones are only noted, one of a wrong kind is a failure."""
        waiting = self._calls.get(reply.id)
        if waiting is None:
            call_id = printable(reply.id)
            return [Complained(f"{wire.name_of(reply)}: the call {call_id} {self._calls.why_not(reply.id)}")]
        answer = self._answer(waiting, reply)
        if answer is None:
            wrong = f"answered a {waiting.kind} with {wire.name_of(reply)}"
            return [Complained(wrong, notice=True), self.fail(waiting, wrong)]
        self._calls.close(waiting, "was answered already")
        return [answer]

    def expire(self, now: float) -> list[Happening]:
        """Fail those whose time is up, and say so."""
        happenings: list[Happening] = []
        for waiting in self._calls.due(now):
            why = self._too_slow(waiting)
            happenings += [Late(waiting.kind, why), self.fail(waiting, why)]
        return happenings

    def fail_all(self, why: str) -> list[Happening]:
        """Fail all that wait: the extension ``why``."""
        return [self.fail(waiting, why) for waiting in self._calls.all()]

    def fail(self, waiting: Waiting, why: str) -> Answered:
        """Answer in the extension's place, because it ``why``."""
        self._calls.close(waiting, "had failed by then")
        failure = f"extension {self._name} {why}"
        match waiting.kind:
            case "tool":
                return answers.tool_failure(waiting.id, failure)
            case "command":
                return answers.command_failure(waiting.id, failure)
            case "intercept":
                return Decided(waiting.id, answers.decision_failure(failure, closed=waiting.subject in self.closed))

    def _answer(self, waiting: Waiting, reply: Reply) -> Answered | None:
        """Return an answer fit for what was asked; None if it is of another kind."""
        match waiting.kind, reply:
            case "tool", wire.ToolResult():
                return answers.tool_answer(reply, self._name)
            case "command", wire.CommandResponse():
                return answers.command_answer(reply, self._name)
            case "intercept", wire.EventInterceptResponse():
                event = next(name for name in wire.INTERCEPTED if name == waiting.subject)
                return answers.decision(reply, event, self._name)
            case _:
                return None

    def _too_slow(self, waiting: Waiting) -> str:
        seconds = self._deadlines.of(waiting.kind)
        return f"did not answer within {seconds:g} s: {waiting.kind} {waiting.subject}"
