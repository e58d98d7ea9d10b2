"""Model Context Protocol, client side: messages and the state of one connection. Does no I/O.

Two generations are spoken. Since 2026-07-28 a server is stateless: `server/discover` describes it, and every request
carries version and capabilities. Before, `initialize` opened a connection. `McpClient` tries the newer one first.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from zot.encoding import UNREADABLE, decoder, explain, thread_safe_type
from zot.errors import ProtocolError
from zot.events import QuestionChoice, QuestionField
from zot.questions import Question, QuestionReply
from zot.text import printable, printable_line
from zot.version import __version__
from zot.wire import jsonrpc
from zot.wire.jsonrpc import METHOD_NOT_FOUND, Bad, ErrorObject, Reply, RpcError, RpcRequest
from zot.wire.lines import has_more_values
from zot.wire.mcp_server import HANDSHAKES, PREFIX, STATELESS, UNSUPPORTED_REVISION, WITH_HANDSHAKE

T = TypeVar("T")

#: The most values in one message.
MAX_VALUES: Final = 1_000_000
#: The most messages in a row that answer nothing.
MAX_UNASKED: Final = 10_000
#: The most rounds in which a server may ask for input before it answers one call.
MAX_ROUNDS: Final = 32
#: The most open requests of zot.
MAX_OPEN: Final = 256
_MAX_TEXT: Final = 300
_CLIENT: Final = {"name": "zot", "version": __version__}
#: Elicitation is declared always, and declined where no user can be asked: servers then get an answer.
_CAPABILITIES: Final[dict[str, Any]] = {"roots": {}, "elicitation": {"form": {}, "url": {}}}
#: The most fields of a question, choices of a field, and characters of its text.
MAX_FIELDS: Final = 64
MAX_CHOICES: Final = 256
MAX_MESSAGE: Final = 4000
_META: Final = {
    f"{PREFIX}protocolVersion": STATELESS,
    f"{PREFIX}clientInfo": _CLIENT,
    f"{PREFIX}clientCapabilities": _CAPABILITIES,
}


class ToolHints(msgspec.Struct, frozen=True, rename="camel"):
    """Properties of a tool that its server claims."""

    read_only_hint: bool = False


class ListedTool(msgspec.Struct, frozen=True, rename="camel"):
    """One tool as its server describes it, unchecked."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    annotations: ToolHints | None = None


class ListPage(msgspec.Struct, frozen=True, rename="camel"):
    """One page of a server's tools, prompts or resources, each undecoded: a bad one costs itself, not the page."""

    tools: list[msgspec.Raw] = []
    prompts: list[msgspec.Raw] = []
    resources: list[msgspec.Raw] = []
    next_cursor: str | None = None
    ttl_ms: float | None = None


class PromptArgument(msgspec.Struct, frozen=True):
    """One argument of a prompt."""

    name: str
    description: str | None = None
    required: bool = False


class ListedPrompt(msgspec.Struct, frozen=True):
    """One prompt as its server describes it, unchecked."""

    name: str
    title: str | None = None
    description: str | None = None
    arguments: list[PromptArgument] = []


class ListedResource(msgspec.Struct, frozen=True, rename="camel"):
    """One resource as its server describes it, unchecked."""

    uri: str
    name: str = ""
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None


class Resource(msgspec.Struct, frozen=True, rename="camel"):
    """Resource inside of a result."""

    uri: str = ""
    mime_type: str | None = None
    text: str | None = None
    blob: str | None = None


class Content(msgspec.Struct, frozen=True, rename="camel"):
    """One block of a result: text, image, audio, resource or resource_link. Unknown kinds are kept by name."""

    type: str
    text: str = ""
    data: str = ""
    mime_type: str | None = None
    uri: str = ""
    name: str = ""
    resource: Resource | None = None


class CallResult(msgspec.Struct, frozen=True, rename="camel"):
    """Result of a tool call."""

    content: list[Content] = []
    structured_content: msgspec.Raw = msgspec.Raw()
    is_error: bool = False


