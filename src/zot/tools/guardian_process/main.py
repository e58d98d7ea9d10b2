"""Guardian: parent of all keepers; ends everything when zot ends.

zot sends one byte for each keeper it needs, with that keeper's control socket. The guardian forks the keeper and keeps
a copy of the socket: when a keeper is killed, its orphans become children of the guardian, which kills them and sends
``lost`` in the keeper's place.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

from zot.tools.guardian_process import kernel, tree
from zot.tools.guardian_process.keeper import keep
from zot.tools.guardian_process.spawn_request import receive_with_descriptors

#: Time for keepers to end after zot has ended. Longer than the grace of their commands.
_WIND_DOWN_S = 2.0
#: Interval of checks for the parent where no pidfd is available.
_LOOK_FOR_PARENT_S = 0.5
_LOOK_FOR_STRAYS_S = 0.05


def main() -> None:
    """Serve the zot process whose pid is the first argument, on the socket at standard input."""
    parent = int(sys.argv[1])
    zot = socket.socket(fileno=os.dup(0))
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
    def __init__(self, zot: socket.socket, parent: int) -> None:
        self._zot = zot
        self._parent = parent
        self._keepers: dict[int, socket.socket] = {}
        self._lost: list[socket.socket] = []
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
            self._fork(socket.socket(fileno=fd))

    def _fork(self, control: socket.socket) -> None:
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

    def _become_keeper(self, control: socket.socket) -> None:
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
