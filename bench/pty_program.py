"""A program in a pseudo-terminal: send keys, and read its screen output up to a mark."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Sequence
from time import perf_counter
from types import TracebackType

from installation import Installation

_ROWS, _COLUMNS = 40, 120
_TICKS = os.sysconf("SC_CLK_TCK")
_PATIENCE_S = 60.0


class PtyProgram:
    """A program in a pseudo-terminal. Leaving the block kills it."""

    def __init__(self, argv: Sequence[str], installation: Installation) -> None:
        self._mine, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        env = {**installation.env, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        self.started = perf_counter()
        self._child = subprocess.Popen(
            argv,
            env=env,
            cwd=installation.directory,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.written = b""

    def __enter__(self) -> PtyProgram:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self._child.kill()
        self._child.wait()
        os.close(self._mine)

    def type(self, text: str) -> None:
        """Send keys. Earlier output is discarded."""
        self.written = b""
        os.write(self._mine, text.encode())

    def until(self, mark: str) -> float:
        """Read up to ``mark`` and return the time it arrived."""
        end = perf_counter() + _PATIENCE_S
        while mark.encode() not in self.written:
            if perf_counter() > end:
                raise TimeoutError(f"{mark!r} was not written; {self.written[-400:]!r} was")
            self.rest(0.05, stops=True)
        return perf_counter()

    def rest(self, seconds: float, *, stops: bool = False) -> None:
        """Read for so many seconds, or only up to the first output."""
        end = perf_counter() + seconds
        while select.select([self._mine], [], [], max(0.0, end - perf_counter()))[0]:
            try:
                self.written += os.read(self._mine, 1 << 16)
            except OSError:  # The program has closed the terminal.
                return
            if stops:
                return

    def ended(self) -> None:
        """Read until the program ends."""
        end = perf_counter() + _PATIENCE_S
        while self._child.poll() is None and perf_counter() < end:
            self.rest(0.05)

    @property
    def cpu_s(self) -> float:
        """The CPU time of the program, in seconds."""
        with open(f"/proc/{self._child.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
