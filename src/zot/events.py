"""What happens: one vocabulary for every face and wire.

Each event is a frozen struct tagged with its name in zot RPC v1, so the native dialect is `encode(event)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Literal, TypeAlias

import msgspec

from zot.encoding import decoder
from zot.messages import Counters, ShownBlock, ShownImage, Stop, TextBlock


class Event(msgspec.Struct, frozen=True, gc=False, tag_field="type", omit_defaults=True):
    """Something happened in a session."""


class UserMessage(Event, tag="user_message", frozen=True, gc=False):
    """``prompt_id`` is what a client of the daemon calls the prompt that begins with it."""

    content: tuple[ShownBlock, ...]
    time: str
    prompt_id: str = ""


class TurnStart(Event, tag="turn_start", frozen=True, gc=False):
    step: int


class AssistantStart(Event, tag="assistant_start", frozen=True, gc=False):
    pass


class TextDelta(Event, tag="text_delta", frozen=True, gc=False):
    delta: str


class ThinkingDelta(Event, tag="thinking_delta", frozen=True, gc=False):
    delta: str


class ToolUseStart(Event, tag="tool_use_start", frozen=True, gc=False):
    id: str
    name: str


class ToolUseArgs(Event, tag="tool_use_args", frozen=True, gc=False):
    id: str
    delta: str


class ToolUseEnd(Event, tag="tool_use_end", frozen=True, gc=False):
    id: str


class Usage(Event, tag="usage", frozen=True, gc=False):
    """What a model call used. ``auto``: nobody asked for that call; it made the summary of an automatic compaction."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    cost_usd: float
    cumulative: Counters
    price_known: bool = True
    reasoning: int = 0
    auto: bool = False

    @property
    def cost(self) -> float | None:
        """The cost of this turn in US dollars, None when no price is known."""
        return self.counters.cost

    @property
    def counters(self) -> Counters:
        """What this turn used."""
        return Counters(
            self.input,
            self.output,
            self.cache_read,
            self.cache_write,
            self.cost_usd,
            self.price_known,
            self.reasoning,
        )


class AssistantMessage(Event, tag="assistant_message", frozen=True, gc=False):
    content: tuple[ShownBlock, ...]
    time: str


class ToolCall(Event, tag="tool_call", frozen=True, gc=False):
    id: str
    name: str
    args: dict[str, Any] | None


class ToolProgress(Event, tag="tool_progress", frozen=True, gc=False):
    id: str
    text: str


class ResultDetails(msgspec.Struct, frozen=True, gc=False):
    """Where a result came from: the ``extension`` that has the tool."""

    extension: str


class ToolResult(Event, tag="tool_result", frozen=True, gc=False):
    """A call has its result. ``details`` are there if the tool is not one of zot's own."""

    id: str
    is_error: bool
    content: tuple[TextBlock | ShownImage, ...]
    details: ResultDetails | None = None


class TurnEnd(Event, tag="turn_end", frozen=True, gc=False):
    stop: Stop
    error: str | None = None


class Done(Event, tag="done", frozen=True, gc=False):
    pass


class Error(Event, tag="error", frozen=True, gc=False):
    message: str


class CompactDone(Event, tag="compact_done", frozen=True, gc=False):
    """The conversation was made shorter. ``auto``: because it would not have fitted, not because somebody asked.

    ``pruned`` results of tools were shortened; ``summary`` is empty if that was enough.
    """

    summary: str
    auto: bool = False
    pruned: int = 0


class Retry(Event, tag="retry", frozen=True, gc=False):
    """A model call failed before its first delta and will be tried again after ``delay_ms``."""

    reason: str
    attempt: int
    delay_ms: int


class ApprovalRequest(Event, tag="approval_request", frozen=True, gc=False):
    id: str
    tool: str
    args: dict[str, Any]
    summary: str
    deadline: str


#: What can come of a request to a person.
Resolution: TypeAlias = Literal["allow_once", "allow_always", "reject", "expired", "unanswerable", "aborted"]


class ApprovalAnswer(Event, tag="approval_answer", frozen=True, gc=False):
    """What came of the request ``id``: what a person decided, and who if that is known, or why nobody did."""

    id: str
    decision: Resolution
    by: str = ""


class ConversationReplaced(Event, tag="conversation_replaced", frozen=True, gc=False):
    """Somebody has made another conversation of it, outside of any run: cleared it, replaced it, gone back in it.

    It has ``messages`` now. Who shows it reads it anew.
    """

    messages: int


class Reconfigured(Event, tag="reconfigured", frozen=True, gc=False):
    """What the session works with is another now, such as its model: who shows it asks how it is. Not recorded."""


class ExtNotify(Event, tag="ext_notify", frozen=True, gc=False):
    """A notice of an extension, or of zot about it. Not recorded, unless it says why a message was ``blocked``."""

    extension: str
    level: Literal["info", "success", "warn", "error"]
    message: str
    blocked: Literal["", "assistant_message"] = ""


class ExtWaiting(Event, tag="ext_waiting", frozen=True, gc=False):
    """An extension has been waited for since a while: its start, a tool, a command, or what it is to decide about.

    It is said once for a wait, which is over with the next event of the run, or with the answer to the command. Of
    "held assistant_message", text that it holds back until its decision, it is said at once.
    """

    extension: str
    what: str
    since: str


class PanelOpened(Event, tag="panel_open", frozen=True, gc=False):
    """An extension shows a panel until either side closes it. ``footer`` says what its keys do."""

    extension: str
    panel_id: str
    title: str
    lines: tuple[str, ...]
    footer: str = ""


class PanelRendered(Event, tag="panel_render", frozen=True, gc=False):
    """An open panel shows something else."""

    extension: str
    panel_id: str
    title: str
    lines: tuple[str, ...]
    footer: str = ""


class PanelClosed(Event, tag="panel_close", frozen=True, gc=False):
    """A panel is over."""

    extension: str
    panel_id: str


AgentEvent: TypeAlias = (
    UserMessage
    | TurnStart
    | AssistantStart
    | TextDelta
    | ThinkingDelta
    | ToolUseStart
    | ToolUseArgs
    | ToolUseEnd
    | Usage
    | AssistantMessage
    | ToolCall
    | ToolProgress
    | ToolResult
    | TurnEnd
    | Done
    | Error
    | CompactDone
    | Retry
    | ApprovalRequest
    | ApprovalAnswer
    | ConversationReplaced
    | Reconfigured
    | ExtNotify
    | ExtWaiting
    | PanelOpened
    | PanelRendered
    | PanelClosed
)


def decode(line: bytes | str) -> AgentEvent:
    """Read an event from its line of JSON; raise msgspec.DecodeError if it is none."""
    try:
        return _decoder().decode(line)
    except (UnicodeDecodeError, RecursionError) as problem:
        raise msgspec.DecodeError(str(problem)) from problem


def text(events: Iterable[AgentEvent]) -> str:
    """Return what the model said in ``events``: its deltas, joined."""
    return "".join(event.delta for event in events if isinstance(event, TextDelta))


@cache
def _decoder() -> msgspec.json.Decoder[AgentEvent]:
    # Made when it is first needed: whoever only writes events must not wait for it.
    return decoder(AgentEvent)
