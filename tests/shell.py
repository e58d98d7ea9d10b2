"""zot in a shell: one command at a time, with a home of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from harness import PATIENCE_S, environment


class Said(NamedTuple):
    """What a command wrote to its two outputs, and its exit code."""

    out: str
    err: str
    code: int


class Shell:
    """A directory to work in and a home where sessions are kept."""

    def __init__(self, directory: Path) -> None:
        self.user = directory
        self.home = directory / "kept"
        self.cwd = directory / "project"
        self.cwd.mkdir()
        self.env = environment({"HOME": str(directory), "ZOT_HOME": str(self.home)})

    def start(self, *argv: str, **popen: Any) -> subprocess.Popen[bytes]:
        given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        return subprocess.Popen([sys.executable, "-m", "zot", *argv], **{"cwd": self.cwd, "env": self.env, **given})

    def run(self, *argv: str, typed: bytes = b"", **popen: Any) -> Said:
        """Run a command to its end."""
        process = self.start(*argv, stdin=subprocess.PIPE, **popen)
        out, err = process.communicate(typed, timeout=PATIENCE_S)
        return Said(out.decode(), err.decode(), process.returncode)

    def ask(self, prompt: str, *flags: str, **popen: Any) -> Said:
        """Answer one prompt by lab."""
        return self.run("-p", prompt, "--provider", "lab", *flags, **popen)

    def sessions(self, *argv: str, **popen: Any) -> Said:
        return self.run("sessions", *argv, **popen)

    def told(self, *argv: str, **popen: Any) -> list[dict[str, Any]]:
        """Return what `zot sessions ... --json` says; it must succeed."""
        said = self.sessions(*argv, "--json", **popen)
        assert (said.err, said.code) == ("", 0)
        return [json.loads(line) for line in said.out.split("\n")[:-1]]
