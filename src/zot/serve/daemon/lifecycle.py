"""What systemd wants to hear of a service, and the sockets that it opens for one. Without systemd, nothing happens."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import MutableMapping

log = logging.getLogger("zot")

_FIRST_DESCRIPTOR = 3
_MAX_DESCRIPTORS = 64


class Notifier:
    """Tells systemd how the service is. Never raises and never waits."""

    def __init__(self, env: MutableMapping[str, str], *, pid: int | None = None) -> None:
        """Take what systemd said out of ``env``, so that no child speaks in our name."""
        self._address = env.pop("NOTIFY_SOCKET", "")
        interval, meant = env.pop("WATCHDOG_USEC", ""), env.pop("WATCHDOG_PID", "")
        ours = meant in ("", str(os.getpid() if pid is None else pid))
        #: How often to `ping`, in seconds: twice as often as we must. None if systemd does not watch us.
        self.ping_every_s = int(interval) / 2e6 if ours and self._address and interval.isdigit() else None

    def ready(self, status: str) -> None:
        """Say that connections are accepted, also after `reloading`."""
        self._send("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")

    def reloading(self) -> None:
        """Say that the configuration is read again; `ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Say that this is the end."""
        self._send("STOPPING=1")

    def ping(self) -> None:
        """Say that we are alive."""
        self._send("WATCHDOG=1")

    def succeeded_by(self, pid: int) -> None:
        """Say that another process is the service from now on."""
        self._send(f"MAINPID={pid}")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # An address that begins with @ has no file.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
                line.setblocking(False)
                line.sendto("\n".join(lines).encode(), address)
        except OSError as problem:
            log.warning("systemd was not told %s: %s", lines[0], problem.strerror or problem)


def take_listeners(env: MutableMapping[str, str], *, first: int = _FIRST_DESCRIPTOR) -> tuple[socket.socket, ...]:
    """Return the listening sockets that systemd passed to this process, in its order, and take them out of ``env``.

    What is passed and does not listen is closed, with a line in the log.
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
        log.warning("descriptor %d, which was passed to us, is no socket: %s", descriptor, problem.strerror)
        return None
    if passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return passed
    log.warning("descriptor %d, which was passed to us, does not listen", descriptor)
    passed.close()
    return None
