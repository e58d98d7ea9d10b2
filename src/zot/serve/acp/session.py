"""One session of an editor: its updates, prompts, approvals and options, whatever runs it."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from zot.config.flags import Reasoning
from zot.errors import (
    AgentError,
    AuthFailed,
    ContentRefused,
    KeyMissing,
    NoSuchSession,
    RunCancelled,
    RuntimeBusy,
    SessionBusy,
    StepsExhausted,
    UserError,
)
from zot.events import (
    PIECES,
    AgentEvent,
    ApprovalAnswer,
    ApprovalRequest,
    CompactDone,
    Done,
    ExtNotify,
    QuestionAnswer,
    QuestionRequest,
    Reconfigured,
    ToolCall,
    UserMessage,
    notice_lines,
)
from zot.journal.queries import titled
from zot.messages import CallBlock, ImageBlock, Message, PastMessage, ShownCall, text_of
from zot.panels import CommandAnswer, CommandInfo
from zot.run_summary import RunSummary
from zot.session.history import Batch, WritingSubscriber
from zot.session.queue import CompactJob, JobObserver, PromptJob
from zot.session.session import Session
from zot.text import visible
from zot.wire import acp
from zot.wire.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    SESSION_BUSY,
    SESSION_NOT_FOUND,
    RpcError,
    RpcRequest,
    encode_error,
    encode_result,
)

if TYPE_CHECKING:
    from zot.serve.acp.server import AcpServer

log = logging.getLogger("zot")

#: The largest file whose former content a diff shows.
MAX_OLD_BYTES: Final = 1 << 20
#: The command of zot itself.
_COMPACT: Final = CommandInfo("compact", "Replace the older part of the conversation by a summary.", "zot")


class OptionValue(msgspec.Struct, frozen=True):
    """One value of an option."""

    id: str
    name: str
    description: str = ""


class Options(msgspec.Struct, frozen=True):
    """The settings of a session that a client can change. ``reasoning`` is "" if the model has no levels.

    ``mode`` is "" if there are no modes to choose from.
    """

    model: str
    models: Mapping[str, str]
    reasoning: str = ""
    mode: str = ""
    modes: Sequence[OptionValue] = ()


class ReplayedConversation(msgspec.Struct, frozen=True):
    """A conversation to replay: its ``messages`` before the current run, and the ``events`` of the run so far."""

    messages: Sequence[Message | PastMessage]
    events: Sequence[AgentEvent] = ()


class SessionBackend(ABC):
    """Backend of an `AcpSession`: a session of this process, or one of the daemon.

    It delivers every event to its ``view``, and answers prompts through their `PromptReply`.
    """

    view: AcpSession | None = None

    @property
    def is_ready(self) -> bool:
        """True if it can take requests now; otherwise `load` makes it ready."""
        return True

    async def load(self) -> None:
        """Make it ready. Raise AgentError."""
        return

    @abstractmethod
    def hold(self) -> None:
        """Deliver no events until `follow`: the client loads a session that it has open, and gets the replay first."""

    @abstractmethod
    def follow(self) -> None:
        """Deliver events from now on: the client has the response that opened the session."""

    @abstractmethod
    async def release(self) -> None:
        """Release the session: the client has closed it."""

    @property
    @abstractmethod
    def cwd(self) -> str:
        """The session's directory."""

    @property
    @abstractmethod
    def context_window(self) -> int:
        """The context window of its model, 0 if unknown."""

    @abstractmethod
    def prompt(self, reply: PromptReply, text: str, images: Sequence[ImageBlock], *, steers: bool) -> None:
        """Enqueue a prompt, or with ``steers`` add it to the running one. Raise AgentError."""

    @abstractmethod
    def compact(self, reply: PromptReply) -> None:
        """Enqueue a compaction. Raise AgentError."""

    @abstractmethod
    def cancel(self, reply: PromptReply) -> None:
        """Abort the run of a prompt, or drop it from the queue."""

    @abstractmethod
    def abort(self) -> None:
        """Abort the run, and drop the prompts that this client has queued."""

    @abstractmethod
    def approve(self, request_id: str, decision: str) -> None:
        """Answer an approval request, unless it has an answer."""

    @abstractmethod
    def answer(self, request_id: str, result: acp.QuestionResult) -> None:
        """Answer a question of a program, unless it has an answer."""

    @abstractmethod
    def decline(self, request_id: str) -> None:
        """Decline a question that this client cannot show, unless another one might."""

    @abstractmethod
    def options(self) -> Options:
        """Return the options and their values."""

    @abstractmethod
    async def set_option(self, option: str, value: str) -> None:
        """Change an option. Raise UserError."""

    @abstractmethod
    def command_names(self) -> Sequence[str]:
        """Return the names of the commands known by now."""

    @abstractmethod
    async def commands(self) -> Sequence[CommandInfo]:
        """Return the commands of extensions, once these have started, and prompts of MCP servers. Raise AgentError."""

    @abstractmethod
    async def run_command(self, name: str, args: str) -> CommandAnswer:
        """Run a command. Raise AgentError."""

    @abstractmethod
    async def conversation(self) -> ReplayedConversation:
        """Return the conversation to replay; events that are not part of it are delivered after `follow`."""

    @abstractmethod
    def present_text(self, call_id: str, path: str, *, waits: bool) -> str | None:
        """Return the text of the file that a call is to change; None if it is unknown.

        ``waits`` says that the call waits for an approval.
        """

    @abstractmethod
    async def old_text(self, call_id: str) -> str | None:
        """Return the content of the file that a call has changed, before it did; None if it is unknown."""


