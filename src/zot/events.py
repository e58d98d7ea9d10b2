"""Events of a session: one vocabulary for every user interface and protocol.

Each event is a frozen struct tagged with its name in zot RPC v1, so the native dialect is `encode(event)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final, Literal, TypeAlias

import msgspec

from zot.encoding import decoder
from zot.messages import Counters, ShownBlock, ShownImage, Stop, TextBlock
from zot.text import printable


class BaseEvent(msgspec.Struct, frozen=True, gc=False, tag_field="type", omit_defaults=True):
    """An event of a session."""


class UserMessage(BaseEvent, tag="user_message", frozen=True, gc=False):
    """A user message. ``prompt_id`` is the daemon client's id of the prompt that starts with it.

    ``by`` names the token of a client that sent it over the network.
    """

    content: tuple[ShownBlock, ...]
    time: str
    prompt_id: str = ""
    by: str = ""


class TurnStart(BaseEvent, tag="turn_start", frozen=True, gc=False):
    """A model call starts. ``step`` counts the model calls of the run, from 1."""

    step: int


class AssistantStart(BaseEvent, tag="assistant_start", frozen=True, gc=False):
    """The model starts to answer. Its deltas follow."""


class TextDelta(BaseEvent, tag="text_delta", frozen=True, gc=False):
    """The next piece of the model's text. Join the pieces; `assistant_message` repeats the whole text."""

    delta: str


class ThinkingDelta(BaseEvent, tag="thinking_delta", frozen=True, gc=False):
    """The next piece of the model's thinking. It is not part of `assistant_message`."""

    delta: str


class ToolUseStart(BaseEvent, tag="tool_use_start", frozen=True, gc=False):
    """The model starts to write a call of the tool ``name``. `tool_call` follows when the call is complete."""

    id: str
    name: str


class ToolUseArgs(BaseEvent, tag="tool_use_args", frozen=True, gc=False):
    """The next piece of a tool call's arguments, as JSON text."""

    id: str
    delta: str


class ToolUseEnd(BaseEvent, tag="tool_use_end", frozen=True, gc=False):
    """The model has written the tool call ``id`` to its end."""

    id: str


class Usage(BaseEvent, tag="usage", frozen=True, gc=False):
    """Usage of one model call. ``auto``: the call made the summary of an automatic compaction."""

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
        """The cost of this model call in US dollars, None if no price is known."""
        return self.counters.cost

    @property
    def counters(self) -> Counters:
        """Usage of this model call."""
        return Counters(
            self.input,
            self.output,
            self.cache_read,
            self.cache_write,
            self.cost_usd,
            self.price_known,
            self.reasoning,
        )


class AssistantMessage(BaseEvent, tag="assistant_message", frozen=True, gc=False):
    """The model's complete reply. Omitted if it is empty or an extension blocked it."""

    content: tuple[ShownBlock, ...]
    time: str


class ToolCall(BaseEvent, tag="tool_call", frozen=True, gc=False):
    """A complete tool call, before it runs.

    ``args`` is null if the model wrote no JSON object; the tool does not run then.
    """

    id: str
    name: str
    args: dict[str, Any] | None


class ToolProgress(BaseEvent, tag="tool_progress", frozen=True, gc=False):
    """Output of a running tool, as it is written."""

    id: str
    text: str


class ResultDetails(msgspec.Struct, frozen=True, gc=False):
    """Origin of a result: ``extension`` provides the tool."""

    extension: str


class ToolResult(BaseEvent, tag="tool_result", frozen=True, gc=False):
    """The result of a tool call. ``details`` is present if an extension provides the tool."""

    id: str
    is_error: bool
    content: tuple[TextBlock | ShownImage, ...]
    details: ResultDetails | None = None


class TurnEnd(BaseEvent, tag="turn_end", frozen=True, gc=False):
    """A model call ended. ``stop`` is the reason; ``error`` is present if the call failed."""

    stop: Stop
    error: str | None = None


class Done(BaseEvent, tag="done", frozen=True, gc=False):
    """The run ended, whatever its outcome. Nothing of it follows."""


