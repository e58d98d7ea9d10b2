"""The end of the process: after its work, on a signal, or without a client; and never with a child left running."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
import uuid
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import PATIENCE_S, Frame, Zot, command, environment, eventually, living, read_some, text_of, types

STOP_S = 3.0
PIPE_BYTES = 64 * 1024


def prompt(message: str, frame_id: str = "1") -> Frame:
    return {"type": "prompt", "id": frame_id, "message": message}


def marked() -> str:
    return f"LIFETIME_{uuid.uuid4().hex}"


def busy_in_bash(process: Zot, mark: str, *, stubborn: bool = False) -> None:
    """Let it run a command of ten minutes, and wait until it does."""
    trap = "trap '' TERM; " if stubborn else ""
    process.send(prompt(f"!bash {trap}export {mark}=1; sleep 600 & echo up; sleep 600"))
    process.until(type="tool_progress")
    assert eventually(lambda: len(living(mark)) >= 1)


# The end of the input.


def test_accepted_prompts_run_to_their_end(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.send(
        prompt("!slow 5 0.02"), prompt("!bash sleep 0.1; echo late"), {"type": "compact"}, prompt("!say 1 last")
    )
    frames = process.finish()
    assert types(frames).count("done") == 4
    assert text_of(frames).endswith("last")


def test_a_client_that_can_no_longer_answer_is_not_awaited(zot: Callable[..., Zot]) -> None:
    process = zot("--policy", "bash=ask")
    process.send({"type": "hello", "features": ["approvals"]}, prompt("!bash echo hi"), prompt("!bash echo hi", "2"))
    process.until(type="approval_request")
    frames = process.finish()
    results = [frame["content"][0]["text"] for frame in frames if frame["type"] == "tool_result"]
    assert (
        results == ["not run: the policy of this session requires a person's approval, and no person can be asked"] * 2
    )


def test_no_input_at_all_is_not_a_failure(zot: Callable[..., Zot]) -> None:
    assert zot().finish() == []


def test_an_answer_is_not_lost_when_the_input_ends_right_after_it(zot: Callable[..., Zot]) -> None:
    for _ in range(3):
        process = zot()
        process.send({"type": "get_state", "id": "1"}, prompt("!flood 20000"))
        frames = process.finish()
        assert types(frames)[:2] == ["get_state:ok", "prompt:ok"]
        assert len(text_of(frames)) == 20_000


# Signals.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_aborts_the_run_and_reports_it(zot: Callable[..., Zot], number: signal.Signals) -> None:
    process = zot()
    process.send(prompt("!slow 1000 0.01"), prompt("!say 1 never", "2"))
    process.until(type="text_delta")
    process.process.send_signal(number)
    tail = [frame for frame in process.rest() if frame["type"] != "text_delta"]
    assert types(tail) == ["prompt:failed", "usage", "assistant_message", "turn_end:aborted", "done"]
    assert process.wait(within_s=STOP_S) == 0
    process.grammar.finish()


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_signal_ends_tools_and_then_the_process(zot: Callable[..., Zot], *, stubborn: bool) -> None:
    mark = marked()
    process = zot()
    busy_in_bash(process, mark, stubborn=stubborn)
    began = time.monotonic()
    process.process.send_signal(signal.SIGTERM)
    assert types(process.rest()) == ["tool_result", "turn_end:aborted", "done"]
    assert process.wait(within_s=STOP_S) == 0
    assert time.monotonic() - began < STOP_S
    assert living(mark) == []


@pytest.mark.parametrize("scene", ["!stall", "!stall-mid", "!limit 60"])
def test_a_signal_ends_every_wait(zot: Callable[..., Zot], scene: str) -> None:
    process = zot()
    process.send(prompt(scene))
    process.until(type="turn_start")
    process.process.send_signal(signal.SIGTERM)
    assert types(process.rest())[-2:] == ["turn_end:aborted", "done"]
    assert process.wait(within_s=STOP_S) == 0


def test_a_signal_when_idle_ends_it_quietly(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.ask({"type": "get_state"})
    process.process.send_signal(signal.SIGTERM)
    assert process.rest() == []
    assert process.wait(within_s=STOP_S) == 0
    assert process.errors() == ""


@pytest.mark.parametrize("signals", [1, 2])
def test_a_second_signal_ends_it_without_waiting(zot: Callable[..., Zot], signals: int) -> None:
    """Its last words have no reader here: after one signal it offers them for half a second, after two it leaves."""

    def waited() -> bool:
        process = zot()
        process.send(prompt("!flood 1000000"))
        assert eventually(lambda: unread_bytes(process) > PIPE_BYTES - 2 * 4096)
        began = time.monotonic()
        # Two of the same kind could become one on their way.
        for number in (signal.SIGTERM, signal.SIGINT)[:signals]:
            process.process.send_signal(number)
        assert process.wait(within_s=STOP_S) == 0
        return time.monotonic() - began > 0.5

    # A machine that is busy may keep one that does not wait, but not all of them.
    assert waited() if signals == 1 else not all(waited() for _ in range(5))


def unread_bytes(process: Zot) -> int:
    """Return how much of its output waits in the pipe."""
    assert process.process.stdout is not None
    size = array("i", [0])
    fcntl.ioctl(process.process.stdout, termios.FIONREAD, size)
    return size[0]


def test_a_signal_in_the_first_moments_ends_it_without_a_traceback(tmp_path: Path) -> None:
    """The signal arrives while zot reads its first lines, before there is an event loop."""
    probe = (
        "import os, signal, zot.commands.rpc as rpc, zot.serve.stdio as stdio\n"
        "stdio.answer_early = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\n"
        "rpc.main(['--provider', 'lab'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=tmp_path, env=environment({}), capture_output=True, timeout=15, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# No client.


def long_work(mark: str) -> str:
    """Return the line that makes it run a command for ten minutes."""
    return json.dumps(prompt(f"!bash export {mark}=1; sleep 600 & echo up; sleep 600"))


def test_it_ends_when_its_output_is_closed(zot: Callable[..., Zot]) -> None:
    mark = marked()
    process = zot()
    busy_in_bash(process, mark)
    assert process.process.stdout is not None
    process.process.stdout.close()
    assert process.wait(within_s=STOP_S) == 0
    assert living(mark) == []


def test_it_ends_when_its_output_is_closed_while_streaming(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.send(prompt("!slow 100000 0.001"))
    process.until(type="text_delta")
    assert process.process.stdout is not None
    process.process.stdout.close()
    assert process.wait(within_s=STOP_S) == 0


def test_it_ends_when_its_client_is_killed(tmp_path: Path) -> None:
    """The client holds both pipes; its exit closes the reader and the writer."""
    mark = marked()
    client = (
        "import subprocess, sys\n"
        "zot = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "zot.stdin.write(sys.argv[1].encode() + b'\\n')\n"
        "zot.stdin.flush()\n"
        "for line in zot.stdout:\n"
        "    if b'tool_progress' in line:\n"
        "        print(zot.pid, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", client, long_work(mark), *command()],
        cwd=tmp_path,
        env=environment({}),
        stdout=subprocess.PIPE,
    ) as killed:
        assert killed.stdout is not None
        pid = int(killed.stdout.readline())
        assert eventually(lambda: living(mark) != [])
        killed.kill()
    assert eventually(lambda: not Path(f"/proc/{pid}/fd/0").exists() and living(mark) == [], within_s=STOP_S)


def test_it_ends_when_its_input_has_ended_and_its_parent_with_it(tmp_path: Path) -> None:
    """Another process still reads its output, but its parent has exited: no process will ever stop it."""
    mark = marked()
    ours, theirs = os.pipe()
    parent = (
        "import subprocess, sys\n"
        "zot = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE)\n"
        "zot.stdin.write(sys.argv[1].encode() + b'\\n')\n"
        "zot.stdin.close()\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent, long_work(mark), *command()],
        cwd=tmp_path,
        env=environment({}),
        stdin=subprocess.PIPE,
        stdout=theirs,
    ) as killed:
        os.close(theirs)
        assert eventually(lambda: living(mark) != [])
        killed.kill()
    output, deadline = b"", time.monotonic() + STOP_S
    while data := read_some(ours, deadline):  # Ends when the last writer has gone.
        output += data
    os.close(ours)
    assert output.endswith(b'{"type":"turn_end","stop":"aborted"}\n{"type":"done"}\n')
    assert living(mark) == []


def test_it_survives_its_parent_while_its_input_is_open(tmp_path: Path) -> None:
    """A launcher that hands its pipes over and leaves is no reason to end."""
    reading, writing = os.pipe()
    ours, theirs = os.pipe()
    launcher = (
        "import subprocess, sys\n"
        "subprocess.Popen(sys.argv[3:], stdin=int(sys.argv[1]), stdout=int(sys.argv[2]))\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", launcher, str(reading), str(theirs), *command()],
        cwd=tmp_path, env=environment({}), stdin=subprocess.PIPE, pass_fds=(reading, theirs),
    ) as killed:  # fmt: skip
        os.close(reading)
        os.close(theirs)
        os.write(writing, b'{"type":"get_state"}\n')
        hear(ours, b'"get_state"')
        killed.kill()
    os.write(writing, b'{"type":"prompt","message":"!slow 14 0.05"}\n')
    hear(ours, b'"done"')
    os.write(writing, b'{"type":"ping"}\n')
    hear(ours, b'"pong"')
    os.close(writing)
    assert read_some(ours, time.monotonic() + STOP_S) == b""
    os.close(ours)


def hear(descriptor: int, word: bytes) -> None:
    """Read until the output contains a word."""
    heard, deadline = b"", time.monotonic() + PATIENCE_S
    while word not in heard:
        data = read_some(descriptor, deadline)
        assert data, f"the output ended before {word!r}"
        heard += data
