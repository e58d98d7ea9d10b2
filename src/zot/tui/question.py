"""A question to the person, between the transcript and the editor: something to choose, or something to write."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Input, Static

from zot.tui.looks import frank, safe
from zot.tui.terminal import Option

_SHOWN = 8


class Question(Vertical, can_focus=True):
    """Shows what it is about in full, and what can be chosen. ``answer`` has the value; None if nothing was."""

    DEFAULT_CSS = """
    Question { height: auto; max-height: 80vh; border-top: solid ansi_yellow; padding: 0 1; }
    Question .body { height: auto; max-height: 40vh; }
    Question .title { height: auto; }
    Question .options { height: auto; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(
        self,
        title: str,
        options: Sequence[Option[Any]],
        *,
        body: str = "",
        diff: Sequence[tuple[str, str]] = (),
        hint: str = "",
    ) -> None:
        """``body`` and ``diff``, lines with their styles, say what it is about, ``hint`` which keys there are."""
        super().__init__()
        self._hint = hint or ("Esc leaves it" if any(one.key for one in options) else "type to search; Esc leaves it")
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._title = safe(title)
        self._options = options
        self._body = Text(frank(body).rstrip("\n"))
        for number, (line, style) in enumerate(diff):
            self._body.append(f"{chr(10) if number or body else ''}{line}", style)
        self._filter = ""
        self._at = 0

    def compose(self) -> ComposeResult:
        yield Static(Text(self._title, style="bold"), classes="title")
        if self._body.plain:
            with VerticalScroll(classes="body", can_focus=False):
                yield Static(self._body)
        yield Static(classes="options")

    def on_mount(self) -> None:
        self._draw()
        self.focus()

    def close(self, value: Any = None) -> None:
        """Have the answer."""
        if not self.answer.done():
            self.answer.set_result(value)

    @property
    def _fitting(self) -> list[Option[Any]]:
        words = self._filter.lower().split()
        return [one for one in self._options if all(word in one.label.lower() for word in words)]

    @property
    def _by_key(self) -> bool:
        return any(one.key for one in self._options)

    def _draw(self) -> None:
        fitting = self._fitting
        shown = max(3, min(_SHOWN, self.app.size.height // 3))
        first = max(0, min(self._at - shown // 2, len(fitting) - shown))
        text = Text(no_wrap=True, overflow="ellipsis")
        if self._filter:
            text.append(f"/{self._filter}\n", "cyan")
        for number, option in enumerate(fitting[first : first + shown], first):
            label = f"{option.key}  {option.label}" if option.key else option.label
            text.append(safe(label).replace("\n", " "), "reverse" if number == self._at else "")
            text.append("\n")
        text.append(self._hint, "dim")
        self.query_one(".options", Static).update(text)

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        fitting = self._fitting
        match event.key:
            case "escape" | "ctrl+c":
                self.close(None)
            case "up" | "down" if fitting:
                self._at = (self._at + (1 if event.key == "down" else -1)) % len(fitting)
            case "pageup" | "pagedown":
                for body in self.query(".body"):
                    body.scroll_page_down() if event.key == "pagedown" else body.scroll_page_up()
            case "enter" if fitting:
                self.close(fitting[self._at].value)
            case "backspace":
                self._filter, self._at = self._filter[:-1], 0
            case _:
                self._typed(event.character or "")
        self._draw()

    def _typed(self, character: str) -> None:
        if self._by_key:
            chosen = next((one for one in self._options if one.key and one.key == character.lower()), None)
            if chosen is not None:
                self.close(chosen.value)
        elif character.isprintable():
            self._filter, self._at = self._filter + character, 0


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
        yield Input(password=self._secret, compact=True)

    def on_mount(self) -> None:
        self.query_one(Input).focus()

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
