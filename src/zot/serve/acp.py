"""Agent Client Protocol v1: an editor's sessions over standard input and output, recorded in the journal."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, assert_never

import msgspec

from zot.config.config import Config, Overrides, journal_path
from zot.encoding import UNREADABLE
from zot.errors import (
    AgentError,
    AuthFailed,
    ContentRefused,
    KeyMissing,
    NoSuchSession,
    RunCancelled,
    StepsExhausted,
    TooManySessions,
    UserError,
    explained,
)
from zot.events import (
    AgentEvent,
    ApprovalAnswer,
    ApprovalRequest,
    Done,
    ExtNotify,
    Reconfigured,
    UserMessage,
    notice_lines,
)
from zot.journal.journal import Journal
from zot.journal.queries import titled
from zot.messages import text_of
from zot.run_summary import RunSummary
from zot.runtime.check import check
from zot.runtime.modes import SessionModes
from zot.runtime.open import HOSTED, OpenRequest, open_session
from zot.runtime.shared import SharedResources
from zot.serve.lifetime import Lifetime, close_in_time, wind_down
from zot.serve.stdio import report_write_failure
from zot.serve.streams import StreamWriter, pump, read_chunks
from zot.session.history import Batch, WritingSubscriber
from zot.session.queue import JobObserver, PromptJob
from zot.session.session import Session, new_session_id
from zot.wire import acp
from zot.wire.acp_greeting import BY_ENVIRONMENT, AcpGreeting
from zot.wire.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NULL,
    Bad,
    Reply,
    Request,
    RpcError,
    decode,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
    frame_too_large,
)
from zot.wire.lines import LineSplitter, TooLong

log = logging.getLogger("zot")

#: The most sessions open at once; the least recently used idle one is closed for the next.
_MAX_SESSIONS: Final = 64
#: The most requests that are being answered at once, besides prompts.
_MAX_REQUESTS: Final = 256
#: Sessions on one page of a list.
_PAGE: Final = 100
#: The largest file whose former content a diff shows.
_MAX_OLD_BYTES: Final = 1 << 20
_REASONING: Final = ("off", "low", "medium", "high")
#: Limit for the removal of sessions without a message.
_FORGET_S: Final = 1.0
_NO_MCP: Final = "zot does not start MCP servers for a client yet; remove mcpServers from the client's settings"


class AcpSession(WritingSubscriber):
    """One open session of the client: its updates, its prompts and its approvals. The run waits for a slow client."""

    def __init__(self, server: AcpServer, session_id: str, session: Session, mode: str | None, *, is_new: bool) -> None:
        super().__init__(server.output)
        self.id = session_id
        self.session = session
        self.modes = SessionModes(session, mode)
        #: True until the first prompt of a session that this process created.
        self.is_unused = is_new
        self._server = server
        self._updates = acp.UpdateMaker(acp.ToolCards(session.agent.cwd, _old_text), server.greeting.client)
        self._summary = RunSummary()
        #: The prompts that the running run answers: the one that started it, and those that steered it.
        self._answered_by_run: list[PromptReply] = []
        #: Our request and the tool call of each open approval.
        self._asked: dict[str, tuple[int, str]] = {}
        self._is_titled = bool(session.history.transcript.messages)
        self._shown_options = self.options()
        self._unsubscribe = session.history.subscribe(self)

    # Subscriber.

    @property
    def can_approve(self) -> bool:
        return not self._server.input_ended

    def deliver(self, batch: Batch) -> None:
        self._summary.take(batch.events)
        if not self._server.greeting.client.shows_notices and ExtNotify in map(type, batch.events):
            sys.stderr.write(notice_lines(batch.events))
        pending: list[AgentEvent] = []
        for event in batch.events:
            match event:
                case ApprovalRequest():
                    self._show(pending)
                    self._ask(event)
                case ApprovalAnswer():
                    self._show(pending)
                    self._settle(event)
                case UserMessage() if not self._is_titled:
                    self._is_titled = True
                    self.update({"sessionUpdate": "session_info_update", "title": titled(text_of(event.content))})
                case Reconfigured():
                    self.show_options()
                case Done():
                    self._show(pending)
                    self._end_run()
                case _:
                    pending.append(event)
        self._show(pending)

    def _show(self, events: list[AgentEvent]) -> None:
        """Send the updates for ``events`` and empty the list."""
        for update in self._updates.updates(events, window=self.session.agent.model.context_window):
            self.update(update)
        events.clear()

    def update(self, update: acp.Update) -> None:
        """Send a session update."""
        self._server.notify("session/update", {"sessionId": self.id, "update": update})

    # Prompts.

    def prompt(self, reply: PromptReply, asked: acp.Prompt) -> None:
        """Enqueue a prompt, or run an extension's command; the reply follows. Raise AgentError."""
        text, images = acp.prompt_of(asked.prompt)
        self.is_unused = False
        self.session.extensions.start()
        name, _, args = text.removeprefix("/").partition(" ")
        if text.startswith("/") and name in {one.name for one in self.session.extensions.commands()}:
            self._server.spawn(self._run_command(reply, name, args.strip()))
        elif asked.steers:
            self.session.steer(text, images, observer=reply)
        else:
            reply.job = self.session.prompt(text, images, observer=reply)

    async def _run_command(self, reply: PromptReply, name: str, args: str) -> None:
        try:
            answer = await self.session.run_command(name, args)
            if answer.prompt:
                reply.job = self.session.prompt(answer.prompt, observer=reply)
                return
        except AgentError as problem:
            reply.dropped(problem)
            return
        if said := answer.display or answer.insert:
            self.update(acp.chunk("agent_message_chunk", said))
        reply.stop("end_turn")

    def run_started(self, reply: PromptReply) -> None:
        """Take note that the next run, or the running one, answers a prompt."""
        if not self._answered_by_run:
            self._summary = RunSummary()
        self._answered_by_run.append(reply)

    def _end_run(self) -> None:
        answered, self._answered_by_run = self._answered_by_run, []
        job = next((reply.job for reply in answered if reply.job is not None), None)
        problem = None if job is None else job.error
        for reply in answered:
            if isinstance(problem, StepsExhausted):
                reply.stop("max_turn_requests")
            elif isinstance(problem, ContentRefused):
                reply.stop("refusal")
            elif problem is not None or self._summary.error is not None:
                reply.fail(problem or AgentError(self._summary.error or ""))
            else:
                reply.stop(_STOPS[self._summary.stop or "end_turn"])

    # Approvals.

    def _ask(self, request: ApprovalRequest) -> None:
        """Send an approval request to the client."""
        card = self._updates.cards.asked(request)
        params = {"sessionId": self.id, "toolCall": card, "options": acp.PERMISSION_OPTIONS}

        def answer(result: msgspec.Raw | None) -> None:
            with suppress(AgentError):  # The deadline has passed, or the run was aborted.
                self.session.approvals.answer(request.id, acp.decision_of(result))

        number = self._server.request("session/request_permission", params, answer)
        self._asked[request.id] = number, card["toolCallId"]

    def _settle(self, answer: ApprovalAnswer) -> None:
        """Withdraw a request that the client need not answer any more; the card of an allowed call continues."""
        if (asked := self._asked.pop(answer.id, None)) is None:
            return
        number, call_id = asked
        self._server.withdraw(number)
        if answer.decision in ("allow_once", "allow_always"):
            self.update(acp.card_update(call_id, "in_progress"))

    # Settings.

    def options(self) -> list[dict[str, Any]]:
        """Return the settings that the client can change, with their values."""
        agent = self.session.agent
        models = {model.id: model.name or model.id for model in (*agent.catalogue.models, agent.model)}
        options = [
            _select("mode", "Mode", "mode", self.modes.current.id, {one.id: one.name for one in self.modes.known}),
            _select("model", "Model", "model", agent.model.id, models),
        ]
        if agent.model.reasoning:
            levels = {level: level.capitalize() for level in _REASONING}
            options.append(_select("reasoning", "Reasoning", "thought_level", agent.reasoning, levels))
        return options

    def settings(self) -> dict[str, Any]:
        """Return the modes and options for the response that opens the session."""
        self._shown_options = self.options()
        modes = [{"id": one.id, "name": one.name, "description": one.description} for one in self.modes.known]
        return {
            "modes": {"currentModeId": self.modes.current.id, "availableModes": modes},
            "configOptions": self._shown_options,
        }

    def show_options(self) -> None:
        """Send the options if they differ from the last ones sent."""
        if (options := self.options()) != self._shown_options:
            self._shown_options = options
            self.update({"sessionUpdate": "config_option_update", "configOptions": options})

    def set_option(self, option: str, value: str) -> list[dict[str, Any]]:
        """Change a setting and return all of them. Raise UserError."""
        match option:
            case "mode":
                self.modes.use(value)
                self.update({"sessionUpdate": "current_mode_update", "currentModeId": value})
            case "model":
                self.session.use_model(value)
            case "reasoning":
                self.session.use_reasoning(value)
            case _:
                raise UserError(f"there is no option {option!r}; there are: mode, model, reasoning")
        self._shown_options = self.options()
        return self._shown_options

    async def show_commands(self) -> None:
        """Send the commands of extensions once these have started, unless the session was closed meanwhile."""
        self.session.extensions.start()
        try:
            commands = [{"name": one.name, "description": one.description} for one in await self.session.commands()]
        except AgentError as problem:
            log.warning("session %r: no commands of extensions: %s", self.id, problem)
            return
        if commands and self._server.has(self):
            self.update({"sessionUpdate": "available_commands_update", "availableCommands": commands})

    async def replay(self) -> None:
        """Send the conversation so far, at the client's pace."""
        cards = acp.ToolCards(self.session.agent.cwd)
        for update in acp.replay(tuple(self.session.history.transcript.messages), cards):
            self.update(update)
            if self.full:
                await self.room()

    async def close(self) -> None:
        """Abort the run, answer what waits and close the session."""
        self.session.abort(queue=True)
        await self.session.worker.finish()
        self._unsubscribe()
        await self.session.close()


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

    def __init__(self, server: AcpServer, request: Request, session: AcpSession) -> None:
        self._server = server
        self._id = request.id
        self.session = session
        self.job: PromptJob | None = None
        self._is_answered = False

    def started(self) -> None:
        self.session.run_started(self)

    def dropped(self, why: AgentError) -> None:
        if isinstance(why, RunCancelled):
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
        self._answer(lambda id_: encode_error(id_, _rpc_error(problem)))

    def cancel(self) -> None:
        """Cancel the prompt: abort its run, or drop it from the queue."""
        if self.job is not None:
            self.session.session.worker.cancel(self.job)
        else:  # A command of an extension, or a message that steers a run.
            self.session.session.abort()

    def _answer(self, frame: Callable[[msgspec.Raw], bytes]) -> None:
        if not self._is_answered:
            self._is_answered = True
            self._server.prompt_answered(self._id)
            if self._id is not None:
                self._server.output.write(frame(self._id))


