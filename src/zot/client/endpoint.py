"""The daemon's local endpoint: connecting, peer credentials, and the lock file that names its owner."""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import socket
import stat
import struct
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from zot.config.paths import SANDBOX_MARK
from zot.errors import ConfigError, DaemonRunning
from zot.files import open_private, try_lock

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

#: How often to retry while waiting for a daemon to listen.
LOOK_S = 0.02
#: Raised by `dial` if no daemon listens.
NOBODY = (FileNotFoundError, ConnectionRefusedError)
#: For an endpoint with an owner but without a socket: the problem, and the remedy.
GONE = "its socket does not exist: it is starting, or restores a removed socket within seconds; otherwise"
STOP = "stop it with `zot daemon stop`"
#: How long a daemon may take from locking its endpoint to listening there.
_STARTING_S = 5.0
#: How long to retry a lock whose holder has not written a live pid: it may be a short look by `owner`, or a new owner.
_NAMELESS_S = 2.0
_LOCK_RETRY_S = 0.01
_MAX_PID_DIGITS = 20
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_CREDENTIALS = struct.Struct("=iII")  # struct ucred of Linux: pid, uid, gid
# On macOS: struct xucred, which starts with a version and the uid; the pid is an option of its own.
_LOCAL_PEERCRED, _LOCAL_PEERPID, _XUCRED_BYTES = 0x001, 0x002, 76


class PeerCredentials(msgspec.Struct, frozen=True):
    """A connected process. A pid of 0 means not visible to us (another pid namespace), a uid of -1 unknown."""

    uid: int
    pid: int

    @property
    def label(self) -> str:
        """The peer's name in logs."""
        return "unix:unknown" if self.uid < 0 else f"unix:pid={self.pid},uid={self.uid}"


def identify(connection: socket.socket | TransportSocket) -> PeerCredentials:
    """Return the process that connected. Raise OSError if the connection is closed."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is not None:
        pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
        return PeerCredentials(uid=uid, pid=pid)
    _, uid = struct.unpack_from("=II", connection.getsockopt(0, _LOCAL_PEERCRED, _XUCRED_BYTES))
    (pid,) = struct.unpack("=i", connection.getsockopt(0, _LOCAL_PEERPID, 4))
    return PeerCredentials(uid=uid, pid=pid)


def admits(peer: PeerCredentials, *, us: int | None = None) -> bool:
    """True if a peer may use a daemon of the user ``us``, by default the current one.

    Only that user may, not even root: root can switch to that user, and the log then shows which user it was.
    """
    return peer.uid == (os.geteuid() if us is None else us)


def is_confined(peer: PeerCredentials) -> bool:
    """True if a peer is in a sandbox of zot, or may have been: a process that has ended while another uses its socket.

    A sandbox cannot hide a socket whose path its session does not know. Processes of our own pid namespace, of
    containers and those that we cannot see are in none.
    """
    if sys.platform != "linux" or peer.pid <= 0:
        return False
    try:
        with open(f"/proc/{peer.pid}/status", "rb") as file:
            namespaces = next((line.split()[1:] for line in file if line.startswith(b"NSpid:")), [])
        if len(namespaces) == 1:
            return False
        root = os.open(f"/proc/{peer.pid}/root", os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return os.path.exists("/proc/self/status")  # Without procfs there are no sandboxes either.
    try:
        os.stat(SANDBOX_MARK.lstrip("/"), dir_fd=root)
    except OSError as problem:
        return problem.errno != errno.ENOENT
    finally:
        os.close(root)
    return True


class Patience:
    """Time limit for waiting until a daemon listens at ``path``, counted from creation.

    A starting daemon, which already owns the endpoint, gets ``starting_s``. If one is about to be started, ``wait_s``
    is how long it may take to own the endpoint.
    """

    def __init__(self, path: str, *, starting_s: float = _STARTING_S, wait_s: float = 0.0) -> None:
        self._path = path
        self._starting_s = starting_s
        self._wait_s = wait_s
        self._began = time.monotonic()

    @property
    def is_over(self) -> bool:
        """True if waiting longer is pointless."""
        waited_s = time.monotonic() - self._began
        if waited_s < self._wait_s:
            return False
        return waited_s >= self._wait_s + self._starting_s or not self._is_owned

    @property
    def _is_owned(self) -> bool:
        try:
            return owner(self._path) is not None
        except OSError:  # Its lock file is not readable for us.
            return False


def reach(path: str, within_s: float, patience: Patience) -> socket.socket:
    """Connect as `dial` does, waiting for a daemon that is starting. Raise as `dial` does."""
    while True:
        try:
            return dial(path, within_s)
        except NOBODY:
            if patience.is_over:
                raise
        time.sleep(LOOK_S)


def dial(path: str, within_s: float) -> socket.socket:
    """Connect to the socket at ``path``, waiting while its backlog is full. Raise OSError, TimeoutError.

    Raise PermissionError unless the listener is the current user, or root, whose systemd may listen for our daemon: in
    a directory like /tmp any user could listen and read our requests.

    The socket blocks. With a timeout of Python's, connecting to a full backlog would fail at once.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _set_patience(connection, within_s)
        connection.connect(path)
        _set_patience(connection, 0)
        if (uid := identify(connection).uid) not in (os.geteuid(), 0):
            raise PermissionError(errno.EPERM, f"the listener there is uid {uid}", path)
    except BaseException as problem:
        connection.close()
        if isinstance(problem, BlockingIOError):
            raise TimeoutError(f"too many clients are connecting to {path}; try again") from None
        if isinstance(problem, OSError):
            problem.filename = path  # Not set by the system.
        raise
    return connection


