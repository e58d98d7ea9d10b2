"""Who comes to a listening socket is let in; also when the process has run out of descriptors for a while."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import ssl

if sys.platform != "win32":
    import resource  # Not when it is needed: then there may be no descriptor left to load it with.

log = logging.getLogger("zot")

#: So many come in before others have their turn.
_AT_ONCE = 64
#: What it is called when there is no room for another connection.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: How soon we try again then, at first and at last, and how often we complain.
_SOON_S, _LATER_S = 0.1, 1.0
_COMPLAIN_S = 60.0
#: So many descriptors are for what the clients want done, or half of all if there are few.
_RESERVE = 256


class Handshake(msgspec.Struct, frozen=True):
    """How connections are encrypted: within how many seconds, and how many at most may be about to agree on that."""

    context: ssl.SSLContext
    within_s: float
    most: int


def _lose(reason: str) -> None:
    log.warning("a client that had come was lost: %s", reason)


class Acceptor:
    """Accepts connections at ``listener``, each for a protocol that ``make`` makes, until `close`.

    asyncio's own would, without descriptors, try as often as its backlog is long, and complain each time. ``lost`` is
    told why somebody who had come did not come in.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], asyncio.BaseProtocol],
        *,
        tls: Handshake | None = None,
        lost: Callable[[str], object] = _lose,
    ) -> None:
        self._listener = listener
        self._make = make
        self._tls = tls
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._entering: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._wait_s = _SOON_S
        self._complain_at = 0.0
        self._is_resting = False
        listener.setblocking(False)
        self._loop.add_reader(listener.fileno(), self._accept)

    def rest(self) -> None:
        """Accept nobody for now: who comes waits in line. Who was accepted comes in. Any number of times."""
        if self._is_resting:
            return
        self._is_resting = True
        if self._again is not None:
            self._again.cancel()
            self._again = None
        else:
            self._loop.remove_reader(self._listener.fileno())

    def go_on(self) -> None:
        """Accept again, also who waits, unless it is closed. Any number of times."""
        if self._is_resting and self._listener.fileno() >= 0:
            self._is_resting = False
            self._resume()

    def close(self) -> None:
        """Accept nobody any more, and close the socket. Who was accepted comes in. Any number of times."""
        self.rest()
        self._listener.close()

    async def finish(self, within_s: float) -> None:
        """Close, and wait until all who were accepted have come in. Who has not by then never will."""
        self.close()
        if self._entering:
            _, late = await asyncio.wait(self._entering, timeout=within_s)
            for task in late:
                task.cancel()
                self._lost("too late")
            if late:
                await asyncio.wait(late)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as problem:
                if problem.errno not in _EXHAUSTED:
                    raise
                self._pause(problem)
                return
            self._wait_s = _SOON_S
            if self._tls is not None and len(self._entering) >= self._tls.most:
                connection.close()
                self._lost("too many")
                continue
            task = self._loop.create_task(self._enter(connection), name="zot accept")
            self._entering.add(task)
            task.add_done_callback(self._entering.discard)

    async def _enter(self, connection: socket.socket) -> None:
        """Let one come in, whom its protocol serves from then on."""
        context, within_s = (None, None) if self._tls is None else (self._tls.context, self._tls.within_s)
        try:
            connection.setblocking(False)
            await self._loop.connect_accepted_socket(
                self._make, connection, ssl=context, ssl_handshake_timeout=within_s
            )
        except OSError as problem:
            connection.close()
            self._lost(problem.strerror or str(problem))

    def _pause(self, problem: OSError) -> None:
        """Let those who come wait in line: the socket would be ready all the time, and nobody could come in."""
        self._loop.remove_reader(self._listener.fileno())
        if (now := self._loop.time()) >= self._complain_at:
            self._complain_at = now + _COMPLAIN_S
            log.warning("nobody can be accepted for now: %s", problem.strerror)
        self._again = self._loop.call_later(self._wait_s, self._resume)
        self._wait_s = min(2 * self._wait_s, _LATER_S)

    def _resume(self) -> None:
        self._again = None
        self._loop.add_reader(self._listener.fileno(), self._accept)


def room_for_clients(most: int) -> int:
    """Return how many clients there may be: ``most``, or fewer if this process may not have so much open."""
    if sys.platform == "win32":
        return most
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, max(soft // 2, soft - _RESERVE))
