"""A panel of an extension: its title, lines and footer; the keys are the extension's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import Static

from zot.ui.terminal.looks import safe
from zot.ui.terminal.pasting import as_keys

#: What the protocol calls keys, by what they are called here.
KEYS: Mapping[str, str] = {
    "up": "up",
    "down": "down",
    "left": "left",
    "right": "right",
    "enter": "enter",
    "tab": "tab",
    "pageup": "pageup",
    "pagedown": "pagedown",
    "home": "home",
    "end": "end",
    "backspace": "backspace",
    "delete": "delete",
}


#: Keys that change nothing but what is seen.
MOVING = frozenset({"up", "down", "left", "right", "pageup", "pagedown", "home", "end"})
#: So soon after a panel came, and after the key before, a key cannot be an answer to what the panel shows.
_BLIND_S = 0.3

#: What the frame takes of a line, with the blanks around what stands in it.
_FRAME = 6
#: So much of a title is always shown.
_LEAST = 8


class Panel(VerticalScroll, can_focus=True, inherit_bindings=False):
    """Shows what an extension wants shown, and tells which keys are pressed while it has the focus.

    What is too long for the screen is scrolled with PageUp and PageDown. A panel that has just come ignores keys other
    than those in MOVING until nobody has typed for a moment.
    """

    DEFAULT_CSS = """
    Panel { height: auto; max-height: 50vh; border: round ansi_bright_black; padding: 0 1;
            scrollbar-size-vertical: 1; }
    Panel:focus { border: round ansi_cyan; }
    """

    class Pressed(Message):
        """A key for the extension."""

        def __init__(self, panel_id: str, key: str, text: str = "") -> None:
            super().__init__()
            self.panel_id = panel_id
            self.key = key
            self.text = text

    class Dismissed(Message):
        """A person has closed the panel."""

        def __init__(self, panel_id: str) -> None:
            super().__init__()
            self.panel_id = panel_id

    def __init__(self, panel_id: str, extension: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        #: Until when keys may be meant for something else.
        self._blind_until = float("-inf")
        self.panel_id = panel_id
        self.extension = extension

        self._title = panel_id
        self._lines: list[str] = []
        #: Which of them are others than before.
        self._changed: list[int] = []
        self._body = Static()

    def compose(self) -> ComposeResult:
        yield self._body

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self._entitle()

    def _entitle(self) -> None:
        """Say whose it is, and how to get there."""
        hint = "" if self.has_focus else ": Shift+Tab enters it"
        whose, title = f" ({safe(self.extension)}){hint}", Text(self._title)
        title.truncate(max(_LEAST, self.app.size.width - _FRAME - cell_len(whose)), overflow="ellipsis")
        self.border_title = title.append(whose)

    def on_resize(self) -> None:
        self._entitle()

    def show(self, title: str, lines: Sequence[str], footer: str) -> None:
        """Show something else. The footer stands in the frame, where it is always seen, if there is room for it."""
        self._title, footer = (safe(text).replace("\n", " ") for text in (title or self.panel_id, footer))
        fits = cell_len(footer) <= self.app.size.width - _FRAME
        self._entitle()
        self.border_subtitle = Text(footer) if fits else None
        before, self._lines = self._lines, [safe(line).replace("\n", " ") for line in lines]
        text = Text("\n".join(self._lines))
        if not fits:
            text.append(f"{chr(10) if lines else ''}{footer}", "dim")
        self._body.update(text)
        is_like = len(before) == len(lines)
        self._changed = [number for number, line in enumerate(before) if is_like and line != self._lines[number]]
        if self.is_attached:
            self.call_after_refresh(self._follow)

    def limit(self, height: int) -> None:
        """Be no higher than so many lines of the screen."""
        if self.styles.max_height is None or self.styles.max_height.value != height:
            self.styles.max_height = height
            self.call_after_refresh(self._follow)

    @property
    def wants(self) -> int:
        """How many lines of the screen it needs to be seen whole."""
        return self._row(len(self._lines)) + 2

    def _row(self, number: int) -> int:
        """Return where a line begins: those before it may be broken."""
        width = max(1, self.app.size.width - _FRAME)
        return sum(max(1, -(-cell_len(line) // width)) for line in self._lines[:number])

    def _follow(self) -> None:
        """Keep in sight what was changed: a cursor leaves one line and goes to another, which may be out of sight."""
        if not self._changed:
            return
        first, end = self._row(self._changed[0]), self._row(self._changed[-1] + 1)
        height, top = self.scrollable_content_region.height, round(self.scroll_y)
        if end > top + height and first >= top:
            self.scroll_to(y=end - height, animate=False)
        elif first < top and end <= top + height:
            self.scroll_to(y=first, animate=False)

    def begin(self, keys: Sequence[str]) -> None:
        """Have the keys from now on, with those that were pressed before."""
        self._blind_until = self._clock() + _BLIND_S
        for key in keys:
            self.post_message(self.Pressed(self.panel_id, KEYS[key]))

    @property
    def is_blind(self) -> bool:
        """True while keys may be meant for something else."""
        return self._clock() < self._blind_until

    def on_key(self, event: events.Key) -> None:
        if event.key == "shift+tab":
            return  # The way to the other panels, and to the editor.
        event.stop()
        event.prevent_default()
        if self.is_blind and event.key not in MOVING and event.key != "escape":
            self._blind_until = self._clock() + _BLIND_S
            return
        if event.key == "escape":
            self.post_message(self.Dismissed(self.panel_id))
        elif event.key in ("pageup", "pagedown") and self.max_scroll_y:
            height = self.scrollable_content_region.height
            self.scroll_relative(y=height if event.key == "pagedown" else -height, animate=False, immediate=True)
        elif event.key in KEYS:
            self.post_message(self.Pressed(self.panel_id, KEYS[event.key]))
        elif event.character is not None and event.is_printable:
            self.post_message(self.Pressed(self.panel_id, "rune", event.character))

    def on_paste(self, event: events.Paste) -> None:
        """Extensions know no pastes: it is as if it had been typed. One that is too long is left to others."""
        if not self.is_blind and (keys := as_keys(event.text)) is not None:
            event.stop()
            for character in keys:
                self.post_message(self.Pressed(self.panel_id, "rune", character))
