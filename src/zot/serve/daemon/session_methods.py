"""Methods on one session: open, prompt, steer, approve, side questions, attachments."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from zot.errors import AgentError, DirectoryGone, NoSuchAgent, NoSuchSession, RunCancelled, UserError
from zot.events import (
    ApprovalRequest,
    Done,
    QuestionRequest,
    Reconfigured,
    SessionStatus,
    status_of,
)
from zot.files import read_content
from zot.messages import ZERO, ImageBlock
from zot.run_summary import RunSummary
from zot.runtime.pool import NewSessionSettings, SessionPool
from zot.serve.daemon.access import (
    check_approval,
    check_idle,
    check_name,
    check_use,
    evict_if_directory_gone,
    use_session,
)
from zot.serve.daemon.client_connection import AnswerThen, ClientConnection, Deferred, Handler, SlowAnswer, as_rpc_error
from zot.session.history import Batch, Subscriber
from zot.session.queue import JobObserver
from zot.session.session import AbortableWaits, Session, new_session_id
from zot.session.side_question import ask
from zot.session.transcripts import RewindTarget
from zot.tools.images import MAX_IMAGE_BYTES, image_type
from zot.wire import daemon_types
from zot.wire.daemon import Dialect
from zot.wire.daemon_types import Attachment, Used
from zot.wire.jsonrpc import INVALID_PARAMS, SESSION_NOT_FOUND, RpcError
from zot.wire.updates import TurnSummary

if TYPE_CHECKING:
    from zot.serve.daemon.catalog import SessionCatalog

_ABORTED = "the side question was aborted"

_MAX_BYTES = 10 << 20
_MAX_TEXT_BYTES = 256 << 10

#: Attempts to create a session that other clients delete at the same time.
_TRIES = 8


class SideQuestions:
    """Side questions in progress. ``opening`` returns a session with another one's history and no tools."""

    def __init__(self, pool: SessionPool, opening: Callable[[Session], Session]) -> None:
        self._pool = pool
        self._opening = opening
        self._open: dict[tuple[str, str], AbortableWaits] = {}
        self._unnamed = AbortableWaits(_ABORTED)

    @property
    def table(self) -> Mapping[str, Handler]:
        """Handlers by method."""
        return {"session/aside": self._aside}

    def abort(self, session_id: str, name: str) -> bool:
        """Abort a side question by its id. False if there is none."""
        asked = self._open.get((session_id, name))
        if asked is not None:
            asked.abort()
        return asked is not None

    def pause(self) -> None:
        """Abort all side questions."""
        for asked in (self._unnamed, *self._open.values()):
            asked.abort()

    def resume(self) -> None:
        """Continue to answer. Clients must ask aborted questions again."""

    async def _aside(self, connection: ClientConnection, asked: daemon_types.Ask) -> SlowAnswer:
        return SlowAnswer(self._answer(connection, asked))

    async def _answer(self, connection: ClientConnection, asked: daemon_types.Ask) -> daemon_types.Answered:
        place = asked.session_id, asked.prompt_id or ""
        waits = self._open.setdefault(place, AbortableWaits(_ABORTED)) if asked.prompt_id else self._unnamed
        try:
            async with use_session(self._pool, connection, asked.session_id) as session:
                self._pool.check_open()
                answer = await waits.run(ask(session, lambda: self._opening(session), asked.question))
        finally:
            if not waits.is_waiting:
                self._open.pop(place, None)
            connection.daemon.sessions.feed(asked.session_id).deliver_unrecorded(
                Reconfigured()
            )  # The session's usage has changed.
        return daemon_types.Answered(asked.session_id, answer.text, Used.of(answer.usage))


async def read_attachments(
    attachments: Sequence[Attachment], *, is_local: bool
) -> tuple[tuple[str, ...], tuple[ImageBlock, ...]]:
    """Return text to append to the prompt, and images. Raise UserError for files that no model could use."""
    if not attachments:
        return (), ()
    return await asyncio.to_thread(_read_all, attachments, is_local)


def _read_all(attachments: Sequence[Attachment], is_local: bool) -> tuple[tuple[str, ...], tuple[ImageBlock, ...]]:
    words: list[str] = []
    images: list[ImageBlock] = []
    for attachment in attachments:
        data, name = _data(attachment, is_local), _name(attachment)
        kind = image_type(data[:64])
        if kind is not None:
            if len(data) > MAX_IMAGE_BYTES:
                raise UserError(f"{name}: an image may have {MAX_IMAGE_BYTES} bytes at most, and it has {len(data)}")
            images.append(ImageBlock(kind, data))
        else:
            words.append(_as_text(attachment, data, name))
    return tuple(words), tuple(images)


