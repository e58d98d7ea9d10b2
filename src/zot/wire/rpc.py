"""zot RPC v1: commands, responses and the encoding of events. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from zot.encoding import UNREADABLE, decoder, encode, encode_lines, explain
from zot.errors import ProtocolError
from zot.events import (
    AgentEvent,
    ApprovalAnswer,
    ApprovalRequest,
    CompactDone,
    ConversationReplaced,
    ExtNotify,
    ExtWaiting,
    McpServerState,
    PanelClosed,
    PanelOpened,
    PanelRendered,
    QuestionAnswer,
    QuestionRequest,
    Reconfigured,
    Retry,
    SessionState,
    ThinkingDelta,
    ToolResult,
    Usage,
)
from zot.messages import Counters
from zot.text import did_you_mean, replace_surrogate_escapes
from zot.wire.lines import may_repeat_type, not_an_object, refuse_repeated_type
from zot.wire.rpc_greeting import IDS, Command, Hello, Ping, check_id


class ImageInput(msgspec.Struct, frozen=True):
    """An image for the model: its type, and its base64 ``data``."""

    data: bytes = b""
    mime_type: str | None = None


class Prompt(Command, tag="prompt", frozen=True):
    """Run a prompt. Answered when the run starts. ``message`` and ``images`` must not both be empty."""

    message: str | None = None
    images: tuple[ImageInput, ...] | None = None


class Steer(Command, tag="steer", frozen=True):
    """Add a message to the running prompt before its next model call. Answered then. A prompt if none is running."""

    message: str | None = None
    images: tuple[ImageInput, ...] | None = None


class Abort(Command, tag="abort", frozen=True):
    """End the running prompt or compaction. ``queue`` drops the queued prompts as well."""

    queue: bool | None = None


class Compact(Command, tag="compact", frozen=True):
    """Replace the older messages by a summary. Answered when the compaction starts."""


class UndoCompact(Command, tag="undo_compact", frozen=True):
    """Restore the messages that the newest compaction replaced."""


class GetState(Command, tag="get_state", frozen=True):
    """Return a snapshot of the session."""


class GetMessages(Command, tag="get_messages", frozen=True):
    """Return the conversation. The view ``full`` includes compacted and cleared messages, and the model's own text."""

    view: Literal["shown", "full"] | None = None


class Clear(Command, tag="clear", frozen=True):
    """Clear the conversation. Refused while busy."""


class SetModel(Command, tag="set_model", frozen=True):
    """Use another model of the same provider from the next model call on."""

    model: str | None = None


class GetModels(Command, tag="get_models", frozen=True):
    """Return the models known for the provider."""


class GetCommands(Command, tag="get_commands", frozen=True):
    """Return the slash commands of extensions."""


class GetResources(Command, tag="get_resources", frozen=True):
    """Return the resources of MCP servers that prompts can mention."""


class RunCommand(Command, tag="run_command", frozen=True):
    """Run a slash command of an extension. Answered when the extension has answered."""

    name: str | None = None
    args: str | None = None


class PanelKey(Command, tag="panel_key", frozen=True):
    """Send a key to a panel. ``text`` is the character of the key ``rune``."""

    panel_id: str | None = None
    key: str | None = None
    text: str | None = None


class PanelClose(Command, tag="panel_close", frozen=True):
    """Close a panel."""

    panel_id: str | None = None


class Approve(Command, tag="approve", frozen=True):
    """Decide about the approval ``request``: ``allow_once``, ``allow_always`` or ``reject``."""

    request: str | None = None
    decision: str | None = None


class Answer(Command, tag="answer", frozen=True):
    """Answer the question ``request``: ``accept`` with the values of its fields as ``content``, ``decline`` or
    ``cancel``."""

    request: str | None = None
    action: str | None = None
    content: dict[str, Any] | None = None


class Fork(Command, tag="fork", frozen=True):
    """Copy the first ``messages`` of the session, by default all, into a new session, named ``session`` if given."""

    session: str | None = None
    messages: Annotated[int, msgspec.Meta(ge=0)] | None = None


