"""Runs that wait for a person when their process ends: where another process goes on with them. Does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from zot.agent.transcript import Transcript
from zot.events import ApprovalAnswer, ApprovalRequest, ExtNotify, ToolResult, TurnStart
from zot.messages import CallBlock, Message, ResultBlock, TextBlock, show_result_content
from zot.store import Allowed, Configured, Counted, Guarded, Locked, Row, Said


class Parked(msgspec.Struct, frozen=True):
    """Where a run stands: at a ``call`` of its turn ``step`` about which a person was asked, and may have answered."""

    request: ApprovalRequest
    answer: ApprovalAnswer | None
    call: CallBlock
    step: int

    def left_s(self, now: float) -> float:
        """Return for how long a person may still answer; less than 0 if it is too late."""
        return datetime.fromisoformat(self.request.deadline).timestamp() - now


def find_parked(transcript: Transcript, run: Sequence[Row]) -> Parked | None:
    """Return where a newest run of these rows stands; None if it is over, or nobody can know what it has done since."""
    calls = transcript.unanswered()
    answer: ApprovalAnswer | None = None
    for row in reversed(run if calls else ()):
        match row:
            case ApprovalAnswer() if answer is None and row.decision != "aborted":
                answer = row
            case ApprovalRequest() if (answer is None or answer.id == row.id) and row.tool == calls[0].name:
                return Parked(row, answer, calls[0], _step(run))
            case ExtNotify() | Configured() | Allowed() | Guarded() | Locked() | Counted():
                pass
            case _:
                return None
    return None


def missed(parked: Parked, now: str) -> list[Row]:
    """Return what is recorded of a question whose deadline passed while nobody could have answered it."""
    told = (TextBlock(too_late(parked.request)),)
    message = Message("tool", (ResultBlock(parked.call.id, True, told),), now)
    result = ToolResult(parked.call.id, True, show_result_content(told))
    return [ApprovalAnswer(parked.request.id, "expired"), Said(message), result]


def too_late(request: ApprovalRequest) -> str:
    """Return what the model is told of a call that nobody approved by its deadline."""
    return f"not run: nobody approved it by {request.deadline}"


def _step(run: Sequence[Row]) -> int:
    return next((row.step for row in reversed(run) if isinstance(row, TurnStart)), 1)
