"""ClientSession: one session of the daemon as a client sees it."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any, Protocol, Self, TypeVar

from zot.errors import AgentError, RunCancelled
from zot.events import AgentEvent, ApprovalRequest
from zot.messages import ImageBlock
from zot.wire import daemon_types as extensions
from zot.wire import daemon_types as said
from zot.wire.daemon_client import Asked, DaemonPeer, Listener, shown_from
from zot.wire.daemon_types import MessageEntry, MessagePage
from zot.wire.updates import TurnSummary

T = TypeVar("T")
#: A prompt of which it is not known if it arrived is looked for so long, twice, in a session that is at rest.
SETTLE_S = 1.0


class Line(Protocol):
    """The way to the daemon, which mends itself (`client.Client`)."""

    @property
    def peer(self) -> DaemonPeer:
        """What was asked and is followed."""

    async def ask(self, method: str, params: Any, kind: type[T], *, within_s: float | None = -1.0) -> T:
        """Return the result of a method as ``kind``; ``within_s`` None takes as long as it takes."""

    async def attach(self, session_id: str) -> ClientSession:
        """Return a session that exists, as it is."""

    def check(self) -> None:
        """Raise what keeps it from working at all."""

    def hear(self, session_id: str, listener: Listener) -> None:
        """Let somebody hear a session."""

    def leave(self, session_id: str, listener: Listener) -> None:
        """Let it hear nothing more."""

    def make_room(self) -> None:
        """Somebody has read."""


class ClientSession:
    """A session: what can be said to it, and what happens in it. Made by `Client.session` and `Client.attach`."""

    def __init__(self, client: Line, attached: said.Attached, *, settle_s: float = SETTLE_S) -> None:
        self._client = client
        self._settle_s = settle_s
        #: What the session is called.
        self.id = attached.session_id
        #: How it was when it was opened; with the question that it waits for, if it does.
        self.opened = attached
        #: The number above which is what has happened since, and the question that it waited for by then.
        self.opened_at = shown_from(attached)

    def prompt(self, text: str, images: Sequence[ImageBlock] = ()) -> ClientTurn:
        """Send a prompt, and return what happens during its turn. Whoever looks away does not end it."""
        self._client.check()
        prompt_id, arrived = os.urandom(8).hex(), asyncio.Event()
        asked = Asked(prompt_id, text, self._client.peer.following(self.id).cursor, arrived.set)
        self._client.hear(self.id, asked)
        attachments = [_attachment(image) for image in images]
        params = {"sessionId": self.id, "prompt": text, "attachments": attachments, "promptId": prompt_id}
        self._client.peer.ask("session/prompt", params, asked.answer)
        return ClientTurn(self, self._client, asked, arrived, self._settle_s)

    async def follow(self, after: int | None = None) -> AsyncGenerator[tuple[int, AgentEvent], None]:
        """Yield every event with its number, for ever: those above ``after``, then those that happen.

        What is not recorded, such as a notice, has the number 0. Raise ConnectionLost, EpochChanged.
        """
        self._client.check()
        arrived = asyncio.Event()
        listener = Listener(after, arrived.set)
        self._client.hear(self.id, listener)
        try:
            while True:
                while listener.unread:
                    yield listener.unread.popleft()
                self._client.make_room()
                if listener.problem is not None:
                    raise listener.problem
                await arrived.wait()
                arrived.clear()
        finally:
            self._client.leave(self.id, listener)

    async def cancel(self) -> None:
        """End the running turn. Raise RpcError if there is none."""
        await self._ask("session/cancel", said.Cancelled)

    async def approve(self, request: ApprovalRequest | str, decision: str) -> None:
        """Answer an `ApprovalRequest`, or the one of this id: allow_once, allow_always or reject.

        Raise RpcError if nobody waits for it.
        """
        request_id = request if isinstance(request, str) else request.id
        await self._ask("session/approve", said.Approved, requestId=request_id, decision=decision)

    async def state(self) -> said.State:
        """Return how it is."""
        return await self._ask("session/state", said.State)

    async def messages(self, *, limit: int | None = None, before: int | None = None) -> tuple[MessageEntry, ...]:
        """Return the conversation: all of it, or the last ``limit`` messages ``before`` the one of that number."""
        page = await self._ask("session/messages", MessagePage, limit=limit, beforeIndex=before)
        return page.messages

    async def past(self) -> MessagePage:
        """Return the conversation before the turn that runs; `follow` after its ``last_seq`` tells the rest."""
        return await self._ask("session/messages", MessagePage, view="past")

    async def steer(self, text: str, images: Sequence[ImageBlock] = (), *, prompt_id: str | None = None) -> None:
        """Say something to the running turn, before its next model call; a prompt, if there is none.

        By its ``prompt_id`` it can be taken back: then RpcError is raised.
        """
        more = {"attachments": [_attachment(image) for image in images], "promptId": prompt_id}
        await self._ask("session/steer", said.Steered, within_s=None, prompt=text, **more)

    async def take_back(self, prompt_id: str) -> None:
        """Let something that waits never be said. Raise RpcError if it has been."""
        await self._ask("session/take_back", said.TakenBack, promptId=prompt_id)

    async def compact(self) -> said.Compacted:
        """Replace the older part of the conversation by a summary, for the model, and return that."""
        return await self._ask("session/compact", said.Compacted, within_s=None)

    async def clear(self) -> None:
        """Begin the conversation anew. Raise RpcError during a turn."""
        await self._ask("session/clear", said.Cleared)

    async def commands(self) -> tuple[extensions.CommandEntry, ...]:
        """Return the commands of extensions."""
        return (await self._ask("session/commands", extensions.Commands)).commands

    async def run_command(self, name: str, args: str = "") -> extensions.CommandRun:
        """Run a command of an extension and return what it wants done; a prompt that it wants is run."""
        return await self._ask("session/run_command", extensions.CommandRun, within_s=None, name=name, args=args)

    async def press(self, panel_id: str, key: str, text: str = "") -> None:
        """Let an extension's panel have a key."""
        await self._ask("session/panel_key", extensions.PanelTold, panelId=panel_id, key=key, text=text)

    async def close_panel(self, panel_id: str) -> None:
        """Close an extension's panel."""
        await self._ask("session/panel_close", extensions.PanelTold, panelId=panel_id)

    async def fork(self, session_id: str | None = None, *, messages: int | None = None) -> ClientSession:
        """Copy it, or its first ``messages``, into a new session, and return that."""
        opened = await self._ask("session/fork", said.Opened, newSessionId=session_id, messages=messages)
        return await self._client.attach(opened.session_id)

    async def _ask(self, method: str, kind: type[T], *, within_s: float | None = -1.0, **params: Any) -> T:
        return await self._client.ask(method, {"sessionId": self.id, **params}, kind, within_s=within_s)


