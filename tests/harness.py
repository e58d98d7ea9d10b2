"""Conversations with the real `zot rpc`: a process, its pipes, and the expected frames."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import re
import resource
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from grammar import Grammar
from zot.providers.lab.http_server import serve
from zot.providers.lab.script import Script
from zot.providers.lab.stage import LabService

if TYPE_CHECKING:
    from forked import Forked, ForkServer

Frame: TypeAlias = dict[str, Any]

#: How long anything may take before a test fails. Never how long it does take.
PATIENCE_S = 60.0
#: In the environment of every process the tests start, so that leftovers can be found.
MARK = "ZOT_TEST_RUN"
_READ_BYTES = 1 << 16


class Late(AssertionError):
    """A deadline of the test passed."""


class Zot:
    """A running `zot rpc` that reads and writes pipes. Its output is checked against the order of frames."""

    def __init__(
        self,
        *flags: str,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        fork_server: ForkServer | None = None,
        **popen: Any,
    ) -> None:
        """Start it: from the ``fork_server`` if given and only pipes are needed, else as a fresh process."""
        self.process: subprocess.Popen[bytes] | Forked
        variables = environment(env or {})
        if fork_server is not None and not popen and may_be_forked(variables):
            self.process = fork_server.fork(command(*flags)[3:], cwd, variables)
        else:
            given = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
            self.process = subprocess.Popen(command(*flags), cwd=cwd, env=variables, bufsize=0, **given)
        self.frames: list[Frame] = []
        self.grammar = Grammar()
        self._unread = bytearray()
        self._lines: list[bytes] = []

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, *commands: Frame | bytes) -> None:
        """Write commands, or raw lines, in one write."""
        lines = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in commands)
        self.write(b"".join(line + b"\n" for line in lines))

    def write(self, data: bytes) -> None:
        """Write bytes. Raise Late if they are not taken in time."""
        assert self.process.stdin is not None
        descriptor = self.process.stdin.fileno()
        os.set_blocking(descriptor, False)
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        view = memoryview(data)
        deadline = time.monotonic() + PATIENCE_S
        while view:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise Late("nothing was read in time")
            view = view[os.write(descriptor, view) :]

    def hang_up(self) -> None:
        """End its input."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def read(self, *, within_s: float = PATIENCE_S) -> Frame:
        """Return the next frame. Raise EOFError at the end, Late if it does not arrive in time."""
        frame: Frame = json.loads(self.read_line(within_s=within_s))
        self.grammar.take(frame)
        self.frames.append(frame)
        return frame

    def read_line(self, *, within_s: float = PATIENCE_S) -> bytes:
        deadline = time.monotonic() + within_s
        assert self.process.stdout is not None
        while not self._lines:
            data = read_some(self.process.stdout.fileno(), deadline)
            if not data:
                assert not self._unread, f"the output ends inside a line: {bytes(self._unread)[-200:]!r}"
                raise EOFError
            *lines, rest = (self._unread + data).split(b"\n")
            self._unread, self._lines = bytearray(rest), [bytes(line) for line in lines]
        return self._lines.pop(0)

    def until(self, **wanted: Any) -> list[Frame]:
        """Return the frames up to and including the first that has these values."""
        frames = [self.read()]
        while not all(frames[-1].get(key) == value for key, value in wanted.items()):
            frames.append(self.read())
        return frames

    def ask(self, command: Frame | bytes) -> Frame:
        """Send one command and return its answer, which must be the very next frame."""
        self.send(command)
        answer = self.read()
        assert answer["type"] == "response", answer
        return answer

    def rest(self) -> list[Frame]:
        """Return the frames up to the end of the output."""
        frames = []
        while True:
            try:
                frames.append(self.read())
            except EOFError:
                return frames

    def finish(self) -> list[Frame]:
        """Close the input, return the remaining frames, and check for a clean exit."""
        self.hang_up()
        frames = self.rest()
        assert self.wait() == 0, self.errors()
        self.grammar.finish()
        return frames

    def wait(self, *, within_s: float = PATIENCE_S) -> int:
        """Return the exit code."""
        return self.process.wait(within_s)

    def errors(self) -> str:
        """Return its standard error, once it has ended."""
        assert self.process.stderr is not None
        said: bytes = self.process.stderr.read()
        return said.decode()

    def close(self) -> None:
        """Kill the process and close its pipes, in any state."""
        self.process.kill()
        self.process.wait(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def command(*flags: str) -> list[str]:
    """Return the command line of `zot rpc`; with lab, unless the flags name a provider."""
    provider = () if "--provider" in flags else ("--provider", "lab")
    return [sys.executable, "-m", "zot", "rpc", *provider, *flags]


def may_be_forked(env: Mapping[str, str]) -> bool:
    """False if these variables change how the interpreter starts or is found."""
    is_usual = env.get("LC_ALL") == "C.UTF-8" and not any(name.startswith("PYTHON") for name in env)
    # A process is found by its mark only if it was started with it.
    return is_usual and env.get(MARK) == os.environ.get(MARK)


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return a small environment: no home, no keys, only the variables that a process needs to start."""
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", MARK) if name in os.environ}
    return {**kept, "LC_ALL": "C.UTF-8", **more}


@contextmanager
def at_home(home: Path) -> Iterator[None]:
    """Let zot in this process use ``home`` as its home, unless one is set."""
    if "ZOT_HOME" in os.environ:
        yield
        return
    os.environ["ZOT_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["ZOT_HOME"]


def read_some(descriptor: int, deadline: float) -> bytes:
    """Return available bytes, waiting until the deadline; b"" at the end."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise Late("nothing was said in time")
    return os.read(descriptor, _READ_BYTES)


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """Play a script as a model service on a socket of its own; give its address."""
    started: queue.Queue[tuple[str, Callable[[], object]]] = queue.Queue()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        stop = partial(loop.call_soon_threadsafe, task.cancel)
        with suppress(asyncio.CancelledError):
            await serve(LabService(script), host="127.0.0.1", port=0, ready=lambda url: started.put((url, stop)))

    thread = threading.Thread(target=asyncio.run, args=(main(),), name="lab server")
    thread.start()
    url, stop = started.get(timeout=PATIENCE_S)
    try:
        yield url
    finally:
        stop()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


def play(zot: Zot, conversation: str) -> None:
    """Run a conversation as written.

    ``> {...}`` is sent; lines that follow each other go in one write. ``< {...}`` must be the next frame, and
    ``<* {...}`` may come any number of times. In a frame, ``...`` stands for any value or for any further keys.
    """
    sending: list[bytes] = []
    repeated: list[Frame] = []
    for line in (line.strip() for line in conversation.strip().splitlines()):
        kind, _, text = line.partition(" ")
        if kind == ">":
            sending.append(text.encode())
            continue
        if sending:
            zot.send(*sending)
            sending = []
        expected = _pattern(text)
        if kind == "<*":
            repeated.append(expected)
            continue
        assert kind == "<", line
        frame = zot.read()
        while any(matches(frame, pattern) for pattern in repeated) and not matches(frame, expected):
            frame = zot.read()
        assert matches(frame, expected), f"\nexpected {text}\n     got {json.dumps(frame)}"
        repeated = []
    assert not sending, "a conversation ends with an answer"


def matches(value: Any, pattern: Any) -> bool:
    """True if a value matches the pattern; "..." matches any value, and as a key any further keys."""
    if pattern == "...":
        return True
    if isinstance(pattern, dict) and isinstance(value, dict):
        keys = pattern.keys() - {"..."}
        complete = keys == value.keys() if "..." not in pattern else keys <= value.keys()
        return complete and all(matches(value[key], pattern[key]) for key in keys)
    if isinstance(pattern, list) and isinstance(value, list):
        return len(pattern) == len(value) and all(map(matches, value, pattern))
    return type(value) is type(pattern) and bool(value == pattern)


def _pattern(text: str) -> Frame:
    text = re.sub(r",\s*\.\.\.\s*}", ',"...":"..."}', text)
    pattern: Frame = json.loads(re.sub(r"([:\[,])\s*\.\.\.", r'\1"..."', text))
    return pattern


def types(frames: Sequence[Frame]) -> list[str]:
    """Return the names of frames; a response is named by its command, an end by its reason."""
    return [_name(frame) for frame in frames]


def _name(frame: Frame) -> str:
    match frame["type"]:
        case "response":
            return f"{frame['command']}:{'ok' if frame['success'] else 'failed'}"
        case "turn_end":
            return f"turn_end:{frame['stop']}"
        case name:
            return str(name)


def text_of(frames: Sequence[Frame]) -> str:
    """Return the model's text."""
    return "".join(frame["delta"] for frame in frames if frame["type"] == "text_delta")


def eventually(holds: Callable[[], bool], *, within_s: float = PATIENCE_S) -> bool:
    """Poll until ``holds``: for effects of other processes that send no event."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        select.select([], [], [], 0.01)
    return True


def living(mark: str) -> list[int]:
    """Return the living processes with ``mark`` in their environment."""
    return [pid for pid in _processes() if mark.encode() in _read(f"/proc/{pid}/environ")]


def located(place: Path) -> list[int]:
    """Return the processes that work in or below a directory, or name it in their command line."""
    inside = os.fsencode(place)
    return [
        pid for pid in _processes() if _directory(pid).startswith(inside) or inside in _read(f"/proc/{pid}/cmdline")
    ]


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(_read(f"/proc/{pid}/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def at_rest(pid: int) -> bool:
    """True if a process was idle for a tenth of a second, and not merely waiting for a busy CPU."""
    before = _used(pid)
    select.select([], [], [], 0.1)
    return before is not None and _used(pid) == before


def _used(pid: int) -> list[list[str]] | None:
    """Return the CPU time of each thread of a process; None if a thread is runnable."""
    threads = [
        _read(str(path)).decode().rpartition(")")[2].split() for path in Path(f"/proc/{pid}/task").glob("*/stat")
    ]
    return None if any(fields[:1] == ["R"] for fields in threads) else [fields[11:13] for fields in threads]


def _processes() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def _directory(pid: int) -> bytes:
    try:
        return os.readlink(b"/proc/%d/cwd" % pid)
    except OSError:  # it ended while we looked, or is not ours
        return b""


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # it ended while we looked, or is not ours
        return b""


@contextmanager
def limited(soft: int) -> Iterator[None]:
    """Limit the number of descriptors."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