class SessionListing(msgspec.Struct, frozen=True):
    """One recorded session in a list."""

    id: str
    cwd: str
    title: str
    updated: str


class EditorSessions(ABC):
    """The sessions that a ``client`` can open. Methods raise AgentError."""

    client: AcpServer

    @property
    def sessions(self) -> Sequence[Session]:
        """The loaded sessions of this process."""
        return ()

    @abstractmethod
    def check_login(self) -> None:
        """Raise KeyMissing if the provider has no key."""

    @abstractmethod
    async def new(self, wanted: acp.NewSession) -> tuple[str, SessionBackend]:
        """Create a session; return its id and itself."""

    @abstractmethod
    async def open(self, wanted: acp.OpenSession) -> SessionBackend:
        """Open a recorded session. Raise NoSuchSession."""

    @abstractmethod
    async def fork(self, wanted: acp.OpenSession) -> tuple[str, SessionBackend]:
        """Copy a session; return the id of the copy and itself."""

    @abstractmethod
    async def listed(self, cwd: str | None) -> Sequence[SessionListing]:
        """Return the recorded sessions that had a prompt, of ``cwd`` or of all directories, the newest first."""

    @abstractmethod
    async def delete(self, session_id: str) -> None:
        """Delete a session that is not open; one that does not exist is deleted already."""

    @abstractmethod
    async def close(self) -> None:
        """Release everything, once the sessions are closed."""


