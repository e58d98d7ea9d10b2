"""`zot ext logs`: what an extension complained about, and what zot had to say of it."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterable

from zot.commands.ext_chosen import chosen, configured, home
from zot.commands.subcommands import Request, write_bytes, write_json
from zot.errors import UserError
from zot.extensions.log import log_path
from zot.extensions.log_reader import follow, note_in, read
from zot.extensions.manifest import load
from zot.text import printable
from zot.wire.lines import LineSplitter

_POLL_S = 0.2


def logs(request: Request) -> int:
    """Write the log of an extension; with --follow also what comes, until it is interrupted."""
    path = _path(request.words[0])
    if not request.settings.get("follow"):
        if not os.path.exists(path):
            raise UserError(f"there is no log of {printable(request.words[0])}: {path} does not exist")
        _write(read(path), request)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _write(follow(path, _wait), request)
    except KeyboardInterrupt:  # Somebody has seen enough, which is how this ends.
        sys.stdout.flush()
    return 0


def _path(name: str) -> str:
    """Return where the log is: of one that is not there any more, or was there for one run, too."""
    path = log_path(home(), name)
    if "/" not in name and os.path.exists(path):
        return path
    manifest = load(name) if "/" in name else chosen(name, ("ext", "project", "global"), configured()).manifest
    return log_path(home(), manifest.name if manifest is not None else name)


def _write(pieces: Iterable[bytes], request: Request) -> None:
    lines = LineSplitter(max_line_bytes=1 << 20)
    for data in pieces:
        if request.json:
            _write_lines(lines.feed(data))
        else:
            write_bytes(data)
        sys.stdout.flush()
    if request.json:
        _write_lines(lines.finish())


def _write_lines(lines: Iterable[object]) -> None:
    for line in lines:
        text = line.decode("utf-8", "replace") if isinstance(line, bytes) else "(a line that is too long)"
        note = note_in(text)
        write_json({"at": note.at, "zot": note.text} if note else {"extension": text})


def _wait() -> bool:
    """Wait a moment for more; False if nobody would read it."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return not poll.poll(_POLL_S * 1000)
