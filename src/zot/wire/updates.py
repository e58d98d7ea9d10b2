"""session/update notifications, and the summary of a turn. Does no I/O."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final, Literal, TypeAlias, assert_never, cast

import msgspec

from zot.encoding import encode, encode_lines
from zot.events import (
    AgentEvent,
    ApprovalAnswer,
    ApprovalRequest,
    AssistantMessage,
    AssistantStart,
    CompactDone,
    ConversationReplaced,
    Done,
    Error,
    ExtNotify,
    ExtWaiting,
    PanelClosed,
    PanelOpened,
    PanelRendered,
    Reconfigured,
    Resolution,
    Retry,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolProgress,
    ToolResult,
    ToolUseArgs,
    ToolUseEnd,
    ToolUseStart,
    TurnEnd,
    TurnStart,
    Usage,
    UserMessage,
)
from zot.messages import Counters, ShownImage, TextBlock, text_of
from zot.run_summary import Outcome
from zot.wire.daemon import Dialect
from zot.wire.daemon_types import ABSENT, FailedTurn, PendingApproval, Prompted, Used
from zot.wire.jsonrpc import INTERNAL_ERROR, RpcError
from zot.wire.spelling import Spelled, Spelling, spelled

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


class Update(Spelled, frozen=True, tag_field="type"):
    """Something about a session. On the wire it has ``sessionId``, too, and ``seq`` if it is recorded."""


class AgentMessageChunk(Update, tag="agent_message_chunk", frozen=True):
    text: str


class AgentThoughtChunk(Update, tag="agent_thought_chunk", frozen=True):
    text: str


class ToolCallUpdate(Update, tag="tool_call", frozen=True):
    """``raw_input`` is null if what the model wrote is no object."""

    tool_call_id: str
    name: str
    raw_input: dict[str, Any] | None


class ToolResultUpdate(Update, tag="tool_result", frozen=True):
    """``raw_output`` is text; of an image it says only what it is."""

    tool_call_id: str
    name: str
    raw_output: str
    is_error: bool


class ApprovalUpdate(Update, tag="approval_request", frozen=True):
    """A call waits for `session/approve`. ``timeout_secs`` is what is left of the time until its ``deadline``."""

    request_id: str
    tool_name: str
    arguments_summary: str
    timeout_secs: int
    deadline: str


class StateUpdate(Update, tag="state", frozen=True):
    """A turn goes on: with a ``prompt`` that was said, or because a request was answered."""

    state: Literal["running"] = "running"
    prompt: str | msgspec.UnsetType = msgspec.UNSET
    prompt_id: str | msgspec.UnsetType = msgspec.UNSET
    request_id: str | msgspec.UnsetType = msgspec.UNSET
    decision: Resolution | msgspec.UnsetType = msgspec.UNSET


class UsageUpdate(Update, tag="usage", frozen=True):
    """What a model call used, and the session so far. ``cost_usd`` is null where no price is known."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    cost_usd: float | None
    reasoning: int
    cumulative: Used


class TurnComplete(Update, tag="turn_complete", frozen=True):
    """A turn is over. ``content`` is what a client can show: the model's last words, or why there are none.

    ``error`` is why the turn failed, ``notice`` why an extension blocked the last words of one that did not.
    """

    outcome: OutcomeName
    content: str
    stop_reason: StopReason
    error: str | msgspec.UnsetType = msgspec.UNSET
    prompt_id: str | msgspec.UnsetType = msgspec.UNSET
    notice: str | msgspec.UnsetType = msgspec.UNSET


class EventUpdate(Update, tag="event", frozen=True):
    """With the feature `events`: an event as zot RPC spells it."""

    event: AgentEvent


class RestartedUpdate(Update, tag="restarted", frozen=True):
    """With the feature `events`: what has this name from now on is another session, whose numbers begin anew."""


#: A deadline is told in milliseconds, which may be a little more than what is left of it.
_ROUNDING_S: Final = 0.01
_HEAD: Final = b'{"jsonrpc":"2.0","method":"session/update","params":{"%s":%s,'
_TEXT: Final = b'"type":"agent_message_chunk","text":'
_THOUGHT: Final = b'"type":"agent_thought_chunk","text":'
_EVENT: Final = b'"type":"event","event":'


