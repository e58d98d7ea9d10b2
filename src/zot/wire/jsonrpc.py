"""JSON-RPC 2.0, one object per line: decoded messages and encoded replies. Does no I/O."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from zot.encoding import UNREADABLE, encode, explain
from zot.errors import AgentError
from zot.text import replace_surrogate_escapes

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
SESSION_NOT_FOUND: Final = -32000
SESSION_LIMIT: Final = -32001
SESSION_BUSY: Final = -32002
NOT_OWNED: Final = -32003
TOO_MANY_CLIENTS: Final = -32004
STOPPING: Final = -32005
NOT_INITIALIZED: Final = -32010
VERSION_MISMATCH: Final = -32011

NULL: Final = msgspec.Raw(b"null")
NO_PARAMS: Final = msgspec.Raw(b"{}")

_VERSION: Final = msgspec.Raw(b'"2.0"')
_BOM: Final = b"\xef\xbb\xbf"
_TOO_LARGE: Final = "frame_too_large"


class RpcRequest(msgspec.Struct, frozen=True):
    """A call from the peer. ``id`` is kept verbatim; None marks a notification, which gets no reply.

    ``params`` is an object or an array; ``{}`` if absent.
    """

    method: str
    params: msgspec.Raw = NO_PARAMS
    id: msgspec.Raw | None = None


class ErrorObject(msgspec.Struct, frozen=True):
    """Why a call failed."""

    code: int
    message: str
    data: Any = msgspec.UNSET


class Reply(msgspec.Struct, frozen=True):
    """The peer's reply to one of our calls: ``error`` if it failed, else ``result``."""

    id: msgspec.Raw
    result: msgspec.Raw | None = None
    error: ErrorObject | None = None


class Bad(msgspec.Struct, frozen=True):
    """A line that is no valid message, to be answered with an error. ``id`` is null if unreadable."""

    id: msgspec.Raw
    code: int
    message: str
    data: Any = None