class PromptMessage(msgspec.Struct, frozen=True):
    """One message of a prompt."""

    content: Content
    role: str = "user"


class PromptResult(msgspec.Struct, frozen=True):
    """Result of `prompts/get`."""

    messages: list[PromptMessage] = []
    description: str | None = None


class ReadResult(msgspec.Struct, frozen=True):
    """Result of `resources/read`."""

    contents: list[Resource] = []


class ListCapability(msgspec.Struct, frozen=True, rename="camel"):
    """A list that a server has, and whether it reports changes of it."""

    list_changed: bool = False


class ServerCapabilities(msgspec.Struct, frozen=True):
    """Lists that a server has."""

    tools: ListCapability | None = None
    prompts: ListCapability | None = None
    resources: ListCapability | None = None


class Elicitation(msgspec.Struct, frozen=True, rename="camel"):
    """A server's question to the user: values of a form, or consent to open an address."""

    message: str = ""
    mode: str = "form"
    requested_schema: dict[str, Any] = {}
    url: str = ""


class _InputRequest(msgspec.Struct, frozen=True):
    method: str = ""
    params: msgspec.Raw = msgspec.Raw(b"{}")


class _Outcome(msgspec.Struct, frozen=True, rename="camel"):
    """The members that tell a result from a request for input."""

    result_type: str = "complete"
    input_requests: dict[str, _InputRequest] | None = None
    request_state: str | None = None


class _Discovered(msgspec.Struct, frozen=True, rename="camel"):
    supported_versions: list[str]
    capabilities: ServerCapabilities = ServerCapabilities()


class _Initialized(msgspec.Struct, frozen=True, rename="camel"):
    protocol_version: str
    capabilities: ServerCapabilities = ServerCapabilities()


class _Supported(msgspec.Struct, frozen=True):
    supported: list[str] = []


class _Progress(msgspec.Struct, frozen=True, rename="camel"):
    progress_token: int | str
    message: str = ""
    progress: float = 0
    total: float | None = None


_elicitations: msgspec.json.Decoder[Elicitation] = msgspec.json.Decoder(Elicitation)
_outcomes: msgspec.json.Decoder[_Outcome] = msgspec.json.Decoder(_Outcome)
_discovered: msgspec.json.Decoder[_Discovered] = msgspec.json.Decoder(_Discovered)
_initialized: msgspec.json.Decoder[_Initialized] = msgspec.json.Decoder(_Initialized)
_progress: msgspec.json.Decoder[_Progress] = msgspec.json.Decoder(_Progress)
_ids: msgspec.json.Decoder[int | str | float | None] = msgspec.json.Decoder(int | str | float | None)


def decoded(kind: type[T], data: msgspec.Raw, what: str) -> T:
    """Decode a result, or a part of one. Raise ProtocolError that names ``what`` it is."""
    reader: msgspec.json.Decoder[T] = decoder(kind)
    return _decoded(reader, data, what)


def _decoded(reader: msgspec.json.Decoder[T], data: msgspec.Raw, what: str) -> T:
    try:
        return reader.decode(data)
    except UNREADABLE as problem:
        raise ProtocolError(f"{what} is invalid: {explain(problem)}") from None


def decode_line(line: bytes) -> jsonrpc.Incoming | None:
    """Decode one line of a server; None for a malformed reply. Callable from any thread."""
    if has_more_values(line, MAX_VALUES):
        return Bad(jsonrpc.NULL, jsonrpc.INVALID_REQUEST, f"the message has more than {MAX_VALUES} values")
    return jsonrpc.decode(line)


class ClientState(Enum):
    """State of a connection."""

    NEW = "new"
    DISCOVERING = "discovering"
    INITIALIZING = "initializing"
    READY = "ready"
    BROKEN = "broken"


