"""Blocking calls to the daemon, without an event loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Self

import msgspec

from zot.client.endpoint import Patience, dial, reach
from zot.encoding import UNREADABLE, thread_safe_type
from zot.errors import UserError
from zot.wire.lines import LineSplitter

_READ_BYTES = 1 << 16
#: A result may hold a whole conversation.
_MAX_LINE_BYTES = 256 << 20


class CallRefused(UserError):
    """The daemon answered with an error."""

    def __init__(self, message: str, *, code: int, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class ServerGreeting(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to `initialize`."""

    server_version: str = ""
    protocol_version: int = 0
    server_pid: int = 0


class _Error(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""
    data: Any = None


class _Answer(msgspec.Struct, frozen=True):
    id: int | str | None = None
    result: Any = None
    error: _Error | None = None


_answers: msgspec.json.Decoder[_Answer] = msgspec.json.Decoder(_Answer)


class BlockingConnection:
    """A connection on which `initialize` has succeeded. Every call is limited to ``within_s``."""

    def __init__(self, path: str, *, within_s: float, patience: Patience | None = None) -> None:
        """Connect and call `initialize`. With ``patience``, wait for a daemon that does not listen yet.

        Raise OSError if no daemon listens, TimeoutError if it does not answer, CallRefused.
        """
        self._within_s = within_s
        self._number = 0
        self._lines = LineSplitter(max_line_bytes=_MAX_LINE_BYTES)
        self._socket = dial(path, within_s) if patience is None else reach(path, within_s, patience)
        try:
            self.greeting = msgspec.convert(
                self.call("initialize", {"protocolVersion": 1}), thread_safe_type(ServerGreeting)
            )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self,
        method: str,
        params: dict[str, Any],
        *,
        within_s: float | None = None,
        on_line: Callable[[bytes], None] = lambda line: None,
    ) -> Any:
        """Return the result of a call. Raise CallRefused, TimeoutError, or OSError if the daemon hangs up.

        ``on_line`` receives the lines before the answer. ``within_s`` may be infinite. An error without an id is taken
        as the answer too: the daemon does not read the id of a line that is too long or no JSON.
        """
        patience_s = self._within_s if within_s is None else within_s
        deadline = time.monotonic() + patience_s
        self.send(method, params, within_s=patience_s)
        while True:
            self._socket.settimeout(_left(deadline))
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError(f"the daemon closed the connection before it answered {method}")
            for line in filter(None, (line if isinstance(line, bytes) else b"" for line in self._lines.feed(data))):
                answer = _answer(line)
                if answer is not None and answer.error is not None and answer.id in (self._number, None):
                    raise CallRefused(answer.error.message, code=answer.error.code, data=answer.error.data)
                if answer is None or answer.id != self._number:
                    on_line(line)
                else:
                    return answer.result

    def send(self, method: str, params: dict[str, Any], *, within_s: float) -> None:
        """Send a call without waiting for its answer. Raise OSError."""
        self._number += 1
        request = {"jsonrpc": "2.0", "method": method, "params": params, "id": self._number}
        self._socket.settimeout(_left(time.monotonic() + within_s))
        self._socket.sendall(msgspec.json.encode(request) + b"\n")

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def _left(deadline: float) -> float | None:
    """Return the seconds until ``deadline``; None if it is infinite."""
    return None if deadline == math.inf else max(0.001, deadline - time.monotonic())


def _answer(line: bytes) -> _Answer | None:
    """Decode an answer; None if the line is none."""
    try:
        return _answers.decode(line)
    except UNREADABLE:
        return None
