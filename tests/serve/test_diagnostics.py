"""Standard error that is unread, closed, broken or full: nothing waits for it, and nothing fails because of it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from daemons import Caller
from harness import Late, Zot, environment, read_some
from zot.serve.stdio import Diagnostics

#: Only a safety net: how long anything may take on a busy machine.
WITHIN_S = 30.0
DROPPED = re.compile(r"zot: (\d+) lines? (?:was|were) dropped here: standard error was not read in time")


def pipes() -> tuple[int, int]:
    return os.pipe()


def sockets() -> tuple[int, int]:
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


def terminals() -> tuple[int, int]:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    return ours, theirs


KINDS = [pipes, sockets, terminals]


@contextmanager
def stream(kind: Callable[[], tuple[int, int]]) -> Iterator[tuple[int, Diagnostics]]:
    """Give the reader's end of a stream, and the diagnostics that are written to the other."""
    ours, theirs = kind()
    before = fcntl.fcntl(theirs, fcntl.F_GETFL)
    try:
        yield ours, Diagnostics(theirs)
        assert fcntl.fcntl(theirs, fcntl.F_GETFL) == before
    finally:
        with suppress(OSError):
            os.close(ours)
        os.close(theirs)


def read_until(descriptor: int, is_enough: Callable[[str], bool]) -> str:
    """Read until there is enough text."""
    said, deadline = b"", time.monotonic() + WITHIN_S
    while not is_enough(said.decode()):
        said += read_some(descriptor, deadline)
    return said.decode()


# The stream itself.


@pytest.mark.parametrize("kind", KINDS)
def test_lines_beyond_the_limit_are_dropped_and_counted_when_the_reader_returns(
    kind: Callable[[], tuple[int, int]],
) -> None:
    with stream(kind) as (reader, errors):
        for number in range(20_000):
            errors.write(f"line {number} {'x' * 90}\n")
        said = read_until(reader, lambda said: bool(DROPPED.search(said)))
        *lines, report = said.splitlines()
        dropped = DROPPED.fullmatch(report)
        assert dropped is not None
        assert lines == [f"line {number} {'x' * 90}" for number in range(len(lines))]
        assert len(lines) + int(dropped[1]) == 20_000
        errors.write("and on\n")
        assert read_until(reader, lambda said: "\n" in said) == "and on\n"


@pytest.mark.parametrize("kind", KINDS)
def test_delayed_lines_arrive_without_another_line(kind: Callable[[], tuple[int, int]]) -> None:
    """More than any of them holds, in one piece, so that nothing is dropped."""
    with stream(kind) as (reader, errors):
        text = "".join(f"line {number}\n" for number in range(60_000))
        errors.write(text)
        assert read_until(reader, lambda said: len(said) >= len(text)) == text


def test_prints_warnings_and_logs_of_many_threads_wait_for_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    with stream(pipes) as (reader, errors):
        monkeypatch.setattr(sys, "stderr", errors)
        log = logging.Logger("apart")
        log.addHandler(logging.lastResort or logging.NullHandler())

        def write() -> None:
            for number in range(2000):
                print("printed", "x" * 50, file=sys.stderr)
                log.warning("logged %d", number)

        threads = [threading.Thread(target=write, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WITHIN_S)
        assert not any(thread.is_alive() for thread in threads)
        said = read_until(reader, lambda said: bool(DROPPED.search(said)))
        assert "logged 0\n" in said


def test_an_unfinished_line_leaves_when_it_is_flushed() -> None:
    with stream(pipes) as (reader, errors):
        errors.write("key: ")
        with pytest.raises(Late):
            read_some(reader, 0)
        errors.flush()
        assert os.read(reader, 100) == b"key: "


def test_at_exit_the_reader_gets_a_short_grace_period() -> None:
    with stream(pipes) as (reader, errors):
        errors.write("x" * 100_000 + "\n")
        errors.drain(within_s=0.01)  # Returns although the pipe has no reader.
        reading = threading.Thread(target=read_until, args=(reader, lambda said: said.endswith("\n")), daemon=True)
        reading.start()
        errors.drain(within_s=WITHIN_S)
        reading.join(WITHIN_S)
        assert not reading.is_alive()


def test_a_closed_reader_is_not_an_error() -> None:
    with stream(pipes) as (reader, errors):
        os.close(reader)
        errors.write("one\n")
        errors.write("two\n")
        errors.drain(within_s=WITHIN_S)


def test_a_full_disk_costs_the_lines_that_did_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "log", "wb", buffering=0) as file:
        errors, is_full, write = Diagnostics(file.fileno()), True, os.write

        def limited(descriptor: int, data: bytes) -> int:
            if is_full:
                raise OSError(28, "No space left on device")
            return write(descriptor, data)

        monkeypatch.setattr(os, "write", limited)
        errors.write("lost\n")
        errors.write("lost, too\n")
        is_full = False
        errors.write("kept\n")
    first, second = (tmp_path / "log").read_text().splitlines()
    assert DROPPED.sub(r"\1", first) == "2"
    assert second == "kept"


