"""Slash commands and panels of extensions: what a front end lists and shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from zot.events import AgentEvent, PanelClosed, PanelOpened, PanelRendered


class CommandInfo(msgspec.Struct, frozen=True):
    """A command that people can run, and whose it is."""

    name: str
    description: str
    extension: str


class CommandAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an extension wants done: run ``prompt``, put ``insert`` into the editor, ``display`` a note, or nothing."""

    extension: str
    action: str
    prompt: str = ""
    insert: str = ""
    display: str = ""
    panel_id: str = ""


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
    def seen(self) -> Mapping[str, PanelOpened]:
        """What somebody has seen who has heard everything until now."""
        return dict(self._open)

    def since(self, seen: Mapping[str, PanelOpened]) -> list[AgentEvent]:
        """What shows them to somebody who has ``seen`` these."""
        closed = (PanelClosed(one.extension, panel_id) for panel_id, one in seen.items() if panel_id not in self._open)
        new = (one for panel_id, one in self._open.items() if panel_id not in seen)
        changed = (one for panel_id, one in self._open.items() if seen.get(panel_id, one) != one)
        rendered = (PanelRendered(one.extension, one.panel_id, one.title, one.lines, one.footer) for one in changed)
        return [*closed, *rendered, *new]

    @property
    def shown(self) -> list[AgentEvent]:
        """What opens them for somebody who has seen none of them."""
        return [*self._open.values()]

    def gone(self) -> list[AgentEvent]:
        """Forget all of them, and return what closes them."""
        closed, self._open = [PanelClosed(one.extension, one.panel_id) for one in self._open.values()], {}
        return [*closed]
