"""zot RPC v1: commands to a session, its events to the client; `serve_stdio` for a process and its standard streams."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from zot.config.config import Config, ConfigOverrides
from zot.encoding import thread_safe_type
from zot.errors import AgentError, ProtocolError, UserError, explained
from zot.events import Done, Error, ExtNotify, notice_lines
from zot.messages import ImageBlock, show
from zot.runtime.open import OpenRequest, open_session
from zot.runtime.shared import SharedResources
from zot.serve.stdio import GreetedStreams
from zot.serve.streams import NotAuthorized, StreamWriter, serve_lines
from zot.session.history import Batch, Outlet, WritingSubscriber
from zot.session.queue import JobObserver
from zot.session.session import Session
from zot.session.transcripts import RewindTarget
from zot.wire import rpc
from zot.wire.lines import TooLong
from zot.wire.rpc import EventEncoder
from zot.wire.rpc_greeting import Command, Greeting, Hello, Ping, fail, fail_frame, name_of, succeed

if TYPE_CHECKING:
    from zot.panels import CommandAnswer

log = logging.getLogger("zot")


class Output(Outlet, Protocol):
    """Destination of encoded lines."""

    def write(self, data: bytes) -> None: ...


class RpcServer(WritingSubscriber):
    """One client of one session: the run waits for it, so it misses no event."""

    def __init__(self, session: Session, greeting: Greeting, output: Output) -> None:
        super().__init__(output)
        self._session = session
        self._greeting = greeting
        self._output = output
        self._events = EventEncoder()
        self._answering: set[asyncio.Task[None]] = set()
        #: Number of unfinished commands that must be answered first; commands and answers queued after them.
        self._pending = 0
        self._held: deque[rpc.AnyCommand | bytes] = deque()
        self._settled = asyncio.Event()
        self._settled.set()
        self._input_ended = False
        session.history.subscribe(self)
        if not greeting.locked:
            session.extensions.start()

    # Subscriber.

    def deliver(self, batch: Batch) -> None:
        self._output.write(self._events.lines(batch.events, self._greeting.features, run=batch.run))
        if "extensions" not in self._greeting.features and ExtNotify in map(type, batch.events):
            sys.stderr.write(notice_lines(batch.events))

    @property
    def can_approve(self) -> bool:
        return "approvals" in self._greeting.features and not self._input_ended

    @property
    def can_answer(self) -> bool:
        return "questions" in self._greeting.features and not self._input_ended

    # Commands from the client.

    def take(self, line: bytes | TooLong) -> None:
        """Execute the command in one line and answer it. Raise NotAuthorized if the connection must be closed."""
        try:
            if isinstance(line, TooLong):
                raise ProtocolError(f"the line is longer than {line.limit} bytes and was not read")
            command = rpc.decode_command(line)
        except ProtocolError as problem:
            self._output.write(fail_frame(problem))
            if self._greeting.locked:
                raise NotAuthorized("rpc: the first line must be hello with the token") from None
            return
        refusal = self._greeting.refusal(command)
        if refusal is not None:
            self._output.write(fail(command, refusal))
            raise NotAuthorized(f"rpc: {refusal}")
        self._session.extensions.start()
        if self._pending or self._held:
            self._hold(command)
        else:
            self._perform(command)

    @property
    def sessions(self) -> Sequence[Session]:
        """The session."""
        return (self._session,)

    async def finish(self) -> None:
        """Wait until every command has been answered and the session is idle."""
        while self._pending:
            await self._settled.wait()
        await self._session.worker.finish()

    async def close(self) -> None:
        """Release nothing: there is nothing besides the session."""

    def end_input(self) -> None:
        """Handle the end of the client's input: it can no longer answer."""
        self._input_ended = True
        self._session.worker.approver_left()

    def _hold(self, command: rpc.AnyCommand) -> None:
        """Queue a command after the unfinished ones, so answers keep their order. An abort takes effect at once."""
        if not isinstance(command, rpc.Abort):
            self._held.append(command)
            return
        is_aimed = self._session.worker.busy
        self._session.abort(queue=bool(command.queue))
        if is_aimed:
            self._drop_held(queue=bool(command.queue))
            self._held.append(succeed(command))
        else:  # It may follow a held prompt: executed in order, it ends that prompt.
            self._held.append(command)

    def _drop_held(self, *, queue: bool) -> None:
        """Fail the held commands that an abort of the running prompt drops: steers; with ``queue`` prompts, too."""
        dropped = (rpc.Steer, rpc.Prompt, rpc.Compact) if queue else rpc.Steer
        for at, held in enumerate(self._held):
            if isinstance(held, dropped):
                self._held[at] = fail(held, "dropped by an abort")

    def _perform(self, command: rpc.AnyCommand) -> None:
        """Execute a command and answer it; if its answer comes later, hold the commands that follow."""
        pending = self._pending
        try:
            self._execute(command)
        except Exception as problem:
            # The outermost boundary: an unexpected error fails this command, not the connection.
            self._pending = pending
            self._output.write(fail(command, str(explained(problem, log, name_of(command)))))

    def _expect_answer(self) -> None:
        """Hold the commands that follow until `_answered` is called."""
        self._pending += 1
        self._settled.clear()

    def _answered(self) -> None:
        """Resume with the held commands: a command that held them back has its answer."""
        self._pending -= 1
        while self._held and not self._pending:
            match self._held.popleft():
                case bytes() as answer:
                    self._output.write(answer)
                case command:
                    self._perform(command)
        if not self._pending:
            self._settled.set()

    def _execute(self, command: rpc.AnyCommand) -> None:
        """Execute a command. Raise AgentError if that is impossible."""
        session = self._session
        match command:
            case Hello() | Ping():
                self._output.write(self._greeting.answer(command))
            case rpc.Prompt():
                session.prompt(command.message or "", _images(command.images), observer=self._observer(command))
            case rpc.Steer():
                session.steer(command.message or "", _images(command.images), observer=self._observer(command))
            case rpc.Compact():
                session.compact(self._observer(command))
            case rpc.Abort(queue=queue):
                self._succeed(command)
                session.abort(queue=bool(queue))
            case rpc.GetState():
                self._succeed(command, rpc.StateData.of(session.state(), self._greeting.features))
            case rpc.GetMessages(view="full"):
                self._later(command, self._all_messages())
            case rpc.Fork(session=new_id, messages=count):
                self._later(command, self._fork(new_id, count))
            case rpc.Rewind(messages=count, at=row, files=files, preview=preview):
                self._later(command, session.rewind(RewindTarget(count, row, files is not False, bool(preview))))
            case rpc.GetMessages():
                messages = [show(message) for message in session.history.transcript.messages]
                self._succeed(command, {"messages": messages})
            case rpc.Approve(request=request, decision=decision):
                session.approvals.answer(request or "", decision or "")
                self._succeed(command)
            case rpc.Answer(request=request, action=action, content=content):
                session.worker.questions.answer(request or "", action or "", content)
                self._succeed(command)
            case rpc.Clear():
                session.clear(self._observer(command))
            case rpc.UndoCompact():
                session.undo_compact(self._observer(command))
            case rpc.SetModel(model=model):
                if not model:
                    raise UserError("set_model needs a model")
                session.use_model(model)
                self._succeed(command, {"model": model})
            case rpc.GetModels():
                models = msgspec.convert(
                    session.agent.catalogue.models, thread_safe_type(list[rpc.ModelData]), from_attributes=True
                )
                self._succeed(command, {"models": models})
            case rpc.GetResources():
                self._succeed(command, {"resources": session.resources()})
            case rpc.GetCommands() | rpc.RunCommand() | rpc.PanelKey() | rpc.PanelClose():
                self._execute_extension(command)

    def _execute_extension(self, command: rpc.GetCommands | rpc.RunCommand | rpc.PanelKey | rpc.PanelClose) -> None:
        """Execute a command for extensions. Raise AgentError if that is impossible."""
        session = self._session
        match command:
            case rpc.GetCommands():
                self._later(command, self._commands())
            case rpc.RunCommand(name=name, args=args):
                self._later(command, session.run_command(name or "", args or ""), then=self._run_prompt)
            case rpc.PanelKey(panel_id=panel_id, key=key, text=text):
                session.extensions.panels.send_key(panel_id or "", key or "", text or "")
                self._succeed(command)
            case rpc.PanelClose(panel_id=panel_id):
                session.extensions.panels.close(panel_id or "")
                self._succeed(command)

    async def _all_messages(self) -> dict[str, Any]:
        messages = await self._session.all_messages()
        return {"messages": [show(msgspec.structs.replace(message, shown_text=None)) for message in messages]}

    async def _commands(self) -> dict[str, Any]:
        return {"commands": await self._session.commands()}

    def _run_prompt(self, answer: CommandAnswer) -> None:
        """Run the prompt that an extension's answer contains, if any; the client applies the rest."""
        if answer.prompt:
            observer = _CommandPrompt(self)
            try:
                self._session.prompt(answer.prompt, observer=observer)
            except UserError as problem:
                observer.dropped(problem)

    async def _fork(self, new_id: str | None, messages: int | None) -> dict[str, Any]:
        return {"session": await self._session.fork(new_id, messages=messages)}

    def _later(self, command: Command, work: Awaitable[Any], then: Callable[[Any], None] | None = None) -> None:
        """Answer ``command`` with the result of ``work`` when it is ready, then pass the result to ``then``."""
        self._expect_answer()
        task = asyncio.get_running_loop().create_task(self._answer(command, work, then), name="zot answer")
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, command: Command, work: Awaitable[Any], then: Callable[[Any], None] | None) -> None:
        try:
            result = await work
            self._succeed(command, result)
            if then is not None:
                then(result)
        except Exception as problem:
            self._output.write(fail(command, str(explained(problem, log, name_of(command)))))
        self._answered()

    def _succeed(self, command: Command, *data: Any) -> None:
        self._output.write(succeed(command, *data))

    def _observer(self, command: Command) -> JobObserver:
        """Return the observer that answers ``command`` when its job starts or is dropped."""
        data = () if isinstance(command, rpc.Clear | rpc.UndoCompact) else (rpc.STARTED,)
        if holds := self._session.worker.begins_later:
            self._expect_answer()
        return _CommandJob(self, command, data, holds=holds)

    def answer_job(self, frame: bytes, *, holds: bool) -> None:
        """Write the answer of a command that started a job; if it ``holds`` others back, resume with them."""
        self._output.write(frame)
        if holds:
            asyncio.get_running_loop().call_soon(self._answered)


