"""Agent Client Protocol v1: parameters of its methods, and session updates from events and messages. Does no I/O."""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec

from zot.encoding import UNREADABLE, decoder, explain
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
    QuestionAnswer,
    QuestionField,
    QuestionRequest,
    Reconfigured,
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
from zot.messages import (
    CallBlock,
    ImageBlock,
    Message,
    PastMessage,
    ResultBlock,
    ShownBlock,
    ShownCall,
    ShownImage,
    ShownResult,
    TranscriptBlock,
    show,
    text_of,
    thought_of,
)
from zot.text import visible
from zot.wire.acp_greeting import ClientCapabilities
from zot.wire.jsonrpc import INVALID_PARAMS, RpcError, RpcRequest

#: Error codes of the protocol besides those of JSON-RPC.
AUTH_REQUIRED: Final = -32000
NOT_FOUND: Final = -32002
CANCELLED: Final = -32800
#: Our own: a run is in the way, here or in another process.
BUSY: Final = -32009

#: The most characters of a running tool's output that an update repeats: each update replaces the one before.
_MAX_LIVE: Final = 8 * 1024

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]
ToolKind: TypeAlias = Literal["read", "edit", "execute", "other"]
Update: TypeAlias = dict[str, Any]

_KINDS: Final[dict[str, ToolKind]] = {
    "read": "read",
    "skill": "read",
    "write": "edit",
    "edit": "edit",
    "bash": "execute",
}
_SEVERITIES: Final = {"info": "info", "success": "info", "warn": "warning", "error": "error"}

