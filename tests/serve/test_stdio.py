"""Standard streams of every kind: pipes, sockets, files, terminals, nothing at all; and only frames on the wire."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import resource
import socket
import subprocess
import sys
import time
import tty
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grammar import Grammar
from harness import (
    PATIENCE_S,
    Frame,
    Zot,
    at_rest,
    command,
    environment,
    eventually,
    read_some,
    resident_bytes,
    text_of,
    types,
)

COMMANDS = b'{"type":"hello","id":"0"}\n{"type":"prompt","id":"1","message":"!bash echo out; echo err >&2"}\n'
STORY = ["hello:ok", "prompt:ok", "user_message", "turn_start"]


def run(
    directory: Path, *flags: str, env: dict[str, str] | None = None, **popen: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run `zot rpc` to its end."""
    return subprocess.run(
        command(*flags), cwd=directory, env=environment(env or {}), timeout=PATIENCE_S, check=False, **popen
    )


def frames_in(output: bytes) -> list[Frame]:
    """Return the frames in a whole output, which must be in order."""
    assert output == b"" or output.endswith(b"\n")
    frames = [json.loads(line) for line in output.split(b"\n") if line]
    grammar = Grammar()
    for frame in frames:
        grammar.take(frame)
    grammar.finish()
    return frames


def assert_the_story_is_told(output: bytes) -> None:
    frames = frames_in(output)
    assert types(frames)[:4] == STORY
    assert types(frames)[-1] == "done"
    assert text_of(frames).endswith("finished.")


def test_files(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(COMMANDS)
    with open(tmp_path / "in", "rb") as incoming, open(tmp_path / "out", "wb") as outgoing:
        assert run(tmp_path, stdin=incoming, stdout=outgoing).returncode == 0
    assert_the_story_is_told((tmp_path / "out").read_bytes())


def test_an_appended_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b'{"type":"ping"}\n')
    (tmp_path / "out").write_bytes(b"before\n")
    with open(tmp_path / "in", "rb") as incoming, open(tmp_path / "out", "ab") as outgoing:
        assert run(tmp_path, stdin=incoming, stdout=outgoing).returncode == 0
    first, *rest = (tmp_path / "out").read_bytes().splitlines()
    assert (first, len(rest)) == (b"before", 1)


def test_a_pair_of_sockets(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        subprocess.Popen(
            command(), cwd=tmp_path, env=environment({}), stdin=theirs.fileno(), stdout=theirs.fileno()
        ) as process,
    ):
        theirs.close()
        ours.settimeout(PATIENCE_S)
        ours.sendall(COMMANDS)
        ours.shutdown(socket.SHUT_WR)
        output = b"".join(iter(lambda: ours.recv(65536), b""))
        assert process.wait(PATIENCE_S) == 0
    assert_the_story_is_told(output)


def test_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    with subprocess.Popen(command(), cwd=tmp_path, env=environment({}), stdin=theirs, stdout=theirs) as process:
        os.close(theirs)
        os.write(ours, COMMANDS)
        output = b""
        while b'"done"' not in output:
            output += read_some(ours, time.monotonic() + PATIENCE_S)
        assert_the_story_is_told(output)
        os.close(ours)  # The line is dead.
        assert process.wait(PATIENCE_S) == 0


