"""`session/update` notifications of the daemon, and the summary of a turn. Does no I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final, Literal, TypeAlias, assert_never, cast

import msgspec

from zot.encoding import encode, encode_lines
from zot.events import (
    PIECES,
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
    QuestionAnswer,
    QuestionRequest,
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
from zot.run_summary import RunSummary
from zot.wire.daemon import Dialect
from zot.wire.daemon_types import ABSENT, FailedTurn, PendingApproval, Prompted, Used
from zot.wire.jsonrpc import INTERNAL_ERROR, RpcError
from zot.wire.spelling import Spelled, Spelling, spelled

OutcomeName: TypeAlias = Literal["completed", "cancelled", "failed"]
StopReason: TypeAlias = Literal["end_turn", "length", "cancelled", "error"]


class TurnSummary(msgspec.Struct, frozen=True):
    """How a turn ended. ``content`` is the model's last message, perhaps partial; ``error`` is why the turn failed.

    ``notice`` is why an extension blocked the last message of a completed turn. Both are "" otherwise.
    """

    outcome: OutcomeName
    stop_reason: StopReason
    content: str
    usage: Counters
    error: str = ""
    notice: str = ""

    @property
    def shown(self) -> str:
        """The one text for a client to show: the model's message, or the error. A notice is no message."""
        return self.error if self.outcome == "failed" else self.content

    @staticmethod
    def of(run: RunSummary) -> TurnSummary:
        """Return the summary of a run that has ended."""
        if run.stop == "aborted":
            return TurnSummary("cancelled", "cancelled", run.text, run.usage)
        if run.error is not None:
            return TurnSummary("failed", "error", run.text, run.usage, run.error or "the turn failed")
        reason: StopReason = "length" if run.stop == "length" else "end_turn"
        return TurnSummary("completed", reason, run.text, run.usage, notice=run.held_back)

    def reply(self, session_id: str) -> Prompted:
        """Return the result of `session/prompt`. Raise RpcError if the turn failed."""
        usage = Used.of(self.usage)
        if self.stop_reason == "error":
            raise RpcError(INTERNAL_ERROR, self.error, FailedTurn(self.content, usage))
        return Prompted(session_id, self.stop_reason, self.content, usage, self.notice or ABSENT)


class Update(Spelled, frozen=True, tag_field="type"):
    """A change in a session. On the wire it also has ``sessionId``, and ``seq`` if it is recorded."""


class AgentMessageChunk(Update, tag="agent_message_chunk", frozen=True):
    """The next piece of the model's text."""

    text: str


class AgentThoughtChunk(Update, tag="agent_thought_chunk", frozen=True):
    """The next piece of the model's thinking."""

    text: str


class ToolCallUpdate(Update, tag="tool_call", frozen=True):
    """The model calls a tool. ``raw_input`` is null if the arguments that it wrote are no object."""

    tool_call_id: str
    name: str
    raw_input: dict[str, Any] | None


class ToolResultUpdate(Update, tag="tool_result", frozen=True):
    """The result of a tool call. ``raw_output`` is text; an image is replaced by its type and size."""

    tool_call_id: str
    name: str
    raw_output: str
    is_error: bool


class ApprovalUpdate(Update, tag="approval_request", frozen=True):
    """A tool call waits for `session/approve`. ``timeout_secs`` is the time left until its ``deadline``."""

    request_id: str
    tool_name: str
    arguments_summary: str
    timeout_secs: int
    deadline: str


class StateUpdate(Update, tag="state", frozen=True):
    """A turn starts or continues: with a ``prompt``, or because an approval was decided."""

    state: Literal["running"] = "running"
    prompt: str | msgspec.UnsetType = msgspec.UNSET
    prompt_id: str | msgspec.UnsetType = msgspec.UNSET
    request_id: str | msgspec.UnsetType = msgspec.UNSET
    decision: Resolution | msgspec.UnsetType = msgspec.UNSET


class UsageUpdate(Update, tag="usage", frozen=True):
    """Tokens and cost of one model call, and of the session so far. ``cost_usd`` is null if no price is known."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    cost_usd: float | None
    reasoning: int
    cumulative: Used


class TurnComplete(Update, tag="turn_complete", frozen=True):
    """A turn has ended. ``content`` is the text to show: the model's last message, or why there is none.

    ``error`` is why the turn failed, ``notice`` why an extension blocked the last message of one that did not.
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
    """With the feature `events`: another session has taken this id; its sequence numbers start again."""


