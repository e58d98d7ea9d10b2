"""A connection to a daemon, for those without an event loop; and how long one is waited for that is not there yet."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time

from zot.client.peer import identify

#: How long a daemon may take from owning its endpoint to listening there.
_STARTING_S = 5.0
#: How often those who wait look again.
LOOK_S = 0.02
#: What it means that nobody listens.
NOBODY = (FileNotFoundError, ConnectionRefusedError)


class Patience:
    """How long somebody waits for a daemon at ``path`` that does not listen, from now on.

    One that is just starting is waited for: it owns the endpoint. Whoever knows that one is about to be started waits
    ``wait_s`` for it to own that.
    """

    def __init__(self, path: str, *, starting_s: float = _STARTING_S, wait_s: float = 0.0) -> None:
        self._path = path
        self._starting_s = starting_s
        self._wait_s = wait_s
        self._began = time.monotonic()

    @property
    def is_over(self) -> bool:
        """True if there will be none."""
        waited_s = time.monotonic() - self._began
        if waited_s < self._wait_s:
            return False
        return waited_s >= self._wait_s + self._starting_s or not self._is_owned

    @property
    def _is_owned(self) -> bool:
        from zot.client import endpoint

        try:
            return endpoint.owner(self._path) is not None
        except OSError:  # It is not for us to know.
            return False


def reach(path: str, within_s: float, patience: Patience) -> socket.socket:
    """Connect as `dial` does, also to a daemon that is just starting. Raise as that does."""
    while True:
        try:
            return dial(path, within_s)
        except NOBODY:
            if patience.is_over:
                raise
        time.sleep(LOOK_S)


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


def whose(path: str) -> str:
    """Return that the socket at ``path`` is another user's, and whose; "" if it is ours, or nobody can tell.

    For who was not served there: that user's daemon hangs up on others without a word.
    """
    try:
        uid = os.stat(path).st_uid
    except OSError:
        return ""
    return "" if uid == os.geteuid() else f"it is that of {_name_of(uid)}, and serves nobody else"


def _name_of(uid: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _set_patience(connection: socket.socket, seconds: float) -> None:
    """Say how long it may wait to connect or to send; 0 is for ever."""
    connection.setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    )