#: The choices of an approval request; the ids are zot's decisions.
PERMISSION_OPTIONS: Final = (
    {"optionId": "allow_once", "name": "Allow once", "kind": "allow_once"},
    {"optionId": "allow_always", "name": "Allow always in this session", "kind": "allow_always"},
    {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
)


# Content of prompts.


class _Content(msgspec.Struct, frozen=True, tag_field="type", rename="camel"):
    """One block of a prompt."""


class Text(_Content, tag="text", frozen=True):
    """Text."""

    text: str


class ImageContent(_Content, tag="image", frozen=True, rename="camel"):
    """An image in base64."""

    data: bytes
    mime_type: str


class Audio(_Content, tag="audio", frozen=True):
    """A sound, which zot does not accept."""


class ResourceLink(_Content, tag="resource_link", frozen=True):
    """A file or page that the model may read itself."""

    uri: str
    name: str


class _Resource(msgspec.Struct, frozen=True, rename="camel"):
    uri: str
    text: str | None = None
    blob: bytes | None = None
    mime_type: str | None = None


class EmbeddedResource(_Content, tag="resource", frozen=True):
    """A file or page with its content, such as an unsaved buffer."""

    resource: _Resource


ContentBlock: TypeAlias = Text | ImageContent | Audio | ResourceLink | EmbeddedResource


def prompt_of(blocks: Sequence[ContentBlock]) -> tuple[str, tuple[ImageBlock, ...]]:
    """Return the text and the images of a prompt. Raise RpcError for content that no model could use."""
    texts: list[str] = []
    images: list[ImageBlock] = []
    for block in blocks:
        match block:
            case Text(text=text):
                texts.append(text)
            case ImageContent(data=data, mime_type=mime_type):
                images.append(ImageBlock(mime_type, data))
            case Audio():
                raise RpcError(INVALID_PARAMS, "prompt: audio is not supported")
            case ResourceLink(uri=uri, name=name):
                texts.append(f"[{name}]({_place(uri)})")
            case EmbeddedResource(resource=resource):
                _embed(resource, texts, images)
    return "\n".join(texts), tuple(images)


def _embed(resource: _Resource, texts: list[str], images: list[ImageBlock]) -> None:
    place = _place(resource.uri)
    if resource.text is not None:
        texts.append(f"[Document: {place}]\n{resource.text}\n[End of {place}]")
    elif resource.blob is not None and (resource.mime_type or "").startswith("image/"):
        images.append(ImageBlock(resource.mime_type or "", resource.blob))
    else:
        texts.append(f"[Document: {place}]")


def _place(uri: str) -> str:
    """Return the path in a file URI, any other URI as it is."""
    if not uri.startswith("file://"):
        return uri
    from urllib.parse import unquote, urlsplit  # Imported lazily: few prompts have links.

    try:
        return unquote(urlsplit(uri).path)
    except ValueError:
        return uri


# Parameters of methods.


class Authenticate(msgspec.Struct, frozen=True, rename="camel"):
    """Parameters of `authenticate`."""

    method_id: str


class Logout(msgspec.Struct, frozen=True):
    """Parameters of `logout`: none."""


class _Pair(msgspec.Struct, frozen=True):
    name: str
    value: str


class EditorMcpServer(msgspec.Struct, frozen=True):
    """An MCP server of the client: a program to start, or with ``type`` "http" or "sse" an address."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[_Pair, ...] = ()
    type: str = "stdio"
    url: str = ""
    headers: tuple[_Pair, ...] = ()


class NewSession(msgspec.Struct, frozen=True, rename="camel"):
    """Parameters of `session/new`."""

    cwd: str
    mcp_servers: tuple[EditorMcpServer, ...] | None = None


class SessionParams(msgspec.Struct, frozen=True, rename="camel"):
    """Parameters of methods that only name a session."""

    session_id: str


class OpenSession(msgspec.Struct, frozen=True, rename="camel"):
    """Parameters of `session/load`, `session/resume` and `session/fork`."""

    session_id: str
    cwd: str
    mcp_servers: tuple[EditorMcpServer, ...] | None = None


class ListSessions(msgspec.Struct, frozen=True):
    """Parameters of `session/list`."""

    cwd: str | None = None
    cursor: str | None = None


class _ZotMeta(msgspec.Struct, frozen=True):
    steer: bool = False


class _Meta(msgspec.Struct, frozen=True):
    zot: _ZotMeta | None = None


class PromptParams(msgspec.Struct, frozen=True, rename={"session_id": "sessionId", "meta": "_meta"}):
    """Parameters of `session/prompt`. With `_meta.zot.steer` it joins the running prompt before its next model call."""

    session_id: str
    prompt: list[ContentBlock]
    meta: _Meta | None = None

    @property
    def steers(self) -> bool:
        """True if it joins the running prompt."""
        return self.meta is not None and self.meta.zot is not None and self.meta.zot.steer


class SetMode(msgspec.Struct, frozen=True, rename="camel"):
    """Parameters of `session/set_mode`."""

    session_id: str
    mode_id: str


class SetConfigOption(msgspec.Struct, frozen=True, rename="camel"):
    """Parameters of `session/set_config_option`."""

    session_id: str
    config_id: str
    value: str


class CancelRequest(msgspec.Struct, frozen=True, rename="camel"):
    """Parameters of `$/cancel_request`; the id is kept verbatim."""

    request_id: msgspec.Raw


#: The parameters of each method that a client calls after `initialize`.
METHODS: Final[dict[str, Any]] = {
    "authenticate": Authenticate,
    "logout": Logout,
    "session/new": NewSession,
    "session/load": OpenSession,
    "session/resume": OpenSession,
    "session/fork": OpenSession,
    "session/close": SessionParams,
    "session/delete": SessionParams,
    "session/list": ListSessions,
    "session/prompt": PromptParams,
    "session/cancel": SessionParams,
    "session/set_mode": SetMode,
    "session/set_config_option": SetConfigOption,
    "$/cancel_request": CancelRequest,
}
_decoders: dict[str, msgspec.json.Decoder[Any]] = {}


def params_of(request: RpcRequest) -> Any:
    """Return the decoded parameters of a method of `METHODS`. Raise RpcError."""
    if request.method not in _decoders:
        _decoders[request.method] = decoder(METHODS[request.method])
    try:
        return _decoders[request.method].decode(request.params)
    except UNREADABLE as problem:
        raise RpcError(INVALID_PARAMS, f"{request.method}: {explain(problem)}") from None


class _Selected(msgspec.Struct, frozen=True, rename="camel"):
    outcome: str
    option_id: str = ""


class _Permission(msgspec.Struct, frozen=True):
    outcome: _Selected


_permissions: msgspec.json.Decoder[_Permission] = msgspec.json.Decoder(_Permission)


def decision_of(result: msgspec.Raw | None) -> str:
    """Return the decision in a client's answer to an approval request; anything but a choice rejects."""
    known = [option["optionId"] for option in PERMISSION_OPTIONS]
    try:
        chosen = _permissions.decode(result or b"null").outcome
    except UNREADABLE:
        return "reject"
    return chosen.option_id if chosen.outcome == "selected" and chosen.option_id in known else "reject"


class QuestionResult(msgspec.Struct, frozen=True):
    """A client's answer to `elicitation/create`."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


_question_results: msgspec.json.Decoder[QuestionResult] = msgspec.json.Decoder(QuestionResult)


def question_result(result: msgspec.Raw | None) -> QuestionResult:
    """Return the answer to a question; anything else than one cancels it."""
    try:
        return _question_results.decode(result or b"null")
    except UNREADABLE:
        return QuestionResult("cancel")


def elicitation(session_id: str, asked: QuestionRequest) -> dict[str, Any]:
    """Return the parameters of `elicitation/create` for a question of a program."""
    params: dict[str, Any] = {"sessionId": session_id, "message": f"{asked.origin}: {asked.message}"}
    if asked.call:
        params["toolCallId"] = asked.call
    if asked.url:
        return {**params, "mode": "url", "elicitationId": asked.id, "url": asked.url}
    schema: dict[str, Any] = {"type": "object", "properties": {one.name: _property(one) for one in asked.fields}}
    if required := [one.name for one in asked.fields if one.required]:
        schema["required"] = required
    return {**params, "mode": "form", "requestedSchema": schema}


_FORMATS: Final = ("email", "uri", "date", "date-time")


def _property(field: QuestionField) -> dict[str, Any]:
    """Return the schema of one value that a question asks for."""
    more: dict[str, Any]
    choices = [{"const": one.value, "title": one.title or one.value} for one in field.choices]
    least, most = field.minimum, field.maximum
    match field.kind:
        case "string":
            more = {"type": "string", "minLength": _whole(least), "maxLength": _whole(most)}
            more["format"] = field.format if field.format in _FORMATS else None
        case "choice":
            more = {"type": "string", "oneOf": choices}
        case "choices":
            more = {"type": "array", "items": {"anyOf": choices}, "minItems": _whole(least), "maxItems": _whole(most)}
        case "integer":
            more = {"type": "integer", "minimum": _whole(least), "maximum": _whole(most)}
        case "number":
            more = {"type": "number", "minimum": least, "maximum": most}
        case "boolean":
            more = {"type": "boolean"}
    more |= {"title": field.title or None, "description": field.description or None, "default": field.default}
    return {key: value for key, value in more.items() if value is not None}


def _whole(bound: float | None) -> int | None:
    return None if bound is None else int(bound)


class _TextFile(msgspec.Struct, frozen=True):
    content: str


_text_files: msgspec.json.Decoder[_TextFile] = msgspec.json.Decoder(_TextFile)


def text_in(result: msgspec.Raw) -> str | None:
    """Return the text in a client's answer to `fs/read_text_file`, None if there is none."""
    try:
        return _text_files.decode(result).content
    except UNREADABLE:
        return None


# Session updates.


def chunk(kind: str, text: str, message_id: str) -> Update:
    """Return the update for a piece of a message."""
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}, "messageId": message_id}


