"""Model Context Protocol, server side: greetings, the envelope of requests, results and HTTP headers. Does no I/O.

Two generations are served. Since 2026-07-28 each request carries the client's revision and capabilities, and
`server/discover` describes the server. Before, `initialize` opened a connection.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from zot.encoding import UNREADABLE, explain
from zot.version import __version__
from zot.wire.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    RpcError,
    RpcRequest,
    encode_error,
    encode_result,
)

T = TypeVar("T")

STATELESS: Final = "2026-07-28"
WITH_HANDSHAKE: Final = "2025-11-25"
#: Revisions that `initialize` can agree on, the newest first; their tools work alike.
HANDSHAKES: Final = (WITH_HANDSHAKE, "2025-06-18", "2025-03-26", "2024-11-05")
#: Begins the protocol's own keys in `_meta`.
PREFIX: Final = "io.modelcontextprotocol/"
#: The extension with which a call becomes a task.
TASKS: Final = f"{PREFIX}tasks"

HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
#: The server does not speak the revision of a request; the error names those that it does.
UNSUPPORTED_REVISION: Final = -32022
#: HTTP status of an error; 200 for others.
_STATUS: Final[Mapping[int, int]] = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_REVISION: 400,
    METHOD_NOT_FOUND: 404,
}
_VERSION_KEY: Final = f"{PREFIX}protocolVersion"
_CAPABILITIES_KEY: Final = f"{PREFIX}clientCapabilities"
#: The parameter that the header `Mcp-Name` repeats.
_NAMED_BY: Final[Mapping[str, str]] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
#: Methods whose results may be cached, and for how long.
_CACHEABLE: Final = frozenset(
    {
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    }
)
#: Severities of log messages, in ascending order.
LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


class ServedClient(msgspec.Struct, frozen=True):
    """The revision and the capabilities of a client. ``log_level`` is the least severity that it wants, if any."""

    revision: str
    capabilities: dict[str, Any]
    log_level: str | None = None

    @property
    def is_stateless(self) -> bool:
        """True if each of its requests stands alone: it answers questions by repeating a request."""
        return self.revision == STATELESS

    @property
    def can_elicit(self) -> bool:
        """True if it can ask a person to fill in a form."""
        found = self.capabilities.get("elicitation")
        return isinstance(found, dict) and (not found or "form" in found)

    @property
    def has_tasks(self) -> bool:
        """True if it accepts a task instead of a result."""
        extensions = self.capabilities.get("extensions")
        return self.is_stateless and isinstance(extensions, dict) and TASKS in extensions


class ServerDescription(msgspec.Struct, frozen=True):
    """What a server says about itself. ``extensions`` are for stateless clients; ``ttl_ms`` is for its lists."""

    name: str
    capabilities: dict[str, Any]
    title: str = ""
    version: str = __version__
    instructions: str = ""
    extensions: dict[str, Any] = {}
    ttl_ms: int = 0

    @property
    def info(self) -> dict[str, str]:
        """The name and version of the program."""
        return {"name": self.name, "title": self.title or self.name, "version": self.version}


#: The agent as a server.
AGENT: Final = ServerDescription(
    "zot",
    {"tools": {}},
    title="zot coding agent",
    instructions=(
        "The tool zot gives a task to a coding agent and returns its answer and the id of its session; zot_reply"
        " continues a session. Runs may take minutes."
    ),
    extensions={TASKS: {}},
    ttl_ms=3_600_000,
)


class _RequestMeta(
    msgspec.Struct,
    frozen=True,
    rename={
        "version": _VERSION_KEY,
        "capabilities": _CAPABILITIES_KEY,
        "log_level": f"{PREFIX}logLevel",
        "progress_token": "progressToken",
    },
):
    version: str | None = None
    capabilities: dict[str, Any] | None = None
    log_level: str | None = None
    progress_token: str | int | None = None


class _WithMeta(msgspec.Struct, frozen=True, rename={"meta": "_meta"}):
    meta: _RequestMeta | None = None


class _Initialize(msgspec.Struct, frozen=True, rename="camel"):
    protocol_version: str
    capabilities: dict[str, Any] = {}


_metas: msgspec.json.Decoder[_WithMeta] = msgspec.json.Decoder(_WithMeta)
_initializes: msgspec.json.Decoder[_Initialize] = msgspec.json.Decoder(_Initialize)
_objects: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


def read_params(decoder: msgspec.json.Decoder[T], request: RpcRequest) -> T:
    """Decode the parameters of a request. Raise RpcError."""
    try:
        return decoder.decode(request.params)
    except UNREADABLE as problem:
        raise RpcError(INVALID_PARAMS, f"{request.method}: {explain(problem)}") from None


def progress_token(request: RpcRequest) -> str | int | None:
    """Return the token with which the client wants to hear of progress. Raise RpcError."""
    meta = read_params(_metas, request).meta
    return None if meta is None else meta.progress_token


def is_stateless_request(request: RpcRequest) -> bool:
    """True if a request says its revision itself, or can only come from a stateless client."""
    try:
        meta = _metas.decode(request.params).meta
    except UNREADABLE:
        return False
    return request.method == "server/discover" or (meta is not None and meta.version is not None)


def stateless_client(request: RpcRequest, headers: Mapping[str, Sequence[str]] | None = None) -> ServedClient:
    """Return the client that a stateless request describes. Raise RpcError.

    ``headers`` are those of an HTTP request, by name in small letters; they must agree with the body.
    """
    meta = read_params(_metas, request).meta
    if meta is None or meta.version is None or meta.capabilities is None:
        raise RpcError(INVALID_PARAMS, f"params._meta must have {_VERSION_KEY} and {_CAPABILITIES_KEY}")
    if headers is not None:
        _check_headers(request, headers, meta.version)
    if meta.version != STATELESS:
        data = {"supported": [STATELESS], "requested": meta.version}
        raise RpcError(UNSUPPORTED_REVISION, f"revision {meta.version[:40]!r} is not supported", data)
    return ServedClient(meta.version, meta.capabilities, meta.log_level)


class McpGreeting:
    """Handshake of one connection: `initialize`, or `server/discover`, which changes nothing."""

    def __init__(self, description: ServerDescription) -> None:
        self.description = description
        #: The client of `initialize`; None before.
        self.client: ServedClient | None = None

    def answer(self, request: RpcRequest) -> bytes | None:
        """Return the response to a greeting, b"" for a notification; None for any other request."""
        try:
            match request.method:
                case "initialize" if not is_stateless_request(request):
                    result = self.initialize(request)
                case "server/discover":
                    stateless_client(request)
                    result = completed(request.method, self.discover(), self.description)
                case "notifications/initialized":
                    return b""
                case _:
                    return None
        except RpcError as problem:
            return b"" if request.id is None else encode_error(request.id, problem)
        return b"" if request.id is None else encode_result(request.id, result)

    def initialize(self, request: RpcRequest) -> dict[str, Any]:
        """Return the result of `initialize`, and keep what the client says about itself. Raise RpcError."""
        given = read_params(_initializes, request)
        revision = given.protocol_version if given.protocol_version in HANDSHAKES else WITH_HANDSHAKE
        self.client = ServedClient(revision, given.capabilities, LOG_LEVELS[0])
        capabilities = self.description.capabilities
        return self._described({"protocolVersion": revision, "serverInfo": self.description.info}, capabilities)

    def discover(self) -> dict[str, Any]:
        """Return the result of `server/discover`."""
        capabilities = {name: one for name, one in self.description.capabilities.items() if name != "logging"}
        if self.description.extensions:
            capabilities["extensions"] = self.description.extensions
        return self._described({"supportedVersions": [STATELESS]}, capabilities)

    def _described(self, result: dict[str, Any], capabilities: Mapping[str, Any]) -> dict[str, Any]:
        said = self.description.instructions
        return {**result, "capabilities": capabilities, **({"instructions": said} if said else {})}


def completed(method: str, result: Mapping[str, Any], description: ServerDescription) -> dict[str, Any]:
    """Return a result with what every result for a stateless client has."""
    whole = {"resultType": "complete", **result}
    whole["_meta"] = {**result.get("_meta", {}), f"{PREFIX}serverInfo": description.info}
    if method in _CACHEABLE and whole["resultType"] == "complete":
        whole = {"ttlMs": description.ttl_ms, "cacheScope": "private", **whole}
    return whole


def subscribed(params: Mapping[str, Any], request_id: msgspec.Raw) -> dict[str, Any]:
    """Return the parameters of a notification with the id of the subscription it belongs to."""
    return {**params, "_meta": {f"{PREFIX}subscriptionId": request_id}}


def missing_capability(**required: Any) -> RpcError:
    """Return the error for a client that lacks capabilities, each with its value."""
    said = f"the client must declare the capability {', '.join(required)}"
    return RpcError(MISSING_CAPABILITY, said, {"requiredCapabilities": required})


def http_status(code: int) -> int:
    """Return the HTTP status of an error for a stateless client."""
    return _STATUS.get(code, 200)


def _check_headers(request: RpcRequest, headers: Mapping[str, Sequence[str]], version: str) -> None:
    _check_header(headers, "mcp-protocol-version", version)
    _check_header(headers, "mcp-method", request.method)
    if isinstance(named := _objects.decode(request.params).get(_NAMED_BY.get(request.method, "")), str):
        _check_header(headers, "mcp-name", named)


def _check_header(headers: Mapping[str, Sequence[str]], name: str, wanted: Any) -> None:
    given = [_plain(value) for value in headers.get(name, ())]
    if given != [wanted]:
        raise RpcError(HEADER_MISMATCH, f"the header {name} must be given once and agree with the request")


def _plain(value: str) -> str | None:
    """Return the value of a header, which is encoded if it is not plain ASCII; None if that is malformed."""
    if not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return binascii.a2b_base64(value[len("=?base64?") : -len("?=")], strict_mode=True).decode()
    except ValueError:
        return None
