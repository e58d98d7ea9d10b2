"""What is said to whoever reads standard error, if anybody does."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Sequence

from zot.events import AgentEvent, ExtNotify
from zot.printable import printable

#: What a pipe that can be written to at all takes without waiting.
_PIECE_BYTES = select.PIPE_BUF
#: With so much unread in a pipe nobody seems to read it. The rest of it is for what else may be said there.
_MAX_UNREAD_BYTES = 16 * 1024


def show_notices(events: Sequence[AgentEvent]) -> None:
    """Write the notices among ``events``, a line each."""
    for event in events:
        if isinstance(event, ExtNotify):
            complain(f"[{event.extension}] {event.level}: {printable(event.message)}")


def complain(line: str) -> None:
    """Write a line to standard error. Never waits: what nobody reads is lost."""
    data = f"{line}\n".encode("utf-8", "replace")
    if sys.stderr is None:  # It was closed when we were started.
        return
    try:
        sys.stderr.flush()
        descriptor = sys.stderr.fileno()
        for start in range(0, len(data), _PIECE_BYTES):
            if not _has_room(descriptor):
                return
            os.write(descriptor, data[start : start + _PIECE_BYTES])
    except OSError:  # Nobody can read it any more.
        return


def _has_room(descriptor: int) -> bool:
    if not select.select([], [descriptor], [], 0)[1]:
        return False
    return not stat.S_ISFIFO(os.fstat(descriptor).st_mode) or _unread(descriptor) <= _MAX_UNREAD_BYTES


def _unread(pipe: int) -> int:
    """Return how much waits in a pipe to be read; 0 where nobody can tell."""
    from fcntl import ioctl
    from termios import FIONREAD

    try:
        return int.from_bytes(ioctl(pipe, FIONREAD, bytes(4)), sys.byteorder)
    except OSError:
        return 0
