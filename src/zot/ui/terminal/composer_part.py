"""Where messages are made: the editor, what it offers to complete, and what waits to be said."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from textual.containers import Vertical
from textual.message import Message

from zot.errors import AgentError
from zot.slash import CommandInfo
from zot.ui.terminal import slash
from zot.ui.terminal.completion import Files, Offer, Offers
from zot.ui.terminal.composer import Editor
from zot.ui.terminal.queue import Queue


class Composer(Vertical):
    """The lower part of the screen. What is submitted goes on to the app."""

    DEFAULT_CSS = "Composer { height: auto; border-top: solid ansi_bright_black; }"

    class Withdrawn(Message):
        """Somebody wants back what is on its way by this name; ``keeps``: to change it."""

        def __init__(self, name: str, *, keeps: bool) -> None:
            super().__init__()
            self.name = name
            self.keeps = keeps

    def __init__(self) -> None:
        self._offers = Offers()
        self.editor = Editor(self._offers)
        super().__init__(self.editor)
        self.queue = Queue()
        self.files: Files | None = None
        #: The names of what is being taken back.
        self._withdrawn: set[str] = set()
        #: What extensions offer, as far as it is known.
        self.commands: Sequence[CommandInfo] = ()

    async def furnish(self) -> None:
        """Have everything: the first frame must not wait for what nobody needs yet."""
        await self.mount(self.queue, self._offers, before=self.editor)
        self.editor.take_back = self._take_back

    def withdraw(self) -> bool:
        """Offer nothing any more; False if nothing was offered."""
        had = bool(self._offers.display)
        self._offers.show("", ())
        return had

    def take_back_all(self) -> None:
        """Put what waits back into the editor."""
        self.put_back(self.queue.all())

    def steer(self, text: str, say: Callable[[str], Awaitable[None]]) -> Coroutine[Any, Any, None]:
        """Show that something is on its way to the running prompt; it can be taken back from now on.

        What is returned lets ``say`` say it, by a name. What cannot be said is put back into the editor.
        """
        name = os.urandom(8).hex()
        self.queue.steer(name, text)
        return self._steer(name, text, say)

    async def _steer(self, name: str, text: str, say: Callable[[str], Awaitable[None]]) -> None:
        try:
            await say(name)
        except (AgentError, OSError):
            if name not in self._withdrawn and self.queue.withdraw(name):  # Else somebody has it back already.
                self.put_back([text])
                raise

    def _take_back(self, keeps: bool) -> bool:
        """Take back what was written last: what waits here at once, what is on its way if it can be. False if nothing.

        What ``keeps`` is put into the editor.
        """
        if text := self.queue.last():
            self.put_back([text] if keeps else [])
        elif name := self.queue.last_steering:
            self.post_message(self.Withdrawn(name, keeps=keeps))
        return bool(text or name)

    async def withdraw_steering(self, message: Withdrawn, take_back: Callable[[str], Awaitable[None]]) -> None:
        """Take back what is on its way, unless it has been said."""
        self._withdrawn.add(message.name)
        try:
            await take_back(message.name)
        finally:
            self._withdrawn.discard(message.name)
        if (text := self.queue.withdraw(message.name)) and message.keeps:
            self.put_back([text])

    def put_back(self, texts: list[str]) -> None:
        """Put what has not been said before what stands in the editor."""
        if texts:
            self.editor.put_back(texts)

    async def on_editor_offered(self, message: Editor.Offered) -> None:
        word = message.word
        if not self._offers.is_attached:
            return
        if word.startswith("/"):
            self._offers.show(word, self._fitting(word[1:]), message.place)
        elif word.startswith("@") and self.files is not None:
            self._offers.show(word, await asyncio.to_thread(self.files.find, word), message.place)
        else:
            self._offers.show("", ())

    def _fitting(self, word: str) -> list[Offer]:
        known = [(name, one.help) for name, one in slash.COMMANDS.items()]
        known += [(one.name, one.description) for one in self.commands if one.name not in slash.COMMANDS]
        fits = sorted((one for one in known if one[0].startswith(word)), key=lambda one: one[0] != word)
        return [] if [word] == [name for name, _ in fits] else [Offer(f"/{name} ", help_) for name, help_ in fits]