class Error(BaseEvent, tag="error", frozen=True, gc=False):
    """The run failed, for the reason in ``message``. `done` follows."""

    message: str


class CompactDone(BaseEvent, tag="compact_done", frozen=True, gc=False):
    """The conversation was compacted. ``auto``: because it would not have fitted, not on request.

    ``pruned`` is the number of tool results that were shortened; ``summary`` is empty if that was enough.
    """

    summary: str
    auto: bool = False
    pruned: int = 0


class Retry(BaseEvent, tag="retry", frozen=True, gc=False):
    """A model call failed before its first delta and will be retried after ``delay_ms``."""

    reason: str
    attempt: int
    delay_ms: int


class ApprovalRequest(BaseEvent, tag="approval_request", frozen=True, gc=False):
    """A tool call waits for a decision until ``deadline``. Answer with ``id``; ``summary`` is one line to show."""

    id: str
    tool: str
    args: dict[str, Any]
    summary: str
    deadline: str


#: Answers of a person to an approval request.
Decision: TypeAlias = Literal["allow_once", "allow_always", "reject"]
#: Outcomes of an approval request that no person decided.
Undecided: TypeAlias = Literal["expired", "unanswerable", "aborted"]
Resolution: TypeAlias = Literal[Decision, Undecided]


class ApprovalAnswer(BaseEvent, tag="approval_answer", frozen=True, gc=False):
    """The outcome of approval request ``id``. ``by`` names the person who decided, if known."""

    id: str
    decision: Resolution
    by: str = ""


class QuestionChoice(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A value to choose; ``title`` is shown in its place."""

    value: str
    title: str = ""


class QuestionField(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One value that a question asks for.

    ``choice`` takes one of ``choices``, ``choices`` a list of them. ``minimum`` and ``maximum`` bound a number, the
    length of a string, or the number of choices. ``format`` is email, uri, date or date-time.
    """

    name: str
    kind: Literal["string", "number", "integer", "boolean", "choice", "choices"]
    title: str = ""
    description: str = ""
    required: bool = False
    choices: tuple[QuestionChoice, ...] = ()
    default: str | int | float | bool | list[str] | None = None
    minimum: float | None = None
    maximum: float | None = None
    format: str = ""


class QuestionRequest(BaseEvent, tag="question_request", frozen=True, gc=False):
    """A program asks the user until ``deadline``, for example an MCP server during a tool call. Answer with ``id``.

    ``origin`` names the program, as ``mcp:NAME``. Without ``fields`` it asks for consent only; with ``url``, the user
    is to open that address and consents by an accept. ``call`` is the id of the tool call.
    """

    id: str
    origin: str
    message: str
    deadline: str
    fields: tuple[QuestionField, ...] = ()
    url: str = ""
    call: str = ""


#: Answers of a person to a question: give the values, refuse them, or leave without an answer.
QuestionAction: TypeAlias = Literal["accept", "decline", "cancel"]


class QuestionAnswer(BaseEvent, tag="question_answer", frozen=True, gc=False):
    """The outcome of question ``id``, without the values: they may be secret. ``by`` names the person, if known."""

    id: str
    action: Literal[QuestionAction, Undecided]
    by: str = ""


class ConversationReplaced(BaseEvent, tag="conversation_replaced", frozen=True, gc=False):
    """The conversation was cleared, replaced or rewound outside of a run.

    It now has ``messages`` messages. Clients that show it must read it again.
    """

    messages: int


class Reconfigured(BaseEvent, tag="reconfigured", frozen=True, gc=False):
    """A session setting changed, such as the model. Clients read the session's state again. Not recorded."""


class ExtNotify(BaseEvent, tag="ext_notify", frozen=True, gc=False):
    """A notice from an extension, or from zot about it. Recorded only if it says why a message was ``blocked``."""

    extension: str
    level: Literal["info", "success", "warn", "error"]
    message: str
    blocked: Literal["", "assistant_message"] = ""


class ExtWaiting(BaseEvent, tag="ext_waiting", frozen=True, gc=False):
    """A run has been waiting for an extension for a while: its start, a tool, a command, or an intercept.

    Sent once per wait. The wait ends with the next event of the run, or with the command's response. For "held
    assistant_message" (text withheld until the extension decides) it is sent at once.
    """

    extension: str
    what: str
    since: str


class PanelOpened(BaseEvent, tag="panel_open", frozen=True, gc=False):
    """An extension opened a panel. It stays open until either side closes it. ``footer`` explains its keys."""

    extension: str
    panel_id: str
    title: str
    lines: tuple[str, ...]
    footer: str = ""


class PanelRendered(BaseEvent, tag="panel_render", frozen=True, gc=False):
    """The content of an open panel changed."""

    extension: str
    panel_id: str
    title: str
    lines: tuple[str, ...]
    footer: str = ""


class PanelClosed(BaseEvent, tag="panel_close", frozen=True, gc=False):
    """A panel was closed."""

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
    | QuestionRequest
    | QuestionAnswer
    | ConversationReplaced
    | Reconfigured
    | ExtNotify
    | ExtWaiting
    | PanelOpened
    | PanelRendered
    | PanelClosed
)
#: Deltas, whose content a later event repeats as a whole.
PIECES: Final[frozenset[type]] = frozenset({TextDelta, ThinkingDelta, ToolUseArgs, ToolProgress})