class AcpServer:
    """One client and its sessions. ``config`` and ``overrides`` are those of the command line; ``mode`` the first mode
    of each session, None for the configured one.
    """

    def __init__(
        self,
        config: Config,
        overrides: Overrides,
        greeting: AcpGreeting,
        output: StreamWriter,
        resources: SharedResources,
        *,
        mode: str | None = None,
    ) -> None:
        self.greeting = greeting
        self.output = output
        self.input_ended = False
        self._config = config
        self._overrides = overrides
        self._resources = resources
        self._mode = mode
        #: Open sessions, the least recently used first.
        self._sessions: dict[str, AcpSession] = {}
        #: Requests being answered, by their id.
        self._requests: dict[bytes, asyncio.Task[None]] = {}
        self._prompts: dict[bytes, PromptReply] = {}
        self._background: set[asyncio.Task[None]] = set()
        #: Our own requests: what happens with the result, None for an error.
        self._replies: dict[int, Callable[[msgspec.Raw | None], None]] = {}
        self._last_request = 0

    @property
    def sessions(self) -> Sequence[Session]:
        """The open sessions."""
        return [one.session for one in self._sessions.values()]

    # Frames to the client.

    def notify(self, method: str, params: Any) -> None:
        """Send a notification."""
        self.output.write(encode_notification(method, params))

    def request(self, method: str, params: Any, answer: Callable[[msgspec.Raw | None], None]) -> int:
        """Send a request and return its id; ``answer`` is called with the result, None for an error."""
        self._last_request += 1
        self._replies[self._last_request] = answer
        self.output.write(encode_request(method, params, self._last_request))
        return self._last_request

    def withdraw(self, number: int) -> None:
        """Cancel a request of ours; a late answer is ignored."""
        if self._replies.pop(number, None) is not None:
            self.notify("$/cancel_request", {"requestId": number})

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` beside the requests."""
        task = asyncio.get_running_loop().create_task(work, name="zot acp work")
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def has(self, session: AcpSession) -> bool:
        """True if a session is open."""
        return self._sessions.get(session.id) is session

    def prompt_answered(self, request_id: msgspec.Raw | None) -> None:
        """Forget a prompt that has its answer."""
        self._prompts.pop(bytes(request_id or b""), None)

    # Frames from the client.

    def take(self, line: bytes | TooLong) -> None:
        """Handle one line."""
        if isinstance(line, TooLong):
            self.output.write(encode_error(NULL, frame_too_large(line.limit)))
            return
        match decode(line):
            case Bad() as bad:
                self.output.write(encode_error(bad.id, bad))
            case Reply() as reply:
                self._take_reply(reply)
            case Request() as request:
                self._take_request(request)
            case None:
                pass  # A malformed reply matches none of our requests.

    def _take_reply(self, reply: Reply) -> None:
        try:
            number = msgspec.json.decode(reply.id, type=int)
        except UNREADABLE:
            return
        if (answer := self._replies.pop(number, None)) is not None:
            answer(None if reply.error is not None else reply.result)

    def _take_request(self, request: Request) -> None:
        if request.method == "initialize":
            self.output.write(self.greeting.answer(request))
            return
        try:
            if request.method not in acp.METHODS:
                raise RpcError(METHOD_NOT_FOUND, f"unknown method {request.method!r}")
            if not self.greeting.initialized:
                raise RpcError(INVALID_REQUEST, "the first request must be initialize")
            self._perform(request, acp.params_of(request))
        except Exception as problem:
            # The outermost boundary: an unexpected error fails this request, not the connection.
            self._fail(request, problem)

    def _perform(self, request: Request, params: Any) -> None:
        match params:
            case acp.Prompt():
                self._prompt(request, params)
            case acp.CancelRequest(request_id=request_id):
                self._cancel_request(bytes(request_id))
            case acp.OfSession(session_id=session_id) if request.method == "session/cancel":
                self._open_session(session_id).session.abort(queue=True)
                self._succeed(request, {})
            case acp.SetMode(session_id=session_id, mode_id=mode_id):
                session = self._open_session(session_id)
                session.modes.use(mode_id)
                self._succeed(request, {})
                session.show_options()
            case acp.SetConfigOption(session_id=session_id, config_id=option, value=value):
                options = self._open_session(session_id).set_option(option, value)
                self._succeed(request, {"configOptions": options})
            case acp.Authenticate(method_id=method_id):
                if method_id != BY_ENVIRONMENT:
                    raise RpcError(INVALID_PARAMS, f"unknown authentication method {method_id!r}")
                check(self._config)
                self._succeed(request, {})
            case acp.NewSession():
                self._later(request, self._new(request, params))
            case acp.OpenSession():
                self._later(request, self._open(request, params))
            case acp.ListSessions():
                self._later(request, self._list(request, params))
            case acp.OfSession(session_id=session_id) if request.method == "session/close":
                self._later(request, self._close(request, session_id))
            case acp.OfSession(session_id=session_id):
                self._later(request, self._delete(request, session_id))
            case _:
                assert_never(params)

    def _prompt(self, request: Request, params: acp.Prompt) -> None:
        session = self._open_session(params.session_id)
        key = bytes(request.id or b"")
        if request.id is not None and (key in self._prompts or key in self._requests):
            raise RpcError(INVALID_REQUEST, "a request with this id is being answered")
        reply = PromptReply(self, request, session)
        if request.id is not None:
            self._prompts[key] = reply
        try:
            session.prompt(reply, params)
        except BaseException:
            self._prompts.pop(key, None)
            raise

    def _cancel_request(self, request_id: bytes) -> None:
        if (reply := self._prompts.get(request_id)) is not None:
            reply.cancel()
        elif (task := self._requests.get(request_id)) is not None:
            task.cancel()

    def _open_session(self, session_id: str) -> AcpSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise NoSuchSession(f"no session {session_id!r} is open; session/load or session/resume opens it")
        self._sessions[session_id] = self._sessions.pop(session_id)
        return session

    # Requests that are answered later.

    def _later(self, request: Request, work: Coroutine[Any, Any, None]) -> None:
        key = bytes(request.id or b"")
        if len(self._requests) >= _MAX_REQUESTS or key in self._requests or key in self._prompts:
            work.close()
            raise RpcError(INVALID_REQUEST, "this id is in use, or too many requests are being answered")
        task = asyncio.get_running_loop().create_task(self._answer(request, work), name="zot acp answer")
        self._requests[key] = task
        task.add_done_callback(lambda _: self._requests.pop(key, None))

    async def _answer(self, request: Request, work: Awaitable[None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            self._fail(request, RpcError(acp.CANCELLED, "the request was cancelled"))
        except Exception as problem:
            self._fail(request, problem)

    async def _new(self, request: Request, params: acp.NewSession) -> None:
        _check_place(params.cwd, params.mcp_servers)
        check(msgspec.structs.replace(self._config, cwd=params.cwd))
        session = await self._load(new_session_id(), params.cwd, is_new=True)
        self._succeed(request, {"sessionId": session.id, **session.settings()})
        self.spawn(session.show_commands())

    async def _open(self, request: Request, params: acp.OpenSession) -> None:
        """Answer `session/load`, `session/resume` and `session/fork`."""
        _check_place(params.cwd, params.mcp_servers)
        session_id = params.session_id
        if session_id.startswith(HOSTED):
            raise NoSuchSession(f"there is no session {session_id!r}")
        session = self._sessions.get(session_id) or await self._load(session_id, params.cwd)
        forked: dict[str, str] = {}
        if request.method == "session/fork":
            session = await self._load(await session.session.fork(), params.cwd)
            forked = {"sessionId": session.id}
        if request.method == "session/load":
            await session.replay()
        self._succeed(request, {**forked, **session.settings()})
        self.spawn(session.show_commands())

    async def _load(self, session_id: str, cwd: str, *, is_new: bool = False) -> AcpSession:
        """Open a session that is not open. Raise AgentError."""
        await self._make_room()
        overrides = self._overrides
        if not is_new:
            recorded = (await self._journal_does(lambda journal: journal.find(session_id))).cwd
            if not _is_same_place(recorded, cwd):
                overrides = overrides.including("cwd")
        config = msgspec.structs.replace(self._config, session=session_id, cwd=cwd)
        request = OpenRequest(config=config, overrides=overrides, creates=is_new)
        session = await open_session(request, self._resources)
        if session_id in self._sessions:  # Another request has opened it meanwhile.
            await session.close()
            return self._sessions[session_id]
        made = self._sessions[session_id] = AcpSession(self, session_id, session, self._mode, is_new=is_new)
        return made

    async def _make_room(self) -> None:
        if len(self._sessions) < _MAX_SESSIONS:
            return
        idle = next((one for one in self._sessions.values() if one.session.is_resting), None)
        if idle is None:
            raise TooManySessions(f"{_MAX_SESSIONS} sessions are busy already; close one, or wait")
        await self._unload(idle.id)

    async def _unload(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            await session.close()
            await self._forget_unused([session])

    async def _forget_unused(self, sessions: Sequence[AcpSession]) -> None:
        """Remove closed sessions from the journal that never had a prompt: editors open them freely."""
        for session in sessions:
            if session.is_unused:
                with suppress(AgentError):
                    await self._journal_does(partial(Journal.delete, session_id=session.id))

    async def _list(self, request: Request, params: acp.ListSessions) -> None:
        start = _page_start(params.cursor)
        cwd = _normal(params.cwd)
        records = await self._journal_does(lambda journal: journal.sessions(cwd=cwd))
        shown = [one for one in records if one.messages and not one.id.startswith(HOSTED) and os.path.isabs(one.cwd)]
        page: dict[str, Any] = {
            "sessions": [
                {"sessionId": one.id, "cwd": one.cwd, "title": one.title or None, "updatedAt": one.updated}
                for one in shown[start : start + _PAGE]
            ]
        }
        if start + _PAGE < len(shown):
            page["nextCursor"] = str(start + _PAGE)
        self._succeed(request, page)

    async def _close(self, request: Request, session_id: str) -> None:
        self._open_session(session_id)
        await self._surely(self._unload(session_id))
        self._succeed(request, {})

    async def _delete(self, request: Request, session_id: str) -> None:
        await self._surely(self._remove(session_id))
        self._succeed(request, {})

    async def _remove(self, session_id: str) -> None:
        """Close a session and delete it from the journal."""
        if (session := self._sessions.pop(session_id, None)) is not None:
            await session.close()
        if not session_id.startswith(HOSTED):
            with suppress(NoSuchSession):  # Deleted already: nothing to do.
                await self._journal_does(lambda journal: journal.delete(session_id))

    async def _surely(self, work: Coroutine[Any, Any, None]) -> None:
        """Await ``work``, which continues if the request is cancelled."""
        await asyncio.shield(self.spawn(work))

    async def _journal_does(self, action: Callable[[Journal], Awaitable[Any]]) -> Any:
        journal = await Journal.open(journal_path(self._config))
        try:
            return await action(journal)
        finally:
            await journal.close()

    def _succeed(self, request: Request, result: dict[str, Any]) -> None:
        if request.id is not None:
            self.output.write(encode_result(request.id, result))

    def _fail(self, request: Request, problem: Exception) -> None:
        if request.id is not None:
            known = problem if isinstance(problem, RpcError) else explained(problem, log, request.method)
            self.output.write(encode_error(request.id, _rpc_error(known)))

    # Its end.

    def end_input(self) -> None:
        """Handle the end of the client's input: it can no longer answer approvals."""
        self.input_ended = True
        for session in self.sessions:
            session.worker.approver_left()

    async def finish(self) -> None:
        """Wait until every request has been answered."""
        while waiting := [*self._requests.values(), *self._background]:
            await asyncio.wait(waiting)
        for session in self.sessions:
            await session.worker.finish()

    async def forget_unused(self) -> None:
        """Remove the sessions without a message, within a limit, once all are closed."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._forget_unused(list(self._sessions.values())), _FORGET_S)


def _check_place(cwd: str, mcp_servers: list[Any] | None) -> None:
    """Raise RpcError unless a session can be opened in ``cwd`` with these servers."""
    if not os.path.isabs(cwd) or not os.path.isdir(cwd):
        raise RpcError(INVALID_PARAMS, f"cwd must be an absolute path of a directory that exists, not {cwd!r}")
    if mcp_servers:
        raise RpcError(INVALID_PARAMS, _NO_MCP)


def _page_start(cursor: str | None) -> int:
    """Return the number of the first session of a page. Raise RpcError for a cursor that no list returned."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 10):
        raise RpcError(INVALID_PARAMS, f"session/list: {cursor!r} is not a valid cursor")
    return int(cursor)


def _normal(path: str | None) -> str | None:
    return None if path is None else os.path.normpath(path)


def _is_same_place(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _rpc_error(problem: AgentError) -> RpcError:
    """Return the error for the client."""
    match problem:
        case RpcError():
            return problem
        case KeyMissing() | AuthFailed():
            return RpcError(acp.AUTH_REQUIRED, str(problem))
        case NoSuchSession():
            return RpcError(acp.NOT_FOUND, str(problem))
        case UserError():
            return RpcError(INVALID_PARAMS, str(problem))
        case _:
            return RpcError(INTERNAL_ERROR, str(problem))


def _select(option: str, name: str, category: str, value: str, values: dict[str, str]) -> dict[str, Any]:
    return {
        "type": "select",
        "id": option,
        "name": name,
        "category": category,
        "currentValue": value,
        "options": [{"value": one, "name": shown} for one, shown in values.items()],
    }


def _old_text(path: str) -> str | None:
    """Return the text of a file before a call replaces it; None if it is missing, large or no text.

    Called when the call is stored, and no tool has an effect before that.
    """
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_OLD_BYTES:
            return None
        with open(path, "rb") as file:
            return file.read().decode()
    except (OSError, ValueError):
        return None


def serve_stdio(
    config: Config,
    greeting: AcpGreeting,
    lines: LineSplitter,
    waiting: Sequence[bytes | TooLong],
    descriptors: tuple[int, int],
    *,
    overrides: Overrides,
    mode: str | None,
) -> int:
    """Serve the client in an event loop of its own. Return the exit code."""

    async def run() -> int:
        output, resources = StreamWriter(descriptors[1]), SharedResources(own_process=True)
        server = AcpServer(config, overrides, greeting, output, resources, mode=mode)
        return await _serve(server, resources, lines, waiting, descriptors)

    return asyncio.run(run())


async def _serve(
    server: AcpServer,
    resources: SharedResources,
    lines: LineSplitter,
    waiting: Sequence[bytes | TooLong],
    descriptors: tuple[int, int],
) -> int:
    """Serve the client until its input ends, a signal arrives, or it stops reading. Return the exit code."""
    incoming, outgoing = descriptors
    output = server.output
    lifetime = Lifetime(outgoing)
    output.on_broken(lifetime.end)

    async def converse() -> None:
        for line in waiting:
            server.take(line)
        await pump(read_chunks(incoming), lines, server.take, output)
        lifetime.input_ended = True
        server.end_input()
        await server.finish()
        await output.drained()

    if await lifetime.bound(converse()):
        await close_in_time(server.sessions, lifetime)
    await wind_down(server.sessions, resources, output)
    await server.forget_unused()
    output.close()
    return 0 if output.problem is None else report_write_failure(output.problem)
