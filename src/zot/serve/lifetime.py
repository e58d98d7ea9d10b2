"""Life of a process that serves its standard streams, and its early end: signals, a closed output, a dead parent."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from zot.errors import AgentError
from zot.runtime.shared import SharedResources
from zot.serve.stdio import SIGNALS, is_closed_by_peer, leave, report_write_failure
from zot.serve.streams import StreamWriter, pump, read_chunks
from zot.session.session import Session
from zot.wire.lines import LineSplitter, TooLong

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


class NotAuthorized(AgentError):
    """The client may not continue. It has its refusal already; close the connection."""


class LineServer(Protocol):
    """The server of one client that sends lines."""

    @property
    def sessions(self) -> Sequence[Session]:
        """The open sessions, which end with the connection."""

    def take(self, line: bytes | TooLong) -> None:
        """Handle one line. Raise NotAuthorized if the connection must be closed."""

    def end_input(self) -> None:
        """Handle the end of the client's input."""

    async def finish(self) -> None:
        """Wait until every line has been answered and nothing runs."""

    async def close(self) -> None:
        """Release what the sessions needed, once they are closed."""


async def serve_lines(
    make: Callable[[StreamWriter, SharedResources], Awaitable[LineServer]],
    lines: LineSplitter,
    waiting: Sequence[bytes | TooLong],
    descriptors: tuple[int, int],
) -> int:
    """Serve the client until its input ends, a signal arrives, or it stops reading. Return the exit code.

    ``waiting`` are the lines that were read before.
    """
    incoming, outgoing = descriptors
    output, lifetime, resources = StreamWriter(outgoing), Lifetime(outgoing), SharedResources(own_process=True)
    output.on_broken(lifetime.end)
    server: LineServer | None = None

    async def converse() -> None:
        nonlocal server
        server = made = await make(output, resources)
        for line in waiting:
            made.take(line)
        await pump(read_chunks(incoming), lines, made.take, output)
        lifetime.input_ended = True
        made.end_input()
        await made.finish()
        await output.drained()

    code = 0
    try:
        if await lifetime.bound(converse()) and server is not None:
            await close_in_time(server.sessions, lifetime)
    except NotAuthorized as problem:
        sys.stderr.write(f"zot: {problem}\n")
        code = 1
    if server is not None:
        await wind_down(server.sessions, resources, output)
        await server.close()
    output.close()
    return code if output.problem is None else report_write_failure(output.problem)


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
