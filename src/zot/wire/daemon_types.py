"""Parameters and results of the daemon's methods. Does no I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from zot.events import (
    ApprovalRequest,
    Decision,
    McpServerState,
    QuestionAction,
    QuestionRequest,
    SessionState,
    SessionStatus,
)
from zot.messages import Counters, PastMessage, ShownBlock, ShownMessage, text_of
from zot.messages import Stop as StopName
from zot.panels import ExtensionStanding
from zot.wire import host
from zot.wire.spelling import Spelled

Absent: TypeAlias = msgspec.UnsetType
ABSENT = msgspec.UNSET
#: Deadlines are rounded to milliseconds, perhaps up.
_ROUNDING_S: Final = 0.01
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class Used(Spelled, frozen=True):
    """Tokens and money. ``cost_usd`` is null where no price is known."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    cost_usd: float | None
    reasoning: int = 0

    @staticmethod
    def of(counters: Counters) -> Used:
        """Return the counters of the vocabulary as this struct."""
        used = counters
        return Used(used.input, used.output, used.cache_read, used.cache_write, used.cost, used.reasoning)

    @property
    def counters(self) -> Counters:
        """The same as the vocabulary's counters."""
        cost, known = self.cost_usd or 0.0, self.cost_usd is not None
        return Counters(self.input, self.output, self.cache_read, self.cache_write, cost, known, self.reasoning)


class OfSession(Spelled, frozen=True):
    """Parameters of a method that takes the session only."""

    session_id: str


class New(Spelled, frozen=True):
    """Create a session, or resume the one with this id."""

    agent_alias: str
    cwd: str | None = None
    session_id: str | None = None


class Opened(Spelled, frozen=True, kw_only=True):
    """A session that is open. ``last_seq`` is its newest number; a changed ``epoch`` makes older numbers void."""

    session_id: str
    agent_alias: str
    message_count: int
    workspace_dir: str
    last_seq: int
    epoch: int


class Attachment(Spelled, frozen=True):
    """A file by its ``path``, over the local socket only, or by its content in ``data_b64``, which takes precedence."""

    path: str | None = None
    data_b64: bytes | None = None
    filename: str | None = None
    mime_type: str | None = None
    source: str | None = None


#: A client's own name for a prompt, a steering message or a side question.
PromptId: TypeAlias = Annotated[str, msgspec.Meta(max_length=200)]


class Steer(Spelled, frozen=True):
    """``prompt_id`` is chosen by the client: with it, the message can be withdrawn."""

    session_id: str
    prompt: str = ""
    attachments: tuple[Attachment, ...] = ()
    prompt_id: PromptId | None = None


class Prompt(Steer, frozen=True):
    """``prompt_id`` is chosen by the client: the updates that start and end the turn repeat it."""


class TakeBack(Spelled, frozen=True):
    """Withdraw the prompt, steering message or side question with this ``prompt_id``."""

    session_id: str
    prompt_id: PromptId


class Prompted(Spelled, frozen=True):
    """A turn has ended. ``content`` is the model's last message; ``notice`` is why an extension blocked it."""

    session_id: str
    stop_reason: Literal["end_turn", "length", "cancelled"]
    content: str
    usage: Used
    notice: str | Absent = ABSENT


class FailedTurn(Spelled, frozen=True):
    """Error data for a prompt whose turn failed. ``content`` is the model's message as far as it had arrived."""

    content: str
    usage: Used
    stop_reason: Literal["error"] = "error"


class Steered(Spelled, frozen=True):
    """The message was delivered to the running turn, or has started a turn of its own."""

    session_id: str
    accepted: bool = True


class TakenBack(Spelled, frozen=True):
    """The prompt, message or question was withdrawn."""

    session_id: str
    prompt_id: str
    taken_back: bool = True


class Cancelled(Spelled, frozen=True):
    """The running turn is ending; its `turn_complete` follows."""

    session_id: str
    cancelled: bool = True


class Closed(Spelled, frozen=True):
    """The session was closed."""

    session_id: str
    closed: bool = True


class Deleted(Spelled, frozen=True):
    """The session no longer exists."""

    session_id: str
    deleted: bool = True


