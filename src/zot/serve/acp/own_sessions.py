"""Sessions of an editor that run in this process, recorded in the journal."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from zot.config.base_url import split_url
from zot.config.config import Config, ConfigOverrides, journal_path
from zot.config.flags import LiteralMcpServer, McpServer
from zot.errors import AgentError, ConnectionImpossible, NoSuchSession, RuntimeBusy
from zot.events import AgentEvent, ToolCall, ToolResult
from zot.journal.opening import open_journal
from zot.journal.queries import last_seq
from zot.journal.recorded_sessions import SessionJournal
from zot.messages import CallBlock, ImageBlock
from zot.panels import CommandAnswer, CommandInfo
from zot.runtime.check import check
from zot.runtime.modes import SessionModes
from zot.runtime.open import HOSTED, OpenRequest, open_session
from zot.runtime.pool import Channel, NewSessionSettings, PoolLimits, SessionPool
from zot.runtime.shared import SharedResources
from zot.serve.acp.session import (
    MAX_OLD_BYTES,
    EditorSessions,
    Options,
    OptionValue,
    PromptReply,
    ReplayedConversation,
    SessionBackend,
    SessionListing,
    text_on_disk,
)
from zot.session.history import Batch
from zot.session.recovery import WaitingRuns
from zot.session.session import Session, new_session_id
from zot.store import FileChanged
from zot.wire import acp
from zot.wire.jsonrpc import INVALID_PARAMS, RpcError

if TYPE_CHECKING:
    from zot.tools.documents import OpenDocuments  # Imported lazily: not every client offers its files.

#: The most sessions loaded at once; the least recently used idle one is unloaded for the next.
_MAX_SESSIONS: Final = 64
_NAME_CHARACTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"


class SessionSetup(msgspec.Struct, frozen=True):
    """The directory and the MCP servers that the client opened a session with."""

    cwd: str
    mcp: tuple[tuple[str, McpServer], ...] = ()


class OwnSession(SessionBackend, Channel):
    """One session of this process. It may be unloaded while idle, and keeps the mode meanwhile."""

    def __init__(self, session_id: str, owner: OwnSessions) -> None:
        self._id = session_id
        self._owner = owner
        self.place = SessionSetup("/")
        self.session: Session | None = None
        self._modes: SessionModes | None = None
        self._mode = owner.mode
        #: The files that calls replaced, by call: digests, in the order of the calls.
        self._replaced: dict[str, deque[str]] | None = None
        #: The number of the newest event that was delivered or held.
        self._newest = 0
        #: Batches that are delivered once the client has the response that opens the session; None from then on.
        self._held: list[Batch] | None = []
        self._released = asyncio.Event()
        #: The editor's files, if tools change them there.
        self.documents: OpenDocuments | None = None
        #: The text of files that open calls are to replace, by call; None if it is unknown.
        self._texts: dict[str, str | None] = {}
        #: Those files that the editor has yet to tell, by call.
        self._unread: dict[str, str] = {}
        #: Batches that wait for such a text, and the task that asks for it.
        self._waiting: list[Batch] = []
        self._reading: asyncio.Task[None] | None = None
        #: True if an open approval is to be shown after them.
        self._shows_open = False

    def start_in_mode_of(self, origin: OwnSession) -> None:
        """Start in the current mode of the session that this one, which is not loaded yet, was forked from."""
        self._mode = origin._mode

    @property
    def _loaded(self) -> Session:
        assert self.session is not None, "requests wait until it is loaded"
        return self.session

    # Channel.

    def opened(self, session: Session) -> None:
        self.session = session
        self._modes = SessionModes(session, self._mode)

    def closed(self) -> None:
        self.session = self._modes = None

    def on_foreign_rows(self, upto: int) -> None:
        pass  # They are replayed when the session is loaded.

    @property
    def is_followed(self) -> bool:
        return self.view is not None

    def deliver(self, batch: Batch) -> None:
        self._newest = batch.last or self._newest
        if self._held is not None:
            self._held.append(batch)
        else:
            self._show(batch)

    def _show(self, batch: Batch) -> None:
        """Deliver a batch to the view, once the editor has told the text of the files that its calls replace."""
        self._find_texts([one for one in batch.events if isinstance(one, ToolCall)])
        if self._reading is None:
            self._deliver_now(batch)
        else:
            self._waiting.append(batch)

    def _deliver_now(self, batch: Batch) -> None:
        if self.view is not None:
            self.view.deliver(batch)
        if self._texts:
            for event in batch.events:
                if isinstance(event, ToolResult):
                    self._texts.pop(event.id, None)

    def _find_texts(self, calls: Sequence[ToolCall | CallBlock]) -> None:
        """Read the files that ``calls`` replace, and ask the editor for them; no call has an effect before this."""
        for call in calls:
            path = call.args.get("path") if call.args else None
            if self.documents is None or call.name != "write" or call.id in self._texts or not isinstance(path, str):
                continue
            path = os.path.normpath(os.path.join(self.cwd, path))
            self._texts[call.id] = on_disk = text_on_disk(path)
            if on_disk is not None or not os.path.lexists(path):
                self._unread[call.id] = os.path.realpath(path)
        if self._unread and self._reading is None:
            self._reading = self._owner.client.spawn(self._read_texts())

    async def _read_texts(self) -> None:
        assert self.documents is not None
        while self._unread:
            call_id, path = next(iter(self._unread.items()))
            text = await self.documents.text_to_change(path, (self._texts[call_id] or "").encode())
            if text is not None:
                self._texts[call_id] = text
            del self._unread[call_id]
        self._deliver_waiting()

    def _stop_reading(self) -> None:
        """Deliver what waits for the editor's text without it."""
        if self._reading is not None:
            self._reading.cancel()
            self._unread.clear()
            self._deliver_waiting()

    def _deliver_waiting(self) -> None:
        self._reading = None
        waiting, self._waiting = self._waiting, []
        for batch in waiting:
            self._deliver_now(batch)
        self._show_open()

    def _show_open(self) -> None:
        """Show an open approval that may be older than this process."""
        session, view = self.session, self.view
        shows, self._shows_open = self._shows_open, False
        if not shows or session is None or view is None or (pending := session.approvals.pending) is None:
            return
        view.show_open(session.history.transcript.unanswered())
        view.ask_again(pending)

    @property
    def can_approve(self) -> bool:
        return self.view is not None and self.view.can_approve

    @property
    def can_answer(self) -> bool:
        return self.view is not None and self.view.can_answer

    @property
    def full(self) -> bool:
        is_waiting = self._held is not None or self._reading is not None
        return is_waiting or (self.view is not None and self.view.full)

    async def room(self) -> None:
        if self._held is not None:
            await self._released.wait()
        if self._reading is not None:
            await asyncio.wait({self._reading})
        if self.view is not None:
            await self.view.room()

    # Backend.

    @property
    def is_ready(self) -> bool:
        return self.session is not None and not self.session.store.is_broken

    @property
    def cwd(self) -> str:
        return self.place.cwd if self.session is None else self.session.agent.cwd

    @property
    def context_window(self) -> int:
        return 0 if self.session is None else self.session.agent.model.context_window

    async def load(self) -> None:
        await self._owner.load(self._id, self.place)

    def hold(self) -> None:
        self._stop_reading()
        if self._held is None:
            self._held = []
            self._released.clear()

    def follow(self) -> None:
        held, self._held = self._held or (), None
        self._released.set()
        for batch in held:
            self._show(batch)
        self._shows_open = True
        if self.session is not None and self.session.approvals.pending is not None:
            self._find_texts(self.session.history.transcript.unanswered())
        if self._reading is None:
            self._show_open()

    async def release(self) -> None:
        self.follow()
        await self._owner.release(self._id)
        self.view = None
        self.hold()

    def prompt(self, reply: PromptReply, text: str, images: Sequence[ImageBlock], *, steers: bool) -> None:
        session = self._loaded
        session.extensions.start()
        if steers:
            reply.job = session.steer(text, images, prompt_id=reply.prompt_id, observer=reply)
        else:
            reply.job = session.prompt(text, images, prompt_id=reply.prompt_id, observer=reply)
        self._owner.used(self._id)

    def compact(self, reply: PromptReply) -> None:
        reply.job = self._loaded.compact(reply)

    def cancel(self, reply: PromptReply) -> None:
        self._stop_reading()
        if self.session is None:
            return
        if reply.job is not None:
            self.session.worker.cancel(reply.job)
        elif reply.command is not None:
            reply.command.cancel()
            reply.stop("cancelled")

    def abort(self) -> None:
        self._stop_reading()
        if self.session is not None:
            self.session.abort(queue=True)

    def approve(self, request_id: str, decision: str) -> None:
        if self.session is not None:
            with suppress(AgentError):  # The deadline has passed, or the run was aborted.
                self.session.approvals.answer(request_id, decision)

    def answer(self, request_id: str, result: acp.QuestionResult) -> None:
        if self.session is None:
            return
        questions = self.session.worker.questions
        try:
            questions.answer(request_id, result.action, result.content)
        except AgentError:  # It has an answer, or these values do not fit.
            with suppress(AgentError):
                questions.answer(request_id, "cancel")

    def decline(self, request_id: str) -> None:
        self.answer(request_id, acp.QuestionResult("decline"))

    def options(self) -> Options:
        agent, modes = self._loaded.agent, self._modes
        assert modes is not None
        models = {model.id: model.name or model.id for model in (*agent.catalogue.models, agent.model)}
        known = [OptionValue(one.id, one.name, one.description) for one in modes.known]
        return Options(
            agent.model.id, models, agent.reasoning if agent.model.reasoning else "", modes.current.id, known
        )

    async def set_option(self, option: str, value: str) -> None:
        session, modes = self._loaded, self._modes
        assert modes is not None
        match option:
            case "mode":
                modes.use(value)
                self._mode = value
            case "model":
                session.use_model(value)
            case _:
                session.use_reasoning(value)
        if option != "mode" and not self._owner.is_unused(self._id):
            with suppress(AgentError):  # The next run records it.
                await session.establish()

    def command_names(self) -> Sequence[str]:
        source = self._loaded.agent.source
        prompts = () if source is None else source.commands()
        return [one.name for one in (*self._loaded.extensions.commands(), *prompts)]

    async def commands(self) -> Sequence[CommandInfo]:
        session = self._loaded
        session.extensions.start()
        return await session.commands()

    async def run_command(self, name: str, args: str) -> CommandAnswer:
        self._owner.used(self._id)
        return await self._loaded.run_command(name, args)

    async def conversation(self) -> ReplayedConversation:
        self._replaced = None
        session, before, newest = self._loaded, self._loaded.history.before, self._newest
        self.hold()
        held, self._held = self._held or (), []
        if self.view is not None:
            for batch in held:
                self.view.deliver_replayed(batch)
        if before is None:
            return ReplayedConversation(tuple(session.history.transcript.messages))
        rows = await session.store.read(before.seq, max(0, newest - before.seq))
        return ReplayedConversation(before.messages, [row for _, row in rows if isinstance(row, AgentEvent)])

    def present_text(self, call_id: str, path: str, *, waits: bool) -> str | None:
        # Without the editor's files, it is called when the call is stored: no tool has an effect before that.
        text = self._texts[call_id] if call_id in self._texts else text_on_disk(path)
        return text if text is not None and len(text) <= MAX_OLD_BYTES else None

    async def old_text(self, call_id: str) -> str | None:
        store = self._loaded.store
        if self._replaced is None:
            self._replaced = {}
            for _, row in await store.changes():
                if isinstance(row, FileChanged) and row.call and row.before is not None:
                    self._replaced.setdefault(row.call, deque()).append(row.before)
        digests = self._replaced.get(call_id)
        if not digests or (data := await store.content(digests.popleft())) is None or len(data) > MAX_OLD_BYTES:
            return None
        try:
            return data.decode()
        except UnicodeDecodeError:
            return None


