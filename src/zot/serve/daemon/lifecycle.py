"""Lifecycle of a daemon: background tasks, disconnecting clients, systemd."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Coroutine, MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from zot.errors import AgentError
from zot.wire.daemon import TELLS_RESUMED, TELLS_STOPPING
from zot.wire.jsonrpc import encode_notification

if TYPE_CHECKING:
    from zot.serve.daemon.client_connection import ClientConnection

log = logging.getLogger("zot")

#: Limits at the end: for new clients to initialize, and for all clients to read the rest.
_GREET_S = 1.0
_FLUSH_S = 1.0
#: How long to wait for unanswered requests whose runs have ended.
_OWED_S = 0.5

#: How long cancelled tasks may take to end.
_END_S = 5.0

_FIRST_DESCRIPTOR = 3
_MAX_DESCRIPTORS = 64


class ClientShutdown:
    """Announces the end to clients and disconnects them. ``leaving`` returns all clients to disconnect."""

    def __init__(self, leaving: Callable[[], Collection[ClientConnection]]) -> None:
        self._leaving = leaving
        #: Clients that want to be notified of a stop, and those that have been.
        self._interested: set[ClientConnection] = set()
        self._notified: set[ClientConnection] = set()
        #: Set when a client has initialized or gone.
        self._has_changed = asyncio.Event()
        #: Set when the last client to disconnect has gone.
        self._is_empty = asyncio.Event()

    def initialized(self, connection: ClientConnection, *, wants_notice: bool) -> None:
        """Register a client that has initialized, and whether it is to be notified of a stop."""
        self._has_changed.set()
        if wants_notice:
            self._interested.add(connection)
        else:
            self._interested.discard(connection)

    def left(self, connection: ClientConnection) -> None:
        """Remove a client that has gone."""
        self._interested.discard(connection)
        self._notified.discard(connection)
        self._has_changed.set()
        if not self._leaving():
            self._is_empty.set()

    def warn(self) -> None:
        """Notify the clients that asked for it, once, that the daemon is stopping."""
        for connection in self._interested - self._notified:
            connection.wire.send(encode_notification(TELLS_STOPPING, {}))
        self._notified |= self._interested

    def cancel_warning(self) -> None:
        """Notify all of them that the daemon resumes: any of them may have had a request refused."""
        for connection in self._interested:
            connection.wire.send(encode_notification(TELLS_RESUMED, {}))
        self._notified.clear()

    async def disconnect_all(self) -> None:
        """Disconnect all clients after new ones were answered and all output is written, within limits."""
        await asyncio.sleep(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GREET_S):
                while not all(one.is_initialized for one in self._leaving()):
                    self._has_changed.clear()
                    await self._has_changed.wait()
        if unanswered := [task for one in self._leaving() for task in one.unanswered]:
            await asyncio.wait(unanswered, timeout=_OWED_S)
        self._is_empty.clear()
        leaving = self._leaving()
        for connection in leaving:
            connection.wire.finish()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_S if leaving else 0):
                await self._is_empty.wait()


class BackgroundTasks:
    """Background tasks that live as long as an ``async with`` block. A failing task affects no other."""

    def __init__(self, *, within_s: float = _END_S) -> None:
        self._within_s = within_s
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start a task; its failure is logged."""
        task = asyncio.get_running_loop().create_task(work, name=f"zot {name}")
        self._tasks.append(task)
        task.add_done_callback(_log_failure)

    async def end(self) -> None:
        """Cancel all tasks and wait for them. Safe to call repeatedly."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._within_s)
            for task in late:
                log.warning("%s has not ended within %g s", task.get_name(), self._within_s)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (problem := task.exception()) is not None:
        if isinstance(problem, AgentError):  # Its text says everything.
            log.error("%s has failed: %s", task.get_name(), problem)
        else:
            log.error("%s has failed", task.get_name(), exc_info=problem)


class Notifier:
    """Sends the service's state to systemd. Never raises and never blocks."""

    def __init__(self, env: MutableMapping[str, str], *, pid: int | None = None) -> None:
        """Take systemd's variables out of ``env``, so that no child process can notify in our name."""
        self._address = env.pop("NOTIFY_SOCKET", "")
        self._was_ready = False
        interval, meant = env.pop("WATCHDOG_USEC", ""), env.pop("WATCHDOG_PID", "")
        ours = meant in ("", str(os.getpid() if pid is None else pid))
        #: Interval of `ping` in seconds, half of the required one; None if systemd's watchdog is off.
        self.ping_every_s = int(interval) / 2e6 if ours and self._address and interval.isdigit() else None

    def ready(self, status: str) -> None:
        """Notify that connections are accepted, also after `reloading`."""
        self._was_ready = self._send("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}") or self._was_ready

    def reloading(self) -> None:
        """Notify that the configuration is being read again; `ready` ends this state."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Notify that the service is ending."""
        self._send("STOPPING=1")

    def ping(self) -> None:
        """Notify that the service is alive."""
        self._send("WATCHDOG=1")

    def succeeded_by(self, pid: int) -> None:
        """Notify that another process is the service from now on."""
        self._send(f"MAINPID={pid}")

    def _send(self, *lines: str) -> bool:
        if not self._address:
            return False
        # An address that begins with @ is in the abstract namespace.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
                line.setblocking(False)
                line.sendto("\n".join(lines).encode(), address)
        except FileNotFoundError as problem:
            if not self._was_ready:
                log.warning("systemd was not notified of %s: %s", lines[0], problem.strerror)
            self._address = ""  # Not systemd: a program that started the daemon and waited until it was ready.
        except OSError as problem:
            log.warning("systemd was not notified of %s: %s", lines[0], problem.strerror or problem)
        else:
            return True
        return False


def take_listeners(env: MutableMapping[str, str], *, first: int = _FIRST_DESCRIPTOR) -> tuple[socket.socket, ...]:
    """Return the listening sockets that systemd passed, in its order, and remove its variables from ``env``.

    Other descriptors are closed and logged.
    """
    meant, number = env.pop("LISTEN_PID", ""), env.pop("LISTEN_FDS", "")
    env.pop("LISTEN_FDNAMES", None)
    if meant != str(os.getpid()) or not number.isdigit():
        return ()
    found = (_listener(descriptor) for descriptor in range(first, first + min(int(number), _MAX_DESCRIPTORS)))
    return tuple(listener for listener in found if listener is not None)


def _listener(descriptor: int) -> socket.socket | None:
    try:
        os.set_inheritable(descriptor, False)
        passed = socket.socket(fileno=descriptor)
    except OSError as problem:
        log.warning("descriptor %d, which was passed to us, is not a socket: %s", descriptor, problem.strerror)
        return None
    if passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return passed
    log.warning("descriptor %d, which was passed to us, does not listen", descriptor)
    passed.close()
    return None
