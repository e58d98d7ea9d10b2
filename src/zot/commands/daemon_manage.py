"""Subcommands of `zot daemon`: status, stop, logs and audit of the one that runs, and tokens of its clients."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from zot.client.calls import BlockingConnection, CallRefused
from zot.client.endpoint import GONE, STOP, is_alive, owned_since, owner, whose
from zot.commands.subcommands import (
    FAILED,
    NOT_RUNNING,
    CommandGroup,
    CommandRequest,
    Subcommand,
    aligned,
    follow_log,
    print_note,
    write,
    write_bytes,
    write_json,
)
from zot.config import flags
from zot.config.flags import Flag
from zot.config.paths import DaemonPaths, locate
from zot.config.tokens import make_scoped, names_in, path_in, read, read_scoped, revoke, scoped_path_beside
from zot.encoding import explain, thread_safe_type
from zot.errors import ConfigError, UsageError, UserError
from zot.extensions.log import read as read_log
from zot.files import is_there
from zot.messages import timestamp
from zot.serve.daemon.audit import access_path, verify
from zot.serve.daemon.logs import log_files
from zot.text import did_you_mean, printable
from zot.wire.daemon import ROLES

if TYPE_CHECKING:
    from zot.serve.daemon.audit import Verified
_ANSWER_S = 5.0
_STOP_S = 30.0
_LOOK_S = 0.02
_MAX_NAMED = 10
_MAX_NAME = 80
_DAY_S = 86400.0
_UNITS_S = {"m": 60.0, "h": 3600.0, "d": _DAY_S, "w": 7 * _DAY_S}


class DaemonStatus(msgspec.Struct, frozen=True):
    """The state of a daemon. One that owns its endpoint and does not answer has a pid and a problem."""

    running: bool
    endpoint: str
    data_dir: str
    pid: int | None = None
    version: str | None = None
    protocol: int | None = None
    uptime_s: float | None = None
    active_sessions: int | None = None
    session_ids: tuple[str, ...] | None = None
    listens: tuple[str, ...] | None = None
    problem: str | None = None
    #: The error in the token file that locks out all clients of other addresses than the socket.
    token_problem: str | None = None


class _StatusAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The fields used of the answer to `status`."""

    active_sessions: int = 0
    session_ids: tuple[str, ...] = ()
    listens: tuple[str, ...] = ()
    data_dir: str | None = None


def place_of(request: CommandRequest) -> DaemonPaths:
    """Return the place of the daemon that the flags name."""
    settings = request.settings
    return locate(os.environ, socket=settings.get("socket"), config_dir=settings.get("config_dir"))


def status(request: CommandRequest) -> int:
    """Report the daemon's state; return 0 if it runs, 3 if there is none, 1 if it does not answer."""
    found = read_status(place_of(request))
    if request.json:
        write_json(found)
    else:
        write(_described(found))
    if found.running:
        return 0
    return NOT_RUNNING if found.problem is None else FAILED


def read_status(place: DaemonPaths, *, within_s: float = _ANSWER_S) -> DaemonStatus:
    """Return the state of the daemon at a place. Raise UserError if this user may not know it."""
    nothing = DaemonStatus(running=False, endpoint=place.socket, data_dir=place.data_dir)
    pid = _owner(place)
    try:
        with BlockingConnection(place.socket, within_s=within_s) as line:
            said = msgspec.convert(line.call("status", {}), thread_safe_type(_StatusAnswer))
            greeting = line.greeting
    except PermissionError as problem:
        raise UserError(f"{place.socket}: {whose(place.socket) or problem.strerror}") from None
    except (OSError, CallRefused, msgspec.ValidationError) as problem:
        if pid is None and isinstance(problem, FileNotFoundError | ConnectionRefusedError):
            return nothing
        return msgspec.structs.replace(nothing, pid=pid or None, problem=_problem_text(problem, place.socket))
    return msgspec.structs.replace(
        nothing,
        running=True,
        data_dir=said.data_dir or place.data_dir,  # Older daemons do not report it.
        pid=greeting.server_pid or pid or None,
        version=greeting.server_version,
        protocol=greeting.protocol_version,
        uptime_s=None if pid is None else round(max(0.0, time.time() - owned_since(place.socket)), 3),
        active_sessions=said.active_sessions,
        session_ids=said.session_ids,
        listens=said.listens,
        token_problem=_token_problem(said.data_dir or place.data_dir) if said.listens else None,
    )


def _problem_text(problem: Exception, path: str) -> str:
    """Return the problem of a daemon that owns its endpoint."""
    match problem:
        case TimeoutError():
            return "it does not answer"
        case FileNotFoundError():
            return f"{GONE} {STOP}"
        case _:
            return (whose(path) if isinstance(problem, OSError) else "") or explain(problem)


def _token_problem(data_dir: str) -> str | None:
    """Return the error in a daemon's token file; None if there is none."""
    try:
        names_in(path_in(data_dir))
    except ConfigError as problem:
        return str(problem)
    return None