class OwnSessions(EditorSessions):
    """The sessions of this process, by id. ``config`` and ``overrides`` are those of the command line.

    ``mode`` is the first mode of each session, None for the configured one.
    """

    def __init__(
        self, config: Config, overrides: ConfigOverrides, resources: SharedResources, *, mode: str | None = None
    ) -> None:
        self.mode = mode
        self._config = config
        self._overrides = overrides
        self._resources = resources
        self._starting = asyncio.Lock()
        self._journal: SessionJournal | None = None
        self._pool: SessionPool | None = None
        #: Sessions that this process created, without a prompt so far.
        self._unused: set[str] = set()

    @property
    def sessions(self) -> Sequence[Session]:
        return () if self._pool is None else self._pool.sessions

    def check_login(self) -> None:
        check(self._config)

    async def new(self, wanted: acp.NewSession) -> tuple[str, OwnSession]:
        place = _place(wanted.cwd, wanted.mcp_servers)
        check(msgspec.structs.replace(self._config, cwd=place.cwd))
        await self._start()
        session_id = new_session_id()
        self._unused.add(session_id)
        return session_id, await self.load(session_id, place)

    async def open(self, wanted: acp.OpenSession) -> OwnSession:
        session_id, place = wanted.session_id, _place(wanted.cwd, wanted.mcp_servers)
        _check_own(session_id)
        await self._start()
        pool = self._started()[1]
        loaded = pool.session(session_id)
        if loaded is not None and self._channel(session_id).place != place:
            if not loaded.worker.busy:
                await pool.let_go(session_id)
            elif not _is_same_place(loaded.agent.cwd, place.cwd):
                raise RuntimeBusy(
                    f"session {session_id!r} runs in {loaded.agent.cwd}; it can be opened in {place.cwd} once its run "
                    "has ended"
                )
        backend = await self.load(session_id, place)
        session = backend._loaded
        if session.history.must_recover and not session.worker.busy:  # A dead process left it: this client can answer.
            await session.worker.recover(WaitingRuns.RESUME, always_asks=False)
        return backend

    async def load(self, session_id: str, place: SessionSetup) -> OwnSession:
        """Load a session unless it is loaded, and return it. Raise AgentError."""
        backend = self._channel(session_id)
        if backend.session is None:
            backend.place = place
        async with self._started()[1].use(session_id, NewSessionSettings(cwd=place.cwd)):
            return backend

    async def fork(self, wanted: acp.OpenSession) -> tuple[str, OwnSession]:
        origin_id = wanted.session_id
        _place(wanted.cwd, wanted.mcp_servers)  # Before there is a copy.
        _check_own(origin_id)
        await self._start()
        journal, pool = self._started()
        if (loaded := pool.session(origin_id)) is not None:
            session_id = await loaded.fork()
        else:  # The origin stays unloaded: only the copy is opened as this client wants.
            origin = await journal.find(origin_id)
            at = await journal.reading(last_seq, origin.number)
            session_id = (await journal.fork(origin_id, new_session_id(), at=at)).id
        if self.is_unused(origin_id):
            self._unused.add(session_id)
        self._channel(session_id).start_in_mode_of(self._channel(origin_id))
        return session_id, await self.open(msgspec.structs.replace(wanted, session_id=session_id))

    async def listed(self, cwd: str | None) -> Sequence[SessionListing]:
        await self._start()
        records = await self._started()[0].sessions(cwd=cwd)
        return [
            SessionListing(one.id, one.cwd, one.title, one.updated)
            for one in records
            if one.messages and not one.id.startswith(HOSTED) and os.path.isabs(one.cwd)
        ]

    async def release(self, session_id: str) -> None:
        """Unload a session that the client has closed. One without a prompt is forgotten."""
        await self._started()[1].let_go(session_id)
        await self._forget(session_id)

    async def delete(self, session_id: str) -> None:
        if session_id.startswith(HOSTED):
            return
        await self._start()
        with suppress(NoSuchSession):
            await self._started()[0].delete(session_id)

    async def close(self) -> None:
        if self._pool is None or self._journal is None:
            return
        await self._pool.close()
        for session_id in list(self._unused):
            await self._forget(session_id)
        await self._journal.close()

    async def _forget(self, session_id: str) -> None:
        """Remove a closed session from the journal if it never had a prompt: editors open them freely."""
        if session_id in self._unused:
            self._unused.discard(session_id)
            with suppress(AgentError):
                await self._started()[0].delete(session_id)

    def is_unused(self, session_id: str) -> bool:
        """True for a session of this process without a prompt."""
        return session_id in self._unused

    def used(self, session_id: str) -> None:
        """Keep a session: it has a prompt."""
        self._unused.discard(session_id)

    def _channel(self, session_id: str) -> OwnSession:
        return cast("OwnSession", self._started()[1].channel(session_id))

    async def _start(self) -> None:
        """Open the journal for the first session."""
        async with self._starting:
            if self._journal is None:
                self._journal = await open_journal(journal_path(self._config))
                self._pool = SessionPool(
                    self._open,
                    lambda session_id: OwnSession(session_id, self),
                    self._journal,
                    limits=PoolLimits(_MAX_SESSIONS),
                    own_process=True,
                )

    def _started(self) -> tuple[SessionJournal, SessionPool]:
        assert self._journal is not None
        assert self._pool is not None
        return self._journal, self._pool

    async def _open(self, session_id: str, wanted: NewSessionSettings | None) -> Session:
        journal, pool = self._started()
        backend = cast("OwnSession", pool.channel(session_id))
        place, overrides = backend.place, self._overrides
        if not self.is_unused(session_id):
            recorded = (await journal.find(session_id)).cwd
            if not _is_same_place(recorded, place.cwd):
                overrides = overrides.including("cwd")
        documents = None
        if self.client.greeting.client.reads_files:
            from zot.serve.acp.editor_documents import (
                EditorDocuments,  # Imported lazily: not every client offers its files.
            )

            documents = EditorDocuments(self.client, session_id, place.cwd)
        backend.documents = None if self._config.lock else documents
        mcp = {**self._config.mcp, **dict(place.mcp)}
        config = msgspec.structs.replace(self._config, session=session_id, cwd=place.cwd, mcp=mcp)
        request = OpenRequest(
            config=config, overrides=overrides, creates=self.is_unused(session_id), documents=documents
        )
        return await open_session(request, self._resources)


