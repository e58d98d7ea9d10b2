"""JSON-RPC 2.0, one object a line: what a peer says, and the lines that answer it. Does no I/O."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from zot.encoding import encode
from zot.errors import AgentError
from zot.text import without_half_escapes

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

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_VERSION: Final = msgspec.Raw(b'"2.0"')
_BOM: Final = b"\xef\xbb\xbf"
_TOO_LARGE: Final = "frame_too_large"


class Request(msgspec.Struct, frozen=True):
    """A peer wants something. ``id`` is as it stood there; None if no answer is wanted, which is a notification.

    ``params`` is an object or an array; ``{}`` if there were none.
    """

    method: str
    params: msgspec.Raw = NO_PARAMS
    id: msgspec.Raw | None = None


class ErrorObject(msgspec.Struct, frozen=True):
    """Why something was not done."""

    code: int
    message: str
    data: Any = msgspec.UNSET


class Reply(msgspec.Struct, frozen=True):
    """A peer answers what we asked of it: ``error`` if it could not, else ``result``."""

    id: msgspec.Raw
    result: msgspec.Raw | None = None
    error: ErrorObject | None = None


class Bad(msgspec.Struct, frozen=True):
    """A line that is no message, to be answered by an error. ``id`` is null if it cannot be read."""

    id: msgspec.Raw
    code: int
    message: str
    data: Any = None


class RpcError(AgentError):
    """What was asked cannot be done; ``code`` says why to programs. ``data`` is None if there is none."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data

    @property
    def message(self) -> str:
        """What it says to people."""
        return str(self)


def frame_too_large(limit: int) -> RpcError:
    """Return why a line is not taken that is longer than ``limit`` bytes."""
    data = {"reason": _TOO_LARGE, "limitBytes": limit}
    return RpcError(INVALID_REQUEST, f"the line is longer than {limit} bytes", data)


def refused_above(problem: RpcError) -> int | None:
    """Return how long a line may be at the most, if that is why one was not taken; it has no id then."""
    match problem.data:
        case {"reason": reason, "limitBytes": int(limit)} if reason == _TOO_LARGE:
            return limit
        case _:
            return None


Incoming: TypeAlias = Request | Reply | Bad


class _Envelope(msgspec.Struct, frozen=True):
    """A message as far as everybody agrees on it. What is missing is empty, which no JSON is."""

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
    """Read one line; None for an answer that is none, which nobody waits for. Raises nothing."""
    try:
        line.decode()  # The typed decode does not look into what it skips.
        envelope = _envelopes.decode(line)
    except _UNREADABLE as problem:
        return _unreadable(line, problem)
    answers = bool(envelope.result or envelope.error)
    if answers and not envelope.method:
        return _reply(envelope)
    if answers:  # It may be meant as an answer, so an error with its id could be taken for one to another request.
        return Bad(NULL, INVALID_REQUEST, "Invalid request: a message has a method, or a result or error, not both")
    return _request(envelope)


def encode_result(id: msgspec.Raw, result: Any) -> bytes:  # noqa: A002
    """Return the line that answers a request."""
    return b'{"jsonrpc":"2.0","result":%b,"id":%b}\n' % (encode(result), bytes(id))


def encode_error(id: msgspec.Raw, error: RpcError | Bad) -> bytes:  # noqa: A002
    """Return the line that says why a request was not done."""
    told = ErrorObject(error.code, error.message, msgspec.UNSET if error.data is None else error.data)
    return b'{"jsonrpc":"2.0","error":%b,"id":%b}\n' % (encode(told), bytes(id))


def encode_notification(method: str, params: Any) -> bytes:
    """Return the line that tells a peer something."""
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}\n' % (encode(method), encode(params))


def encode_request(method: str, params: Any, id: int | str) -> bytes:  # noqa: A002
    """Return the line that asks a peer for something."""
    return b'{"jsonrpc":"2.0","method":%b,"params":%b,"id":%b}\n' % (encode(method), encode(params), encode(id))


def _request(envelope: _Envelope) -> Request | Bad:
    frame_id = _readable_id(envelope.id)
    wrong = _wrong_with(envelope, frame_id)
    if wrong:
        return Bad(frame_id or NULL, INVALID_REQUEST, f"Invalid request: {wrong}")
    params = NO_PARAMS if not envelope.params or envelope.params == NULL else envelope.params
    return Request(_texts.decode(envelope.method), params, frame_id)


def _wrong_with(envelope: _Envelope, frame_id: msgspec.Raw | None) -> str:
    """Return what keeps a message from being a request, "" if nothing does."""
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
    except _UNREADABLE:
        return None


def _unreadable(line: bytes, problem: Exception) -> Bad:
    """Say what is wrong with a line that is no object, or not quite one, with its id if that can be read."""
    code, reason = PARSE_ERROR, f"Parse error: {problem}"
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
        reason = "Parse error: half a character: an escape of a surrogate stands alone"
    return Bad(frame_id or NULL, code, reason)


def _id_in(line: bytes) -> msgspec.Raw | None:
    """Return the id of a message that has bytes or escapes which are no characters; null if it has none.

    None if it is no message even without them.
    """
    try:
        envelope = _envelopes.decode(without_half_escapes(line.decode("utf-8", "replace").encode()))
    except _UNREADABLE:
        return None
    # What cleaning has changed is not the peer's id any more.
    return (_readable_id(envelope.id) if bytes(envelope.id) in line else None) or NULL


def _no_object(line: bytes) -> tuple[int, str]:
    """Return what to say of a line that does not begin like an object: it may be JSON all the same."""
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except RecursionError:
        return PARSE_ERROR, "Parse error: the JSON is nested too deeply"
    except _UNREADABLE as problem:
        return PARSE_ERROR, f"Parse error: {problem}"
    return INVALID_REQUEST, "Invalid request: a message is one object; batches are not taken"


def _readable_id(raw: msgspec.Raw) -> msgspec.Raw | None:
    """Return an id, apart from the line it came in, which may be large; None if it is none."""
    try:
        _ids.decode(raw)
    except _UNREADABLE:
        return None
    return raw.copy()


def _text(raw: msgspec.Raw) -> str | None:
    """Return what a value says; None if it is no string."""
    if raw == _VERSION:
        return "2.0"
    try:
        return _texts.decode(raw)
    except _UNREADABLE:
        return None