class Killed(Spelled, frozen=True):
    """The session was closed; its run may still be ending."""

    session_id: str
    killed: bool = True


class Detached(Spelled, frozen=True):
    """The client receives no more updates of the session."""

    session_id: str
    detached: bool = True


class Cleared(Spelled, frozen=True):
    """The conversation is empty."""

    session_id: str
    cleared: bool = True


class Compacted(Spelled, frozen=True):
    """The ``summary`` that replaces the older messages, and the usage of writing it."""

    session_id: str
    summary: str
    usage: Used


class CompactUndone(Spelled, frozen=True):
    """The conversation now has ``message_count`` messages."""

    session_id: str
    message_count: int


class Rewind(Spelled, frozen=True):
    """Keep the first ``messages``, or go back to the row ``at``. With ``files`` false, files stay as they are.

    With ``preview`` nothing changes, and the result says what would.
    """

    session_id: str
    messages: Count | None = None
    at: Count | None = None
    files: bool | None = None
    preview: bool | None = None


class RewoundFile(Spelled, frozen=True):
    """A restored file. ``path`` is relative to the session's directory, or absolute if it is outside."""

    path: str
    change: Literal["changed", "created", "removed"]


class Rewound(Spelled, frozen=True):
    """The number of messages that are left, and the restored files. A rewind to the row ``undo`` undoes this one."""

    session_id: str
    message_count: int
    files: tuple[RewoundFile, ...]
    undo: int


class Approve(Spelled, frozen=True):
    """Decide about the approval ``request_id``. ``reject_once`` means ``reject``."""

    session_id: str
    request_id: str
    decision: Literal[Decision, "reject_once"]

    @property
    def verdict(self) -> Decision:
        """The decision, with the alias `reject_once` resolved."""
        return "reject" if self.decision == "reject_once" else self.decision


class Approved(Spelled, frozen=True):
    """The decision was recorded."""

    session_id: str
    request_id: str
    acknowledged: bool = True


class AnswerQuestion(Spelled, frozen=True):
    """Answer the question ``request_id``. ``content`` has the values of its fields, for an accept."""

    session_id: str
    request_id: str
    action: QuestionAction
    content: dict[str, Any] | None = None


class QuestionAnswered(Spelled, frozen=True):
    """The answer was passed on."""

    session_id: str
    request_id: str
    acknowledged: bool = True


class PendingApproval(Spelled, frozen=True):
    """A tool call that waits for a decision. ``timeout_secs`` is the time left until its ``deadline``."""

    request_id: str
    tool_name: str
    arguments_summary: str
    timeout_secs: int
    deadline: str

    @staticmethod
    def of(request: ApprovalRequest, now: float) -> PendingApproval:
        """Return an approval request as clients see it at ``now``, in seconds since the epoch."""
        left = math.ceil(datetime.fromisoformat(request.deadline).timestamp() - now - _ROUNDING_S)
        return PendingApproval(request.id, request.tool, request.summary, max(0, left), request.deadline)


class List(Spelled, frozen=True):
    """Select sessions: by words in their messages, by agent, by directory; at most ``limit``.

    ``active`` selects those that run or wait even beyond the limit. ``details`` adds what a person wants to see of
    each: its branch, cost, last words and pending approval.
    """

    query: str | None = None
    limit: Count | None = None
    agent_alias: str | None = None
    cwd: str | None = None
    details: bool = False
    active: bool = False


class SessionEntry(Spelled, frozen=True, kw_only=True):
    """A session in a list. ``name`` repeats ``title`` for released clients."""

    session_id: str
    session_key: str
    agent_alias: str
    cwd: str
    title: str
    name: str
    created_at: str
    last_activity: str
    message_count: int
    state: SessionStatus
    last_seq: int
    #: The session that it was forked from.
    parent_id: str | Absent = ABSENT
    closed: bool = False
    # With ``details`` only.
    branch: str | Absent = ABSENT
    cost_usd: float | Absent | None = ABSENT
    last_words: str | Absent = ABSENT
    pending_approval: PendingApproval | Absent = ABSENT


