"""Loss of power: what a client was told, and what a tool is about to change, is on the disk by then.

strace shows which writes to the journal were not yet synced when a process answered, or when a tool began. Power that
is lost in that moment takes at most those.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from harness import PATIENCE_S, environment
from hosts import Hosts, request
from optional import needs

JUMPING = str(Path(__file__).with_name("jumping_clock.py"))
FREE = ("--provider", "lab", "--policy", "*=allow")
CALLS = "write,writev,pwrite64,pwritev,ftruncate,fsync,fdatasync,openat"
_LINE = re.compile(r"(?P<pid>\d+) +(?:<\.\.\. (?P<resumed>\w+) resumed>|(?P<call>\w+)\()(?P<rest>.*)")


class Call(NamedTuple):
    """A system call that has returned."""

    name: str
    text: str


def calls(trace: Path) -> list[Call]:
    """Return the calls that succeeded, in the order in which they ended."""
    begun: dict[str, str] = {}
    found: list[Call] = []
    for line in trace.read_text(errors="replace").split("\n"):
        if (match := _LINE.match(line)) is None:
            continue
        pid, text = match["pid"], match["rest"]
        if match["call"] and text.endswith("<unfinished ...>"):
            begun[pid] = text
            continue
        name = match["call"] or match["resumed"]
        if " = -1 " not in text:
            found.append(Call(name, begun.pop(pid, "") + text if match["resumed"] else text))
    return found


def unsynced_at(trace: Path, moment: str) -> list[list[str]]:
    """Return the writes to the journal that no sync has followed, at each call whose text has ``moment``."""
    waiting: list[str] = []
    moments: list[list[str]] = []
    for call in calls(trace):
        if moment in call.text and "journal.db" not in call.text:
            moments.append([*waiting])
        elif re.search(r"journal\.db(-wal)?>", call.text):
            if call.name in ("fsync", "fdatasync"):
                waiting.clear()
            elif call.name != "openat":
                waiting.append(call.name)
    return moments


def is_synced(trace: Path, row: str, before: str) -> bool:
    """True if a sync followed the first write to the journal that has ``row``, ``before`` a call with this text.

    The writer's thread may be at the next rows by then: those do not count.
    """
    is_written = is_safe = False
    for call in calls(trace):
        if re.search(r"journal\.db(-wal)?>", call.text):
            is_written = is_written or row in call.text
            is_safe = is_safe or (is_written and call.name in ("fsync", "fdatasync"))
        elif before in call.text:
            assert is_written
            return is_safe
    raise AssertionError(f"{before} is not in the trace")


def traced(tmp_path: Path, *argv: str, given: bytes) -> Path:
    """Run zot under strace with ``given`` as its input, and return the trace."""
    trace = tmp_path / "trace"
    strace = ["strace", "-f", "-qq", "-y", "-s", "4096", "-e", f"trace={CALLS}", "-o", str(trace)]
    done = subprocess.run(
        [*strace, sys.executable, "-m", "zot", *argv],
        input=given, capture_output=True, cwd=tmp_path, timeout=2 * PATIENCE_S, check=False,
        env=environment({"ZOT_HOME": str(tmp_path / "home")}),
    )  # fmt: skip
    assert done.returncode == 0, done
    return trace


@needs("strace")
def test_a_host_answers_after_the_answer_is_on_disk(tmp_path: Path) -> None:
    given = json.dumps(request("!echo Hello", key="k", timeout_ms=60_000)).encode()
    trace = traced(tmp_path, "host", "--provider", "lab", given=given)
    assert unsynced_at(trace, r"\"text\":\"Hello\"") == [[]]


@needs("strace")
def test_a_changing_tool_starts_after_its_call_is_on_disk(tmp_path: Path) -> None:
    commands = ("touch one", "touch two")
    called = " ;; ".join(f"call bash {json.dumps({'command': command})} ;; ---" for command in commands)
    words = f'!script {called} ;; split 5 "Done."'
    given = json.dumps(request(words, key="k", timeout_ms=60_000)).encode()
    trace = traced(tmp_path, "host", *FREE, given=given)
    assert [unsynced_at(trace, f'"{name}", O_WRONLY|O_CREAT') for name in ("one", "two")] == [[[]], [[]]]


@needs("strace")
def test_a_client_sees_the_end_of_a_run_after_it_is_on_disk(tmp_path: Path) -> None:
    given = b'{"type":"prompt","id":"1","message":"!echo Hello"}\n'
    trace = traced(tmp_path, "rpc", "--provider", "lab", "--session", "s", given=given)
    assert unsynced_at(trace, r"{\"type\":\"done\"}") == [[]]


@needs("strace")
def test_a_prompt_is_acknowledged_after_the_beginning_of_its_run_is_on_disk(tmp_path: Path) -> None:
    given = b'{"type":"prompt","id":"1","message":"!echo Hello"}\n'
    trace = traced(tmp_path, "rpc", "--provider", "lab", "--session", "s", given=given)
    assert is_synced(trace, r"\"boot\":\"", before=r"{\"type\":\"response\",\"id\":\"1\"")


def test_a_clock_set_back_between_two_requests_runs_no_tool_again(hosts: Hosts) -> None:
    clock = hosts.directory / "clock"
    given = json.dumps(request("!bash echo ran >>log", key="k", timeout_ms=60_000)).encode()
    answers = []
    for ahead_s in ("0", "-7200", "7200"):
        clock.write_text(ahead_s)
        done = subprocess.run(
            [sys.executable, JUMPING, str(clock), "host", *FREE], input=given, capture_output=True, cwd=hosts.directory,
            env=environment({"ZOT_HOME": str(hosts.home)}), timeout=2 * PATIENCE_S, check=True,
        )  # fmt: skip
        answers.append(json.loads(done.stdout))
    assert [answer.get("replayed") for answer in answers] == [None, True, True]
    assert (hosts.directory / "log").read_text() == "ran\n"
