"""Connection to one MCP server: the calls that wait for it, and the process and pipes of a local one."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from zot.errors import ProtocolError, plain_reason
from zot.extensions.log import Log
from zot.mcp.launch import McpDeadlines, McpExited, McpFailed, McpLaunch
from zot.mcp.project_servers import named_files
from zot.mcp.source import McpSource
from zot.questions import DECLINED, QuestionReply
from zot.tools.base import CallReporter
from zot.tools.process import Child, Outbox, Program, Streams
from zot.wire.lines import LineSplitter, TooLong
from zot.wire.mcp import (
    CallAnswered,
    CallProgress,
    ClientBroken,
    ClientEvent,
    ClientState,
    Elicitation,
    Elicited,
    InputRequired,
    ListChanged,
    LogNote,
    McpClient,
    Outgoing,
    ServerReady,
    ToSend,
    decode_line,
    question_of,
)

if TYPE_CHECKING:
    from zot.tools.sandbox import Sandbox

#: The longest line of a server, and the most bytes that it may leave unread.
MAX_LINE_BYTES: Final = 32 * 1024 * 1024
MAX_UNSENT_BYTES: Final = 16 * 1024 * 1024
#: Longer lines are decoded in a thread, to keep the event loop free.
LONG_BYTES: Final = 256 * 1024
#: The longest call, however much progress it reports.
MAX_CALL_S: Final = 1800.0
#: Progress within this time of the last is not shown.
_PROGRESS_S: Final = 0.1
#: Pauses before a request is repeated whose server asks for nothing but patience.
_POLL_S: Final = 0.05
_MAX_POLL_S: Final = 0.25
#: Time to exit once standard input is closed, and after SIGTERM.
_EXIT_S: Final = 0.5
_GRACE_S: Final = 0.5
_MAX_NOTES: Final = 100
_SANDBOXED: Final = " (in the sandbox of --lock, which shows few directories; sandbox = false in its table exempts it)"
_TRUST: Final = "look at it, then: zot mcp trust"
#: The most bytes that a server sends without the end of a line before it is ended.
_MAX_ENDLESS_BYTES: Final = 4 * MAX_LINE_BYTES


class _WaitingCall:
    """A request that waits for its answer until ``deadline``."""

    def __init__(self, deadline: float, reporter: CallReporter | None) -> None:
        self.answer: CallAnswered | None = None
        self.deadline = deadline
        self.reporter = reporter
        self.message = ""
        #: What the server wants from the user before it answers.
        self.asked: list[Elicited | InputRequired] = []
        self.polls = 0
        self.news = asyncio.Event()


class McpConnection(ABC):
    """A server that is ready for requests. `close` ends it."""

    def __init__(self, source: McpSource, client: McpClient, log: Log) -> None:
        self.client = client
        self.source = source
        self.log = log
        #: Called when a list of the server has changed.
        self.on_change: Callable[[str], None] = lambda kind: None
        #: Why it ended; "" while it can be used.
        self.ended = ""
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, _WaitingCall] = {}
        self._ready: asyncio.Future[str] = self._loop.create_future()
        self._notes = 0

    @abstractmethod
    def send(self, message: Outgoing) -> None:
        """Send a message to the server, without waiting."""

    @abstractmethod
    def cancel(self, wire_id: int, message: Outgoing) -> None:
        """Give up the request with this id on the wire; ``message`` is the notification."""

    @abstractmethod
    def stop(self) -> None:
        """Stop using a server that broke the protocol."""

    @abstractmethod
    async def close(self) -> None:
        """End the connection, with all that belongs to it. Idempotent."""

    @abstractmethod
    async def sweep(self) -> None:
        """Move away what a locked server has created although it is protected."""

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        *,
        timeout_s: float,
        reporter: CallReporter | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> msgspec.Raw:
        """Return the result of a request. Raise McpFailed. When cancelled, the server is notified.

        ``reporter`` shows its progress and asks the user; without one, questions are declined.
        """
        if self.ended:
            raise McpFailed(self.ended)
        try:
            number, message = self.client.request(method, params, headers)
        except ProtocolError as problem:
            raise McpFailed(str(problem)) from None
        call = self._calls[number] = _WaitingCall(self._loop.time() + timeout_s, reporter)
        self.send(message)
        try:
            await self._answered(call, method, timeout_s)
        finally:
            del self._calls[number]
            if call.answer is None and (cancelled := self.client.cancel(number, "no longer needed")) is not None:
                self.cancel(*cancelled)
        assert call.answer is not None
        if call.answer.problem:
            self._note(f"{method} failed: {call.answer.problem}")
            raise McpFailed(call.answer.problem)
        return call.answer.result

    async def _answered(self, call: _WaitingCall, method: str, timeout_s: float) -> None:
        """Wait for an answer; progress and the user's answers extend the time for it."""
        last, shown_at = self._loop.time() + MAX_CALL_S, 0.0
        while call.answer is None:
            if call.asked:
                begun = self._loop.time()
                await self._ask_user(call, call.asked.pop(0))
                last += self._loop.time() - begun
                call.deadline = self._loop.time() + timeout_s
                continue
            call.news.clear()
            until = min(call.deadline, last)
            try:
                async with asyncio.timeout_at(until):
                    await call.news.wait()
            except TimeoutError:
                if min(call.deadline, last) > until:
                    continue
                problem = f"did not answer {method} within {timeout_s:g} s"
                self._note(problem)
                raise McpFailed(problem) from None
            call.deadline = max(call.deadline, self._loop.time() + timeout_s)
            if call.reporter is not None and call.message and self._loop.time() >= shown_at + _PROGRESS_S:
                shown_at = self._loop.time()
                await call.reporter.progress(call.message)

    async def _ask_user(self, call: _WaitingCall, asked: Elicited | InputRequired) -> None:
        """Ask the user what the server wants to know, and send the answers."""
        if isinstance(asked, Elicited):
            self.send(self.client.answer_elicitation(asked.id, await self._reply(asked.asked, call.reporter)))
            return
        if not asked.asked:  # It asks for another attempt only.
            await asyncio.sleep(min(_POLL_S * 2**call.polls, _MAX_POLL_S))
            call.polls += 1
        replies = {key: await self._reply(one, call.reporter) for key, one in asked.asked.items()}
        if (message := self.client.continue_request(asked.id, replies)) is not None:
            self.send(message)

    async def _reply(self, asked: Elicitation, reporter: CallReporter | None) -> QuestionReply:
        try:
            question = question_of(self.source.name, asked)
        except ProtocolError as problem:
            self._note(f"its question was declined: {problem}")
            return DECLINED
        reply = DECLINED if reporter is None else await reporter.ask(question)
        self._note(f"asked the user: {reply.action}{f', because {reply.reason}' if reply.reason else ''}")
        return reply

    async def greet(self, deadlines: McpDeadlines) -> None:
        """Wait until the server is ready. Raise McpFailed."""
        self.send(self.client.start())
        begun = self._loop.time()
        await asyncio.wait({self._ready}, timeout=min(deadlines.discover_s, deadlines.start_s))
        if not self._ready.done():
            if (message := self.client.undiscovered()) is not None:
                self.send(message)
            await asyncio.wait({self._ready}, timeout=begun + deadlines.start_s - self._loop.time())
        if not self._ready.done():
            raise self.failed(f"was not ready within {deadlines.start_s:g} s")
        if problem := self._ready.result():
            raise self.failed(problem)
        if (message := self.client.listen()) is not None:
            self.send(message)

    def failed(self, reason: str) -> McpFailed:
        """Return and log why the server could not be used."""
        self.log.note(reason)
        return McpFailed(reason)

    def apply(self, events: list[ClientEvent]) -> None:
        """Do what follows from a message of the server."""
        for event in events:
            match event:
                case ToSend(message=message):
                    self.send(message)
                case CallAnswered(id=number):
                    if (call := self._calls.get(number)) is not None:
                        call.answer = event
                        call.news.set()
                case CallProgress(id=number, message=text):
                    if (call := self._calls.get(number)) is not None:
                        call.message = text
                        call.news.set()
                case InputRequired(id=number):
                    if (call := self._calls.get(number)) is not None:
                        call.asked.append(event)
                        call.news.set()
                case Elicited():
                    self._elicited(event)
                case ServerReady():
                    self._settle("")
                case ListChanged(kind=kind):
                    self.on_change(kind)
                case LogNote(text=text):
                    self._note(text)
                case ClientBroken(reason=reason):
                    self._break(reason)

    def _elicited(self, event: Elicited) -> None:
        """Ask on behalf of the newest call that can: an older server does not say for which one it asks."""
        calls = [call for call in self._calls.values() if call.reporter is not None and call.answer is None]
        if calls:
            calls[-1].asked.append(event)
            calls[-1].news.set()
        else:
            self._note("asked the user outside of a call, which was declined")
            self.send(self.client.answer_elicitation(event.id, DECLINED))

    def _note(self, text: str) -> None:
        """Write to the log, but not endlessly."""
        self._notes += 1
        if self._notes <= _MAX_NOTES:
            self.log.note(text)

    def _break(self, reason: str) -> None:
        """End a connection that cannot be used."""
        if not self.ended:
            self.end(reason)
            self.stop()

    def end(self, reason: str) -> None:
        """Note that the connection is over, and fail what waits for it. The first reason counts."""
        if self.ended:
            return
        self.ended = reason
        self.log.note(reason)
        self.client.state = ClientState.BROKEN
        self._settle(reason)
        self.apply(self.client.fail_all(reason))

    def _settle(self, problem: str) -> None:
        if not self._ready.done():
            self._ready.set_result(problem)


