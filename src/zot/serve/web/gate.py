"""Access control over HTTP: tokens, hosts, origins and limits."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import msgspec

from zot.config.tokens import VOID, ScopedToken, digest_of, make, read, read_scoped, scoped_path_beside
from zot.errors import ConfigError
from zot.wire.daemon import ROLES, Grant
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


#: Interval of checks whether the tokens of open connections still count.
_CHECK_S = 0.25


class Tokens:
    """Tokens of the file `token`, which have all roles, and of `tokens.json` beside it. Changes take effect at once."""

    def __init__(self, path: str, *, clock: Callable[[], float] = time.time) -> None:
        """Read the files; create `token` with one token if there is neither. Raise ConfigError."""
        self.path = path
        self._scoped_path = scoped_path_beside(path)
        self._clock = clock
        self._seen: tuple[tuple[int, ...] | None, ...] = ()
        self._grants: Mapping[str, Grant] = {}
        #: Called when the token of an open connection does not count any more.
        self._open: dict[Callable[[], None], Grant] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: Last logged problem with the files.
        self._logged = ""
        self._refresh()

    def bearer(self, token: str) -> str | None:
        """Return the name of a token; None if it is unknown."""
        found = self.grant(token)
        return None if found is None else found.name

    def grant(self, token: str) -> Grant | None:
        """Return what a token allows; None if it is unknown or over. Takes the same time for every token."""
        try:
            self._refresh()
        except ConfigError as problem:  # An unreadable file admits no client.
            self._log_once(str(problem))
            return None
        self._log_once("")
        given = digest_of(token.encode("utf-8", "surrogatepass"))
        found = None
        for one in self._grants.values():
            if hmac.compare_digest(one.digest, given):
                found = one
        return None if found is None or found.is_over(self._clock()) else found

    def counts(self, grant: Grant) -> bool:
        """True unless a token was revoked or changed, or is over. A file that cannot be read revokes nothing."""
        with suppress(ConfigError):
            self._refresh()
            return self._grants.get(grant.name) == grant and not grant.is_over(self._clock())
        return not grant.is_over(self._clock())

    @contextmanager
    def watching(self, grant: Grant, revoked: Callable[[], None]) -> Iterator[None]:
        """Call ``revoked`` once if the token was revoked or has expired while a connection is open."""
        self._open[revoked] = grant
        if self._timer is None:
            self._check_later()
        try:
            yield
        finally:
            self._open.pop(revoked, None)
            if not self._open and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _check_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_CHECK_S, self._check_open)

    def _check_open(self) -> None:
        self._timer = None
        for revoked, grant in [*self._open.items()]:
            if not self.counts(grant):
                del self._open[revoked]
                revoked()
        if self._open:
            self._check_later()

    def _log_once(self, problem: str) -> None:
        """Log a problem with the files, once; refused clients get no details."""
        if problem == self._logged:
            return
        self._logged = problem
        if problem:
            log.warning("%s; %s", problem, VOID)
        else:
            log.warning("%s: it is readable again, and its tokens are accepted", self.path)

    def _refresh(self) -> None:
        seen = _signature(self.path), _signature(self._scoped_path)
        if seen == (None, None):
            make(self.path)
            seen = _signature(self.path), None
        if seen != self._seen:
            self._grants, self._seen = {}, ()  # If reading fails, no token is valid.
            plain = read(self.path) if seen[0] is not None else {}
            grants = {name: Grant(name, digest=digest_of(token)) for name, token in plain.items()}
            for one in read_scoped(self._scoped_path):
                if one.name in grants:
                    raise ConfigError(f"{self._scoped_path}: {one.name!r} is the name of a token in {self.path}, too")
                grants[one.name] = _granted(one)
            self._grants, self._seen = grants, seen


def _granted(token: ScopedToken) -> Grant:
    sessions = None if token.sessions is None else frozenset(token.sessions)
    return Grant(token.name, frozenset(token.roles) & {*ROLES}, sessions, token.expires, token.digest)


def _signature(path: str) -> tuple[int, ...] | None:
    """Return what changes with the file; None if there is none. Raise ConfigError."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode


class Refusal(msgspec.Struct, frozen=True):
    """Reason to refuse a request. ``reason`` is one word, for the audit log."""

    status: int
    reason: str
    message: str


class Gate:
    """Check a request's address, host, origin and token."""

    def __init__(self, tokens: Tokens, *, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self.tokens = tokens
        self._hosts = frozenset(name.lower().strip("[]") for name in (*_LOOPBACK, *hosts))
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    def refusal(self, scope: Scope) -> Refusal | None:
        """Return the reason to refuse a request regardless of its token; None to accept it."""
        if _bears_token_in_url(scope):
            return Refusal(
                400, "token_in_url", "a token in a URL ends up in logs: send it in a header; replace this one"
            )
        hosts = headers_of(scope, b"host")
        if len(hosts) != 1 or _name_of(hosts[0]) not in self._hosts:
            return Refusal(421, "host", "this is not a host name of the daemon; add it to hosts in [daemon]")
        origins = headers_of(scope, b"origin")
        if origins and not (len(origins) == 1 and self._allows(origins[0], hosts[0], scope)):
            return Refusal(403, "origin", "pages of this origin may not call the daemon")
        return None

    def grant(self, scope: Scope) -> Grant | None:
        """Return what the one token in a request allows; None if there is none, several, or an unknown one."""
        given = [value.partition(" ") for value in headers_of(scope, b"authorization")]
        tokens = [token.strip() if scheme.lower() == "bearer" else "" for scheme, _, token in given]
        names = scope.get("subprotocols") or ()
        tokens += [name.removeprefix(_TOKEN_SUBPROTOCOL) for name in names if name.startswith(_TOKEN_SUBPROTOCOL)]
        return self.tokens.grant(tokens[0]) if len(tokens) == 1 and tokens[0] else None

    def _allows(self, origin: str, host: str, scope: Scope) -> bool:
        """True for an origin that this daemon could have served, or that the configuration allows."""
        said, scheme = origin.lower(), "https" if scope.get("scheme") in _SECURE else "http"
        return said in self._origins or said == f"{scheme}://{host.lower()}"


def subprotocol_of(scope: Scope) -> str | None:
    """Return the subprotocol for the answer, never the one that carries the token."""
    return SUBPROTOCOL if SUBPROTOCOL in (scope.get("subprotocols") or ()) else None


def headers_of(scope: Scope, name: bytes) -> list[str]:
    """Return all values of a header; ``name`` has small letters."""
    return [value.decode("latin-1").strip() for key, value in scope["headers"] if key.lower() == name]


def _name_of(host: str) -> str | None:
    """Return the name in a ``Host`` header, without its port; None if it is malformed."""
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
    stays reachable. ``idle`` counts those of one peer that have no request, or not yet all of its head: one more ends
    the oldest of them. ``head_s`` bounds the TLS handshake and, separately, the head of a request; ``body_s`` its body.
    A client that does not answer a ping within ``pong_s`` is disconnected.
    """

    connections: int = 512
    idle: int = 64
    head: int = 64 << 10
    head_s: float = 10.0
    body: int = MAX_INPUT_BYTES
    body_s: float = 15.0
    message: int = MAX_LINE_BYTES
    fragments: int = 4096
    ping_s: float = 20.0
    pong_s: float = 10.0
