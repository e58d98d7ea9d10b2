"""The daemon's dialect, the first call of every connection: what `initialize` takes and answers. Does no I/O."""

from __future__ import annotations

from typing import Any

import msgspec

from zot.wire.spelling import Spelled


class ClientName(Spelled, frozen=True):
    name: str = ""
    version: str = ""


class Initialize(Spelled, frozen=True):
    """Who connects, and what it understands.

    Released clients send their whole environment, too. It is not taken in: what is not there cannot leak.
    """

    protocol_version: int = 1
    features: tuple[str, ...] = ()
    client: ClientName = ClientName()
    client_capabilities: dict[str, Any] | None = None


class Initialized(Spelled, frozen=True, kw_only=True):
    """``capabilities`` are the methods that this connection may call, ``features`` those that are on.

    ``max_line_bytes`` is the longest line that is read, if that is another than 16 MiB.
    """

    protocol_version: int
    server_version: str
    server_pid: int
    capabilities: tuple[str, ...]
    features: tuple[str, ...] = ()
    endpoint: str | msgspec.UnsetType = msgspec.UNSET
    tui_id: str | msgspec.UnsetType = msgspec.UNSET
    max_line_bytes: int | msgspec.UnsetType = msgspec.UNSET
