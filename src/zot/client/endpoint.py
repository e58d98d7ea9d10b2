"""The daemon's endpoint as clients find it: lock owner, peer credentials, connecting."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import struct
import time
from typing import Protocol

import msgspec

from zot.errors import ConfigError, DaemonRunning

_CREDENTIALS = struct.Struct("=iII")  # struct ucred of Linux: pid, uid, gid
# What macOS has instead: struct xucred, which begins with a version and the uid; and the pid by itself.
_LOCAL_PEERCRED, _LOCAL_PEERPID, _XUCRED_BYTES = 0x001, 0x002, 76


class Peer(msgspec.Struct, frozen=True):
    """A process that has connected. A pid of 0 is one that we cannot see; a uid of -1 one that nobody tells us."""

    uid: int
    pid: int

    @property
    def label(self) -> str:
        """How logs name it."""
        return "unix:unknown" if self.uid < 0 else f"unix:pid={self.pid},uid={self.uid}"


class Connection(Protocol):
    """What is asked of a socket; asyncio's stand-in for one will do."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def identify(connection: Connection) -> Peer:
    """Return who had connected when the connection was made. Raise OSError if it is gone."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is not None:
        pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
        return Peer(uid=uid, pid=pid)
    _, uid = struct.unpack_from("=II", connection.getsockopt(0, _LOCAL_PEERCRED, _XUCRED_BYTES))
    (pid,) = struct.unpack("=i", connection.getsockopt(0, _LOCAL_PEERPID, 4))
    return Peer(uid=uid, pid=pid)


def admits(peer: Peer, *, us: int | None = None) -> bool:
    """True if a peer may speak to a daemon of the user ``us``, ourselves by default.

    Nobody but that user may, not even root: root can become that user, and then it is seen in the log who it was.
    """
    return peer.uid == (os.geteuid() if us is None else us)


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

        try:
            return owner(self._path) is not None
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