class AcpSession(WritingSubscriber):
    """One open session of the client. The run waits for a slow client."""

    def __init__(self, server: AcpServer, session_id: str, backend: SessionBackend) -> None:
        super().__init__(server.output)
        self.id = session_id
        self.backend = backend
        backend.view = self
        self._server = server
        cards = acp.ToolCards(lambda: backend.cwd, self._old_text)
        self._updates = acp.UpdateMaker(cards, server.greeting.client, os.urandom(4).hex())
        #: The former content of files that replayed calls have replaced, by call; None if it is unknown.
        self._replaced: dict[str, str | None] = {}
        #: True while events are processed whose updates the client has from a replay.
        self._is_silent = False
        #: True while the card of a call is made that waits for an approval.
        self._is_asking = False
        self._summary = RunSummary()
        #: The prompts without an answer, by their id.
        self._replies: dict[str, PromptReply] = {}
        #: Those among them that the current run answers: the one that started it, and those that steered it.
        self._answered_by_run: list[PromptReply] = []
        #: Commands of extensions whose prompt is to start.
        self._expected: list[PromptReply] = []
        #: Our request and the tool call of each open approval and question.
        self._asked: dict[str, tuple[int, str]] = {}
        self.is_titled = False
        self._shown_options: list[dict[str, Any]] = []
        self._shown_commands: list[dict[str, Any]] = []

    # Subscriber.

    @property
    def can_approve(self) -> bool:
        return not self._server.input_ended

    @property
    def can_answer(self) -> bool:
        return self._server.greeting.client.elicitation is not None and not self._server.input_ended

    def deliver(self, batch: Batch) -> None:
        self._summary.take(batch.events)
        if not self._server.greeting.client.shows_notices and ExtNotify in map(type, batch.events):
            sys.stderr.write(notice_lines(batch.events))
        if batch.prompt_id:
            self._started(batch.prompt_id)
        pending: list[AgentEvent] = []
        if PIECES.issuperset(map(type, batch.events)):  # Most batches.
            self._show([*batch.events])
            return
        answered = {one.id for one in batch.events if isinstance(one, ApprovalAnswer | QuestionAnswer)}
        for event in batch.events:
            match event:
                case ApprovalRequest() | QuestionRequest() if event.id in answered:
                    pass  # A replay: there is nothing left to ask.
                case ApprovalRequest():
                    self._show(pending)
                    self.ask_again(event)
                case ApprovalAnswer():
                    self._show(pending)
                    self._settle(event)
                case QuestionRequest():
                    self._show(pending)
                    self._question(event)
                case QuestionAnswer(id=request_id):
                    self._withdraw(request_id)
                case UserMessage():
                    self._show(pending)
                    self._on_prompt(event)
                case CompactDone(auto=False):
                    pending.append(event)
                    for reply in [one for one in self._replies.values() if one.compacts][:1]:
                        self.run_started(reply)
                case Reconfigured():
                    self.show_options()
                    self._server.spawn(self.show_commands())  # An MCP server may have new prompts.
                case Done():
                    self._show(pending)
                    self._end_run()
                case _:
                    pending.append(event)
        self._show(pending)

    def deliver_replayed(self, batch: Batch) -> None:
        """Process events whose updates the client has from a replay: only prompts and requests are answered."""
        self._is_silent = True
        try:
            self.deliver(batch)
        finally:
            self._is_silent = False

    def show_again(self, events: Sequence[AgentEvent], old_texts: Mapping[str, str | None]) -> None:
        """Send the updates of processed events once more, with the client's own prompts: it has loaded the session."""
        calls = [one.id for one in events if isinstance(one, ToolCall)]
        self._replaced = {call_id: old_texts.get(call_id) for call_id in calls}
        pending: list[AgentEvent] = []
        for event in events:
            if isinstance(event, UserMessage):
                self._show(pending)
                for update in acp.prompted(event.content, self._updates.new_message()):
                    self.update(update)
                self._updates.new_message()
            else:
                pending.append(event)
        self._show(pending)
        self._replaced = {}

    def _old_text(self, call_id: str, path: str) -> str | None:
        """Return the text of a file before a call replaces it; None if it is unknown."""
        if call_id in self._replaced:
            return self._replaced[call_id]
        return self.backend.present_text(call_id, path, waits=self._is_asking)

    def _show(self, events: list[AgentEvent]) -> None:
        """Send the updates for ``events`` and empty the list."""
        for update in self._updates.updates(events, window=self.backend.context_window):
            self.update(update)
        events.clear()

    def update(self, update: acp.Update) -> None:
        """Send a session update."""
        if not self._is_silent:
            self._server.notify("session/update", {"sessionId": self.id, "update": update})

    def _on_prompt(self, message: UserMessage) -> None:
        """Show a prompt of another client; the client shows its own."""
        if not self.is_titled and (title := visible(titled(text_of(message.content)))):
            self.is_titled = True
            self.update({"sessionUpdate": "session_info_update", "title": title})
        message_id = self._updates.new_message()
        if not self._steered(message) and not self._started(message.prompt_id):
            for update in acp.prompted(message.content, message_id):
                self.update(update)
        self._updates.new_message()

    def _steered(self, message: UserMessage) -> bool:
        """Take note that a message of this client steers the current run. False if it is not one; they have no id."""
        text = text_of(message.content)
        for reply in () if message.prompt_id else self._replies.values():
            if reply.steers == text:
                reply.steers = None
                reply.has_steered = True
                self.run_started(reply)
                if reply.is_cancelled:  # Before this message of the run arrived.
                    reply.cancel()
                return True
        return False

    # Prompts.

    def prompt(self, reply: PromptReply, asked: acp.PromptParams) -> None:
        """Enqueue a prompt, or run a command; the reply follows. Raise AgentError."""
        text, images = acp.prompt_of(asked.prompt)
        self._replies[reply.prompt_id] = reply
        name, _, args = text.removeprefix("/").partition(" ")
        try:
            if text.startswith("/") and name == _COMPACT.name:
                reply.compacts = True
                self.backend.compact(reply)
            elif text.startswith("/") and name in self.backend.command_names():
                reply.command = self._server.spawn(self._run_command(reply, name, args.strip()))
            else:
                reply.steers = text if asked.steers else None
                self.backend.prompt(reply, text, images, steers=asked.steers)
        except BaseException:
            self.answered(reply)
            raise

    async def _run_command(self, reply: PromptReply, name: str, args: str) -> None:
        try:
            answer = await self.backend.run_command(name, args)
            if answer.prompt:
                self.backend.prompt(reply, answer.prompt, (), steers=False)
                return
        except AgentError as problem:
            reply.dropped(problem)
            return
        if answer.action == "prompt":  # The daemon runs it.
            self._expected.append(reply)
            return
        if said := answer.display or answer.insert:
            self.update(acp.chunk("agent_message_chunk", said, self._updates.new_message()))
        reply.stop("end_turn")

    def _started(self, prompt_id: str) -> bool:
        """Take note that the current run answers a prompt. False if that is not one of this client."""
        reply = self._replies.get(prompt_id)
        if reply is None and self._expected:
            reply = self._expected.pop(0)
        if reply is not None:
            self.run_started(reply)
            if reply.is_cancelled:  # Before the daemon had begun it.
                self.backend.cancel(reply)
        return reply is not None

    def run_started(self, reply: PromptReply) -> None:
        """Take note that the current run, or the next one, answers a prompt."""
        if reply not in self._answered_by_run:
            self._answered_by_run.append(reply)

    @property
    def is_running(self) -> bool:
        """True if the current run answers a prompt of this client."""
        return bool(self._answered_by_run)

    def runs(self, reply: PromptReply) -> bool:
        """True if the current run answers a prompt."""
        return reply in self._answered_by_run

    def waiting(self) -> Sequence[PromptReply]:
        """Return the prompts that no run answers yet."""
        return [one for one in self._replies.values() if one not in self._answered_by_run]

    def answered(self, reply: PromptReply) -> None:
        """Forget a prompt that has its answer."""
        self._replies.pop(reply.prompt_id, None)
        self._server.prompt_answered(reply)

    def cancel(self) -> None:
        """Abort the run, and drop the prompts of this client that wait."""
        for reply in self._replies.values():
            reply.is_cancelled = True
        self.backend.abort()

    async def settled(self) -> None:
        """Wait until every prompt has its answer."""
        for reply in list(self._replies.values()):
            await reply.over.wait()

    def fail_all(self, problem: AgentError) -> None:
        """Fail every prompt without an answer, and withdraw open requests: the session is gone."""
        self._answered_by_run, self._expected, self._summary = [], [], RunSummary()
        for request_id in list(self._asked):
            self._withdraw(request_id)
        for reply in list(self._replies.values()):
            reply.dropped(problem)

    def _end_run(self) -> None:
        answered, self._answered_by_run = self._answered_by_run, []
        summary, self._summary = self._summary, RunSummary()
        job = next((reply.job for reply in answered if reply.job is not None), None)
        problem = None if job is None else job.error
        for reply in answered:
            if isinstance(problem, StepsExhausted):
                reply.stop("max_turn_requests")
            elif isinstance(problem, ContentRefused):
                reply.stop("refusal")
            elif problem is not None or summary.error is not None:
                reply.fail(problem or AgentError(summary.error or ""))
            else:
                reply.stop(_STOPS[summary.stop or "end_turn"])

    # Approvals.

    def show_open(self, calls: Sequence[CallBlock | ShownCall]) -> None:
        """Send the cards of calls without a result, unless the client has them: it has resumed the session."""
        for call in calls:
            if not self._updates.cards.is_open(call.id):
                self.update(self._updates.cards.call(call.id, call.name, call.args))

    def ask_again(self, request: ApprovalRequest) -> None:
        """Send an approval request that may be older than this process, unless the client has it."""
        if request.id not in self._asked:
            self._ask(request)

    def _ask(self, request: ApprovalRequest) -> None:
        """Send an approval request to the client."""
        self._is_asking = True
        try:
            card = self._updates.cards.asked(request)
        finally:
            self._is_asking = False
        params = {"sessionId": self.id, "toolCall": card, "options": acp.PERMISSION_OPTIONS}

        def answer(result: msgspec.Raw | None) -> None:
            self.backend.approve(request.id, acp.decision_of(result))

        number = self._server.request("session/request_permission", params, answer)
        self._asked[request.id] = number, card["toolCallId"]

    def _settle(self, answer: ApprovalAnswer) -> None:
        """Withdraw a request that the client need not answer any more; the card of an allowed call continues."""
        call_id = self._withdraw(answer.id)
        if call_id and answer.decision in ("allow_once", "allow_always"):
            self.update(acp.card_update(call_id, "in_progress"))

    def _question(self, request: QuestionRequest) -> None:
        """Ask the user on behalf of a program."""
        if not self._server.greeting.client.shows_question(url=bool(request.url)):
            self.backend.decline(request.id)
            return

        def answer(result: msgspec.Raw | None) -> None:
            self.backend.answer(request.id, acp.question_result(result))

        number = self._server.request("elicitation/create", acp.elicitation(self.id, request), answer)
        self._asked[request.id] = number, request.call

    def _withdraw(self, request_id: str) -> str:
        """Withdraw an open request; return the tool call that it is about, "" if there is none."""
        number, call_id = self._asked.pop(request_id, (0, ""))
        self._server.withdraw(number)
        return call_id

    # Options.

    def settings(self) -> dict[str, Any]:
        """Return the modes and options for the response that opens the session."""
        now = self.backend.options()
        self._shown_options = _config_options(now)
        if not now.mode:
            return {"configOptions": self._shown_options}
        modes = [{"id": one.id, "name": one.name, "description": one.description} for one in now.modes]
        return {
            "modes": {"currentModeId": now.mode, "availableModes": modes},
            "configOptions": self._shown_options,
        }

    def show_options(self) -> None:
        """Send the options if they differ from the last ones sent."""
        if (options := _config_options(self.backend.options())) != self._shown_options:
            self._shown_options = options
            self.update({"sessionUpdate": "config_option_update", "configOptions": options})

    async def set_option(self, option: str, value: str) -> list[dict[str, Any]]:
        """Change a setting and return all of them. Raise UserError."""
        known = [one["id"] for one in _config_options(self.backend.options())]
        if option not in known:
            raise UserError(f"there is no option {option!r}; there are: {', '.join(known)}")
        await self.backend.set_option(option, value)
        if option == "mode":
            self.update({"sessionUpdate": "current_mode_update", "currentModeId": value})
        self._shown_options = _config_options(self.backend.options())
        return self._shown_options

    async def show_commands(self) -> None:
        """Send the commands if they differ from the last ones sent, those of extensions once these have started."""
        if not self.backend.is_ready:
            return
        try:
            found = [_COMPACT, *(one for one in await self.backend.commands() if one.name != _COMPACT.name)]
        except AgentError as problem:
            log.warning("session %r: no commands: %s", self.id, problem)
            return
        commands = [{"name": one.name, "description": one.description, **_input(one)} for one in found]
        if self._server.has(self) and commands != self._shown_commands:
            self._shown_commands = commands
            self._send_commands()

    def _send_commands(self) -> None:
        self.update({"sessionUpdate": "available_commands_update", "availableCommands": self._shown_commands})

    async def replay(self) -> None:
        """Send the conversation so far, at the client's pace."""
        found = await self.backend.conversation()
        for message in found.messages:
            calls = [
                one.id for one in message.content if isinstance(one, CallBlock | ShownCall) and one.name == "write"
            ]
            self._replaced = {call_id: await self.backend.old_text(call_id) for call_id in calls}
            for update in acp.replay(message, self._updates.cards, self._updates.new_message()):
                self.update(update)
            if self.full:
                await self.room()
        calls = [one.id for one in found.events if isinstance(one, ToolCall) and one.name == "write"]
        self.show_again(found.events, {call_id: await self.backend.old_text(call_id) for call_id in calls})
        if self._shown_commands:
            self._send_commands()


