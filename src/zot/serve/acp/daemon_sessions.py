"""Sessions of an editor that run in the daemon, where other clients follow them, too."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from zot.client.client import Client
from zot.client.session import ClientSession, ClientTurn
from zot.errors import AgentError, ConnectionLost, NoSuchSession, RunCancelled, UserError
from zot.events import AgentEvent, Done, Reconfigured, UserMessage
from zot.messages import ImageBlock, ShownCall, ShownResult
from zot.panels import CommandAnswer, CommandInfo
from zot.serve.acp.session import (
    EditorSessions,
    Options,
    PromptReply,
    ReplayedConversation,
    SessionBackend,
    SessionListing,
    text_on_disk,
)
from zot.session.history import Batch
from zot.wire import acp
from zot.wire.daemon_client import UpdateListener
from zot.wire.daemon_types import Configured, Models
from zot.wire.jsonrpc import SESSION_NOT_FOUND, RpcError

log = logging.getLogger("zot")

#: How long a session that the client closes waits for the end of its cancelled prompts.
_CANCEL_S: Final = 5.0
#: The newest messages: the calls that wait for an approval are among them.
_NEWEST: Final = 64


class DaemonSession(SessionBackend):
    """One session of the daemon. It continues when the editor leaves."""

    def __init__(self, owner: EditorDaemonSessions, client: Client, session: ClientSession) -> None:
        self._owner = owner
        self._client = client
        self._session = session
        self._cwd = ""
        self._window = 0
        self._options = Options("", {})
        self._commands: Sequence[CommandInfo] = ()
        #: True until the first prompt of a session that this client created.
        self.is_unused = False
        self._listener: UpdateListener | None = None
        self._following: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        #: Events after this number are delivered; None: live ones only.
        self._after = session.opened_at if session.opened.state == "waiting_approval" else None
        #: The newest event that the view has processed, and the newest one that a replay has shown; 0 before the first.
        self._processed = self._replayed = 0
        self._problem: AgentError | None = None
        #: The calls without a result of a run that waits for an approval, unless a replay shows them.
        self._open_calls: Sequence[ShownCall] = ()

    async def find_open_calls(self) -> None:
        """Ask for the calls without a result: an approval request is about one of them. Raise AgentError."""
        if self._session.opened.state == "waiting_approval":
            blocks = [block for one in await self._session.messages(limit=_NEWEST) for block in one.blocks]
            done = {block.call_id for block in blocks if isinstance(block, ShownResult)}
            self._open_calls = [one for one in blocks if isinstance(one, ShownCall) and one.id not in done]

    async def refresh(self) -> None:
        """Ask for the directory and the options. Raise AgentError."""
        wanted = {"sessionId": self._session.id}
        now = await self._session.state()
        models = (await self._client.ask("session/models", wanted, Models)).models
        chosen = (await self._client.ask("session/configure", wanted, Configured)).overrides
        self._cwd, self._window = now.cwd, now.context_window
        names = {one.id: one.name or one.id for one in models}
        model = chosen.model or now.model
        self._options = Options(model, names if model in names else {**names, model: model}, chosen.reasoning or "")

    @property
    def is_ready(self) -> bool:
        return self._problem is None

    async def load(self) -> None:
        """Open it again, with the next connection: the last one was lost."""
        self._client, self._session = await self._owner.opened(self._session.id, self._cwd)
        await self.refresh()
        self._problem = None
        self.follow()

    def hold(self) -> None:
        if self._following is not None:
            self._deliver_unread()
            self._following.cancel()
            self._following = None

    def follow(self) -> None:
        if self._following is None and self._problem is None:
            if self.view is not None:
                self.view.show_open(self._open_calls)
            self._open_calls = ()
            arrived = asyncio.Event()
            self._listener = UpdateListener(self._after, arrived.set)
            self._client.hear(self._session.id, self._listener)
            self._following = asyncio.get_running_loop().create_task(
                self._follow(self._listener, arrived), name="zot acp following"
            )

    async def _follow(self, listener: UpdateListener, arrived: asyncio.Event) -> None:
        """Deliver every event to the view, those that arrived together in one batch."""
        try:
            while listener.problem is None:
                await arrived.wait()
                arrived.clear()
                self._deliver_unread()
                if self.view is not None and self.view.full:
                    await self.view.room()
        finally:
            self._client.leave(self._session.id, listener)
        self._following, self._problem = None, _advised(listener.problem)
        if self.view is not None:
            self.view.fail_all(self._problem)

    def _deliver_unread(self) -> None:
        """Deliver the events that have arrived. Those of a run that was replayed take effect and appear once."""
        assert self._listener is not None
        arrived = list(self._listener.unread)
        self._listener.unread.clear()
        self._client.make_room()
        self._after = self._listener.cursor
        if not arrived or self.view is None:
            return
        if again := [event for seq, event in arrived if 0 < seq <= self._processed]:
            self.view.show_again(again, {})
        if replayed := [event for seq, event in arrived if self._processed < seq <= self._replayed]:
            for batch in _batches(replayed):
                self.view.deliver_replayed(batch)
        upto = max(self._processed, self._replayed)
        events = [event for seq, event in arrived if not 0 < seq <= upto]
        for batch in _batches([event for event in events if not isinstance(event, Reconfigured)]):
            self.view.deliver(batch)
        self._processed = max(self._processed, self._after or 0)
        if any(isinstance(event, Reconfigured) for event in events):
            self._spawn(self._show_changes())

    async def _show_changes(self) -> None:
        with suppress(AgentError, TimeoutError):
            await self.refresh()
            if self.view is not None:
                self.view.show_options()
                await self.view.show_commands()

    async def forget_unused(self) -> None:
        """Delete it if it never had a prompt: editors open sessions freely."""
        if self.is_unused:
            self.is_unused = False
            with suppress(AgentError, TimeoutError):
                await self._client.call("session/delete", {"sessionId": self._session.id})

    async def release(self) -> None:
        await self.forget_unused()
        if self.view is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.view.settled(), _CANCEL_S)
        for task in [*self._tasks, *filter(None, [self._following])]:
            task.cancel()
        self.view = None
        self._owner.forget(self._session.id)

    @property
    def cwd(self) -> str:
        return self._cwd

    @property
    def context_window(self) -> int:
        return self._window

    def prompt(self, reply: PromptReply, text: str, images: Sequence[ImageBlock], *, steers: bool) -> None:
        if not text.strip() and not images:
            raise UserError("the prompt is empty; give it a message or images")
        self.is_unused = False
        if steers:
            self._spawn(self._answered(reply, self._session.steer(text, images, prompt_id=reply.prompt_id)))
        else:
            self._spawn(self._answered(reply, _end_of(self._session.prompt(text, images, prompt_id=reply.prompt_id))))

    def compact(self, reply: PromptReply) -> None:
        self._spawn(self._compact(reply))

    async def _compact(self, reply: PromptReply) -> None:
        """Answer with the daemon's answer, after the updates before it: a compaction may end without an event."""
        problem: AgentError | None = None
        try:
            await self._session.compact()
        except AgentError as exc:
            problem = exc
        if self._following is not None:
            self._deliver_unread()
        if problem is None:
            reply.stop("end_turn")
        else:
            reply.dropped(_advised(problem))

    async def _answered(self, reply: PromptReply, work: Any) -> None:
        """Await the daemon's answer to a prompt. The view answers the editor at the end of the run, if there is one."""
        try:
            await work
        except AgentError as problem:
            if not _has_run(problem):
                reply.dropped(_advised(problem))
        await reply.over.wait()

    def cancel(self, reply: PromptReply) -> None:
        if self.view is not None and self.view.runs(reply):
            self._send("session/cancel")
        else:
            self._send("session/take_back", promptId=reply.prompt_id)

    def abort(self) -> None:
        for reply in () if self.view is None else self.view.waiting():
            self._send("session/take_back", promptId=reply.prompt_id)
        self._send("session/cancel")

    def approve(self, request_id: str, decision: str) -> None:
        self._send("session/approve", requestId=request_id, decision=decision)

    def answer(self, request_id: str, result: acp.QuestionResult) -> None:
        self._send("session/answer", requestId=request_id, action=result.action, content=result.content)

    def decline(self, request_id: str) -> None:
        pass  # Another client may show it, and it expires.

    def options(self) -> Options:
        return self._options

    async def set_option(self, option: str, value: str) -> None:
        wanted = {"sessionId": self._session.id, "overrides": {option: value}}
        await self._client.ask("session/configure", wanted, Configured)
        await self.refresh()

    def command_names(self) -> Sequence[str]:
        return [one.name for one in self._commands]

    async def commands(self) -> Sequence[CommandInfo]:
        found = await self._session.commands()
        self._commands = [CommandInfo(one.name, one.description, one.extension) for one in found]
        return self._commands

    async def run_command(self, name: str, args: str) -> CommandAnswer:
        self.is_unused = False
        ran = await self._session.run_command(name, args)
        return CommandAnswer(ran.extension, ran.action, "", ran.insert, ran.display)

    async def conversation(self) -> ReplayedConversation:
        self._open_calls = ()
        page = await self._session.past()
        if page.last_seq and self._following is None:
            self._replayed = page.last_seq
            self._after = page.last_seq if self._after is None else min(self._after, page.last_seq)
        return ReplayedConversation([one.past() for one in page.messages])

    def present_text(self, call_id: str, path: str, *, waits: bool) -> str | None:
        # The update has taken a while: a call that does not wait may have changed the file.
        return text_on_disk(path) if waits else None

    async def old_text(self, call_id: str) -> str | None:
        return None  # The daemon does not tell.

    def _send(self, method: str, **params: Any) -> None:
        """Call a method now, in the order of the client's requests. A refusal means that it came too late."""
        self._client.peer.ask(method, {"sessionId": self._session.id, **params}, lambda answer: None)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work, name="zot acp turn")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _batches(events: Sequence[AgentEvent]) -> Iterator[Batch]:
    """Yield ``events`` in batches, each of one run."""
    start = 0
    for end in [at for at, event in enumerate(events, 1) if isinstance(event, Done)]:
        yield Batch(0, 0, events[start:end])
        start = end
    if start < len(events):
        yield Batch(0, 0, events[start:])


