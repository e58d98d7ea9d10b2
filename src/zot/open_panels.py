"""Which panels of extensions are open, and what stands in them: they are not recorded, and who comes later asks."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from zot.events import AgentEvent, PanelClosed, PanelOpened, PanelRendered


class OpenPanels:
    """The panels of one session, by what was heard of them."""

    def __init__(self) -> None:
        self._open: dict[str, PanelOpened] = {}

    def hear(self, events: Iterable[AgentEvent]) -> None:
        """Take what happened."""
        for event in events:
            match event:
                case PanelOpened(panel_id=panel_id):
                    self._open[panel_id] = event
                case PanelRendered(panel_id=panel_id, title=title, lines=lines, footer=footer) if (
                    panel := self._open.get(panel_id)
                ):
                    self._open[panel_id] = msgspec.structs.replace(panel, title=title, lines=lines, footer=footer)
                case PanelClosed(panel_id=panel_id):
                    self._open.pop(panel_id, None)
                case _:
                    pass

    @property
    def shown(self) -> list[AgentEvent]:
        """What opens them for somebody who has seen none of them."""
        return [*self._open.values()]

    def gone(self) -> list[AgentEvent]:
        """Forget all of them, and return what closes them."""
        closed, self._open = [PanelClosed(one.extension, one.panel_id) for one in self._open.values()], {}
        return [*closed]
