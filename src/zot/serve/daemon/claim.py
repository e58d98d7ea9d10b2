"""The daemon's claim to its endpoint: lock and listening socket, acquired, adopted, or handed over."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import socket
import stat
import struct
import sys
import time
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from zot.client import endpoint
from zot.client.endpoint import Patience, reach
from zot.config.file import ListenAddress, Tls
from zot.config.paths import DaemonPaths
from zot.encoding import UNREADABLE, thread_safe_type
from zot.errors import ConfigError, DaemonRunning, UserError
from zot.files import make_directory
from zot.serve.daemon.lifecycle import take_listeners
from zot.wire.lines import LineSplitter

if TYPE_CHECKING:
    from zot.wire.daemon_types import HandoverLine, HandoverStep

log = logging.getLogger("zot")

#: Clients that may wait to be accepted, also during a hand-over.
BACKLOG = 1024
_PROBE_S = 1.0

#: The time for the daemon to be replaced to report its addresses.
_ASKED_S = 5.0
_READ_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 20
#: Longest single poll.
_LONGEST_S = 3600.0
#: Socket and lock; and the limit including other listeners.
_DESCRIPTORS, _MAX_DESCRIPTORS = 2, 64
_ASK = (
    b'{"jsonrpc":"2.0","method":"initialize","params":{"protocolVersion":1},"id":1}\n'
    b'{"jsonrpc":"2.0","method":"daemon/stop","params":{"handover":true},"id":2}\n'
)

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


def claim_addresses(place: DaemonPaths, listens: Sequence[tuple[str, Tls | None]], *, replaces: bool) -> Claim:
    """Claim the endpoint. Raise DaemonRunning, ConfigError.

    With ``replaces``, reserve the addresses before the running daemon hands over.
    """
    passed = take_listeners(os.environ)
    if passed:
        for more in passed[1:]:
            more.close()
        return adopt_listener(_path_of(passed[0]) or place.socket, passed[0])
    if not replaces:
        return claim_endpoint(place.socket)

    reserved = _reserve(place, listens)
    claim = take_over(place.socket) or claim_endpoint(place.socket)
    claim.others += reserved
    return claim


def _reserve(place: DaemonPaths, listens: Sequence[tuple[str, Tls | None]]) -> Sequence[socket.socket]:
    """Return listening sockets for the addresses that can be bound before the other daemon ends. Raise ConfigError."""
    if not listens:
        return ()

    from zot.serve.web import reserve  # Imported lazily: an extra.

    return asyncio.run(reserve(listens, place.data_dir, held=_ports_in_use(place.socket)))


def _ports_in_use(path: str) -> Container[int]:
    """Return the ports of the running daemon; none if it does not report them."""
    # Imported lazily: only `--replace` needs them.
    from zot.client.calls import BlockingConnection
    from zot.wire.daemon_types import Status

    try:
        with BlockingConnection(path, within_s=_ASKED_S) as line:
            listens = msgspec.convert(line.call("status", {}), thread_safe_type(Status)).listens or ()
        return {ListenAddress.parse(url).port for url in listens}
    except (OSError, UserError, msgspec.ValidationError, ValueError):
        return ()


def _path_of(listener: socket.socket) -> str:
    """Return the path of a passed socket; "" if it is unnamed. Raise ConfigError if it is not a local stream socket."""
    name = listener.getsockname()
    if not isinstance(name, str) or listener.type != socket.SOCK_STREAM:
        where = name.decode("utf-8", "replace").replace("\0", "@") if isinstance(name, bytes) else name
        raise ConfigError(
            f"the socket passed to the daemon is not a local stream socket with a path, but {where}: set ListenStream"
            " to a path; for WebSockets, use --listen"
        )
    return name


def claim_endpoint(path: str) -> Claim:
    """Acquire the endpoint at ``path`` and listen there. Missing directories are created, private to the user.

    Raise DaemonRunning, with the pid, if it has a living owner; ConfigError if the place is unsafe or occupied by
    something other than a socket, which is never removed. The socket of a dead daemon is replaced.
    """
    try:
        lock = _acquire(path)
    except OSError as problem:
        raise ConfigError(f"the daemon cannot create its socket at {path}: {problem.strerror}") from None
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
        raise ConfigError(f"the daemon cannot create its socket at {path}: {problem.strerror}") from None


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
        raise ConfigError(f"{path} exists and is not a socket: remove it, or name another place with --socket")
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


# Hand-over of an endpoint from one daemon to the next.


def hand_over(claim: Claim, connection: int, *, within_s: float = 5.0) -> bool:
    """Give the endpoint to the process at the other end of the descriptor ``connection``, and forget it.

    Call it last: after accepting has stopped, all sessions are closed, and all other use of the connection
    is finished. Blocks for at most ``within_s``. False if the endpoint was not taken: then release it. The
    descriptor stays open. Raise OSError if it is invalid.
    """
    line = _Connection(socket.socket(fileno=os.dup(connection)), _Patience(within_s))
    with line.socket:
        try:
            line.send(_step("offer", removes=claim.removes), claim.descriptors[:_MAX_DESCRIPTORS])
            if not any(said.params.step == "taken" for said in line.steps()):
                return False
            claim.close_others()  # The next daemon may need an address that only one process can have.
            line.send(_step("yours", removes=claim.removes))
        except OSError:  # The other process is gone, or too slow.
            return False
        finally:
            line.close_received()
    claim.forget()
    return True


def take_over(path: str, *, within_s: float = 30.0) -> Claim | None:
    """Ask the daemon at ``path`` for its endpoint, wait until it has wound down, and own the endpoint.

    Takes at most ``within_s`` plus the grace period that the daemon reports. If this process ends earlier, the daemon
    resumes.

    None if there is no daemon, or it ended before the hand-over: `claim_endpoint` can then succeed. Raise DaemonRunning
    if it refuses, or takes too long.
    """
    patience = _Patience(within_s)
    try:
        line = _Connection(reach(path, within_s, Patience(path)), patience)
        with line.socket:
            return _taken(path, line)
    except TimeoutError:
        pid = endpoint.owner(path) or 0
        why = f"the daemon at {path} did not hand over within {patience.within_s:g} s"
        raise DaemonRunning(why, pid=pid) from None
    except OSError:  # No daemon, or it has just ended.
        return None


def _taken(path: str, line: _Connection) -> Claim | None:
    offered: HandoverStep | None = None
    try:
        line.send(_ASK)
        for said in line.steps():
            if said.error is not None:
                why = f"the daemon at {path} does not hand over: {said.error.get('message')}"
                raise DaemonRunning(why, pid=endpoint.owner(path) or 0)
            line.patience.within_s += said.result.grace_s
            if said.params.step == "offer" and len(line.received) >= _DESCRIPTORS:
                offered = said.params
                line.send(_step("taken"))
            if said.params.step == "yours" and offered is not None:
                return _claimed(path, line, removes=offered.removes)
    finally:
        line.close_received()
    return None


def _claimed(path: str, line: _Connection, *, removes: bool) -> Claim:
    listener, lock, *others = line.received
    line.received = []
    endpoint.sign(lock)
    elsewhere = [socket.socket(fileno=one) for one in others]
    return Claim(path, socket.socket(fileno=listener), lock, removes=removes, others=elsewhere)


class _Patience:
    """Time limit that starts now."""

    def __init__(self, within_s: float) -> None:
        self.within_s = within_s
        self._began = time.monotonic()

    @property
    def left_s(self) -> float:
        """Remaining seconds."""
        return max(0.0, self._began + self.within_s - time.monotonic())


class _Connection:
    """Lines and descriptors over a socket, blocking or not, within a time limit."""

    def __init__(self, connected: socket.socket, patience: _Patience) -> None:
        self.socket = connected
        self.received: list[int] = []
        self.patience = patience

    def send(self, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Send everything, the descriptors with the first byte. Raise OSError, TimeoutError if it takes too long."""
        while data:
            self._wait(select.POLLOUT)
            try:
                sent = socket.send_fds(self.socket, [data], descriptors)
            except BlockingIOError:
                continue
            data, descriptors = data[sent:], ()

    def steps(self) -> Iterator[HandoverLine]:
        """Yield received lines until the other end closes. Raise OSError, TimeoutError if it takes too long."""
        from zot.wire.daemon_types import HandoverLine  # Imported lazily: only a hand-over needs it.

        splitter = LineSplitter(max_line_bytes=_MAX_LINE_BYTES)
        while True:
            self._wait(select.POLLIN)
            try:
                data, descriptors, _, _ = socket.recv_fds(self.socket, _READ_BYTES, _MAX_DESCRIPTORS)
            except BlockingIOError:
                continue
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
                self.received.append(descriptor)
            if not data:
                return
            for line in splitter.feed(data):
                try:
                    yield msgspec.json.decode(
                        line if isinstance(line, bytes) else b"{}", type=thread_safe_type(HandoverLine)
                    )
                except UNREADABLE:  # Another message of the daemon: ignore it.
                    continue

    def close_received(self) -> None:
        """Close received descriptors without an owner."""
        while self.received:
            os.close(self.received.pop())

    def _wait(self, event: int) -> None:
        poll = select.poll()
        poll.register(self.socket, event)
        while not poll.poll(min(self.patience.left_s, _LONGEST_S) * 1000):
            if not self.patience.left_s:
                raise TimeoutError


def _step(step: str, *, removes: bool = True) -> bytes:
    params = {"step": step, "removes": removes}
    return msgspec.json.encode({"jsonrpc": "2.0", "method": "daemon/handover", "params": params}) + b"\n"


def _forget() -> None:
    """In a forked child: a copy of the lock or the socket would keep the endpoint owned after the parent's death."""
    for claim in list(_claims):
        claim.forget()


os.register_at_fork(after_in_child=_forget)
