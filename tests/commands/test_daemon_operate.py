"""`zot daemon status`, `stop`, `logs` and `audit`, with a daemon and without."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

from child_process import Child
from daemon_fake import FakeDaemon
from harness import PATIENCE_S, eventually, read_some
from zot.client.endpoint import owner
from zot.commands.daemon import main
from zot.commands.daemon_manage import GROUP, DaemonStatus, read_status
from zot.config.paths import locate
from zot.errors import UserError
from zot.serve.daemon.audit import Audit, Identity
from zot.serve.daemon.claim import Claim, claim_endpoint
from zot.serve.daemon.logs import LogFile

HELLO = {"protocolVersion": 1, "serverVersion": "9.8.7", "serverPid": 4242}
BUSY = {
    "initialize": HELLO,
    "status": {"serverVersion": "9.8.7", "protocolVersion": 1, "activeSessions": 2, "sessionIds": ["a", "b\n"]},
    "daemon/stop": {},
}


class Said(NamedTuple):
    out: str
    code: int


class Operator:
    """An operator of the daemon of one data directory."""

    def __init__(self, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.data = data
        self.path = str(data / "daemon.sock")
        self._capsys = capsys

    def run(self, *argv: str) -> Said:
        code = main(argv)
        return Said(self._capsys.readouterr().out, code)


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Operator:
    monkeypatch.setenv("ZEROCLAW_DATA_DIR", str(tmp_path))
    for name in ("ZEROCLAW_SOCKET", "ZEROCLAW_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    return Operator(tmp_path, capsys)


# Status.


def test_status_shows_people_the_process_and_its_work(operator: Operator) -> None:
    with FakeDaemon(operator.path, BUSY) as daemon:
        said = operator.run("status")
        assert said.code == 0
        assert re.sub(r"for +\d s\n", "for AGES\n", said.out) == (
            "running   process 4242, version 9.8.7\n"
            f"endpoint  {operator.path}\n"
            f"data      {operator.data}\n"
            "for AGES\n"
            "sessions  2: a, b\\n\n"
        )
        assert daemon.asked == [("initialize", {"protocolVersion": 1}), ("status", {})]


def test_status_for_programs_shows_the_same(operator: Operator) -> None:
    with FakeDaemon(operator.path, BUSY):
        told = json.loads(operator.run("status", "--json").out)
    assert 0 <= told.pop("uptime_s") < 60
    assert told == {
        "running": True, "endpoint": operator.path, "data_dir": str(operator.data), "pid": 4242, "version": "9.8.7",
        "protocol": 1, "active_sessions": 2, "session_ids": ["a", "b\n"], "listens": [],
            "problem": None, "token_problem": None,
    }  # fmt: skip


def test_long_session_names_are_cut_in_the_status(operator: Operator) -> None:
    long = "x" * 1024
    with FakeDaemon(operator.path, {**BUSY, "status": {"activeSessions": 1, "sessionIds": [long]}}):
        assert f"sessions  1: {'x' * 79}…\n" in operator.run("status").out
        assert json.loads(operator.run("status", "--json").out)["session_ids"] == [long]


def test_problems_of_the_token_file_are_shown_when_the_daemon_is_reached_with_tokens(operator: Operator) -> None:
    path = operator.data / "elsewhere" / "token"
    path.parent.mkdir()
    path.write_text("secret\n")
    path.chmod(0o604)
    told = {"dataDir": str(path.parent), "listens": ["ws://127.0.0.1:7777/"]}
    with FakeDaemon(operator.path, {**BUSY, "status": told}):
        assert f"\ntoken     {path}: others can read it" in operator.run("status").out
        path.chmod(0o600)
        problem = json.loads(operator.run("status", "--json").out)["token_problem"]
        assert problem.startswith(f"{path}:1: expected a token")
        assert problem.endswith("; until that is fixed, no token is accepted")
        path.write_text("secret-" * 6)
        assert "\ntoken " not in operator.run("status").out
        path.write_text("secret\n")
    with FakeDaemon(operator.path, {**BUSY, "status": {**told, "listens": []}}):
        assert "\ntoken " not in operator.run("status").out


def test_status_shows_where_the_daemon_keeps_its_files(operator: Operator) -> None:
    with FakeDaemon(operator.path, {**BUSY, "status": {"dataDir": "/else/where"}}):
        assert "\ndata      /else/where\n" in operator.run("status").out
        assert json.loads(operator.run("status", "--json").out)["data_dir"] == "/else/where"


def test_without_a_daemon_the_exit_code_is_3(operator: Operator) -> None:
    assert operator.run("status") == Said(f"No daemon is running at {operator.path}. Start one with: zot daemon\n", 3)
    claim_endpoint(operator.path).release()
    assert operator.run("status").code == 3
    told = operator.run("status", "--json")
    assert (json.loads(told.out)["running"], told.code) == (False, 3)


def test_a_killed_daemon_s_leftovers_are_not_a_daemon(operator: Operator) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(operator.path)
    assert operator.run("status").code == 3
    assert operator.run("stop").code == 3


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({"initialize": HELLO, "status": -32603}, "no"),
        (
            {"initialize": HELLO, "status": {"activeSessions": "many"}},
            "activeSessions must be a whole number, not a string",
        ),
        ({"initialize": -32011}, "no"),
    ],
)
def test_status_reports_an_unhealthy_daemon(operator: Operator, answers: dict[str, object], problem: str) -> None:
    with FakeDaemon(operator.path, answers):  # type: ignore[arg-type]  # made to be wrong
        assert operator.run("status") == Said(
            f"process {os.getpid()} is the daemon at {operator.path}, but: {problem}\n", 1
        )


def test_status_gives_up_on_a_daemon_that_does_not_answer(operator: Operator) -> None:
    with FakeDaemon(operator.path, {}):
        found = read_status(locate(os.environ), within_s=0.05)
    assert found == DaemonStatus(
        running=False,
        endpoint=operator.path,
        data_dir=str(operator.data),
        pid=os.getpid(),
        problem="it does not answer",
    )
    assert (found.session_ids, found.listens) == (None, None)


def test_flags_choose_the_daemon(operator: Operator) -> None:
    other = str(operator.data / "other.sock")
    with FakeDaemon(other, BUSY):
        assert operator.run("status").code == 3
        assert operator.run("status", "--socket", other).code == 0
    with FakeDaemon(str(operator.data / "c/data/daemon.sock"), BUSY):
        assert operator.run("status", "--config-dir", str(operator.data / "c")).code == 0


# Stop.


def test_stop_asks_politely_and_waits_for_the_end(operator: Operator) -> None:
    with FakeDaemon(operator.path, BUSY) as daemon:
        said = operator.run("stop")
        assert said == Said(f"process {os.getpid()}, the daemon at {operator.path}, has ended\n", 0)
        assert daemon.asked[-1] == ("daemon/stop", {})
        assert owner(operator.path) is None


def test_stop_without_a_daemon_does_nothing(operator: Operator) -> None:
    assert operator.run("stop") == Said(f"No daemon is running at {operator.path}.\n", 3)
    assert operator.run("stop", "--json") == Said('{"stopped":false,"pid":null}\n', 3)


def test_stop_signals_a_daemon_that_cannot_be_asked(operator: Operator) -> None:
    def own(_: Callable[[], None]) -> str:
        owned.append(claim_endpoint(operator.path))
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        while True:  # hangs up on everybody
            owned[0].listener.accept()[0].close()

    owned: list[Claim] = []
    with Child(own) as deaf:
        assert eventually(lambda: os.path.exists(operator.path))
        said = operator.run("stop", "--json", "--timeout", "10")
        assert said == Said(f'{{"stopped":true,"pid":{deaf.pid}}}\n', 0)


def test_stop_leaves_a_daemon_without_a_lock_running_if_it_refuses(operator: Operator) -> None:
    with FakeDaemon(operator.path, {"initialize": HELLO, "daemon/stop": -32601}):
        os.unlink(f"{operator.path}.lock")
        with pytest.raises(UserError, match="does not stop: no"):
            operator.run("stop")


def test_stop_gives_up_on_a_daemon_that_does_not_end(operator: Operator) -> None:
    claim = claim_endpoint(operator.path)

    def promise() -> None:
        connection, _ = claim.listener.accept()
        with connection:
            for number in (1, 2):
                connection.recv(1 << 16)
                connection.sendall(f'{{"jsonrpc":"2.0","result":{{}},"id":{number}}}\n'.encode())

    promising = threading.Thread(target=promise)
    promising.start()
    with pytest.raises(UserError, match=rf"process {os.getpid()} is still the daemon at .* after 0\.1 s"):
        operator.run("stop", "--timeout", "0.1")
    promising.join()
    claim.release()


# Logs.


def test_logs_are_written_with_the_oldest_first(operator: Operator) -> None:
    (operator.data / "logs").mkdir()
    (operator.data / "logs/daemon.log").write_text("new\n")
    (operator.data / "logs/daemon.log.1").write_text("old\n")
    assert operator.run("logs") == Said("old\nnew\n", 0)


def test_logs_are_followed_across_rotation_until_interrupted(operator: Operator) -> None:
    reader, writer = os.pipe()
    log = LogFile(str(operator.data / "logs/daemon.log"), max_bytes=10)
    log.append(b"before\n")

    def read_log(_: Callable[[], None]) -> str:
        with mock.patch.object(sys, "stdout", os.fdopen(writer, "w")):
            return str(main(["logs", "-f"]))

    with Child(read_log) as follower:
        shown = read_some(reader, time.monotonic() + PATIENCE_S)
        for line in (b"in the next\n", b"and the next\n"):
            log.append(line)
            shown += read_some(reader, time.monotonic() + PATIENCE_S)
        os.kill(follower.pid, signal.SIGTERM)
        assert follower.report() == "0"
    assert shown == b"before\nin the next\nand the next\n"
    for descriptor in (reader, writer):
        os.close(descriptor)


def test_a_missing_log_is_reported(operator: Operator) -> None:
    with pytest.raises(UserError, match=r"no log exists at .*/logs/daemon\.log: no daemon has written one yet"):
        main(["logs"])
    with pytest.raises(UserError, match=r"no audit log exists at .*/logs/audit\.log: no daemon has written one yet"):
        main(["audit", "verify"])


def test_the_audit_log_is_shown_and_verified(operator: Operator) -> None:
    path = operator.data / "logs/audit.log"
    audit = Audit(LogFile(str(path)), soon=lambda action: action())
    audit.call(Identity("unix", uid=1, pid=2), "status")
    audit.close()
    assert operator.run("audit") == Said(path.read_text(), 0)
    last = json.loads(path.read_text().split("\n")[1])["hash"]
    assert operator.run("audit", "verify") == Said(
        f"2 lines, all intact; complete from number 1 on; the last is number 2, hash {last}\n", 0
    )
    audit = Audit(LogFile(str(path)), soon=lambda action: action())
    audit.note("connected", Identity("unix", uid=1, pid=2))
    audit.close()
    access = path.with_name("access.log")
    assert operator.run("audit", "access") == Said(access.read_text(), 0)
    assert json.loads(operator.run("audit", "verify", "--json").out)["access"]["lines"] == 1
    path.write_text(path.read_text().replace('"uid":1', '"uid":3'))
    said = operator.run("audit", "verify")
    assert said.out.startswith(
        f"{path}:2: is not as it was written\n{path}:3: does not follow the line before it\n3 lines, 2 are damaged; "
    )
    assert said.code == 1
    found = json.loads(operator.run("audit", "verify", "--json").out)
    assert (found["problems"][0], found["whole_from"]) == (f"{path}:2: is not as it was written", 3)


# Usage.


def test_wrong_usage_is_explained(operator: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["status", "now"], ["stop", "--timeout", "0"], ["logs", "--json"], ["audit", "burn"]):
        assert main(argv) == 2
        assert f"Try: zot daemon {argv[0]} --help" in capsys.readouterr().err


@pytest.mark.parametrize("name", GROUP.subcommands)
def test_help_names_every_flag(operator: Operator, name: str) -> None:
    said = operator.run(name, "--help")
    assert said.code == 0
    assert all(flag.name in said.out for flag in GROUP.subcommands[name].flags)
