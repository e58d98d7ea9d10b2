"""The examples, run as their readers will run them: against the real zot, with the model that needs no key."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from harness import PATIENCE_S, environment, eventually
from optional import available, needs, report

EXAMPLES = Path(__file__).parents[2] / "examples"
RPC = EXAMPLES / "rpc"
LAB = ("--provider", "lab")
Command: TypeAlias = Sequence[str | Path]

#: Those that need no compiler, by name. One whose program is missing is not tried, and named at the end.
CLIENTS: Mapping[str, Command] = {
    "python": (sys.executable, RPC / "python" / "client.py"),
    **({"node": ("node", RPC / "node" / "client.mjs")} if available("node", "the Node client") else {}),
    **(
        {"shell": ("bash", RPC / "shell" / "client.sh")}
        if available("bash", "the shell client") & available("jq", "the shell client")
        else {}
    ),
}
every_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)


class Started:
    """An example that runs in a group of its own, as from a terminal. It writes down which zot it started."""

    def __init__(self, command: Command, directory: Path, more: Mapping[str, str] | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(dir=directory))
        self._pids = self.directory / "pids"
        program = self.directory / "zot"
        program.write_text(
            f'#!/bin/sh\necho $$ >>{shlex.quote(str(self._pids))}\nexec {shlex.quote(sys.executable)} -m zot "$@"\n'
        )
        program.chmod(0o755)
        self.process = subprocess.Popen(
            [str(word) for word in command],
            cwd=self.directory,
            env=environment({"ZOT": str(program), **(more or {})}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
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
        """Wait for it; return its exit code, standard output and standard error. No zot may be left."""
        try:
            out, errors = self.process.communicate(timeout=PATIENCE_S)
        finally:
            self.process.kill()
        if self._pids.exists():
            assert eventually(lambda: not Path(f"/proc/{self.zot()}").exists()), "zot is still there"
        return self.process.returncode, out.decode(), errors.decode()


Run: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True, scope="module")
def interrupts_reach_what_we_start() -> Iterator[None]:
    """Tests that run in the background may have been told to ignore SIGINT; that would be inherited."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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
def test_a_client_prints_the_error_and_fails(
    client: Command, prompt: str, flags: Sequence[str], message: str, run: Run
) -> None:
    code, _, errors = run(*client, prompt, *flags)
    assert code == 1
    assert message in errors
    assert len(errors.splitlines()) <= 2, "a message, not a stack trace"


@every_client
def test_a_client_reports_a_missing_zot(client: Command, run: Run) -> None:
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
def test_a_client_aborts_a_tool_on_ctrl_c_and_no_process_remains(client: Command, tmp_path: Path) -> None:
    started = Started([*client, "!bash echo $$ >tool; exec sleep 600", *LAB], tmp_path)
    started.until(b"Running it.")
    tool = started.directory / "tool"
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
def test_the_go_client_compiles_and_does_the_same(tmp_path: Path, run: Run) -> None:
    go = environment({"GOFLAGS": "-mod=mod", "GOPROXY": "off", "CGO_ENABLED": "0"})
    go |= {name: str(tmp_path / name.lower()) for name in ("GOCACHE", "GOPATH")}
    client = tmp_path / "client"
    subprocess.run(["go", "build", "-o", client, "."], cwd=RPC / "go", env=go, check=True, timeout=120)

    used_a_tool = run(client, "!bash echo hi", *LAB)
    assert used_a_tool == (0, "Running it.\nfinished.\n", '[bash] {"command":"echo hi"}\n[ok]\n')
    assert run(client, "!status 401", *LAB) == (1, "", "error: lab: http 401: status 401, as scripted\n")
    code, _, errors = run(client, "", *LAB)
    assert (code, errors.startswith("prompt: the prompt is empty")) == (1, True)
    assert run(client, "hello", *LAB, ZOT="/no/such/program")[0] == 1
    text = "a\u2028b" + "x" * 100_000
    assert run(client, f"!echo {text}", *LAB) == (0, text + "\n", "")

    started = Started([client, "!slow 2000 0.02", *LAB], tmp_path)
    started.until(b"w0")
    started.process.send_signal(signal.SIGINT)
    assert started.end()[0] == 130
    started = Started([client, "!slow 2000 0.02", *LAB], tmp_path)
    started.until(b"w0")
    os.kill(started.zot(), signal.SIGKILL)
    assert started.end()[::2] == (1, "zot ended before it was done: signal: killed\n")


@needs("jq")
def test_the_one_liner_of_the_shell_client_works_as_written(run: Run) -> None:
    comment = re.findall("^#     (.*)$", (RPC / "shell" / "client.sh").read_text(), re.MULTILINE)
    line = "\n".join(comment[1:]).replace("zot rpc", '"$ZOT" rpc').replace("hello", "!say 3 hello")
    assert run("sh", "-c", line) == (0, "hello", "")


# The runtime in process.


