"""The terminal without a screen: lines in, lines out."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TextIO, TypeVar

from zot.errors import AgentError, UserError
from zot.events import (
    AgentEvent,
    ApprovalRequest,
    AssistantMessage,
    CompactDone,
    ConversationReplaced,
    Decision,
    Done,
    Error,
    ExtNotify,
    ExtWaiting,
    PanelClosed,
    PanelOpened,
    PanelRendered,
    QuestionAnswer,
    QuestionRequest,
    Retry,
    SessionState,
    TextDelta,
    ToolCall,
    ToolResult,
    TurnEnd,
)
from zot.messages import text_of
from zot.panels import CommandInfo
from zot.run_summary import CUT_SHORT
from zot.session.history import Batch, Subscriber
from zot.text import escaped, printable
from zot.ui.conversation import Conversation, FirstConversation, Home
from zot.ui.readable import counted, format_duration, one_line, summary
from zot.ui.terminal import slash
from zot.ui.terminal.mentions import named_images
from zot.ui.terminal.slash import Option, ask_question, ask_trust, offer_retry
from zot.ui.terminal.styles import Decided, Level, beyond_summary, until

T = TypeVar("T")

_RESULT_LINES = 5
_ALWAYS: Decision = "allow_always"
_DECISIONS: dict[str, Decision] = {"y": "allow_once", "yes": "allow_once", "a": _ALWAYS, "always": _ALWAYS}
_LISTED = 40


class Typed:
    """Input lines in order. End of input is final: every later read returns it."""

    def __init__(self, incoming: int) -> None:
        self._incoming = incoming
        self._unread = b""
        self._lines: deque[str] = deque()
        #: Lines typed before the pending question.
        self._before: list[str] = []
        self._ended = False
        self._moved = asyncio.Event()

    def open(self) -> None:
        """Start reading."""
        asyncio.get_running_loop().add_reader(self._incoming, self._read)

    def close(self) -> None:
        """Stop reading."""
        asyncio.get_running_loop().remove_reader(self._incoming)

    @property
    def is_over(self) -> bool:
        """True if no line is left and none will come."""
        return self._ended and not self._lines

    async def line(self) -> str | None:
        """Return the next line; None at the end of input."""
        while not self._lines:
            if self._ended:
                return None
            self._moved.clear()
            await self._moved.wait()
        return self._lines.popleft()

    def end(self) -> None:
        """Stop reading; lines already read stay available."""
        self.close()
        self._ended = True
        self._moved.set()

    def drop(self) -> list[str]:
        """Remove and return the unread lines."""
        dropped = [*self._before, *self._lines]
        self._before = []
        self._lines.clear()
        return dropped

    def set_aside(self) -> None:
        """Hold back lines typed so far, if from a terminal: they cannot answer a later question."""
        if os.isatty(self._incoming):
            self._before = self.drop()

    def put_back(self) -> None:
        """Make the lines held back readable again, first."""
        self._lines.extendleft(reversed(self._before))
        self._before = []

    def _read(self) -> None:
        try:
            data = os.read(self._incoming, 65536)
        except OSError:  # The terminal is gone.
            data = b""
        *lines, self._unread = (self._unread + data).split(b"\n")
        self._lines.extend(line.decode("utf-8", "replace").rstrip("\r") for line in lines)
        self._moved.set()
        if not data:
            self.end()


class LinePrinter:
    """Prints events and notes as lines. Characters that the output cannot encode are replaced."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        #: True at the start of a line.
        self.at_start = True

    def write(self, text: str) -> None:
        """Print text without a line end."""
        if text:
            encoding = self._output.encoding or "utf-8"
            self._output.write(text.encode(encoding, "replace").decode(encoding))
            self._output.flush()
            self.at_start = text.endswith("\n")

    def say(self, text: str) -> None:
        """Print whole lines."""
        self.end_line()
        self.write(f"{text}\n")

    def end_line(self) -> None:
        """End an unfinished line."""
        if not self.at_start:
            self.write("\n")

    def show(self, event: AgentEvent) -> None:
        """Print an event."""
        match event:
            case TextDelta(delta=delta):
                self.write(escaped(delta))
            case AssistantMessage():
                self.end_line()
            case ToolCall(name=name, args=args):
                self.say(f"* {one_line(name)} {one_line(summary(args or {}), 160)}")
            case ToolResult(is_error=is_error, content=content):
                self._result(text_of(content), is_error=is_error)
            case TurnEnd(stop="aborted"):
                self.say("-- aborted")
            case TurnEnd(stop="length"):
                self.say(f"-- {CUT_SHORT}")
            case Error(message=message):
                self.say(f"-- failed: {one_line(message)}")
            case Retry(reason=reason, delay_ms=delay_ms):
                self.say(f"-- retrying in {format_duration(delay_ms)}: {one_line(reason)}")
            case CompactDone():
                self.say("-- the conversation was compacted")
            case ConversationReplaced(messages=messages):
                how = "was changed" if messages else "was cleared; its cost stays counted"
                self.say(f"-- the conversation {how}")
            case ExtNotify(extension=extension, level=level, message=message):
                self.say(f"[{one_line(extension)}] {level}: {escaped(message)}")
            case ExtWaiting(extension=extension, what="held assistant_message"):
                self.say(f"-- held by {one_line(extension)}")
            case ExtWaiting(extension=extension):
                self.say(f"-- waiting for {one_line(extension)}")
            case PanelOpened() | PanelRendered():
                rows = [*event.lines, *filter(None, [event.footer])]
                self.say("\n".join([f"== {one_line(event.title)}", *(f"   {one_line(row)}" for row in rows)]))
            case PanelClosed(panel_id=panel_id):
                self.say(f"== the panel {one_line(panel_id)} is closed")
            case QuestionRequest(origin=origin, message=message):
                self.say(f"? {one_line(origin)} asks: {printable(message)}")
            case ApprovalRequest(summary=asked):
                self.say("\n".join([f"? {printable(asked)}", *(f"    {line}" for line in beyond_summary(event))]))
            case _:
                pass

    def _result(self, text: str, *, is_error: bool) -> None:
        lines = escaped(text).rstrip("\n").split("\n")
        mark = "!" if is_error else "|"
        self.say("\n".join(f"  {mark} {line}" for line in lines[:_RESULT_LINES]))
        if len(lines) > _RESULT_LINES:
            self.say(f"  {mark} ... {counted(len(lines) - _RESULT_LINES, 'more line')}")