class ServerReady(msgspec.Struct, frozen=True):
    """The server answers requests from now on, in the generation of ``revision``."""

    revision: str


class CallAnswered(msgspec.Struct, frozen=True):
    """Answer to a request: its result, or why it failed."""

    id: int
    result: msgspec.Raw
    problem: str = ""


class CallProgress(msgspec.Struct, frozen=True):
    """A running request has made progress."""

    id: int
    message: str


class ListChanged(msgspec.Struct, frozen=True):
    """A list of the server has changed."""

    kind: Literal["tools", "prompts", "resources"]


class Outgoing(msgspec.Struct, frozen=True):
    """A message to send, as a line. ``id`` is that of a request; over HTTP, ``headers`` go with it."""

    data: bytes
    id: int | None = None
    headers: Mapping[str, str] = {}


class ToSend(msgspec.Struct, frozen=True):
    """A message to send to the server."""

    message: Outgoing


class Elicited(msgspec.Struct, frozen=True):
    """An older server asks the user, by its request ``id``. Answer with `McpClient.answer_elicitation`."""

    id: msgspec.Raw
    asked: Elicitation


class InputRequired(msgspec.Struct, frozen=True):
    """The server needs the user's answers for the request ``id``. Continue with `McpClient.continue_request`."""

    id: int
    asked: Mapping[str, Elicitation]


class LogNote(msgspec.Struct, frozen=True):
    """A fact for the log: a refused request, or a message that the protocol does not allow."""

    text: str


class ClientBroken(msgspec.Struct, frozen=True):
    """The server cannot be used: the connection must be closed."""

    reason: str


ClientEvent: TypeAlias = (
    ServerReady | CallAnswered | CallProgress | ListChanged | ToSend | Elicited | InputRequired | LogNote | ClientBroken
)


class _PendingRequest(msgspec.Struct):
    method: str
    params: dict[str, Any]
    #: The request's id for the caller; the wire's id differs after a round of input.
    id: int
    headers: Mapping[str, str]
    rounds: int = 0
    state: str | None = None
    #: Answers that need no user, until the others are there.
    answers: dict[str, Any] = {}


