"""Remote conversations: sessions of the daemon."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, NoReturn

from zot.client.client import Client
from zot.client.session import ClientSession
from zot.errors import AgentError, ConnectionLost, PromptLost, UserError
from zot.events import AgentEvent, Decision, Done, Error, QuestionAction, SessionState
from zot.messages import ImageBlock, PastMessage, ShownImage, text_of
from zot.panels import CommandAnswer, CommandInfo, ResourceInfo
from zot.session.history import Batch, Subscriber
from zot.ui.conversation import (
    AllowedCall,
    Home,
    ModelInfo,
    RewindResult,
    SessionInfo,
    SideReply,
    SkillInfo,
    Untrusted,
)
from zot.ui.readable import match_session_id
from zot.wire.daemon_types import AllowedCalls, Answered, Configured, Forgotten, Lock, Models, Reloaded
from zot.wire.jsonrpc import SESSION_NOT_FOUND, RpcError


class ClientConversation:
    """A `Conversation` over a session of the daemon, which continues without subscribers."""

    def __init__(self, client: Client, session: ClientSession) -> None:
        self._client = client
        self._session = session
        self._followers: dict[Subscriber, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Ids of the side questions that are not answered yet.
        self._asides: set[str] = set()
        self._agent = ""
        #: Replay to subscribers starts after this sequence number; None: live events only.
        self._after = session.opened_at if session.opened.state == "waiting_approval" else None

    def follow(self, subscriber: Subscriber) -> Callable[[], None]:
        self._followers[subscriber] = self._following(subscriber)

        def stop() -> None:
            if (following := self._followers.pop(subscriber, None)) is not None:
                following.cancel()

        return stop

    @property
    def is_reachable(self) -> bool:
        return self._client.is_connected

    async def state(self) -> SessionState:
        if not self._client.is_connected:  # Fail at once: neither a status request nor leaving may wait.
            raise UserError("there is no connection to the daemon")
        async with _user_errors():
            state = await self._session.state()
        self._agent = state.agent_alias
        return state.snapshot

    async def agent(self) -> str:
        """Return the alias of the session's agent, cached after the first `state`."""
        if not self._agent:
            await self.state()
        return self._agent

    async def messages(self) -> Sequence[PastMessage]:
        async with _user_errors():
            now = await self._session.messages()
            with suppress(RpcError):  # Older daemons do not report how runs ended.
                before = (await self._session.past()).messages
                now = (*before, *now[len(before) :])
        return [one.past() for one in now]

    async def past(self) -> Sequence[PastMessage]:
        try:
            page = await self._session.past()
        except RpcError:  # Older daemons return all messages, and then live events.
            return await self.messages()
        except TimeoutError:
            raise UserError("the daemon did not answer in time") from None
        if page.last_seq:  # An approval pending since before the daemon started belongs to no run.
            self._after = page.last_seq if self._after is None else min(self._after, page.last_seq)
        return [one.past() for one in page.messages]

    async def images(self, place: str) -> Sequence[ImageBlock]:
        del place  # The daemon only reports their sizes.
        return ()

    async def prompt(
        self, text: str, images: Sequence[ImageBlock] = (), *, unsaid: Callable[[], None] = lambda: None
    ) -> None:
        turn = self._session.prompt(text, images)

        async def consume() -> None:
            async for _ in turn:
                pass

        self._begin(consume(), unsaid)

    async def steer(self, text: str, images: Sequence[ImageBlock] = (), *, name: str = "") -> None:
        async with _user_errors():
            await self._session.steer(text, images, prompt_id=name or None)

    async def withdraw(self, name: str) -> None:
        async with _user_errors():
            await self._session.take_back(name)

    async def retry(self) -> None:
        """Send the prompt again: the daemon has no retry."""
        asked = [message for message in await self.messages() if message.role == "user"]
        if not asked:
            raise UserError("there is no prompt yet")
        if any(isinstance(block, ShownImage) for block in asked[-1].content):
            self._refuse("only the text of a prompt can be sent again", "send this one again with its images")
        await self.prompt(text_of(asked[-1].content))

    async def abort(self) -> None:
        async with _user_errors():
            for aside in tuple(self._asides):
                with suppress(RpcError):  # It may be answered by now.
                    await self._session.take_back(aside)
            try:
                await self._session.cancel()
            except RpcError as problem:
                if problem.code != SESSION_NOT_FOUND:  # It means that nothing runs.
                    raise

    async def approve(self, request: str, decision: Decision) -> None:
        async with _user_errors():
            await self._session.approve(request, decision)

    async def answer(self, request: str, action: QuestionAction, content: Mapping[str, Any]) -> None:
        async with _user_errors():
            await self._session.answer(request, action, content)

    async def remembered(self) -> Sequence[AllowedCall]:
        async with _user_errors():
            found = await self._client.ask("session/allowed", {"sessionId": self._session.id}, AllowedCalls)
        return [AllowedCall(one.tool, one.subject) for one in found.allowed]

    async def forget(self, one: AllowedCall) -> None:
        async with _user_errors():
            wanted = {"sessionId": self._session.id, "tool": one.tool, "subject": one.subject}
            await self._client.ask("session/forget", wanted, Forgotten)

    async def commands(self) -> Sequence[CommandInfo]:
        async with _user_errors():
            found = await self._session.commands()
        return [CommandInfo(one.name, one.description, one.extension) for one in found]

    async def resources(self) -> Sequence[ResourceInfo]:
        async with _user_errors():
            found = await self._session.resources()
        return [ResourceInfo(one.mention, one.title) for one in found]

    async def run_command(self, name: str, args: str) -> CommandAnswer:
        async with _user_errors():
            ran = await self._session.run_command(name, args)
        if ran.action == "prompt":
            return CommandAnswer(ran.extension, "noop")
        return CommandAnswer(ran.extension, ran.action, "", ran.insert, ran.display, ran.panel_id)

    async def send_key(self, panel_id: str, key: str, text: str = "") -> None:
        async with _user_errors():
            await self._session.send_key(panel_id, key, text)

    async def close_panel(self, panel_id: str) -> None:
        async with _user_errors():
            await self._session.close_panel(panel_id)

    async def reload_extensions(self) -> Sequence[str]:
        async with _user_errors():
            wanted = {"sessionId": self._session.id}
            return (await self._client.ask("session/reload", wanted, Reloaded, within_s=None)).extensions

    async def models(self) -> Sequence[ModelInfo]:
        async with _user_errors():
            wanted = {"sessionId": self._session.id, "all": True}
            found = await self._client.ask("session/models", wanted, Models)
        return [ModelInfo(one.provider, one.id, one.name, one.context_window) for one in found.models]

    async def use_model(self, model: ModelInfo) -> None:
        async with _user_errors():
            overrides = {"model": model.id}
            if model.provider != (await self.state()).provider:  # Older daemons do not accept this override.
                overrides["modelProvider"] = model.provider
            wanted = {"sessionId": self._session.id, "overrides": overrides}
            await self._client.ask("session/configure", wanted, Configured)

    async def lock(self, *, locked: bool) -> None:
        async with _user_errors():
            await self._client.ask("session/lock", {"sessionId": self._session.id, "locked": locked}, Lock)

    async def compact(self) -> None:
        async def compact() -> None:
            await self._session.compact()

        self._begin(compact())

    async def undo_compact(self) -> None:
        async with _user_errors():
            await self._session.undo_compact()

    async def rewind(self, messages: int, *, files: bool = True, preview: bool = False) -> RewindResult:
        async with _user_errors():
            done = await self._session.rewind(messages=messages, files=files, preview=preview)
        return RewindResult(done.message_count, [(file.path, file.change) for file in done.files], done.undo)

    async def clear(self) -> None:
        async with _user_errors():
            await self._session.clear()

    async def fork(self, messages: int | None = None) -> str:
        async with _user_errors():
            return (await self._session.fork(messages=messages)).id

    async def aside(self, question: str) -> SideReply:
        wanted = {"sessionId": self._session.id, "question": question, "promptId": os.urandom(8).hex()}
        self._asides.add(wanted["promptId"])
        try:
            async with _user_errors():
                answer = await self._client.ask("session/aside", wanted, Answered, within_s=None)
        finally:
            self._asides.discard(wanted["promptId"])
        return SideReply(answer.content, answer.usage.counters)

    async def close(self) -> None:
        tasks = {*self._followers.values(), *self._tasks}
        self._followers.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _following(self, subscriber: Subscriber) -> asyncio.Task[None]:
        return asyncio.create_task(self._deliver(subscriber), name="zot following")

    async def _deliver(self, subscriber: Subscriber) -> None:
        after, self._after = self._after, None
        try:
            async with aclosing(self._session.follow(after)) as events:
                async for seq, event in events:
                    subscriber.deliver(Batch(seq, 0, [event]))
                    if subscriber.full:
                        await subscriber.room()
        except AgentError as problem:
            subscriber.deliver(Batch(0, 0, _failed_events(problem)))

    def _follow_again(self) -> None:
        """Resubscribe those whose stream ended because the session was gone: its id may exist again."""
        for subscriber, following in self._followers.items():
            if following.done():
                self._followers[subscriber] = self._following(subscriber)

    def _begin(self, work: Coroutine[Any, Any, None], on_failure: Callable[[], None] = lambda: None) -> None:
        """Run ``work`` in a task; notify subscribers if it cannot run, unless they learn it anyway (`_is_news`)."""
        self._follow_again()

        async def deliver_failure() -> None:
            try:
                await work
            except AgentError as problem:
                if _is_news(problem):
                    on_failure()
                for subscriber in self._followers if _is_news(problem) else ():
                    subscriber.deliver(Batch(0, 0, _failed_events(problem)))

        task = asyncio.create_task(deliver_failure(), name="zot turn")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refuse(self, why: str, instead: str) -> NoReturn:
        raise UserError(f"this session runs in the daemon: {why}; {instead}")


