"""A few questions to a daemon and their answers, for commands that have no event loop."""

from __future__ import annotations

import time
from typing import Any, Self

import msgspec

from zot.errors import UserError
from zot.serve.dial import dial
from zot.wire.lines import LineSplitter

_READ_BYTES = 1 << 16


class Refused(UserError):
    """The daemon answered with an error."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


class Greeting(msgspec.Struct, frozen=True, rename="camel"):
    """What a daemon says of itself first."""

    server_version: str = ""
    protocol_version: int = 0
    server_pid: int = 0


class _Error(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class _Answer(msgspec.Struct, frozen=True):
    id: int | str | None = None
    result: Any = None
    error: _Error | None = None


_answers: msgspec.json.Decoder[_Answer] = msgspec.json.Decoder(_Answer)


class DaemonLine:
    """A connection on which `initialize` has succeeded. Every wait ends ``within_s`` after its question."""

    def __init__(self, path: str, *, within_s: float) -> None:
        """Connect and greet. Raise OSError if nobody listens, TimeoutError if nobody answers, Refused."""
        self._within_s = within_s
        self._number = 0
        self._lines = LineSplitter()
        self._socket = dial(path, within_s)
        try:
            self.greeting = msgspec.convert(self.ask("initialize", {"protocolVersion": 1}), Greeting)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        """Return the result of a call. Raise Refused, TimeoutError, or OSError if the daemon hangs up."""
        self._number += 1
        asked = {"jsonrpc": "2.0", "method": method, "params": params, "id": self._number}
        deadline = time.monotonic() + self._within_s
        self._socket.settimeout(self._within_s)
        self._socket.sendall(msgspec.json.encode(asked) + b"\n")
        while True:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError(f"the daemon hung up before it answered {method}")
            for line in self._lines.feed(data):
                answer = _answer(line if isinstance(line, bytes) else b"")
                if answer is not None and answer.id == self._number:
                    if answer.error is not None:
                        raise Refused(answer.error.message, code=answer.error.code)
                    return answer.result

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def _answer(line: bytes) -> _Answer | None:
    """Return an answer; None if a line is something else, such as an update."""
    try:
        return _answers.decode(line)
    except msgspec.MsgspecError:
        return None
