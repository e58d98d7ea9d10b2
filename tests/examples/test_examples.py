"""The examples, run as their readers will run them: against the real zot, with the model that needs no key."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest
from harness import PATIENCE_S, environment, eventually
from optional import available, needs

EXAMPLES = Path(__file__).parents[2] / "examples"
RPC = EXAMPLES / "rpc"
LAB = ("--provider", "lab")
Command: TypeAlias = Sequence[str | Path]

#: Those that need no compiler, by name. One whose program is missing is not tried, and named at the end.
CLIENTS: Mapping[str, Command] = {
    "python": (sys.executable, RPC / "python" / "client.py"),
    **({"node": ("node", RPC / "node" / "client.mjs")} if available("node") else {}),
    **({"shell": ("bash", RPC / "shell" / "client.sh")} if available("bash") and available("jq") else {}),
}
every_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)


class Started:
    """An example that runs in a group of its own, as from a terminal. It writes down which zot it started."""

    def __init__(self, command: Command, directory: Path, more: Mapping[str, str] | None = None) -> None:
        self._pids = directory / "pids"
        program = directory / "zot"
        program.write_text(
            f'#!/bin/sh\necho $$ >>{shlex.quote(str(self._pids))}\nexec {shlex.quote(sys.executable)} -m zot "$@"\n'
        )
        program.chmod(0o755)
        self.process = subprocess.Popen(
            [str(word) for word in command],
            cwd=directory,
            env=environment({"ZOT": str(program), **(more or {})}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # as a terminal gives it to programs
        )

    def until(self, text: bytes) -> None:
        """Read standard output up to ``text``."""
        assert self.process.stdout is not None
        seen = b""
        while text not in seen:
            data = os.read(self.process.stdout.fileno(), 4096)
            assert data, f"it ended with {seen!r}"
            seen += data

    def zot(self) -> int:
        """Return the process id of the zot it started."""
        return int(self._pids.read_text())

    def end(self) -> tuple[int, str, str]:
        """Wait for it; return its exit code, and what it wrote to standard output and error. No zot may be left."""
        try:
            out, errors = self.process.communicate(timeout=PATIENCE_S)
        finally:
            self.process.kill()
        if self._pids.exists():
            assert eventually(lambda: not Path(f"/proc/{self.zot()}").exists()), "zot is still there"
        return self.process.returncode, out.decode(), errors.decode()


Run: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return lambda *command, **more: Started(command, tmp_path, more).end()


# Clients of zot rpc.


@every_client
def test_a_client_prints_text_as_it_comes_and_the_tools_that_are_used(client: Command, run: Run) -> None:
    code, out, errors = run(*client, "!bash echo hi", *LAB)
    assert (code, out) == (0, "Running it.\nfinished.\n")
    if "bash" not in client:  # The shell client prints the text only.
        assert re.fullmatch(r'\[bash] \{"command": ?"echo hi"}\n\[ok]\n', errors)


@every_client
@pytest.mark.parametrize(
    ("prompt", "flags", "message"),
    [
        ("!status 401", LAB, "lab: http 401: status 401, as scripted"),
        ("!cut", LAB, "the connection was cut"),
        ("", LAB, "prompt: the prompt is empty"),
        ("hello", ("--provider", "nope"), "unknown provider 'nope'"),
    ],
    ids=["failed", "cut off", "refused", "not started"],
)
def test_a_client_says_what_went_wrong_and_fails(
    client: Command, prompt: str, flags: Sequence[str], message: str, run: Run
) -> None:
    code, _, errors = run(*client, prompt, *flags)
    assert code == 1
    assert message in errors
    assert len(errors.splitlines()) <= 2, "a message, not a stack trace"


@every_client
def test_a_client_says_that_there_is_no_zot(client: Command, run: Run) -> None:
    code, _, errors = run(*client, "hello", *LAB, ZOT="/no/such/program")
    assert code == 1
    assert "/no/such/program" in errors
    assert "Traceback" not in errors


@every_client
def test_a_client_cuts_lines_at_lf_only_however_long_they_are(client: Command, run: Run) -> None:
    text = "a\u2028b\u2029c\u0085d" + "x" * 100_000
    assert run(*client, f"!echo {text}", *LAB) == (0, text + "\n", "")


@every_client
def test_a_client_aborts_the_prompt_on_ctrl_c(client: Command, tmp_path: Path) -> None:
    started = Started([*client, "!slow 2000 0.02", *LAB], tmp_path)
    started.until(b"w0")
    if "bash" in client:  # In a pipeline the terminal tells everyone.
        os.killpg(started.process.pid, signal.SIGINT)
    else:
        started.process.send_signal(signal.SIGINT)
    code, out, errors = started.end()
    assert (code, errors) == (130, "")
    assert out.endswith("\n"), "the part that was said came as a message"


@every_client
def test_a_client_aborts_a_tool_on_ctrl_c_and_nothing_of_it_is_left(client: Command, tmp_path: Path) -> None:
    started = Started([*client, "!bash echo $$ >tool; exec sleep 600", *LAB], tmp_path)
    started.until(b"Running it.")
    tool = tmp_path / "tool"
    assert eventually(lambda: tool.exists() and tool.read_text().endswith("\n"))
    os.killpg(started.process.pid, signal.SIGINT)
    code, _, _ = started.end()
    assert code == 130
    assert not Path(f"/proc/{tool.read_text().strip()}").exists()


@every_client
def test_a_client_notices_that_zot_died(client: Command, tmp_path: Path) -> None:
    started = Started([*client, "!slow 2000 0.02", *LAB], tmp_path)
    started.until(b"w0")
    os.kill(started.zot(), signal.SIGKILL)
    code, _, errors = started.end()
    assert code == 1
    assert "ended" in errors


@needs("go")
def test_the_go_client_compiles_and_does_all_of_that(tmp_path: Path) -> None:
    go = environment({"GOFLAGS": "-mod=mod", "GOPROXY": "off", "CGO_ENABLED": "0"})
    go |= {name: str(tmp_path / name.lower()) for name in ("GOCACHE", "GOPATH")}
    client = tmp_path / "client"
    subprocess.run(["go", "build", "-o", client, "."], cwd=RPC / "go", env=go, check=True, timeout=120)

    code, out, errors = Started([client, "!bash echo hi", *LAB], tmp_path / "..").end()
    assert (code, out, errors) == (0, "Running it.\nfinished.\n", '[bash] {"command":"echo hi"}\n[ok]\n')