class _CommandJob(JobObserver):
    """Answers the command that enqueued a job. If it ``holds`` others back, they follow its answer."""

    def __init__(self, server: RpcServer, command: Command, data: Sequence[Any], *, holds: bool) -> None:
        self._server = server
        self._command = command
        self._data = data
        self._holds = holds

    def started(self) -> None:
        self._server.answer_job(succeed(self._command, *self._data), holds=self._holds)

    def dropped(self, why: AgentError) -> None:
        self._server.answer_job(fail(self._command, str(why)), holds=self._holds)


class _CommandPrompt(JobObserver):
    """The prompt of an extension's command, which has been answered already."""

    def __init__(self, server: RpcServer) -> None:
        self._server = server

    def dropped(self, why: AgentError) -> None:
        self._server.deliver(Batch(0, 0, [Error(str(why)), Done()]))


def _images(images: Sequence[rpc.ImageInput] | None) -> tuple[ImageBlock, ...]:
    return tuple(ImageBlock(image.mime_type or "", image.data) for image in images or ())


def serve_stdio(
    config: Config,
    greeting: Greeting,
    streams: GreetedStreams,
    *,
    overrides: ConfigOverrides,
) -> int:
    """Serve the client in an event loop of its own. Return the exit code."""

    async def make(output: StreamWriter, resources: SharedResources) -> RpcServer:
        session = await open_session(OpenRequest(config=config, overrides=overrides), resources)
        greeting.provider = session.agent.provider.name
        greeting.model = lambda: session.agent.model.id
        return RpcServer(session, greeting, output)

    return asyncio.run(serve_lines(make, streams))