#: The stop reason of each way a model call ends. An error is answered as one.
_STOPS: Final[dict[str, acp.StopReason]] = {
    "end_turn": "end_turn",
    "tool_use": "end_turn",
    "length": "max_tokens",
    "aborted": "cancelled",
    "error": "end_turn",
}


class PromptReply(JobObserver):
    """Answers one `session/prompt`, once: with a stop reason or an error. A notification has no id and no answer."""

    def __init__(self, server: AcpServer, request: RpcRequest, session: AcpSession) -> None:
        self.request_id = request.id
        self.prompt_id = os.urandom(8).hex()
        self.session = session
        self.job: PromptJob | CompactJob | None = None
        self.compacts = False
        #: The text of a message that is to steer a run; None once it does, and for other prompts.
        self.steers: str | None = None
        #: True once a run, which another prompt started, has its message.
        self.has_steered = False
        #: The command of an extension that it runs.
        self.command: asyncio.Task[None] | None = None
        #: True once the client has cancelled it.
        self.is_cancelled = False
        self._server = server
        #: Set with the answer.
        self.over = asyncio.Event()

    def started(self) -> None:
        self.session.run_started(self)

    def dropped(self, why: AgentError) -> None:
        if isinstance(why, RunCancelled) or self.is_cancelled:
            self.stop("cancelled")
        else:
            self.fail(why)

    def parked(self) -> None:
        self.stop("cancelled")

    def stop(self, reason: acp.StopReason) -> None:
        """Answer with a stop reason."""
        self._answer(lambda id_: encode_result(id_, {"stopReason": reason}))

    def fail(self, problem: AgentError) -> None:
        """Answer with an error."""
        self._answer(lambda id_: encode_failure(id_, problem))

    def cancel(self) -> None:
        """Cancel the prompt: abort its run, or drop it from the queue. A run that it has steered continues."""
        self.is_cancelled = True
        if self.has_steered:
            self.stop("cancelled")
        else:
            self.session.backend.cancel(self)

    def _answer(self, frame: Callable[[msgspec.Raw], bytes]) -> None:
        if not self.over.is_set():
            self.over.set()
            self.session.answered(self)
            if self.request_id is not None:
                self._server.output.write(frame(self.request_id))


