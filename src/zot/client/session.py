"""A daemon session and its turns as a client sees them."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

from zot.errors import AgentError, RunCancelled
from zot.events import AgentEvent, ApprovalRequest, QuestionRequest
from zot.messages import ImageBlock
from zot.wire.daemon_client import Asked, UpdateListener, shown_from
from zot.wire.daemon_types import (
    Approved,
    Attached,
    Cancelled,
    Cleared,
    CommandEntry,
    CommandRun,
    Commands,
    Compacted,
    CompactUndone,
    MessageEntry,
    MessagePage,
    Opened,
    PanelTold,
    QuestionAnswered,
    ResourceEntry,
    Resources,
    Rewound,
    State,
    Steered,
    TakenBack,
)
from zot.wire.updates import TurnSummary

if TYPE_CHECKING:
    from zot.client.client import Client

T = TypeVar("T")
#: How long, twice, an idle session must show no trace of a prompt that was in flight when the connection broke.
SETTLE_S = 1.0


class ClientSession:
    """A session of the daemon: its methods and its events. Created by `Client.session` and `Client.attach`.

    ``id`` names it. ``opened`` is its state when it was opened; `follow` from ``opened_at`` yields everything since.
    """

    def __init__(self, client: Client, attached: Attached, *, settle_s: float = SETTLE_S) -> None:
        self._client = client
        self._settle_s = settle_s
        self.id = attached.session_id
        #: The session when it was opened, with its pending approval, if any.
        self.opened = attached
        #: The cursor for everything later, including the approval request that was pending then.
        self.opened_at = shown_from(attached)

    def prompt(self, text: str, images: Sequence[ImageBlock] = (), *, prompt_id: str | None = None) -> ClientTurn:
        """Send a prompt and return its turn. Dropping the returned turn does not cancel it.

        With a ``prompt_id`` of yours, `take_back` can withdraw it while it waits.
        """
        self._client.check()
        prompt_id, arrived = prompt_id or os.urandom(8).hex(), asyncio.Event()
        asked = Asked(prompt_id, text, self._client.peer.following(self.id).cursor, arrived.set)
        self._client.hear(self.id, asked)
        attachments = [_attachment(image) for image in images]
        params = {"sessionId": self.id, "prompt": text, "attachments": attachments, "promptId": prompt_id}
        self._client.peer.ask("session/prompt", params, asked.answer)
        return ClientTurn(self, self._client, asked, arrived, self._settle_s)

    async def follow(self, after: int | None = None) -> AsyncGenerator[tuple[int, AgentEvent], None]:
        """Yield every event with its number, without end: first a replay of those above ``after``, then live ones.

        Events that are not recorded, such as notices, have the number 0. Raise ConnectionLost, EpochChanged.
        """
        self._client.check()
        arrived = asyncio.Event()
        listener = UpdateListener(after, arrived.set)
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
        await self._ask("session/cancel", Cancelled)

    async def approve(self, request: ApprovalRequest | str, decision: str) -> None:
        """Answer an approval request, given itself or by id: allow_once, allow_always or reject.

        Raise RpcError if it is not pending.
        """
        request_id = request if isinstance(request, str) else request.id
        await self._ask("session/approve", Approved, requestId=request_id, decision=decision)

    async def answer(
        self, request: QuestionRequest | str, action: str, content: Mapping[str, Any] | None = None
    ) -> None:
        """Answer a question of a tool, given itself or by id: accept with the values of its fields, decline or cancel.

        Raise RpcError if it is not open or a value does not fit.
        """
        request_id = request if isinstance(request, str) else request.id
        await self._ask("session/answer", QuestionAnswered, requestId=request_id, action=action, content=content)

    async def state(self) -> State:
        """Return a snapshot of the session."""
        return await self._ask("session/state", State)

    async def messages(self, *, limit: int | None = None, before: int | None = None) -> tuple[MessageEntry, ...]:
        """Return the conversation, or the last ``limit`` messages before the one with the number ``before``."""
        page = await self._ask("session/messages", MessagePage, limit=limit, beforeIndex=before)
        return page.messages

    async def past(self) -> MessagePage:
        """Return the conversation before the running turn; `follow` after its ``last_seq`` yields the rest."""
        return await self._ask("session/messages", MessagePage, view="past")

    async def steer(self, text: str, images: Sequence[ImageBlock] = (), *, prompt_id: str | None = None) -> None:
        """Steer the running turn: add a message before its next model call. A prompt if no turn is running.

        With a ``prompt_id``, `take_back` can withdraw it; this call then raises RpcError.
        """
        more = {"attachments": [_attachment(image) for image in images], "promptId": prompt_id}
        await self._ask("session/steer", Steered, within_s=None, prompt=text, **more)

    async def take_back(self, prompt_id: str) -> None:
        """Withdraw a queued prompt or steering message. Raise RpcError if the model has already got it."""
        await self._ask("session/take_back", TakenBack, promptId=prompt_id)

    async def compact(self) -> Compacted:
        """Replace the older part of the conversation by a summary, for the model, and return the summary."""
        return await self._ask("session/compact", Compacted, within_s=None)

    async def undo_compact(self) -> int:
        """Restore the messages that the newest compaction replaced; return how many there are now.

        Raise RpcError if there is nothing to undo, or during a turn.
        """
        return (await self._ask("session/undo_compact", CompactUndone)).message_count

    async def rewind(
        self, *, messages: int | None = None, at: int | None = None, files: bool = True, preview: bool = False
    ) -> Rewound:
        """Go back to the first ``messages``, or to the row ``at``, with the files that tools have changed since.

        With ``preview`` nothing changes; the result says what would. Raise RpcError, changing nothing, if a file cannot
        be restored, or during a turn.
        """
        wanted = {"messages": messages, "at": at, "files": files, "preview": preview}
        return await self._ask("session/rewind", Rewound, within_s=None, **wanted)

    async def clear(self) -> None:
        """Start an empty conversation. Raise RpcError during a turn."""
        await self._ask("session/clear", Cleared)

    async def commands(self) -> tuple[CommandEntry, ...]:
        """Return the commands of extensions."""
        return (await self._ask("session/commands", Commands)).commands

    async def resources(self) -> tuple[ResourceEntry, ...]:
        """Return the resources of MCP servers that prompts can mention."""
        return (await self._ask("session/resources", Resources)).resources

    async def run_command(self, name: str, args: str = "") -> CommandRun:
        """Run a command of an extension and return the action it asks for. The daemon runs a requested prompt."""
        return await self._ask("session/run_command", CommandRun, within_s=None, name=name, args=args)

    async def send_key(self, panel_id: str, key: str, text: str = "") -> None:
        """Send a key to an extension's panel."""
        await self._ask("session/panel_key", PanelTold, panelId=panel_id, key=key, text=text)

    async def close_panel(self, panel_id: str) -> None:
        """Close an extension's panel."""
        await self._ask("session/panel_close", PanelTold, panelId=panel_id)

    async def fork(self, session_id: str | None = None, *, messages: int | None = None) -> ClientSession:
        """Copy the session, or its first ``messages``, into a new one, and return the new one."""
        opened = await self._ask("session/fork", Opened, newSessionId=session_id, messages=messages)
        return await self._client.attach(opened.session_id)

    async def _ask(self, method: str, kind: type[T], *, within_s: float | None = -1.0, **params: Any) -> T:
        return await self._client.ask(method, {"sessionId": self.id, **params}, kind, within_s=within_s)


