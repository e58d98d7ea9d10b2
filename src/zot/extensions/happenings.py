"""What comes of the bytes an extension writes, and of the time that passes: what its shell has to act on."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from zot.extensions.calls import Kind
from zot.messages import ImageBlock, TextBlock
from zot.wire.extension import (
    CommandResponse,
    EventName,
    Hello,
    Intercepted,
    Level,
    Panel,
    PanelRender,
    RegisterCommand,
    RegisterTool,
)


class Greeted(msgspec.Struct, frozen=True):
    """It said who it is. ``reply`` is to be written to it at once."""

    hello: Hello
    reply: bytes


class CommandRegistered(msgspec.Struct, frozen=True):
    """It answers to a command."""

    command: RegisterCommand


class ToolRegistered(msgspec.Struct, frozen=True):
    """It has a tool, from the next turn on if it is late."""

    tool: RegisterTool


class Subscribed(msgspec.Struct, frozen=True):
    """What it will hear, and what it will be asked."""

    events: frozenset[EventName]
    intercept: frozenset[Intercepted]


class Settled(msgspec.Struct, frozen=True):
    """Nobody has to wait for it any more. ``said`` is false if it did not say `ready`, which is fine."""

    said: bool


class ToolAnswered(msgspec.Struct, frozen=True):
    """A tool's result, ready for the model. ``failure`` is why it is not the extension's own; "" if it is."""

    id: str
    content: tuple[TextBlock | ImageBlock, ...]
    is_error: bool = False
    failure: str = ""


class CommandAnswered(msgspec.Struct, frozen=True):
    """What a command wants done. A ``failure`` also stands in its ``error``."""

    id: str
    response: CommandResponse
    failure: str = ""


class Decision(msgspec.Struct, frozen=True):
    """What becomes of what an extension was asked about: as it is, changed, or blocked for a reason.

    ``modified_args`` is only ever there for a tool call, ``replace_text`` only for a message, neither if it is blocked.
    Without a block, ``reason`` is a note. ``failure`` is why this is not the extension's own decision; "" if it is.
    """

    block: bool = False
    reason: str = ""
    modified_args: dict[str, Any] | None = None
    replace_text: str | None = None
    failure: str = ""


class Decided(msgspec.Struct, frozen=True):
    """A question has its decision."""

    id: str
    decision: Decision


class Notified(msgspec.Struct, frozen=True):
    """A person should read this."""

    level: Level
    message: str


class PanelOpened(msgspec.Struct, frozen=True):
    """A panel is open from now on. The `CommandAnswered` that opens it follows."""

    panel: Panel


class PanelRendered(msgspec.Struct, frozen=True):
    """An open panel shows something else."""

    panel: PanelRender


class PanelClosed(msgspec.Struct, frozen=True):
    """An open panel is over: it said so, or it has ended."""

    panel_id: str


class Complained(msgspec.Struct, frozen=True):
    """It did something wrong. Belongs into its log; with ``notice`` a person should see it, too."""

    reason: str
    notice: bool = False


class Late(msgspec.Struct, frozen=True):
    """It did not answer in time. The failure that stands in for its answer follows."""

    kind: Kind
    reason: str


class Awaited(msgspec.Struct, frozen=True):
    """Somebody has waited for it for a while: for what, such as "tool weather", and since when."""

    what: str
    since: str


class GivenUp(msgspec.Struct, frozen=True):
    """It will not be started again, and has nothing to offer any more. ``reason`` is "" if that was told before."""

    reason: str


class Acknowledged(msgspec.Struct, frozen=True):
    """It has heard that it shall end."""


class Broken(msgspec.Struct, frozen=True):
    """It cannot be talked to. `Terminate` follows."""

    reason: str


class Terminate(msgspec.Struct, frozen=True):
    """Ask its process to end: SIGTERM."""


class Kill(msgspec.Struct, frozen=True):
    """End its process: SIGKILL."""


class Ended(msgspec.Struct, frozen=True):
    """It is over. The last happening there is. ``wanted`` if it was told to shut down."""

    reason: str
    wanted: bool


Answered: TypeAlias = ToolAnswered | CommandAnswered | Decided
Happening: TypeAlias = (
    Greeted
    | CommandRegistered
    | ToolRegistered
    | Subscribed
    | Settled
    | Answered
    | Notified
    | PanelOpened
    | PanelRendered
    | PanelClosed
    | Complained
    | Late
    | Awaited
    | GivenUp
    | Acknowledged
    | Broken
    | Terminate
    | Kill
    | Ended
)
