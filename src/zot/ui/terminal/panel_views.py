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
from zot.ui.terminal.styles import safe
from zot.ui.terminal.textual_patches import as_keys
from zot.ui.terminal.transcript_view import TranscriptView

#: Textual's key names and the protocol's names for them.
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


#: Keys that only move the view.
MOVING = frozenset({"up", "down", "left", "right", "pageup", "pagedown", "home", "end"})
#: Keys this soon after a panel appeared, or after the last key, cannot be meant for it.
_BLIND_S = 0.3

#: The columns that the frame and its padding take.
_FRAME = 6
#: A title is never cut shorter than this.
_MIN_TITLE = 8

#: A panel that opens this soon after its command takes the keys, whatever was typed meanwhile; a later one leaves them
#: to a prompt that is being written.
_TAKES_KEYS_S = 1.0
#: Keys remembered for a panel that is about to open.
_MAX_KEYS = 32
#: The frame, and one line.
_MIN_HEIGHT = 3

PanelEvent: TypeAlias = PanelOpened | PanelRendered | PanelClosed


class PanelView(VerticalScroll, can_focus=True, inherit_bindings=False):
    """Shows an extension's panel, and posts the keys pressed while it has the focus.

    PageUp and PageDown scroll a panel that is too high. A new panel ignores keys other than those in MOVING until the
    user stops typing for a moment.
    """

    DEFAULT_CSS = """
    PanelView { height: auto; max-height: 50vh; border: round ansi_bright_black; padding: 0 1;
            scrollbar-size-vertical: 1; }
    PanelView:focus { border: round ansi_cyan; }
    """

    class Pressed(Message):
        """A key for the extension."""

        def __init__(self, panel_id: str, key: str, text: str = "") -> None:
            super().__init__()
            self.panel_id = panel_id
            self.key = key
            self.text = text

    class CloseRequested(Message):
        """The user closed the panel."""

        def __init__(self, panel_id: str) -> None:
            super().__init__()
            self.panel_id = panel_id

    def __init__(self, panel_id: str, extension: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        #: Until this time, keys may be meant for something else.
        self._blind_until = float("-inf")
        self.panel_id = panel_id
        self.extension = extension

        self._title = panel_id
        self._lines: list[str] = []
        #: Indexes of the lines that the last update changed.
        self._changed: list[int] = []
        self._body = Static()

    def compose(self) -> ComposeResult:
        yield self._body

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self._update_title()

    def _update_title(self) -> None:
        """Show the panel's title, its extension, and the key that enters it."""
        hint = "" if self.has_focus else ": Shift+Tab enters it"
        whose, title = f" ({safe(self.extension)}){hint}", Text(self._title)
        title.truncate(max(_MIN_TITLE, self.app.size.width - _FRAME - cell_len(whose)), overflow="ellipsis")
        self.border_title = title.append(whose)

    def on_resize(self) -> None:
        self._update_title()

    def show(self, title: str, lines: Sequence[str], footer: str) -> None:
        """Show new content. The footer goes into the frame, always visible, if it fits."""
        self._title, footer = (safe(text).replace("\n", " ") for text in (title or self.panel_id, footer))
        fits = cell_len(footer) <= self.app.size.width - _FRAME
        self._update_title()
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
        """Set the maximal height."""
        if self.styles.max_height is None or self.styles.max_height.value != height:
            self.styles.max_height = height
            self.call_after_refresh(self._follow)

    @property
    def wants(self) -> int:
        """The height that shows it whole."""
        return self._row(len(self._lines)) + 2

    def _row(self, number: int) -> int:
        """Return the row at which a line begins: lines before it may wrap."""
        width = max(1, self.app.size.width - _FRAME)
        return sum(max(1, -(-cell_len(line) // width)) for line in self._lines[:number])

    def _follow(self) -> None:
        """Scroll to the changed lines: they usually show a moving cursor."""
        if not self._changed:
            return
        first, end = self._row(self._changed[0]), self._row(self._changed[-1] + 1)
        height, top = self.scrollable_content_region.height, round(self.scroll_y)
        if end > top + height and first >= top:
            self.scroll_to(y=end - height, animate=False)
        elif first < top and end <= top + height:
            self.scroll_to(y=first, animate=False)

    def begin(self, keys: Sequence[str]) -> None:
        """Take the keys, including those pressed before."""
        self._blind_until = self._clock() + _BLIND_S
        for key in keys:
            self.post_message(self.Pressed(self.panel_id, KEYS[key]))

    @property
    def is_blind(self) -> bool:
        """True while keys may be meant for something else."""
        return self._clock() < self._blind_until

    def on_key(self, event: events.Key) -> None:
        if event.key == "shift+tab":
            return  # Textual moves the focus.
        event.stop()
        event.prevent_default()
        if self.is_blind and event.key not in MOVING and event.key != "escape":
            self._blind_until = self._clock() + _BLIND_S
            return
        if event.key == "escape":
            self.post_message(self.CloseRequested(self.panel_id))
        elif event.key in ("pageup", "pagedown") and self.max_scroll_y:
            height = self.scrollable_content_region.height
            self.scroll_relative(y=height if event.key == "pagedown" else -height, animate=False, immediate=True)
        elif event.key in KEYS:
            self.post_message(self.Pressed(self.panel_id, KEYS[event.key]))
        elif event.character is not None and event.is_printable:
            self.post_message(self.Pressed(self.panel_id, "rune", event.character))

    def on_paste(self, event: events.Paste) -> None:
        """Send a paste as typed characters, which is all that extensions know. A long one is left to the app."""
        if not self.is_blind and (keys := as_keys(event.text)) is not None:
            event.stop()
            for character in keys:
                self.post_message(self.Pressed(self.panel_id, "rune", character))


class Panels(Vertical):
    """Opens, draws and closes the panels of extensions. A panel opened by this terminal's command gets the focus.

    Keys pressed before it appeared go to the panel, not to the editor. Only cursor keys take effect: the user has not
    seen yet what the others would do.
    """

    DEFAULT_CSS = "Panels { height: auto; max-height: 60%; overflow-y: auto; scrollbar-size-vertical: 0; }"

    def __init__(self, elsewhere: Editor, clock: Callable[[], float] = time.monotonic) -> None:
        """``elsewhere`` gets the focus when no panel has it."""
        super().__init__()
        self._elsewhere = elsewhere
        self._clock = clock
        #: Keys outside of panels since the last Enter, which submitted the command.
        self._keys: deque[str] = deque(maxlen=_MAX_KEYS)
        self._open: dict[str, PanelView] = {}
        #: Requested panels that are not open yet, with the time of the request.
        self._wanted: dict[str, float] = {}
        #: The panel that has the focus, or had it last.
        self._entered: PanelView | None = None
        #: By panel: the panel that had the focus before it.
        self._left_for: dict[PanelView, PanelView] = {}
        #: The lines that an open question leaves for panels; None without one.
        self._left: int | None = None

    def leave(self, lines: int | None) -> None:
        """Limit the height to ``lines`` while a question is open; None lifts the limit."""
        self._left = lines
        self.fit()

    def on_mount(self) -> None:
        self.watch(self.screen, "focused", self._focus_moved, init=False)

    def _focus_moved(self, before: Widget | None, now: Widget | None) -> None:
        """Remember where the focus returns to. Questions only borrow it."""
        if not isinstance(now, PanelView):
            return
        if isinstance(before, Editor | TranscriptView):
            self._left_for.pop(now, None)
        elif isinstance(before, PanelView) and before in self._open.values():
            self._left_for[now] = before

    def on_descendant_focus(self) -> None:
        self._entered = next((panel for panel in self._open.values() if panel.has_focus), self._entered)
        self.fit()

    def on_resize(self) -> None:
        self.fit()

    def fit(self) -> None:
        """Share the height: if it is scarce, the panel entered last gets the rest, the others one line each."""
        panels, usual = list(self._open.values()), self.app.size.height * 3 // 5
        room = usual if self._left is None else min(usual, self._left)
        most = min(self.app.size.height // 2, max(_MIN_HEIGHT, room))
        self.display = room >= _MIN_HEIGHT
        self.styles.max_height = max(_MIN_HEIGHT, room)
        is_crowded = sum(min(panel.wants, most) for panel in panels) > room
        large = self._entered if self._entered in panels else next(reversed(panels), None)
        for panel in panels:
            left = min(most, room - _MIN_HEIGHT * (len(panels) - 1)) if panel is large else _MIN_HEIGHT
            panel.limit(max(_MIN_HEIGHT, left) if is_crowded else most)

    def enter(self, panel_id: str, since: float) -> None:
        """Focus a panel requested at ``since`` as soon as it is open."""
        if panel_id in self._open:
            self._enter(self._open[panel_id], since)
        else:
            self._wanted[panel_id] = since

    def keyed(self, event: Key) -> None:
        """Remember a key that may be meant for a panel about to open."""
        if event.key == "enter":
            self._keys.clear()
        else:
            self._keys.append(event.key)

    def _enter(self, panel: PanelView, since: float) -> None:
        """Focus a panel and pass on the keys since its command, unless a question or a prompt has them."""
        editor, focused = self._elsewhere, self.screen.focused
        is_soon = self._clock() - since <= _TAKES_KEYS_S
        if (editor.text and not is_soon) or not (focused is None or isinstance(focused, Editor | TranscriptView)):
            return
        if editor.text:
            editor.drop()
        self.screen.set_focus(panel)
        panel.begin([key for key in self._keys if is_soon and key in MOVING])
        self._keys.clear()

    async def apply(self, event: PanelEvent) -> None:
        """Apply an event."""
        match event:
            case PanelOpened(extension=extension, panel_id=panel_id, title=title, lines=lines, footer=footer):
                panel = self._open.get(panel_id) or PanelView(panel_id, extension, self._clock)
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
        """Close a panel for the user, and notify its extension if it still has it."""
        await self._close(panel_id)
        with suppress(UserError):
            await tell(panel_id)

    async def close_all(self) -> None:
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
