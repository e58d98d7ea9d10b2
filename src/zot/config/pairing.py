"""One-time codes that pair a browser with the daemon, in the file `pairings.json` beside the tokens.

A code is exchanged once, within minutes, for a token with the roles that the file states. Only its digest is stored.
"""

from __future__ import annotations

import base64
import hmac
import os
from collections.abc import Sequence

import msgspec

from zot.config.tokens import check_name, digest_of, make_scoped, read_private, read_scoped, scoped_path_beside
from zot.encoding import UNREADABLE, explain, thread_safe_type
from zot.errors import ConfigError, UserError
from zot.files import directory_lock, is_there, replace_file

#: How long a code can be exchanged, in seconds.
CODE_S = 300.0
#: How long a paired device stays paired, in seconds.
DEVICE_S = 30 * 86400.0
#: The names of tokens of paired devices begin with this.
DEVICE_PREFIX = "web."

_CODE_BYTES = 24
_NAME_BYTES = 3
#: More open codes than this make the oldest void.
_MAX_CODES = 32


class Pairing(msgspec.Struct, frozen=True):
    """An open code: its digest, the name and roles of the token, and its end, in seconds since the epoch."""

    digest: str
    name: str
    roles: tuple[str, ...]
    expires: float


class _PairingFile(msgspec.Struct, frozen=True):
    pairings: tuple[Pairing, ...] = ()


class Paired(msgspec.Struct, frozen=True):
    """A token that a code was exchanged for, and the period until it expires."""

    name: str
    token: str
    lasts_s: float


def open_pairing(token_path: str, *, name: str, roles: Sequence[str], now: float) -> str:
    """Record a new code and return it. ``name`` is the device's, "" for a random one. Raise UserError, ConfigError."""
    code = _random(_CODE_BYTES)
    given = f"{DEVICE_PREFIX}{name or os.urandom(_NAME_BYTES).hex()}"
    check_name(given)
    with directory_lock(os.path.dirname(token_path)):
        if given in {one.name for one in read_scoped(scoped_path_beside(token_path))}:
            raise UserError(f"there is a device {name!r} already; choose another name, or run: zot web revoke {name}")
        kept = _open_at(token_path, now)[-_MAX_CODES + 1 :]
        _write(token_path, (*kept, Pairing(digest_of(code.encode()), given, (*roles,), now + CODE_S)))
    return code


def redeem(token_path: str, code: str, *, now: float) -> Paired | None:
    """Exchange a code for a token; None if it is unknown, used or over. Raise UserError, ConfigError."""
    given = digest_of(code.encode("utf-8", "surrogatepass"))
    with directory_lock(os.path.dirname(token_path)):
        known = _open_at(token_path, now)
        found = None
        for one in known:
            if hmac.compare_digest(one.digest, given):
                found = one
        if found is None:
            return None
        # The code is void before its token exists: a crash between the two costs a pairing, never a second use.
        _write(token_path, tuple(one for one in known if one is not found))
    token = make_scoped(token_path, found.name, roles=found.roles, sessions=None, expires=now + DEVICE_S, now=now)
    return Paired(found.name, token, DEVICE_S)


def _open_at(token_path: str, now: float) -> tuple[Pairing, ...]:
    """Return the codes that are not over. Raise ConfigError."""
    path = _path_beside(token_path)
    if not is_there(path):
        return ()
    try:
        known = msgspec.json.decode(read_private(path), type=thread_safe_type(_PairingFile)).pairings
    except UNREADABLE as problem:
        raise ConfigError(f"{path}: {explain(problem)}") from None
    return tuple(one for one in known if one.expires > now)


def _write(token_path: str, pairings: tuple[Pairing, ...]) -> None:
    replace_file(_path_beside(token_path), msgspec.json.encode(_PairingFile(pairings)) + b"\n")


def _path_beside(token_path: str) -> str:
    return os.path.join(os.path.dirname(token_path), "pairings.json")


def _random(size: int) -> str:
    return base64.urlsafe_b64encode(os.urandom(size)).rstrip(b"=").decode()
