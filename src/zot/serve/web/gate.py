"""Who may speak to the daemon over HTTP, told from the head of a request. Does no I/O of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import msgspec

from zot.serve.web.tokens import Tokens

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