@asynccontextmanager
async def _user_errors() -> AsyncIterator[None]:
    """Raise the daemon's refusals as UserError."""
    try:
        yield
    except RpcError as problem:
        raise UserError(problem.message) from None
    except TimeoutError:
        raise UserError("the daemon did not answer in time") from None


def _is_news(problem: AgentError) -> bool:
    """False for failures that subscribers already receive: a failed run, or the lost connection."""
    match problem:
        case RpcError(data={"stopReason": _}):
            return False
        case ConnectionLost():
            return isinstance(problem, PromptLost)
        case _:
            return True


def _failed_events(problem: AgentError) -> list[AgentEvent]:
    return [Error(str(problem)), Done()]


class ClientHome:
    """A `Home` whose sessions run in the daemon.

    ``own`` returns the user's local home for a directory and an agent alias; it is None if the daemon uses another
    home. A session opened from within another one uses its agent.
    """

    def __init__(
        self, client: Client, *, cwd: str, agent: str = "default", own: Callable[[str, str], Home] | None = None
    ) -> None:
        self._client = client
        self._cwd = cwd
        self._agent = agent
        self._make_own = own
        self._newest: ClientConversation | None = None

    def conversation(self, session: ClientSession) -> ClientConversation:
        """Wrap a client session."""
        self._newest = ClientConversation(self._client, session)
        return self._newest

    async def open(self, session: str | None = None) -> ClientConversation:
        if session is None:
            return self.conversation(await self._client.session(agent=await self._agent_here(), cwd=self._cwd))
        return self.conversation(await self._named(session))

    async def _named(self, name: str) -> ClientSession:
        """Return the session ``name``, or the only one whose id starts with it.

        Raise UserError, RpcError.
        """
        known = {one.session_id: one for one in await self._client.sessions()}
        session_id = match_session_id(name, list(known)) or name
        if (entry := known.get(session_id)) is not None:
            with suppress(RpcError):  # A session that cannot be opened can still be read.
                return await self._client.session(session_id, entry.agent_alias)  # Reopen it: it may have been closed.
        return await self._client.attach(session_id)

    async def sessions(self) -> Sequence[SessionInfo]:
        return [
            SessionInfo(one.session_id, one.title, one.cwd, one.last_activity, one.message_count, one.parent_id or "")
            for one in await self._client.sessions()
        ]

    async def export(self, session: str, path: str) -> None:
        own = await self._own("has its own files; on its machine, run: zot sessions --config-dir DIR export")
        await own.export(session, path)

    async def import_(self, path: str) -> str:
        own = await self._own("has its own files; on its machine, run: zot sessions --config-dir DIR import")
        return await own.import_(path)

    async def skills(self) -> Sequence[SkillInfo]:
        own = await self._own("has its own home; on its machine, run: zot skills list")
        return await own.skills()

    async def untrusted(self) -> Sequence[Untrusted]:
        return ()

    async def trust(self, one: Untrusted) -> None:
        raise UserError("a session of the daemon cannot ask for trust; use `zot ext trust` or `zot skills trust`")

    async def providers(self) -> Sequence[str]:
        own = await self._own("has its own keys; on its machine, run: zot login, zot logout")
        return await own.providers()

    async def login(self, provider: str, key: str) -> str:
        own = await self._own("has its own keys; on its machine, run: zot login")
        return await own.login(provider, key)

    async def logout(self, provider: str) -> str:
        own = await self._own("has its own keys; on its machine, run: zot logout")
        return await own.logout(provider)

    async def _own(self, otherwise: str) -> Home:
        """Return the user's local home for the session's directory. Raise UserError if the daemon uses another one."""
        if self._make_own is None:
            raise UserError(f"this cannot be done here: the daemon {otherwise}")
        cwd = self._cwd if self._newest is None else (await self._newest.state()).cwd
        return self._make_own(cwd, await self._agent_here())

    async def _agent_here(self) -> str:
        """Return the agent of the newest session, or the default one."""
        return self._agent if self._newest is None else await self._newest.agent()