def _check_own(session_id: str) -> None:
    """Raise NoSuchSession for a session that strangers prompt."""
    if session_id.startswith(HOSTED):
        raise NoSuchSession(f"there is no session {session_id!r}")


def _is_same_place(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _place(cwd: str, servers: Sequence[acp.EditorMcpServer] | None) -> SessionSetup:
    """Return where a session is opened. Raise RpcError for servers that zot cannot use."""
    found: dict[str, McpServer] = {}
    for one in servers or ():
        try:
            found[_free_name(one.name, found)] = _server(one)
        except (ValueError, ConnectionImpossible) as problem:
            raise RpcError(INVALID_PARAMS, f"mcpServers: {one.name}: {problem}") from None
    return SessionSetup(cwd, tuple(found.items()))


def _server(given: acp.EditorMcpServer) -> McpServer:
    """Return the settings of a server. Raise ValueError, ConnectionImpossible."""
    if given.type == "http":
        split_url(given.url)
        headers = {pair.name: pair.value for pair in given.headers}
        if not all(name.isascii() and name.isprintable() and value.isprintable() for name, value in headers.items()):
            raise ValueError("a header has characters that HTTP does not allow")
        return LiteralMcpServer(url=given.url, headers=headers)
    if given.type != "stdio":
        raise ValueError("zot uses servers of type stdio and http only")
    if not given.command:
        raise ValueError("command is missing")
    if not all(pair.name and "=" not in pair.name and "\0" not in pair.name for pair in given.env):
        raise ValueError("the name of a variable in env is empty, or has a character that names cannot have")
    if any("\0" in word for word in (given.command, *given.args, *(pair.value for pair in given.env))):
        raise ValueError("a NUL character")
    env = {pair.name: pair.value for pair in given.env}
    return LiteralMcpServer(command=given.command, args=given.args, env=env)


def _free_name(name: str, taken: dict[str, Any]) -> str:
    """Return a name for a server that zot accepts, close to the client's, which may be any text."""
    letters = "".join(one if one in _NAME_CHARACTERS else "-" for one in name).strip("-")[:28] or "server"
    return next(one for one in (letters, *(f"{letters}-{number}" for number in range(2, 1000))) if one not in taken)
