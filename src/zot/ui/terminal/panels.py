"""Panels of extensions."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.events import Key
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from zot.errors import UserError
from zot.events import PanelClosed, PanelOpened, PanelRendered
from zot.ui.terminal.composer import Editor
from zot.ui.terminal.looks import safe
from zot.ui.terminal.textual_patches import as_keys
from zot.ui.terminal.transcript import Transcript

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


#: A panel that comes so soon after its command takes the keys, whatever was typed meanwhile; a later one leaves them
#: to the editor if something is being written there.
_SOON_S = 1.0
#: How many keys are remembered for a panel that is on its way.
_MAX_KEYS = 32
#: The frame, and one line.
_SMALL = 3

PanelEvent: TypeAlias = PanelOpened | PanelRendered | PanelClosed


class Panels(Vertical):
    """Opens, draws and closes panels as extensions want it. One that was asked for here has the keys at once.

    Keys that were pressed before it was shown are the panel's, too, and not the editor's. Only those that move a cursor
    act: nobody has seen yet what the others would do.
    """

    DEFAULT_CSS = "Panels { height: auto; max-height: 60%; overflow-y: auto; scrollbar-size-vertical: 0; }"

    def __init__(self, elsewhere: Editor, clock: Callable[[], float] = time.monotonic) -> None:
        """``elsewhere`` has the focus when no panel has it."""
        super().__init__()
        self._elsewhere = elsewhere
        self._clock = clock
        #: The last keys that no panel had, since Enter: with that its command was given.
        self._keys: deque[str] = deque(maxlen=_MAX_KEYS)
        self._open: dict[str, Panel] = {}
        #: Those that were asked for here and are not shown yet, and when.
        self._wanted: dict[str, float] = {}
        #: The one that has the focus, or had it last.
        self._entered: Panel | None = None
        #: Which one had the keys when another was entered, by that other.
        self._left_for: dict[Panel, Panel] = {}
        #: How many lines a question leaves to them; None if none is asked.
        self._left: int | None = None

    def leave(self, lines: int | None) -> None:
        """Have no more than so many lines while something must be answered, and as many as usual behind that: None."""
        self._left = lines
        self.fit()

    def on_mount(self) -> None:
        self.watch(self.screen, "focused", self._focus_moved, init=False)

    def _focus_moved(self, before: Widget | None, now: Widget | None) -> None:
        """Know where the keys go back to. A question only borrows them, and a panel that is closed is no place."""
        if not isinstance(now, Panel):
            return
        if isinstance(before, Editor | Transcript):
            self._left_for.pop(now, None)
        elif isinstance(before, Panel) and before in self._open.values():
            self._left_for[now] = before

    def on_descendant_focus(self) -> None:
        self._entered = next((panel for panel in self._open.values() if panel.has_focus), self._entered)
        self.fit()

    def on_resize(self) -> None:
        self.fit()

    def fit(self) -> None:
        """Share the room: where it is scarce, others have one line, and the one that was entered last the rest."""
        panels, usual = list(self._open.values()), self.app.size.height * 3 // 5
        room = usual if self._left is None else min(usual, self._left)
        most = min(self.app.size.height // 2, max(_SMALL, room))
        self.display = room >= _SMALL
        self.styles.max_height = max(_SMALL, room)
        is_crowded = sum(min(panel.wants, most) for panel in panels) > room
        large = self._entered if self._entered in panels else next(reversed(panels), None)
        for panel in panels:
            left = min(most, room - _SMALL * (len(panels) - 1)) if panel is large else _SMALL
            panel.limit(max(_SMALL, left) if is_crowded else most)

    def enter(self, panel_id: str, since: float) -> None:
        """Give a panel the keys that was asked for here at a time, as soon as it is shown."""
        if panel_id in self._open:
            self._enter(self._open[panel_id], since)
        else:
            self._wanted[panel_id] = since

    def keyed(self, event: Key) -> None:
        """Remember a key: it may be meant for a panel that is on its way."""
        if event.key == "enter":
            self._keys.clear()
        else:
            self._keys.append(event.key)

    def _enter(self, panel: Panel, since: float) -> None:
        """Give a panel the keys, also those that came since its command; not if a question has them, or a prompt."""
        editor, focused = self._elsewhere, self.screen.focused
        is_soon = self._clock() - since <= _SOON_S
        if (editor.text and not is_soon) or not (focused is None or isinstance(focused, Editor | Transcript)):
            return
        if editor.text:
            editor.drop()
        self.screen.set_focus(panel)
        panel.begin([key for key in self._keys if is_soon and key in MOVING])
        self._keys.clear()

    async def hear(self, event: PanelEvent) -> None:
        """Do what an event says about a panel."""
        match event:
            case PanelOpened(extension=extension, panel_id=panel_id, title=title, lines=lines, footer=footer):
                panel = self._open.get(panel_id) or Panel(panel_id, extension, self._clock)
                panel.show(title, lines, footer)
                if panel_id not in self._open:
                    self._open[panel_id] = panel
                    await self.mount(panel)
                self.fit()
                if (since := self._wanted.pop(panel_id, None)) is not None:
                    self._enter(panel, since)
            case PanelRendered(panel_id=panel_id, title=title, lines=lines, footer=footer):
                if (shown := self._open.get(panel_id)) is not None:
                    shown.show(title, lines, footer)
                    self.fit()
            case PanelClosed(panel_id=panel_id):
                await self._close(panel_id)

    async def dismiss(self, panel_id: str, tell: Callable[[str], Awaitable[None]]) -> None:
        """Close one for a person, and tell its extension, if that still knows of it."""
        await self._close(panel_id)
        with suppress(UserError):
            await tell(panel_id)

    async def close_all(self) -> None:
        """Show none any more."""
        self._open.clear()
        self._left_for.clear()
        self._wanted.clear()
        await self.remove_children()

    async def _close(self, panel_id: str) -> None:
        panel = self._open.pop(panel_id, None)
        if panel is None:
            return
        before = self._left_for.pop(panel, None)
        if panel.has_focus:
            self.screen.set_focus(before if before in self._open.values() else self._elsewhere)
        await panel.remove()
        self.fit()
