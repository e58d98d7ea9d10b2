"""Connection to one running MCP server: its process, its pipes, and the calls that wait for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote

import msgspec

from zot.errors import ProtocolError, ToolFailed, plain_reason
from zot.extensions.log import Log
from zot.mcp.sources import McpSource
from zot.tools.process import Child, Processes, Program, Streams
from zot.tools.sandbox import Sandbox
from zot.wire.lines import LineSplitter, TooLong
from zot.wire.mcp import (
    CallAnswered,
    CallProgress,
    ClientBroken,
    ClientEvent,
    ClientState,
    McpClient,
    Noted,
    ServerReady,
    ToolsChanged,
    ToSend,
    decode_line,
)

#: The longest line of a server, and the most bytes that it may leave unread.
MAX_LINE_BYTES: Final = 32 * 1024 * 1024
MAX_UNSENT_BYTES: Final = 16 * 1024 * 1024
#: Longer lines are decoded in a thread, to keep the event loop free.
_LONG_BYTES: Final = 256 * 1024
#: The longest call, however much progress it reports.
MAX_CALL_S: Final = 1800.0
#: Progress within this time of the last is not shown.
_PROGRESS_S: Final = 0.1
#: Time to exit once standard input is closed, and after SIGTERM.
_EXIT_S: Final = 0.5
_GRACE_S: Final = 0.5
_MAX_NOTES: Final = 100
#: Interval of checks whether standard error has filled the log.
_LOG_S: Final = 5.0


class McpFailed(ToolFailed):
    """A server could not be started, or did not answer as it should."""


class McpExited(McpFailed):
    """A server exited before it was ready."""


class McpDeadlines(msgspec.Struct, frozen=True):
    """Times that a server has to become ready, and until `initialize` follows an unanswered `server/discover`."""

    start_s: float = 30.0
    discover_s: float = 5.0


class McpLaunch(msgspec.Struct, frozen=True):
    """Surroundings of the servers of a session. ``sandbox`` makes the sandbox of one; None without a lock."""

    processes: Processes
    cwd: str
    logs: str | None
    sandbox: Callable[[McpSource], Sandbox] | None = None
    deadlines: McpDeadlines = McpDeadlines()


class _WaitingCall:
    """A request that waits for its answer until ``deadline``."""

    def __init__(self, deadline: float) -> None:
        self.answer: CallAnswered | None = None
        self.deadline = deadline
        self.message = ""
        self.news = asyncio.Event()


class McpConnection:
    """A started server. `open` makes one; `close` ends it with all its processes."""

    def __init__(self, source: McpSource, child: Child, outbox: int, client: McpClient, log: Log) -> None:
        self.client = client
        self.source = source
        self.log = log
        #: Called when the server's tools have changed.
        self.on_change: Callable[[], None] = lambda: None
        #: Why it ended; "" while it runs.
        self.ended = ""
        self._child = child
        self._outbox = _Outbox(outbox, self._break)
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, _WaitingCall] = {}
        self._ready: asyncio.Future[str] = self._loop.create_future()
        self._notes = 0
        self._exited = False
        self._sandbox: Sandbox | None = None
        #: The end of the log when it was started.
        self._since = 0
        self._closing = False
        self._task = self._loop.create_task(self._run(), name=f"zot mcp {source.name}")

    @classmethod
    async def open(cls, source: McpSource, launch: McpLaunch, revision: str = "") -> McpConnection:
        """Start a server and wait until it is ready. Raise McpFailed; then no process is left."""
        log = Log(launch.logs, source.name, kind="mcp")
        sandbox = None
        program = Program(source.argv, source.cwd, source.env)
        if launch.sandbox is not None:
            if source.cwd != launch.cwd:
                raise McpFailed(f"not started: under --lock a server runs in {launch.cwd}, not in {source.cwd}")
            sandbox = launch.sandbox(source)
        theirs, ours = os.pipe()
        errors = log.open()
        since = log.end()
        try:
            if sandbox is not None:
                program = await sandbox.confine(program, launch.processes)
            child = await launch.processes.spawn(program._replace(streams=Streams(theirs, errors)))
        except BaseException as problem:
            os.close(ours)
            if not isinstance(problem, OSError | ValueError):
                raise
            log.note(f"could not be started: {plain_reason(problem)}")
            raise McpFailed(f"could not be started: {plain_reason(problem)}") from None
        finally:
            os.close(theirs)
            os.close(errors)
        log.note(f"starting {source.argv[0]}")
        root = f"file://{quote(launch.cwd, errors='surrogateescape')}"
        connection = cls(source, child, ours, McpClient(root, revision=revision), log)
        connection._since, connection._sandbox = since, sandbox
        try:
            await connection._greet(launch.deadlines)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        *,
        timeout_s: float,
        progress: Callable[[str], Awaitable[None]] | None = None,
    ) -> msgspec.Raw:
        """Return the result of a request. Raise McpFailed. When cancelled, the server is notified."""
        if self.ended:
            raise McpFailed(self.ended)
        try:
            number, data = self.client.request(method, params)
        except ProtocolError as problem:
            raise McpFailed(str(problem)) from None
        last = self._loop.time() + MAX_CALL_S
        call = self._calls[number] = _WaitingCall(self._loop.time() + timeout_s)
        self._outbox.write(data)
        shown_at = 0.0
        try:
            while call.answer is None:
                call.news.clear()
                until = min(call.deadline, last)
                try:
                    async with asyncio.timeout_at(until):
                        await call.news.wait()
                except TimeoutError:
                    if min(call.deadline, last) > until:
                        continue
                    raise McpFailed(f"did not answer {method} within {timeout_s:g} s") from None
                call.deadline = max(call.deadline, self._loop.time() + timeout_s)
                if progress is not None and call.message and self._loop.time() >= shown_at + _PROGRESS_S:
                    shown_at = self._loop.time()
                    await progress(call.message)
        finally:
            del self._calls[number]
            if call.answer is None:
                self._outbox.write(self.client.cancel(number, "no longer needed"))
        if call.answer.problem:
            raise McpFailed(call.answer.problem)
        return call.answer.result

    async def close(self) -> None:
        """End the server with all its processes. Idempotent."""
        self._closing = True
        self._outbox.close()
        try:
            await asyncio.wait({self._task}, timeout=_EXIT_S)
        finally:
            self._task.cancel()
        await asyncio.wait({self._task})
        await self.sweep()

    async def sweep(self) -> None:
        """Move away what a locked server has created although it is protected."""
        if self._sandbox is not None and (moved := await self._sandbox.sweep(is_over=bool(self.ended))):
            self.log.note(f"moved away, because --lock protects it: {', '.join(moved)}")

    async def _greet(self, deadlines: McpDeadlines) -> None:
        self._outbox.write(self.client.start())
        begun = self._loop.time()
        await asyncio.wait({self._ready}, timeout=min(deadlines.discover_s, deadlines.start_s))
        if not self._ready.done():
            self._outbox.write(self.client.undiscovered())
            await asyncio.wait({self._ready}, timeout=begun + deadlines.start_s - self._loop.time())
        if not self._ready.done():
            raise self._failed(f"was not ready within {deadlines.start_s:g} s")
        if problem := self._ready.result():
            failed = self._failed(problem)
            raise McpExited(str(failed)) if self._exited else failed

    def _failed(self, reason: str) -> McpFailed:
        """Return an error with the last lines of the server's standard error."""
        self.log.note(reason)
        words = " | ".join(self.log.last_words(self._since))
        return McpFailed(f"{reason}{f': {words}' if words else ''}")

    async def _run(self) -> None:
        """Read the server's messages to their end, then end its processes."""
        watching = self._loop.create_task(self._watch_log(), name=f"zot mcp log {self.source.name}")
        try:
            await self._read()
            await self._child.exited(within_s=_EXIT_S)
        finally:
            watching.cancel()
            self._outbox.close()
            try:
                await self._child.end(grace_s=_GRACE_S)
            finally:
                self._child.close()
                self._exited = not self.ended
                self._end(self._how_it_ended())

    async def _read(self) -> None:
        lines = LineSplitter(max_line_bytes=MAX_LINE_BYTES)
        while not self.ended and (data := await self._child.read(until_exit=False)):
            for line in lines.feed(data):
                if isinstance(line, TooLong):
                    problem = f"sent a line of more than {MAX_LINE_BYTES} bytes"
                    self._apply([*self.client.fail_all(problem), Noted(problem)])
                    continue
                is_long = len(line) > _LONG_BYTES
                message = await asyncio.to_thread(decode_line, line) if is_long else decode_line(line)
                self._apply(self.client.receive(message))

    async def _watch_log(self) -> None:
        while True:
            await asyncio.sleep(_LOG_S)
            self.log.keep_short()

    def _apply(self, events: list[ClientEvent]) -> None:
        for event in events:
            match event:
                case ToSend(data=data):
                    self._outbox.write(data)
                case CallAnswered(id=number):
                    if (call := self._calls.get(number)) is not None:
                        call.answer = event
                        call.news.set()
                case CallProgress(id=number, message=message):
                    if (call := self._calls.get(number)) is not None:
                        call.message = message
                        call.news.set()
                case ServerReady():
                    self._settle("")
                case ToolsChanged():
                    self.on_change()
                case Noted(text=text):
                    self._note(text)
                case ClientBroken(reason=reason):
                    self._break(reason)

    def _note(self, text: str) -> None:
        """Write to the log, but not endlessly."""
        self._notes += 1
        if self._notes <= _MAX_NOTES:
            self.log.note(text)

    def _break(self, reason: str) -> None:
        """End a connection that cannot be used."""
        if not self.ended:
            self._end(reason)
            self._task.cancel()

    def _end(self, reason: str) -> None:
        if self.ended:
            return
        self.ended = reason
        self.log.note(reason)
        self.client.state = ClientState.BROKEN
        self._settle(reason)
        self._apply(self.client.fail_all(reason))

    def _settle(self, problem: str) -> None:
        if not self._ready.done():
            self._ready.set_result(problem)

    def _how_it_ended(self) -> str:
        if self._closing:
            return "was stopped"
        try:
            status = self._child.status()
        except (ChildProcessError, asyncio.InvalidStateError):
            return "was killed"
        return f"was killed by signal {-status}" if status < 0 else f"exited with {status}"