def encode_failure(request_id: msgspec.Raw, problem: AgentError) -> bytes:
    """Return the answer to a request that failed."""
    return encode_error(request_id, _rpc_error(problem))


#: The daemon's codes that mean something else to an editor.
_CODES_OF_DAEMON: Final = {SESSION_NOT_FOUND: acp.NOT_FOUND, SESSION_BUSY: acp.BUSY}


def _rpc_error(problem: AgentError) -> RpcError:
    match problem:
        case RpcError(code=code) if code in _CODES_OF_DAEMON:
            return RpcError(_CODES_OF_DAEMON[code], problem.message)
        case RpcError():
            return problem
        case KeyMissing() | AuthFailed():
            return RpcError(acp.AUTH_REQUIRED, str(problem))
        case NoSuchSession():
            return RpcError(acp.NOT_FOUND, str(problem))
        case SessionBusy() | RuntimeBusy():
            return RpcError(acp.BUSY, str(problem))
        case UserError():
            return RpcError(INVALID_PARAMS, str(problem))
        case _:
            return RpcError(INTERNAL_ERROR, str(problem))


def _config_options(now: Options) -> list[dict[str, Any]]:
    options = [_select("model", "Model", "model", now.model, now.models)]
    if now.mode:
        options.insert(0, _select("mode", "Mode", "mode", now.mode, {one.id: one.name for one in now.modes}))
    if now.reasoning:
        levels = {level: level.capitalize() for level in get_args(Reasoning)}
        options.append(_select("reasoning", "Reasoning", "thought_level", now.reasoning, levels))
    return options


def _select(option: str, name: str, category: str, value: str, values: Mapping[str, str]) -> dict[str, Any]:
    return {
        "type": "select",
        "id": option,
        "name": name,
        "category": category,
        "currentValue": value,
        "options": [{"value": one, "name": shown} for one, shown in values.items()],
    }


def _input(command: CommandInfo) -> dict[str, Any]:
    """Return that a command takes arguments: editors send one without this as soon as the user has chosen it."""
    return {} if command is _COMPACT else {"input": {"hint": "arguments"}}


def text_on_disk(path: str) -> str | None:
    """Return the text of a file; None if it is missing, large or no text."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_OLD_BYTES:
            return None
        with open(path, "rb") as file:
            return file.read().decode()
    except (OSError, ValueError):
        return None