class ClientTurn:
    """What happens during one turn, in order, ending with `done`. Iterate over it once.

    To stop iterating does not end the turn: the daemon goes on with it. `ClientSession.cancel` ends it.
    """

    def __init__(
        self, session: ClientSession, client: Line, asked: Asked, arrived: asyncio.Event, settle_s: float
    ) -> None:
        self._session = session
        self._client = client
        self._asked = asked
        self._arrived = arrived
        self._settle_s = settle_s

    @property
    def outcome(self) -> TurnSummary | None:
        """How it ended, once it is over: `outcome`, `stop_reason`, `content`, `usage` and `error`."""
        return self._asked.summary

    @property
    def last_seq(self) -> int:
        """The number of the newest event of the session that it has seen, of whichever turn; 0 if there is none."""
        return self._asked.cursor or 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AgentEvent:
        """Return the next event. Raise RpcError if the prompt was refused, PromptLost if it never arrived."""
        while not self._asked.unread:
            if self._asked.is_over:
                self.close()
                if self._asked.problem is not None and self._asked.summary is None:
                    raise self._asked.problem
                raise StopAsyncIteration
            await self._wait()
        self._client.make_room()
        return self._asked.unread.popleft()[1]

    async def result(self) -> TurnSummary:
        """Hear it to its end, and return how it ended. Raise AgentError if it failed, RunCancelled."""
        async for _ in self:
            pass
        assert self.outcome is not None
        if self.outcome.outcome == "failed":
            raise AgentError(self.outcome.error)
        if self.outcome.outcome == "cancelled":
            raise RunCancelled("the turn was cancelled before it was done")
        return self.outcome

    def close(self) -> None:
        """Hear nothing more of it."""
        self._client.leave(self._session.id, self._asked)

    def __del__(self) -> None:
        self._client.leave(self._session.id, self._asked)

    async def _wait(self) -> None:
        """Wait for something new. In doubt, look if there can be anything."""
        if not self._asked.is_doubtful:
            await self._arrived.wait()
            self._arrived.clear()
            return
        if await self._is_at_rest() and await self._is_at_rest():
            self._asked.settle()

    async def _is_at_rest(self) -> bool:
        """True if nothing comes for a while, and nothing runs or waits in the session."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settle_s):
                await self._arrived.wait()
        if self._arrived.is_set():
            self._arrived.clear()
            return False
        try:
            state = await self._session.state()
        except TimeoutError:
            return False  # There is no connection yet, or the daemon is busy.
        return state.state == "idle" and not state.queued and not self._arrived.is_set()


def _attachment(image: ImageBlock) -> dict[str, Any]:
    return {"dataB64": base64.b64encode(image.data).decode(), "mimeType": image.mime_type}
