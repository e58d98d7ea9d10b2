"""zot processes forked from the fork server, for tests that start many."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

from harness import PATIENCE_S, Late, environment, read_some

_READ_BYTES = 1 << 16


#: The fork server of this test run, once entered.
_open: list[ForkServer] = []


def run(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path = ".", given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run zot to its end, as `subprocess.run` would, from the fork server of this test run."""
    process = the_fork_server().fork(argv, Path(cwd).absolute(), dict(env))
    out, errors = process.communicate(given)
    assert process.returncode is not None
    return subprocess.CompletedProcess(["zot", *argv], process.returncode, out, errors)


def the_fork_server() -> ForkServer:
    """Return the fork server of this test run."""
    return _open[0]


class ForkServer:
    """The client of `fork_server.py`, which is started with the first fork. Forks of this process share it."""

    def __init__(self) -> None:
        self._control, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lives: int | None = None

    def fork(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Forked:
        """Fork a process."""
        self.start()
        (stdin, our_stdin), (our_stdout, stdout), (our_stderr, stderr), (our_report, report) = (
            os.pipe() for _ in range(4)
        )
        order = json.dumps({"argv": argv, "cwd": str(cwd), "env": env}).encode()
        theirs = [stdin, stdout, stderr, report]
        socket.send_fds(self._control, [order], theirs)
        for descriptor in theirs:
            os.close(descriptor)
        return Forked(our_stdin, our_stdout, our_stderr, our_report)

    def start(self) -> None:
        """Start the server, unless it runs. A pipe reaches its end when the server and all its forks have ended."""
        if self._lives is not None:
            return
        self._lives, theirs = os.pipe()
        with self._theirs as control:
            subprocess.run(
                [sys.executable, Path(__file__).parent / "fork_server.py", str(control.fileno())],
                pass_fds=[control.fileno(), theirs], env=environment({}), stdin=subprocess.DEVNULL, check=True,
                timeout=PATIENCE_S,
            )  # fmt: skip
        os.close(theirs)

    def __enter__(self) -> Self:
        _open.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _open.remove(self)
        self._theirs.close()
        self._control.close()
        if self._lives is not None:
            assert read_some(self._lives, time.monotonic() + PATIENCE_S) == b""
            os.close(self._lives)


class Forked:
    """A forked zot, with the interface of `subprocess.Popen`."""

    def __init__(self, stdin: int, stdout: int, stderr: int, report: int) -> None:
        self.stdin: IO[bytes] = os.fdopen(stdin, "wb")
        self.stdout: IO[bytes] = os.fdopen(stdout, "rb")
        self.stderr: IO[bytes] = os.fdopen(stderr, "rb")
        self.returncode: int | None = None
        self._report = os.fdopen(report, "rb", buffering=0)
        self._reported = b""
        self.pid = self._number(PATIENCE_S)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit code, None if it is running."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Return the exit code. Raise TimeoutExpired."""
        if self.returncode is None:
            self.returncode = self._number(timeout)
            self._report.close()
        return self.returncode

    def communicate(self, data: bytes = b"", timeout: float = PATIENCE_S) -> tuple[bytes, bytes]:
        """Write ``data``, close the input, return the output up to its end. Raise TimeoutExpired."""
        deadline = time.monotonic() + timeout
        unsaid, said = memoryview(data), {self.stdout: bytearray(), self.stderr: bytearray()}
        open_streams = [stream for stream in (self.stdin, *said) if not stream.closed]
        poll = select.poll()
        for stream in open_streams:
            poll.register(stream, select.POLLIN if stream in said else select.POLLOUT)
        streams = {stream.fileno(): stream for stream in open_streams}
        while streams:
            ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not ready:
                raise subprocess.TimeoutExpired("zot", timeout)
            for descriptor, _ in ready:
                stream = streams[descriptor]
                if stream is self.stdin:
                    unsaid = _write_some(descriptor, unsaid)
                    is_over = not unsaid
                else:
                    data = os.read(descriptor, _READ_BYTES)
                    said[stream] += data
                    is_over = not data
                if is_over:
                    poll.unregister(descriptor)
                    streams.pop(descriptor).close()
        self.wait(max(0.0, deadline - time.monotonic()))
        return bytes(said[self.stdout]), bytes(said[self.stderr])

    def _number(self, timeout: float) -> int:
        """Return the next number of the report."""
        deadline = time.monotonic() + timeout
        try:
            while b"\n" not in self._reported:
                self._reported += read_some(self._report.fileno(), deadline) or b"-1\n"
        except Late:
            raise subprocess.TimeoutExpired("zot", timeout) from None
        line, _, self._reported = self._reported.partition(b"\n")
        return int(line)


def _write_some(descriptor: int, data: memoryview) -> memoryview:
    """Write without blocking; return the unwritten rest, nothing if the reader has exited."""
    try:
        return data[os.write(descriptor, data[: select.PIPE_BUF]) :]
    except BrokenPipeError:
        return data[:0]
