"""Daemon endpoint: its lock and its listening socket."""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import struct
import sys
import weakref
from collections.abc import Callable, Container, Iterable

from zot.client import endpoint
from zot.errors import ConfigError, DaemonRunning
from zot.files import make_directory

log = logging.getLogger("zot")

#: Clients that may wait to be accepted, also during a hand-over.
BACKLOG = 1024
_PROBE_S = 1.0

_REMEDY = "choose a directory of your own with --socket or ZEROCLAW_SOCKET"

_claims: weakref.WeakSet[Claim] = weakref.WeakSet()


class Claim:
    """An owned endpoint: no other process may listen there until `release`, or until this process dies.

    ``listener`` accepts its connections. The server may close it, as event loops do: clients then wait in the backlog
    until `release` or a hand-over. `asyncio.start_unix_server` needs BACKLOG, too, since its default is smaller, and
    from Python 3.13 on ``cleanup_socket=False``: it must not remove the socket's file.

    ``others`` listen at addresses besides the socket. They are closed and handed over with it.

    A child that is forked without exec inherits none of it.
    """

    def __init__(
        self, path: str, listener: socket.socket, lock: int, *, removes: bool, others: Iterable[socket.socket] = ()
    ) -> None:
        self.path = path
        self.listener = listener
        self.others = [*others]
        self.lock = lock
        #: True if `release` removes the socket's file.
        self.removes = removes
        self._kept = listener.dup()
        self._bound = _identity(path) if removes else None
        _claims.add(self)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors that make up the endpoint: the listening socket, the lock, and the other listeners."""
        return self._kept.fileno(), self.lock, *(one.fileno() for one in self.others)

    def restore(self) -> bool:
        """Create a new ``listener`` at ``path`` if the socket's file was removed. False if it exists.

        The caller closes the former ``listener``: clients may still wait there. A removed lock file is created again
        first, a removed directory is not. Raise DaemonRunning if another process has become the owner meanwhile;
        ConfigError, OSError.
        """
        if not self.removes or self.lock < 0 or _identity(self.path) is not None:
            return False
        if not endpoint.is_in_place(self.lock, self.path):
            os.stat(os.path.dirname(self.path) or ".")
            former, self.lock = self.lock, _acquire(self.path)
            os.close(former)
        listener = _bound(self.path, _bind_beside_threads)
        self._kept.close()
        self.listener, self._kept, self._bound = listener, listener.dup(), _identity(self.path)
        return True

    def release(self) -> None:
        """Stop listening, remove the socket if it is still our own, and release the lock.

        Safe to call repeatedly.
        """
        if self.lock < 0:
            return
        try:
            if self._bound is not None and _identity(self.path) == self._bound:
                os.unlink(self.path)
        except OSError as problem:
            log.warning("the socket %s could not be removed: %s", self.path, problem.strerror)
        lock, self.lock = self.lock, -1
        self._stop_listening()
        endpoint.release(lock)

    def forget(self) -> None:
        """Close our descriptors and nothing else: another process owns the endpoint now."""
        lock, self.lock = self.lock, -1
        if lock >= 0:
            self._stop_listening()
            os.close(lock)

    def close_others(self, *, but: Container[socket.socket] = ()) -> None:
        """Close the listeners besides the socket, except those in ``but``."""
        for one in [one for one in self.others if one not in but]:
            self.others.remove(one)
            one.close()

    def _stop_listening(self) -> None:
        self.listener.close()
        self._kept.close()
        self.close_others()


def claim_endpoint(path: str) -> Claim:
    """Acquire the endpoint at ``path`` and listen there. Missing directories are created, private to the user.

    Raise DaemonRunning, with the pid, if it has a living owner; ConfigError if the place is unsafe or occupied by
    something other than a socket, which is never removed. The socket of a dead daemon is replaced.
    """
    try:
        lock = _acquire(path)
    except OSError as problem:
        raise ConfigError(f"no daemon can be at {path}: {problem.strerror}") from None
    try:
        _remove_dead(path)
        return Claim(path, _bound(path, _bind), lock, removes=True)
    except OSError as problem:
        endpoint.release(lock)
        raise ConfigError(f"the daemon cannot listen at {path}: {problem.strerror or problem}") from None
    except BaseException:
        endpoint.release(lock)
        raise


def adopt_listener(path: str, listener: socket.socket) -> Claim:
    """Acquire the endpoint of a socket that listens already, such as systemd's. Raise as `claim_endpoint`.

    Its file belongs to the service manager and stays.
    """
    try:
        return Claim(path, listener, _acquire(path), removes=False)
    except OSError as problem:
        raise ConfigError(f"no daemon can be at {path}: {problem.strerror}") from None


def _acquire(path: str) -> int:
    directory = os.path.dirname(path) or "."
    make_directory(directory)
    found = os.stat(directory)
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"{directory} belongs to uid {found.st_uid}, who could replace the daemon's socket: {_REMEDY}"
        )
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        raise ConfigError(
            f"others may write to {directory} (mode {mode}) and could replace the daemon's socket: {_REMEDY}"
        )
    return endpoint.take(path)


def _remove_dead(path: str) -> None:
    """Remove the socket of a dead daemon. Raise DaemonRunning if it is alive, ConfigError for anything else, OSError.

    The caller must hold the lock: the socket then belongs to no running zot daemon.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(f"{path} is there and is no socket: remove it, or name another place with --socket")
    if found.st_uid != os.geteuid():
        raise ConfigError(f"{path} belongs to uid {found.st_uid}: name another place with --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            pass
        except FileNotFoundError:
            return
        except (BlockingIOError, TimeoutError):
            raise endpoint.taken(path, 0) from None  # It listens, but its backlog is full.
        else:
            raise endpoint.taken(path, _listening_pid(probe))
    if _identity(path) != (found.st_dev, found.st_ino):
        raise DaemonRunning(f"another process has just begun to listen at {path}")
    os.unlink(path)


def _bound(path: str, bind: Callable[[socket.socket, str], None]) -> socket.socket:
    """Return a socket that listens at ``path`` and was never accessible to other users. Raise OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bind(listener, path)
    except BaseException:
        listener.close()
        raise
    try:
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        os.unlink(path)
        raise
    return listener


def _bind(listener: socket.socket, path: str) -> None:
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)


def _bind_beside_threads(listener: socket.socket, path: str) -> None:
    """Bind without changing the umask, where possible: it would apply to files that other threads create meanwhile."""
    if sys.platform != "linux":
        _bind(listener, path)
        return
    os.fchmod(listener.fileno(), 0o600)  # On Linux the file inherits the socket's mode.
    listener.bind(path)


def _identity(path: str) -> tuple[int, int] | None:
    """Return device and inode of ``path``; None if there is no file."""
    try:
        found = os.lstat(path)
    except OSError as problem:
        if problem.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise
    return found.st_dev, found.st_ino


def _listening_pid(probe: socket.socket) -> int:
    """Return the pid of the listening process; 0 if the system does not tell."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return 0
    return int(struct.unpack("=iII", probe.getsockopt(socket.SOL_SOCKET, option, 12))[0])


def _forget() -> None:
    """In a forked child: a copy of the lock or the socket would keep the endpoint owned after the parent's death."""
    for claim in list(_claims):
        claim.forget()


os.register_at_fork(after_in_child=_forget)
