"""The conversation on screen: history first, then live events without a gap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from zot.errors import UserError
from zot.events import AgentEvent, TextDelta, ThinkingDelta
from zot.messages import text_of
from zot.session.history import Batch, Subscriber
from zot.ui.conversation import Conversation

if TYPE_CHECKING:
    from zot.ui.terminal.app import ZotApp
    from zot.ui.terminal.entries import Entry, TranscriptBuilder
    from zot.ui.terminal.pictures import ImageLoader

#: A feed with more undrawn events pauses the run.
_MAX_PENDING = 20_000


class EventFeed(Subscriber):
    """The events for a screen. ``arrived`` is called when events can be taken."""

    can_approve = True
    can_answer = True

    def __init__(self, arrived: Callable[[], None]) -> None:
        self._arrived = arrived
        self._pending: list[AgentEvent] = []
        self._taken = asyncio.Event()

    def deliver(self, batch: Batch) -> None:
        self._pending.extend(batch.events)
        self._arrived()

    @property
    def full(self) -> bool:
        return len(self._pending) > _MAX_PENDING

    @property
    def waits(self) -> bool:
        """True if there are events to take."""
        return bool(self._pending)

    async def room(self) -> None:
        while self.full:
            self._taken.clear()
            await self._taken.wait()

    def take(self) -> list[AgentEvent]:
        """Return the queued events, with successive deltas joined."""
        events, self._pending = self._pending, []
        self._taken.set()
        return _joined(events)


def _joined(events: list[AgentEvent]) -> list[AgentEvent]:
    joined: list[AgentEvent] = []
    parts: list[str] = []
    kind: type[TextDelta | ThinkingDelta] | None = None
    for event in events:
        if isinstance(event, TextDelta | ThinkingDelta):
            if kind is not None and type(event) is not kind:
                joined.append(kind("".join(parts)))
                parts = []
            kind = type(event)
            parts.append(event.delta)
            continue
        if kind is not None:
            joined.append(kind("".join(parts)))
            parts, kind = [], None
        joined.append(event)
    if kind is not None:
        joined.append(kind("".join(parts)))
    return joined


class LiveConversation:
    """The conversation on screen and its subscription. ``arrived`` is called when events can be taken."""

    def __init__(self, app: ZotApp, arrived: Callable[[], None]) -> None:
        self._app = app
        self._gallery: ImageLoader | None = None
        self.feed = EventFeed(arrived)
        self._unfollow: Callable[[], None] = lambda: None
        self._conversation: Conversation | None = None
        #: Set when the first conversation is shown completely: earlier commands wait for it.
        self.opened = asyncio.Event()
        self._story: TranscriptBuilder | None = None

    @property
    def conversation(self) -> Conversation:
        """The conversation on screen. Raise UserError if there is none yet."""
        if self._conversation is None:
            raise UserError("the session is not open yet")
        return self._conversation

    @property
    def story(self) -> TranscriptBuilder:
        """The transcript's entries, created on first use, after the first frame."""
        from zot.ui.terminal.entries import TranscriptBuilder  # Imported lazily: the first frame is drawn before.

        if self._story is None:
            self._story = TranscriptBuilder(self._app.transcript, self._pictured)
        return self._story

    def _pictured(self, entry: Entry, place: str) -> None:
        from zot.ui.terminal.pictures import ImageLoader  # Imported lazily: few conversations have images.

        self._gallery = self._gallery or ImageLoader(self._app)
        self._gallery.offer(entry, place)

    @property
    def is_open(self) -> bool:
        return self._conversation is not None

    async def enter(self, conversation: Conversation) -> Conversation | None:
        """Show a conversation, and return the previous one."""
        self.leave()
        former, self._conversation = self._conversation, conversation
        await self.begin_anew()
        return former

    async def begin_anew(self) -> None:
        """Show the conversation from its beginning, including the partial answer of an active run."""
        self.leave()
        said = await self.conversation.past()
        self.forget()
        self.feed.take()
        self.story.recall(said)
        self._app.editor.remember(text_of(one.content) for one in said if one.role == "user")
        self._app.transcript.settle()
        self._unfollow = self.conversation.follow(self.feed)
        if (await self.conversation.state()).busy:
            self.story.doing = self.story.doing or "at work"

    def forget(self) -> None:
        """Clear the transcript."""
        self._app.transcript.clear()
        self._story = None

    def leave(self) -> None:
        """Unsubscribe."""
        unfollow, self._unfollow = self._unfollow, lambda: None
        unfollow()