@pytest.mark.parametrize(
    ("example", "output"),
    [
        ("minimal.py", "Hello from the runtime in this very process.\n"),
        ("blocking.py", "One answer.\nA second prompt of the same conversation.\n"),
        ("parallel.py", "red: 1\ngreen: 2\nblue: 3\n"),
    ],
)
def test_an_example_of_the_sdk_prints_what_it_promises(example: str, output: str, run: Run) -> None:
    assert run(sys.executable, EXAMPLES / "sdk" / example) == (0, output, "")


def test_images_are_shown_by_their_size(run: Run) -> None:
    code, out, errors = run(sys.executable, EXAMPLES / "sdk" / "images.py")
    assert (code, errors) == (0, "")
    assert out.startswith('I have seen it.\n{"role":"user","content":[')
    assert '{"type":"image","mime_type":"image/png","bytes":70}' in out


def test_streaming_shows_text_tools_and_tokens(run: Run) -> None:
    code, out, errors = run(sys.executable, EXAMPLES / "sdk" / "streaming.py")
    assert (code, errors) == (0, "")
    assert [line.strip() for line in out.splitlines() if line] == [
        "Running it.",
        "100 tokens in, 20 out so far",
        "bash {'command': 'echo hello'}",
        "ok: $ echo hello",
        "finished.",
        "200 tokens in, 40 out so far",
        "messages: 4, cost in USD: 0.0",
    ]


def test_streaming_prints_the_error(run: Run) -> None:
    code, out, errors = run(sys.executable, EXAMPLES / "sdk" / "streaming.py", "!status 401")
    assert (code, errors) == (0, "")
    assert "error: lab: http 401: status 401, as scripted" in out


def test_ctrl_c_ends_the_prompt_of_streaming_but_not_the_program(tmp_path: Path) -> None:
    started = Started([sys.executable, EXAMPLES / "sdk" / "streaming.py", "!slow 2000 0.02"], tmp_path)
    started.until(b"w0")
    started.process.send_signal(signal.SIGINT)
    code, out, errors = started.end()
    assert (code, errors) == (0, "")
    assert "cancelled\nmessages: 2" in out


# The demonstration.


def test_the_demonstration_is_plain_text_in_a_pipe_and_ends_with_a_line_that_works(tmp_path: Path) -> None:
    started = Started([sys.executable, EXAMPLES / "demo.py"], tmp_path)
    code, out, errors = started.end()
    assert (code, errors) == (0, "")
    assert "\033" not in out
    for part in ("> write {", "> edit {", "    +TWO", "600 tokens in, 120 out, 0 files left behind."):
        assert part in out
    line = out.splitlines()[-2].strip()
    assert line.endswith(" rpc --provider lab")
    frames = subprocess.run(
        line, shell=True, cwd=started.directory, capture_output=True, timeout=PATIENCE_S, check=True
    )
    assert frames.stdout.endswith(b'{"type":"done"}\n')


@pytest.mark.parametrize("plain", [False, True], ids=["colours", "NO_COLOR"])
def test_the_demonstration_has_colours_in_a_terminal_unless_they_are_not_wanted(plain: bool, tmp_path: Path) -> None:
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, EXAMPLES / "demo.py"],
        cwd=tmp_path,
        env=environment({"NO_COLOR": "1"} if plain else {}),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
    )
    os.close(theirs)
    shown = b"".join(iter(lambda: _read_terminal(terminal), b""))
    os.close(terminal)
    assert process.wait(PATIENCE_S) == 0
    assert (b"\033[" in shown) is not plain


def _read_terminal(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # how a terminal reports that no process writes to it any more
        return b""


# Missing programs.


def test_a_check_without_its_program_is_not_collected_but_named() -> None:
    missing: dict[str, list[str]] = {}

    def test_something() -> None: ...

    assert needs("sh", missing=missing)(test_something) is test_something
    assert needs("no-such-program", missing=missing)(test_something) is None
    assert report(missing) == ["not run, because there is no no-such-program: test_something"]


@pytest.mark.parametrize("workers", [(), ("-p", "forked_workers", "--forks", "2")], ids=["one process", "workers"])
def test_a_missing_program_fails_the_run_in_ci_and_is_listed_elsewhere(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    (tmp_path / "test_it.py").write_text(
        "from optional import needs\n"
        "@needs('no-such-program')\n"
        "def test_that_needs_it(): raise AssertionError\n"
        "def test_that_needs_nothing(): pass\n"
    )
    options = ["-q", "-p", "no:cacheprovider", "-p", "optional_report", *workers]
    command: Command = [sys.executable, "-m", "pytest", *options, tmp_path]

    def run_with(**env: str) -> tuple[int, str]:
        paths = {"PYTHONPATH": str(EXAMPLES.parent / "tests"), "PYTHONDONTWRITEBYTECODE": "1"}
        paths["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # They take half of the time, and have no part in this.
        ended = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment(paths | env),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return ended.returncode, ended.stdout

    line = "not run, because there is no no-such-program: test_that_needs_it\n"
    code, shown = run_with()
    assert (code, line in shown, "1 passed" in shown) == (0, True, True)
    code, shown = run_with(CI="true")
    assert (code, f"FAILED {line}" in shown, "1 passed" in shown) == (1, True, True)
