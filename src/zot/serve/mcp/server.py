"""Model Context Protocol, server side: one client's requests, whatever carries them and whatever the server offers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from zot.encoding import UNREADABLE
from zot.errors import AgentError, UserError, explained
from zot.wire.daemon import OPERATOR, Grant
from zot.wire.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Reply,
    RpcError,
    RpcRequest,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
)
from zot.wire.mcp_server import (
    LOG_LEVELS,
    McpGreeting,
    ServedClient,
    ServerDescription,
    completed,
    is_stateless_request,
    progress_token,
    read_params,
    stateless_client,
    subscribed,
)

log = logging.getLogger("zot")

#: The most requests of one client that are being answered, and the most subscriptions of all clients.
MAX_REQUESTS: Final = 256
_MAX_LISTENERS: Final = 256
#: Methods of one generation only; the service's own are in both, but for tasks.
_WITH_HANDSHAKE: Final = frozenset({"ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
_STATELESS_PREFIX: Final = "tasks/"


class McpOutlet(Protocol):
    """Where the messages about one request go: standard output, or the response to an HTTP request."""

    def write(self, data: bytes) -> None:
        """Enqueue a line."""

    @property
    def full(self) -> bool:
        """True while messages that may be left out should be."""


class McpExchange:
    """One request that is being answered. ``grant`` is what its client may do."""

    def __init__(
        self, connection: McpClientConnection, request: RpcRequest, client: ServedClient, outlet: McpOutlet
    ) -> None:
        self.request = request
        self.client = client
        self.grant = connection.grant
        self._connection = connection
        self._outlet = outlet
        self._token = progress_token(request)
        self._progress = 0

    def notify(self, method: str, params: Any) -> None:
        """Send a notification."""
        self._outlet.write(encode_notification(method, params))

    def progress(self, message: str, *, total: float | None = None, value: float | None = None) -> None:
        """Report progress, if the client wants it and reads its messages."""
        if self._token is None or self._outlet.full:
            return
        self._progress += 1
        params: dict[str, Any] = {"progressToken": self._token, "progress": self._progress if value is None else value}
        if total is not None:
            params["total"] = total
        self.notify("notifications/progress", {**params, "message": message})

    def log(self, level: str, data: Any, *, logger: str) -> None:
        """Send a log message, if the client wants those of this level."""
        wanted = self.client.log_level
        if wanted in LOG_LEVELS and LOG_LEVELS.index(level) >= LOG_LEVELS.index(wanted):
            self.notify("notifications/message", {"level": level, "logger": logger, "data": data})

    async def ask(self, method: str, params: Any) -> dict[str, Any] | None:
        """Ask the client of a connection, and return its answer; None if it fails. A stateless one cannot be asked."""
        assert not self.client.is_stateless, "a stateless client is asked by a result"
        return await self._connection.ask(method, params, self._outlet)


McpHandler: TypeAlias = Callable[[McpExchange], Awaitable[Mapping[str, Any]]]


class McpService:
    """What a server offers: handlers by method, which raise AgentError."""

    def __init__(self, description: ServerDescription, handlers: Mapping[str, McpHandler]) -> None:
        self.description = description
        self.handlers = handlers
        self._listeners: set[_Listener] = set()

    def announce(self, kind: str) -> None:
        """Tell the subscribers of stateless clients that a list has changed: "tools", "prompts" or "resources"."""
        for listener in self._listeners:
            listener.announce(kind)

    async def listen(self, exchange: McpExchange, ended: asyncio.Event) -> dict[str, Any]:
        """Answer `subscriptions/listen` once the connection ends."""
        if len(self._listeners) >= _MAX_LISTENERS:
            raise RpcError(INVALID_REQUEST, f"{_MAX_LISTENERS} subscriptions are open already")
        listener = _Listener(exchange, self.description.capabilities)
        self._listeners.add(listener)
        try:
            await ended.wait()
        finally:
            self._listeners.discard(listener)
        return subscribed({}, listener.id)


class _Filter(msgspec.Struct, frozen=True, rename="camel"):
    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None


class _Listen(msgspec.Struct, frozen=True):
    notifications: _Filter


class _Cancelled(msgspec.Struct, frozen=True, rename="camel"):
    request_id: msgspec.Raw


class _SetLevel(msgspec.Struct, frozen=True):
    level: str


_listens: msgspec.json.Decoder[_Listen] = msgspec.json.Decoder(_Listen)
_cancelled: msgspec.json.Decoder[_Cancelled] = msgspec.json.Decoder(_Cancelled)
_levels: msgspec.json.Decoder[_SetLevel] = msgspec.json.Decoder(_SetLevel)
_results: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


class _Listener:
    """One open subscription: the lists whose changes its client wants to hear of, of those that can change."""

    def __init__(self, exchange: McpExchange, capabilities: Mapping[str, Any]) -> None:
        assert exchange.request.id is not None
        self.id = exchange.request.id
        self._exchange = exchange
        wanted = msgspec.to_builtins(read_params(_listens, exchange.request).notifications)
        self._kinds = [
            kind
            for kind in ("tools", "prompts", "resources")
            if wanted[f"{kind}ListChanged"] and capabilities.get(kind, {}).get("listChanged")
        ]
        honored = {f"{kind}ListChanged": True for kind in self._kinds}
        exchange.notify("notifications/subscriptions/acknowledged", subscribed({"notifications": honored}, self.id))

    def announce(self, kind: str) -> None:
        if kind in self._kinds:
            self._exchange.notify(f"notifications/{kind}/list_changed", subscribed({}, self.id))


class McpAnswered(msgspec.Struct, frozen=True):
    """The answer to a request, b"" if there is none; ``code`` is that of an error, 0 for a result."""

    frame: bytes
    code: int = 0


class McpClientConnection:
    """One client: its greeting, its requests in progress, and the requests sent to it."""

    def __init__(self, service: McpService, *, grant: Grant = OPERATOR, greeting: McpGreeting | None = None) -> None:
        self.grant = grant
        self.greeting = greeting or McpGreeting(service.description)
        self._service = service
        self._requests: dict[bytes, asyncio.Task[McpAnswered]] = {}
        #: Our own requests.
        self._asked: dict[int, asyncio.Future[Reply]] = {}
        self._last_asked = 0
        #: Set once the client can neither ask nor answer any more.
        self.ended = asyncio.Event()

    @property
    def is_busy(self) -> bool:
        """True while a request is being answered."""
        return bool(self._requests)

    @property
    def requests(self) -> Sequence[asyncio.Task[McpAnswered]]:
        """The requests that are being answered."""
        return tuple(self._requests.values())

    def answer(
        self, request: RpcRequest, outlet: McpOutlet, headers: Mapping[str, Sequence[str]] | None = None
    ) -> asyncio.Task[McpAnswered]:
        """Begin to answer a request. The task of a cancelled request is cancelled, and then it has no answer.

        ``headers`` are those of a stateless HTTP request.
        """
        assert request.id is not None
        key = bytes(request.id)
        is_free = key not in self._requests and len(self._requests) < MAX_REQUESTS
        work = self._answered(request, outlet, headers) if is_free else _refused(request)
        task = asyncio.get_running_loop().create_task(work, name=f"zot mcp {request.method[:40]}")
        if is_free:
            self._requests[key] = task
            task.add_done_callback(lambda _: self._requests.pop(key, None))
        return task

    def take_notification(self, request: RpcRequest) -> None:
        """Take a notification of the client. Unknown ones are ignored."""
        if request.method == "notifications/cancelled":
            with suppress(*UNREADABLE):
                if (task := self._requests.get(bytes(_cancelled.decode(request.params).request_id))) is not None:
                    task.cancel()
        else:
            self.greeting.answer(request)

    def take_reply(self, reply: Reply) -> None:
        """Take the answer to a request of ours; others are ignored."""
        try:
            number = msgspec.json.decode(reply.id, type=int)
        except UNREADABLE:
            return
        if (asked := self._asked.pop(number, None)) is not None and not asked.done():
            asked.set_result(reply)

    async def ask(self, method: str, params: Any, outlet: McpOutlet) -> dict[str, Any] | None:
        """Ask the client; None if it refuses, or is gone."""
        if self.ended.is_set():
            return None
        self._last_asked += 1
        number, asked = self._last_asked, asyncio.get_running_loop().create_future()
        self._asked[number] = asked
        outlet.write(encode_request(method, params, number))
        gone = asyncio.ensure_future(self.ended.wait())
        try:
            await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if self._asked.pop(number, None) is not None:  # It is still open for the client.
                reason = {"requestId": number, "reason": "the answer is no longer needed"}
                outlet.write(encode_notification("notifications/cancelled", reason))
        if not asked.done():
            return None
        reply: Reply = asked.result()
        if reply.result is None:
            return None
        with suppress(*UNREADABLE):
            return _results.decode(reply.result)
        return None

    def end(self) -> None:
        """Note that the client can no longer ask or answer; its requests continue."""
        self.ended.set()

    def close(self) -> None:
        """End, and cancel every request."""
        self.end()
        for task in self._requests.values():
            task.cancel()

    async def _answered(
        self, request: RpcRequest, outlet: McpOutlet, headers: Mapping[str, Sequence[str]] | None
    ) -> McpAnswered:
        assert request.id is not None
        try:
            return McpAnswered(encode_result(request.id, await self._result(request, outlet, headers)))
        except Exception as problem:  # The outermost boundary: an error fails this request, not the connection.
            error = as_mcp_error(explained(problem, log, request.method))
            return McpAnswered(encode_error(request.id, error), error.code)

    async def _result(
        self, request: RpcRequest, outlet: McpOutlet, headers: Mapping[str, Sequence[str]] | None
    ) -> Mapping[str, Any]:
        description = self._service.description
        if headers is not None or is_stateless_request(request):
            client = stateless_client(request, headers)
            result = await self._stateless(McpExchange(self, request, client, outlet))
            return completed(request.method, result, description)
        if request.method == "initialize":
            return self.greeting.initialize(request)
        if self.greeting.client is None:
            raise RpcError(INVALID_REQUEST, "the first request must be initialize or server/discover")
        return await self._with_handshake(McpExchange(self, request, self.greeting.client, outlet))

    async def _stateless(self, exchange: McpExchange) -> Mapping[str, Any]:
        match exchange.request.method:
            case "server/discover":
                return self.greeting.discover()
            case "subscriptions/listen":
                return await self._service.listen(exchange, self.ended)
            case method if method in _WITH_HANDSHAKE:
                raise _unknown(method)
            case method:
                return await self._handler(method)(exchange)

    async def _with_handshake(self, exchange: McpExchange) -> Mapping[str, Any]:
        match exchange.request.method:
            case "ping":
                return {}
            case "logging/setLevel" if "logging" in self._service.description.capabilities:
                level = read_params(_levels, exchange.request).level
                if level not in LOG_LEVELS:
                    raise RpcError(INVALID_PARAMS, f"{level[:40]!r} is not one of {', '.join(LOG_LEVELS)}")
                self.greeting.client = msgspec.structs.replace(exchange.client, log_level=level)
                return {}
            case method if method.startswith(_STATELESS_PREFIX):
                raise _unknown(method)
            case method:
                return await self._handler(method)(exchange)

    def _handler(self, method: str) -> McpHandler:
        found = self._service.handlers.get(method)
        if found is None:
            raise _unknown(method)
        return found


async def _refused(request: RpcRequest) -> McpAnswered:
    assert request.id is not None
    problem = RpcError(INVALID_REQUEST, f"this id is in use, or {MAX_REQUESTS} requests are being answered")
    return McpAnswered(encode_error(request.id, problem), problem.code)


def _unknown(method: str) -> RpcError:
    return RpcError(METHOD_NOT_FOUND, f"unknown method {method[:100]!r}")


def as_mcp_error(problem: AgentError) -> RpcError:
    """Return what the client may see of a failure."""
    match problem:
        case RpcError():
            return problem
        case UserError():
            return RpcError(INVALID_PARAMS, str(problem))
        case _:
            return RpcError(INTERNAL_ERROR, str(problem))


def quietly(task: asyncio.Task[McpAnswered]) -> Coroutine[Any, Any, McpAnswered]:
    """Await a request's answer; one that was cancelled has none."""

    async def wait() -> McpAnswered:
        await asyncio.wait({task})
        return McpAnswered(b"") if task.cancelled() else task.result()

    return wait()