def notice(severity: str, title: str) -> Update:
    """Return the update for a notice, which only clients with that capability get."""
    return {"sessionUpdate": "notice", "severity": severity, "title": title}


def compaction(number: int, summary: str) -> Update:
    """Return the update for a compaction, which only clients with that capability get."""
    update: Update = {
        "sessionUpdate": "compaction_update",
        "compactionId": f"compaction-{number}",
        "status": "completed",
    }
    return {**update, "summary": [{"type": "text", "text": summary}]} if summary else update


class ToolCards:
    """Tool calls of a session as the client shows them: cards by the id of the call.

    ``cwd`` returns the directory that relative paths refer to. ``old_text`` returns the content of a file before a call
    changes it, given the id of the call and the path; None if there is none or it cannot be shown.
    """

    def __init__(
        self, cwd: Callable[[], str], old_text: Callable[[str, str], str | None] = lambda call_id, path: None
    ) -> None:
        self._cwd = cwd
        self._old_text = old_text
        self._open: dict[str, tuple[str, dict[str, Any]]] = {}
        self._live: dict[str, str] = {}

    def call(self, call_id: str, name: str, args: dict[str, Any] | None) -> Update:
        """Return the card of a call that starts."""
        args = args or {}
        self._open[call_id] = name, args
        self._live.pop(call_id, None)  # A replay shows it once more.
        card: Update = {
            "sessionUpdate": "tool_call",
            "toolCallId": call_id,
            "title": _title(name, args),
            "name": name,
            "kind": _KINDS.get(name, "other"),
            "status": "in_progress",
            "rawInput": args,
        }
        if locations := self._locations(args):
            card["locations"] = locations
        if diffs := self._diffs(call_id, name, args):
            card["content"] = diffs
        return card

    def is_open(self, call_id: str) -> bool:
        """True if a call has a card, and no result yet."""
        return call_id in self._open

    def progress(self, call_id: str, text: str) -> None:
        """Add to the output of a running call; `live` returns it."""
        self._live[call_id] = (self._live.get(call_id, "") + text)[-_MAX_LIVE:]

    def live(self, call_ids: Sequence[str]) -> list[Update]:
        """Return the newest output of running calls, one update each."""
        return [
            card_update(call_id, "in_progress", [_text_content(_fenced(self._live[call_id]))])
            for call_id in dict.fromkeys(call_ids)
            if call_id in self._live
        ]

    def result(self, call_id: str, is_error: bool, content: Sequence[dict[str, Any]], text: str) -> Update:
        """Return the update that ends a call. The diff of a change stays; a failure replaces it by its reason."""
        name, _ = self._open.pop(call_id, ("", {}))
        self._live.pop(call_id, None)
        status = "failed" if is_error else "completed"
        if name in ("write", "edit") and not is_error:
            return card_update(call_id, status)
        shown = [_text_content(_fenced(text))] if text else []
        return card_update(call_id, status, [*shown, *content])

    def asked(self, request: ApprovalRequest) -> Update:
        """Return the call that an approval request is about, in full."""
        same = [key for key, (name, args) in self._open.items() if name == request.tool and args == request.args]
        call_id = (same or [key for key, (name, _) in self._open.items() if name == request.tool] or [request.id])[0]
        card = self.call(call_id, request.tool, request.args)
        del card["sessionUpdate"]
        return {**card, "status": "pending"}

    def _locations(self, args: dict[str, Any]) -> list[dict[str, Any]]:
        match args:
            case {"path": str(path), "offset": int(line)} if path and line > 0:
                return [{"path": self._absolute(path), "line": line}]
            case {"path": str(path)} if path:
                return [{"path": self._absolute(path)}]
            case _:
                return []

    def _diffs(self, call_id: str, name: str, args: dict[str, Any]) -> list[dict[str, Any]]:
        match name, args:
            case "write", {"path": str(path), "content": str(content)}:
                diff: dict[str, Any] = {"type": "diff", "path": self._absolute(path), "newText": content}
                old = self._old_text(call_id, diff["path"])
                return [diff if old is None else {**diff, "oldText": old}]
            case "edit", {"path": str(path), "edits": list(edits)}:
                return [
                    {"type": "diff", "path": self._absolute(path), "oldText": old, "newText": new}
                    for old, new in map(_pair, edits)
                ]
            case _:
                return []

    def _absolute(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._cwd(), path))