class Rewind(Command, tag="rewind", frozen=True):
    """Keep the first ``messages``, or go back to the row ``at``, and restore changed files unless ``files`` is false.

    With ``preview`` nothing changes, and the response says what would.
    """

    messages: Annotated[int, msgspec.Meta(ge=0)] | None = None
    at: Annotated[int, msgspec.Meta(ge=0)] | None = None
    files: bool | None = None
    preview: bool | None = None


AnyCommand: TypeAlias = (
    Hello
    | Prompt
    | Steer
    | Abort
    | Compact
    | UndoCompact
    | GetState
    | GetMessages
    | Clear
    | SetModel
    | GetModels
    | Ping
    | GetCommands
    | GetResources
    | RunCommand
    | PanelKey
    | PanelClose
    | Approve
    | Answer
    | Fork
    | Rewind
)


class ModelData(msgspec.Struct, frozen=True):
    """A model. ``reasoning`` is true if it can think."""

    id: str
    provider: str
    context_window: int
    max_output: int
    reasoning: bool


class StateData(msgspec.Struct, frozen=True):
    """A snapshot of the session. ``busy`` is true until the `done` of the last accepted prompt."""

    provider: str
    model: str
    cwd: str
    message_count: int
    busy: bool
    usage: Counters
    #: With the feature `questions`: those that wait for an answer.
    questions: tuple[QuestionRequest, ...] | msgspec.UnsetType = msgspec.UNSET
    #: With the feature `mcp`: the MCP servers.
    mcp: tuple[McpServerState, ...] | msgspec.UnsetType = msgspec.UNSET

    @staticmethod
    def of(now: SessionState, features: frozenset[str]) -> StateData:
        """Return the part of a snapshot that `get_state` answers to a client with these features."""
        asked = now.questions if "questions" in features else msgspec.UNSET
        mcp = now.mcp if "mcp" in features else msgspec.UNSET
        return StateData(now.provider, now.model, now.cwd, now.message_count, now.busy, now.usage, asked, mcp)


STARTED: Final = {"started": True}


def decode_command(line: bytes) -> AnyCommand:
    """Decode one command. Raise ProtocolError, with id and type if readable, if the line is none."""
    try:
        line.decode()  # The typed decode does not check UTF-8 in skipped values.
        command = _commands().decode(line)
    except UNREADABLE as problem:
        command = _decode_leniently(line, problem)
    if may_repeat_type(line):
        refuse_repeated_type(line, noun="command")
    check_id(command)
    return command


@cache
def _commands() -> msgspec.json.Decoder[AnyCommand]:
    # Built on first use: building it takes as long as answering hello and ping.
    return decoder(AnyCommand)


def _decode_leniently(line: bytes, problem: Exception) -> AnyCommand:
    """Decode a command whose keys differ in case, as the first zot allowed; else raise ProtocolError."""
    clean = replace_surrogate_escapes(line.decode("utf-8", "replace").encode())
    try:
        fields: dict[str, msgspec.Raw] = msgspec.json.decode(clean, type=dict[str, msgspec.Raw])
    except UNREADABLE:
        raise ProtocolError(not_an_object(line, problem, noun="command")) from None
    fields = {key.lower(): value for key, value in fields.items()}
    frame_id, kind = _readable_id(fields.get("id")), _readable_type(fields.get("type"))
    if frame_id not in line:
        frame_id = b""  # Replacing invalid characters has changed it: it is no longer the client's id.
    if kind is None:
        raise ProtocolError("unknown command: the frame has no type that is a string", frame_id=frame_id)
    if kind not in _NAMES:
        shown = f" {kind!r}{did_you_mean(kind, _NAMES)}" if kind else ""
        raise ProtocolError(f"unknown command{shown}", frame_id=frame_id, frame_type=kind)
    if clean != line:
        raise ProtocolError(f"{kind}: {_not_text(problem)}", frame_id=frame_id, frame_type=kind)
    try:
        return _commands().decode(encode(fields))
    except UNREADABLE as wrong:
        raise ProtocolError(f"{kind}: {explain(wrong)}", frame_id=frame_id, frame_type=kind) from None


