"""Writer thread of the host protocol: whole lines, in order."""

from __future__ import annotations

import _thread
import asyncio
import errno
import os
import threading
from collections.abc import Sequence

import msgspec

from zot.serve.host.watchdog import Slot
from zot.serve.stdio import write_all

#: With more than this buffered, pause the run.
_FULL_BYTES = 1024 * 1024
_FLUSH_S = 1.0


class _Line(msgspec.Struct, frozen=True):
    slot: Slot
    data: bytes
    is_answer: bool


class LineThread:
    """Write lines from any thread. No event of a request follows its answer."""

    def __init__(self, descriptor: int) -> None:
        self.problem: OSError | None = None
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._lines: list[_Line] = []
        self._size = 0
        self._changed = threading.Condition()
        self._waiters: list[asyncio.Future[None]] = []
        _thread.start_new_thread(self._write, ())  # threading.Thread.start would wait for it.

    def answer(self, slot: Slot, data: bytes) -> None:
        """Write the answer to a request. The caller holds its slot."""
        with self._changed:
            self._put(_Line(slot, data, is_answer=True))

    def event(self, slot: Slot, data: bytes) -> None:
        """Write an event of a request, unless it has been answered."""
        with self._changed:
            # The holder of the slot writes the answer, and no event may follow it.
            if not slot.is_taken:
                self._put(_Line(slot, data, is_answer=False))

    @property
    def full(self) -> bool:
        """True while too much output is unread."""
        return self._size > _FULL_BYTES and self.problem is None

    async def room(self) -> None:
        """Wait until the output is no longer full."""
        while self.full:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    async def drained(self) -> None:
        """Wait until everything has been written, or the output broke."""
        await asyncio.to_thread(self.flush, None)

    def flush(self, within_s: float | None = _FLUSH_S) -> None:
        """Wait until everything has been written, the output broke, or ``within_s`` is over."""
        with self._changed:
            self._changed.wait_for(lambda: not self._size or self.problem is not None, within_s)

    def _put(self, line: _Line) -> None:
        self._lines.append(line)
        self._size += len(line.data)
        self._changed.notify_all()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                lines = list(self._lines)
                self._lines.clear()
            self._write_out(lines)
            for line in lines:
                if line.is_answer:
                    line.slot.written()
            with self._changed:
                self._size -= sum(len(line.data) for line in lines)
                self._changed.notify_all()
            if self._waiters and not self.full:
                self._loop.call_soon_threadsafe(self._wake)

    def _write_out(self, lines: Sequence[_Line]) -> None:
        if self.problem is None:
            try:
                write_all(self._descriptor, b"".join(line.data for line in lines))
            except OSError as problem:
                self.problem = problem
            except MemoryError:
                self.problem = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