def _pair(edit: Any) -> tuple[str, str]:
    match edit:
        case {"oldText": str(old), "newText": str(new)}:
            return old, new
        case _:
            return "", ""


def _title(name: str, args: dict[str, Any]) -> str:
    """Return the title of a card: the whole command, or the tool and its path. A person may approve by it alone."""
    match name, args:
        case "bash", {"command": str(command)} if command:
            return visible(command)
        case _, {"path": str(path)} if path:
            return visible(f"{name} {path}")
        case "skill", {"name": str(skill)}:
            return visible(f"skill {skill}")
        case _:
            return visible(name)


def card_update(call_id: str, status: str, content: list[dict[str, Any]] | None = None) -> Update:
    """Return an update of a tool call's card; without ``content`` that stays."""
    update: Update = {"sessionUpdate": "tool_call_update", "toolCallId": call_id, "status": status}
    return update if content is None else {**update, "content": content}


def _text_content(text: str) -> dict[str, Any]:
    return {"type": "content", "content": {"type": "text", "text": text}}


def _fenced(text: str) -> str:
    """Return ``text`` as a block that Markdown shows verbatim."""
    ticks = max((len(run) for run in re.findall(r"`{3,}", text)), default=2) + 1
    return f"{'`' * ticks}\n{text}{'' if text.endswith(chr(10)) else chr(10)}{'`' * ticks}"


