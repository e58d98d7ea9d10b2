"""Where messages are made: the editor, what it offers to complete, and what waits to be said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from textual.app import ComposeResult
from textual.containers import Vertical

from zot.errors import AgentError
from zot.slash import CommandInfo
from zot.tui import slash
from zot.tui.completion import Files, Offer, Offers
from zot.tui.editor import Editor
from zot.tui.queue import Queue


class Composer(Vertical):
    """The lower part of the screen. What is submitted goes on to the app."""

    DEFAULT_CSS = "Composer { height: auto; border-top: solid ansi_bright_black; }"

    def __init__(self) -> None:
        super().__init__()
        self._offers = Offers()
        self.editor = Editor(self._offers)
        self.queue = Queue()
        self.files: Files | None = None
        #: What extensions offer, as far as it is known.
        self.commands: Sequence[CommandInfo] = ()

    def compose(self) -> ComposeResult:
        yield self.editor

    async def furnish(self) -> None:
        """Have everything: the first frame must not wait for what nobody needs yet."""
        await self.mount(self.queue, self._offers, before=self.editor)
        self.editor.take_back = self.queue.last

    def withdraw(self) -> bool:
        """Offer nothing any more; False if nothing was offered."""
        had = bool(self._offers.display)
        self._offers.show("", ())
        return had

    def take_back_all(self) -> None:
        """Put what waits back into the editor."""
        self.put_back(self.queue.all())

    async def steer(self, text: str, say: Callable[[str], Awaitable[None]]) -> None:
        """Show that something is on its way to the running prompt. What cannot be said is put back into the editor."""
        self.queue.steer(text)
        try:
            await say(text)
        except AgentError:
            if not self.queue.said(text):
                return  # Somebody took it back already.
            self.put_back([text])
            raise

    def put_back(self, texts: list[str]) -> None:
        """Put what has not been said before what stands in the editor."""
        if texts:
            self.editor.put("\n\n".join([*texts, self.editor.text] if self.editor.text else texts))

    async def on_editor_offered(self, message: Editor.Offered) -> None:
        word = message.word
        if not self._offers.is_attached:
            return
        if word.startswith("/"):
            self._offers.show(word, self._fitting(word[1:]), message.place)
        elif word.startswith("@") and self.files is not None:
            self._offers.show(word, await asyncio.to_thread(self.files.find, word[1:]), message.place)
        else:
            self._offers.show("", ())

    def _fitting(self, word: str) -> list[Offer]:
        known = [(name, one.help) for name, one in slash.COMMANDS.items()]
        known += [(one.name, one.description) for one in self.commands if one.name not in slash.COMMANDS]
        fits = sorted((one for one in known if one[0].startswith(word)), key=lambda one: one[0] != word)
        return [] if [word] == [name for name, _ in fits] else [Offer(f"/{name} ", help_) for name, help_ in fits]
