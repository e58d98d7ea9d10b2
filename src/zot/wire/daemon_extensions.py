"""The daemon's dialect, about the extensions of a session: what its methods take and answer. Does no I/O."""

from __future__ import annotations

from zot.wire.spelling import Spelled


class CommandEntry(Spelled, frozen=True):
    name: str
    description: str
    extension: str


class Commands(Spelled, frozen=True):
    session_id: str
    commands: tuple[CommandEntry, ...]


class RunCommand(Spelled, frozen=True):
    session_id: str
    name: str
    args: str = ""


class CommandRun(Spelled, frozen=True, kw_only=True):
    """What an extension wants done. With the action ``prompt``, that prompt has been started."""

    session_id: str
    extension: str
    action: str
    prompt: str = ""
    insert: str = ""
    display: str = ""
    panel_id: str = ""


class PanelKey(Spelled, frozen=True):
    session_id: str
    panel_id: str
    key: str
    text: str = ""


class PanelClose(Spelled, frozen=True):
    session_id: str
    panel_id: str


class PanelTold(Spelled, frozen=True):
    session_id: str
    panel_id: str


class Reloaded(Spelled, frozen=True):
    """The names of those that run now."""

    session_id: str
    extensions: tuple[str, ...]


class Dismiss(Spelled, frozen=True):
    session_id: str
    name: str


class Dismissed(Spelled, frozen=True):
    session_id: str
    dismissed: bool = True
