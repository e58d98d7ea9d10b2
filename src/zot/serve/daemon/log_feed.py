"""The log of the daemon, for clients that want to hear it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Literal

from zot.messages import timestamp
from zot.serve.daemon.backlog import MAX_UNREAD_BYTES, Wire
from zot.version import __version__
from zot.wire.jsonrpc import encode_notification

if TYPE_CHECKING:
    from zot.wire.daemon_server import LogEvent

#: What counts from which level on.
_SEVERITIES: Sequence[tuple[int, Literal[1, 5, 9, 13, 17]]] = (
    (logging.ERROR, 17),
    (logging.WARNING, 13),
    (logging.INFO, 9),
    (logging.DEBUG, 5),
    (logging.NOTSET, 1),
)


class LogFeed(logging.Handler):
    """Sends every line of the log to those who have subscribed. Who does not read misses some, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._wires: set[Wire] = set()
        self._numbers = count(1)

    def subscribe(self, wire: Wire) -> None:
        """Send the log there from now on."""
        self._wires.add(wire)

    def leave(self, wire: Wire) -> None:
        """Send it there no more."""
        self._wires.discard(wire)

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line, from any thread."""
        if self._wires and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._send, self._event(record))

    def _event(self, record: logging.LogRecord) -> LogEvent:
        from zot.wire.daemon_server import LogEvent, LogHappening, LogService

        return LogEvent(
            id=f"log_{next(self._numbers)}",
            timestamp=timestamp(record.created),
            severity_number=next(number for level, number in _SEVERITIES if record.levelno >= level),
            severity_text=record.levelname,
            event=LogHappening("daemon", record.name),
            service=LogService("zot", __version__),
            message=record.getMessage(),
        )

    def _send(self, event: LogEvent) -> None:
        line = encode_notification("logs/event", event)
        for wire in self._wires:
            if wire.unread < MAX_UNREAD_BYTES // 4:
                wire.send(line)