class Sessions(Spelled, frozen=True):
    """The selected sessions, the latest first."""

    sessions: tuple[SessionEntry, ...]


#: The longest first line of a waiting prompt.
_MAX_LINE = 200


class WaitingPrompt(Spelled, frozen=True):
    """A prompt that waits for the running turn, or that ``steers`` it: its first line, and the token of its client."""

    prompt_id: str
    text: str
    steers: bool = False
    by: str = ""

    @staticmethod
    def of(prompt_id: str, text: str, *, steers: bool, by: str) -> WaitingPrompt:
        """Return a prompt as clients see it, shortened."""
        line = next((line for line in text.split("\n") if line.strip()), "").strip()
        return WaitingPrompt(prompt_id, line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}…", steers, by)


class State(Spelled, frozen=True, kw_only=True):
    """A snapshot of a session. ``queued`` counts the waiting prompts. ``context_window`` is 0 if unknown.

    ``locked`` means that the tools are confined to the session's directory; ``closed`` that the session was closed and
    can only be read until `session/new` resumes it.
    """

    session_id: str
    state: SessionStatus
    agent_alias: str
    provider: str
    model: str
    cwd: str
    message_count: int
    queued: int
    usage: Used
    last_seq: int
    epoch: int
    context_tokens: int = 0
    context_window: int = 0
    pending_approval: PendingApproval | Absent = ABSENT
    locked: bool = False
    closed: bool = False
    #: Questions that wait for `session/answer`, as zot RPC spells them.
    questions: tuple[QuestionRequest, ...] | Absent = ABSENT
    #: The MCP servers, if there are any.
    mcp: tuple[McpServerState, ...] | Absent = ABSENT
    #: The waiting prompts in the order of their turns, those that steer first, if there are any.
    queue: tuple[WaitingPrompt, ...] | Absent = ABSENT

    @staticmethod
    def of(
        now: SessionState,
        *,
        last_seq: int,
        epoch: int,
        time_s: float,
        closed: bool,
        queue: tuple[WaitingPrompt, ...] = (),
    ) -> State:
        """Return a snapshot taken at ``time_s``, in seconds since the epoch, as clients see it."""
        return State(
            session_id=now.session,
            state=now.state,
            agent_alias=now.agent,
            provider=now.provider,
            model=now.model,
            cwd=now.cwd,
            message_count=now.message_count,
            queued=now.queued,
            usage=Used.of(now.usage),
            last_seq=last_seq,
            epoch=epoch,
            context_tokens=now.context_tokens,
            context_window=now.context_window,
            pending_approval=ABSENT if now.pending is None else PendingApproval.of(now.pending, time_s),
            locked=now.locked,
            closed=closed,
            questions=now.questions or ABSENT,
            mcp=now.mcp or ABSENT,
            queue=queue or ABSENT,
        )

    @property
    def snapshot(self) -> SessionState:
        """The same as the vocabulary's snapshot, without the approval request: its update has all of it."""
        return SessionState(
            self.provider,
            self.model,
            self.cwd,
            self.message_count,
            self.state != "idle",
            self.usage.counters,
            self.state,
            session=self.session_id,
            agent=self.agent_alias,
            queued=self.queued,
            context_tokens=self.context_tokens,
            context_window=self.context_window,
            locked=self.locked,
            questions=self.questions or (),
            mcp=self.mcp or (),
        )


class ContextUse(Spelled, frozen=True):
    """What fills the model's window, in tokens: estimates, scaled to the service's last count of the whole.

    ``messages`` are prompts, answers and tool calls, ``results`` those of tools. ``window`` and ``free`` are 0 if the
    window is unknown.
    """

    session_id: str
    system: int
    tools: int
    messages: int
    results: int
    free: int
    window: int


class Watching(Spelled, frozen=True):
    """Changes of sessions follow as `sessions/changed`."""

    watching: bool = True


class Changed(Spelled, frozen=True):
    """What a session does has changed, the parameters of `sessions/changed`: its state, open requests or queue."""

    session_id: str
    state: SessionStatus


class Lock(Spelled, frozen=True):
    """Confine the tools to the session's directory, or lift that."""

    session_id: str
    locked: bool


