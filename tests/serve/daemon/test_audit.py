"""The audit log: complete, without the text of messages, and in a chain that reveals changes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import PATIENCE_S
from zot.serve.daemon.audit import Audit, Identity, Refusals, Verified, verify
from zot.serve.daemon.logs import LogFile, log_files
from zot.serve.daemon.metrics import Metrics

LOCAL = Identity("unix", uid=1000, pid=42)
REMOTE = Identity("ws", token="laptop")


def at_once(action: Callable[[], None]) -> None:
    action()


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def plain(path: Path) -> list[dict[str, Any]]:
    """Return the entries without the fields that differ between runs."""
    return [
        {key: value for key, value in entry.items() if key not in ("time", "prev", "hash")} for entry in entries(path)
    ]


def test_each_call_is_a_line_with_caller_and_method(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "audit.log"
    audit = Audit(LogFile(str(path)), soon=at_once)
    audit.note("connected", LOCAL)
    audit.call(LOCAL, "session/prompt", session="s1")
    audit.call(REMOTE, "session/delete", session="s2", outcome="-32000")
    audit.note("refused", Identity("unix", uid=7, pid=8))
    audit.close()
    assert plain(path) == [
        {"n": 1, "event": "opened", "pid": os.getpid()},
        {"n": 2, "event": "call", "transport": "unix", "uid": 1000, "pid": 42, "method": "session/prompt",
         "session": "s1", "outcome": "ok"},
    ]  # fmt: skip
    access = path.with_name("access.log")
    assert plain(access) == [
        {"n": 1, "event": "connected", "transport": "unix", "uid": 1000, "pid": 42},
        {"n": 2, "event": "call", "transport": "ws", "token": "laptop", "method": "session/delete", "session": "s2",
         "outcome": "-32000"},
        {"n": 3, "event": "refused", "transport": "unix", "uid": 7, "pid": 8},
    ]  # fmt: skip
    assert verify([str(path)]) == Verified(2, (), 2, entries(path)[-1]["hash"], 1)
    assert verify([str(access)]) == Verified(3, (), 3, entries(access)[-1]["hash"], 1)


def refuse(audit: Audit, path: Path, *, within_s: float) -> Callable[[], int]:
    """Refuse 130 calls at once; return a function that counts those in the log."""
    refusals = Refusals(audit, Metrics(), within_s=within_s)
    for _ in range(130):
        refusals.note(REMOTE, "/", "401")

    def told() -> int:
        outcomes = [str(one["outcome"]) for one in plain(path) if one["event"] == "refused"]
        return sum(int(one.split()[0]) if one.endswith("more") else 1 for one in outcomes)

    return told


async def test_excess_refusals_are_summed_up_even_if_no_other_follows(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(LogFile(str(path)), soon=at_once)
    told = refuse(audit, path.with_name("access.log"), within_s=0.2)
    async with asyncio.timeout(PATIENCE_S):
        while told() < 130:
            await asyncio.sleep(0.01)
    audit.close()
    assert told() == 130


async def test_excess_refusals_are_summed_up_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(LogFile(str(path)), soon=at_once)
    path = path.with_name("access.log")
    told = refuse(audit, path, within_s=3600)
    assert told() == 100
    audit.close()
    assert told() == 130
    assert (plain(path)[-1]["transport"], plain(path)[-1]["outcome"]) == ("ws", "30 more")


def test_client_names_are_cut_and_escaped(tmp_path: Path) -> None:
    audit = Audit(LogFile(str(tmp_path / "a")), soon=at_once)
    audit.call(LOCAL, "x\n\ud800" * 1000, session="\x1b[2J")
    audit.close()
    (_, call) = plain(tmp_path / "a")
    assert (len(call["method"]), call["session"]) == (129, "\\x1b[2J")


def test_records_of_one_tick_are_written_at_once(tmp_path: Path) -> None:
    ticks: list[Callable[[], None]] = []
    audit = Audit(LogFile(str(tmp_path / "a")), soon=ticks.append)
    for number in range(10):
        audit.call(LOCAL, f"m{number}")
    assert (len(ticks), (tmp_path / "a").exists()) == (1, False)
    ticks.pop()()
    assert [entry["n"] for entry in entries(tmp_path / "a")] == [*range(1, 12)]
    for number in range(1000):
        audit.call(LOCAL, f"m{number}")
    assert len(entries(tmp_path / "a")) == 1011, "so many are not kept waiting"


def test_the_next_daemon_continues_the_chain_even_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "a"
    Audit(LogFile(str(path)), soon=at_once).close()
    Audit(LogFile(str(path)), soon=at_once).close()
    assert verify([str(path)]).problems == ()
    with path.open("ab") as file:
        file.write(b'{"n":3,"time":')
    Audit(LogFile(str(path)), soon=at_once).close()
    assert verify([str(path)]).problems == (f"{path}:3: is not as it was written",)
    assert verify([str(path)]).last == 3


def test_daemons_that_share_a_log_write_one_chain(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    audits = [Audit(LogFile(path, max_bytes=1500), soon=at_once) for _ in range(3)]
    for number in range(20):
        audits[number % 3].call(LOCAL, f"m{number}")
        audits[number * 7 % 3].call(LOCAL, f"n{number}")
    for audit in audits:
        audit.close()
    verified = verify(log_files(path))
    assert (verified.problems, verified.last) == ((), 43)


def test_processes_that_write_a_log_at_the_same_time_write_one_chain(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    writes = (
        "import sys\nfrom zot.serve.daemon.audit import Audit, Identity\nfrom zot.serve.daemon.logs import LogFile\n"
        "audit = Audit(LogFile(sys.argv[1]), soon=lambda call: call())\n"
        "for number in range(300): audit.call(Identity('unix'), 'm')\naudit.close()\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", writes, path]) for _ in range(3)]
    assert [process.wait(PATIENCE_S) for process in processes] == [0, 0, 0]
    verified = verify(log_files(path))
    assert (verified.problems, verified.last) == ((), 903)


def test_the_chain_continues_across_rotated_files(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    audit = Audit(LogFile(path, max_bytes=1000), soon=at_once)
    for number in range(100):
        audit.call(LOCAL, f"m{number}")
    audit.close()
    files = log_files(path)
    assert len(files) == 5
    verified = verify(files)
    assert (verified.problems, verified.last) == ((), 101)
    os.unlink(path)  # It was just put aside when the daemon ended.
    Audit(LogFile(path), soon=at_once).close()
    assert verify(log_files(path)).problems == ()


def test_failed_writes_are_counted_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "a"
    audit = Audit(LogFile(str(path)), soon=at_once)
    (tmp_path / "a").rename(tmp_path / "kept")
    os.mkfifo(path)
    for number in range(3):
        audit.call(LOCAL, f"lost {number}")
    path.unlink()
    (tmp_path / "kept").rename(path)
    audit.call(LOCAL, "kept")
    audit.call(LOCAL, "kept, too")
    audit.close()
    assert plain(path)[1:] == [
        {"n": 2, "event": "lost", "lines": 3},
        {"n": 3, "event": "call", "transport": "unix", "uid": 1000, "pid": 42, "method": "kept", "outcome": "ok"},
        {"n": 4, "event": "call", "transport": "unix", "uid": 1000, "pid": 42, "method": "kept, too", "outcome": "ok"},
    ]  # fmt: skip
    assert verify([str(path)]).problems == ()


@pytest.fixture
def three(tmp_path: Path) -> Path:
    path = tmp_path / "a"
    audit = Audit(LogFile(str(path)), soon=at_once)
    audit.call(LOCAL, "one")
    audit.call(LOCAL, "two")
    audit.close()
    return path


def test_a_changed_byte_is_detected_anywhere(three: Path) -> None:
    data = three.read_bytes()
    for at in range(0, len(data), 5):
        three.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert verify([str(three)]).problems, f"byte {at} of {data!r}"


def test_a_missing_added_or_moved_line_is_detected(three: Path) -> None:
    one, two, last = three.read_bytes().split(b"\n")[:-1]
    for changed in ([one, last], [one, two, two, last], [two, one, last], [one, two, b"", last]):
        three.write_bytes(b"\n".join(changed) + b"\n")
        assert verify([str(three)]).problems
    three.write_bytes(two + b"\n" + last + b"\n")
    assert verify([str(three)]).problems == (), "the oldest lines go when their time has come"
