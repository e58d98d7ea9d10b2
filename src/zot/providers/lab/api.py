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


class Refusal(Exception):
    """A request that reads, but cannot be answered. ``code`` and ``param`` are OpenAI's."""

    def __init__(self, message: str, *, code: str, param: str) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class Tool(msgspec.Struct, frozen=True):
    """A tool that a request offers. ``schema`` is the JSON schema of its arguments."""

    name: str
    schema: msgspec.Raw = msgspec.Raw(b"{}")


class UserText(msgspec.Struct, frozen=True):
    """One text block of the user. ``turns`` is the number of replies that follow it in the conversation."""

    text: str
    turns: int


class Ask(msgspec.Struct, frozen=True):
    """A request as the script sees it.

    ``texts`` are the user's texts in the current run, newest first, never empty; ``next_call`` is the number of the
    next made-up call id, new to this conversation.
    """

    model: str
    stream: bool
    texts: tuple[UserText, ...]
    tools: tuple[Tool, ...]
    next_call: int
    wants_usage: bool = True

    @property
    def prompt(self) -> UserText:
        """The text that started the run: the newest one before the model's first reply."""
        return next(text for text in self.texts if text.turns == self.texts[-1].turns)


class Run:
    """Reads a conversation from its beginning and keeps the user's texts of the current run.

    A run starts with the user's first text after an answer without tool calls. Texts that come later, between tool
    results and the next reply, belong to it: agents add reminders there, and users steer.
    """

    def __init__(self) -> None:
        self._texts: list[tuple[str, int]] = []
        self._replies = 0
        self._answered = False

    def user(self, texts: Iterable[str]) -> None:
        """Add the texts of one message of the user."""
        for text in texts:
            if self._answered:
                self._texts, self._replies, self._answered = [], 0, False
            self._texts.append((text, self._replies))

    def reply(self, *, calls: bool) -> None:
        """Add a reply of the model."""
        self._replies += 1
        self._answered = not calls

    def texts(self) -> tuple[UserText, ...]:
        """Return the user's texts of the current run, newest first; a single empty one if there are none."""
        found = self._texts or [("", 0)]
        return tuple(UserText(text, self._replies - before) for text, before in reversed(found))


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

    @property
    def overloaded(self) -> int:
        """The status with which it says that it has too much to do: one that its clients retry."""

    def read(self, body: bytes) -> Ask:
        """Read a request. Raise msgspec.MsgspecError, UnicodeError or RecursionError if it is none."""

    def voice(self, ask: Ask, number: int, usage: Usage) -> Voice:
        """Return what phrases the answer to the request with this number."""

    def failure(self, status: int, message: str, code: str = "", *, retry_after: str = "") -> bytes:
        """Return the body of an error. ``retry_after`` is the header of that name, for APIs that say it in the body."""

    def failure_headers(self, status: int) -> Mapping[str, str]:
        """Return the headers that the service adds to an error."""

    def count(self, body: bytes) -> bytes:
        """Return how many tokens a request has. Raise as ``read`` does."""

    def models(self, name: str) -> bytes:
        """Return the list of models, with this one in it."""

    def model(self, name: str) -> bytes:
        """Return one model. Every name is one: lab answers to all of them."""


def tokens_in(body: bytes) -> int:
    """Return about how many tokens a request has: one for every four bytes."""
    return -(-len(body) // 4)


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
