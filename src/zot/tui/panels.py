"""The panels of extensions that are open, below each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

from textual.containers import Vertical
from textual.widget import Widget

from zot.errors import UserError
from zot.events import PanelClosed, PanelOpened, PanelRendered
from zot.tui.editor import Editor
from zot.tui.order import DEAD_S
from zot.tui.panel import Panel
from zot.tui.transcript import Transcript

#: The frame, and one line.
_SMALL = 3

PanelEvent: TypeAlias = PanelOpened | PanelRendered | PanelClosed


class Panels(Vertical):
    """Opens, draws and closes panels as extensions want it. Who has asked for one here is taken there."""

    DEFAULT_CSS = "Panels { height: auto; max-height: 60%; overflow-y: auto; scrollbar-size-vertical: 0; }"

    def __init__(self, elsewhere: Editor, is_quiet_since: Callable[[float], bool]) -> None:
        """``elsewhere`` has the focus when no panel has it; ``is_quiet_since`` tells if no key came after a time."""
        super().__init__()
        self._elsewhere = elsewhere
        self._is_quiet_since = is_quiet_since
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
            self.run_worker(self._enter(panel_id, since))
        else:
            self._wanted[panel_id] = since

    async def _enter(self, panel_id: str, since: float) -> None:
        """Give a panel the keys, unless somebody types meanwhile, or has since, what cannot be meant for it."""
        await asyncio.sleep(DEAD_S)
        editor, panel = self._elsewhere, self._open.get(panel_id)
        if panel is not None and editor.has_focus and not editor.text and self._is_quiet_since(since):
            panel.focus()

    async def hear(self, event: PanelEvent) -> None:
        """Do what an event says about a panel."""
        match event:
            case PanelOpened(extension=extension, panel_id=panel_id, title=title, lines=lines, footer=footer):
                panel = self._open.get(panel_id) or Panel(panel_id, extension)
                panel.show(title, lines, footer)
                if panel_id not in self._open:
                    self._open[panel_id] = panel
                    await self.mount(panel)
                self.fit()
                if (since := self._wanted.pop(panel_id, None)) is not None:
                    self.run_worker(self._enter(panel_id, since))
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
