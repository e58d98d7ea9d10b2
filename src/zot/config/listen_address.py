"""Where a daemon is reached besides its socket: addresses such as ws://127.0.0.1:7777."""

from __future__ import annotations

import ipaddress
import re

import msgspec

from zot.errors import ConfigError

#: Nothing before the host and nothing behind the path: a token in an address would end up in logs.
_ADDRESS = re.compile(r"(wss?)://(\[[0-9A-Fa-f:.]+\]|[^\s/:@?#\[\]]+):(\d{1,5})(/[^\s?#]*)?")
_MAX_PORT = 65_535


class ListenAddress(msgspec.Struct, frozen=True):
    """``host`` is a name or a number without brackets; ``port`` 0 is any that is free; ``path`` stands before ours."""

    scheme: str
    host: str
    port: int
    path: str = ""

    @staticmethod
    def parse(text: str) -> ListenAddress:
        """Return what an address says. Raise ValueError if it is none."""
        found = _ADDRESS.fullmatch(text)
        if found is None or int(found[3]) > _MAX_PORT:
            raise ValueError("expected addresses such as ws://127.0.0.1:7777, without a user, a query or a token")
        return ListenAddress(found[1], found[2].strip("[]"), int(found[3]), (found[4] or "").rstrip("/"))

    @property
    def is_secure(self) -> bool:
        """True if what is said there is encrypted."""
        return self.scheme == "wss"

    @property
    def is_loopback(self) -> bool:
        """True if nobody on another machine can get there. A name could lead anywhere, but for this one."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


class Tls(msgspec.Struct, frozen=True):
    """The files of a certificate, with those that vouch for it, and of its key, which may be in the same one."""

    cert: str
    key: str | None = None


def checked(url: str, tls: Tls | None) -> ListenAddress:
    """Return an address that we may listen at. Raise ConfigError."""
    try:
        address = ListenAddress.parse(url)
    except ValueError as problem:
        raise ConfigError(f"cannot listen at {url.partition('?')[0]}: {problem}") from None
    if not address.is_secure and not address.is_loopback:
        raise ConfigError(
            f"{address}: what is said there could be read by others; ws:// is for this machine, such as "
            f"ws://127.0.0.1:{address.port}; elsewhere use wss:// with --tls-cert and --tls-key"
        )
    if address.is_secure and tls is None:
        raise ConfigError(f"{address}: wss:// needs a certificate: --tls-cert FILE and --tls-key FILE")
    return address
