"""The panels that one extension has open: it opens them by answering a command, and either side may close them."""

from __future__ import annotations

from collections.abc import Sequence

from zot.extensions.happenings import CommandAnswered, Complained, Happening, PanelClosed, PanelOpened, PanelRendered
from zot.text import printable
from zot.wire import extension as wire


class Panels:
    """Panels by id. What is said about one that is not open has crossed its end on the way, and is only noted."""

    def __init__(self) -> None:
        self._open: dict[str, None] = {}

    @property
    def open(self) -> tuple[str, ...]:
        """Return those that are open, the oldest first."""
        return tuple(self._open)

    def watch(self, happenings: Sequence[Happening]) -> list[Happening]:
        """Return ``happenings`` with the panels that commands among them open, each before its command's answer."""
        watched: list[Happening] = []
        for happening in happenings:
            if isinstance(happening, CommandAnswered) and (panel := _opened(happening)) is not None:
                self._open[panel.id] = None
                watched.append(PanelOpened(panel))
            watched.append(happening)
        return watched

    def take(self, frame: wire.PanelRender | wire.PanelClose) -> Happening:
        """Take what the extension says about a panel."""
        if frame.panel_id not in self._open:
            return Complained(f"{wire.name_of(frame)}: no panel {printable(frame.panel_id)} is open")
        if isinstance(frame, wire.PanelRender):
            return PanelRendered(frame)
        del self._open[frame.panel_id]
        return PanelClosed(frame.panel_id)

    def close(self, panel_id: str) -> bool:
        """Close one; False if it was not open."""
        return self._open.pop(panel_id, False) is None

    def close_all(self) -> list[Happening]:
        """Close them all: the extension has ended."""
        closed: list[Happening] = [PanelClosed(panel_id) for panel_id in self._open]
        self._open.clear()
        return closed


def _opened(answered: CommandAnswered) -> wire.Panel | None:
    """Return the panel that a command opens; one that failed opens none."""
    response = answered.response
    return response.open_panel if response.action == "open_panel" and not response.error else None