def test_the_null_device(tmp_path: Path) -> None:
    done = run(tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    done = run(tmp_path, input=COMMANDS, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("redirections", ["<&-", "<&- 2>&-"])
def test_closed_input_is_an_empty_one(tmp_path: Path, redirections: str) -> None:
    done = in_shell(tmp_path, redirections)
    assert (done.returncode, done.stdout) == (0, b"")


@pytest.mark.parametrize("redirections", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_output_harms_nothing(tmp_path: Path, redirections: str) -> None:
    (tmp_path / "touched").unlink(missing_ok=True)
    done = in_shell(tmp_path, redirections, given=b'{"type":"prompt","message":"!bash touch touched"}\n')
    assert (done.returncode, done.stdout) == (0, b"")
    assert (tmp_path / "touched").exists() == ("<&-" not in redirections)


def test_closed_standard_error_is_not_missed(tmp_path: Path) -> None:
    done = in_shell(tmp_path, "2>&-", given=COMMANDS)
    assert done.returncode == 0
    assert_the_story_is_told(done.stdout)


def in_shell(directory: Path, redirections: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirections}', "sh", *command()],
        cwd=directory, env=environment({}), input=given, stdout=subprocess.PIPE, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("blocking", [True, False])
def test_the_flags_of_inherited_descriptors_stay_unchanged(tmp_path: Path, *, blocking: bool) -> None:
    """Others share these open files, a shell for one; and may have made them non-blocking themselves."""
    reading, writing = os.pipe()
    ours, theirs = os.pipe()
    errors_read, errors_write = os.pipe()
    inherited = (reading, theirs, errors_write)
    for descriptor in inherited:
        os.set_blocking(descriptor, blocking)
    before = [fcntl.fcntl(descriptor, fcntl.F_GETFL) for descriptor in inherited]
    with subprocess.Popen(
        command(), cwd=tmp_path, env=environment({}), stdin=reading, stdout=theirs, stderr=errors_write
    ) as process:
        os.write(writing, COMMANDS)
        output = b""
        while b'"done"' not in output:
            output += read_some(ours, time.monotonic() + PATIENCE_S)
            assert [fcntl.fcntl(descriptor, fcntl.F_GETFL) for descriptor in inherited] == before
        os.close(writing)
        assert process.wait(PATIENCE_S) == 0
    assert [fcntl.fcntl(descriptor, fcntl.F_GETFL) for descriptor in inherited] == before
    assert_the_story_is_told(output)
    for descriptor in (*inherited, ours, errors_read):
        os.close(descriptor)


# Only frames reach the wire.


def test_stray_output_of_the_process_itself_goes_to_standard_error(tmp_path: Path) -> None:
    """A library that prints, Python or C, at import and while a prompt runs."""
    (tmp_path / "noisy.py").write_text(
        "import os\n"
        "import zot.agent.loop as loop\n"
        "print('imported')\n"
        "def noisy(find):\n"
        "    def call(*args):\n"
        "        print('printed', flush=True)\n"
        "        os.write(1, b'written\\n')\n"
        "        os.system('echo shouted')\n"
        "        return find(*args)\n"
        "    return call\n"
        "loop.Agent._offered = noisy(loop.Agent._offered)\n"
    )
    probe = (
        "import sys, zot.commands.rpc as rpc, zot.serve.stdio as stdio\n"
        "early = stdio.answer_early\n"
        "def answer_early(*args):\n"
        "    import noisy\n"
        "    return early(*args)\n"
        "stdio.answer_early = answer_early\n"
        "sys.exit(rpc.main(['--provider', 'lab']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=tmp_path, env=environment({"PYTHONPATH": str(tmp_path)}), input=COMMANDS,
        capture_output=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert_the_story_is_told(done.stdout)
    assert {b"imported", b"printed", b"written", b"shouted"} <= set(done.stderr.split())


def test_a_tool_s_output_is_its_result_on_either_descriptor(zot: Callable[..., Zot]) -> None:
    process = zot()
    wild = "echo to one; echo to two >&2; for n in 3 4 5 6 7 8 9; do (echo corrupted >&$n) 2>/dev/null; done; true"
    process.send({"type": "prompt", "message": f"!bash {wild}"})
    frames = process.until(type="done")
    [result] = [frame for frame in frames if frame["type"] == "tool_result"]
    assert "to one\nto two\n\n[exit 0]" in result["content"][0]["text"]
    assert process.finish() == []


def test_a_tool_has_none_of_our_descriptors_and_no_input(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.send({"type": "prompt", "message": "!bash ls -l /proc/self/fd | grep -c -- '->'; cat; echo ended"})
    frames = process.until(type="done")
    [result] = [frame for frame in frames if frame["type"] == "tool_result"]
    # Its input, output and error, and the directory that is being listed.
    assert "\n4\nended\n" in result["content"][0]["text"]
    assert process.finish() == []


# A reader that takes its time.


@pytest.fixture
def flood(zot: Callable[..., Zot]) -> tuple[Zot, int]:
    """A process with more output than its reader takes at once, and its memory before it begins."""
    process = zot()
    process.send({"type": "prompt", "message": "!say 1 warm"})
    process.until(type="done")
    before = resident_bytes(process.pid)
    process.send({"type": "prompt", "message": "!flood 150000"})
    return process, before


def test_a_slow_reader_loses_nothing_and_costs_no_memory(flood: tuple[Zot, int]) -> None:
    process, before = flood
    assert process.process.stdout is not None
    output, most = bytearray(), 0
    deadline = time.monotonic() + PATIENCE_S
    reads = 0
    while not output.endswith(b'{"type":"done"}\n'):
        assert time.monotonic() < deadline
        output += os.read(process.process.stdout.fileno(), 1024)
        reads += 1
        if reads % 256 == 0:
            most = max(most, resident_bytes(process.pid))
    frames = [json.loads(line) for line in output.splitlines()]
    for frame in frames:
        process.grammar.take(frame)
    assert len(output) > 5_000_000
    assert len(text_of(frames)) == 150_000
    assert most - before < 20 * 1024 * 1024, f"{(most - before) / 2**20:.0f} MiB for a reader that is slow"
    assert process.finish() == []


def test_the_model_is_not_read_while_the_output_is_not_but_commands_are(flood: tuple[Zot, int]) -> None:
    process, _ = flood
    process.until(type="text_delta")
    assert eventually(lambda: at_rest(process.pid))
    process.send({"type": "abort", "id": "stop"})
    frames = process.until(type="done")
    assert 0 < len(text_of(frames)) < 100_000
    assert types([frame for frame in frames if frame["type"] != "text_delta"]) == [
        "abort:ok", "usage", "assistant_message", "turn_end:aborted", "done",
    ]  # fmt: skip
    assert process.finish() == []


def test_a_client_may_write_everything_before_it_reads_anything(zot: Callable[..., Zot]) -> None:
    """From the very first line on: more questions, and more answers, than fit into the pipes."""
    process = zot()
    process.send(*({"type": "ping", "id": number} for number in range(20_000)))
    assert [process.read()["id"] for _ in range(20_000)] == list(range(20_000))
    assert process.finish() == []


def test_memory_does_not_grow_with_unread_questions(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.send({"type": "prompt", "message": "!echo " + 500_000 * "x"})
    process.until(type="done")
    before = resident_bytes(process.pid)
    process.send(*({"type": "get_messages", "id": number} for number in range(100)))
    assert eventually(lambda: at_rest(process.pid))
    grown = resident_bytes(process.pid) - before
    assert grown < 60 * 1024 * 1024, f"{grown / 2**20:.0f} MiB of answers that nobody reads"
    assert [process.read()["id"] for _ in range(100)] == list(range(100))
    assert process.finish() == []


def test_a_failing_output_ends_it(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = run(tmp_path, input=COMMANDS, stdout=full, stderr=subprocess.PIPE)
    reason = b"zot: the output could not be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, reason)


NO_MEMORY = {
    "rpc": (
        "import zot.serve.streams as module\n"
        "real = memoryview\n"
        "def fail(data):\n"
        "    if len(data): raise MemoryError\n"
        "    return real(data)\n"
        "module.memoryview = fail\n"
        "argv = ['rpc', '--provider', 'lab']\n",
        b'{"type":"prompt","message":"!echo hi"}\n',
        1,
    ),
    "host": (
        "import zot.serve.host.stream as module\n"
        "def fail(*_): raise MemoryError\n"
        "module.write_all = fail\n"
        "argv = ['host', '--single-request', 'false', '--provider', 'lab']\n",
        b'{"request_id":"r","session_id":"s","prompt":"!echo hi"}\n',
        4,
    ),
}


@pytest.mark.parametrize(("fault", "given", "code"), NO_MEMORY.values(), ids=NO_MEMORY.keys())
def test_an_output_without_memory_ends_it(tmp_path: Path, fault: str, given: bytes, code: int) -> None:
    """It reports that and exits; before, its output was lost and it waited for ever."""
    probe = f"import sys\n{fault}from zot.cli import main\nsys.argv = ['zot', *argv]\nmain()\n"
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=tmp_path, env=environment({"ZOT_HOME": str(tmp_path / "home")}),
        input=given, capture_output=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, b"")
    assert b"could not be written: Cannot allocate memory" in done.stderr


def test_few_descriptors_are_enough(tmp_path: Path) -> None:
    def scarce() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))

    done = run(tmp_path, input=COMMANDS, stdout=subprocess.PIPE, preexec_fn=scarce)
    assert_the_story_is_told(done.stdout)