# Every command.


@contextmanager
def unread() -> Iterator[tuple[int, int]]:
    """Give both ends of a pipe that has no room."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for size in (4096, 1):
        with suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(size))
    os.set_blocking(writing, True)
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


@contextmanager
def gone() -> Iterator[int]:
    """Return a pipe that no process reads."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


def zot(directory: Path, *argv: str, redirections: str = "", **popen: Any) -> subprocess.Popen[bytes]:
    """Start a command, perhaps with descriptors that a shell closes or redirects."""
    shell = ["/bin/sh", "-c", f'exec "$@" {redirections}', "sh"] if redirections else []
    env = environment({"ZOT_HOME": str(directory / "home"), "HOME": str(directory)})
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **popen}
    return subprocess.Popen([*shell, sys.executable, "-m", "zot", *argv], cwd=directory, env=env, **given)


async def caller_of(path: Path, process: subprocess.Popen[bytes]) -> Caller:
    """Return a client of a daemon, as soon as it listens."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            assert process.poll() is None, process.returncode
            with suppress(OSError):
                caller = Caller(*await asyncio.open_unix_connection(str(path)))
                await caller.get("initialize", protocolVersion=1)
                return caller
            await asyncio.sleep(0.01)


async def served_and_ended(directory: Path, process: subprocess.Popen[bytes]) -> None:
    """See that a daemon serves its clients and ends on a signal."""
    try:
        for number in range(2):
            caller = await caller_of(directory / "home" / "data" / "daemon.sock", process)
            await caller.get("session/new", agentAlias="default", sessionId=f"s{number}")
            answer = await caller.get("session/prompt", sessionId=f"s{number}", prompt="!bash true")
            assert answer["stopReason"] == "end_turn"
            await caller.close()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, WITHIN_S) == 0
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


async def test_a_daemon_whose_errors_are_not_read_serves_and_ends(tmp_path: Path) -> None:
    with unread() as (_, writing):
        # A denied call is logged.
        process = zot(tmp_path, "daemon", "--provider", "lab", "--policy", "bash=deny", stderr=writing)
        await served_and_ended(tmp_path, process)


@pytest.mark.parametrize("redirections", ["2>&-", "<&- 2>&-", "<&- >&- 2>&-", "2>/dev/full"])
async def test_a_daemon_needs_no_standard_streams(tmp_path: Path, redirections: str) -> None:
    process = zot(
        tmp_path, "daemon", "--provider", "lab", "--policy", "bash=deny",
        redirections=redirections, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    await served_and_ended(tmp_path, process)


async def test_a_daemon_outlives_the_reader_of_its_errors(tmp_path: Path) -> None:
    with gone() as writing:
        process = zot(tmp_path, "daemon", "--provider", "lab", "--policy", "bash=deny", stderr=writing)
        await served_and_ended(tmp_path, process)


RETRIED = b'{"type":"prompt","message":"!limit 0"}\n'  # Each retry is logged.
REQUEST = b'{"request_id":"r","session_id":"s","prompt":"!bash true"}\n'  # So is a denied call.
#: A command, what it reads, and what its output has if it did its work.
COMMANDS = {
    "rpc": (("rpc", "--provider", "lab"), RETRIED, b'"done"'),
    "-p": (("-p", "!limit 0", "--provider", "lab"), b"", b"Answered"),
    "--json": (("--json", "!limit 0", "--provider", "lab"), b"", b'"done"'),
    "host": (("host", "--provider", "lab"), REQUEST, b'"ok":true'),
    "many": (("host", "--single-request", "false", "--provider", "lab"), REQUEST, b'"ok":true'),
    "wrong usage": (("models", "--wat"), b"", b""),
}  # fmt: skip


@pytest.mark.parametrize("trouble", ["unread", "closed", "gone", "full"])
@pytest.mark.parametrize(("argv", "given", "answer"), COMMANDS.values(), ids=COMMANDS.keys())
def test_a_command_does_its_work_whatever_happened_to_standard_error(
    tmp_path: Path, argv: tuple[str, ...], given: bytes, answer: bytes, trouble: str
) -> None:
    with unread() as (_, jammed), gone() as broken:
        errors = {"unread": jammed, "gone": broken}.get(trouble, subprocess.DEVNULL)
        redirections = {"closed": "2>&-", "full": "2>/dev/full"}.get(trouble, "")
        process = zot(tmp_path, *argv, redirections=redirections, stdin=subprocess.PIPE, stderr=errors)
        try:
            out, _ = process.communicate(given, timeout=WITHIN_S)
        finally:
            process.kill()
            process.wait()
    assert answer in out
    assert process.returncode == (2 if argv[0] == "models" else 0)


def test_a_model_server_whose_errors_are_not_read_answers_and_ends(tmp_path: Path) -> None:
    with unread() as (_, writing), zot(tmp_path, "lab", "serve", stderr=writing) as process:
        try:
            assert process.stdout is not None
            assert read_some(process.stdout.fileno(), time.monotonic() + WITHIN_S).startswith(b"http://127.0.0.1:")
            process.send_signal(signal.SIGTERM)
            assert process.wait(WITHIN_S) == 0
        finally:
            process.kill()


LOUD = """\
#!/usr/bin/env python3
import json, sys
def say(**frame):
    print(json.dumps(frame), flush=True)