class ModelEntry(Spelled, frozen=True):
    """A model. ``context_window`` is in tokens, 0 if unknown."""

    provider: str
    id: str
    name: str
    context_window: int


class ListModels(Spelled, frozen=True):
    """``all`` includes the models of other usable providers, over the local socket only."""

    session_id: str
    all: bool = False


class Models(Spelled, frozen=True):
    """The models that the session can use."""

    session_id: str
    models: tuple[ModelEntry, ...]


class AllowedEntry(Spelled, frozen=True):
    """A permanent approval: a tool, and its command or path as ``subject``; "" allows any."""

    tool: str
    subject: str


class AllowedCalls(Spelled, frozen=True):
    """The calls that are always allowed in this session."""

    session_id: str
    allowed: tuple[AllowedEntry, ...]


class Forget(Spelled, frozen=True):
    """Revoke a permanent approval: its tool, and its command or path as ``subject``."""

    session_id: str
    tool: str
    subject: str = ""


class Forgotten(Spelled, frozen=True):
    """The permanent approval was revoked."""

    session_id: str
    forgotten: bool = True


class Attach(Spelled, frozen=True):
    """Subscribe to a session: replay everything ``after`` that number first; without it, live updates only."""

    session_id: str
    after: Count | None = None


class Attached(Spelled, frozen=True, kw_only=True):
    """``asked_seq`` is the number of the oldest open request; later events, such as a new model, may follow it.

    ``questions`` wait for `session/answer`, as zot RPC spells them.
    """

    session_id: str
    last_seq: int
    epoch: int
    state: SessionStatus
    pending_approval: PendingApproval | Absent = ABSENT
    asked_seq: int | Absent = ABSENT
    last_event_seq: int | Absent = ABSENT
    questions: tuple[QuestionRequest, ...] | Absent = ABSENT


class Fork(Spelled, frozen=True):
    """Copy the first ``messages`` of a session, by default all, into a new one."""

    session_id: str
    new_session_id: str | None = None
    messages: Count | None = None


class Overrides(Spelled, frozen=True):
    """Another ``model_provider`` requires a ``model`` and the local socket."""

    model: str | None = None
    reasoning: str | None = None
    model_provider: str | None = None


class Configure(Spelled, frozen=True):
    """Change settings of a session. Absent ``overrides`` stay as they are."""

    session_id: str
    overrides: Overrides = Overrides()


class Configured(Spelled, frozen=True):
    """``overrides`` are all that are in effect."""

    session_id: str
    overrides: Overrides


class Rename(Spelled, frozen=True):
    """Give a session a ``title``."""

    session_id: str
    title: str


class Renamed(Spelled, frozen=True):
    """The session has this ``title``."""

    session_id: str
    title: str


class GitBranch(Spelled, frozen=True):
    """``branch`` and ``hash`` are absent outside a repository."""

    session_id: str
    branch: str | Absent = ABSENT
    hash: str | Absent = ABSENT


class Ask(Spelled, frozen=True):
    """``prompt_id`` is chosen by the client: with it, the question can be withdrawn."""

    session_id: str
    question: str
    prompt_id: PromptId | None = None


class Answered(Spelled, frozen=True):
    """The answer to a side question, and its usage."""

    session_id: str
    content: str
    usage: Used


class FindFiles(Spelled, frozen=True):
    """Select files below the session's directory whose paths contain the letters of ``query`` in order."""

    session_id: str
    query: str = ""
    limit: Count | None = None


class FoundFiles(Spelled, frozen=True):
    """``files`` are relative to the session's directory, the best match first."""

    session_id: str
    files: tuple[str, ...]


class FindImage(Spelled, frozen=True):
    """The image number ``index`` of a message: of the tool result ``call_id``, or of the user message of ``time``."""

    session_id: str
    call_id: str | None = None
    time: str | None = None
    index: Count = 0


class FoundImage(Spelled, frozen=True):
    """An image and its type."""

    session_id: str
    mime_type: str
    data_b64: bytes


