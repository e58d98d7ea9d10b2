"""The agent as two MCP tools: `zot` runs a prompt in a session, `zot_reply` continues it.

The session's id is the handle of everything: questions to the client and tasks name the session and the row in which a
run begins, so a client that comes back after a restart finds its run in the journal.
"""

from __future__ import annotations

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import msgspec

from zot.encoding import UNREADABLE, encode, explain
from zot.errors import AgentError, NoSuchSession, RunCancelled, UserError
from zot.events import AgentEvent, ApprovalAnswer, ApprovalRequest, Done, ToolCall, TurnStart, UserMessage
from zot.journal import replay
from zot.journal.connection import Connection
from zot.journal.recorded_sessions import SessionJournal
from zot.messages import timestamp
from zot.run_summary import RunSummary
from zot.runtime.pool import NewSessionSettings, SessionPool
from zot.serve.mcp.server import McpExchange, McpService
from zot.session.history import Batch, Subscriber
from zot.session.queue import JobObserver, PromptJob
from zot.session.session import Session, new_session_id
from zot.text import printable_line
from zot.wire.daemon import Grant
from zot.wire.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, RpcError
from zot.wire.mcp_server import AGENT, TASKS, missing_capability, read_params

#: A call that takes longer becomes a task, if the client has these.
_TASK_AFTER_S: Final = 2.0
_POLL_MS: Final = 1000
#: How often it is looked whether a queued run has begun, so that it can become a task.
_BEGIN_S: Final = 0.25
#: Events read at a time.
_PIECE: Final = 1024
#: The most characters of a call's arguments in a question, and of a line of progress.
_MAX_ARGUMENTS: Final = 16_384
_MAX_PROGRESS: Final = 200
_DECISIONS: Final = ("allow_once", "allow_always", "reject")

_PROMPT: Final = {"type": "string", "description": "What the agent should do."}
_OUTPUT: Final = {
    "type": "object",
    "properties": {
        "session": {"type": "string", "description": "The id of the session, for zot_reply."},
        "text": {"type": "string", "description": "The agent's answer, or why there is none."},
        "stop": {"type": "string", "description": "How the run ended: end_turn, length, error or aborted."},
        "denied": {"type": "array", "items": {"type": "string"}, "description": "Calls that no user allowed."},
    },
    "required": ["session", "text", "stop", "denied"],
}
_TOOLS: Final = (
    {
        "name": "zot",
        "title": "Run the zot coding agent",
        "description": (
            "Give a task to a coding agent that reads and changes files and runs commands, and return its answer and"
            " the id of its session."
        ),
        "inputSchema": {
            "type": "object",
            "properties": {
                "prompt": _PROMPT,
                "cwd": {"type": "string", "description": "The directory of a new session, absolute."},
                "agent": {"type": "string", "description": "The name of a configured agent, for a new session."},
                "session": {
                    "type": "string",
                    "description": "The id of a session: it is continued, or created if there is none. Default: new.",
                },
            },
            "required": ["prompt"],
            "additionalProperties": False,
        },
        "outputSchema": _OUTPUT,
        "annotations": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True},
    },
    {
        "name": "zot_reply",
        "title": "Continue a session of zot",
        "description": "Send the next prompt to a session of the coding agent, and return its answer.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "session": {"type": "string", "description": "The id that zot returned."},
                "prompt": _PROMPT,
            },
            "required": ["session", "prompt"],
            "additionalProperties": False,
        },
        "outputSchema": _OUTPUT,
        "annotations": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True},
    },
)