class ProcessConnection(McpConnection):
    """A started server on pipes. `open` makes one; `close` ends it with all its processes."""

    def __init__(self, source: McpSource, child: Child, outbox: int, client: McpClient, log: Log) -> None:
        super().__init__(source, client, log)
        self._child = child
        self._outbox = Outbox(outbox, self, max_bytes=MAX_UNSENT_BYTES)
        self._exited = False
        self._sandbox: Sandbox | None = None
        #: The end of the log when it was started.
        self._since = 0
        self._closing = False
        self._task = self._loop.create_task(self._run(), name=f"zot mcp {source.name}")

    @classmethod
    async def open(cls, source: McpSource, launch: McpLaunch, revision: str = "") -> ProcessConnection:
        """Start a server and wait until it is ready. Raise McpFailed; then no process is left."""
        log = Log(launch.logs, source.name, kind="mcp")
        sandbox = None
        if source.files is not None and await asyncio.to_thread(named_files, source, launch.cwd) != source.files:
            raise McpFailed(f"not started: a file of {source.origin} has changed since it was trusted; {_TRUST}")
        program = Program(source.argv, source.cwd, source.env)
        if launch.sandbox is not None and source.sandbox:
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
        log.note(f"starting {source.argv[0]}{'' if sandbox is None else ' in the sandbox of --lock'}")
        connection = cls(source, child, ours, McpClient(root_of(launch.cwd), revision=revision), log)
        connection._since, connection._sandbox = since, sandbox
        try:
            await connection.greet(launch.deadlines)
        except BaseException:
            await connection.close()
            raise
        return connection

    def send(self, message: Outgoing) -> None:
        self._outbox.write(message.data)

    def cancel(self, wire_id: int, message: Outgoing) -> None:
        self._outbox.write(message.data)

    def stop(self) -> None:
        self._task.cancel()

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

    def failed(self, reason: str) -> McpFailed:
        """Return an error with the last lines of the server's standard error."""
        if reason != self.ended:  # Else it is in the log.
            self.log.note(reason)
        words = " | ".join(self.log.last_words(self._since))
        hint = "" if self._sandbox is None else _SANDBOXED
        return (McpExited if self._exited else McpFailed)(f"{reason}{f': {words}' if words else ''}{hint}")

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
                self.end(self._how_it_ended())

    async def _read(self) -> None:
        lines, endless = LineSplitter(max_line_bytes=MAX_LINE_BYTES), 0
        while not self.ended and (data := await self._child.read(until_exit=False)):
            endless = 0 if b"\n" in data else endless + len(data)
            if endless > _MAX_ENDLESS_BYTES:
                self._break(f"sent more than {_MAX_ENDLESS_BYTES} bytes without the end of a line")
            for line in lines.feed(data):
                if isinstance(line, TooLong):
                    problem = f"sent a line of more than {MAX_LINE_BYTES} bytes"
                    if self.client.state is not ClientState.READY:
                        self._break(problem)
                    self.apply([*self.client.fail_all(problem), LogNote(problem)])
                    continue
                is_long = len(line) > LONG_BYTES
                message = await asyncio.to_thread(decode_line, line) if is_long else decode_line(line)
                self.apply(self.client.receive(message))

    async def _watch_log(self) -> None:
        self._break(await self.log.watch())

    def _how_it_ended(self) -> str:
        if self._closing:
            return "was stopped"
        return self._child.how_it_ended()

    def cannot_send(self, reason: str) -> None:
        """End the connection: the server does not read."""
        self._break(reason)

    def input_closed(self) -> None:
        """Do nothing: the end of the process says why."""


def root_of(cwd: str) -> str:
    """Return a directory as the address that servers get."""
    return f"file://{quote(cwd, errors='surrogateescape')}"
