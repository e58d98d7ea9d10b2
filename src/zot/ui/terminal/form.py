"""A question to the person, between the transcript and the editor: something to write."""

from __future__ import annotations

import asyncio

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, Static

from zot.ui.terminal.looks import safe
from zot.ui.terminal.order import obey


class Line(Input):
    """One line that is written."""

    async def on_key(self, event: events.Key) -> None:
        await obey(self, event)


class Form(Vertical):
    """Asks for one line of text."""

    DEFAULT_CSS = """
    Form { height: auto; border-top: solid ansi_yellow; padding: 0 1; }
    Form Input { border: none; height: 1; padding: 0; }
    Form Static { height: auto; }
    """

    def __init__(self, title: str, *, secret: bool) -> None:
        super().__init__()
        self.answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._title = safe(title)
        self._secret = secret

    def compose(self) -> ComposeResult:
        yield Static(Text(self._title, style="bold"))
        yield Line(password=self._secret, compact=True)

    def listen(self) -> None:
        """Have the keys from now on."""
        self.query_one(Line).focus()

    def close(self, value: str | None = None) -> None:
        """Have the answer."""
        if not self.answer.done():
            self.answer.set_result(value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.close(event.value)

    def on_key(self, event: events.Key) -> None:
        if event.key in ("escape", "ctrl+c"):
            event.stop()
            self.close(None)
