"""Methods on one session: open, prompt, steer, approve, side questions, attachments."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import msgspec

from zot.errors import AgentError, DirectoryGone, NoSuchAgent, NoSuchSession, RunCancelled, UserError
from zot.events import AssistantMessage, AssistantStart, Done, Reconfigured, TextDelta
from zot.files import read_content
from zot.messages import ZERO, ImageBlock
from zot.runtime.pool import NewSession, SessionPool
from zot.serve.daemon.access import check_idle, check_name, check_use, evict_if_directory_gone, use_session
from zot.serve.daemon.connection import AnswerThen, ClientConnection, Deferred, Handler, SlowAnswer, as_rpc_error
from zot.session.abortable import AbortableWaits
from zot.session.history import Batch
from zot.tools.images import MAX_IMAGE_BYTES, image_type
from zot.wire import daemon_types as said
from zot.wire.daemon import Dialect
from zot.wire.daemon_types import Attachment, Used
from zot.wire.jsonrpc import INVALID_PARAMS, SESSION_NOT_FOUND, RpcError
from zot.wire.updates import PIECES, Turn, TurnSummary, pending_of

if TYPE_CHECKING:
    from zot.events import ApprovalRequest
    from zot.session.queue import Dropped, Job, Started
    from zot.session.session import Session

_ABORTED = "the answer by the way was aborted"

_MAX_BYTES = 10 << 20
_MAX_TEXT_BYTES = 256 << 10

#: Called with a run's summary and the number of its last event; 0 if that could not be recorded.
Ended: TypeAlias = Callable[[TurnSummary, int], None]

#: Attempts to create a session that other clients delete at the same time.
_TRIES = 8


class SideQuestions:
    """Side questions in progress. ``opening`` returns a session with another one's history and no tools."""

    def __init__(self, hub: SessionPool, opening: Callable[[Session], Session]) -> None:
        self._hub = hub
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

    def stop(self) -> None:
        """Abort all side questions."""
        for asked in (self._unnamed, *self._open.values()):
            asked.abort()

    async def _aside(self, connection: ClientConnection, asked: said.Ask) -> SlowAnswer:
        return SlowAnswer(self._answer(connection, asked))

    async def _answer(self, connection: ClientConnection, asked: said.Ask) -> said.Answered:
        from zot.session.side_question import ask

        place = asked.session_id, asked.prompt_id or ""
        waits = self._open.setdefault(place, AbortableWaits(_ABORTED)) if asked.prompt_id else self._unnamed
        try:
            async with use_session(self._hub, connection, asked.session_id) as session:
                self._hub.check_open()
                answer = await waits.run(ask(session, lambda: self._opening(session), asked.question))
        finally:
            if not waits.is_waiting:
                self._open.pop(place, None)
            connection.office.feed(asked.session_id).mention(Reconfigured())  # The session's usage has changed.
        return said.Answered(asked.session_id, answer.text, Used.of(answer.usage))


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


class RunSummarizer:
    """Summarizes one run (`history.Subscriber`). Subscribes after the feed, so clients get each event first."""

    can_approve = False
    full = False

    def __init__(self, session: Session, ended: Ended) -> None:
        self._session = session
        self._ended = ended
        self._turn = Turn()
        #: Text of the current message, until the message is complete.
        self._text: list[str] = []
        self._leave: Callable[[], None] = lambda: None

    def started(self) -> None:
        """Subscribe: the run begins, and all events from now on belong to it."""
        self._leave = self._session.subscribe(self)

    def deliver(self, batch: Batch) -> None:
        """Add a batch of events."""
        for event in batch.events:
            if type(event) is TextDelta:  # The most frequent kind.
                self._text.append(event.delta)
            elif type(event) not in PIECES:
                self._turn.take(event)
                if isinstance(event, AssistantStart | AssistantMessage):
                    self._text.clear()
        if isinstance(batch.events[-1], Done):
            self._leave()
            self._ended(self._summary(), batch.last)

    def _summary(self) -> TurnSummary:
        """Return the run's summary. Includes text that was shown but not recorded, such as on a full disk."""
        ended, words = self._turn.summary(), "".join(self._text)
        return msgspec.structs.replace(ended, content=words) if words else ended

    async def room(self) -> None:
        """Return at once: never full."""


