"""`zot daemon logs` and `audit`: what the daemon has written down."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterable

from zot.commands.daemon_status import place_of
from zot.commands.subcommands import Request, write, write_bytes, write_json
from zot.errors import UsageError, UserError
from zot.extensions.log_reader import follow, read
from zot.serve.daemon.logs import log_files

_POLL_S = 0.2


def logs(request: Request) -> int:
    """Write the daemon's log; with --follow also what comes, until it is interrupted."""
    path = os.path.join(place_of(request).logs, "daemon.log")
    if not request.settings.get("follow"):
        _write_files(path)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _write(follow(path, _wait))
    except KeyboardInterrupt:  # Somebody has seen enough, which is how this ends.
        sys.stdout.flush()
    return 0


def audit(request: Request) -> int:
    """Write the audit log, or with `verify` look if it is as it was written; return 1 if not."""
    path = os.path.join(place_of(request).logs, "audit.log")
    if not request.words:
        _write_files(path)
        return 0
    if request.words[0] != "verify":
        raise UsageError(f"zot daemon audit cannot {request.words[0]!r}; it can verify")
    return _verify(path, request)


def _verify(path: str, request: Request) -> int:
    from zot.serve.daemon.audit import verify

    files = log_files(path)
    if not files:
        raise UserError(f"there is no audit log: {path} does not exist")
    found = verify(files)
    if request.json:
        write_json(found)
    else:
        write("".join(f"{problem}\n" for problem in found.problems))
        verdict = f"{len(found.problems)} are not right" if found.problems else "all as they were written"
        write(f"{found.lines} lines, {verdict}; the last is number {found.last}, hash {found.hash}\n")
    return 1 if found.problems else 0


def _write_files(path: str) -> None:
    files = log_files(path)
    if not files:
        raise UserError(f"there is no log: {path} does not exist")
    for file in files:
        _write(read(file))


def _write(pieces: Iterable[bytes]) -> None:
    for data in pieces:
        write_bytes(data)
        sys.stdout.flush()


def _wait() -> bool:
    """Wait a moment for more; False if nobody would read it."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return not poll.poll(_POLL_S * 1000)