class _Outbox:
    """Ordered, non-blocking writer to ``fd``, which it owns. Calls ``fail`` with the reason when it cannot write."""

    def __init__(self, fd: int, fail: Callable[[str], None]) -> None:
        os.set_blocking(fd, False)
        self._fd: int | None = fd
        self._fail = fail
        self._waiting = bytearray()

    def write(self, data: bytes) -> None:
        """Send ``data`` after what was written before. Does nothing once closed."""
        if self._fd is None or not data:
            return
        was_empty = not self._waiting
        self._waiting += data
        if len(self._waiting) > MAX_UNSENT_BYTES:
            self.close()
            self._fail(f"does not read: {MAX_UNSENT_BYTES} bytes wait for it")
        elif was_empty:
            self._flush()
            if self._waiting and self._fd is not None:
                asyncio.get_running_loop().add_writer(self._fd, self._flush)

    def close(self) -> None:
        """Close the pipe and drop unsent bytes. Idempotent."""
        if self._fd is not None:
            asyncio.get_running_loop().remove_writer(self._fd)
            os.close(self._fd)
            self._fd = None
            self._waiting.clear()

    def _flush(self) -> None:
        if self._fd is None:
            return
        try:
            while self._waiting:
                del self._waiting[: os.write(self._fd, self._waiting[: 64 * 1024])]
        except BlockingIOError:
            return
        except OSError:
            self.close()  # The end of the process says why.
            return
        asyncio.get_running_loop().remove_writer(self._fd)
