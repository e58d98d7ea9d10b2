"""How `zot daemon` works, whichever agent it runs: the table `[daemon]` of config.toml."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

import msgspec

from zot.flags import MAX_SECONDS, Seconds

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

#: Nothing before the host and nothing behind the path: a token in an address would end up in logs.
_ADDRESS = re.compile(r"wss?://(\[[0-9A-Fa-f:.]+\]|[^\s/:@?#\[\]]+):(\d{1,5})(/[^\s?#]*)?")
_MAX_PORT = 65_535


class DaemonSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What counts for all sessions of a daemon. Every field has a sensible default.

    ``max_sessions`` is how many are loaded at once, 0 for any number; ``idle_s`` how long one stays loaded that has
    extensions or jobs and nothing to do; ``listen`` where else than at the socket it is reached; ``grace_s`` how long
    what runs has when the daemon is to end; ``server_version`` what clients are told instead of zot's own.
    """

    max_sessions: Annotated[int, msgspec.Meta(ge=0)] = 0
    idle_s: Seconds = 600.0
    listen: tuple[str, ...] = ()
    grace_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)] = 1.0
    server_version: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    log_level: LogLevel = "info"

    def __post_init__(self) -> None:
        """Raise ValueError for an address at which nobody can listen."""
        for address in self.listen:
            found = _ADDRESS.fullmatch(address)
            if found is None or int(found[2]) > _MAX_PORT:
                raise ValueError("expected addresses such as ws://127.0.0.1:7777, without a user, a query or a token")
