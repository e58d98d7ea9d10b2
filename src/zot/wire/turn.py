"""A turn of the daemon's dialect, which is one run: how it ended, from its events. Does no I/O."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from zot.events import (
    AgentEvent,
    CompactDone,
    Error,
    TextDelta,
    ThinkingDelta,
    ToolProgress,
    ToolUseArgs,
    TurnEnd,
    TurnStart,
)
from zot.messages import Counters
from zot.run_summary import Outcome
from zot.wire.daemon_types import ABSENT, FailedTurn, Prompted, Used
from zot.wire.jsonrpc import INTERNAL_ERROR, RpcError

OutcomeName: TypeAlias = Literal["completed", "cancelled", "failed"]
StopReason: TypeAlias = Literal["end_turn", "length", "cancelled", "error"]

#: Most events are pieces of something that is said again as a whole: how a turn ends does not depend on them.
PIECES: Final[frozenset[type]] = frozenset({TextDelta, ThinkingDelta, ToolUseArgs, ToolProgress})


class TurnSummary(msgspec.Struct, frozen=True):
    """How a turn ended. ``content`` is what the model said last, as far as it came; ``error`` is why the turn failed.

    ``notice`` says why an extension blocked the last message of a completed turn. Both are "" otherwise.
    """

    outcome: OutcomeName
    stop_reason: StopReason
    content: str
    usage: Counters
    error: str = ""
    notice: str = ""

    @property
    def shown(self) -> str:
        """What a client that shows one text is given: the words, or why there are none."""
        return self.error if self.outcome == "failed" else self.content or self.notice

    def reply(self, session_id: str) -> Prompted:
        """Return what a prompt is answered with. Raise RpcError if the turn failed."""
        usage = Used.of(self.usage)
        if self.stop_reason == "error":
            raise RpcError(INTERNAL_ERROR, self.error, FailedTurn(self.content, usage))
        return Prompted(session_id, self.stop_reason, self.content, usage, self.notice or ABSENT)


class Turn:
    """Adds up the events of one turn. `PIECES` need not be told."""

    def __init__(self) -> None:
        self._outcome = Outcome()
        self._error = ""
        self._has_failed = False

    def take(self, event: AgentEvent) -> None:
        """Hear what happened."""
        if type(event) in PIECES:
            return
        self._outcome.take((event,))
        match event:
            case TurnStart():
                self._error, self._has_failed = "", False
            case Error(message=message):
                self._error, self._has_failed = message, True
            case TurnEnd(stop=stop, error=error):
                self._error, self._has_failed = error or "", stop == "error"
            case CompactDone(auto=False, summary=summary):
                self._outcome.text = summary
            case _:
                pass

    def summary(self) -> TurnSummary:
        """Return how it ended, if it is over."""
        stop, text, usage = self._outcome.stop, self._outcome.text, self._outcome.usage
        if stop == "aborted":
            return TurnSummary("cancelled", "cancelled", text, usage)
        if self._has_failed:
            return TurnSummary("failed", "error", text, usage, self._error or "the turn failed")
        reason: StopReason = "length" if stop == "length" else "end_turn"
        return TurnSummary("completed", reason, text, usage, notice=self._outcome.held_back)