def whose(path: str) -> str:
    """Return a message that names the owner of the socket at ``path``; "" if it is ours or unknown.

    Explains a closed connection: a daemon hangs up on other users without an answer.
    """
    try:
        uid = os.stat(path).st_uid
    except OSError:
        return ""
    return "" if uid == os.geteuid() else f"it belongs to {_name_of(uid)} and serves no other user"


def _name_of(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _set_patience(connection: socket.socket, seconds: float) -> None:
    """Limit how long connecting and sending may block; 0 means no limit."""
    connection.setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    )


def take(socket_path: str) -> int:
    """Lock an endpoint's lock file, write our pid into it and return its descriptor, which holds the lock.

    Raise DaemonRunning if another process holds it, ConfigError if the file is not a lock file of ours, OSError.
    """
    path = lock_path(socket_path)
    deadline = time.monotonic() + _NAMELESS_S
    while True:
        descriptor = _open(path)
        try:
            if try_lock(descriptor):
                if is_in_place(descriptor, socket_path):
                    sign(descriptor)
                    return descriptor
            elif is_alive(pid := _read_pid(descriptor)) or time.monotonic() > deadline:
                raise taken(socket_path, pid)
            if time.monotonic() > deadline:
                raise ConfigError(f"{path} keeps being replaced by another program; try again")
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        time.sleep(_LOCK_RETRY_S)


def sign(descriptor: int) -> None:
    """Write our pid into the lock file."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def release(descriptor: int) -> None:
    """Release the lock and close its descriptor."""
    try:
        os.ftruncate(descriptor, 0)
    finally:
        # Unlock explicitly: a freshly forked child may hold a copy of the descriptor, which would keep the lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def owner(socket_path: str) -> int | None:
    """Return the pid of the process that owns an endpoint, 0 if it is unknown; None if the endpoint is free.

    Raise OSError if the lock file cannot be read.
    """
    try:
        descriptor = os.open(lock_path(socket_path), _OPEN & ~os.O_RDWR | os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return None if try_lock(descriptor, shared=True) else _read_pid(descriptor)
    finally:
        os.close(descriptor)


def owned_since(socket_path: str) -> float:
    """Return when the current owner locked the endpoint, in seconds since the epoch. Raise OSError."""
    return os.stat(lock_path(socket_path)).st_mtime


def is_in_place(descriptor: int, socket_path: str) -> bool:
    """True if ``descriptor`` is the endpoint's current lock file, not one that was removed or replaced since."""
    try:
        return os.path.samestat(os.lstat(lock_path(socket_path)), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False


def lock_path(socket_path: str) -> str:
    """Return the path of an endpoint's lock file."""
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
    """True if the process exists. False for 0."""
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
    """Open or create the lock file. Raise ConfigError unless it is a regular file that only we can access."""
    try:
        descriptor = open_private(path, _OPEN)
    except OSError as problem:
        if not os.path.lexists(path):
            raise  # Its directory is the problem.
        advice = "name another place" if problem.errno == errno.EROFS else "remove it, or name another place"
        raise ConfigError(f"{path} cannot be used as a lock file: {problem.strerror}: {advice} with --socket") from None
    if wrong := _wrong_with(os.fstat(descriptor)):
        os.close(descriptor)
        raise ConfigError(f"{path} {wrong}: remove it, or name another place with --socket")
    return descriptor


def _wrong_with(found: os.stat_result) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "is not a regular file"
    if found.st_uid != os.geteuid():
        return f"belongs to uid {found.st_uid}"
    if found.st_mode & 0o077:
        return f"is open to other users (mode {stat.S_IMODE(found.st_mode):04o})"
    if found.st_nlink > 1:
        return "has other hard links"
    return ""


def _read_pid(descriptor: int) -> int:
    """Return the pid in the lock file; 0 if there is none."""
    text = os.pread(descriptor, _MAX_PID_DIGITS + 1, 0).strip()
    return int(text) if text.isdigit() and len(text) <= _MAX_PID_DIGITS else 0
