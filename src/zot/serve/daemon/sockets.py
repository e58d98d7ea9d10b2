"""Local socket clients: accepting connections, and exchanging lines."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource  # Not lazily: there may be no descriptor left to load it with.
import select
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from zot.errors import ConfigError, DaemonRunning, DaemonStopping, plain_reason
from zot.wire.lines import MAX_LINE_BYTES, LineSplitter, TooLong

if TYPE_CHECKING:
    import ssl

    from zot.serve.daemon.claim import Claim
    from zot.serve.daemon.client_connection import ClientConnection
    from zot.serve.daemon.daemon import Daemon

log = logging.getLogger("zot")

#: Replay continues when less than this is unread.
_ROOM_BYTES = 256 << 10
#: Lines of one tick are written together up to this size: the client reads while we encode the rest.
_FLUSH_BYTES = 64 << 10
#: With more than this unread, reading requests pauses.
_CHOKED_BYTES = 16 << 20

#: Interval of checks that a client whose input has ended is still there.
_CHECK_S = 0.25

#: Connections accepted per turn of the loop.
_AT_ONCE = 64
#: Errors that mean that there are no resources for another connection.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: First and last delay before accepting again after such an error, and the interval of its log messages.
_FIRST_DELAY_S, _MAX_DELAY_S = 0.1, 1.0
_LOG_EVERY_S = 60.0
#: Descriptors reserved for the clients' work; half of all if there are few.
_RESERVE = 256


#: Interval of checks that the socket exists. Clients wait longer for an owned endpoint (`endpoint.Patience`).
_CHECK_S = 2.0


class LocalWire(asyncio.Protocol):
    """One client on a stream socket (`backlog.Wire`). ``connected`` returns its listener."""

    def __init__(
        self, connected: Callable[[LocalWire], ClientConnection | None], *, max_line: int = MAX_LINE_BYTES
    ) -> None:
        self._connected = connected
        self._lines = LineSplitter(max_line_bytes=max_line)
        self._loop = asyncio.get_running_loop()
        self._listener: ClientConnection | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._sent = 0
        #: Set while little is unread.
        self._room = asyncio.Event()
        self._room.set()
        self._is_ending = False
        self.transport: asyncio.Transport

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(_ROOM_BYTES)
        self._listener = self._connected(self)
        if self._listener is None and not self._is_ending:  # Otherwise an error is being written.
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            self._take(line)

    def eof_received(self) -> bool:
        for line in self._lines.finish():
            self._take(line)
        if self._listener is not None:
            self._listener.end_input()
        self._check_if_gone()
        return True  # Pending answers are still written.

    def connection_lost(self, problem: Exception | None) -> None:
        del problem
        self._is_ending = True
        self.resume_writing()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()
        if not self._is_ending:
            self.transport.resume_reading()

    # Output.

    def send(self, data: bytes) -> None:
        """Enqueue lines; all lines of one tick leave together."""
        if self._is_ending or not data:
            return
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)
        self._size += len(data)
        self._sent += len(data)
        if self._size > _FLUSH_BYTES:
            self._flush()

    @property
    def unread(self) -> int:
        """Bytes sent that the client has not taken."""
        return self._size + self.transport.get_write_buffer_size()

    @property
    def taken(self) -> int:
        """Bytes the client has taken in total."""
        return self._sent - self.unread

    async def room(self) -> None:
        """Wait until little is unread, or the client has gone."""
        self._flush()
        await self._room.wait()

    def finish(self) -> None:
        """Flush, then close."""
        if not self._is_ending:
            self._flush()
            self._is_ending = True
            self.transport.close()

    async def release(self) -> int:
        """Stop reading, flush, and return a duplicate descriptor of the connection, which stays open.

        Raise OSError if the client has gone.
        """
        self._is_ending = True
        self.transport.pause_reading()
        self.transport.set_write_buffer_limits(0)
        self._flush()
        await self._room.wait()
        return os.dup(self.transport.get_extra_info("socket").fileno())

    def cut(self, reason: str) -> None:
        """Close without waiting for the client."""
        if not self._is_ending:
            log.warning("a client was disconnected: %s", reason)
        self._is_ending = True
        self.transport.abort()

    def _flush(self) -> None:
        if self._pieces and not self.transport.is_closing():
            pieces, self._pieces, self._size = self._pieces, [], 0
            try:
                self.transport.write(b"".join(pieces))
            except (MemoryError, OSError) as problem:
                # A part of a frame may have been written and the rest is lost: no other frame may follow.
                self.cut(f"it could not be written to: {problem!r}")
                return
            if self.transport.get_write_buffer_size() > _CHOKED_BYTES:
                self.transport.pause_reading()

    def _check_if_gone(self) -> None:
        """Poll for a closed connection: after the end of input, asyncio notices it only with the next write."""
        if not self.transport.is_closing():
            poll = select.poll()
            poll.register(self.transport.get_extra_info("socket").fileno(), 0)
            if poll.poll(0):
                self.transport.abort()
            else:
                self._loop.call_later(_CHECK_S, self._check_if_gone)

    def _take(self, line: bytes | TooLong) -> None:
        if self._listener is not None:
            self._listener.take(line)


class Handshake(msgspec.Struct, frozen=True):
    """TLS settings: context, time limit, and limit of concurrent handshakes: one more ends the oldest."""

    context: ssl.SSLContext
    within_s: float
    most: int


def _log_lost(reason: str) -> None:
    log.warning("an accepted connection was lost: %s", reason)


class Acceptor:
    """Accepts connections at ``listener``, each for a protocol that ``make`` returns, until `close`.

    Without free descriptors, asyncio's own acceptor would retry as often as its backlog is long, and log each time.
    ``lost`` is called with the reason when an accepted connection fails.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], asyncio.BaseProtocol],
        *,
        tls: Handshake | None = None,
        lost: Callable[[str], object] = _log_lost,
    ) -> None:
        self._listener = listener
        self._make = make
        self._tls = tls
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        #: Connections that are being set up, the oldest first.
        self._setups: dict[asyncio.Task[None], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._delay_s = _FIRST_DELAY_S
        self._log_at = 0.0
        self._is_paused = False
        listener.setblocking(False)
        self._loop.add_reader(listener.fileno(), self._accept)

    def pause(self) -> None:
        """Pause: new clients wait in the backlog, accepted ones are served. Safe to call repeatedly."""
        if self._is_paused:
            return
        self._is_paused = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        else:
            self._loop.remove_reader(self._listener.fileno())

    def resume(self) -> None:
        """Resume accepting unless closed, including clients in the backlog. Safe to call repeatedly."""
        if self._is_paused and self._listener.fileno() >= 0:
            self._is_paused = False
            self._listen_again()

    def close(self) -> None:
        """Stop accepting and close the socket; accepted clients are served. Safe to call repeatedly."""
        self.pause()
        self._listener.close()

    async def finish(self, within_s: float) -> None:
        """Close, and wait until accepted clients have finished their handshakes; cancel those that are too slow."""
        self.close()
        if self._setups:
            _, late = await asyncio.wait(self._setups, timeout=within_s)
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
                self._back_off(problem)
                return
            self._delay_s = _FIRST_DELAY_S
            if self._tls is not None and len(self._setups) >= self._tls.most:
                oldest = next(iter(self._setups))
                del self._setups[oldest]
                oldest.cancel()
                self._lost("too many")
            task = self._loop.create_task(self._set_up(connection), name="zot accept")
            self._setups[task] = None
            task.add_done_callback(partial(self._is_set_up, connection))

    def _is_set_up(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._setups.pop(task, None)
        if task.cancelled():  # Possibly before its first step.
            connection.close()

    async def _set_up(self, connection: socket.socket) -> None:
        """Set up an accepted connection; its protocol serves it from then on."""
        context, within_s = (None, None) if self._tls is None else (self._tls.context, self._tls.within_s)
        try:
            connection.setblocking(False)
            await self._loop.connect_accepted_socket(
                self._make, connection, ssl=context, ssl_handshake_timeout=within_s
            )
        except OSError as problem:
            connection.close()
            self._lost(problem.strerror or str(problem))

    def _back_off(self, problem: OSError) -> None:
        """Stop accepting for a while: the listening socket would stay readable although nothing can be accepted."""
        self._loop.remove_reader(self._listener.fileno())
        if (now := self._loop.time()) >= self._log_at:
            self._log_at = now + _LOG_EVERY_S
            log.warning("connections cannot be accepted for now: %s", problem.strerror)
        self._timer = self._loop.call_later(self._delay_s, self._listen_again)
        self._delay_s = min(2 * self._delay_s, _MAX_DELAY_S)

    def _listen_again(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listener.fileno(), self._accept)


def client_limit(most: int) -> int:
    """Return the limit of clients: ``most``, or fewer if this process may not open enough descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, max(soft // 2, soft - _RESERVE))


async def listen(daemon: Daemon, listener: socket.socket) -> Callable[[], None]:
    """Accept clients at the local socket until the daemon stops; return a function that stops it earlier."""
    acceptor = Acceptor(listener, lambda: LocalWire(daemon.accept, max_line=daemon.max_line_bytes))
    daemon.pause_on_stop(acceptor)
    return acceptor.close


async def keep_socket(daemon: Daemon, claim: Claim, leave: Callable[[], None], *, every_s: float = _CHECK_S) -> None:
    """Restore the daemon's socket whenever its file was removed. ``leave`` stops accepting at the current socket.

    Connected clients are not affected.
    """
    logged = ""
    while True:
        await asyncio.sleep(every_s)
        try:
            daemon.sessions.pool.check_open()
            if not claim.restore():
                logged = ""
                continue
        except DaemonStopping:  # The endpoint may be handed over, or the daemon may resume.
            continue
        except (OSError, ConfigError, DaemonRunning) as problem:
            if str(problem) != logged:
                logged = str(problem)
                log.warning(
                    "the socket %s was removed and could not be created again: %s", claim.path, plain_reason(problem)
                )
            continue
        log.warning("the socket %s was removed by another program and has been created again", claim.path)
        former, leave = leave, await listen(daemon, claim.listener)
        await asyncio.sleep(every_s)  # Clients in the former backlog are accepted by then.
        former()
