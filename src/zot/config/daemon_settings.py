"""How `zot daemon` works, whichever agent it runs: the table `[daemon]` of config.toml."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from zot.config.flags import MAX_SECONDS, Seconds

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


class DaemonSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What counts for all sessions of a daemon. Every field has a sensible default.

    ``max_sessions`` is how many are loaded at once, 0 for any number; ``idle_s`` how long one stays loaded that
    nobody uses; ``listen`` where else than at the socket it is reached; ``grace_s`` how long
    what runs has when the daemon is to end; ``server_version`` what clients are told instead of zot's own.

    Over HTTP, ``hosts`` are names besides its own by which it may be called, ``origins`` the web pages elsewhere that
    may call it; ``tls_cert`` and ``tls_key`` are the files with its certificate.
    """

    max_sessions: Annotated[int, msgspec.Meta(ge=0)] = 0
    idle_s: Seconds = 600.0
    listen: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    grace_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)] = 1.0
    server_version: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    log_level: LogLevel = "info"

    def __post_init__(self) -> None:
        """Raise ValueError for an address at which nobody can listen."""
        if self.listen:
            from zot.config.listen_address import ListenAddress

            for address in self.listen:
                ListenAddress.parse(address)
