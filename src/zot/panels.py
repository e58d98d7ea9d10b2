"""Extensions, slash commands, resources and panels, as front ends list and show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from zot.errors import UserError
from zot.events import AgentEvent, PanelClosed, PanelOpened, PanelRendered

#: States of an extension: of its process or connection, or why none was started.
ExtensionStanding: TypeAlias = Literal[
    "starting", "running", "restarting", "failed", "stopped", "untrusted", "disabled", "shadowed", "broken", "refused"
]


class ExtensionInfo(msgspec.Struct, frozen=True):
    """An extension of a session. ``problem`` says why it does not run."""

    name: str
    state: ExtensionStanding
    problem: str = ""
    tools: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


class CommandInfo(msgspec.Struct, frozen=True):
    """A slash command and the extension that provides it."""

    name: str
    description: str
    extension: str


class ResourceInfo(msgspec.Struct, frozen=True):
    """A resource of an MCP server. ``mention`` names it in a prompt, as `@SERVER:URI`."""

    mention: str
    title: str = ""


class CommandAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The action an extension requests after a command.

    Run ``prompt``, put ``insert`` into the editor, ``display`` a note, or none.
    """

    extension: str
    action: str
    prompt: str = ""
    insert: str = ""
    display: str = ""
    panel_id: str = ""


class OpenPanels:
    """The open panels of one session, updated from its events."""

    def __init__(self) -> None:
        self._open: dict[str, PanelOpened] = {}

    def owner(self, panel_id: str) -> str | None:
        """Return the name of the extension that has a panel open; None if it is not open."""
        panel = self._open.get(panel_id)
        return None if panel is None else panel.extension

    def apply(self, events: Iterable[AgentEvent]) -> None:
        """Update the panels from ``events``."""
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
        """A snapshot of the open panels, for `since`."""
        return dict(self._open)

    def since(self, seen: Mapping[str, PanelOpened]) -> list[AgentEvent]:
        """Return the events that bring a client from the snapshot ``seen`` to the current panels."""
        closed = (PanelClosed(one.extension, panel_id) for panel_id, one in seen.items() if panel_id not in self._open)
        new = (one for panel_id, one in self._open.items() if panel_id not in seen)
        changed = (one for panel_id, one in self._open.items() if seen.get(panel_id, one) != one)
        rendered = (PanelRendered(one.extension, one.panel_id, one.title, one.lines, one.footer) for one in changed)
        return [*closed, *rendered, *new]

    @property
    def shown(self) -> list[AgentEvent]:
        """The events that open all panels for a new client."""
        return [*self._open.values()]

    def gone(self) -> list[AgentEvent]:
        """Forget all panels and return the events that close them."""
        closed, self._open = [PanelClosed(one.extension, one.panel_id) for one in self._open.values()], {}
        return [*closed]


class SessionPanels(OpenPanels):
    """The open panels of a session, and the way back to their extensions. Without extensions, none is ever open."""

    def send_key(self, panel_id: str, key: str, text: str = "") -> None:
        """Send a key to an open panel. Raise UserError if there is no such panel or key."""
        raise UserError(f"no panel {panel_id!r} is open")

    def close(self, panel_id: str) -> None:
        """Close a panel. Raise UserError if it is not open."""
        raise UserError(f"no panel {panel_id!r} is open")
