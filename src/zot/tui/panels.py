"""The panels of extensions that are open, below each other."""

from __future__ import annotations

from textual.containers import Vertical
from textual.widget import Widget

from zot.events import AgentEvent, PanelClosed, PanelOpened, PanelRendered
from zot.tui.panel import Panel


class Panels(Vertical):
    """Opens, draws and closes panels as extensions want it. The newest has the focus."""

    DEFAULT_CSS = "Panels { height: auto; max-height: 60%; }"

    def __init__(self, elsewhere: Widget) -> None:
        """``elsewhere`` has the focus when no panel has it."""
        super().__init__()
        self._elsewhere = elsewhere
        self._open: dict[str, Panel] = {}

    async def hear(self, event: AgentEvent) -> None:
        """Do what an event says about a panel."""
        match event:
            case PanelOpened(extension=extension, panel_id=panel_id, title=title, lines=lines, footer=footer):
                panel = self._open.get(panel_id) or Panel(panel_id, extension)
                panel.show(title, lines, footer)
                if panel_id not in self._open:
                    self._open[panel_id] = panel
                    await self.mount(panel)
                panel.focus()
            case PanelRendered(panel_id=panel_id, title=title, lines=lines, footer=footer):
                if (shown := self._open.get(panel_id)) is not None:
                    shown.show(title, lines, footer)
            case PanelClosed(panel_id=panel_id):
                await self._close(panel_id)
            case _:
                pass

    async def close_all(self) -> None:
        """Show none any more."""
        self._open.clear()
        await self.remove_children()

    async def _close(self, panel_id: str) -> None:
        panel = self._open.pop(panel_id, None)
        if panel is None:
            return
        if panel.has_focus:
            self.screen.set_focus(next(reversed(self._open.values()), self._elsewhere))
        await panel.remove()