class Updates:
    """Turns the events of one session into the lines that one client gets. Every event must be given once, in order:
    to `lines`, or to `skip` what the client has had already."""

    def __init__(
        self, session_id: str, dialect: Dialect, *, prompt_id: str = "", now: Callable[[], float] = time.time
    ) -> None:
        """``prompt_id`` is that of the turn which goes on; ``now`` tells seconds since the epoch."""
        self._spelling = Spelling.SNAKE if dialect is Dialect.SNAKE else Spelling.CAMEL
        self._native = dialect is Dialect.EVENTS
        self._now = now
        key = b"session_id" if dialect is Dialect.SNAKE else b"sessionId"
        self._head = _HEAD % (key, encode(session_id))
        head = self._head.replace(b"%", b"%%")
        self._chunks: dict[type, bytes] = {
            TextDelta: head + _TEXT + b'%b,"seq":%d}}\n',
            ThinkingDelta: head + _THOUGHT + b'%b,"seq":%d}}\n',
        }
        self._event = self._head + _EVENT
        #: The names of the tools that were called in this run, by call.
        self._names: dict[str, str] = {}
        self._turn = Turn()
        self._prompt_id = prompt_id

    def lines(self, seq: int, events: Sequence[AgentEvent], *, prompt_id: str = "") -> bytes:
        """Return the lines for ``events``, the first of which has the number ``seq``; 0: they are not recorded.

        ``prompt_id`` is that of their turn, if its beginning could not be recorded, either.
        """
        self._prompt_id = self._prompt_id or prompt_id
        if self._native:
            return self._native_lines(seq, events)
        lines: list[bytes] = []
        number = seq
        for kind, group in groupby(events, type):
            same = list(group)
            if kind not in PIECES:
                lines += self._lines(number, same)
            elif seq and kind in self._chunks:
                lines += self._chunk_lines(number, cast(Sequence[TextDelta | ThinkingDelta], same))
            number += len(same) if seq else 0
        return b"".join(lines)

    def _lines(self, seq: int, events: Sequence[AgentEvent]) -> list[bytes]:
        lines: list[bytes] = []
        for at, event in enumerate(events):
            update = self._take(event)
            if update is not None and (seq or isinstance(update, TurnComplete)):
                lines.append(self._line(update, seq and seq + at))
        return lines

    def _chunk_lines(self, seq: int, deltas: Sequence[TextDelta | ThinkingDelta]) -> list[bytes]:
        """The same for words of one kind, which is what most events are. No JSON has a line end in it."""
        line = self._chunks[type(deltas[0])]
        texts = encode_lines([event.delta for event in deltas]).split(b"\n")
        return [line % pair for pair in zip(texts, range(seq, seq + len(deltas)), strict=False)]

    def skip(self, events: Sequence[AgentEvent]) -> None:
        """Take ``events`` in without a word."""
        for event in events:
            if type(event) not in PIECES:
                self._take(event)

    def restarted(self) -> bytes:
        """Return the line that says that another session has the name; empty for who hears only what the seed knows."""
        return self._line(RestartedUpdate(), 0) if self._native else b""

    def _native_lines(self, seq: int, events: Sequence[AgentEvent]) -> bytes:
        if not seq:
            return b"".join(b"%s%s}}\n" % (self._event, encode(event)) for event in events)
        return b"".join(
            b'%s%s,"seq":%d}}\n' % (self._event, encode(event), number) for number, event in enumerate(events, seq)
        )

    def _line(self, update: Update, number: int) -> bytes:
        body = encode(spelled(self._spelling, update))[1:-1]
        return b'%s%s,"seq":%d}}\n' % (self._head, body, number) if number else b"%s%s}}\n" % (self._head, body)

    def _take(self, event: AgentEvent) -> Update | None:
        """Remember what later updates need of an event; return what is said of it, None if nothing is."""
        self._turn.take(event)
        match event:
            case ToolCall(id=call, name=name, args=args):
                self._names[call] = name
                return ToolCallUpdate(call, name, args)
            case ToolResult(id=call, content=content, is_error=is_error):
                return ToolResultUpdate(call, self._names.get(call, ""), output_of(content), is_error)
            case ApprovalRequest():
                return _asked(pending_of(event, self._now()))
            case ApprovalAnswer(id=request, decision=decision):
                return StateUpdate(request_id=request, decision=decision)
            case UserMessage(content=content, prompt_id=prompt_id):
                self._prompt_id = self._prompt_id or prompt_id
                return StateUpdate(prompt=text_of(content), prompt_id=prompt_id or msgspec.UNSET)
            case Usage():
                return _used(event)
            case Done():
                return self._end()
            case TextDelta() | ThinkingDelta() | ToolUseArgs() | ToolProgress():
                return None  # These do not come here.
            case TurnStart() | AssistantStart() | AssistantMessage() | TurnEnd() | ToolUseStart() | ToolUseEnd():
                return None  # The chunks, the call and the end of the whole say it.
            case Error() | CompactDone() | Retry() | ConversationReplaced() | Reconfigured():
                return None
            case ExtNotify() | ExtWaiting() | PanelOpened() | PanelRendered() | PanelClosed():
                return None
        assert_never(event)

    def _end(self) -> TurnComplete:
        ended, prompt_id = self._turn.summary(), self._prompt_id or msgspec.UNSET
        self._turn, self._prompt_id = Turn(), ""
        self._names.clear()
        error = ended.error or msgspec.UNSET
        notice = ended.notice or msgspec.UNSET
        return TurnComplete(ended.outcome, ended.shown, ended.stop_reason, error, prompt_id, notice)


def pending_of(request: ApprovalRequest, now: float) -> PendingApproval:
    """Return a question as a client sees it at that time, in seconds since the epoch."""
    left = math.ceil(_seconds(request.deadline) - now - _ROUNDING_S)
    return PendingApproval(request.id, request.tool, request.summary, max(0, left), request.deadline)


def output_of(content: Sequence[TextBlock | ShownImage]) -> str:
    """Return the result of a tool as text."""
    return "\n".join(
        block.text if isinstance(block, TextBlock) else f"[{block.mime_type}, {block.bytes} bytes]" for block in content
    )


def _asked(pending: PendingApproval) -> ApprovalUpdate:
    left, deadline = pending.timeout_secs, pending.deadline
    return ApprovalUpdate(pending.request_id, pending.tool_name, pending.arguments_summary, left, deadline)


def _used(event: Usage) -> UsageUpdate:
    used, total = Used.of(event.counters), Used.of(event.cumulative)
    return UsageUpdate(used.input, used.output, used.cache_read, used.cache_write, used.cost_usd, used.reasoning, total)


def _seconds(moment: str) -> float:
    from datetime import datetime  # Rare enough not to be paid for at every start.

    return datetime.fromisoformat(moment).timestamp()
