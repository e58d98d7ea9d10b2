"""Parameters and result of `initialize`, the first call of every daemon connection. Does no I/O."""

from __future__ import annotations

from typing import Any

import msgspec

from zot.wire.spelling import Spelled


class ClientName(Spelled, frozen=True):
    """The name and version of the client's program."""

    name: str = ""
    version: str = ""


class Initialize(Spelled, frozen=True):
    """Identifies the client and the protocol version and features that it supports.

    Released clients also send their whole environment. The daemon ignores it, so that it cannot leak.
    """

    protocol_version: int = 1
    features: tuple[str, ...] = ()
    client: ClientName = ClientName()
    client_capabilities: dict[str, Any] | None = None


class Initialized(Spelled, frozen=True, kw_only=True):
    """``capabilities`` are the methods that this connection may call, ``features`` the enabled features.

    ``max_line_bytes`` is the longest line that the daemon reads, if that differs from 16 MiB.
    """

    protocol_version: int
    server_version: str
    server_pid: int
    capabilities: tuple[str, ...]
    features: tuple[str, ...] = ()
    endpoint: str | msgspec.UnsetType = msgspec.UNSET
    tui_id: str | msgspec.UnsetType = msgspec.UNSET
    max_line_bytes: int | msgspec.UnsetType = msgspec.UNSET