class ExtensionEntry(Spelled, frozen=True):
    """An extension of a session. ``problem`` says why it does not run."""

    name: str
    state: ExtensionStanding
    problem: str
    tools: tuple[str, ...]
    commands: tuple[str, ...]


class ExtensionEntries(Spelled, frozen=True):
    """The extensions of a session, in their order."""

    session_id: str
    extensions: tuple[ExtensionEntry, ...]


class CommandEntry(Spelled, frozen=True):
    """A slash command and the extension that provides it."""

    name: str
    description: str
    extension: str


class Commands(Spelled, frozen=True):
    """The slash commands of the session's extensions."""

    session_id: str
    commands: tuple[CommandEntry, ...]


class ResourceEntry(Spelled, frozen=True):
    """A resource of an MCP server. ``mention`` names it in a prompt, as `@SERVER:URI`."""

    mention: str
    title: str


class Resources(Spelled, frozen=True):
    """The resources that prompts of the session can mention, as far as they are known."""

    session_id: str
    resources: tuple[ResourceEntry, ...]


class RunCommand(Spelled, frozen=True):
    """Run the slash command ``name``. ``args`` is the text after the name."""

    session_id: str
    name: str
    args: str = ""


class CommandRun(Spelled, frozen=True, kw_only=True):
    """The action that an extension's command asks for. With ``prompt``, the daemon has started that prompt."""

    session_id: str
    extension: str
    action: str
    prompt: str = ""
    insert: str = ""
    display: str = ""
    panel_id: str = ""


class PanelKey(Spelled, frozen=True):
    """Send a key to a panel. ``text`` is the character of the key ``rune``."""

    session_id: str
    panel_id: str
    key: str
    text: str = ""


class PanelClose(Spelled, frozen=True):
    """Close a panel."""

    session_id: str
    panel_id: str


class PanelTold(Spelled, frozen=True):
    """The extension was notified."""

    session_id: str
    panel_id: str


class Reloaded(Spelled, frozen=True):
    """``extensions`` are the names of those that run now."""

    session_id: str
    extensions: tuple[str, ...]


class Dismiss(Spelled, frozen=True):
    """Dismiss the absent guard ``name``."""

    session_id: str
    name: str


class Dismissed(Spelled, frozen=True):
    """The guard was dismissed."""

    session_id: str
    dismissed: bool = True


BadEnd: TypeAlias = Literal["length", "cancelled", "error"]
#: The stop reasons of turns that did not complete, as the daemon spells them.
_STOPS: Final[Mapping[StopName, BadEnd]] = {"length": "length", "aborted": "cancelled", "error": "error"}


class Messages(Spelled, frozen=True):
    """Ask for ``limit`` messages before the one with the number ``before_index``, by default the last ones."""

    session_id: str
    limit: Count | None = None
    before_index: Count | None = None
    view: Literal["shown", "full", "past"] = "shown"


class MessageEntry(Spelled, frozen=True):
    """A message. ``content`` is its text; ``blocks`` its whole content, spelled as in zot RPC on every connection.

    With the view ``past``, ``thinking`` is the model's reasoning. If the turn did not complete after this message,
    ``stop_reason`` and ``error`` say why.
    """

    role: Literal["user", "assistant", "tool"]
    content: str
    time: str
    blocks: tuple[ShownBlock, ...]
    thinking: str | Absent = ABSENT
    stop_reason: BadEnd | Absent = ABSENT
    error: str | Absent = ABSENT

    @staticmethod
    def of(message: ShownMessage) -> MessageEntry:
        """Return a message of the vocabulary as this struct."""
        blocks = message.content
        text = text_of(blocks) or "".join(text_of(getattr(block, "content", ())) for block in blocks)
        entry = MessageEntry(message.role, text, message.time, blocks)
        if not isinstance(message, PastMessage):
            return entry
        stop = _STOPS.get(message.stop, ABSENT)
        return msgspec.structs.replace(
            entry, thinking=message.thought or ABSENT, stop_reason=stop, error=message.error or ABSENT
        )

    def past(self) -> PastMessage:
        """Return the message as user interfaces show it."""
        stops: list[StopName] = [stop for stop, spelled in _STOPS.items() if spelled == self.stop_reason]
        stop = stops[0] if stops else "end_turn"
        return PastMessage(self.role, self.blocks, self.time, self.thinking or "", stop, self.error or "")


