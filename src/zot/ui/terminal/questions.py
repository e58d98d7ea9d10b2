"""A question to the person, between the transcript and the editor: something to choose."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len, chop_cells
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from zot.ui.readable import counted
from zot.ui.terminal.looks import frank, safe
from zot.ui.terminal.panels_part import Panels
from zot.ui.terminal.pasting import as_keys
from zot.ui.terminal.terminal import Option

_SHOWN = 8
#: The lines around what a question is about and what can be chosen: of the transcript, the border, how much more there
#: is, the keys, the status.
_AROUND = 5
#: A screen with fewer lines has room for hardly more than what can be chosen.
_LOW = 8


class Question(Vertical, can_focus=True):
    """Shows what it is about in full, and what can be chosen. ``answer`` has the value; None if nothing was."""

    DEFAULT_CSS = """
    Question { height: auto; border-top: solid ansi_yellow; padding: 0 1; }
    Question .body { height: auto; }
    Question .title { height: auto; }
    Question .options { height: auto; text-wrap: nowrap; text-overflow: ellipsis; }
    Question.-low { border-top: none; }
    Question.-low .title { max-height: 1; }
    """

    def __init__(
        self,
        title: str,
        options: Sequence[Option[Any]],
        *,
        body: str = "",
        diff: Sequence[tuple[str, str]] = (),
        hint: str = "",
        sudden: bool = False,
    ) -> None:
        """``body`` and ``diff``, lines with their styles, say what it is about, ``hint`` which keys there are.

        ``sudden``: nobody has asked for it, so that what is being typed is not meant for it.
        """
        super().__init__()
        self.sudden = sudden
        by_key = any(one.key for one in options)
        self._hint = hint or ("Esc leaves it" if by_key else "Enter takes it, Esc leaves it; type to search")
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._title = safe(title)
        self._options = options
        self._body = Text(frank(body).rstrip("\n"))
        for number, (line, style) in enumerate(diff):
            self._body.append(f"{chr(10) if number or body else ''}{line}", style)
        self._filter = ""
        #: Where something must be decided, Enter decides nothing unless somebody has gone there.
        self._at = -1 if self.by_key else 0
        self._listens = False

    def compose(self) -> ComposeResult:
        yield Static(Text(self._title, style="bold"), classes="title")
        if self._body.plain:
            with VerticalScroll(classes="body", can_focus=False):
                yield Static(self._body)
        yield Static(classes="options")

    def on_mount(self) -> None:
        for body in self.query(".body"):
            for name in ("scroll_y", "virtual_size"):
                self.watch(body, name, self._draw, init=False)
        self.fit()

    def on_resize(self) -> None:
        self.fit()

    def listen(self) -> None:
        """Have the keys from now on."""
        self._listens = True
        self._draw()
        self.focus()

    def fit(self) -> None:
        """Give what it is about the room that everything else leaves, and panels what is left then."""
        screen, width = self.app.size, max(1, self.app.size.width - 2)
        title = -(-cell_len(self._title) // width)
        left = screen.height - _AROUND - title - min(self._shown, len(self._options))
        most = max(1, min(left, screen.height * 2 // 5)) if self._body.plain else 0
        self.set_class(self._is_low, "-low")
        if self._is_low and most:  # The transcript, the title and the status have a line each.
            most = max(1, screen.height - 3 - (1 if self.by_key else min(self._shown, len(self._options))))
        for body in self.query(".body"):
            body.styles.max_height = most
        rows = sum(1 + cell_len(line) // width for line in self._body.plain.split("\n"))
        for panels in self.screen.query(Panels):
            panels.leave(left - min(most, rows))
        self._draw()

    def on_unmount(self) -> None:
        for panels in self.screen.query(Panels):
            panels.leave(None)

    def close(self, value: Any = None) -> None:
        """Have the answer."""
        if not self.answer.done():
            self.answer.set_result(value)

    @property
    def _fitting(self) -> list[Option[Any]]:
        words = self._filter.lower().split()
        return [one for one in self._options if all(word in one.label.lower() for word in words)]

    @property
    def by_key(self) -> bool:
        """True if something must be decided, with one key."""
        return any(one.key for one in self._options)

    @property
    def is_sudden(self) -> bool:
        """True if a stray key must not answer it."""
        return self.sudden or self.by_key

    @property
    def _is_low(self) -> bool:
        return self.app.size.height < _LOW

    @property
    def _shown(self) -> int:
        if self._is_low:
            return max(1, self.app.size.height - 3 - bool(self._body.plain))
        return max(3, min(_SHOWN, self.app.size.height // 3))

    def _draw(self) -> None:
        text = Text() if self._is_low else self._more()
        if self._listens or not self.is_sudden:
            text.append(self._keys() if self._is_low and self.by_key else self._choice())
        else:
            text.append("stop typing to answer", "dim")
        self.query_one(".options", Static).update(text)

    def _more(self) -> Text:
        """Return how much of what it is about is out of sight."""
        for body in self.query(".body"):
            if left := round(body.max_scroll_y - body.scroll_y):
                return Text(f"{counted(left, 'more line')}; PageDown scrolls\n", "yellow")
            if body.max_scroll_y:
                return Text("this is the end; PageUp scrolls\n", "dim")
        return Text()

    def _choice(self) -> Text:
        fitting, shown = self._fitting, self._shown
        first = max(0, min(self._at - shown // 2, len(fitting) - shown))
        text = Text(no_wrap=True, overflow="ellipsis")
        if self._filter:
            text.append(f"/{safe(self._filter)}\n", "cyan")
        for number, option in enumerate(fitting[first : first + shown], first):
            label = f"{option.key}  {option.label}" if option.key else option.label
            text.append(safe(label).replace("\n", " "), "reverse" if number == self._at else "")
            text.append("\n")
        if self._is_low:
            return text[:-1]
        for row in self._rest(fitting):
            text.append(f"{row}\n", "cyan")
        hidden = len(fitting) - shown
        text.append(f"{hidden} more; {self._hint}" if hidden > 0 else self._hint, "dim")
        return text

    def _keys(self) -> Text:
        """Return what can be chosen in one line, each as far as there is room, and how much more there is above."""
        left = sum(round(body.max_scroll_y - body.scroll_y) for body in self.query(".body"))
        more = f" +{left}" if left else ""
        width = (self.app.size.width - 2 - len(more)) // len(self._options) - 1
        text = Text()
        for number, one in enumerate(self._options):
            text.append(f"{one.key} {safe(one.label)}"[:width].ljust(width), "reverse" if number == self._at else "")
            text.append(" ")
        return text.append(more.lstrip(), "yellow")

    def _rest(self, fitting: Sequence[Option[Any]]) -> list[str]:
        """Return the lines of all that the marked one says, if it is too long for one: others may begin like it."""
        width = max(1, self.app.size.width - 2)
        label = safe(fitting[self._at].label).replace("\n", " ") if 0 <= self._at < len(fitting) else ""
        # Around it are the border, the title, what can be chosen, what was typed, the keys and the status.
        room = self.app.size.height - 5 - -(-cell_len(self._title) // width) - min(len(fitting), self._shown)
        rows = chop_cells(label, width) if cell_len(label) > width and not self.by_key else []
        return rows[: max(0, min(room, self._shown))]

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        fitting = self._fitting
        match event.key:
            case "escape" | "ctrl+c":
                self.close(None)
            case "up" | "down" if fitting:
                self._at = (max(self._at, 0) - 1 if event.key == "up" else self._at + 1) % len(fitting)
            case "pageup" | "pagedown":
                pages = 1 if event.key == "pagedown" else -1
                for body in self.query(".body"):  # At once: the next key may be here already.
                    body.scroll_relative(y=pages * body.size.height, animate=False, immediate=True)
            case "enter" if fitting and self._at >= 0:
                self.close(fitting[self._at].value)
            case "backspace" if not self.by_key:
                self._filter, self._at = self._filter[:-1], 0
            case _:
                self._typed(event.character if event.is_printable and event.character else "")
        self._draw()

    def _typed(self, character: str) -> None:
        if self.by_key:
            chosen = next((one for one in self._options if one.key and one.key == character.lower()), None)
            if chosen is not None:
                self.close(chosen.value)
        elif character:
            self._filter, self._at = self._filter + character, 0

    def on_paste(self, event: events.Paste) -> None:
        """Search for it. A paste decides nothing: then, and if it is too long, it is left to others."""
        if not self.by_key and (keys := as_keys(event.text)) is not None:
            event.stop()
            self._typed(keys)
            self._draw()