class UpdateMaker:
    """Session updates from a session's events, in order. Updates that the client cannot show are omitted.

    ``prefix`` begins the ids of messages. A thought is a message of its own.
    """

    def __init__(self, cards: ToolCards, client: ClientCapabilities, prefix: str) -> None:
        self.cards = cards
        self._client = client
        self._prefix = prefix
        self._compactions = 0
        self._messages = 0

    def new_message(self) -> str:
        """Begin a message; return its id."""
        self._messages += 1
        return f"{self._prefix}-{self._messages}"

    def _chunk(self, kind: str, text: str) -> Update:
        suffix = "-thought" if kind == "agent_thought_chunk" else ""
        return chunk(kind, text, f"{self._prefix}-{self._messages}{suffix}")

    def updates(self, events: Sequence[AgentEvent], *, window: int = 0) -> Iterator[Update]:
        """Yield the updates for ``events``. ``window`` is the model's context window, 0 if unknown.

        Consecutive pieces of a message are joined, and the output of a running tool is repeated once at the end.
        """
        running: list[str] = []
        for kind, group in groupby(events, type):
            if (piece := _PIECES.get(kind)) is not None:  # Most events.
                yield self._chunk(piece, "".join([one.delta for one in cast(Iterator[TextDelta], group)]))
                continue
            for event in group:
                if isinstance(event, ToolProgress):
                    running.append(event.id)
                elif isinstance(event, ToolResult) and event.id in running:
                    running = [one for one in running if one != event.id]
                yield from self._updates(event, window)
        yield from self.cards.live(running)

    def _updates(self, event: AgentEvent, window: int) -> Sequence[Update]:
        match event:
            case TextDelta(delta=delta):
                return (self._chunk("agent_message_chunk", delta),)
            case ThinkingDelta(delta=delta):
                return (self._chunk("agent_thought_chunk", delta),)
            case AssistantStart():
                self.new_message()
                return ()
            case ToolCall(id=call_id, name=name, args=args):
                return (self.cards.call(call_id, name, args),)
            case ToolProgress(id=call_id, text=text):
                self.cards.progress(call_id, text)
                return ()
            case ToolResult(id=call_id, is_error=is_error, content=content):
                self.new_message()  # A daemon does not say when the model starts to answer.
                images = [{"type": "content", "content": one} for one in map(_image, content) if one is not None]
                return (self.cards.result(call_id, is_error, images, text_of(content)),)
            case Usage():
                return _usage(event, window)
            case CompactDone(summary=summary):
                self._compactions += 1
                return (compaction(self._compactions, summary),) if self._client.shows_compaction else ()
            case Retry(reason=reason, attempt=attempt):
                return self._notice("warning", f"retry {attempt}: {reason}")
            case ExtNotify(extension=extension, level=level, message=message):
                return self._notice(_SEVERITIES[level], f"{extension}: {message}")
            case ExtWaiting(extension=extension, what=what):
                return self._notice("info", f"waiting for {extension}: {what}")
            case (
                UserMessage()  # The client shows its own prompts.
                | TurnStart()
                | ToolUseStart()  # The card appears with the complete call.
                | ToolUseArgs()
                | ToolUseEnd()
                | AssistantMessage()  # Its deltas were sent.
                | TurnEnd()  # The stop reason is in the response to the prompt, and so is an error.
                | Done()
                | Error()
                | ApprovalRequest()  # A request to the client, not an update.
                | ApprovalAnswer()
                | QuestionRequest()
                | QuestionAnswer()
                | ConversationReplaced()
                | Reconfigured()
                | PanelOpened()  # The protocol has no panels.
                | PanelRendered()
                | PanelClosed()
            ):
                return ()

    def _notice(self, severity: str, title: str) -> Sequence[Update]:
        return (notice(severity, title),) if self._client.shows_notices else ()