class MessagePage(Spelled, frozen=True):
    """``start`` is the number of the first of these ``messages``, ``total`` how many the session has.

    With the view ``past``, `session/attach` after ``last_seq`` replays everything later.
    """

    session_id: str
    messages: tuple[MessageEntry, ...]
    total: int
    start: int
    last_seq: int | Absent = ABSENT


Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]


class Nothing(Spelled, frozen=True):
    """Parameters of a method that takes none; any are ignored."""


class Status(Spelled, frozen=True, kw_only=True):
    """The daemon and its loaded sessions. ``listens`` are the addresses besides the local endpoint."""

    server_version: str
    protocol_version: int
    active_sessions: int
    session_ids: tuple[str, ...]
    server_pid: int | Absent = ABSENT
    uptime_seconds: int | Absent = ABSENT
    clients: int | Absent = ABSENT
    config_dir: str | Absent = ABSENT
    config_file: str | Absent = ABSENT
    config_kind: Literal["default", "custom", "temporary"] | Absent = ABSENT
    local_ipc_endpoint: str | Absent = ABSENT
    listens: tuple[str, ...] | Absent = ABSENT
    data_dir: str | Absent = ABSENT


class Component(Spelled, frozen=True, kw_only=True):
    """The health of one part of the daemon."""

    status: Literal["ok", "error"]
    updated_at: str
    last_ok: str | None = None
    last_error: str | None = None
    restart_count: int = 0


class Process(Spelled, frozen=True, kw_only=True):
    """Resources of the daemon's process."""

    rss_bytes: int
    system_ram_total_bytes: int
    num_cpus: int
    cpu_percent: float | None = None


class Health(Spelled, frozen=True, kw_only=True):
    """The health of the daemon, by component."""

    pid: int
    updated_at: str
    uptime_seconds: int
    components: dict[str, Component]
    process: Process


class AgentEntry(Spelled, frozen=True, kw_only=True):
    """A named configuration. ``channels`` is always empty; released clients expect it."""

    alias: str
    enabled: bool = True
    channels: tuple[str, ...] = ()
    provider: str = ""
    model: str = ""
    live_sessions: int = 0
    persisted_sessions: int = 0


class Agents(Spelled, frozen=True):
    """The agents that sessions can be created from."""

    agents: tuple[AgentEntry, ...]


class Subscribed(Spelled, frozen=True):
    """Log records follow as `logs/event`."""

    subscribed: bool = True


class LogService(msgspec.Struct, frozen=True):
    """The program that wrote the record."""

    name: str
    version: str


class LogHappening(msgspec.Struct, frozen=True):
    """What the record is about."""

    category: str
    action: str
    outcome: str | Absent = ABSENT


class LogEvent(msgspec.Struct, frozen=True, kw_only=True, rename={"timestamp": "@timestamp"}):
    """One log record, the parameters of `logs/event`. Spelled this way on every connection."""

    id: str
    timestamp: str
    severity_number: Literal[1, 5, 9, 13, 17]
    severity_text: str
    event: LogHappening
    service: LogService
    message: str
    attributes: dict[str, Any] | Absent = ABSENT
    schema_version: int = 2


class Reloading(Spelled, frozen=True):
    """``agents`` are the aliases in the new configuration."""

    agents: tuple[str, ...]
    reloading: bool = True


class ConfigList(Spelled, frozen=True):
    """Select settings whose names start with ``prefix``."""

    prefix: str = ""


class ConfigEntries(Spelled, frozen=True):
    """Always empty; released clients expect it."""

    entries: tuple[dict[str, Any], ...] = ()


class Sections(Spelled, frozen=True):
    """Always empty; released clients expect it."""

    sections: tuple[dict[str, Any], ...] = ()


class Templates(Spelled, frozen=True):
    """Always empty; released clients expect it."""

    templates: tuple[dict[str, Any], ...] = ()