class ClientTurn:
    """The events of one turn, in order, ending with `done`. Iterate over it once.

    If the daemon refuses the prompt, iteration raises RpcError, and there is no `done`. The turn continues in the
    daemon when iteration stops; `ClientSession.cancel` ends it.
    """

    def __init__(
        self, session: ClientSession, client: Client, asked: Asked, arrived: asyncio.Event, settle_s: float
    ) -> None:
        self._session = session
        self._client = client
        self._asked = asked
        self._arrived = arrived
        self._settle_s = settle_s

    @property
    def outcome(self) -> TurnSummary | None:
        """How the turn ended (`outcome`, `stop_reason`, `content`, `usage`, `error`); None while it runs."""
        return self._asked.summary

    @property
    def last_seq(self) -> int:
        """The number of the newest event received from the session, of any turn; 0 if there is none."""
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
        """Wait for the turn's end and return its summary. Raise AgentError if it failed, RunCancelled."""
        async for _ in self:
            pass
        assert self.outcome is not None
        if self.outcome.outcome == "failed":
            raise AgentError(self.outcome.error)
        if self.outcome.outcome == "cancelled":
            raise RunCancelled("the turn was cancelled before it was done")
        return self.outcome

    def close(self) -> None:
        """Unsubscribe from the turn's events."""
        self._client.leave(self._session.id, self._asked)

    def __del__(self) -> None:
        self._client.leave(self._session.id, self._asked)

    async def _wait(self) -> None:
        """Wait for an event. If the prompt may be lost, check that the session still can emit one."""
        if not self._asked.is_doubtful:
            await self._arrived.wait()
            self._arrived.clear()
            return
        if await self._is_idle() and await self._is_idle():
            self._asked.settle()

    async def _is_idle(self) -> bool:
        """True if no event arrives for ``settle_s`` and nothing runs or waits in the session."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settle_s):
                await self._arrived.wait()
        if self._arrived.is_set():
            self._arrived.clear()
            return False
        try:
            state = await self._session.state()
        except TimeoutError:
            return False  # Not reconnected yet, or the daemon is busy.
        return state.state == "idle" and not state.queued and not self._arrived.is_set()


def _attachment(image: ImageBlock) -> dict[str, Any]:
    return {"dataB64": base64.b64encode(image.data).decode(), "mimeType": image.mime_type}
