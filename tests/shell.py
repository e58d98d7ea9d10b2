"""zot in a shell: one command at a time, with a home of its own."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, chdir
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from forked import Forked, ForkServer
from harness import PATIENCE_S, environment
from zot.cli import run


class Said(NamedTuple):
    """The two outputs of a command, and its exit code."""

    out: str
    err: str
    code: int


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode()


class Shell:
    """A directory to work in and a home where sessions are kept."""

    def __init__(self, directory: Path, fork_server: ForkServer) -> None:
        self._fork_server = fork_server
        self.user = directory
        self.home = directory / "kept"
        self.cwd = directory / "project"
        self.cwd.mkdir()
        self.env = environment({"HOME": str(directory), "ZOT_HOME": str(self.home)})

    def start(self, *argv: str, **popen: Any) -> subprocess.Popen[bytes]:
        given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        return subprocess.Popen([sys.executable, "-m", "zot", *argv], **{"cwd": self.cwd, "env": self.env, **given})

    def run(self, *argv: str, typed: bytes = b"", **popen: Any) -> Said:
        """Run a command to its end; as a fresh process if ``popen`` sets more than the directory."""
        process: subprocess.Popen[bytes] | Forked
        if popen.keys() <= {"cwd"}:
            process = self._fork_server.fork(argv, popen.get("cwd", self.cwd), self.env)
        else:
            process = self.start(*argv, stdin=subprocess.PIPE, **popen)
        out, err = process.communicate(typed, timeout=PATIENCE_S)
        assert process.returncode is not None
        return Said(out.decode(), err.decode(), process.returncode)

    def ask(self, prompt: str, *flags: str, **popen: Any) -> Said:
        """Answer one prompt by lab."""
        return self.run("-p", prompt, "--provider", "lab", *flags, **popen)

    def sessions(self, *argv: str, typed: bytes = b"", cwd: str | Path | None = None) -> Said:
        """Run `zot sessions` in this process: a separate one would only add its start-up time."""
        if argv[:2] == ("import", "-"):  # the imported file is read from the descriptor
            return self.run("sessions", *argv, typed=typed)
        out, err, answers = (io.TextIOWrapper(io.BytesIO(data), encoding="utf-8") for data in (b"", b"", typed))
        with ExitStack() as stack:
            stack.enter_context(chdir(cwd or self.cwd))
            stack.enter_context(mock.patch.dict(os.environ, self.env, clear=True))
            stack.enter_context(mock.patch.multiple(sys, stdout=out, stderr=err, stdin=answers))
            # The command gives the signal back to the system.
            stack.callback(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
            code = run(["sessions", *argv])
        return Said(_written(out), _written(err), code)

    def told(self, *argv: str, **popen: Any) -> list[dict[str, Any]]:
        """Return the output of `zot sessions ... --json`, which must succeed."""
        said = self.sessions(*argv, "--json", **popen)
        assert (said.err, said.code) == ("", 0)
        return [json.loads(line) for line in said.out.split("\n")[:-1]]
