"""Base URLs, split into origin and path. Does no I/O."""

from __future__ import annotations

import re

import msgspec

from zot.errors import ConnectionImpossible

COMPLETIONS = "/chat/completions"
_VERSIONED = r"/v\d+[a-z]*(/openai)?$"

DEFAULT_PORTS = {"http": 80, "https": 443}


class Origin(msgspec.Struct, frozen=True):
    """Scheme, host and port: the key of reusable connections. ``host`` has no brackets."""

    scheme: str
    host: str
    port: int

    @property
    def label(self) -> str:
        """``host:port``, for messages and for CONNECT."""
        return f"{_bracketed(self.host)}:{self.port}"

    @property
    def authority(self) -> str:
        """The value of the host header: the port only if it is not the default one."""
        if self.port == DEFAULT_PORTS[self.scheme]:
            return _bracketed(self.host)
        return self.label


class Target(msgspec.Struct, frozen=True):
    """One URL. ``path`` starts with a slash and includes the query, exactly as given."""

    origin: Origin
    path: str


def split_url(url: str) -> Target:
    """Split an http or https URL; drop a fragment. Raise ConnectionImpossible, which quotes no part of the URL."""
    if not _is_plain(url):
        raise ConnectionImpossible("the URL contains a space, control or non-ASCII character: percent-encode it")
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in DEFAULT_PORTS:
        raise ConnectionImpossible("the URL must begin with http:// or https://")
    authority, path = _split_path(rest.partition("#")[0])
    if "@" in authority:
        raise ConnectionImpossible("the URL contains a user name or password: send credentials in a header instead")
    host, port = split_host(authority, DEFAULT_PORTS[scheme])
    return Target(Origin(scheme, host, port), path)


def split_host(authority: str, default_port: int) -> tuple[str, int]:
    """Split ``host``, ``host:port`` or ``[v6]:port``; return the host in lower case, without brackets.

    Raise ConnectionImpossible. It does not quote malformed input, which may be half of a password.
    """
    if authority.startswith("["):
        host, closed, after = authority[1:].partition("]")
        port = after.removeprefix(":")
        well_formed = bool(closed) and (not after or after.startswith(":"))
    else:
        host, _, port = authority.partition(":")
        well_formed = all(0 < len(label) < 64 for label in host.removesuffix(".").split("."))
    if not (well_formed and host and host.isascii()):
        raise ConnectionImpossible("the URL has no valid host name (an IPv6 address needs brackets)")
    if not (port == "" or (port.isdecimal() and len(port) < 6 and 0 < int(port) < 65536)):
        raise ConnectionImpossible("the port in the URL is not a number between 1 and 65535")
    return host.lower(), int(port) if port else default_port


def _split_path(rest: str) -> tuple[str, str]:
    ends = [at for at in (rest.find("/"), rest.find("?")) if at >= 0]
    end = min(ends, default=len(rest))
    path = rest[end:]
    return rest[:end], path if path.startswith("/") else "/" + path


def _is_plain(url: str) -> bool:
    return url.isascii() and url.isprintable() and " " not in url


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def api_base(base_url: str) -> str:
    """Return the base for request paths: a base URL may come with a version, without one, or with the whole path."""
    base = base_url.rstrip("/")
    if base.endswith(COMPLETIONS):
        return base.removesuffix(COMPLETIONS)
    return base if re.search(_VERSIONED, base) else f"{base}/v1"