class RpcError(AgentError):
    """A call failed. ``code`` is for programs, the message for people; ``data`` is None if absent."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data

    @property
    def message(self) -> str:
        """The text for people."""
        return str(self)


def frame_too_large(limit: int) -> RpcError:
    """Return the error for a line longer than ``limit`` bytes."""
    data = {"reason": _TOO_LARGE, "limitBytes": limit}
    return RpcError(INVALID_REQUEST, f"the line is longer than {limit} bytes", data)


def refused_above(problem: RpcError) -> int | None:
    """Return the limit in bytes if ``problem`` refuses a line as too long, else None. Such an error carries no id."""
    match problem.data:
        case {"reason": reason, "limitBytes": int(limit)} if reason == _TOO_LARGE:
            return limit
        case _:
            return None


Incoming: TypeAlias = RpcRequest | Reply | Bad


class _Envelope(msgspec.Struct, frozen=True):
    """The top-level members of any message, undecoded. A missing one is empty, which is not valid JSON."""

    jsonrpc: msgspec.Raw = msgspec.Raw()
    method: msgspec.Raw = msgspec.Raw()
    params: msgspec.Raw = msgspec.Raw()
    id: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


_envelopes: msgspec.json.Decoder[_Envelope] = msgspec.json.Decoder(_Envelope)
_ids: msgspec.json.Decoder[str | int | float | None] = msgspec.json.Decoder(str | int | float | None)
_texts: msgspec.json.Decoder[str] = msgspec.json.Decoder(str)
_errors: msgspec.json.Decoder[ErrorObject] = msgspec.json.Decoder(ErrorObject)


def decode(line: bytes) -> Incoming | None:
    """Decode one line; None for a malformed reply, which matches no call. Raises nothing."""
    try:
        line.decode()  # The typed decode does not check UTF-8 in skipped values.
        envelope = _envelopes.decode(line)
    except UNREADABLE as problem:
        return _unreadable(line, problem)
    answers = bool(envelope.result or envelope.error)
    if answers and not envelope.method:
        return _reply(envelope)
    if answers:  # Reply without its id: the peer could match an error with it to another of its calls.
        return Bad(NULL, INVALID_REQUEST, "Invalid request: a message has a method, or a result or error, not both")
    return _request(envelope)


def encode_result(id: msgspec.Raw, result: Any) -> bytes:  # noqa: A002
    """Return the line that answers a request."""
    return b'{"jsonrpc":"2.0","result":%b,"id":%b}\n' % (encode(result), bytes(id))


def encode_error(id: msgspec.Raw, error: RpcError | Bad) -> bytes:  # noqa: A002
    """Return the line that reports a failed request."""
    told = ErrorObject(error.code, error.message, msgspec.UNSET if error.data is None else error.data)
    return b'{"jsonrpc":"2.0","error":%b,"id":%b}\n' % (encode(told), bytes(id))


def encode_notification(method: str, params: Any) -> bytes:
    """Return the line of a notification."""
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}\n' % (encode(method), encode(params))


def encode_request(method: str, params: Any, id: int | str) -> bytes:  # noqa: A002
    """Return the line of a request."""
    return b'{"jsonrpc":"2.0","method":%b,"params":%b,"id":%b}\n' % (encode(method), encode(params), encode(id))


def _request(envelope: _Envelope) -> RpcRequest | Bad:
    frame_id = _readable_id(envelope.id)
    wrong = _wrong_with(envelope, frame_id)
    if wrong:
        return Bad(frame_id or NULL, INVALID_REQUEST, f"Invalid request: {wrong}")
    params = NO_PARAMS if not envelope.params or envelope.params == NULL else envelope.params
    return RpcRequest(_texts.decode(envelope.method), params, frame_id)


def _wrong_with(envelope: _Envelope, frame_id: msgspec.Raw | None) -> str:
    """Return why a message is not a valid request; "" if it is one."""
    if envelope.id and frame_id is None:
        return "id must be a string, a number of usual size or null"
    if _text(envelope.jsonrpc) != "2.0":
        return 'jsonrpc must be "2.0"'
    if _text(envelope.method) is None:
        return "method must be a string" if envelope.method else "method is missing"
    if envelope.params and bytes(memoryview(envelope.params)[:1]) not in (b"{", b"[", b"n"):
        return "params must be an object"
    return ""


def _reply(envelope: _Envelope) -> Reply | None:
    frame_id = _readable_id(envelope.id)
    if frame_id is None or _text(envelope.jsonrpc) != "2.0" or (envelope.result and envelope.error):
        return None
    if envelope.result:
        return Reply(frame_id, envelope.result)
    try:
        return Reply(frame_id, error=_errors.decode(envelope.error))
    except UNREADABLE:
        return None


def _unreadable(line: bytes, problem: Exception) -> Bad:
    """Return the error for a line that cannot be decoded as an object, with its id if readable."""
    code, reason = PARSE_ERROR, f"Parse error: {explain(problem)}"
    frame_id: msgspec.Raw | None = None
    if line.startswith(_BOM):
        reason = "Parse error: the line begins with a byte order mark"
    elif isinstance(problem, RecursionError):
        reason = "Parse error: the JSON is nested too deeply"
    elif isinstance(problem, UnicodeDecodeError):
        reason, frame_id = f"Parse error: invalid UTF-8 at byte {problem.start}", _id_in(line)
    elif isinstance(problem, msgspec.ValidationError):
        code, reason = _no_object(line)
    elif b"\\u" in line and (frame_id := _id_in(line)) is not None:
        reason = "Parse error: unpaired surrogate escape"
    return Bad(frame_id or NULL, code, reason)


def _id_in(line: bytes) -> msgspec.Raw | None:
    """Return the id of a message with invalid UTF-8 or lone surrogates; null if it has none.

    None if the line is no JSON object even after replacing those.
    """
    try:
        envelope = _envelopes.decode(replace_surrogate_escapes(line.decode("utf-8", "replace").encode()))
    except UNREADABLE:
        return None
    # If the replacement changed the id, it is no longer the peer's.
    return (_readable_id(envelope.id) if bytes(envelope.id) in line else None) or NULL


def _no_object(line: bytes) -> tuple[int, str]:
    """Return code and message for a line that is no object. It may be other JSON, such as a batch."""
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except RecursionError:
        return PARSE_ERROR, "Parse error: the JSON is nested too deeply"
    except UNREADABLE as problem:
        return PARSE_ERROR, f"Parse error: {explain(problem)}"
    return INVALID_REQUEST, "Invalid request: a message is one object; batches are not supported"


def _readable_id(raw: msgspec.Raw) -> msgspec.Raw | None:
    """Return a copy of an id, so that it does not keep its line in memory; None if invalid."""
    try:
        _ids.decode(raw)
    except UNREADABLE:
        return None
    return raw.copy()


def _text(raw: msgspec.Raw) -> str | None:
    """Return the decoded string; None if the value is no string."""
    if raw == _VERSION:
        return "2.0"
    try:
        return _texts.decode(raw)
    except UNREADABLE:
        return None
