"""The conversation on the screen: what was said in it, and then what happens, from one to the other without a gap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from zot.errors import UserError
from zot.events import AgentEvent
from zot.messages import ImageBlock, text_of
from zot.ui.conversation import Conversation
from zot.ui.terminal.feed import Feed

if TYPE_CHECKING:
    from zot.ui.terminal.composer import Editor
    from zot.ui.terminal.entries import Story
    from zot.ui.terminal.entries_part import Entry
    from zot.ui.terminal.images import Gallery
    from zot.ui.terminal.transcript import Transcript


class Following:
    """Which conversation is shown, and what is known of it. ``arrived`` is called when something has happened in it."""

    def __init__(
        self,
        transcript: Transcript,
        editor: Editor,
        arrived: Callable[[], None],
        *,
        send: Callable[[str], None],
        do: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """``send`` writes to the terminal what is not drawn, ``do`` does what takes a while."""
        self._transcript = transcript
        self._send, self._do = send, do
        self._gallery: Gallery | None = None
        self._editor = editor
        self._feed = Feed(arrived)
        self._unfollow: Callable[[], None] = lambda: None
        self._conversation: Conversation | None = None
        #: Set when the first one is shown, and all is known of it: what is wanted before waits for that.
        self.opened = asyncio.Event()
        self._story: Story | None = None

    @property
    def conversation(self) -> Conversation:
        """The one that is shown. Raise UserError if none is yet."""
        if self._conversation is None:
            raise UserError("the session is not open yet")
        return self._conversation

    @property
    def story(self) -> Story:
        """What is told of it; it begins when it is first wanted, which no frame waits for."""
        from zot.ui.terminal.entries import Story

        if self._story is None:
            self._story = Story(self._transcript.add, self._pictured)
        return self._story

    def _pictured(self, entry: Entry, place: str) -> None:
        """An entry has images."""
        from zot.ui.terminal.images import Gallery

        self._gallery = self._gallery or Gallery(self._send, self._do, self._images, self._transcript.settle)
        self._gallery.offer(entry, place)

    async def _images(self, place: str) -> Sequence[ImageBlock]:
        return await self.conversation.images(place)

    @property
    def is_open(self) -> bool:
        """True if a conversation is shown."""
        return self._conversation is not None

    @property
    def waits(self) -> bool:
        """True if something has happened that was not taken yet."""
        return self._feed.waits

    def take(self) -> Sequence[AgentEvent]:
        """Return what happened since the last time."""
        return self._feed.take()

    async def enter(self, conversation: Conversation) -> Conversation | None:
        """Show a conversation, and return the one that was shown before."""
        self.leave()
        former, self._conversation = self._conversation, conversation
        await self.begin_anew()
        return former

    async def begin_anew(self) -> None:
        """Show the conversation from its beginning, with what has been said so far of an answer that goes on."""
        self.leave()
        said = await self.conversation.past()
        self.forget()
        self._feed.take()
        self.story.recall(said)
        self._editor.remember(text_of(one.content) for one in said if one.role == "user")
        self._transcript.settle()
        self._unfollow = self.conversation.follow(self._feed)
        if (await self.conversation.state()).busy:
            self.story.doing = self.story.doing or "at work"

    def forget(self) -> None:
        """Show nothing of what was said."""
        self._transcript.clear()
        self._story = None

    def leave(self) -> None:
        """Hear nothing more of it."""
        unfollow, self._unfollow = self._unfollow, lambda: None
        unfollow()