def stop(request: CommandRequest) -> int:
    """Stop the daemon and wait until it ends; return 0, or 3 if there was none. Raise UserError if it does not end."""
    place = place_of(request)
    within_s: float = request.settings.get("timeout", _STOP_S)
    deadline = time.monotonic() + within_s
    pid = _owner(place)
    server_pid = _request_stop(place, min(_ANSWER_S, within_s), is_ours=pid is not None)
    if pid is None and server_pid is None:
        _report(request, stopped=False, pid=None, text=f"No daemon is running at {place.socket}.")
        return NOT_RUNNING
    meant = pid or server_pid or 0
    if server_pid is None and meant and _owner(place) == meant:
        _terminate(meant)
    while _is_there(place, pid, meant):
        if time.monotonic() > deadline:
            raise UserError(f"process {meant} is still the daemon at {place.socket} after {within_s:g} s")
        time.sleep(_LOOK_S)
    _report(request, stopped=True, pid=meant, text=f"process {meant}, the daemon at {place.socket}, has ended")
    return 0


def _is_there(place: DaemonPaths, owned_by: int | None, pid: int) -> bool:
    """True if the daemon still owns its endpoint, or, if it never did, still lives."""
    if owned_by is None:
        return is_alive(pid)
    # The lock is briefly without a pid while its owner ends.
    return _owner(place) in (owned_by, 0)


def _request_stop(place: DaemonPaths, within_s: float, *, is_ours: bool) -> int | None:
    """Send `daemon/stop`. Return the daemon's pid, 0 if it does not report one; None if it cannot be reached.

    Raise UserError if it refuses, and has no lock that names a process to signal.
    """
    try:
        with BlockingConnection(place.socket, within_s=within_s) as line:
            with suppress(ConnectionError):  # It may end before its answer is sent.
                line.call("daemon/stop", {})
            return line.greeting.server_pid
    except CallRefused as problem:
        if not is_ours:
            raise UserError(f"the daemon at {place.socket} does not stop: {problem}") from None
        return None
    except (OSError, msgspec.ValidationError):
        return None