class PlainTerminal(Subscriber):
    """A line-by-line front end of one conversation. A `Terminal`."""

    can_approve = True
    can_answer = True

    def __init__(
        self,
        first: FirstConversation,
        *,
        incoming: int = 0,
        output: TextIO | None = None,
    ) -> None:
        self._first = first
        self._typed = Typed(incoming)
        self._printer = LinePrinter(output or sys.stdout)
        self._home: Home | None = None
        self._conversation: Conversation | None = None
        self._unfollow: Callable[[], None] = lambda: None
        self._done = asyncio.Event()
        #: Approval requests and questions of tools that were not put to the user yet.
        self._asked: list[ApprovalRequest | QuestionRequest] = []
        #: The pending question of any kind.
        self._answering: asyncio.Task[str | None] | None = None
        #: The request that it is about, if any: another client may decide about it.
        self._deciding: ApprovalRequest | QuestionRequest | None = None
        self._failure = ""
        #: Owns the tasks that abort runs.
        self._aborts = asyncio.TaskGroup()
        self._leaving = False
        #: True while only a prompt is awaited.
        self._resting = False
        #: The final state of the conversation.
        self.left: SessionState | None = None
        self.extension_commands: Sequence[CommandInfo] = ()

    @property
    def conversation(self) -> Conversation:
        if self._conversation is None:
            raise UserError("the session is not open yet")
        return self._conversation

    @property
    def home(self) -> Home:
        assert self._home is not None
        return self._home

    async def run(self) -> int:
        """Talk until the user leaves. Return the exit code."""
        loop = asyncio.get_running_loop()
        self._typed.open()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        try:
            async with self._aborts:
                return await self._open_and_talk()
        finally:
            self._typed.close()
            loop.remove_signal_handler(signal.SIGINT)
            self._unfollow()
            if self._conversation is not None:
                await self._conversation.close()

    async def _open_and_talk(self) -> int:
        try:
            self._home = await self._first.home()
            await ask_trust(self)
            await self._enter(await self._first.session(self._home))
            if not self._leaving:
                self.note("zot, line by line; /help lists the commands, Ctrl+C aborts, Ctrl+D quits")
            await self._talk()
            self._printer.end_line()
            self.left = await self.conversation.state()
        except AgentError as problem:
            self._printer.say(f"zot: {escaped(str(problem))}")
            return 1
        return 0

    async def _enter(self, conversation: Conversation) -> None:
        self._unfollow()
        former, self._conversation = self._conversation, conversation
        await conversation.past()  # Sets where `follow` starts: only an active run is shown.
        self._unfollow = conversation.follow(self)
        self.extension_commands = await conversation.commands()
        if former is not None:
            await former.close()
        state = await conversation.state()
        if pending := [one for one in (state.pending, *state.questions) if one is not None]:
            for request in pending:
                if request not in self._asked:
                    self._show(request)
            await self.start_run(_already_running())

    async def _talk(self) -> None:
        while not self._leaving:
            self._resting = True
            line = await self._line("> ")
            self._resting = False
            if line is None:
                return
            if not line.strip():
                continue
            try:
                await (slash.run(self, line) if slash.is_command(line) else self.submit(line))
            except AgentError as problem:
                self.note(str(problem), "error")

    # Input.

    def _interrupt(self) -> None:
        self._drop_typed()
        if self._resting:
            self._printer.write("\n> ")
        if self._answering is not None:
            self._answering.cancel()
        elif self._conversation is None:
            self._typed.end()
        if self._conversation is not None:
            self._aborts.create_task(self._abort(self._conversation), name="zot abort")

    async def _abort(self, conversation: Conversation) -> None:
        try:
            await conversation.abort()
        except AgentError as problem:
            self.note(str(problem), "error")

    def _drop_typed(self) -> None:
        """Drop lines typed during a run that is aborted."""
        for line in self._typed.drop():
            if line.strip():
                self._printer.say(f"-- not sent: {one_line(line, 160)}")

    async def _line(self, prompt: str) -> str | None:
        if self._typed.is_over:
            return None
        self._printer.write(prompt)
        line = await self._typed.line()
        self._printer.at_start = line is not None
        return line

    async def _answer(self, prompt: str) -> str | None:
        """Return the line typed after a question; None if cancelled, or at the end of input, which also leaves."""
        self._typed.set_aside()
        answering = asyncio.get_running_loop().create_task(self._line(prompt), name="zot question")
        self._answering = answering
        try:
            await asyncio.wait([answering])
        finally:
            answering.cancel()
            self._answering = None
            await asyncio.wait([answering])
            self._typed.put_back()  # Before the next read.
        if answering.cancelled():
            self._printer.end_line()
            return None
        if (answer := answering.result()) is None:
            self._drop_typed()
            self.leave()
            return None
        return answer.strip()

    # Events.

    def deliver(self, batch: Batch) -> None:
        for event in batch.events:
            self._show(event)

    def _show(self, event: AgentEvent) -> None:
        """Print an event, and note what follows from it."""
        if isinstance(event, Decided | QuestionAnswer):
            self._withdraw(event)
        self._printer.show(event)
        match event:
            case TurnEnd(stop="error", error=error):
                self._failure = error or "the model call failed"
            case ApprovalRequest() | QuestionRequest():
                self._asked.append(event)
                self._done.set()
            case Done():
                self._done.set()
            case _:
                pass

    def _withdraw(self, event: Decided | QuestionAnswer) -> None:
        """Withdraw what an event shows to be decided: the next line does not answer it."""

        def is_over(request: ApprovalRequest | QuestionRequest) -> bool:
            if isinstance(request, ApprovalRequest):
                return isinstance(event, Decided)
            return isinstance(event, Done) or (isinstance(event, QuestionAnswer) and event.id == request.id)

        left = [request for request in self._asked if not is_over(request)]
        if self._asked and not left:
            self._done.clear()
        self._asked = left
        if self._deciding is not None and is_over(self._deciding) and self._answering is not None:
            self._answering.cancel()

    async def submit(self, text: str) -> None:
        self._failure = ""
        await self.start_run(self.conversation.prompt(text, await named_images(text, self.conversation)))
        while self._failure and not self._leaving:
            failure, self._failure = self._failure, ""
            await offer_retry(self, failure)

    async def start_run(self, start: Awaitable[None], doing: str = "") -> None:
        """Start a run and wait until it ends, answering approvals meanwhile."""
        if not self._asked:
            self._done.clear()
        await start
        while not self._leaving:
            await self._done.wait()
            if not self._asked:
                return
            request = self._asked.pop(0)
            if not self._asked:
                self._done.clear()
            self._deciding = request
            try:
                await (self._decide(request) if isinstance(request, ApprovalRequest) else ask_question(self, request))
            except UserError as problem:
                self.note(str(problem), "warn")
            finally:
                self._deciding = None

    async def _decide(self, request: ApprovalRequest) -> None:
        """Ask for an approval, and send the decision unless another client decided meanwhile."""
        answer = await self._answer(f"  allow it? y(es), a(lways), n(o), until {until(request)}: ")
        if answer is not None:
            await self.conversation.approve(request.id, _DECISIONS.get(answer.lower(), "reject"))

    # The `Terminal` interface, for slash commands.

    def note(self, text: str, level: Level = "info") -> None:
        self._printer.say("\n".join(f"-- {line}" for line in escaped(text).split("\n")))

    def present(self, text: str, source: str) -> None:
        self._printer.say(f"[{one_line(source)}]\n{escaped(text)}")

    def insert(self, text: str) -> None:
        self._printer.say(escaped(text))

    def now(self) -> float:
        return time.monotonic()

    def enter_panel(self, panel_id: str, since: float) -> None:
        pass  # Only lines can be typed here, no keys for panels.

    def busy(self, text: str) -> AbstractContextManager[None]:
        self._printer.say(f"-- {text}")
        return nullcontext()

    async def choose(
        self, title: str, options: Sequence[Option[T]], *, body: str = "", sudden: bool = False
    ) -> T | None:
        if self._leaving:
            return None
        shown = [one_line(option.label, 160) for option in options[:_LISTED]]
        lines = [escaped(body), f"? {one_line(title)}"]
        lines += [f"  {number}  {label}" for number, label in enumerate(shown, 1)]
        self._printer.say("\n".join(line for line in lines if line))
        answer = await self._answer("  number, or nothing: ") or ""
        numbered = {str(number): one for number, one in enumerate(options[:_LISTED], 1)}
        chosen = next((one for one in options if one.key and one.key == answer.lower()), None) or numbered.get(answer)
        return None if chosen is None else chosen.value

    async def ask(self, title: str, *, secret: bool = False) -> str | None:
        if secret:
            raise UserError("typed text is visible here; in a shell, run: zot login")
        return await self._answer(f"{one_line(title)}: ")

    async def switch(self, session: str | None) -> None:
        await self._enter(await self.home.open(session))
        self.note(f"session {(await self.conversation.state()).session or 'not recorded'}")

    async def jump(self) -> None:
        raise UserError("there is no screen to scroll")

    def page(self) -> str:
        return "Ctrl+C aborts, Ctrl+D leaves."

    def leave(self) -> None:
        self._leaving = True


async def _already_running() -> None:
    """Start nothing: the run is active already."""
