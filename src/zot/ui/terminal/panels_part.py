"""The panels of extensions that are open, below each other."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

from textual.containers import Vertical
from textual.events import Key
from textual.widget import Widget

from zot.errors import UserError
from zot.events import PanelClosed, PanelOpened, PanelRendered
from zot.ui.terminal.composer import Editor
from zot.ui.terminal.panels import MOVING, Panel
from zot.ui.terminal.transcript import Transcript

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
