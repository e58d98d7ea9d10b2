"""The lock file beside an endpoint: who holds it owns the endpoint, and its process is named in it.

The kernel keeps the lock, so a dead process owns nothing. The file is never removed: two processes that lock different
files would exclude nobody.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from zot.errors import ConfigError, DaemonRunning

#: How long a lock that nobody living says to hold may last: somebody looks at it, or has not yet said who they are.
_NAMELESS_S = 2.0
_LOOK_S = 0.01
#: What is wrong if an endpoint has an owner and no socket, and what helps.
GONE = "its socket is not there: it is just starting, or makes it again within seconds if it was removed; else"
STOP = "end it with `zot daemon stop`"
_MAX_PID_DIGITS = 20
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


def take(socket_path: str) -> int:
    """Lock the lock file of an endpoint, write our pid into it and return its descriptor, which holds the lock.

    Raise DaemonRunning if another process holds it, ConfigError if what is there is no lock file of ours, OSError.
    """
    path = lock_path(socket_path)
    deadline = time.monotonic() + _NAMELESS_S
    while True:
        descriptor = _open(path)
        try:
            if _lock(descriptor, fcntl.LOCK_EX):
                if is_in_place(descriptor, socket_path):
                    sign(descriptor)
                    return descriptor
            elif is_alive(pid := _signed(descriptor)) or time.monotonic() > deadline:
                raise taken(socket_path, pid)
            if time.monotonic() > deadline:
                raise ConfigError(f"{path} is replaced again and again")
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        time.sleep(_LOOK_S)


def sign(descriptor: int) -> None:
    """Say in the lock file that it is held by this process."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def let_go(descriptor: int) -> None:
    """Own it no more."""
    try:
        os.ftruncate(descriptor, 0)
    finally:
        # A child that was just forked may have a copy of it, which would keep the lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def owner(socket_path: str) -> int | None:
    """Return the pid of the process that owns an endpoint, 0 if it is not known; None if nobody owns it.

    Raise OSError if the lock file cannot be read.
    """
    try:
        descriptor = os.open(lock_path(socket_path), _OPEN & ~os.O_RDWR | os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return None if _lock(descriptor, fcntl.LOCK_SH) else _signed(descriptor)
    finally:
        os.close(descriptor)


def owned_since(socket_path: str) -> float:
    """Return when the owner of an endpoint became it, in seconds since 1970. Raise OSError."""
    return os.stat(lock_path(socket_path)).st_mtime


def is_in_place(descriptor: int, socket_path: str) -> bool:
    """True if the lock file of an endpoint is the one that ``descriptor`` has open: nobody can lock another."""
    try:
        return os.path.samestat(os.lstat(lock_path(socket_path)), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False


def lock_path(socket_path: str) -> str:
    """Return where the lock file of an endpoint is."""
    return f"{socket_path}.lock"


def taken(socket_path: str, pid: int) -> DaemonRunning:
    """Return the error for an endpoint that belongs to another process."""
    who = f"process {pid}" if pid else "another process"
    use = "use it," if os.path.lexists(socket_path) else GONE
    return DaemonRunning(
        f"{who} is the daemon at {socket_path}: {use} {STOP}, or name another place with --socket or --config-dir",
        pid=pid,
    )


def is_alive(pid: int) -> bool:
    """True if there is such a process. False for 0."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _open(path: str) -> int:
    """Open the lock file, or make it. Raise ConfigError if it is anything else than a file of ours alone."""
    try:
        descriptor = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        descriptor = _open_existing(path)
    else:
        os.fchmod(descriptor, 0o600)  # Whatever the umask says.
    found = os.fstat(descriptor)
    if wrong := _wrong_with(found):
        os.close(descriptor)
        raise ConfigError(f"{path} {wrong}: remove it, or name another place with --socket")
    return descriptor


def _open_existing(path: str) -> int:
    try:
        return os.open(path, _OPEN | os.O_CREAT, 0o600)
    except OSError as problem:
        advice = "name another place" if problem.errno == errno.EROFS else "remove it, or name another place"
        raise ConfigError(f"{path} cannot be used as a lock file: {problem.strerror}: {advice} with --socket") from None


def _wrong_with(found: os.stat_result) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "is not a regular file"
    if found.st_uid != os.geteuid():
        return f"belongs to uid {found.st_uid}"
    if found.st_mode & 0o077:
        return f"is not ours alone (mode {stat.S_IMODE(found.st_mode):04o})"
    if found.st_nlink > 1:
        return "has other names"
    return ""


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _signed(descriptor: int) -> int:
    """Return the pid in the lock file; 0 if there is none."""
    text = os.pread(descriptor, _MAX_PID_DIGITS + 1, 0).strip()
    return int(text) if text.isdigit() and len(text) <= _MAX_PID_DIGITS else 0
