"""A connection to a daemon, for those without an event loop."""

from __future__ import annotations

import errno
import os
import socket
import struct

from zot.serve.peer import identify


def dial(path: str, within_s: float) -> socket.socket:
    """Connect to the socket at ``path``, waiting while too many others do. Raise OSError, TimeoutError if that is long.

    Whoever listens must be ourselves, or root, whose systemd may do so for our daemon: in a directory like /tmp anybody
    could, and would hear what we say. Otherwise PermissionError is raised.

    The socket blocks. A timeout of Python's would not do: it makes a busy daemon look like an error at once.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _set_patience(connection, within_s)
        connection.connect(path)
        _set_patience(connection, 0)
        if (uid := identify(connection).uid) not in (os.geteuid(), 0):
            raise PermissionError(errno.EPERM, f"who listens there is uid {uid}", path)
    except BaseException as problem:
        connection.close()
        if isinstance(problem, BlockingIOError):
            raise TimeoutError(f"too many others want to connect to {path}") from None
        if isinstance(problem, OSError):
            problem.filename = path  # The system does not say it.
        raise
    return connection


def _set_patience(connection: socket.socket, seconds: float) -> None:
    """Say how long it may wait to connect or to send; 0 is for ever."""
    connection.setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    )