class ClientEntry(Spelled, frozen=True, kw_only=True):
    """A connection. ``peer_label`` identifies the peer, such as its process; ``transport`` is how it connected."""

    tui_id: str
    connected_at: str
    connected_at_unix: int
    peer_label: str
    transport: str


class Clients(Spelled, frozen=True):
    """The daemon's connections."""

    tuis: tuple[ClientEntry, ...]


class CostQuery(Spelled, frozen=True, rename={"since": "from", "until": "to"}):
    """Select model calls: by agent, and by time: RFC 3339, or days such as 2026-01-31, both included."""

    agent: str | None = None
    since: str | None = None
    until: str | None = None


class Spending(Spelled, frozen=True):
    """Tokens and cost of ``request_count`` model calls. A call without a known price counts as free."""

    cost_usd: float = 0.0
    total_tokens: int = 0
    request_count: int = 0

    def __add__(self, other: Spending) -> Spending:
        return Spending(
            self.cost_usd + other.cost_usd,
            self.total_tokens + other.total_tokens,
            self.request_count + other.request_count,
        )


class Costs(Spelled, frozen=True, kw_only=True):
    """Tokens and cost of the selected model calls, by period, model, agent and day."""

    session_cost_usd: float = 0.0
    daily_cost_usd: float = 0.0
    monthly_cost_usd: float = 0.0
    total_tokens: int = 0
    request_count: int = 0
    by_model: dict[str, Spending] = {}  # noqa: RUF012
    by_agent: dict[str, Spending] = {}  # noqa: RUF012
    by_day: dict[str, Spending] = {}  # noqa: RUF012


class RecentAudit(Spelled, frozen=True):
    """``limit`` is how many lines to return, 50 by default and 500 at most."""

    limit: Count | None = None


class AuditLine(Spelled, frozen=True, kw_only=True):
    """A line of the audit log, without its hash. Absent fields do not apply."""

    n: int
    time: str
    event: str
    transport: str | Absent = ABSENT
    uid: int | Absent = ABSENT
    pid: int | Absent = ABSENT
    token: str | Absent = ABSENT
    method: str | Absent = ABSENT
    session: str | Absent = ABSENT
    outcome: str | Absent = ABSENT
    lines: int | Absent = ABSENT


class AuditLines(Spelled, frozen=True):
    """The newest lines of the audit log, the newest first."""

    lines: tuple[AuditLine, ...]


class HostRespond(host.Request, frozen=True, rename={"age_ms": "ageMs"}):
    """A request of the host protocol. ``age_ms`` is how long ago it was made.

    ``ahead`` is how many requests were queued before it at a daemon that returned it unprocessed.
    """

    age_ms: Seconds | None = None
    ahead: Annotated[int, msgspec.Meta(ge=0)] | None = None


class HostAnswered(msgspec.Struct, frozen=True):
    """The response as in the host protocol, and the matching exit code."""

    response: host.Response
    code: int = 0


class HostDelivered(Spelled, frozen=True):
    """Confirm that the response to a request was delivered, so that it is not stored for long."""

    request_id: str


class Noted(Spelled, frozen=True):
    """The delivery was recorded."""

    noted: bool = True


class Stop(Spelled, frozen=True):
    """``grace_s`` is how long running turns may continue. With ``handover``, the caller takes over the endpoint."""

    grace_s: Seconds | None = None
    handover: bool = False


class Stopping(Spelled, frozen=True):
    """``grace_s`` is how long running turns may continue: the daemon may take that long to exit."""

    stopping: bool = True
    grace_s: float = 0.0


# Hand-over of an endpoint from one daemon to the next.


class HandoverStep(msgspec.Struct, frozen=True):
    """Step of a hand-over. ``removes`` is true if the owner removes the socket's file at its end."""

    step: str = ""
    removes: bool = True


class GraceReport(msgspec.Struct, frozen=True, rename="camel"):
    """Grace period of the current daemon's runs, if its answer contains one."""

    grace_s: float = 0.0


class HandoverLine(msgspec.Struct, frozen=True):
    """The fields of a line of the current daemon that matter to its successor."""

    method: str = ""
    params: HandoverStep = HandoverStep()
    result: GraceReport = GraceReport()
    error: dict[str, Any] | None = None
