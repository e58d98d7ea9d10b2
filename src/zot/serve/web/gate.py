"""Access control over HTTP: tokens, hosts, origins and limits."""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import msgspec

from zot.config.tokens import VOID, make, read
from zot.errors import ConfigError
from zot.wire.host import MAX_INPUT_BYTES
from zot.wire.lines import MAX_LINE_BYTES

log = logging.getLogger("zot")

Scope: TypeAlias = Mapping[str, Any]

#: The protocol's name, and the prefix of a second subprotocol that carries the token where no header can be set.
SUBPROTOCOL = "zot.v1"
_TOKEN_SUBPROTOCOL = "zot.token."
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: Schemes under which only https pages count as ours.
_SECURE = ("wss", "https")


class Tokens:
    """Tokens of one file, one per line: alone or as `name:token`. Changes of the file take effect at once."""

    def __init__(self, path: str) -> None:
        """Read the file; create it with one token if it does not exist. Raise ConfigError."""
        self.path = path
        self._seen: tuple[int, ...] = ()
        self._tokens: Mapping[str, bytes] = {}
        #: Last logged problem with the file.
        self._logged = ""
        self._refresh()

    def bearer(self, token: str) -> str | None:
        """Return the name of a token; None if it is unknown. Takes the same time for every token."""
        try:
            self._refresh()
        except ConfigError as problem:  # An unreadable file admits no client.
            self._log_once(str(problem))
            return None
        self._log_once("")
        given = token.encode("utf-8", "surrogatepass")
        found = None
        for name, known in self._tokens.items():
            if hmac.compare_digest(known, given):
                found = name
        return found

    def first(self) -> str:
        """Return the token of the first line, for callers that may read the file anyway."""
        return next(iter(self._tokens.values())).decode()

    def _log_once(self, problem: str) -> None:
        """Log a problem with the file, once; refused clients get no details."""
        if problem == self._logged:
            return
        self._logged = problem
        if problem:
            log.warning("%s; %s", problem, VOID)
        else:
            log.warning("%s: it can be read again, and its tokens count", self.path)

    def _refresh(self) -> None:
        try:
            seen = _signature(os.stat(self.path))
        except FileNotFoundError:
            make(self.path)
            seen = _signature(os.stat(self.path))
        except OSError as problem:
            raise ConfigError(f"{self.path}: {problem.strerror}") from None
        if seen != self._seen:
            self._tokens = {}  # If reading fails, no token is valid.
            self._tokens = read(self.path)
            self._seen = seen


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode


class Refusal(msgspec.Struct, frozen=True):
    """Reason to refuse a request. ``reason`` is one word, for the audit log."""

    status: int
    reason: str
    message: str


class Gate:
    """Check a request's address, host, origin and token."""

    def __init__(self, tokens: Tokens, *, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._tokens = tokens
        self._hosts = frozenset(name.lower().strip("[]") for name in (*_LOOPBACK, *hosts))
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    def refusal(self, scope: Scope) -> Refusal | None:
        """Return the reason to refuse a request regardless of its token; None to accept it."""
        if _bears_token_in_url(scope):
            return Refusal(400, "token_in_url", "a token in an address ends up in logs: use a header; and replace it")
        hosts = _all(scope, b"host")
        if len(hosts) != 1 or _name_of(hosts[0]) not in self._hosts:
            return Refusal(421, "host", "this is not a name of this daemon; it can be given more, as [daemon] hosts")
        origins = _all(scope, b"origin")
        if origins and not (len(origins) == 1 and self._allows(origins[0], hosts[0], scope)):
            return Refusal(403, "origin", "pages of this origin may not call the daemon")
        return None

    def bearer(self, scope: Scope) -> str | None:
        """Return the name of the one token in a request; None if there is none, several, or an unknown one."""
        given = [value.partition(" ") for value in _all(scope, b"authorization")]
        tokens = [token.strip() if scheme.lower() == "bearer" else "" for scheme, _, token in given]
        names = scope.get("subprotocols") or ()
        tokens += [name.removeprefix(_TOKEN_SUBPROTOCOL) for name in names if name.startswith(_TOKEN_SUBPROTOCOL)]
        return self._tokens.bearer(tokens[0]) if len(tokens) == 1 and tokens[0] else None

    def _allows(self, origin: str, host: str, scope: Scope) -> bool:
        """True for an origin that this daemon could have served, or that the configuration allows."""
        said, scheme = origin.lower(), "https" if scope.get("scheme") in _SECURE else "http"
        return said in self._origins or said == f"{scheme}://{host.lower()}"


def subprotocol_of(scope: Scope) -> str | None:
    """Return the subprotocol for the answer, never the one that carries the token."""
    return SUBPROTOCOL if SUBPROTOCOL in (scope.get("subprotocols") or ()) else None


def _all(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for key, value in scope["headers"] if key.lower() == name]


def _name_of(host: str) -> str | None:
    """Return the name in a `Host` header, without its port; None if it is malformed."""
    try:
        split = urlsplit(f"//{host}")
        if split.username is not None or split.path or split.query or split.fragment:
            return None
        split.port  # noqa: B018  Raises if it is not a number.
    except ValueError:
        return None
    return split.hostname


def _bears_token_in_url(scope: Scope) -> bool:
    query = scope.get("query_string", b"")
    if not query:
        return False
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    return any("token" in name.lower() or name.lower() in ("authorization", "key", "api_key") for name, _ in pairs)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes, times in seconds.

    ``connections`` counts those at one address: fewer than the daemon's limit for all clients, so that the local socket
    stays reachable. ``head_s`` bounds the TLS handshake and, separately, the head of a request; ``body_s`` its body. A
    client that does not answer a ping within ``pong_s`` is disconnected.
    """

    connections: int = 512
    head: int = 64 << 10
    head_s: float = 10.0
    body: int = MAX_INPUT_BYTES
    body_s: float = 15.0
    message: int = MAX_LINE_BYTES
    fragments: int = 4096
    ping_s: float = 20.0
    pong_s: float = 10.0