_HEAD: Final = b'{"jsonrpc":"2.0","method":"session/update","params":{"%s":%s,'
_TEXT: Final = b'"type":"agent_message_chunk","text":'
_THOUGHT: Final = b'"type":"agent_thought_chunk","text":'
_EVENT: Final = b'"type":"event","event":'


class Updates:
    """Encode the events of one session for one client.

    Pass every event once, in order: to `lines`, or to `skip` if the client already has it.
    """

    def __init__(
        self, session_id: str, dialect: Dialect, *, prompt_id: str = "", now: Callable[[], float] = time.time
    ) -> None:
        """``prompt_id`` is that of the running turn; ``now`` returns seconds since the epoch."""
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
        #: Tool names of this run, by call id.
        self._names: dict[str, str] = {}
        self._run = RunSummary()
        self._prompt_id = prompt_id

    def lines(self, seq: int, events: Sequence[AgentEvent], *, prompt_id: str = "") -> bytes:
        """Return the lines for ``events``, the first of which has the number ``seq``; 0 means not recorded.

        ``prompt_id`` is that of their turn, in case its start could not be recorded either.
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
        """Return the lines for deltas of one type, which most events are. Splitting is safe: JSON has no raw LF."""
        line = self._chunks[type(deltas[0])]
        texts = encode_lines([event.delta for event in deltas]).split(b"\n")
        return [line % pair for pair in zip(texts, range(seq, seq + len(deltas)), strict=False)]

    def skip(self, events: Sequence[AgentEvent]) -> None:
        """Keep track of ``events`` without encoding them."""
        for event in events:
            if type(event) not in PIECES:
                self._take(event)

    def restarted(self) -> bytes:
        """Return the line that announces another session with this id; empty without the feature `events`."""
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
        """Record what later updates need from an event; return its update, None if it has none."""
        self._run.take((event,))
        match event:
            case ToolCall(id=call, name=name, args=args):
                self._names[call] = name
                return ToolCallUpdate(call, name, args)
            case ToolResult(id=call, content=content, is_error=is_error):
                return ToolResultUpdate(call, self._names.get(call, ""), output_of(content), is_error)
            case ApprovalRequest():
                return _asked(PendingApproval.of(event, self._now()))
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
                return None  # Handled by the callers.
            case TurnStart() | AssistantStart() | AssistantMessage() | TurnEnd() | ToolUseStart() | ToolUseEnd():
                return None  # Covered by chunks, `tool_call` and `turn_complete`.
            case Error() | CompactDone() | Retry() | ConversationReplaced() | Reconfigured():
                return None
            case QuestionRequest() | QuestionAnswer():
                return None  # With the features `events` and `questions` alone.
            case ExtNotify() | ExtWaiting() | PanelOpened() | PanelRendered() | PanelClosed():
                return None
        assert_never(event)

    def _end(self) -> TurnComplete:
        ended, prompt_id = TurnSummary.of(self._run), self._prompt_id or msgspec.UNSET
        self._run, self._prompt_id = RunSummary(), ""
        self._names.clear()
        error = ended.error or msgspec.UNSET
        notice = ended.notice or msgspec.UNSET
        return TurnComplete(ended.outcome, ended.shown, ended.stop_reason, error, prompt_id, notice)


def output_of(content: Sequence[TextBlock | ShownImage]) -> str:
    """Return a tool's result as text."""
    return "\n".join(
        block.text if isinstance(block, TextBlock) else f"[{block.mime_type}, {block.bytes} bytes]" for block in content
    )


def _asked(pending: PendingApproval) -> ApprovalUpdate:
    left, deadline = pending.timeout_secs, pending.deadline
    return ApprovalUpdate(pending.request_id, pending.tool_name, pending.arguments_summary, left, deadline)


def _used(event: Usage) -> UsageUpdate:
    used, total = Used.of(event.counters), Used.of(event.cumulative)
    return UsageUpdate(used.input, used.output, used.cache_read, used.cache_write, used.cost_usd, used.reasoning, total)