#: States of an MCP server: not started yet, starting, running, failed, in need of a login, switched off, or unusable.
McpStanding: TypeAlias = Literal["idle", "starting", "running", "failed", "login", "disabled", "unusable"]


class McpServerState(msgspec.Struct, frozen=True, omit_defaults=True):
    """An MCP server of a session. ``tools`` counts those that are known; ``problem`` says why it cannot be used."""

    name: str
    state: McpStanding
    tools: int = 0
    problem: str = ""
    revision: str = ""


SessionStatus: TypeAlias = Literal["idle", "running", "waiting_approval"]


class SessionState(msgspec.Struct, frozen=True):
    """A snapshot of a session, for every protocol and user interface.

    ``pending`` is the open approval request. ``session`` is "" if the session is not recorded. ``queued`` counts the
    prompts that wait for the running one. ``context_window`` is 0 if unknown. ``locked`` means that the tools are
    confined to the session's directory. ``questions`` wait for the user. ``mcp`` has the MCP servers.
    """

    provider: str
    model: str
    cwd: str
    message_count: int
    busy: bool
    usage: Counters
    state: SessionStatus = "idle"
    pending: ApprovalRequest | None = None
    session: str = ""
    agent: str = "default"
    queued: int = 0
    context_tokens: int = 0
    context_window: int = 0
    locked: bool = False
    questions: tuple[QuestionRequest, ...] = ()
    mcp: tuple[McpServerState, ...] = ()


def status_of(pending: ApprovalRequest | None, *, busy: bool) -> SessionStatus:
    """Return in one word what a session does."""
    if pending is not None:
        return "waiting_approval"
    return "running" if busy else "idle"


def decode(line: bytes | str) -> AgentEvent:
    """Decode an event from its line of JSON. Raise msgspec.DecodeError if it is not an event."""
    try:
        return _decoder().decode(line)
    except (UnicodeDecodeError, RecursionError) as problem:
        raise msgspec.DecodeError(str(problem)) from problem


def text(events: Iterable[AgentEvent]) -> str:
    """Return the text the model produced in ``events``: its deltas, joined."""
    return "".join(event.delta for event in events if isinstance(event, TextDelta))


@cache
def _decoder() -> msgspec.json.Decoder[AgentEvent]:
    # Built on first use: callers that only encode events do not pay for it.
    return decoder(AgentEvent)


def notice_lines(events: Sequence[AgentEvent]) -> str:
    """Return the extensions' notices among ``events`` as lines for standard error."""
    notices = [event for event in events if isinstance(event, ExtNotify)]
    return "".join(f"[{one.extension}] {one.level}: {printable(one.message)}\n" for one in notices)
