"""Guardian: parent of all keepers, which run commands; ends everything when zot ends.

zot sends one byte for each keeper it needs, with that keeper's control socket. The guardian forks the keeper and keeps
a copy of the socket: when a keeper is killed, its orphans become children of the guardian, which kills them and sends
``lost`` in the keeper's place.

A keeper runs one command after the other, and ends each with all its descendants.
It adopts the orphans of its tree, so all descendants stay below it, whatever they do (new sessions, double
forks). The tree has ended exactly when the keeper has no child left.

Its control socket carries, to the keeper: a `SpawnRequest` with descriptors (the write end of the output pipe; its read
end, to drain it later; optionally standard input and standard error); then lines: ``end SECONDS``, ``list``, ``drain``.
From the keeper: ``taken KEEPER MARK``; ``started PID`` or ``failed ERRNO WHERE``; ``jobs PID COMMAND\\0...``;
``abandoned`` when the guardian has died; ``exited STATUS``; finally ``gone``, after which it takes the next request. An
end of file means ``end``: zot has died or has dropped the command.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from socket import socket

from zot.tools.guardian_process import kernel, tree
from zot.tools.guardian_process.spawn_request import SECCOMP_FD, SpawnRequest, receive_request, receive_with_descriptors

#: Grace for a tree after zot or the guardian has ended.
ORPHAN_GRACE_S = 0.5
_FIRST_LOOK_S = 0.001
_LAST_LOOK_S = 0.05
#: Limit of listed processes; above the number shown, so that zot can tell that there are more.
_MAX_JOBS = 100
#: Limit of processes that get SIGTERM before they are killed. A faster fork loop ignores it anyway.
_CROWD = 1000
_RESETTABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
_DRAIN_BYTES = 1 << 20


def keep(control: socket, guardian: int) -> None:
    """Run the commands requested on ``control``, one after the other. Return at its end.

    End of file on ``guardian`` means that the guardian has died.
    """
    os.setsid()
    kernel.adopt_orphans()
    kernel.wake_with_parent()
    mark = kernel.mark_processes()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    wakeups = kernel.wake_on_child_exit()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(guardian, select.POLLIN)
    while guardian not in dict(poll.poll()):
        try:
            request, fds = receive_request(control)
        except EOFError:
            return
        # First: the command may stop this process before it can report anything else.
        _send(control, b"taken %d %d\n" % (os.getpid(), mark))
        _run(request, control, fds, guardian, wakeups)
        os.close(fds[1])


def _run(request: SpawnRequest, control: socket, output: Sequence[int], guardian: int, wakeups: int) -> None:
    outlet, inlet, *streams = output
    try:
        pid = _start(request, outlet, streams)
    except OSError as exc:
        where = b"directory" if exc.filename == request.cwd else b"program"
        _send(control, b"failed %d %s\ngone\n" % (exc.errno or 0, where))
        return
    finally:
        for fd in (outlet, *streams):
            os.close(fd)
    _send(control, b"started %d\n" % pid)
    _Tree(pid, control, inlet, guardian, wakeups).run()


def _start(request: SpawnRequest, outlet: int, streams: Sequence[int]) -> int:
    """Start the command in its own session. Raise OSError, with the directory as its filename if that is the cause."""
    os.chdir(request.cwd)
    seccomp = _sandbox_filter(request.seccomp)
    try:
        return os.posix_spawn(
            _found(request.argv[0], request.env),
            request.argv,
            request.env,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, streams[0], 0)
                if streams
                else (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, outlet, 1),
                (os.POSIX_SPAWN_DUP2, streams[1] if streams else outlet, 2),
                *([] if seccomp is None else [(os.POSIX_SPAWN_DUP2, seccomp, SECCOMP_FD)]),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=_RESETTABLE,
        )
    finally:
        os.chdir("/")
        if seccomp is not None:
            os.close(seccomp)


def _sandbox_filter(program: bytes) -> int | None:
    """Return a descriptor of a sandbox's system call filter; None without a filter.

    A sandbox gets a session keyring of its own, too: that of the user holds keys and tickets. It stays with this
    keeper, since a process cannot return to its former keyring.
    """
    if not program:
        return None
    kernel.join_new_keyring()
    # Above the descriptors of the started program, which the kernel replaces one after the other.
    fd = os.memfd_create("seccomp")
    try:
        os.write(fd, program)
        os.lseek(fd, 0, os.SEEK_SET)
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, SECCOMP_FD + 1)
    finally:
        os.close(fd)


def _found(name: bytes, env: dict[bytes, bytes]) -> bytes:
    """Return the path of a program, looked up in its own environment; a name with a slash is a path already."""
    if b"/" in name:
        return name
    for directory in env.get(b"PATH", os.defpath.encode()).split(b":"):
        path = os.path.join(directory or b".", name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return name


def _send(control: socket, line: bytes) -> None:
    with suppress(OSError):  # zot does not read any more; the end of file follows
        control.sendall(line)


class _Tree:
    """Process tree of the running command."""

    def __init__(self, pid: int, control: socket, inlet: int, guardian: int, wakeups: int) -> None:
        self._pid = pid
        self._control = control
        self._inlet = inlet
        self._wakeups = wakeups
        self._unread = b""
        self._kill_at: float | None = None
        self._pause_s = _FIRST_LOOK_S
        self._poll = select.poll()
        self._on: dict[int, Callable[[int], None]] = {}
        self._watch(control.fileno(), self._on_control)
        self._watch(guardian, self._guardian_died)
        self._watch(wakeups, lambda wakeups: None)

    def run(self) -> None:
        """Serve until the tree has ended."""
        while not self._reap():
            for fd, _ in self._poll.poll(self._wait_ms()):
                self._on[fd](fd)

    def _watch(self, fd: int, on_ready: Callable[[int], None]) -> None:
        self._poll.register(fd, select.POLLIN)
        self._on[fd] = on_ready

    def _reap(self) -> bool:
        """Reap ended children and report them; True if none is left."""
        ended, nobody_left = kernel.collect(self._wakeups)
        report = b""
        for pid, status in ended:
            self._pause_s = _FIRST_LOOK_S
            if pid == self._pid:
                report += b"exited %d\n" % os.waitstatus_to_exitcode(status)
        if nobody_left:
            report += b"gone\n"
        if report:
            _send(self._control, report)
        return nobody_left

    def _wait_ms(self) -> float | None:
        """Kill the tree if its grace is over, and return the next poll timeout."""
        if self._kill_at is None:
            return None
        left_s = self._kill_at - time.monotonic()
        if left_s > 0:
            return left_s * 1000
        tree.end(self._look)
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, _LAST_LOOK_S)
        return pause_s * 1000

    def _look(self) -> Iterable[tuple[int, tree.ProcessStatus]]:
        return tree.below(tree.children(os.getpid()))

    def _end(self, grace_s: float) -> None:
        """Send SIGTERM to the tree; kill the rest after ``grace_s``. The shortest grace of several calls counts."""
        kernel.raise_priority()
        kill_at = time.monotonic() + grace_s
        self._kill_at = kill_at if self._kill_at is None else min(kill_at, self._kill_at)
        if grace_s > 0:
            tree.ask_to_end(self._pids()[:_CROWD])

    def _pids(self) -> list[int]:
        return [pid for pid, _ in self._look()]

    def _on_control(self, fd: int) -> None:
        try:
            data = self._control.recv(4096)
        except ConnectionError:
            data = b""
        if not data:
            self._forget(fd)
            self._end(ORPHAN_GRACE_S)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._execute(line)

    def _execute(self, line: bytes) -> None:
        match line.split():
            case [b"end", seconds]:
                self._end(float(seconds))
            case [b"list"]:
                jobs = tree.command_lines(self._pids(), at_most=_MAX_JOBS)
                _send(self._control, b"jobs " + b"\0".join(b"%d %s" % job for job in jobs) + b"\n")
            case [b"drain"]:
                self._watch(self._inlet, self._drain)
            case _:
                raise ValueError(f"not an order: {line!r}")

    def _drain(self, inlet: int) -> None:
        """Discard output: a full pipe would block a background job, a closed one would kill it."""
        with suppress(BlockingIOError):  # zot made the pipe non-blocking
            if not os.read(inlet, _DRAIN_BYTES):
                self._forget(inlet)

    def _guardian_died(self, fd: int) -> None:
        self._forget(fd)
        _send(self._control, b"abandoned\n")
        self._end(ORPHAN_GRACE_S)

    def _forget(self, fd: int) -> None:
        self._poll.unregister(fd)
        del self._on[fd]


#: Time for keepers to end after zot has ended. Longer than the grace of their commands.
_WIND_DOWN_S = 2.0
#: Interval of checks for the parent where no pidfd is available.
_LOOK_FOR_PARENT_S = 0.5
_LOOK_FOR_STRAYS_S = 0.05


def main() -> None:
    """Serve the zot process whose pid is the first argument, on the socket at standard input."""
    parent = int(sys.argv[1])
    zot = socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The starting thread may have blocked signals, SIGCHLD among them.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    kernel.adopt_orphans()
    kernel.wake_with_parent()
    kernel.hide_memory()
    _Guardian(zot, parent).run()


class _Guardian:
    def __init__(self, zot: socket, parent: int) -> None:
        self._zot = zot
        self._parent = parent
        self._keepers: dict[int, socket] = {}
        self._lost: list[socket] = []
        self._alive, self._our_life = os.pipe()
        self._wakeups = kernel.wake_on_child_exit()
        self._leave_at: float | None = None
        self._poll = select.poll()
        for fd in (zot.fileno(), self._wakeups):
            self._poll.register(fd, select.POLLIN)
        self._parent_exit = _exit_of(parent)
        if self._parent_exit is not None:
            self._poll.register(self._parent_exit, select.POLLIN)

    def run(self) -> None:
        """Serve until zot and all its commands have ended."""
        while not (self._reap() and self._leave_at is not None):
            self._sweep()
            for fd, _ in self._poll.poll(self._wait_ms()):
                if fd == self._zot.fileno():
                    self._serve()
                elif fd == self._parent_exit:
                    self._wind_down()
            if os.getppid() != self._parent:
                self._wind_down()

    def _serve(self) -> None:
        """Fork a keeper for zot; wind down at the end of file."""
        try:
            data, fds = receive_with_descriptors(self._zot, 1, 1)
        except ConnectionError:
            data, fds = b"", []
        if not data:
            self._wind_down()
        for fd in fds:  # none if too many are open already: the other end notices
            self._fork(socket(fileno=fd))

    def _fork(self, control: socket) -> None:
        try:
            pid = os.fork()
        except OSError as exc:
            with suppress(OSError):  # zot has ended or dropped the command
                control.sendall(b"failed %d program\ngone\n" % (exc.errno or 0))
            control.close()
        else:
            if pid == 0:
                self._become_keeper(control)
            self._keepers[pid] = control

    def _become_keeper(self, control: socket) -> None:
        """Run as a keeper; never returns. Closes the guardian's descriptors first: a keeper must notice its end."""
        status = 1
        try:
            os.close(self._our_life)
            self._zot.close()
            for other in (*self._keepers.values(), *self._lost):
                other.close()
            keep(control, self._alive)
            status = 0
        finally:
            os._exit(status)

    def _reap(self) -> bool:
        """Reap ended children and resume stopped keepers; True if no child is left."""
        changed, nobody_left = kernel.collect(self._wakeups, os.WUNTRACED)
        for pid, status in changed:
            self._note(pid, status)
        if nobody_left:
            self._report_lost()
        return nobody_left

    def _note(self, pid: int, status: int) -> None:
        if os.WIFSTOPPED(status):
            if pid in self._keepers:  # other children were stopped by the guardian
                tree.wake(pid)
        elif (control := self._keepers.pop(pid, None)) is not None:
            if status == 0:
                control.close()
            else:
                self._lost.append(control)

    def _sweep(self) -> None:
        """Kill the processes of killed keepers, and report when they are gone."""
        if self._leave_at is not None and time.monotonic() > self._leave_at:
            tree.kill(list(self._keepers))
        if self._lost:
            kernel.raise_priority()
            if not tree.end(self._strays):
                self._report_lost()

    def _strays(self) -> Iterable[tuple[int, tree.ProcessStatus]]:
        return tree.below([pid for pid in tree.children(os.getpid()) if pid not in self._keepers])

    def _report_lost(self) -> None:
        for control in self._lost:
            with suppress(OSError):  # zot has ended or dropped the command
                control.sendall(b"lost\n")
            control.close()
        self._lost.clear()

    def _wait_ms(self) -> float | None:
        if self._lost:
            return _LOOK_FOR_STRAYS_S * 1000
        if self._leave_at is not None or self._parent_exit is None:
            return _LOOK_FOR_PARENT_S * 1000
        return None

    def _wind_down(self) -> None:
        """Let all keepers end their commands, then exit."""
        if self._leave_at is None:
            self._leave_at = time.monotonic() + _WIND_DOWN_S
            os.close(self._our_life)
            self._poll.unregister(self._zot.fileno())
            if self._parent_exit is not None:
                self._poll.unregister(self._parent_exit)


def _exit_of(pid: int) -> int | None:
    """Return a descriptor that becomes readable when a process ends; None if unsupported."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
