"""What is said here: at once if nothing runs, else when the run is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from zot.errors import AgentError
from zot.ui.terminal.composer_part import Composer
from zot.ui.terminal.live import Following


class Speech:
    """Says prompts one after the other, in the order in which they were written."""

    def __init__(
        self,
        following: Following,
        composer: Composer,
        *,
        do: Callable[[Coroutine[Any, Any, None]], None],
        changed: Callable[[], None],
    ) -> None:
        """``do`` does what takes a while, ``changed`` is called when something else goes on."""
        self._following = following
        self._composer, self._queue = composer, composer.queue
        self._do, self._changed = do, changed
        #: Held until the session has what is being said.
        self._turn = asyncio.Lock()

    @property
    def runs(self) -> bool:
        """True while a run goes on, by what has been told: a session may need a moment longer to be idle."""
        return bool(self._following.story.doing)

    def submit(self, text: str) -> None:
        """Let something be said when it is its turn."""
        self._queue.add(text)
        self.go_on()

    def go_on(self) -> None:
        """Say what waits longest, unless a run goes on: from now on one does, whatever else is submitted at once."""
        if self._queue.waiting and self._following.is_open and not self.runs:
            self._show("waiting for the model")
            self._do(self._say(self._queue.next()))

    def steer(self, text: str) -> None:
        """Say something to the running prompt, unless it is taken back before its images are read."""

        async def say(name: str) -> None:
            from zot.ui.terminal.mentions import named_images

            conversation = self._following.conversation
            async with self._turn:
                images = await named_images(text, conversation)
            if self._queue.steers(name):
                await conversation.steer(text, images, name=name)  # Until it is said, which nobody waits for.

        self._do(self._composer.steer(text, say))

    async def take_back(self, name: str) -> None:
        """Let what is on its way never be said. Raise UserError if it has been."""
        async with self._turn:  # It may not be known there yet.
            await self._following.conversation.take_back(name)

    def abort(self) -> None:
        """End what runs, and what is just being said. What waits is back in the editor."""
        self._composer.take_back_all()  # First: what waits is said as soon as the run is over.
        if self._following.is_open:
            self._do(self._abort())

    async def _abort(self) -> None:
        async with self._turn:
            await self._following.conversation.abort()

    async def _say(self, text: str) -> None:
        from zot.ui.terminal.mentions import named_images

        conversation = self._following.conversation
        try:
            async with self._turn:
                images = await named_images(text, conversation)
                await conversation.prompt(text, images, unsaid=lambda: self._composer.put_back([text]))
        except (AgentError, OSError):
            self._show("")
            self._composer.put_back([text])
            raise

    def _show(self, doing: str) -> None:
        self._following.story.doing = doing
        self._changed()
