"""Early end of a process that serves its standard streams: signals, a closed output, a dead parent."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any

from zot.runtime.shared import SharedResources
from zot.serve.stdio import SIGNALS, is_closed_by_peer, leave
from zot.serve.streams import StreamWriter
from zot.session.session import Session

_CHECK_S = 0.5
#: Limits for the parts of a forced stop: together less than 3 s.
_ABORT_S = 1.2
_FLUSH_S = 0.5
_CLOSE_S = 1.0
#: Limit for closing a session when no stop was requested.
_CLOSE_SLOWLY_S = 8.0


class Lifetime:
    """Ends on a signal, when the output is closed, or when the input has ended and the parent is dead.

    A second signal exits at once: with code 0, or ``as_failure`` with 128 + signal.
    """

    def __init__(self, outgoing: int, *, as_failure: bool = False) -> None:
        self._outgoing = outgoing
        self._parent = os.getppid()
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self.input_ended = False
        self._signal = 0
        self._as_failure = as_failure
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self._on_signal, number)
        self._check()

    def end(self) -> None:
        """End the lifetime; safe to call repeatedly."""
        if not self._ended.done():
            self._ended.set_result(None)

    @property
    def exit_code(self) -> int:
        """Exit code for unfinished work: 128 + signal after a signal, otherwise 1."""
        return 128 + self._signal if self._signal else 1

    async def bound(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run ``work`` until it finishes or the lifetime ends; then cancel it. True if it finished."""
        task = self._loop.create_task(work, name="zot work")
        await asyncio.wait({task, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.result()
        return not task.cancelled()

    def _on_signal(self, number: int) -> None:
        if self._ended.done():
            leave(128 + number if self._as_failure else 0)
        self._signal = number
        self.end()

    def _check(self) -> None:
        orphaned = self.input_ended and os.getppid() != self._parent
        if orphaned or is_closed_by_peer(self._outgoing):
            self.end()
        else:
            self._loop.call_later(_CHECK_S, self._check)


async def close_in_time(sessions: Sequence[Session], lifetime: Lifetime) -> None:
    """Close sessions that have finished; their extensions get their full time unless the lifetime ends first."""
    await lifetime.bound(_closed(sessions))


async def _closed(sessions: Sequence[Session]) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(_each(session.close() for session in sessions), _CLOSE_SLOWLY_S)


async def wind_down(sessions: Sequence[Session], resources: SharedResources, output: StreamWriter) -> None:
    """Abort runs and queues, flush the last frames and close sessions and resources, each within its limit."""
    for session in sessions:
        session.abort(queue=True)

    async def close() -> None:
        await _each(session.close() for session in sessions)
        await resources.close()

    await _finish_in_time(_each(session.worker.finish() for session in sessions), _ABORT_S)
    await flush(output)
    await _finish_in_time(close(), _CLOSE_S)


async def flush(output: StreamWriter) -> None:
    """Write the last frames, within a limit."""
    await _finish_in_time(output.drained(), _FLUSH_S)


async def _each(steps: Iterable[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*steps)


async def _finish_in_time(step: Coroutine[Any, Any, None], seconds: float) -> None:
    try:
        await asyncio.wait_for(step, seconds)
    except TimeoutError:
        sys.stderr.write("zot: exited before everything was closed\n")
