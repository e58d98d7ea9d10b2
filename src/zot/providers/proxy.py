"""Which proxy a request goes through, as the environment says. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from zot.config.address import Origin, split_host
from zot.errors import ConnectionImpossible


class Proxy(msgspec.Struct, frozen=True):
    """An HTTP proxy. ``authorization`` is the value of its proxy-authorization header, or empty."""

    host: str
    port: int
    authorization: str = ""

    def __repr__(self) -> str:
        """Say which one it is, without its password."""
        return f"Proxy({self.label})"

    @property
    def label(self) -> str:
        """``host:port``, for messages."""
        return Origin("http", self.host, self.port).label


def find_proxy(origin: Origin, env: Mapping[str, str]) -> Proxy | None:
    """Return the proxy for this origin, None for a direct connection.

    Reads ``https_proxy`` or ``http_proxy``, then ``all_proxy``, unless ``no_proxy`` matches; lower case before
    upper case, and an empty value counts as absent. Raise ConnectionImpossible for a proxy we cannot use.
    """
    url = _proxy_url(origin.scheme, env)
    if not url or _is_exempt(origin, env.get("no_proxy") or env.get("NO_PROXY") or ""):
        return None
    return _parse_proxy(url)


def _proxy_url(scheme: str, env: Mapping[str, str]) -> str:
    names = [f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY"]
    if scheme == "http" and "REQUEST_METHOD" in env:
        # In a CGI program HTTP_PROXY is the client's "Proxy:" header: an attacker would choose our proxy.
        names.remove("HTTP_PROXY")
    values = (env.get(name, "").strip() for name in names)
    return next(filter(None, values), "")


def _parse_proxy(url: str) -> Proxy:
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "http", url
    if scheme.lower() != "http":
        raise ConnectionImpossible(f"proxies of the kind {scheme}:// are not supported: use an http:// proxy")
    userinfo, _, after = rest.rpartition("@")
    host, port = split_host(after.partition("/")[0], 80)
    return Proxy(host, port, _basic(userinfo) if userinfo else "")


def _basic(userinfo: str) -> str:
    from binascii import b2a_base64
    from urllib.parse import unquote_to_bytes

    user, _, password = userinfo.partition(":")
    credentials = unquote_to_bytes(user) + b":" + unquote_to_bytes(password)
    return "Basic " + b2a_base64(credentials, newline=False).decode("ascii")


def _is_exempt(origin: Origin, no_proxy: str) -> bool:
    return any(_matches(origin, entry) for entry in no_proxy.replace(",", " ").lower().split())


def _matches(origin: Origin, entry: str) -> bool:
    if entry == "*":
        return True
    name, port = _split_entry(entry)
    if port and port != str(origin.port):
        return False
    host = origin.host.rstrip(".")
    if _looks_like_ip(host):
        return _ip_matches(host, name)
    name = name.removeprefix("*").removeprefix(".").rstrip(".")
    return bool(name) and (host == name or host.endswith("." + name))


def _split_entry(entry: str) -> tuple[str, str]:
    if entry.startswith("["):
        name, _, port = entry[1:].partition("]")
        return name, port.removeprefix(":")
    if entry.count(":") == 1:
        name, _, port = entry.partition(":")
        return name, port
    return entry, ""


def _looks_like_ip(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdecimal()


def _ip_matches(host: str, entry: str) -> bool:
    """Compare an address with an address or a network; an entry that is neither matches nothing."""
    from ipaddress import ip_address, ip_network

    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        return False
