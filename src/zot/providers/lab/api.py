"""What lab needs to know of a model API: how to read a request, and how to phrase a reply. None of it does I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from zot.providers.lab.directives import Usage

Kind: TypeAlias = Literal["text", "thinking", "redacted", "call"]

#: The status that goes with an error, by the word for it.
STATUSES: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_OUR_CALL = re.compile(r"\w+_lab_(\d+)")


class Ask(msgspec.Struct, frozen=True):
    """A request as the script sees it.

    ``prompt`` is the newest text of the user, tool results aside; ``turns`` how many replies came since;
    ``next_call`` the number of the next made-up call id, new to this conversation.
    """

    model: str
    stream: bool
    prompt: str
    turns: int
    has_tools: bool
    next_call: int
    wants_usage: bool = True


class Block(msgspec.Struct):
    """One block of the reply while it is spoken. ``call_index`` counts the calls before it."""

    kind: Kind
    index: int
    call_index: int = 0
    id: str = ""
    tool: str = ""
    deltas: list[str] = []

    @property
    def text(self) -> str:
        """What has been said in it."""
        return "".join(self.deltas)


class Voice(Protocol):
    """Phrases one reply. Each ``bytes`` is one event of the stream."""

    @property
    def call_prefix(self) -> str:
        """How the made-up ids of calls begin."""

    def begin(self, *, twice: bool) -> list[bytes]:
        """Open the message. ``twice`` if the usage is to be reported twice."""

    def open(self, block: Block) -> list[bytes]: ...

    def delta(self, block: Block, text: str) -> bytes:
        """Return one delta; b"" where the API says such a block only as a whole."""

    def close(self, block: Block) -> list[bytes]: ...

    def end(self, blocks: list[Block], stop: str, *, twice: bool) -> list[bytes]: ...

    def whole(self, blocks: list[Block], stop: str) -> bytes:
        """Return the body that answers a request which does not stream."""

    def ping(self) -> bytes: ...

    def error(self, code: str, message: str) -> bytes: ...


class Api(Protocol):
    """One model API."""

    def read(self, body: bytes) -> Ask:
        """Read a request. Raise msgspec.MsgspecError, UnicodeError or RecursionError if it is none."""

    def voice(self, ask: Ask, number: int, usage: Usage) -> Voice:
        """Return what phrases the answer to the request with this number."""

    def failure(self, status: int, message: str, code: str = "") -> bytes:
        """Return the body of an error."""


def status_of(code: str) -> int:
    """Return the HTTP status that goes with the code of an error."""
    return STATUSES.get(code, 500)


def next_call(ids: Iterable[str]) -> int:
    """Return one more than the highest number among the call ids that lab has made up."""
    numbers = [int(found[1]) for id_ in ids if (found := _OUR_CALL.fullmatch(id_)) is not None]
    return max(numbers, default=0) + 1


def encode(value: Any) -> bytes:
    """Return compact JSON; a lone surrogate becomes U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        from zot.encoding import encode as encode_anything

        return encode_anything(value)
