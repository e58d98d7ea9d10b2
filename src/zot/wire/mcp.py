"""Model Context Protocol, client side: messages and the state of one connection. Does no I/O.

Two generations are spoken. Since 2026-07-28 a server is stateless: `server/discover` describes it, and every request
carries version and capabilities. Before, `initialize` opened a connection. `McpClient` tries the newer one first.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from zot.encoding import UNREADABLE, explain
from zot.errors import ProtocolError
from zot.text import printable_line
from zot.version import __version__
from zot.wire import jsonrpc
from zot.wire.jsonrpc import METHOD_NOT_FOUND, Bad, Reply, Request, RpcError
from zot.wire.lines import has_more_values

T = TypeVar("T")

STATELESS: Final = "2026-07-28"
WITH_HANDSHAKE: Final = "2025-11-25"
#: Revisions whose tools work alike; a server may answer `initialize` with any of them.
_KNOWN: Final = frozenset({WITH_HANDSHAKE, "2025-06-18", "2025-03-26", "2024-11-05"})
#: The most values in one message.
MAX_VALUES: Final = 1_000_000
#: The most messages in a row that answer nothing.
MAX_UNASKED: Final = 10_000
#: The most rounds in which a server may ask for input before it answers one call.
MAX_ROUNDS: Final = 8
#: The most open requests of zot.
MAX_OPEN: Final = 256
_MAX_TEXT: Final = 300
_CLIENT: Final = {"name": "zot", "version": __version__}
#: Elicitation is declared and declined: servers then learn the answer instead of failing.
_CAPABILITIES: Final[dict[str, Any]] = {"roots": {}, "elicitation": {}}
_PREFIX: Final = "io.modelcontextprotocol/"
_META: Final = {
    f"{_PREFIX}protocolVersion": STATELESS,
    f"{_PREFIX}clientInfo": _CLIENT,
    f"{_PREFIX}clientCapabilities": _CAPABILITIES,
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


class ToolPage(msgspec.Struct, frozen=True, rename="camel"):
    """One page of a server's tools, each undecoded: a bad one costs itself, not the page."""

    tools: list[msgspec.Raw]
    next_cursor: str | None = None
    ttl_ms: float | None = None


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


class _InputRequest(msgspec.Struct, frozen=True):
    method: str = ""


class _Outcome(msgspec.Struct, frozen=True, rename="camel"):
    """The members that tell a result from a request for input."""

    result_type: str = "complete"
    input_requests: dict[str, _InputRequest] = {}
    request_state: str | None = None


class _Discovered(msgspec.Struct, frozen=True, rename="camel"):
    supported_versions: list[str]


class _Initialized(msgspec.Struct, frozen=True, rename="camel"):
    protocol_version: str


class _Progress(msgspec.Struct, frozen=True, rename="camel"):
    progress_token: int | str
    message: str = ""


_pages: msgspec.json.Decoder[ToolPage] = msgspec.json.Decoder(ToolPage)
_tools: msgspec.json.Decoder[ListedTool] = msgspec.json.Decoder(ListedTool)
_results: msgspec.json.Decoder[CallResult] = msgspec.json.Decoder(CallResult)
_outcomes: msgspec.json.Decoder[_Outcome] = msgspec.json.Decoder(_Outcome)
_discovered: msgspec.json.Decoder[_Discovered] = msgspec.json.Decoder(_Discovered)
_initialized: msgspec.json.Decoder[_Initialized] = msgspec.json.Decoder(_Initialized)
_progress: msgspec.json.Decoder[_Progress] = msgspec.json.Decoder(_Progress)
_ids: msgspec.json.Decoder[int | str | float | None] = msgspec.json.Decoder(int | str | float | None)


def decode_tools(result: msgspec.Raw) -> ToolPage:
    """Decode a result of `tools/list`. Raise ProtocolError."""
    return _decoded(_pages, result, "the list of tools")


def decode_tool(data: msgspec.Raw) -> ListedTool:
    """Decode one tool of a page. Raise ProtocolError."""
    return _decoded(_tools, data, "a tool")


def decode_call(result: msgspec.Raw) -> CallResult:
    """Decode a result of `tools/call`. Raise ProtocolError."""
    return _decoded(_results, result, "the result")


def _decoded(decoder: msgspec.json.Decoder[T], data: msgspec.Raw, what: str) -> T:
    try:
        return decoder.decode(data)
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


class ToolsChanged(msgspec.Struct, frozen=True):
    """The server's tools are no longer those that it listed."""