def _data(attachment: Attachment, is_local: bool) -> bytes:
    if attachment.data_b64 is not None:
        data = attachment.data_b64
    elif attachment.path is None:
        raise UserError("an attachment needs a path or base64 data")
    elif not is_local:
        raise UserError("a path means nothing over the network; send the file as base64 data")
    elif not os.path.isabs(attachment.path):
        raise UserError(f"{attachment.path}: the path of an attachment must be absolute")
    else:
        try:
            if os.path.getsize(attachment.path) > _MAX_BYTES:
                raise UserError(f"{attachment.path}: an attachment may have {_MAX_BYTES} bytes at most")
            data = read_content(attachment.path)
        except OSError as problem:
            raise UserError(f"{attachment.path}: {problem.strerror}") from None
    if len(data) > _MAX_BYTES:
        raise UserError(f"{_name(attachment)}: an attachment may have {_MAX_BYTES} bytes at most")
    return data


def _as_text(attachment: Attachment, data: bytes, name: str) -> str:
    """Return a non-image file for the model: its text, or its path."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = None
    if text is not None and len(data) <= _MAX_TEXT_BYTES and "\0" not in text:
        return f"[Document: {name}]\n{text}\n[End of {name}]"
    if attachment.path is not None and attachment.data_b64 is None:
        return f"[Document: {name}] {attachment.path}"
    raise UserError(f"{name}: neither an image nor text of at most {_MAX_TEXT_BYTES} bytes; send its path instead")


def _name(attachment: Attachment) -> str:
    return attachment.filename or os.path.basename(attachment.path or "") or "attachment"


class RunReply(Subscriber, JobObserver):
    """Answers the client that started a run: with its `result` right after its last update, or why it never began.

    It subscribes after the feed, so clients get each event before the answer.
    """

    def __init__(self, connection: ClientConnection, session_id: str, prompt_id: str) -> None:
        self.deferred = Deferred()
        self._connection = connection
        self.session_id = session_id
        self.prompt_id = prompt_id
        self.is_over = False
        self._run = RunSummary()
        self._session: Session | None = None
        self._leave: Callable[[], None] = lambda: None

    def watch(self, session: Session) -> None:
        """Summarize the run once it starts in ``session``."""
        self._session = session

    def started(self) -> None:
        assert self._session is not None
        # The run begins: all events from now on belong to it.
        self._leave = self._session.history.subscribe(self)

    def deliver(self, batch: Batch) -> None:
        self._run.take(batch.events)
        if isinstance(batch.events[-1], Done):
            self.is_over = True
            self._leave()
            turn = TurnSummary.of(self._run)
            self._connection.when_sent(self.session_id, batch.last, lambda: self.deferred.resolve(self._outcome(turn)))

    def dropped(self, why: AgentError) -> None:
        if isinstance(why, RunCancelled):
            nothing = daemon_types.Prompted(self.session_id, "cancelled", "", daemon_types.Used.of(ZERO))
            self._connection.send_turn_aborted(
                self.session_id, self.prompt_id, then=lambda: self.deferred.resolve(nothing)
            )
        else:
            problem = as_rpc_error(why)
            self._connection.send_turn_failed(
                self.session_id, str(why), self.prompt_id, then=lambda: self.deferred.resolve(problem)
            )

    def parked(self) -> None:
        """Resolve without an answer: the run outlives this daemon, and so the connection."""
        self.deferred.resolve(None)

    def result(self, turn: TurnSummary) -> Any:
        """Return the answer to the client. Raise RpcError if the run failed."""
        return turn.reply(self.session_id)

    def _outcome(self, turn: TurnSummary) -> Any:
        try:
            return self.result(turn)
        except RpcError as problem:
            return problem


class _CompactReply(RunReply):
    """Answers the client that started a compaction."""

    def result(self, turn: TurnSummary) -> daemon_types.Compacted:
        prompted = turn.reply(self.session_id)
        return daemon_types.Compacted(self.session_id, prompted.content, prompted.usage)


class _JobReply(JobObserver):
    """Answers a request with ``result()`` when its job starts, or with the reason why it was dropped."""

    def __init__(self, result: Callable[[], Any], code_if_cancelled: int) -> None:
        self.deferred = Deferred()
        self._result = result
        self._code_if_cancelled = code_if_cancelled

    def started(self) -> None:
        self.deferred.resolve(self._result())

    def dropped(self, why: AgentError) -> None:
        self.deferred.resolve(_not_begun(why, self._code_if_cancelled))


class SessionMethods:
    """Handlers of the methods on one session. ``pool`` has loaded sessions, ``catalog`` stored ones."""

    def __init__(self, pool: SessionPool, catalog: SessionCatalog, side_questions: SideQuestions) -> None:
        self._pool = pool
        self._catalog = catalog
        self._side_questions = side_questions

    @property
    def table(self) -> Mapping[str, Handler]:
        """Handlers by method."""
        return {
            "session/new": self._new,
            "session/prompt": self._prompt,
            "session/steer": self._steer,
            "session/take_back": self._take_back,
            "session/cancel": self._cancel,
            "session/approve": self._approve,
            "session/answer": self._answer,
            "session/attach": self._attach,
            "session/detach": self._detach,
            "session/close": self._close,
            "session/kill": self._kill,
            "session/state": self._state,
            "session/context": self._context,
            "session/fork": self._fork,
            "session/compact": self._compact,
            "session/undo_compact": self._undo_compact,
            "session/rewind": self._rewind,
            "session/clear": self._clear,
            "session/allowed": self._allowed,
            "session/forget": self._forget,
        }

    # Open, attach, close.

    async def _new(self, connection: ClientConnection, asked: daemon_types.New) -> AnswerThen:
        wanted = NewSessionSettings(asked.agent_alias, asked.cwd, guarded=not connection.is_local)
        session_id = asked.session_id or new_session_id()
        await check_name(self._catalog, session_id)
        await evict_if_directory_gone(self._pool, connection, session_id, wanted)
        for _ in range(_TRIES):
            with suppress(NoSuchSession):  # Another client has just deleted it: create it again.
                return await self._opened(connection, session_id, wanted)
        return await self._opened(connection, session_id, wanted)

    async def _opened(
        self, connection: ClientConnection, session_id: str, wanted: NewSessionSettings | None
    ) -> AnswerThen:
        # Looking at an existing session must not evict another one.
        async with self._pool.use(session_id, wanted, looks=wanted is None) as session:
            if wanted is not None and session.agent.name not in ("", wanted.agent):
                raise UserError(
                    f"session {session_id!r} belongs to the agent {session.agent.name!r}, not to {wanted.agent!r}"
                )
            seq, epoch = await self._position(connection, session_id)
            opened = daemon_types.Opened(
                session_id=session_id,
                agent_alias=session.agent.name or "default",
                message_count=len(session.history.transcript),
                workspace_dir=session.agent.cwd,
                last_seq=seq,
                epoch=epoch,
            )
            asked = _ids(session.approvals.pending, await self._questions(session_id))
            after = await self._start_after(session_id, seq, asked)
        return AnswerThen(opened, lambda: connection.follow(session_id, after))

    async def _attach(self, connection: ClientConnection, asked: daemon_types.Attach) -> AnswerThen:
        session_id = asked.session_id
        await self._recover(session_id)
        seq, epoch = await self._position(connection, session_id)
        status, question = await self._activity(session_id)
        questions = await self._questions(session_id)
        beginning = await self._start_after(session_id, seq, _ids(question, questions))
        after = beginning if asked.after is None else min(asked.after, seq)
        asked_seq = beginning + 1 if beginning < seq else daemon_types.ABSENT
        wants_events = connection.dialect is Dialect.EVENTS
        last_event = await self._catalog.last_event(session_id, seq) if wants_events else daemon_types.ABSENT
        attached = daemon_types.Attached(
            session_id=session_id,
            last_seq=seq,
            epoch=epoch,
            state=status,
            pending_approval=daemon_types.ABSENT
            if question is None
            else daemon_types.PendingApproval.of(question, time.time()),
            asked_seq=asked_seq,
            last_event_seq=last_event,
            questions=questions or daemon_types.ABSENT,
        )
        return AnswerThen(attached, lambda: connection.follow(session_id, after, again=True))

    async def _detach(self, connection: ClientConnection, asked: daemon_types.OfSession) -> daemon_types.Detached:
        is_detached = connection.unfollow(asked.session_id)
        if not is_detached:
            await self._pool.check_not_closed(asked.session_id)
        return daemon_types.Detached(asked.session_id, is_detached)

    async def _close(self, connection: ClientConnection, asked: daemon_types.OfSession) -> daemon_types.Closed:
        await self._pool.check_not_closed(asked.session_id)
        await check_use(self._pool, connection, asked.session_id)
        await self._evict(connection, asked.session_id)
        return daemon_types.Closed(asked.session_id)

    async def _kill(self, connection: ClientConnection, asked: daemon_types.OfSession) -> daemon_types.Killed:
        await self._pool.check_not_closed(asked.session_id)
        await check_use(self._pool, connection, asked.session_id)
        with suppress(AgentError):
            await self._recover(asked.session_id)
        if (session := self._pool.session(asked.session_id)) is not None:
            session.tools.kill()
        await self._evict(connection, asked.session_id)
        return daemon_types.Killed(asked.session_id)

    async def _evict(self, connection: ClientConnection, session_id: str) -> None:
        async with self._pool.closing(session_id):
            await self._end(connection, session_id)

    async def _end(self, connection: ClientConnection, session_id: str) -> None:
        with suppress(AgentError):  # A session that was deleted or cannot be opened is closed all the same.
            await self._recover(session_id)
        was_loaded = await self._pool.let_go(session_id)
        await connection.daemon.sessions.feed(session_id).caught_up()
        connection.unfollow(session_id)
        try:
            await self._catalog.journal.check_elsewhere(session_id)
        except NoSuchSession:
            if not was_loaded:
                raise

    async def _fork(self, connection: ClientConnection, asked: daemon_types.Fork) -> AnswerThen:
        await check_name(self._catalog, asked.new_session_id or "")
        await self._refreshed(connection, asked.session_id)
        async with use_session(self._pool, connection, asked.session_id) as session:
            made = await session.fork(asked.new_session_id, messages=asked.messages)
        return await self._opened(connection, made, None)

    async def _state(self, connection: ClientConnection, asked: daemon_types.OfSession) -> daemon_types.State:
        seq, epoch = await self._refreshed(connection, asked.session_id)
        async with self._pool.use(asked.session_id, looks=True) as session:
            status, question = await self._activity(asked.session_id)
            questions = await self._questions(asked.session_id)
            now = msgspec.structs.replace(
                session.state(), session=asked.session_id, state=status, pending=question, questions=questions
            )
            closed = await self._pool.is_closed(asked.session_id)
            queue = tuple(
                daemon_types.WaitingPrompt.of(job.prompt_id, job.text, steers=steers, by=job.by)
                for job, steers in session.queue.prompts
            )
            return daemon_types.State.of(now, last_seq=seq, epoch=epoch, time_s=time.time(), closed=closed, queue=queue)

    async def _context(self, connection: ClientConnection, asked: daemon_types.OfSession) -> daemon_types.ContextUse:
        await self._refreshed(connection, asked.session_id)
        async with self._pool.use(asked.session_id, looks=True) as session:
            used, window = session.context(), session.agent.model.context_window
        free = max(0, window - used.total)
        return daemon_types.ContextUse(asked.session_id, *used, free, window)

    async def _refreshed(self, connection: ClientConnection, session_id: str) -> tuple[int, int]:
        """Recover a session and load the rows of other processes; return its newest row and its epoch."""
        await self._recover(session_id)
        seq, epoch = await self._position(connection, session_id)
        await self._pool.refresh(session_id, seq, epoch)
        return seq, epoch

    async def _recover(self, session_id: str) -> None:
        """Recover a session whose process died; it may then wait for an approval."""
        session = self._pool.session(session_id)
        if session is not None and session.worker.busy:
            return
        if self._pool.is_loading(session_id) or await self._catalog.is_interrupted(session_id):
            with suppress(NoSuchAgent, DirectoryGone):  # Unusable, but readable.
                await self._pool.recover(session_id)

    async def _activity(self, session_id: str) -> tuple[SessionStatus, ApprovalRequest | None]:
        """Return what a session does, and its open approval request. A session that is idle here may be running in
        another process."""
        session, is_elsewhere, question = self._pool.session(session_id), False, None
        if session is None or not session.worker.busy:
            is_elsewhere, question = await self._catalog.activity(session_id)
            session = self._pool.session(session_id)
        if session is not None and session.worker.busy:
            question = session.approvals.pending
        is_here = session is not None and session.worker.busy
        return status_of(question, busy=is_here or is_elsewhere), question

    async def _questions(self, session_id: str) -> tuple[QuestionRequest, ...]:
        """Return the open questions of a session's run, also of one in another process."""
        session = self._pool.session(session_id)
        if session is not None and session.worker.busy:
            return session.worker.open_questions
        return await self._catalog.open_questions(session_id)

    async def _start_after(self, session_id: str, seq: int, asked: Sequence[str]) -> int:
        """Return the number after which a new follower starts: the open requests ``asked`` are sent again."""
        at = await self._catalog.request_row(session_id, asked[0]) if asked else 0
        return min(seq, at - 1) if at else seq

    async def _position(self, connection: ClientConnection, session_id: str) -> tuple[int, int]:
        """Return the number of the newest event that was sent, and the epoch. Raise NoSuchSession."""
        seq, epoch = await self._catalog.position(session_id)
        feed, session = connection.daemon.sessions.feed(session_id), self._pool.session(session_id)
        if session is not None and session.worker.busy:
            return feed.seq, epoch
        feed.set_epoch(epoch)
        feed.on_foreign_rows(seq)  # Other processes may have added rows that were not sent here.
        return seq, epoch

    # Prompt, steer, cancel, approve.

    async def _prompt(self, connection: ClientConnection, asked: daemon_types.Prompt) -> Deferred:
        words, images = await read_attachments(asked.attachments, is_local=connection.is_local)
        text = "\n\n".join(part for part in (asked.prompt, *words) if part)

        reply = RunReply(connection, asked.session_id, asked.prompt_id or "")
        async with self._run(connection, asked.session_id, reply) as session:
            session.prompt(text, images, prompt_id=asked.prompt_id or "", by=connection.grant.name, observer=reply)
            self._note_queue(connection, session, asked.session_id)
        return reply.deferred

    async def _compact(self, connection: ClientConnection, asked: daemon_types.OfSession) -> Deferred:
        session_id = asked.session_id
        reply = _CompactReply(connection, session_id, "")
        async with self._run(connection, session_id, reply) as session:
            session.compact(reply)
        return reply.deferred

    @asynccontextmanager
    async def _run(self, connection: ClientConnection, session_id: str, reply: RunReply) -> AsyncIterator[Session]:
        """Yield the session to start a run in, with the client subscribed and ``reply`` ready to sum it up."""
        async with use_session(self._pool, connection, session_id) as session:
            self._pool.check_open()
            connection.follow(session_id)
            reply.watch(session)
            yield session

    async def _steer(self, connection: ClientConnection, asked: daemon_types.Steer) -> Deferred:
        words, images = await read_attachments(asked.attachments, is_local=connection.is_local)
        text = "\n\n".join(part for part in (asked.prompt, *words) if part)
        reply = _JobReply(lambda: daemon_types.Steered(asked.session_id), SESSION_NOT_FOUND)
        async with use_session(self._pool, connection, asked.session_id) as session:
            self._pool.check_open()
            connection.follow(asked.session_id)
            try:
                session.steer(text, images, prompt_id=asked.prompt_id or "", by=connection.grant.name, observer=reply)
            except RunCancelled as why:
                raise _not_begun(why, SESSION_NOT_FOUND) from None
            self._note_queue(connection, session, asked.session_id)
        return reply.deferred

    async def _take_back(self, connection: ClientConnection, asked: daemon_types.TakeBack) -> daemon_types.TakenBack:
        async with use_session(self._pool, connection, asked.session_id) as session:
            if not self._side_questions.abort(asked.session_id, asked.prompt_id):
                session.queue.withdraw(asked.prompt_id)
                self._note_queue(connection, session, asked.session_id)
        return daemon_types.TakenBack(asked.session_id, asked.prompt_id)

    def _note_queue(self, connection: ClientConnection, session: Session, session_id: str) -> None:
        """Notify watching clients that a session's queue may have changed: not of a prompt that starts at once."""
        if session.worker.has_begun:
            status = status_of(session.approvals.pending, busy=session.worker.busy)
            connection.daemon.sessions.watchers.changed(session_id, status)

    async def _cancel(self, connection: ClientConnection, asked: daemon_types.OfSession) -> daemon_types.Cancelled:
        del connection
        await self._pool.check_not_closed(asked.session_id)
        await self._recover(asked.session_id)
        session = self._pool.session(asked.session_id)
        if session is None or not session.worker.busy:
            await self._catalog.journal.check_elsewhere(asked.session_id)
            raise RpcError(SESSION_NOT_FOUND, "No active turn for this session")
        session.abort()
        return daemon_types.Cancelled(asked.session_id)

    async def _approve(self, connection: ClientConnection, asked: daemon_types.Approve) -> daemon_types.Approved:
        async with use_session(self._pool, connection, asked.session_id) as session:
            if session.approvals.pending is None:
                await self._catalog.journal.check_elsewhere(asked.session_id)
            if asked.verdict != "reject":
                check_approval(connection, session.approvals.prompted_by)
            session.approvals.answer(asked.request_id, asked.verdict, by=connection.label)
        return daemon_types.Approved(asked.session_id, asked.request_id)

    async def _answer(
        self, connection: ClientConnection, asked: daemon_types.AnswerQuestion
    ) -> daemon_types.QuestionAnswered:
        async with use_session(self._pool, connection, asked.session_id) as session:
            if asked.action == "accept":
                check_approval(connection, session.worker.questions.prompted_by(asked.request_id))
            session.worker.questions.answer(asked.request_id, asked.action, asked.content, by=connection.label)
        return daemon_types.QuestionAnswered(asked.session_id, asked.request_id)

    # Conversation and remembered approvals.

    async def _clear(self, connection: ClientConnection, asked: daemon_types.OfSession) -> Deferred:
        reply = _JobReply(lambda: daemon_types.Cleared(asked.session_id), INVALID_PARAMS)
        async with use_session(self._pool, connection, asked.session_id) as session:
            check_idle(session, "the conversation cannot be changed")
            session.clear(reply)
        return reply.deferred

    async def _undo_compact(self, connection: ClientConnection, asked: daemon_types.OfSession) -> Deferred:
        async with use_session(self._pool, connection, asked.session_id) as session:
            check_idle(session, "the conversation cannot be changed")
            transcript = session.history.transcript
            reply = _JobReply(lambda: daemon_types.CompactUndone(asked.session_id, len(transcript)), INVALID_PARAMS)
            session.undo_compact(reply)
        return reply.deferred

    async def _rewind(self, connection: ClientConnection, asked: daemon_types.Rewind) -> SlowAnswer:
        return SlowAnswer(self._rewound(connection, asked))

    async def _rewound(self, connection: ClientConnection, asked: daemon_types.Rewind) -> daemon_types.Rewound:
        target = RewindTarget(asked.messages, asked.at, asked.files is not False, bool(asked.preview))
        async with use_session(self._pool, connection, asked.session_id) as session:
            self._pool.check_open()
            check_idle(session, "the conversation cannot be rewound")
            rewound = await session.rewind(target)
        files = tuple(daemon_types.RewoundFile(file.path, file.change) for file in rewound.files)
        return daemon_types.Rewound(asked.session_id, rewound.messages, files, rewound.undo)

    async def _allowed(self, connection: ClientConnection, asked: daemon_types.OfSession) -> daemon_types.AllowedCalls:
        del connection
        async with self._pool.use(asked.session_id, looks=True) as session:
            known = session.agent.approver.remembered()
        entries = (daemon_types.AllowedEntry(one.tool, one.subject) for one in known)
        return daemon_types.AllowedCalls(asked.session_id, tuple(entries))

    async def _forget(self, connection: ClientConnection, asked: daemon_types.Forget) -> daemon_types.Forgotten:
        async with use_session(self._pool, connection, asked.session_id) as session:
            for one in session.agent.approver.remembered():
                if (one.tool, one.subject) == (asked.tool, asked.subject):
                    await session.forget(one)
                    return daemon_types.Forgotten(asked.session_id)
        raise UserError("no such permission is stored")


def _ids(pending: ApprovalRequest | None, questions: Sequence[QuestionRequest]) -> list[str]:
    """Return the ids of an open approval request and of questions."""
    return [request.id for request in (pending, *questions) if request is not None]


def _not_begun(why: AgentError, code_if_unwanted: int) -> RpcError:
    """Return the error for a command that was not begun."""
    return RpcError(code_if_unwanted, str(why)) if isinstance(why, RunCancelled) else as_rpc_error(why)