class McpClient:
    """State of a connection to one server: takes its messages, returns events.

    ``root`` is the address of the working directory, for servers that ask. ``revision`` is the one that the server
    spoke before, "" if unknown.
    """

    def __init__(self, root: str, *, revision: str = "") -> None:
        self.state = ClientState.NEW
        self.revision = revision
        self.capabilities = ServerCapabilities()
        self._root = root
        self._last_id = 0
        self._open: dict[int, _PendingRequest] = {}
        #: Requests that wait for the user's answers, by the caller's id.
        self._asking: dict[int, _PendingRequest] = {}
        #: Ids on the wire of requests that were given up: their answers may have been on the way.
        self._cancelled: set[int] = set()
        self._discovery = self._handshake = self._subscription = 0
        self._discoveries = 0
        self._unasked = 0

    def start(self) -> Outgoing:
        """Return the first message to send."""
        return self._initialize() if self.revision and self.revision != STATELESS else self._discover()

    def undiscovered(self) -> Outgoing | None:
        """Note that a server does not answer `server/discover`; return the handshake, None if it is too late."""
        return self._initialize() if self.state is ClientState.DISCOVERING else None

    def listen(self) -> Outgoing | None:
        """Return the request for changes of lists; None if the server reports none, or does so unasked."""
        lists = self.capabilities
        wanted = {
            f"{kind}ListChanged": True
            for kind, has in (("tools", lists.tools), ("prompts", lists.prompts), ("resources", lists.resources))
            if has is not None and has.list_changed
        }
        if self.revision != STATELESS or self.state is not ClientState.READY or not wanted:
            return None
        self._last_id += 1
        self._subscription = self._last_id
        return self._outgoing("subscriptions/listen", {"notifications": wanted}, self._subscription)

    def request(
        self, method: str, params: dict[str, Any], headers: Mapping[str, str] | None = None
    ) -> tuple[int, Outgoing]:
        """Return the id of a request and its message. Raise ProtocolError if the server is not ready."""
        if self.state is not ClientState.READY:
            raise ProtocolError(f"the server is {self.state.value}")
        if len(self._open) + len(self._asking) >= MAX_OPEN:
            raise ProtocolError(f"{MAX_OPEN} requests are open already")
        opened = _PendingRequest(method, params, self._last_id + 1, headers or {})
        return opened.id, self._send(opened)

    def cancel(self, request: int, reason: str) -> tuple[int, Outgoing] | None:
        """Give a request up; return its id on the wire and the notification; None if it was answered before."""
        self._asking.pop(request, None)
        for wire_id, opened in self._open.items():
            if opened.id == request:
                del self._open[wire_id]
                if len(self._cancelled) >= MAX_OPEN:
                    self._cancelled.clear()
                self._cancelled.add(wire_id)
                params = {"requestId": wire_id, "reason": reason}
                return wire_id, self._outgoing("notifications/cancelled", params, None)
        return None

    def fail_all(self, problem: str) -> list[ClientEvent]:
        """Fail all open requests, such as those of a server that has exited."""
        opened = [*self._open.values(), *self._asking.values()]
        self._open.clear()
        self._asking.clear()
        return [CallAnswered(one.id, jsonrpc.NULL, problem) for one in opened]

    def fail(self, wire_id: int, problem: str) -> list[ClientEvent]:
        """Fail one request by its id on the wire: it will not be answered."""
        if wire_id == self._discovery and self.state is ClientState.DISCOVERING:
            return [ToSend(self._initialize())]
        if wire_id == self._handshake and self.state is ClientState.INITIALIZING:
            return [self._broken(problem)]
        opened = self._open.pop(wire_id, None)
        return [] if opened is None else [CallAnswered(opened.id, jsonrpc.NULL, problem)]

    def is_open(self, wire_id: int) -> bool:
        """True while a request waits for its answer, by its id on the wire."""
        if wire_id in (self._discovery, self._handshake):
            return self.state in (ClientState.DISCOVERING, ClientState.INITIALIZING)
        return wire_id in self._open or wire_id == self._subscription

    def answer_elicitation(self, request: msgspec.Raw, reply: QuestionReply) -> Outgoing:
        """Return the answer to an `Elicited` question."""
        return Outgoing(jsonrpc.encode_result(request, _answer(reply)), headers=self._headers())

    def continue_request(self, request: int, replies: Mapping[str, QuestionReply]) -> Outgoing | None:
        """Return the retry of a request that needed input; None if it was given up."""
        opened = self._asking.pop(request, None)
        if opened is None:
            return None
        answers = {**opened.answers, **{key: _answer(reply) for key, reply in replies.items()}}
        more: dict[str, Any] = {"inputResponses": answers} if answers else {}
        if opened.state is not None:
            more["requestState"] = opened.state
        return self._send(opened, **more)

    def receive(self, message: jsonrpc.Incoming | None) -> list[ClientEvent]:
        """Take one message of the server."""
        match message:
            case Reply():
                events = self._reply(message)
            case RpcRequest(id=None):
                events = self._notification(message)
            case RpcRequest():
                events = self._asked(message)
            case Bad(message=problem):
                events = [LogNote(f"sent no message: {_short(problem)}")]
            case None:
                events = [LogNote("sent a malformed reply")]
        if any(isinstance(one, CallAnswered | ServerReady) for one in events):
            self._unasked = 0
            return events
        self._unasked += 1
        if self._unasked > MAX_UNASKED:
            return [self._broken(f"sent {MAX_UNASKED} messages in a row that answer nothing")]
        return events

    def _discover(self) -> Outgoing:
        self.state, self._last_id = ClientState.DISCOVERING, self._last_id + 1
        self._discovery = self._last_id
        self._discoveries += 1
        headers = {"mcp-protocol-version": STATELESS, "mcp-method": "server/discover"}
        line = jsonrpc.encode_request("server/discover", {"_meta": _META}, self._discovery)
        return Outgoing(line, self._discovery, headers)

    def _initialize(self) -> Outgoing:
        self.state, self._last_id = ClientState.INITIALIZING, self._last_id + 1
        self._handshake = self._last_id
        params = {"protocolVersion": WITH_HANDSHAKE, "capabilities": _CAPABILITIES, "clientInfo": _CLIENT}
        return Outgoing(jsonrpc.encode_request("initialize", params, self._handshake), self._handshake)

    def _send(self, opened: _PendingRequest, **answers: Any) -> Outgoing:
        self._last_id += 1
        self._open[self._last_id] = opened
        meta = {"progressToken": opened.id}
        params = {**opened.params, **answers}
        return self._outgoing(opened.method, params, self._last_id, meta, opened.headers)

    def _outgoing(
        self,
        method: str,
        params: dict[str, Any],
        number: int | None,
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Outgoing:
        meta = {**(_META if self.revision == STATELESS else {}), **(meta or {})}
        said = {**params, "_meta": meta} if meta else params
        own = self._headers(method, params)
        if number is None:
            return Outgoing(jsonrpc.encode_notification(method, said), headers=own)
        return Outgoing(jsonrpc.encode_request(method, said, number), number, {**own, **(headers or {})})

    def _headers(self, method: str = "", params: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Return the headers of a message over HTTP."""
        headers = {"mcp-protocol-version": self.revision}
        if self.revision == STATELESS and method:
            headers["mcp-method"] = method
            if (key := _NAMES.get(method)) is not None:
                headers["mcp-name"] = header_value(str((params or {}).get(key, "")))
        return headers

    def _reply(self, reply: Reply) -> list[ClientEvent]:
        wire_id = _ids.decode(reply.id)
        if not isinstance(wire_id, int):
            return [LogNote("answered a request that zot did not send")]
        if self.state in (ClientState.DISCOVERING, ClientState.INITIALIZING):
            if wire_id == self._discovery:
                return self._described(reply)
            if wire_id == self._handshake:
                return self._greeted(reply)
        if wire_id == self._subscription and wire_id:
            self._subscription = 0
            return [LogNote("ended the subscription to changes of its lists")]
        opened = self._open.pop(wire_id, None)
        if opened is None and wire_id in self._cancelled:
            self._cancelled.remove(wire_id)
            return []
        if opened is None:
            return [LogNote("answered a request that is not open")]
        if reply.error is not None:
            return [CallAnswered(opened.id, jsonrpc.NULL, _short(reply.error.message) or f"error {reply.error.code}")]
        assert reply.result is not None
        return self._result(opened, reply.result)

    def _result(self, opened: _PendingRequest, result: msgspec.Raw) -> list[ClientEvent]:
        try:
            outcome = _outcomes.decode(result)
        except UNREADABLE as problem:
            return [CallAnswered(opened.id, jsonrpc.NULL, f"the result is invalid: {explain(problem)}")]
        if self.revision != STATELESS or outcome.result_type == "complete":
            return [CallAnswered(opened.id, result)]
        if outcome.result_type != "input_required":
            return [CallAnswered(opened.id, jsonrpc.NULL, f"the result is of kind {_short(outcome.result_type)!r}")]
        wanted = outcome.input_requests or {}
        unanswerable = next((one.method for one in wanted.values() if one.method not in _ANSWERABLE), None)
        opened.rounds += 1
        if unanswerable is not None or opened.rounds > MAX_ROUNDS:
            reason = f"asked {MAX_ROUNDS} times for input" if unanswerable is None else _refusal(unanswerable)
            return [CallAnswered(opened.id, jsonrpc.NULL, reason), LogNote(reason)]
        try:
            asked = {
                key: _decoded(_elicitations, one.params, "the question")
                for key, one in wanted.items()
                if one.method == "elicitation/create"
            }
        except ProtocolError as problem:
            return [CallAnswered(opened.id, jsonrpc.NULL, str(problem))]
        opened.answers = {key: self._roots() for key, one in wanted.items() if one.method == "roots/list"}
        opened.state = outcome.request_state
        self._asking[opened.id] = opened
        return [InputRequired(opened.id, asked)]

    def _roots(self) -> dict[str, Any]:
        return {"roots": [{"uri": self._root}]}

    def _described(self, reply: Reply) -> list[ClientEvent]:
        """Take the answer to `server/discover`, which may come after `initialize` was sent in its place."""
        events: list[ClientEvent] = []
        if reply.result is not None:
            try:
                found = _discovered.decode(reply.result)
                if STATELESS in found.supported_versions:
                    self.state, self.revision = ClientState.READY, STATELESS
                    self.capabilities = found.capabilities
                    return [ServerReady(STATELESS)]
            except UNREADABLE as problem:
                events.append(LogNote(f"its answer to server/discover is invalid: {explain(problem)}"))
        elif reply.error is not None and self._speaks_newer(reply.error):
            return [ToSend(self._discover())]
        if self.state is ClientState.DISCOVERING:
            events.append(ToSend(self._initialize()))
        return events

    def _speaks_newer(self, error: ErrorObject) -> bool:
        """True if a server refuses a request because of its revision, and names one that zot speaks without handshake.

        It is asked once more only.
        """
        if error.code != UNSUPPORTED_REVISION or self._discoveries > 1:
            return False
        try:
            return STATELESS in msgspec.convert(error.data, thread_safe_type(_Supported)).supported
        except msgspec.ValidationError:
            return False

    def _greeted(self, reply: Reply) -> list[ClientEvent]:
        if reply.result is None:
            assert reply.error is not None
            if self._speaks_newer(reply.error):
                return [ToSend(self._discover())]  # A slow server answers it by now.
            return [self._broken(f"refused to initialize: {_short(reply.error.message)}")]
        try:
            greeting = _initialized.decode(reply.result)
            version = greeting.protocol_version
        except UNREADABLE as problem:
            return [self._broken(f"its answer to initialize is invalid: {explain(problem)}")]
        if version not in HANDSHAKES:
            return [self._broken(f"speaks revision {_short(version)!r}, which zot does not know")]
        self.state, self.revision, self.capabilities = ClientState.READY, version, greeting.capabilities
        ready = Outgoing(jsonrpc.encode_notification("notifications/initialized", {}), headers=self._headers())
        return [ToSend(ready), ServerReady(version)]

    def _notification(self, message: RpcRequest) -> list[ClientEvent]:
        match message.method:
            case "notifications/progress":
                try:
                    progress = _progress.decode(message.params)
                except UNREADABLE:
                    return [LogNote("sent invalid progress")]
                known = any(opened.id == progress.progress_token for opened in self._open.values())
                if not known or not isinstance(progress.progress_token, int):
                    return []
                counted = "" if progress.total is None else f"{progress.progress:g} of {progress.total:g}"
                return [CallProgress(progress.progress_token, _short(progress.message) or counted)]
            case "notifications/tools/list_changed":
                return [ListChanged("tools")]
            case "notifications/prompts/list_changed":
                return [ListChanged("prompts")]
            case "notifications/resources/list_changed":
                return [ListChanged("resources")]
            case _:
                return []

    def _asked(self, request: RpcRequest) -> list[ClientEvent]:
        assert request.id is not None
        match request.method:
            case "ping":
                return [self._answered(request.id, {})]
            case "roots/list":
                return [self._answered(request.id, self._roots())]
            case "elicitation/create":
                try:
                    return [Elicited(request.id, _decoded(_elicitations, request.params, "the question"))]
                except ProtocolError as problem:
                    error = RpcError(jsonrpc.INVALID_PARAMS, str(problem))
            case _:
                error = RpcError(METHOD_NOT_FOUND, _refusal(request.method))
        refused = Outgoing(jsonrpc.encode_error(request.id, error), headers=self._headers())
        return [ToSend(refused), LogNote(f"asked for {_short(request.method)}, which zot refuses")]

    def _answered(self, request: msgspec.Raw, result: Any) -> ToSend:
        return ToSend(Outgoing(jsonrpc.encode_result(request, result), headers=self._headers()))

    def _broken(self, reason: str) -> ClientBroken:
        self.state = ClientState.BROKEN
        return ClientBroken(reason)


def _refusal(method: str) -> str:
    if method == "sampling/createMessage":
        return "zot does not call models for servers: sampling/createMessage is refused"
    return f"zot does not answer {_short(method)}"


def _short(text: str) -> str:
    return printable_line(text, _MAX_TEXT)


_ANSWERABLE: Final = frozenset({"roots/list", "elicitation/create"})


def _answer(reply: QuestionReply) -> dict[str, Any]:
    return {"action": reply.action, **({"content": dict(reply.content)} if reply.action == "accept" else {})}


# Questions.


def question_of(server: str, asked: Elicitation) -> Question:
    """Return a server's question as users are asked it. Raise ProtocolError if zot cannot ask it."""
    message = printable(asked.message[:MAX_MESSAGE])
    if asked.mode == "url":
        if not asked.url.startswith(("https://", "http://")) or not asked.url.isprintable():
            raise ProtocolError("the question names no address that can be opened")
        return Question(f"mcp:{server}", message, url=asked.url)
    if asked.mode != "form":
        raise ProtocolError(f"the question is of the unknown kind {_short(asked.mode)!r}")
    properties = asked.requested_schema.get("properties", {})
    required = asked.requested_schema.get("required", [])
    if not isinstance(properties, dict) or len(properties) > MAX_FIELDS:
        raise ProtocolError("the question has no usable fields")
    needed = set(map(str, required)) if isinstance(required, list) else set()
    fields = [_field(str(name), schema, required=name in needed) for name, schema in properties.items()]
    return Question(f"mcp:{server}", message, tuple(fields))


class _FieldSchema(msgspec.Struct, frozen=True, rename="camel"):
    """The schema of one field: a flat value, or a list of choices."""

    type: str = "string"
    title: str = ""
    description: str = ""
    default: str | int | float | bool | list[str] | None = None
    enum: list[str] = []
    enum_names: list[str] = []
    one_of: list[dict[str, Any]] = []
    any_of: list[dict[str, Any]] = []
    items: dict[str, Any] = {}
    minimum: float | None = None
    maximum: float | None = None
    min_length: float | None = None
    max_length: float | None = None
    min_items: float | None = None
    max_items: float | None = None
    format: str = ""


_Kind: TypeAlias = Literal["string", "number", "integer", "boolean", "choice", "choices"]
_KINDS: Final[dict[str, _Kind]] = {
    "string": "string", "number": "number", "integer": "integer", "boolean": "boolean", "array": "choices",
}  # fmt: skip


def _field(name: str, raw: Any, *, required: bool) -> QuestionField:
    try:
        schema = msgspec.convert(raw, thread_safe_type(_FieldSchema))
        items = msgspec.convert(schema.items, thread_safe_type(_FieldSchema))
    except msgspec.ValidationError as problem:
        raise ProtocolError(f"the field {_short(name)!r} cannot be asked: {explain(problem)}") from None
    kind = _KINDS.get(schema.type)
    choices = _choices(items if kind == "choices" else schema)
    if kind is None or (kind == "choices" and not choices) or len(choices) > MAX_CHOICES:
        raise ProtocolError(f"the field {_short(name)!r} cannot be asked: it is not a flat value")
    if kind == "string" and choices:
        kind = "choice"
    sizes = {"string": (schema.min_length, schema.max_length), "choices": (schema.min_items, schema.max_items)}
    minimum, maximum = sizes.get(kind, (schema.minimum, schema.maximum))
    return QuestionField(
        name,
        kind,
        _short(schema.title),
        _short(schema.description),
        required,
        choices,
        schema.default,
        minimum,
        maximum,
        _short(schema.format),
    )


def _choices(schema: _FieldSchema) -> tuple[QuestionChoice, ...]:
    titled = schema.one_of or schema.any_of
    if titled:
        return tuple(QuestionChoice(str(one.get("const", "")), _short(str(one.get("title", "")))) for one in titled)
    names = [*schema.enum_names, *[""] * len(schema.enum)]
    return tuple(QuestionChoice(value, _short(name)) for value, name in zip(schema.enum, names, strict=False))


# Headers that mirror parts of a request over HTTP.

#: Methods whose requests are about one thing, and the parameter that names it.
_NAMES: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_HEADER_KEY: Final = "x-mcp-header"
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PLAIN: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_ENCODED: Final = re.compile(r"=\?base64\?.*\?=", re.DOTALL)


def header_value(text: str) -> str:
    """Return a text as the value of a header; one that HTTP would change is encoded."""
    if _PLAIN.fullmatch(text) and not _ENCODED.fullmatch(text):
        return text
    return f"=?base64?{b2a_base64(text.encode('utf-8', 'replace'), newline=False).decode()}?="


def header_fields(schema: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """Return the arguments that a tool wants repeated in headers, by their path, with the headers' names.

    Raise ProtocolError if a name or a place is not allowed: the tool must not be used then.
    """
    found: dict[tuple[str, ...], str] = {}
    for path, part in _schemas(schema):
        if _HEADER_KEY not in part:
            continue
        name = part[_HEADER_KEY]
        if not path or not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise ProtocolError(f"{_HEADER_KEY} is not allowed there, or is not the name of a header")
        if part.get("type") not in ("string", "integer", "boolean"):
            raise ProtocolError(f"{_HEADER_KEY} {name!r} is for a string, an integer or a boolean only")
        if name.lower() in (known.lower() for known in found.values()):
            raise ProtocolError(f"{_HEADER_KEY} {name!r} is used twice")
        found[path] = name
    return found


def _schemas(schema: Any) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield every part of a schema, with the path of properties that leads to it; () if another keyword does."""
    waiting: list[tuple[tuple[str, ...] | None, Any]] = [((), schema)]
    while waiting:
        path, part = waiting.pop()
        if not isinstance(part, dict):
            continue
        yield path or (), part
        for key, value in part.items():
            if key == "properties" and isinstance(value, dict):
                waiting += [(None if path is None else (*path, name), inner) for name, inner in value.items()]
            elif key in _PARTS_BY_NAME and isinstance(value, dict):
                waiting += [(None, inner) for inner in value.values()]
            elif key in _PARTS and isinstance(value, dict | list):
                waiting += [(None, inner) for inner in (value if isinstance(value, list) else [value])]


_PARTS_BY_NAME: Final = frozenset({"patternProperties", "dependentSchemas", "$defs", "definitions"})
_PARTS: Final = frozenset(
    {"items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames", "unevaluatedProperties", "not"}
    | {"if", "then", "else", "contentSchema", "allOf", "anyOf", "oneOf", "prefixItems"}
)


def argument_headers(fields: Mapping[tuple[str, ...], str], args: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that repeat arguments of a call."""
    headers: dict[str, str] = {}
    for path, name in fields.items():
        value: Any = args
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, bool):
            headers[f"mcp-param-{name.lower()}"] = "true" if value else "false"
        elif isinstance(value, str | int):
            headers[f"mcp-param-{name.lower()}"] = header_value(str(value))
    return headers
