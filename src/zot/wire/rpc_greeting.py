"""Start of a zot RPC v1 connection: `hello`, `ping` and the response frame. Does no I/O.

Separate from `rpc`, so that both are answered before the rest of the protocol is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from zot.encoding import UNREADABLE, encode
from zot.errors import ProtocolError
from zot.wire.lines import may_repeat_type

PROTOCOL_VERSION: Final = 1

#: Features that a client may enable with `hello`. Without them it gets version 1 as first published.
FEATURES: Final = ("seq", "thinking", "retries", "prices", "approvals", "compaction", "extensions", "questions", "mcp")


class Command(msgspec.Struct, frozen=True, tag_field="type"):
    """A request from a client. ``id`` is kept verbatim and echoed."""

    id: msgspec.Raw = msgspec.Raw()


class Hello(Command, tag="hello", frozen=True):
    """Show the ``token``, if zot requires one, and enable ``features``. Unknown features are ignored."""

    token: str | None = None
    features: tuple[str, ...] | None = None


class Ping(Command, tag="ping", frozen=True):
    """Check that zot answers."""


_greetings: msgspec.json.Decoder[Hello | Ping] = msgspec.json.Decoder(Hello | Ping)
IDS: msgspec.json.Decoder[str | int | float | None] = msgspec.json.Decoder(str | int | float | None)


class Response(msgspec.Struct, frozen=True, tag="response", tag_field="type"):
    """The answer to one command."""

    id: msgspec.Raw | msgspec.UnsetType
    command: str
    success: bool
    data: Any = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET


class HelloData(msgspec.Struct, frozen=True):
    """Versions, provider and model. ``features`` are the enabled ones, present if the client named any."""

    protocol_version: int
    version: str
    provider: str
    model: str
    features: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


PONG: Final = {"pong": True}


def name_of(command: Command) -> str:
    """Return the name of a command on the wire."""
    return str(type(command).__struct_config__.tag)


def decode_greeting(line: bytes) -> Hello | Ping | None:
    """Decode a well-formed hello or ping; None for any other line, which `decode_command` must handle."""
    try:
        line.decode()
        command = _greetings.decode(line)
        check_id(command)
    except (*UNREADABLE, ProtocolError):
        return None
    return None if may_repeat_type(line) else command


def check_id(command: Command) -> None:
    """Raise ProtocolError if the id of a command cannot be echoed."""
    try:
        IDS.decode(command.id or b"null")
    except UNREADABLE:
        kind = name_of(command)
        raise ProtocolError(f"{kind}: id must be a string or a number of usual size", frame_type=kind) from None


def succeed(command: Command, data: Any = msgspec.UNSET) -> bytes:
    """Return the response to a command that succeeded."""
    return _response(bytes(command.id), name_of(command), success=True, data=data)


def fail(command: Command, reason: str) -> bytes:
    """Return the response to a command that failed."""
    return _response(bytes(command.id), name_of(command), success=False, error=reason)


def fail_frame(problem: ProtocolError) -> bytes:
    """Return the response to a line that is no valid command."""
    return _response(problem.frame_id, problem.frame_type, success=False, error=str(problem))


def _response(frame_id: bytes, command: str, *, success: bool, **rest: Any) -> bytes:
    given = frame_id not in (b"", b"null", b'""')
    return encode(Response(msgspec.Raw(frame_id) if given else msgspec.UNSET, command, success, **rest)) + b"\n"


class Greeting:
    """Handshake state of one connection: whether the token was shown, and the enabled features."""

    def __init__(self, *, version: str, provider: str, model: Callable[[], str], token: str = "") -> None:
        self._version = version
        self.provider = provider
        self.model = model
        self._token = token
        self.features: frozenset[str] = frozenset()

    @property
    def locked(self) -> bool:
        """True until the token has been shown."""
        return bool(self._token)

    def refusal(self, command: Command) -> str | None:
        """Return why the connection must close; None if it may continue. The right token unlocks it for good."""
        if not self._token:
            return None
        if not isinstance(command, Hello):
            return "the first command must be hello with the token"
        from hmac import compare_digest  # Imported lazily: few clients have a token.

        if not compare_digest((command.token or "").encode("utf-8", "replace"), self._token.encode("utf-8", "replace")):
            return "invalid token"
        self._token = ""
        return None

    def answer(self, command: Hello | Ping) -> bytes:
        """Return the response to ``command``; enable the features that it names."""
        if isinstance(command, Ping):
            return succeed(command, PONG)
        features: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
        if command.features is not None:
            features = tuple(name for name in FEATURES if name in command.features)
            self.features = frozenset(features)
        return succeed(command, HelloData(PROTOCOL_VERSION, self._version, self.provider, self.model(), features))
