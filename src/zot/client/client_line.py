"""The way from a client to the daemon: a local socket, or a WebSocket."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from zot.client.dial import LOOK_S, NOBODY, Patience, dial, whose
from zot.errors import ConfigError, ConnectionLost
from zot.text import printable_line

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection
    from websockets.http11 import Response

_READ_BYTES = 1 << 18
#: One message may be as long as what a tool said.
_MAX_MESSAGE_BYTES = 64 << 20
#: So much is said of why a server refuses us.
_MAX_REASON = 200


class Line(Protocol):
    """One connection. Raises OSError when it breaks."""

    async def send(self, data: bytes) -> None:
        """Write lines."""

    async def receive(self) -> bytes:
        """Return what came; b"" at the end."""

    def close(self) -> None:
        """End it at once."""


class LocalLine:
    """A connection to a local socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        self._reader = reader
        self._writer = writer
        self._path = path

    @staticmethod
    async def open(path: str, within_s: float, *, wait_s: float = 0.0) -> LocalLine:
        """Connect, also to a daemon that is just starting, or will be within ``wait_s``. Raise OSError."""
        patience = Patience(path, wait_s=wait_s)
        while True:
            try:
                connection = await asyncio.to_thread(dial, path, within_s)
                break
            except NOBODY:
                if patience.is_over:
                    raise
            except PermissionError as problem:
                problem.strerror = whose(path) or problem.strerror
                raise
            await asyncio.sleep(LOOK_S)
        connection.setblocking(False)
        return LocalLine(*await asyncio.open_unix_connection(sock=connection), path)

    async def send(self, data: bytes) -> None:
        """Write lines."""
        self._writer.write(data)
        try:
            await self._writer.drain()
        except ConnectionError:
            self._check_ours()
            raise

    async def receive(self) -> bytes:
        """Return what came; b"" at the end."""
        try:
            data = await self._reader.read(_READ_BYTES)
        except ConnectionResetError:
            self._check_ours()
            raise
        if not data:
            self._check_ours()
        return data

    def _check_ours(self) -> None:
        """Say why somebody hung up, if it is another user's daemon."""
        if why := whose(self._path):
            raise ConnectionResetError(why)

    def close(self) -> None:
        """End it at once."""
        self._writer.transport.abort()


class WebLine:
    """A connection to a WebSocket: each line is a message there, without its end."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    @staticmethod
    async def open(url: str, token: str | None, within_s: float) -> WebLine:
        """Connect. Raise OSError; ConnectionLost if it was refused, ConfigError if that cannot work at all."""
        try:
            from websockets.asyncio.client import connect
            from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI
        except ImportError:
            raise ConfigError("a WebSocket needs the package websockets: install zot with the extra web") from None
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            return WebLine(
                await connect(
                    url, additional_headers=headers, max_size=_MAX_MESSAGE_BYTES, open_timeout=within_s, proxy=None
                )
            )
        except InvalidURI as problem:
            raise ConfigError(f"{url}: {problem}") from None
        except InvalidStatus as problem:
            raise _refusal(url, problem.response) from None
        except InvalidHandshake as problem:
            raise ConnectionRefusedError(f"{url}: {problem}") from None

    async def send(self, data: bytes) -> None:
        """Write lines."""
        from websockets.exceptions import ConnectionClosed

        try:
            for line in data.split(b"\n")[:-1]:
                await self._connection.send(line.decode())
        except ConnectionClosed as problem:
            raise ConnectionResetError(str(problem)) from None

    async def receive(self) -> bytes:
        """Return what came; b"" at the end."""
        from websockets.exceptions import ConnectionClosed

        try:
            message = await self._connection.recv(decode=False)
        except ConnectionClosed:
            return b""
        return message + b"\n"

    def close(self) -> None:
        """End it at once."""
        self._connection.transport.abort()


def _refusal(url: str, response: Response) -> Exception:
    """Return why there is no connection: ConnectionLost if there will be none later either."""
    status, why = response.status_code, printable_line((response.body or b"").decode("utf-8", "replace"), _MAX_REASON)
    if status == 401:
        return ConnectionLost(f"{url}: the daemon refused the token (401)")
    if status in (403, 404) and not why:  # Not from us: a server that others are mounted in, too, has no such path.
        why = "there is no daemon at this path; that of one which is mounted ends with a slash"
    told = f"{url}: refused with {status}" + (f": {why}" if why else "")
    return ConnectionLost(told) if status == 403 else ConnectionRefusedError(told)