_PIECES: Final[dict[type, str]] = {TextDelta: "agent_message_chunk", ThinkingDelta: "agent_thought_chunk"}


def _usage(event: Usage, window: int) -> Sequence[Update]:
    if not window:
        return ()
    used = event.input + event.output + event.cache_read + event.cache_write
    update: Update = {"sessionUpdate": "usage_update", "used": used, "size": window}
    cost = event.cumulative.cost
    return ({**update, "cost": {"amount": cost, "currency": "USD"}} if cost is not None else update,)


def _image_note(image: ShownImage) -> str:
    return f"[image: {image.mime_type}, {image.bytes} bytes]"


def _image(block: TranscriptBlock | ShownBlock) -> dict[str, Any] | None:
    """Return the content block for an image, None if ``block`` is something else."""
    match block:
        case ImageBlock(mime_type=mime_type, data=data):
            from base64 import b64encode  # Imported lazily: few conversations have images.

            return {"type": "image", "data": b64encode(data).decode(), "mimeType": mime_type}
        case ShownImage():
            return {"type": "text", "text": _image_note(block)}
        case _:
            return None


def replay(message: Message | PastMessage, cards: ToolCards, message_id: str) -> Iterator[Update]:
    """Yield the updates that show a message again. Images of a past message are named by their size."""
    if message.role == "tool":
        for block in message.content:
            if isinstance(block, ResultBlock | ShownResult):
                images = [{"type": "content", "content": one} for one in map(_image, block.content) if one is not None]
                yield cards.result(block.call_id, block.is_error, images, text_of(block.content))
        return
    if thought := thought_of(message) if isinstance(message, Message) else message.thought:
        yield chunk("agent_thought_chunk", thought, f"{message_id}-thought")
    kind = "user_message_chunk" if message.role == "user" else "agent_message_chunk"
    shown = show(message).content if isinstance(message, Message) else message.content
    if text := text_of(shown):
        yield chunk(kind, text, message_id)
    for one in message.content:
        if isinstance(one, CallBlock | ShownCall):
            yield cards.call(one.id, one.name, one.args)
        elif (image := _image(one)) is not None:
            yield {"sessionUpdate": kind, "content": image, "messageId": message_id}


def prompted(content: Sequence[ShownBlock], message_id: str) -> Iterator[Update]:
    """Yield the updates for a prompt that another client sent."""
    if text := text_of(content):
        yield chunk("user_message_chunk", text, message_id)
    images = (one for one in content if isinstance(one, ShownImage))
    yield from (chunk("user_message_chunk", _image_note(one), message_id) for one in images)
