"""`zot daemon token`: make, list and revoke tokens for clients over the network."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime

import msgspec

from zot.commands.daemon_manage import place_of
from zot.commands.subcommands import CommandRequest, aligned, print_note, write, write_json
from zot.config.tokens import make_scoped, path_in, read, read_scoped, revoke, scoped_path_beside
from zot.errors import UsageError
from zot.files import is_there
from zot.messages import timestamp
from zot.text import printable
from zot.wire.daemon import ROLES

_DAY_S = 86400.0
_UNITS_S = {"m": 60.0, "h": 3600.0, "d": _DAY_S, "w": 7 * _DAY_S}


class TokenEntry(msgspec.Struct, frozen=True):
    """A token as `list` shows it, never with the token itself. ``sessions`` is None if it is bound to none."""

    name: str
    roles: tuple[str, ...]
    sessions: tuple[str, ...] | None
    created: str | None
    expires: str | None
    expired: bool


def token(request: CommandRequest) -> int:
    """Make, list or revoke a token. Raise UsageError, UserError, ConfigError."""
    action, *names = request.words or ("",)
    path = path_in(place_of(request).data_dir)
    chooses = [f"--{key}" for key in ("role", "session", "expires") if request.settings.get(key)]
    if action != "new" and chooses:
        raise UsageError(f"{chooses[0]} is for zot daemon token new")
    match action, names:
        case "new", [name]:
            return _make(request, path, name)
        case "list", []:
            return _list(request, path)
        case "revoke", [name]:
            revoke(path, name)
            print_note(f"the token {name!r} does not count any more; its connections are closed")
            return 0
        case _:
            raise UsageError("zot daemon token takes new NAME, list, or revoke NAME")


def end_of(text: str, now: float) -> float:
    """Return the time that an end date names: a period such as 12h or 30d, a day, or a time in RFC 3339.

    Raise UsageError if it is none of these, or past.
    """
    number, unit = text[:-1], text[-1:]
    try:
        if unit in _UNITS_S and number.isdecimal():
            end = now + int(number) * _UNITS_S[unit]
        else:
            moment = datetime.fromisoformat(text)
            end = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        timestamp(end)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"--expires: {text!r} is not a period such as 12h or 30d, a day, or a time") from None
    if end <= now:
        raise UsageError(f"--expires: {text!r} is past")
    return end


def _make(request: CommandRequest, path: str, name: str) -> int:
    settings, now = request.settings, time.time()
    roles = [role.strip() for one in settings.get("role", ()) for role in one.split(",")] or ["view"]
    if unknown := [role for role in roles if role not in ROLES]:
        raise UsageError(f"--role: {unknown[0]!r} is none of {', '.join(ROLES)}")
    if "self_approve" in roles and "approve" not in roles:
        raise UsageError("--role: self_approve extends approve, and does nothing without it")
    expires = settings.get("expires")
    sessions = settings.get("session") or None
    made = make_scoped(
        path,
        name,
        roles=roles,
        sessions=sessions,
        expires=None if expires is None else end_of(expires, now),
        now=now,
    )
    write(f"{made}\n")
    sys.stdout.flush()
    print_note(f"the token {name!r} may {', '.join(roles)}; it is shown this once, and only its digest is kept")
    return 0


def _list(request: CommandRequest, path: str) -> int:
    now = time.time()
    plain = read(path) if is_there(path) else {}
    entries = [TokenEntry(name, ROLES, None, None, None, False) for name in plain]
    for one in read_scoped(scoped_path_beside(path)):
        expires = None if one.expires is None else timestamp(one.expires)
        is_over = one.expires is not None and one.expires <= now
        entries.append(TokenEntry(one.name, one.roles, one.sessions, timestamp(one.created), expires, is_over))
    if request.json:
        write_json(entries)
    elif not entries:
        print_note("there are no tokens; zot daemon token new NAME makes one")
    else:
        rows = [("NAME", "ROLES", "SESSIONS", "END"), *map(_row, entries)]
        write(aligned(rows))
    return 0


def _row(entry: TokenEntry) -> tuple[str, str, str, str]:
    sessions = "all" if entry.sessions is None else ", ".join(map(printable, entry.sessions))
    end = entry.expires or "never"
    return entry.name, ", ".join(entry.roles), sessions, f"{end} (over)" if entry.expired else end
