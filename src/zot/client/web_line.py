"""A client's connection to the daemon over a WebSocket. Needs the extra `web`."""

from __future__ import annotations

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.http11 import Response

from zot.errors import ConfigError, ConnectionLost
from zot.text import printable_line

#: A message may be as long as a tool's output.
_MAX_MESSAGE_BYTES = 64 << 20
#: Longest quote, in characters, of why a server refused the connection.
_MAX_REASON = 200


class WebLine:
    """A connection over a WebSocket, where each line is a message without its LF."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    @staticmethod
    async def open(url: str, token: str | None, within_s: float) -> WebLine:
        """Connect. Raise OSError if a retry may help, ConnectionLost if not, ConfigError if the settings are wrong."""
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
        try:
            for line in data.split(b"\n")[:-1]:
                await self._connection.send(line.decode())
        except ConnectionClosed as problem:
            raise ConnectionResetError(str(problem)) from None

    async def receive(self) -> bytes:
        """Return the bytes received; b"" at the end."""
        try:
            message = await self._connection.recv(decode=False)
        except ConnectionClosed:
            return b""
        return message + b"\n"

    def close(self) -> None:
        """Close the connection at once."""
        self._connection.transport.abort()


def _refusal(url: str, response: Response) -> Exception:
    """Return the error for a refused handshake: ConnectionLost if a retry cannot help."""
    status, why = response.status_code, printable_line((response.body or b"").decode("utf-8", "replace"), _MAX_REASON)
    if status == 401:
        return ConnectionLost(f"{url}: the daemon refused the token (401)")
    if status in (403, 404) and not why:  # Not our daemon's answer: an outer server has nothing at this path.
        why = "no daemon answers at this path; the path of a mounted daemon ends with a slash"
    message = f"{url}: refused with {status}" + (f": {why}" if why else "")
    return ConnectionLost(message) if status == 403 else ConnectionRefusedError(message)