class SessionShelf(Protocol):
    """Stored sessions, which need not be loaded."""

    async def standing(self, session_id: str) -> tuple[int, int]:
        """Return the number of a session's newest row, and its epoch. Raise NoSuchSession."""

    async def asked_at(self, session_id: str, request_id: str) -> int:
        """Return the row of an approval request of the newest run; 0 if it is not recorded."""

    async def last_told(self, session_id: str, upto: int) -> int:
        """Return the number of the newest event up to ``upto``; 0 if there is none. Raise NoSuchSession."""

    async def doing(self, session_id: str) -> tuple[bool, ApprovalRequest | None]:
        """Return whether any process runs a session, and the approval request of a run in another process, dead or
        alive. Raise NoSuchSession."""

    async def check_elsewhere(self, session_id: str) -> None:
        """Raise SessionBusy, with its owner, if another process runs a session; NoSuchSession."""

    async def is_left_behind(self, session_id: str) -> bool:
        """True if the newest run of a session has no end because its process died. Raise NoSuchSession."""


class _Callbacks(NamedTuple):
    """Callbacks of a run: it starts, is dropped, or is left to another process."""

    started: Started
    dropped: Dropped
    parked: Started


class SessionMethods:
    """Handlers of the methods on one session. ``hub`` has loaded sessions, ``shelf`` stored ones."""

    def __init__(self, hub: SessionPool, shelf: SessionShelf, asides: SideQuestions) -> None:
        self._hub = hub
        self._shelf = shelf
        self._asides = asides

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
            "session/attach": self._attach,
            "session/detach": self._detach,
            "session/close": self._close,
            "session/kill": self._kill,
            "session/state": self._state,
            "session/fork": self._fork,
            "session/compact": self._compact,
            "session/clear": self._clear,
            "session/allowed": self._allowed,
            "session/forget": self._forget,
        }

    # Open, attach, close.

    async def _new(self, connection: ClientConnection, asked: said.New) -> AnswerThen:
        from zot.session.session import new_session_id  # Imported lazily: start-up budget.

        wanted = NewSession(asked.agent_alias, asked.cwd, guarded=not connection.is_local)
        session_id = asked.session_id or new_session_id()
        await check_name(self._shelf, session_id)
        await evict_if_directory_gone(self._hub, connection, session_id, wanted)
        for _ in range(_TRIES):
            with suppress(NoSuchSession):  # Another client has just deleted it: create it again.
                return await self._opened(connection, session_id, wanted)
        return await self._opened(connection, session_id, wanted)

    async def _opened(self, connection: ClientConnection, session_id: str, wanted: NewSession | None) -> AnswerThen:
        # Looking at an existing session must not evict another one.
        async with self._hub.use(session_id, wanted, looks=wanted is None) as session:
            if wanted is not None and session.agent.name not in ("", wanted.agent):
                raise UserError(
                    f"session {session_id!r} is one of the agent {session.agent.name!r}, not of {wanted.agent!r}"
                )
            seq, epoch = await self._position(connection, session_id)
            opened = said.Opened(
                session_id=session_id,
                agent_alias=session.agent.name or "default",
                message_count=len(session.transcript),
                workspace_dir=session.agent.cwd,
                last_seq=seq,
                epoch=epoch,
            )
            question = session.pending
            after = await self._start_after(session_id, seq, None if question is None else question.id)
        return AnswerThen(opened, lambda: connection.follow(session_id, after))

    async def _attach(self, connection: ClientConnection, asked: said.Attach) -> AnswerThen:
        session_id = asked.session_id
        await self._recover(session_id)
        seq, epoch = await self._position(connection, session_id)
        activity = await self._activity(session_id)
        question = activity.get("pending_approval")
        beginning = await self._start_after(session_id, seq, None if question is None else question.request_id)
        after = beginning if asked.after is None else min(asked.after, seq)
        asked_seq = beginning + 1 if beginning < seq else said.ABSENT
        wants_events = connection.dialect is Dialect.EVENTS
        last_event = await self._shelf.last_told(session_id, seq) if wants_events else said.ABSENT
        attached = said.Attached(
            session_id=session_id, last_seq=seq, epoch=epoch, asked_seq=asked_seq, last_event_seq=last_event, **activity
        )
        return AnswerThen(attached, lambda: connection.follow(session_id, after, again=True))

    async def _detach(self, connection: ClientConnection, asked: said.OfSession) -> said.Detached:
        is_detached = connection.unfollow(asked.session_id)
        if not is_detached:
            await self._hub.check_not_closed(asked.session_id)
        return said.Detached(asked.session_id, is_detached)

    async def _close(self, connection: ClientConnection, asked: said.OfSession) -> said.Closed:
        await self._hub.check_not_closed(asked.session_id)
        await check_use(self._hub, connection, asked.session_id)
        await self._evict(connection, asked.session_id)
        return said.Closed(asked.session_id)

    async def _kill(self, connection: ClientConnection, asked: said.OfSession) -> said.Killed:
        await self._hub.check_not_closed(asked.session_id)
        await check_use(self._hub, connection, asked.session_id)
        with suppress(AgentError):
            await self._recover(asked.session_id)
        if (session := self._hub.session(asked.session_id)) is not None:
            session.kill()
        await self._evict(connection, asked.session_id)
        return said.Killed(asked.session_id)

    async def _evict(self, connection: ClientConnection, session_id: str) -> None:
        async with self._hub.closing(session_id):
            await self._end(connection, session_id)

    async def _end(self, connection: ClientConnection, session_id: str) -> None:
        with suppress(AgentError):  # A session that was deleted or cannot be opened is closed all the same.
            await self._recover(session_id)
        was_loaded = await self._hub.let_go(session_id)
        await connection.office.feed(session_id).caught_up()
        connection.unfollow(session_id)
        try:
            await self._shelf.check_elsewhere(session_id)
        except NoSuchSession:
            if not was_loaded:
                raise

    async def _fork(self, connection: ClientConnection, asked: said.Fork) -> AnswerThen:
        await check_name(self._shelf, asked.new_session_id or "")
        async with use_session(self._hub, connection, asked.session_id) as session:
            made = await session.fork(asked.new_session_id, messages=asked.messages)
        return await self._opened(connection, made, None)

    async def _state(self, connection: ClientConnection, asked: said.OfSession) -> said.State:
        await self._recover(asked.session_id)
        seq, epoch = await self._position(connection, asked.session_id)
        await self._hub.refresh(asked.session_id, seq, epoch)
        async with self._hub.use(asked.session_id, looks=True) as session:
            activity = await self._activity(asked.session_id)
            state = session.state()
            return said.State(
                session_id=asked.session_id,
                agent_alias=session.agent.name or "default",
                provider=state.provider,
                model=state.model,
                cwd=state.cwd,
                message_count=state.message_count,
                queued=session.waiting,
                usage=said.Used.of(state.usage),
                last_seq=seq,
                epoch=epoch,
                context_tokens=session.agent.need(session.transcript, ()) if state.message_count else 0,
                context_window=session.agent.model.context_window,
                locked=session.agent.locked,
                closed=await self._hub.is_closed(asked.session_id),
                **activity,
            )

    async def _recover(self, session_id: str) -> None:
        """Recover a session whose process died; it may then wait for an approval."""
        session = self._hub.session(session_id)
        if session is not None and session.busy:
            return
        if self._hub.is_loading(session_id) or await self._shelf.is_left_behind(session_id):
            with suppress(NoSuchAgent, DirectoryGone):  # Unusable, but readable.
                await self._hub.take_up(session_id)

    async def _activity(self, session_id: str) -> dict[str, Any]:
        """Return a session's state. A session that is idle here may be running in another process."""
        session, is_elsewhere, question = self._hub.session(session_id), False, None
        if session is None or not session.busy:
            is_elsewhere, question = await self._shelf.doing(session_id)
            session = self._hub.session(session_id)
        if session is not None and session.busy:
            question = session.pending
        if question is not None:
            return {"state": "waiting_approval", "pending_approval": pending_of(question, time.time())}
        is_here = session is not None and session.busy
        return {"state": "running" if is_here or is_elsewhere else "idle"}

    async def _start_after(self, session_id: str, seq: int, request_id: str | None) -> int:
        """Return the number after which a new follower starts: a pending approval request is sent again."""
        at = 0 if request_id is None else await self._shelf.asked_at(session_id, request_id)
        return min(seq, at - 1) if at else seq

    async def _position(self, connection: ClientConnection, session_id: str) -> tuple[int, int]:
        """Return the number of the newest event that was sent, and the epoch. Raise NoSuchSession."""
        seq, epoch = await self._shelf.standing(session_id)
        feed, session = connection.office.feed(session_id), self._hub.session(session_id)
        if session is not None and session.busy:
            return feed.seq, epoch
        feed.meet(epoch)
        feed.overheard(seq)  # Other processes may have added rows that were not sent here.
        return seq, epoch

    # Prompt, steer, cancel, approve.

    async def _prompt(self, connection: ClientConnection, asked: said.Prompt) -> Deferred:
        words, images = await read_attachments(asked.attachments, is_local=connection.is_local)
        text = "\n\n".join(part for part in (asked.prompt, *words) if part)

        def run(session: Session, callbacks: _Callbacks) -> Job:
            return session.prompt(
                text,
                images,
                prompt_id=asked.prompt_id or "",
                started=callbacks.started,
                dropped=callbacks.dropped,
                parked=callbacks.parked,
            )

        return await self._run(connection, asked.session_id, run, lambda turn: turn.reply(asked.session_id))

    async def _compact(self, connection: ClientConnection, asked: said.OfSession) -> Deferred:
        session_id = asked.session_id

        def compacted(turn: TurnSummary) -> said.Compacted:
            prompted = turn.reply(session_id)
            return said.Compacted(session_id, prompted.content, prompted.usage)

        def run(session: Session, callbacks: _Callbacks) -> Job:
            return session.compact(started=callbacks.started, dropped=callbacks.dropped)

        return await self._run(connection, session_id, run, compacted)

    async def _run(
        self,
        connection: ClientConnection,
        session_id: str,
        run: Callable[[Session, _Callbacks], Job],
        result: Callable[[TurnSummary], Any],
    ) -> Deferred:
        """Start a run, subscribe the client, and answer with its ``result`` right after its last update."""
        deferred = Deferred()
        async with use_session(self._hub, connection, session_id) as session:
            self._hub.check_open()
            connection.follow(session_id)

            def ended(turn: TurnSummary, seq: int) -> None:
                connection.when_told(session_id, seq, lambda: deferred.resolve(_outcome(turn, result)))

            def dropped(why: AgentError) -> None:
                if isinstance(why, RunCancelled):
                    nothing = said.Prompted(session_id, "cancelled", "", said.Used.of(ZERO))
                    connection.take_back(session_id, job.prompt_id, then=lambda: deferred.resolve(nothing))
                else:
                    problem = as_rpc_error(why)
                    connection.lament(session_id, str(why), job.prompt_id, then=lambda: deferred.resolve(problem))

            # A parked run outlives this daemon, and so the connection: resolve without an answer.
            callbacks = _Callbacks(
                RunSummarizer(session, ended).started, dropped, parked=lambda: deferred.resolve(None)
            )
            job = run(session, callbacks)
        return deferred

    async def _steer(self, connection: ClientConnection, asked: said.Steer) -> Deferred:
        words, images = await read_attachments(asked.attachments, is_local=connection.is_local)
        text, deferred = "\n\n".join(part for part in (asked.prompt, *words) if part), Deferred()
        async with use_session(self._hub, connection, asked.session_id) as session:
            self._hub.check_open()
            connection.follow(asked.session_id)
            try:
                session.steer(
                    text,
                    images,
                    prompt_id=asked.prompt_id or "",
                    started=lambda: deferred.resolve(said.Steered(asked.session_id)),
                    dropped=lambda why: deferred.resolve(_not_begun(why, SESSION_NOT_FOUND)),
                )
            except RunCancelled as why:
                raise _not_begun(why, SESSION_NOT_FOUND) from None
        return deferred

    async def _take_back(self, connection: ClientConnection, asked: said.TakeBack) -> said.TakenBack:
        async with use_session(self._hub, connection, asked.session_id) as session:
            if not self._asides.abort(asked.session_id, asked.prompt_id):
                session.take_back(asked.prompt_id)
        return said.TakenBack(asked.session_id, asked.prompt_id)

    async def _cancel(self, connection: ClientConnection, asked: said.OfSession) -> said.Cancelled:
        del connection
        await self._hub.check_not_closed(asked.session_id)
        await self._recover(asked.session_id)
        session = self._hub.session(asked.session_id)
        if session is None or not session.busy:
            await self._shelf.check_elsewhere(asked.session_id)
            raise RpcError(SESSION_NOT_FOUND, "No active turn for this session")
        session.abort()
        return said.Cancelled(asked.session_id)

    async def _approve(self, connection: ClientConnection, asked: said.Approve) -> said.Approved:
        async with use_session(self._hub, connection, asked.session_id) as session:
            if session.pending is None:
                await self._shelf.check_elsewhere(asked.session_id)
            session.approve(asked.request_id, asked.verdict, by=connection.label)
        return said.Approved(asked.session_id, asked.request_id)

    # Conversation and remembered approvals.

    async def _clear(self, connection: ClientConnection, asked: said.OfSession) -> Deferred:
        deferred = Deferred()
        async with use_session(self._hub, connection, asked.session_id) as session:
            check_idle(session, "the conversation cannot be changed")
            session.clear(
                started=lambda: deferred.resolve(said.Cleared(asked.session_id)),
                dropped=lambda why: deferred.resolve(_not_begun(why, INVALID_PARAMS)),
            )
        return deferred

    async def _allowed(self, connection: ClientConnection, asked: said.OfSession) -> said.AllowedCalls:
        del connection
        async with self._hub.use(asked.session_id, looks=True) as session:
            known = session.remembered()
        entries = (said.AllowedEntry(one.tool, one.subject) for one in known)
        return said.AllowedCalls(asked.session_id, tuple(entries))

    async def _forget(self, connection: ClientConnection, asked: said.Forget) -> said.Forgotten:
        async with use_session(self._hub, connection, asked.session_id) as session:
            for one in session.remembered():
                if (one.tool, one.subject) == (asked.tool, asked.subject):
                    await session.forget(one)
                    return said.Forgotten(asked.session_id)
        raise UserError("that is not remembered")


def _not_begun(why: AgentError, code_if_unwanted: int) -> RpcError:
    """Return the error for a command that was not begun."""
    return RpcError(code_if_unwanted, str(why)) if isinstance(why, RunCancelled) else as_rpc_error(why)


def _outcome(turn: TurnSummary, result: Callable[[TurnSummary], Any]) -> Any:
    try:
        return result(turn)
    except RpcError as problem:
        return problem