def _terminate(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError:
        raise UserError(f"process {pid} is the daemon of another user") from None


def _owner(place: DaemonPaths) -> int | None:
    try:
        return owner(place.socket)
    except OSError as problem:
        why = whose(place.socket) if isinstance(problem, PermissionError) else ""
        raise UserError(f"{place.socket}: {why}" if why else f"{place.socket}.lock: {problem.strerror}") from None


def _report(request: CommandRequest, *, stopped: bool, pid: int | None, text: str) -> None:
    if request.json:
        write_json({"stopped": stopped, "pid": pid})
    else:
        write(f"{text}\n")


def _described(found: DaemonStatus) -> str:
    if not found.running:
        if found.problem is None:
            return f"No daemon is running at {found.endpoint}. Start one with: zot daemon\n"
        who = f"process {found.pid}" if found.pid else "another process"
        return f"{who} is the daemon at {found.endpoint}, but: {printable(found.problem)}\n"
    names = [_cut(printable(name)) for name in (found.session_ids or ())[:_MAX_NAMED]]
    more = ["..."] if len(found.session_ids or ()) > _MAX_NAMED else []
    return aligned(
        [
            ("running", f"process {found.pid or 'unknown'}, version {printable(found.version or 'unknown')}"),
            ("endpoint", found.endpoint),
            *(("listens", printable(address)) for address in found.listens or ()),
            *((("token", printable(found.token_problem)),) if found.token_problem else ()),
            ("data", printable(found.data_dir)),
            ("for", "unknown" if found.uptime_s is None else _uptime_text(found.uptime_s)),
            ("sessions", f"{found.active_sessions}{': ' if names else ''}{', '.join([*names, *more])}"),
        ]
    )


def _cut(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"


def _uptime_text(seconds: float) -> str:
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def logs(request: CommandRequest) -> int:
    """Write the daemon's log; with --follow also new lines, until interrupted."""
    path = os.path.join(place_of(request).logs, "daemon.log")
    if not request.settings.get("follow"):
        _write_files(path)
        return 0
    return follow_log(path, _write)


def audit(request: CommandRequest) -> int:
    """Write the audit log or the access log, or with `verify` check that both are unchanged; return 1 if not."""
    path = os.path.join(place_of(request).logs, "audit.log")
    match request.words:
        case [] | ["access"]:
            _write_files(os.path.join(os.path.dirname(path), "access.log") if request.words else path)
            return 0
        case ["verify"]:
            return _verify(path, request)
        case _:
            raise UsageError(f"zot daemon audit has no {request.words[0]!r}; use: verify or access")


def _verify(path: str, request: CommandRequest) -> int:
    files = log_files(path)
    if not files:
        raise UserError(f"no audit log exists at {path}: no daemon has written one yet")
    found, access = verify(files), log_files(access_path(path))
    accessed = verify(access) if access else None
    if request.json:
        write_json({**msgspec.structs.asdict(found), "access": accessed})
    else:
        write(_verdict("", found))
        if accessed is not None:
            write(_verdict("access.log: ", accessed))
    return 1 if found.problems or (accessed is not None and accessed.problems) else 0


def _verdict(name: str, found: Verified) -> str:
    verdict = f"{len(found.problems)} are damaged" if found.problems else "all intact"
    whole = f"complete from number {found.whole_from} on" if found.whole_from else "no part of it is complete"
    return "".join(f"{problem}\n" for problem in found.problems) + (
        f"{name}{found.lines} lines, {verdict}; {whole}; the last is number {found.last}, hash {found.hash}\n"
    )


def _write_files(path: str) -> None:
    files = log_files(path)
    if not files:
        raise UserError(f"no log exists at {path}: no daemon has written one yet")
    for file in files:
        _write(read_log(file))


def _write(pieces: Iterable[bytes]) -> None:
    for data in pieces:
        write_bytes(data)
        sys.stdout.flush()


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
            return _make_token(request, path, name)
        case "list", []:
            return _list_tokens(request, path)
        case "revoke", [name]:
            revoke(path, name)
            print_note(f"revoked the token {name!r} and closed its connections")
            return 0
        case _:
            raise UsageError("use: zot daemon token new NAME, list, or revoke NAME")


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
        raise UsageError(f"--expires: {text!r} is in the past")
    return end


def _make_token(request: CommandRequest, path: str, name: str) -> int:
    settings, now = request.settings, time.time()
    roles = [role.strip() for one in settings.get("role", ()) for role in one.split(",")] or ["view"]
    if unknown := [role for role in roles if role not in ROLES]:
        known = ", ".join(ROLES)
        raise UsageError(f"--role: unknown role {unknown[0]!r}; known: {known}{did_you_mean(unknown[0], ROLES)}")
    if "self_approve" in roles and "approve" not in roles:
        raise UsageError("--role: self_approve needs approve, too: --role approve,self_approve")
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
    print_note(f"created the token {name!r} with {', '.join(roles)}; copy it now, because only its digest is stored")
    return 0


def _list_tokens(request: CommandRequest, path: str) -> int:
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
        print_note("there are no tokens; create one with: zot daemon token new NAME")
    else:
        rows = [("NAME", "ROLES", "SESSIONS", "END"), *map(_token_row, entries)]
        write(aligned(rows))
    return 0


def _token_row(entry: TokenEntry) -> tuple[str, str, str, str]:
    sessions = "all" if entry.sessions is None else ", ".join(map(printable, entry.sessions))
    end = entry.expires or "never"
    return entry.name, ", ".join(entry.roles), sessions, f"{end} (over)" if entry.expired else end


_JSON = Flag("--json", "Print JSON.")
GROUP = CommandGroup("zot daemon", "Manage the running daemon. `zot daemon` alone starts one.", (
    Subcommand("status", "", "Show whether a daemon runs, and its sessions.", status, flags=(_JSON,)),
    Subcommand("stop", "", "Stop the daemon and wait until it has exited.", stop, flags=(
        Flag("--timeout", "Wait this long (default: 30).", value="SECONDS", parse=flags.seconds),
        _JSON,
    )),
    Subcommand("logs", "", "Print the daemon's log.", logs, flags=(
        Flag("--follow", "Keep printing new lines until interrupted.", short="-f"),
    )),
    Subcommand("audit", "[verify | access]", "Print which client called which method; verify detects changes.", audit,
               (0, 1), (_JSON,)),
    Subcommand("token", "new NAME | list | revoke NAME", "Manage the tokens of network clients.", token, (1, 2), (
        Flag("--role", "Grant view, prompt, approve, self_approve or extend (default: view).", value="ROLE", many=True),
        Flag("--session", "Bind the token to a session.", value="ID", many=True),
        Flag("--expires", "Let it expire: 12h, 30d, a date, a time (default: never).", value="WHEN"),
        _JSON,
    )),
), flags=flags.PLACE_FLAGS, examples=(
    ("zot daemon status", "Show the running daemon."),
    ("zot daemon token new phone --role view --expires 30d", "Let a phone watch sessions for a month."),
), more_examples=(
    ("zot daemon status --json", "Print its process, addresses and sessions for a program."),
    ("zot daemon stop --timeout 60", "Give running turns more time to end."),
    ("zot daemon logs -f", "Watch the log."),
    ("zot daemon audit verify", "Check that no line of the audit log was changed or removed."),
    ("zot daemon token list", "Show names, roles and expiry dates; never a token."),
    ("zot daemon token revoke phone", "Withdraw a token and close its connections."),
), exits={
    0: "Done.", 1: "Failed, or the daemon does not answer.", 2: "Wrong usage.", 3: "No daemon is running.",
})  # fmt: skip