say(type="hello", name="e", capabilities=["commands"])
say(type="register_command", name="loud")
say(type="ready")
for line in sys.stdin:
    frame = json.loads(line)
    if frame["type"] == "command_invoked":
        for _ in range(100):
            say(type="notify", message="x" * 4000)
        say(type="command_response", id=frame["id"], action="display", display="done")
    elif frame["type"] == "shutdown":
        say(type="shutdown_ack")
        break
"""


def test_a_process_reports_what_it_dropped_once_it_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "run").write_text(LOUD)
    (tmp_path / "run").chmod(0o755)
    (tmp_path / "extension.json").write_text('{"name": "e", "exec": "./run"}')
    with Zot("--ext", str(tmp_path), cwd=tmp_path) as process:
        assert isinstance(process.process, subprocess.Popen)
        assert process.process.stderr is not None
        process.send({"type": "run_command", "id": "1", "name": "loud"})
        assert process.until(type="response", id="1")[-1]["success"] is True
        process.send({"type": "prompt", "id": "2", "message": "!echo still here"})
        process.until(type="done")
        said = read_until(process.process.stderr.fileno(), lambda said: bool(DROPPED.search(said)))
        assert said.count("[e] info: ") > 10
        process.finish()


def test_the_signals_of_a_process_with_unread_errors_end_it(tmp_path: Path) -> None:
    with unread() as (_, writing), Zot(cwd=tmp_path, stderr=writing) as process:
        process.send({"type": "prompt", "message": "!limit 0"})
        process.until(type="done")
        process.process.send_signal(signal.SIGTERM)
        assert process.wait(within_s=WITHIN_S) == 0


def test_a_warning_never_reaches_the_output(tmp_path: Path) -> None:
    """A stray print of ours is written where every diagnostic is."""
    probe = (
        "import sys, zot.cli, zot.serve.stdio as stdio\n"
        "early = stdio.answer_early\n"
        "def answer_early(*args):\n"
        "    import warnings\n"
        "    for _ in range(3000): print('x' * 100); warnings.warn('w' * 100 + str(_), stacklevel=1)\n"
        "    return early(*args)\n"
        "stdio.answer_early = answer_early\n"
        "sys.argv = ['zot', 'rpc', '--provider', 'lab']\n"
        "zot.cli.main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", probe], cwd=tmp_path, env=environment({}), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"type":"ping"}\n')
        process.stdin.close()
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        assert poll.poll(WITHIN_S * 1000)
        assert json.loads(process.stdout.readline())["command"] == "ping"
        assert process.wait(WITHIN_S) == 0
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