class ToSend(msgspec.Struct, frozen=True):
    """A line to send to the server."""

    data: bytes


class Noted(msgspec.Struct, frozen=True):
    """A fact for the log: a refused request, or a message that the protocol does not allow."""

    text: str


class ClientBroken(msgspec.Struct, frozen=True):
    """The server cannot be used: the connection must be closed."""

    reason: str


ClientEvent: TypeAlias = ServerReady | CallAnswered | CallProgress | ToolsChanged | ToSend | Noted | ClientBroken


class _PendingRequest(msgspec.Struct):
    method: str
    params: dict[str, Any]
    #: The request's id for the caller; the wire's id differs after a round of input.
    id: int
    rounds: int = 0


class McpClient:
    """State of a connection to one server: takes its messages, returns events.

    ``root`` is the address of the working directory, for servers that ask. ``revision`` is the one that the server
    spoke before, "" if unknown.
    """

    def __init__(self, root: str, *, revision: str = "") -> None:
        self.state = ClientState.NEW
        self.revision = revision
        self._root = root
        self._last_id = 0
        self._open: dict[int, _PendingRequest] = {}
        self._discovery = self._handshake = 0
        self._unasked = 0

    def start(self) -> bytes:
        """Return the first line to send."""
        return self._initialize() if self.revision and self.revision != STATELESS else self._discover()

    def undiscovered(self) -> bytes:
        """Note that a server does not answer `server/discover`; return the line of the handshake, b"" if too late."""
        return self._initialize() if self.state is ClientState.DISCOVERING else b""

    def request(self, method: str, params: dict[str, Any]) -> tuple[int, bytes]:
        """Return the id of a request and its line. Raise ProtocolError if the server is not ready."""
        if self.state is not ClientState.READY:
            raise ProtocolError(f"the server is {self.state.value}")
        if len(self._open) >= MAX_OPEN:
            raise ProtocolError(f"{MAX_OPEN} requests are open already")
        opened = _PendingRequest(method, params, self._last_id + 1)
        return opened.id, self._send(opened)

    def cancel(self, request: int, reason: str) -> bytes:
        """Give a request up; return the notification for the server, b"" if it was answered before."""
        for wire_id, opened in self._open.items():
            if opened.id == request:
                del self._open[wire_id]
                params = {"requestId": wire_id, "reason": reason}
                return jsonrpc.encode_notification("notifications/cancelled", self._with_meta(params))
        return b""

    def fail_all(self, problem: str) -> list[ClientEvent]:
        """Fail all open requests, such as those of a server that has exited."""
        failed = [CallAnswered(opened.id, jsonrpc.NULL, problem) for opened in self._open.values()]
        self._open.clear()
        return [*failed]

    def receive(self, message: jsonrpc.Incoming | None) -> list[ClientEvent]:
        """Take one message of the server."""
        match message:
            case Reply():
                events = self._reply(message)
            case Request(id=None):
                events = self._notification(message)
            case Request():
                events = [self._asked(message)]
                if message.method not in ("ping", "roots/list"):
                    events.append(Noted(f"asked for {_short(message.method)}, which zot refuses"))
            case Bad(message=problem):
                events = [Noted(f"sent no message: {_short(problem)}")]
            case None:
                events = [Noted("sent a malformed reply")]
        if any(isinstance(one, CallAnswered | ServerReady) for one in events):
            self._unasked = 0
            return events
        self._unasked += 1
        if self._unasked > MAX_UNASKED:
            return [self._broken(f"sent {MAX_UNASKED} messages in a row that answer nothing")]
        return events

    def _discover(self) -> bytes:
        self.state, self._last_id = ClientState.DISCOVERING, self._last_id + 1
        self._discovery = self._last_id
        return jsonrpc.encode_request("server/discover", {"_meta": _META}, self._discovery)

    def _initialize(self) -> bytes:
        self.state, self._last_id = ClientState.INITIALIZING, self._last_id + 1
        self._handshake = self._last_id
        params = {"protocolVersion": WITH_HANDSHAKE, "capabilities": _CAPABILITIES, "clientInfo": _CLIENT}
        return jsonrpc.encode_request("initialize", params, self._handshake)

    def _send(self, opened: _PendingRequest, **answers: Any) -> bytes:
        self._last_id += 1
        self._open[self._last_id] = opened
        params = self._with_meta({**opened.params, **answers}, progressToken=opened.id)
        return jsonrpc.encode_request(opened.method, params, self._last_id)

    def _with_meta(self, params: dict[str, Any], **more: Any) -> dict[str, Any]:
        meta = {**(_META if self.revision == STATELESS else {}), **more}
        return {**params, "_meta": meta} if meta else params

    def _reply(self, reply: Reply) -> list[ClientEvent]:
        wire_id = _ids.decode(reply.id)
        if not isinstance(wire_id, int):
            return [Noted("answered a request that zot did not send")]
        if self.state in (ClientState.DISCOVERING, ClientState.INITIALIZING):
            if wire_id == self._discovery:
                return self._described(reply)
            if wire_id == self._handshake:
                return self._greeted(reply)
        opened = self._open.pop(wire_id, None)
        if opened is None:
            return [Noted("answered a request that is not open")]
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
        unanswerable = next((one.method for one in outcome.input_requests.values() if not self._answers(one)), None)
        if unanswerable is not None or opened.rounds >= MAX_ROUNDS:
            reason = f"asked {MAX_ROUNDS} times for input" if unanswerable is None else _refusal(unanswerable)
            return [CallAnswered(opened.id, jsonrpc.NULL, reason), Noted(reason)]
        opened.rounds += 1
        answers: dict[str, Any] = {
            "inputResponses": {key: self._answer(one.method) for key, one in outcome.input_requests.items()}
        }
        if outcome.request_state is not None:
            answers["requestState"] = outcome.request_state
        return [ToSend(self._send(opened, **answers)), Noted("asked for input, which was declined")]

    def _answers(self, asked: _InputRequest) -> bool:
        return asked.method in ("roots/list", "elicitation/create")

    def _answer(self, method: str) -> dict[str, Any]:
        if method == "roots/list":
            return {"roots": [{"uri": self._root}]}
        return {"action": "decline"}

    def _described(self, reply: Reply) -> list[ClientEvent]:
        """Take the answer to `server/discover`, which may come after `initialize` was sent in its place."""
        events: list[ClientEvent] = []
        if reply.result is not None:
            try:
                if STATELESS in _discovered.decode(reply.result).supported_versions:
                    self.state, self.revision = ClientState.READY, STATELESS
                    return [ServerReady(STATELESS)]
            except UNREADABLE as problem:
                events.append(Noted(f"its answer to server/discover is invalid: {explain(problem)}"))
        if self.state is ClientState.DISCOVERING:
            events.append(ToSend(self._initialize()))
        return events

    def _greeted(self, reply: Reply) -> list[ClientEvent]:
        if reply.result is None:
            assert reply.error is not None
            return [self._broken(f"refused to initialize: {_short(reply.error.message)}")]
        try:
            version = _initialized.decode(reply.result).protocol_version
        except UNREADABLE as problem:
            return [self._broken(f"its answer to initialize is invalid: {explain(problem)}")]
        if version not in _KNOWN:
            return [self._broken(f"speaks revision {_short(version)!r}, which zot does not know")]
        self.state, self.revision = ClientState.READY, version
        return [ToSend(jsonrpc.encode_notification("notifications/initialized", {})), ServerReady(version)]

    def _notification(self, message: Request) -> list[ClientEvent]:
        match message.method:
            case "notifications/progress":
                try:
                    progress = _progress.decode(message.params)
                except UNREADABLE:
                    return [Noted("sent invalid progress")]
                known = any(opened.id == progress.progress_token for opened in self._open.values())
                if not known or not isinstance(progress.progress_token, int):
                    return []
                return [CallProgress(progress.progress_token, _short(progress.message))]
            case "notifications/tools/list_changed":
                return [ToolsChanged()]
            case _:
                return []

    def _asked(self, request: Request) -> ClientEvent:
        assert request.id is not None
        match request.method:
            case "ping":
                return ToSend(jsonrpc.encode_result(request.id, {}))
            case "roots/list" | "elicitation/create":
                return ToSend(jsonrpc.encode_result(request.id, self._answer(request.method)))
            case _:
                error = RpcError(METHOD_NOT_FOUND, _refusal(request.method))
                return ToSend(jsonrpc.encode_error(request.id, error))

    def _broken(self, reason: str) -> ClientBroken:
        self.state = ClientState.BROKEN
        return ClientBroken(reason)


def _refusal(method: str) -> str:
    if method == "sampling/createMessage":
        return "zot does not call models for servers: sampling/createMessage is refused"
    return f"zot does not answer {_short(method)}"


def _short(text: str) -> str:
    return printable_line(text, _MAX_TEXT)