class _Call(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    input_responses: dict[str, Any] | None = None
    request_state: str | None = None


class _Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prompt: str
    cwd: str | None = None
    agent: str | None = None
    session: str | None = None


class _Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    session: str
    prompt: str


class _OfTask(msgspec.Struct, frozen=True, rename="camel"):
    task_id: str
    input_responses: dict[str, Any] | None = None


class RunHandle(msgspec.Struct, frozen=True):
    """A run: its session, and the row of its first event."""

    session: str
    seq: int

    def __str__(self) -> str:
        return f"{self.session}#{self.seq}"

    @classmethod
    def parse(cls, text: str) -> RunHandle:
        """Return the handle in a text. Raise RpcError."""
        session, mark, seq = text.rpartition("#")
        if not (mark and session and seq.isascii() and seq.isdecimal() and len(seq) < 19):
            raise RpcError(INVALID_PARAMS, "there is no such run")
        return cls(session, int(seq))


_calls: msgspec.json.Decoder[_Call] = msgspec.json.Decoder(_Call)
_runs: msgspec.json.Decoder[_Run] = msgspec.json.Decoder(_Run)
_replies: msgspec.json.Decoder[_Reply] = msgspec.json.Decoder(_Reply)
_tasks: msgspec.json.Decoder[_OfTask] = msgspec.json.Decoder(_OfTask)


class McpSessions(ABC):
    """The sessions that clients can use. Methods raise AgentError."""

    @abstractmethod
    async def opened(self) -> tuple[SessionPool, SessionJournal]:
        """Return the pool and the journal, opened by the first call."""

    @abstractmethod
    async def check_new(self, grant: Grant, session_id: str, wanted: NewSessionSettings) -> NewSessionSettings:
        """Return how a session is opened for a client, or refuse it."""

    @abstractmethod
    def check(self, grant: Grant, session_id: str, session: Session) -> None:
        """Refuse a session that a client may not use."""

    @abstractmethod
    def is_followed(self, session_id: str) -> bool:
        """True if another client follows a session, and so can answer its approval requests."""

    @abstractmethod
    def note(self, grant: Grant, method: str, session_id: str, outcome: str) -> None:
        """Record what a client did."""


class RecordedRun:
    """What a run has done so far."""

    def __init__(self) -> None:
        self.summary = RunSummary()
        self.is_over = False
        #: The open approval request.
        self.asked: ApprovalRequest | None = None
        #: Summaries of the calls that were not allowed.
        self.denied: list[str] = []
        self.begun = self.changed = ""
        #: The name of the token that prompted it, "" on this machine.
        self.by = ""

    def take(self, events: Sequence[AgentEvent]) -> None:
        """Add events."""
        self.summary.take(events)
        for event in events:
            match event:
                case UserMessage(time=when, by=by) if not self.begun:
                    self.begun, self.by = when, by
                case ApprovalRequest():
                    self.asked = event
                case ApprovalAnswer(id=request_id, decision=decision):
                    if self.asked is not None and self.asked.id == request_id:
                        if not decision.startswith("allow"):
                            self.denied.append(f"{self.asked.summary}: {_REASONS[decision]}")
                        self.asked = None
                case Done():
                    self.is_over = True
                case _:
                    pass

    @property
    def was_aborted(self) -> bool:
        """True if it was aborted."""
        return self.is_over and self.summary.stop == "aborted"


_REASONS: Final[Mapping[str, str]] = {
    "reject": "refused",
    "expired": "no user answered in time",
    "unanswerable": "no user could be asked, because the client has no elicitation",
    "aborted": "the run was aborted",
}


class FollowedRun(Subscriber, JobObserver):
    """A run that a client waits for: its record, and a signal for each change."""

    def __init__(self, session: Session, exchange: McpExchange, *, can_ask: bool) -> None:
        self.run = RecordedRun()
        #: The rows of its first event, and of the newest one.
        self.seq = self.upto = 0
        self.problem: AgentError | None = None
        self.is_parked = False
        self.changed = asyncio.Event()
        #: Whether its client no longer waits, but asks from time to time; ``on_end`` is then called at its end.
        self.is_task = False
        self.on_end: Callable[[], object] = lambda: None
        self.job: PromptJob | None = None
        self._session = session
        self._exchange = exchange
        self._can_ask = can_ask
        self._held: list[Batch] | None = None
        self._leave: Callable[[], None] = lambda: None

    def attach(self) -> None:
        """Follow from now on, and hold events back until `begin`."""
        self._held = []
        self._leave = self._session.history.subscribe(self)

    def begin(self, seq: int, run: RecordedRun, upto: int) -> None:
        """Continue from the rows up to ``upto`` of the run that begins at ``seq``."""
        held, self._held = self._held or [], None
        self.seq, self.run = seq, run
        for batch in held:
            if batch.seq > upto:
                self.deliver(batch)
        self.changed.set()

    def leave(self) -> None:
        """Follow no longer."""
        self._leave()

    @property
    def is_ended(self) -> bool:
        """True if there is no more to come here."""
        return self.run.is_over or self.problem is not None or self.is_parked

    def cancel(self) -> None:
        """Abort the run, or drop the prompt."""
        if self.is_ended:
            return
        if self.job is not None:
            self._session.worker.cancel(self.job)
        else:
            self._session.abort()

    # Job.

    def started(self) -> None:
        self._leave = self._session.history.subscribe(self)

    def dropped(self, why: AgentError) -> None:
        self.problem = why
        self.changed.set()

    def parked(self) -> None:
        self.is_parked = True
        self.changed.set()

    # Subscriber.

    @property
    def can_approve(self) -> bool:
        return self._can_ask

    def deliver(self, batch: Batch) -> None:
        if self._held is not None:
            self._held.append(batch)
            return
        self.seq, self.upto = self.seq or batch.seq, batch.last
        self.run.take(batch.events)
        for event in () if self.is_task else batch.events:
            match event:
                case TurnStart(step=step):
                    self._exchange.progress(f"step {step}")
                case ToolCall(name=name, args=args):
                    self._exchange.progress(printable_line(f"{name} {encode(args).decode()}", _MAX_PROGRESS))
                case _:
                    pass
        if any(isinstance(event, ApprovalRequest | ApprovalAnswer | Done) for event in batch.events):
            self.changed.set()
        if self.run.is_over and self.is_task:
            self._leave()
            self.on_end()


class AgentService(McpService):
    """The tools, for every client that ``sessions`` serves."""

    def __init__(self, sessions: McpSessions, *, task_after_s: float = _TASK_AFTER_S) -> None:
        handlers = {
            "tools/list": self._list,
            "tools/call": self._call,
            "tasks/get": self._get_task,
            "tasks/update": self._update_task,
            "tasks/cancel": self._cancel_task,
        }
        super().__init__(AGENT, handlers)
        self._sessions = sessions
        self._task_after_s = task_after_s
        #: Tasks whose runs go on here; of others, the journal has everything.
        self._live: dict[RunHandle, FollowedRun] = {}

    async def _list(self, exchange: McpExchange) -> Mapping[str, Any]:
        return {"tools": _TOOLS}

    # Calls.

    async def _call(self, exchange: McpExchange) -> Mapping[str, Any]:
        called = read_params(_calls, exchange.request)
        try:
            return await self._called(exchange, called)
        except RpcError as problem:
            self._sessions.note(exchange.grant, "tools/call", "", str(problem.code))
            raise

    async def _called(self, exchange: McpExchange, called: _Call) -> Mapping[str, Any]:
        _check_role(exchange.grant, "prompt")
        if called.name not in ("zot", "zot_reply"):
            raise RpcError(INVALID_PARAMS, f"there is no tool {called.name[:100]!r}; there are zot and zot_reply")
        try:
            if called.request_state is not None:
                handle = RunHandle.parse(called.request_state)
                return await self._resume(exchange, handle, called.input_responses or {})
            if called.name == "zot":
                run = _runs.decode(called.arguments)
                continues = run.session and run.agent is None and await self._is_open(run.session)
                wanted = None if continues else NewSessionSettings(run.agent or "default", run.cwd)
                return await self._run(exchange, run.session or new_session_id(), run.prompt, wanted)
            reply = _replies.decode(called.arguments)
            return await self._run(exchange, reply.session, reply.prompt, None)
        except UNREADABLE as problem:
            return _failed("", f"{called.name}: {explain(problem)}")

    async def _run(
        self, exchange: McpExchange, session_id: str, text: str, wanted: NewSessionSettings | None
    ) -> Mapping[str, Any]:
        """Run a prompt in a session, which is created if ``wanted`` and missing."""
        try:
            async with self._use(exchange.grant, session_id, wanted) as session:
                followed = FollowedRun(session, exchange, can_ask=_can_ask(exchange))
                prompt_id = os.urandom(8).hex()
                followed.job = session.prompt(text, prompt_id=prompt_id, by=exchange.grant.name, observer=followed)
                return await self._follow(exchange, session_id, session, followed)
        except RpcError:
            raise
        except AgentError as problem:  # The model that called the tool can act on it.
            self._sessions.note(exchange.grant, "tools/call", session_id, type(problem).__name__)
            return _failed(session_id if wanted is None else "", str(problem))

    async def _resume(
        self, exchange: McpExchange, handle: RunHandle, responses: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Answer what a run asked, and follow it again."""
        async with self._use(exchange.grant, handle.session, None) as session:
            followed = FollowedRun(session, exchange, can_ask=_can_ask(exchange))
            followed.attach()
            try:
                run, upto = await self._recorded(exchange.grant, handle)
            except BaseException:
                followed.leave()
                raise
            followed.begin(handle.seq, run, upto)
            if not followed.run.is_over and not session.worker.busy:
                followed.leave()
                return _failed(handle.session, "the run is in another process; ask again later")
            if self._answer(exchange.grant, session, followed.run, responses):
                await self._until_answered(followed, followed.run.asked)
            return await self._follow(exchange, handle.session, session, followed)

    async def _follow(
        self, exchange: McpExchange, session_id: str, session: Session, followed: FollowedRun
    ) -> Mapping[str, Any]:
        """Wait until a run ends, asks its client, or has become a task."""
        deadline = time.monotonic() + self._task_after_s if exchange.client.has_tasks else None
        try:
            while not followed.is_ended:
                if deadline is not None and followed.seq and time.monotonic() >= deadline:
                    return {"resultType": "task", **self._make_task(RunHandle(session_id, followed.seq), followed)}
                if (asked := followed.run.asked) is not None:
                    if (question := await self._ask(exchange, session_id, session, followed, asked)) is not None:
                        return question
                    continue
                followed.changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if deadline is None else max(0.0, deadline - time.monotonic())):
                        await followed.changed.wait()
                if deadline is not None and not followed.seq:  # A task needs the row in which its run begins.
                    deadline = max(deadline, time.monotonic() + _BEGIN_S)
        except asyncio.CancelledError:
            followed.cancel()
            self._sessions.note(exchange.grant, "tools/call", session_id, "cancelled")
            raise
        finally:
            if not followed.is_task:
                followed.leave()
        return self._outcome(exchange.grant, session_id, followed)

    def _outcome(self, grant: Grant, session_id: str, followed: FollowedRun) -> Mapping[str, Any]:
        if followed.is_parked:
            return _failed(session_id, "zot stopped while a call waited for approval; zot_reply continues the session")
        if followed.problem is not None and not isinstance(followed.problem, RunCancelled):
            raise followed.problem
        result = _finished(session_id, followed.run)
        self._sessions.note(grant, "tools/call", session_id, result["structuredContent"]["stop"])
        return result

    def _make_task(self, handle: RunHandle, followed: FollowedRun) -> Mapping[str, Any]:
        """Follow a run until its end, without its client."""
        followed.is_task = True
        self._live[handle] = followed
        followed.on_end = lambda: self._live.pop(handle, None)
        return _task(handle, followed.run)

    # Questions.

    async def _ask(
        self, exchange: McpExchange, session_id: str, session: Session, followed: FollowedRun, asked: ApprovalRequest
    ) -> Mapping[str, Any] | None:
        """Ask the client about a call. Return the question for a stateless client; None once it is answered."""
        if not _can_ask(exchange):
            if not self._sessions.is_followed(session_id):
                session.approvals.give_up("unanswerable")
            await self._until_answered(followed, asked)
            return None
        if exchange.client.is_stateless:
            handle = RunHandle(session_id, followed.seq)
            return {"resultType": "input_required", "inputRequests": _questions(asked), "requestState": str(handle)}
        answering = asyncio.ensure_future(exchange.ask("elicitation/create", _form(asked)))
        answered = asyncio.ensure_future(self._until_answered(followed, asked))
        try:
            await asyncio.wait({answering, answered}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                decision = _decision(answering.result()) or "reject"
                with suppress(AgentError):  # The deadline has passed, or another client was faster.
                    session.approvals.answer(asked.id, decision, by=exchange.grant.name)
                await answered
        finally:
            answering.cancel()
            answered.cancel()
        return None

    async def _until_answered(self, followed: FollowedRun, asked: ApprovalRequest | None) -> None:
        while not followed.is_ended and followed.run.asked is asked:
            followed.changed.clear()
            await followed.changed.wait()

    def _answer(self, grant: Grant, session: Session, run: RecordedRun, responses: Mapping[str, Any]) -> bool:
        """Answer the open approval request with a response of the client. False if there is none that counts."""
        asked = run.asked
        if asked is None or asked.id not in responses or (decision := _decision(responses[asked.id])) is None:
            return False
        _check_role(grant, "approve")
        if decision != "reject" and grant.name in session.worker.approvals.prompted_by:
            _check_role(grant, "self_approve")
        with suppress(UserError):  # It has expired, or another client was faster.
            session.approvals.answer(asked.id, decision, by=grant.name)
            return True
        return False

    # Tasks.

    async def _get_task(self, exchange: McpExchange) -> Mapping[str, Any]:
        handle = self._task_of(exchange)
        async with self._of_task(exchange.grant, handle):
            run, _ = await self._recorded(exchange.grant, handle)
        found = _task(handle, run)
        match found["status"]:
            case "completed":
                return {**found, "result": _finished(handle.session, run)}
            case "input_required":
                assert run.asked is not None
                return {**found, "inputRequests": _questions(run.asked)}
            case _:
                return found

    async def _update_task(self, exchange: McpExchange) -> Mapping[str, Any]:
        handle = self._task_of(exchange)
        asked = read_params(_tasks, exchange.request)
        async with self._of_task(exchange.grant, handle) as session:
            run, _ = await self._recorded(exchange.grant, handle)
            if not run.is_over:
                self._answer(exchange.grant, session, run, asked.input_responses or {})
        return {}

    async def _cancel_task(self, exchange: McpExchange) -> Mapping[str, Any]:
        handle = self._task_of(exchange)
        async with self._of_task(exchange.grant, handle) as session:
            run, _ = await self._recorded(exchange.grant, handle)
            if not run.is_over and session.worker.has_begun:
                session.abort()
                self._sessions.note(exchange.grant, "tasks/cancel", handle.session, "ok")
        return {}

    def _task_of(self, exchange: McpExchange) -> RunHandle:
        if not exchange.client.has_tasks:
            raise missing_capability(extensions={TASKS: {}})
        _check_role(exchange.grant, "prompt")
        return RunHandle.parse(read_params(_tasks, exchange.request).task_id)

    @asynccontextmanager
    async def _of_task(self, grant: Grant, handle: RunHandle) -> AsyncIterator[Session]:
        try:
            async with self._use(grant, handle.session, None) as session:
                yield session
        except NoSuchSession:
            raise RpcError(INVALID_PARAMS, "there is no such run") from None

    # Sessions.

    @asynccontextmanager
    async def _use(self, grant: Grant, session_id: str, wanted: NewSessionSettings | None) -> AsyncIterator[Session]:
        """Use a session. Raise RpcError if the client may not."""
        if not grant.sees(session_id):
            raise RpcError(INVALID_REQUEST, "the token is bound to other sessions")
        pool, _ = await self._sessions.opened()
        if wanted is not None:
            wanted = await self._sessions.check_new(grant, session_id, wanted)
        pool.check_open()
        async with pool.use(session_id, wanted) as session:
            self._sessions.check(grant, session_id, session)
            if wanted is not None and session.agent.name not in ("", wanted.agent):
                raise UserError(f"session {session_id!r} belongs to the agent {session.agent.name!r}")
            yield session

    async def _is_open(self, session_id: str) -> bool:
        """True if a session exists and was not closed: whatever its agent and directory are, it is continued."""
        pool, journal = await self._sessions.opened()
        try:
            await journal.find(session_id)
        except NoSuchSession:
            return False
        return not await pool.is_closed(session_id)

    async def _recorded(self, grant: Grant, handle: RunHandle) -> tuple[RecordedRun, int]:
        """Return what a run has done, and up to which row. Raise RpcError if there is no such run.

        Without the role `view`, a client has the runs that it prompted itself.
        """
        run, upto = await self._found(handle)
        if not run.begun or not (run.by == grant.name or grant.may("view")):
            raise RpcError(INVALID_PARAMS, "there is no such run")
        return run, upto

    async def _found(self, handle: RunHandle) -> tuple[RecordedRun, int]:
        if (live := self._live.get(handle)) is not None and not live.is_ended:
            return live.run, live.upto
        _, journal = await self._sessions.opened()

        def look(connection: Connection) -> tuple[RecordedRun, int]:
            run, upto = RecordedRun(), handle.seq - 1
            while found := replay.events_after(connection, handle.session, upto, _PIECE):
                if not run.begun and (found[0][0] != handle.seq or not isinstance(found[0][1], UserMessage)):
                    break
                for upto, event in found:
                    run.take((event,))
                    if run.is_over:
                        return run, upto
            return run, upto

        try:
            return await journal.reading(look)
        except NoSuchSession:
            return RecordedRun(), 0


def _check_role(grant: Grant, role: str) -> None:
    if not grant.may(role):
        raise RpcError(INVALID_REQUEST, f"this needs a token with the role {role}")


def _can_ask(exchange: McpExchange) -> bool:
    """True if the client can ask a person, whose answer counts: its own token prompted the run."""
    return exchange.client.can_elicit and exchange.grant.may("approve") and exchange.grant.may("self_approve")


def _questions(asked: ApprovalRequest) -> Mapping[str, Any]:
    return {asked.id: {"method": "elicitation/create", "params": _form(asked)}}


def _form(asked: ApprovalRequest) -> Mapping[str, Any]:
    """Return the question about a call, with its arguments."""
    arguments = encode(asked.args).decode()
    more = len(arguments) - _MAX_ARGUMENTS
    shown = arguments if more <= 0 else f"{arguments[:_MAX_ARGUMENTS]} ... and {more} more characters"
    facts = f"Tool: {asked.tool}\nArguments: {shown}\nUntil: {asked.deadline}"
    return {
        "message": f"zot asks to run {asked.summary}\n\n{facts}",
        "requestedSchema": {
            "type": "object",
            "properties": {"decision": {"type": "string", "title": "Decision", "enum": [*_DECISIONS]}},
            "required": ["decision"],
        },
    }


def _decision(response: Any) -> str | None:
    """Return the decision in the answer to a form; None if there is none."""
    match response:
        case {"action": "accept", "content": {"decision": str(decision)}} if decision in _DECISIONS:
            return decision
        case {"action": "decline" | "cancel"}:
            return "reject"
        case _:
            return None


def _task(handle: RunHandle, run: RecordedRun) -> dict[str, Any]:
    if run.is_over:
        status = "cancelled" if run.was_aborted else "completed"
    else:
        status = "working" if run.asked is None else "input_required"
    return {
        "taskId": str(handle),
        "status": status,
        "createdAt": run.begun,
        "lastUpdatedAt": timestamp(),
        "ttlMs": None,
        "pollIntervalMs": _POLL_MS,
    }


def _finished(session_id: str, run: RecordedRun) -> dict[str, Any]:
    """Return the result of a run that is over."""
    summary = run.summary
    if summary.error is not None:
        return _result(session_id, summary.error or summary.text, "error", run.denied, is_error=True)
    stop = summary.stop or "aborted"
    text = summary.text or ("the run was aborted" if stop == "aborted" else summary.held_back)
    return _result(session_id, text, stop, run.denied, is_error=stop == "aborted")


def _failed(session_id: str, why: str) -> dict[str, Any]:
    return _result(session_id, why, "error", (), is_error=True)


def _result(session_id: str, text: str, stop: str, denied: Sequence[str], *, is_error: bool) -> dict[str, Any]:
    lines = [f"not run: {one}" for one in denied]
    if session_id:
        lines.append(f"session: {session_id}")
    content = [{"type": "text", "text": one} for one in (text, "\n".join(lines)) if one]
    structured = {"session": session_id, "text": text, "stop": stop, "denied": [*denied]}
    return {"content": content, "structuredContent": structured, "isError": is_error}
