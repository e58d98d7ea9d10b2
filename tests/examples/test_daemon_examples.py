"""The daemon clients against a real daemon, through a proxy that cuts their connection in the middle."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self, TypeAlias

import pytest

from forked import Forked, ForkServer
from harness import PATIENCE_S, environment, eventually
from optional import available

EXAMPLES = Path(__file__).parents[2] / "examples" / "daemon"
Command: TypeAlias = Sequence[str | Path]
#: Which programs each client needs.
PROGRAMS = {"node": ("node",), "go": ("go",), "shell": ("bash", "socat", "jq")}
CLIENTS = [
    name for name, programs in PROGRAMS.items()
    if False not in {available(program, f"the daemon client in {name}") for program in programs}
]  # fmt: skip
WORDS = "".join(f"w{number} " for number in range(20))


class Ended(NamedTuple):
    """The final state of a client."""

    code: int
    out: str
    errors: str


class Place:
    """A short directory with the home of a daemon, which can be killed and started again."""

    def __init__(self, directory: Path, fork_server: ForkServer) -> None:
        self.directory = directory
        self.env = environment({"ZOT_HOME": str(directory / "home"), "HOME": str(directory)})
        self.socket = directory / "home" / "data" / "daemon.sock"
        self._fork_server = fork_server
        self.start()

    def start(self) -> None:
        """Start a daemon; return when it listens."""
        flags = ["--provider", "lab", "--policy", "bash:touch *=ask", "--policy", "*=allow"]
        self.daemon: Forked = self._fork_server.fork(["daemon", *flags], self.directory, self.env)
        assert eventually(self._is_listening)

    def _is_listening(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            probe.connect(str(self.socket))
            return True
        return False

    def stop(self, sent: signal.Signals = signal.SIGTERM) -> None:
        """End the daemon and wait for it."""
        self.daemon.send_signal(sent)
        self.daemon.communicate()

    def call(self, method: str, **params: object) -> dict[str, object]:
        """Call a method of the daemon and return its result."""
        process = self._fork_server.fork(["call", method, json.dumps(params)], self.directory, self.env)
        out, errors = process.communicate()
        assert process.returncode == 0, errors
        result: dict[str, object] = json.loads(out)
        return result


@pytest.fixture(scope="module")
def place(fork_server: ForkServer) -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as directory:
        place = Place(Path(directory), fork_server)
        try:
            yield place
        finally:
            place.stop()


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest, place: Place) -> Command:
    """The command line of a client."""
    if request.param == "node":
        return ("node", EXAMPLES / "node" / "client.mjs")
    if request.param == "shell":
        return (EXAMPLES / "shell" / "client.sh",)
    go = environment({"GOFLAGS": "-mod=mod", "GOPROXY": "off", "CGO_ENABLED": "0"})
    go |= {name: str(place.directory / name.lower()) for name in ("GOCACHE", "GOPATH")}
    program = place.directory / "client"
    subprocess.run(["go", "build", "-o", program, "."], cwd=EXAMPLES / "go", env=go, check=True, timeout=120)
    return (program,)


#: Decides about the bytes that travel one way on the first connection: how many pass before it is cut; None for all.
Cut: TypeAlias = Callable[[bytes], int | None]


class Proxy:
    """A socket before the daemon's. It cuts its first connection where a rule tells it to, and serves later ones."""

    def __init__(self, place: Place, *, to_client: Cut | None = None, to_daemon: Cut | None = None) -> None:
        self._target = place.socket
        self._cuts = to_client, to_daemon
        self._listener = socket.socket(socket.AF_UNIX)
        self.path = place.directory / f"{uuid.uuid4().hex[:8]}.sock"
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._threads: list[threading.Thread] = []
        self._sockets = [self._listener]
        self.connections = 0

    def __enter__(self) -> Self:
        self._go(self._serve)
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for each in self._sockets:
            each.close()

    def _go(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        with suppress(OSError):  # the end of the listener
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                self._sockets += near, far
                if not near.recv(1, socket.MSG_PEEK):  # it only wanted to know whether it could connect
                    continue
                far.connect(str(self._target))
                self.connections += 1
                to_client, to_daemon = self._cuts if self.connections == 1 else (None, None)
                self._go(self._pump, far, near, to_client)
                self._go(self._pump, near, far, to_daemon)

    def _pump(self, source: socket.socket, sink: socket.socket, cut: Cut | None) -> None:
        seen, passed = b"", 0
        with suppress(OSError):
            while data := source.recv(1 << 16):
                seen += data
                limit = None if cut is None else cut(seen)
                sink.sendall(seen[passed:limit])
                passed = len(seen)
                if limit is not None:
                    break
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def inside(mark: bytes) -> Cut:
    """Cut in the middle of the line that has ``mark``."""
    return lambda seen: seen.index(mark) if mark in seen else None


def before(mark: bytes) -> Cut:
    """Cut before the line that has ``mark``: nothing of it passes."""
    return lambda seen: seen.rindex(b"\n", 0, seen.index(mark)) + 1 if mark in seen else None


@contextmanager
def started(client: Command, place: Place, path: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*client, *words], cwd=place.directory, env=place.env | {"ZEROCLAW_SOCKET": str(path)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run(client: Command, place: Place, *words: str, path: Path | None = None) -> Ended:
    with started(client, place, path or place.socket, *words) as process:
        out, errors = process.communicate(timeout=2 * PATIENCE_S)
        return Ended(process.returncode, out.decode(), errors.decode())


def prompts(place: Place, session: str) -> list[object]:
    """Return the prompts of users in a session."""
    messages = place.call("session/messages", sessionId=session)["messages"]
    assert isinstance(messages, list)
    return [message["content"] for message in messages if message["role"] == "user"]


def until(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    """Read standard output up to ``text``."""
    assert process.stdout is not None
    seen = b""
    while text not in seen:
        data = os.read(process.stdout.fileno(), 4096)
        assert data, f"it ended with {seen!r}"
        seen += data
    return seen


@pytest.fixture
def session() -> str:
    return uuid.uuid4().hex


def test_a_client_prints_text_as_it_comes_and_the_tools_that_are_used(
    client: Command, place: Place, session: str
) -> None:
    ended = run(client, place, session, "!bash echo hi")
    assert ended == (0, "Running it.\nfinished.\n", '[bash] {"command":"echo hi"}\n[ok]\n')


@pytest.mark.parametrize(
    "mark",
    [b'"capabilities"', b'"workspaceDir"', b'"state":"running"', b'"text":"w7 "', b'"outcome":"completed"'],
    ids=["greeted", "opened", "begun", "speaking", "over"],
)
def test_a_client_whose_connection_is_cut_misses_nothing_and_repeats_nothing(
    client: Command, place: Place, session: str, mark: bytes
) -> None:
    with Proxy(place, to_client=inside(mark)) as proxy:
        ended = run(client, place, session, "!slow 20 0.01", path=proxy.path)
    assert ended == (0, f"{WORDS}\n", "")
    assert proxy.connections == 2
    assert prompts(place, session) == ["!slow 20 0.01"]


def test_a_client_reports_that_its_prompt_never_arrived(client: Command, place: Place, session: str) -> None:
    with Proxy(place, to_daemon=before(b'"session/prompt"')) as proxy:
        code, out, errors = run(client, place, session, "!echo hi", path=proxy.path)
    assert (code, out) == (1, "")
    assert errors.endswith("the daemon never got the prompt; send it again\n")
    assert prompts(place, session) == []


def test_a_client_survives_a_killed_daemon_and_learns_how_its_turn_ended(
    client: Command, place: Place, session: str
) -> None:
    with started(client, place, place.socket, session, "!slow 2000 0.01") as process:
        until(process, b"w1 ")
        place.stop(signal.SIGKILL)
        place.start()
        _, errors = process.communicate(timeout=2 * PATIENCE_S)
    assert (process.returncode, errors) == (130, b"")


def test_a_client_sends_a_prompt_that_a_stopping_daemon_returns_to_the_next_one(
    client: Command, place: Place, session: str
) -> None:
    with started(client, place, place.socket, session, "!slow 2000 0.01") as first:
        until(first, b"w1 ")
        with started(client, place, place.socket, session, "!echo second") as second:
            assert eventually(lambda: place.call("session/state", sessionId=session)["queued"] == 1)
            place.stop()
            place.start()
            assert second.communicate(timeout=2 * PATIENCE_S) == (b"second\n", b"")
        assert first.wait(2 * PATIENCE_S) == 130
    assert prompts(place, session) == ["!slow 2000 0.01", "!echo second"]


def test_a_client_distinguishes_its_own_turn_from_those_of_others(client: Command, place: Place, session: str) -> None:
    def queued(number: int) -> bool:
        return place.call("session/state", sessionId=session)["queued"] == number

    with started(client, place, place.socket, session, "!slow 2000 0.01") as first:
        until(first, b"w1 ")
        with started(client, place, place.socket, session, "!echo second") as second:
            assert eventually(lambda: queued(1))
            with started(client, place, place.socket, session, "!echo third") as third:
                assert eventually(lambda: queued(2))
                first.send_signal(signal.SIGINT)
                assert third.communicate(timeout=2 * PATIENCE_S) == (b"third\n", b"")
            assert second.communicate(timeout=2 * PATIENCE_S) == (b"second\n", b"")
        assert first.wait(2 * PATIENCE_S) == 130


@pytest.mark.parametrize(("flags", "result"), [((), "[failed]"), (("--approve",), "[ok]")], ids=["rejects", "allows"])
def test_a_client_answers_approvals(
    client: Command, place: Place, session: str, flags: tuple[str, ...], result: str
) -> None:
    command = '[bash] {"command":"touch made"}\n[approve?] bash: touch made\n'
    assert run(client, place, session, "!bash touch made", *flags).errors == f"{command}{result}\n"


def test_a_client_cancels_its_turn_on_ctrl_c(client: Command, place: Place, session: str) -> None:
    with started(client, place, place.socket, session, "!bash echo $$ >tool; exec sleep 600") as process:
        until(process, b"Running it.")
        tool = place.directory / "tool"
        assert eventually(lambda: tool.exists() and tool.read_text().endswith("\n"))
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=2 * PATIENCE_S)
    assert process.returncode == 130
    assert not Path(f"/proc/{tool.read_text().strip()}").exists()
    tool.unlink()


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("!status 401", "lab: http 401: status 401, as scripted\n"),
        ("", "the prompt is empty; give it a message or images\n"),
    ],
    ids=["failed", "refused"],
)
def test_a_client_prints_the_error(client: Command, place: Place, session: str, prompt: str, message: str) -> None:
    code, _, errors = run(client, place, session, prompt)
    assert (code, errors.removeprefix("client.mjs: ").removeprefix("client.sh: ")) == (1, message)


def test_a_client_reports_a_missing_daemon(client: Command, place: Place, session: str) -> None:
    code, out, errors = run(client, place, session, "hi", path=place.directory / "none.sock")
    assert (code, out, errors.count("\n")) == (3, "", 1)
    assert "none.sock" in errors


def test_a_client_cuts_lines_at_lf_only_however_long_they_are(client: Command, place: Place, session: str) -> None:
    text = 'a\u2028b\u2029c\u0085d\' "$HOME" ' + "x" * 50_000
    assert run(client, place, session, f"!echo {text}") == (0, f"{text}\n", "")