def _not_text(problem: Exception) -> str:
    if isinstance(problem, UnicodeDecodeError):
        return f"invalid UTF-8 at byte {problem.start}"
    return "unpaired surrogate escape"


_NAMES: Final = frozenset(str(kind.__struct_config__.tag) for kind in Command.__subclasses__())


def _readable_id(raw: msgspec.Raw | None) -> bytes:
    try:
        IDS.decode(raw or b"null")
    except UNREADABLE:
        return b""
    return bytes(raw or b"")


def _readable_type(raw: msgspec.Raw | None) -> str | None:
    """Return the type of a frame: "" if it has none, None if it is not a string."""
    try:
        return msgspec.json.decode(raw or b'""', type=str | None) or ""
    except UNREADABLE:
        return None


#: Events that need a feature, and which.
_GATED: Final[dict[type, str]] = {
    ThinkingDelta: "thinking",
    Retry: "retries",
    ApprovalRequest: "approvals",
    QuestionRequest: "questions",
    QuestionAnswer: "questions",
    ExtNotify: "extensions",
    ExtWaiting: "extensions",
    PanelOpened: "extensions",
    PanelRendered: "extensions",
    PanelClosed: "extensions",
}
#: Events that are never sent: version 1 does not have them. The client that caused one has its response, other clients
#: see its effects.
UNTOLD: Final[frozenset[type]] = frozenset({ApprovalAnswer, ConversationReplaced, Reconfigured})
#: Events that depend on the client's features.
_SPECIAL: Final[frozenset[type]] = frozenset({*_GATED, *UNTOLD, Usage, CompactDone, ToolResult})


class EventEncoder:
    """Encode events for one client, according to its enabled features."""

    def __init__(self) -> None:
        self._seq = 0

    def lines(self, events: Sequence[AgentEvent], features: frozenset[str], *, run: int) -> bytes:
        """Return the lines for ``events`` of a run, each ending in LF."""
        shown = events
        if not _SPECIAL.isdisjoint(map(type, events)):  # Most batches are text alone.
            shown = _by_features(events, features)
        return self._numbered(shown, run) if "seq" in features else encode_lines(shown)

    def _numbered(self, events: Iterable[AgentEvent], run: int) -> bytes:
        lines = []
        for event in events:
            self._seq += 1
            lines.append(b'%s,"seq":%d,"run":%d}\n' % (encode(event)[:-1], self._seq, run))
        return b"".join(lines)


def _by_features(events: Sequence[AgentEvent], features: frozenset[str]) -> list[AgentEvent]:
    """Return the events that a client with these features gets, without the fields that it does not know."""
    shown = [event for event in events if type(event) not in UNTOLD]
    shown = [event for event in shown if _GATED.get(type(event)) is None or _GATED[type(event)] in features]
    if "compaction" not in features:
        shown = [event for event in shown if not (isinstance(event, Usage | CompactDone) and event.auto)]
    if "extensions" not in features:
        shown = [_without_details(event) if type(event) is ToolResult else event for event in shown]
    if "prices" not in features:
        shown = [_as_first_published(event) if type(event) is Usage else event for event in shown]
    return shown


def _without_details(event: ToolResult) -> ToolResult:
    return event if event.details is None else msgspec.structs.replace(event, details=None)


def _as_first_published(event: Usage) -> Usage:
    """Return a usage event without the fields that version 1 does not have."""
    if event.price_known and event.cumulative.price_known and not event.cumulative.reasoning:
        return event
    cumulative = msgspec.structs.replace(event.cumulative, price_known=True, reasoning=0)
    return msgspec.structs.replace(event, cumulative=cumulative, price_known=True, reasoning=0)
