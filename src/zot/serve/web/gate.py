"""Access over HTTP: tokens, hosts, origins and limits. Does no I/O of its own."""

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


class Tokens:
    """The tokens of one file: one on each line, alone or as `name:token`. What the file says now is what counts."""

    def __init__(self, path: str) -> None:
        """Read the file; one that does not exist is made, with one token. Raise ConfigError."""
        self.path = path
        self._seen: tuple[int, ...] = ()
        self._tokens: Mapping[str, bytes] = {}
        #: What is wrong with the file, as it was told.
        self._told = ""
        self._refresh()

    def bearer(self, token: str) -> str | None:
        """Return whose token it is; None if it is nobody's. Takes as long for one as for another."""
        try:
            self._refresh()
        except ConfigError as problem:  # What cannot be read admits nobody.
            self._tell(str(problem))
            return None
        self._tell("")
        given = token.encode("utf-8", "surrogatepass")
        found = None
        for name, known in self._tokens.items():
            if hmac.compare_digest(known, given):
                found = name
        return found

    def first(self) -> str:
        """Return the token of the first line, for whoever may read the file anyway."""
        return next(iter(self._tokens.values())).decode()

    def _tell(self, problem: str) -> None:
        """Log what is wrong with the file, once: those who are kept out are told nothing of it."""
        if problem == self._told:
            return
        self._told = problem
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
            self._tokens = {}  # Until it has been read again, nobody is known.
            self._tokens = read(self.path)
            self._seen = seen


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode


Scope: TypeAlias = Mapping[str, Any]

#: The dialect, and how a token is given where no header can be: beside it.
SUBPROTOCOL = "zot.v1"
_TOKEN_SUBPROTOCOL = "zot.token."
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: What is encrypted is for pages that are, too.
_SECURE = ("wss", "https")


class Refusal(msgspec.Struct, frozen=True):
    """Why a request is not looked at any further. ``reason`` is one word, for the audit log."""

    status: int
    reason: str
    message: str


class Gate:
    """Looks at where a request comes from and what it bears."""

    def __init__(self, tokens: Tokens, *, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._tokens = tokens
        self._hosts = frozenset(name.lower().strip("[]") for name in (*_LOOPBACK, *hosts))
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    def refusal(self, scope: Scope) -> Refusal | None:
        """Return why a request is refused, whoever makes it; None if it is not."""
        if _bears_token_in_url(scope):
            return Refusal(400, "token_in_url", "a token in an address ends up in logs: use a header; and replace it")
        hosts = _all(scope, b"host")
        if len(hosts) != 1 or _name_of(hosts[0]) not in self._hosts:
            return Refusal(421, "host", "this is not a name of this daemon; it can be given more, as [daemon] hosts")
        origins = _all(scope, b"origin")
        if origins and not (len(origins) == 1 and self._is_ours(origins[0], hosts[0], scope)):
            return Refusal(403, "origin", "pages of this origin may not call the daemon")
        return None

    def bearer(self, scope: Scope) -> str | None:
        """Return the name of the one token that a request bears; None if there is none, or it is nobody's."""
        given = [value.partition(" ") for value in _all(scope, b"authorization")]
        tokens = [token.strip() if scheme.lower() == "bearer" else "" for scheme, _, token in given]
        names = scope.get("subprotocols") or ()
        tokens += [name.removeprefix(_TOKEN_SUBPROTOCOL) for name in names if name.startswith(_TOKEN_SUBPROTOCOL)]
        return self._tokens.bearer(tokens[0]) if len(tokens) == 1 and tokens[0] else None

    def _is_ours(self, origin: str, host: str, scope: Scope) -> bool:
        """True of a page that we could have served, or that may call us all the same."""
        said, scheme = origin.lower(), "https" if scope.get("scheme") in _SECURE else "http"
        return said in self._origins or said == f"{scheme}://{host.lower()}"


def subprotocol_of(scope: Scope) -> str | None:
    """Return the subprotocol that the answer selects, never the one that is a token."""
    return SUBPROTOCOL if SUBPROTOCOL in (scope.get("subprotocols") or ()) else None


def _all(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for key, value in scope["headers"] if key.lower() == name]


def _name_of(host: str) -> str | None:
    """Return the name in a `Host` header, without its port; None if it is no name."""
    try:
        split = urlsplit(f"//{host}")
        if split.username is not None or split.path or split.query or split.fragment:
            return None
        split.port  # noqa: B018  Raises if it is no number.
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

    ``connections`` are those at one address, whoever is at their other end: fewer than the daemon takes in all, so that
    the local socket is never out of reach. ``head_s`` is for the handshake of TLS and, again, for the head of a
    request; ``body_s`` for its body. Who has not answered a ping ``pong_s`` after it is gone.
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