def _advised(problem: AgentError) -> AgentError:
    """Return the error for the prompts of a session that no longer sends events."""
    if not isinstance(problem, ConnectionLost):
        return problem
    return ConnectionLost(f"{problem}. Start the daemon with: zot daemon. The next prompt continues the session.")


def _has_run(problem: AgentError) -> bool:
    """True for the answer to a prompt whose run failed: its events have been sent before."""
    return isinstance(problem, RpcError) and isinstance(problem.data, dict) and "stopReason" in problem.data


async def _end_of(turn: ClientTurn) -> None:
    """Wait for the end of a turn. Raise RunCancelled if it was dropped before it began."""
    has_begun = False
    async for event in turn:
        has_begun = has_begun or isinstance(event, UserMessage)
    if not has_begun:
        raise RunCancelled("the prompt was dropped before it began")


class EditorDaemonSessions(EditorSessions):
    """The sessions of the daemon that ``connect`` reaches, with the agent named ``agent``."""

    def __init__(self, connect: Callable[[bool], Client], agent: str) -> None:
        self._connect = connect
        self._agent = agent
        self._client: Client | None = None
        self._starting = asyncio.Lock()
        #: Open sessions by id.
        self._open: dict[str, DaemonSession] = {}

    def check_login(self) -> None:
        return  # The daemon has its own keys.

    async def new(self, wanted: acp.NewSession) -> tuple[str, DaemonSession]:
        client = await self._connected()
        made = await client.session(agent=self._agent, cwd=wanted.cwd)
        backend = await self._made(client, made, wanted.mcp_servers)
        backend.is_unused = True
        return made.id, backend

    async def open(self, wanted: acp.OpenSession) -> DaemonSession:
        if (backend := self._open.get(wanted.session_id)) is None:
            client, session = await self.opened(wanted.session_id, wanted.cwd)
            return await self._made(client, session, wanted.mcp_servers)
        await (backend.refresh() if backend.is_ready else backend.load())
        return backend

    async def opened(self, session_id: str, cwd: str) -> tuple[Client, ClientSession]:
        """Return a recorded session and its connection. ``cwd`` replaces a directory that is gone. Raise AgentError."""
        client = await self._connected()
        known = {one.session_id: one for one in await client.sessions()}
        if (entry := known.get(session_id)) is None:
            raise NoSuchSession(f"there is no session {session_id!r}")
        # It may have been closed, and is opened where it is: others follow it.
        place = None if await asyncio.to_thread(os.path.isdir, entry.cwd) else cwd
        return client, await client.session(session_id, entry.agent_alias, place)

    def forget(self, session_id: str) -> None:
        """Remove a session that the client has closed."""
        self._open.pop(session_id, None)

    async def fork(self, wanted: acp.OpenSession) -> tuple[str, DaemonSession]:
        client = await self._connected()
        try:
            copy = await (await client.attach(wanted.session_id)).fork()
        except RpcError as problem:
            raise _missing(problem) from None
        return copy.id, await self._made(client, copy, wanted.mcp_servers)

    async def listed(self, cwd: str | None) -> Sequence[SessionListing]:
        found = await (await self._connected()).sessions()
        return [
            SessionListing(one.session_id, one.cwd, one.title, one.last_activity)
            for one in found
            if one.message_count and os.path.isabs(one.cwd) and cwd in (None, one.cwd)
        ]

    async def delete(self, session_id: str) -> None:
        client = await self._connected()
        try:
            await client.call("session/delete", {"sessionId": session_id})
        except RpcError as problem:
            if problem.code != SESSION_NOT_FOUND:
                raise

    async def close(self) -> None:
        for backend in self._open.values():
            await backend.forget_unused()
        if self._client is not None:
            await self._client.close()

    async def _made(
        self, client: Client, session: ClientSession, servers: Sequence[acp.EditorMcpServer] | None
    ) -> DaemonSession:
        if servers:
            log.warning(
                "sessions of the daemon have its MCP servers; those of the client are not used: %d", len(servers)
            )
        backend = DaemonSession(self, client, session)
        await backend.refresh()
        await backend.find_open_calls()
        self._open[session.id] = backend
        return backend

    async def _connected(self) -> Client:
        """Return the connection, made for the first session and after it was lost. Raise ConnectionLost."""
        async with self._starting:
            if self._client is not None:
                try:
                    self._client.check()
                except ConnectionLost:
                    await self._client.close()
                    self._client = None
            if self._client is None:
                asks = self.client.greeting.client.elicitation is not None
                self._client = await self._connect(asks).__aenter__()
            return self._client


def _missing(problem: RpcError) -> AgentError:
    return NoSuchSession(problem.message) if problem.code == SESSION_NOT_FOUND else problem
