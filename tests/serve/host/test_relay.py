"""`zot host --via-daemon`: the daemon answers; without one, the request runs in this process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from daemon_fake import FakeDaemon
from forked import Forked, ForkServer
from harness import PATIENCE_S, environment, eventually
from hosts import NOTHING, Hosts, Told, failure, request, told
from timing import Stopwatch

ANSWER = {
    "ok": True, "request_id": "r", "session_id": "s", "text": "told by the daemon", "error_code": None,
    "error_message": None, "usage": NOTHING,
}  # fmt: skip
GREETING = {"protocolVersion": 1, "serverVersion": "1", "serverPid": 1, "capabilities": []}


class Relays:
    """Starts `zot host --via-daemon`, and daemons, in one home, where lab is configured."""

    def __init__(self, directory: Path, fork_server: ForkServer) -> None:
        self.hosts = Hosts(directory, fork_server)
        self.directory = directory
        self.socket = self.hosts.home / "data" / "daemon.sock"
        self.socket.parent.mkdir(parents=True)
        (self.hosts.home / "config.toml").write_text('[agents.default]\nprovider = "lab"\n')
        self.env = environment({"ZOT_HOME": str(self.hosts.home)})
        self._fork_server = fork_server

    def start(self, *flags: str, **env: str) -> Forked:
        return self._fork_server.fork(["host", *flags], self.directory, {**self.env, **env})

    def ask(self, given: dict[str, Any], *flags: str, **env: str) -> Told:
        return told(self.start(*(flags or ("--via-daemon",)), **env), given)

    @contextmanager
    def daemon(self, *flags: str) -> Iterator[Forked]:
        daemon = self._fork_server.fork(["daemon", *flags], self.directory, self.env)
        try:
            assert eventually(self.socket.exists)
            yield daemon
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.communicate()


@pytest.fixture
def relays(tmp_path: Path, fork_server: ForkServer) -> Relays:
    return Relays(tmp_path, fork_server)


def test_the_daemon_answers_and_is_notified_of_the_delivery(relays: Relays) -> None:
    given = request("hello", timeout_ms=5000, channel_id="c")
    with FakeDaemon(
        str(relays.socket),
        {"initialize": GREETING, "host/respond": {"response": ANSWER, "code": 3}},
    ) as daemon:
        answered = relays.ask(given)
        assert (answered.answer, answered.code, answered.errors) == (ANSWER, 3, "")
        assert eventually(lambda: len(daemon.asked) == 3)
    (first, _), (second, asked), (third, heard) = daemon.asked
    assert (first, second, third, heard) == ("initialize", "host/respond", "host/delivered", {"requestId": "r"})
    assert 0 < asked.pop("ageMs") < 5000
    assert asked.pop("idempotency_key").startswith("relayed:")
    assert asked == given


def test_a_daemon_that_refuses_counts_as_absent(relays: Relays) -> None:
    with FakeDaemon(str(relays.socket), {"initialize": GREETING, "host/respond": -32601}):
        assert relays.ask(request("!echo here")).answer["text"] == "here"
    assert relays.ask(request("!echo there")).answer["text"] == "there"


def test_a_real_daemon_gives_the_same_answer_and_conversation(relays: Relays) -> None:
    with relays.daemon():
        first = relays.ask(request("!echo one", key="k"))
        again = relays.ask(request("!echo one", key="k"))
        bad = relays.ask({"request_id": "r"})
        late = relays.ask(request("!stall", timeout_ms=400))
    assert (first.answer["text"], first.code) == ("one", 0)
    assert again.answer == {**first.answer, "replayed": True}
    assert (failure(bad.answer), bad.code) == (("INVALID_REQUEST", "session_id is missing"), 2)
    assert (failure(late.answer)[0], late.code) == ("TIMEOUT", 0)
    after = relays.ask(request("!echo one", key="k"))
    assert after.answer == again.answer
    assert relays.hosts.transcript()[:2] == [("user", "!echo one"), ("assistant", "one")]


def test_a_request_continues_here_when_the_daemon_dies_and_is_not_sent_twice(relays: Relays) -> None:
    with relays.daemon() as daemon:
        process = relays.start("--via-daemon")
        process.stdin.write(b'{"request_id":"r","session_id":"s","prompt":"!slow 10 0.05"}\n')
        process.stdin.flush()
        assert eventually(lambda: b"!slow 10" in _contents(relays.hosts.home))
        daemon.kill()
        daemon.wait(PATIENCE_S)
        answered = told(process, b"")
    assert (answered.answer["ok"], answered.code) == (True, 0)
    assert [said for who, said in relays.hosts.transcript() if who == "user"] == ["!slow 10 0.05"]


@pytest.mark.parametrize("is_replaced", [False, True], ids=["stopped", "replaced"])
@pytest.mark.parametrize("key", ["k", None])
def test_a_request_continues_when_the_daemon_ends_and_is_not_sent_twice(
    relays: Relays, key: str | None, is_replaced: bool
) -> None:
    (relays.hosts.home / "config.toml").write_text('[agents.default]\nprovider = "lab"\n[daemon]\ngrace_s = 0\n')
    with relays.daemon() as daemon:
        process = relays.start("--via-daemon")
        process.stdin.write(json.dumps(request("!slow 30 0.03", key=key, timeout_ms=30_000)).encode() + b"\n")
        process.stdin.flush()
        assert eventually(lambda: b"!slow 30" in _contents(relays.hosts.home))
        if not is_replaced:
            daemon.send_signal(signal.SIGTERM)
        with relays.daemon("--replace") if is_replaced else nullcontext():
            answered = told(process, b"")
    assert (answered.answer["error_message"], answered.code, answered.errors) == (None, 0, "")
    said = "".join(f"w{n} " for n in range(30))
    assert answered.answer["text"] == said
    assert relays.hosts.transcript() == [("user", "!slow 30 0.03"), ("assistant", said)]


def test_a_request_returned_by_a_daemon_goes_to_the_next_one_with_the_same_key(relays: Relays) -> None:
    with FakeDaemon(str(relays.socket), {"initialize": GREETING, "host/respond": -32005}) as daemon:
        here = relays.ask(request("!echo here"))  # In the end we do it by ourselves.
    keys = [asked["idempotency_key"] for method, asked in daemon.asked if method == "host/respond"]
    assert (here.answer["text"], len(keys), len(set(keys))) == ("here", 3, 1)


def test_a_signal_is_answered_while_the_daemon_works(relays: Relays) -> None:
    with relays.daemon():
        process = relays.start("--via-daemon")
        process.stdin.write(b'{"request_id":"r","session_id":"s","prompt":"!stall"}\n')
        process.stdin.flush()
        assert eventually(lambda: b"!stall" in _contents(relays.hosts.home))
        process.send_signal(signal.SIGTERM)
        answered = told(process, b"")
        after = relays.ask(request("!echo free", timeout_ms=5000))
    assert (failure(answered.answer), answered.code) == (("INTERNAL", "zot was ended by SIGTERM"), 0)
    assert after.answer["text"] == "free"  # The session is: a run without a waiting client is ended.


def test_a_silent_daemon_costs_only_the_deadline(relays: Relays) -> None:
    with FakeDaemon(str(relays.socket), {"initialize": GREETING}):
        watch = Stopwatch()
        answered = relays.ask(request("hello", timeout_ms=500))
        assert watch.read_s() < 5
    assert (failure(answered.answer)[0], answered.code) == ("TIMEOUT", 0)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--provider", "lab"], "--provider"),
        (["--policy", "*=allow"], "--policy"),
        (["--idempotency-ttl", "5"], "--idempotency-ttl"),
        (["--single-request", "false"], "--single-request"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_flag_that_the_daemon_would_ignore_is_refused(relays: Relays, flags: list[str], name: str) -> None:
    answered = relays.ask(request("hello"), "--via-daemon", *flags)
    assert (failure(answered.answer)[0], answered.code) == ("INTERNAL", 3)
    assert failure(answered.answer)[1].startswith(f"{name}: no effect with --via-daemon")


def test_the_variable_is_ignored_with_such_a_flag(relays: Relays) -> None:
    with FakeDaemon(str(relays.socket), {"initialize": GREETING, "host/respond": {"response": ANSWER}}):
        assert relays.ask(request("!echo x"), "--exit-zero", ZOT_HOST_VIA_DAEMON="1").answer == ANSWER
        here = relays.ask(request("!echo x"), "--policy", "*=deny", ZOT_HOST_VIA_DAEMON="1")
        assert here.answer["text"] == "x"
        assert relays.ask(request("!echo x"), "--exit-zero", ZOT_HOST_VIA_DAEMON="0").answer["text"] == "x"


def test_a_waiting_process_has_few_modules_loaded(relays: Relays) -> None:
    with FakeDaemon(str(relays.socket), {"initialize": GREETING, "host/respond": {"response": ANSWER}}):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "zot", "host", "--via-daemon"], cwd=relays.directory,
            env=relays.env, input=b'{"request_id":"r","session_id":"s","prompt":"hello"}\n', capture_output=True,
            timeout=PATIENCE_S, check=True,
        )  # fmt: skip
    loaded = {line.split(b"|")[-1].strip().decode() for line in done.stderr.split(b"\n")}
    assert "zot.serve.host.relay" in loaded
    assert (
        not {"asyncio", "sqlite3", "logging", "json", "zot.events", "zot.session.session", "zot.runtime.open"} & loaded
    )
    assert len({name for name in loaded if name.startswith("zot.")}) <= 30


def _contents(home: Path) -> bytes:
    """Return the content of the journal and of its write-ahead log."""
    found = (home / name for name in ("journal.db", "journal.db-wal"))
    return b"".join(path.read_bytes() for path in found if os.path.exists(path))
