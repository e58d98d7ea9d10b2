"""`zot host --single-request false`: many requests on one pair of pipes, each answered once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from forked import Forked
from harness import PATIENCE_S, eventually, living, read_some
from hosts import Hosts, Json, checked, failure, request
from timing import slowness
from zot.errors import ConfigError
from zot.serve.host.stream import LineThread, StreamServer
from zot.serve.host.watchdog import Slot, Watchdog
from zot.session.session import Session
from zot.wire.lines import LineSplitter

MANY = ("--single-request", "false")
FREE = ("--policy", "*=allow")


class Many:
    """A running host with many requests."""

    def __init__(self, process: Forked | subprocess.Popen[bytes]) -> None:
        self.process = process
        self._unread = b""

    def send(self, *requests: Json | bytes) -> None:
        lines = (one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in requests)
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(lines))
        self.process.stdin.flush()

    def read(self) -> Json:
        """Return the next line."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE_S
        while b"\n" not in self._unread:
            data = read_some(self.process.stdout.fileno(), deadline)
            assert data, "it ended"
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        read: Json = json.loads(line)
        return read

    def answer(self) -> Json:
        return checked(self.read())

    def answers(self, count: int) -> dict[str, Json]:
        """Return the next answers, by request."""
        return {answer["request_id"]: answer for answer in (self.answer() for _ in range(count))}

    def finish(self) -> list[Json]:
        """End the input; return the remaining answers."""
        out, errors = self.process.communicate(timeout=PATIENCE_S)
        assert (self.process.returncode, errors) == (0, b"")
        return [json.loads(line) for line in (self._unread + out).decode().split("\n") if line]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def many(hosts: Hosts) -> Iterator[Many]:
    started = Many(hosts.fork(*MANY, *FREE))
    yield started
    started.close()


def run(request_id: str, prompt: str, **more: Any) -> Json:
    """Return a request in a session of its own."""
    return request(prompt, **{"request_id": request_id, "session_id": request_id, **more})


def test_requests_run_side_by_side_and_are_answered_as_they_end(many: Many) -> None:
    many.send(run("slow", "!bash until test -e go; do sleep 0.02; done"), run("quick", "!echo Hello"))
    quick = many.answer()
    assert (quick["request_id"], quick["session_id"], quick["text"]) == ("quick", "quick", "Hello")
    many.send(run("goer", "!bash touch go"))
    assert {*many.answers(2)} == {"slow", "goer"}
    assert many.finish() == []


class Guards:
    """A watchdog that only counts."""

    def __init__(self) -> None:
        self.guarded: list[Slot] = []

    def guard(self, slot: Slot) -> None:
        self.guarded.append(slot)

    def release(self, slot: Slot) -> None:
        self.guarded.remove(slot)


async def test_an_answered_request_is_not_kept_until_its_deadline() -> None:
    async def refuse(_: object) -> Session:
        assert len(guards.guarded) == 1
        raise ConfigError("no model")

    async def given() -> AsyncIterator[bytes]:
        yield json.dumps(run("a", "hi", timeout_ms=3_600_000)).encode() + b"\n"

    guards = Guards()
    reads, writes = os.pipe()
    output = LineThread(writes)
    many = StreamServer(refuse, cast("Watchdog", guards), output, at_once=1, sends_events=False)
    async with asyncio.timeout(PATIENCE_S):
        await many.serve(given(), LineSplitter())
    assert failure(checked(json.loads(os.read(reads, 1 << 16)))) == ("INTERNAL", "no model")
    assert guards.guarded == []
    for descriptor in (reads, writes):
        os.close(descriptor)


def test_two_requests_of_one_session_follow_each_other(many: Many, hosts: Hosts) -> None:
    many.send(run("a", "!slow 3 0.05", session_id="s"), run("b", "!echo two", session_id="s"))
    assert all(answer["ok"] for answer in many.answers(2).values())
    assert many.finish() == []
    said = hosts.transcript()
    assert [role for role, _ in said] == ["user", "assistant"] * 2


def test_the_requests_of_one_session_run_in_the_order_in_which_they_came(many: Many, hosts: Hosts) -> None:
    waiting = [run(f"m{n}", f"!echo {n}", session_id="s", key=f"k{n}") for n in range(6)]
    many.send(run("a", "!bash until test -e go; do sleep 0.02; done", session_id="s", key="k"), *waiting)
    # One that gave up does not let the others past those before it, and one that asks again is before all of them.
    many.send({"type": "cancel", "request_id": "c", "target_request_id": "m3"})
    assert [many.answer()["request_id"] for _ in range(2)] == ["c", "m3"]
    many.send(run("again", "!bash until test -e go; do sleep 0.02; done", session_id="s", key="k"))
    (hosts.directory / "go").touch()
    answers = many.finish()
    assert [answer["request_id"] for answer in answers if answer["request_id"] != "again"] == [
        "a", "m0", "m1", "m2", "m4", "m5",
    ]  # fmt: skip
    assert [(answer["text"], answer["replayed"]) for answer in answers if answer["request_id"] == "again"] == [
        (answers[0]["text"], True)
    ]
    assert [text for role, text in hosts.transcript() if role == "user"][1:] == [f"!echo {n}" for n in (0, 1, 2, 4, 5)]


def test_requests_waiting_for_their_session_delay_no_other(hosts: Hosts) -> None:
    many = Many(hosts.fork(*MANY, "--max-concurrency", "2", *FREE))
    many.send(run("a", "!bash until test -e go; do sleep 0.02; done", session_id="s"))
    many.send(*(run(f"b{n}", "!echo hi", session_id="s") for n in range(9)), run("c", "!echo on"))
    assert many.answer()["request_id"] == "c"
    (hosts.directory / "go").touch()
    assert len(many.finish()) == 10


def test_each_bad_line_costs_one_answer(many: Many) -> None:
    many.send(
        b"hello\n\n", b"x" * (1 << 20) + b"xx\n", run("a", " "), b'[1]\n{"request_id":"n"}\n', run("b", "!echo on")
    )
    answers = [many.answer() for _ in range(6)]
    assert [(answer["request_id"], answer["error_code"]) for answer in answers] == [
        ("unknown", "INVALID_REQUEST"), ("unknown", "INVALID_REQUEST"), ("a", "INVALID_REQUEST"),
        ("unknown", "INVALID_REQUEST"), ("n", "INVALID_REQUEST"), ("b", None),
    ]  # fmt: skip
    assert many.finish() == []


def test_the_same_id_twice_at_a_time_and_a_cancel_of_nothing_are_refused(many: Many) -> None:
    many.send(run("a", "!stall"), run("a", "!echo hi"), {"type": "ping", "request_id": "p"})
    many.send({"type": "cancel", "request_id": "c", "target_request_id": "nothing"})
    refused, pong, nothing = (many.answer() for _ in range(3))
    assert failure(refused) == ("INVALID_REQUEST", "a request with this request_id is running")
    assert (pong["request_id"], pong["text"]) == ("p", "pong")
    assert failure(nothing) == ("INVALID_REQUEST", "no request 'nothing' is running")


def test_a_request_can_be_cancelled_in_its_tools(many: Many, hosts: Hosts) -> None:
    many.send(run("a", "!bash touch begun; sleep 600"))
    assert eventually((hosts.directory / "begun").exists)
    many.send({"type": "cancel", "request_id": "c", "target_request_id": "a"})
    answers = many.answers(2)
    assert failure(answers["a"]) == ("INTERNAL", "the request was cancelled")
    assert answers["c"]["text"] == "cancelled"
    assert many.finish() == []


def test_a_request_can_be_cancelled_while_it_waits_for_its_session(many: Many, hosts: Hosts) -> None:
    many.send(run("a", "!bash touch begun; sleep 600", session_id="s"))
    assert eventually((hosts.directory / "begun").exists)
    many.send(run("b", "!echo hi", session_id="s"), {"type": "cancel", "request_id": "c", "target_request_id": "b"})
    assert {*many.answers(2)} == {"b", "c"}
    many.send({"type": "session_close", "request_id": "d", "session_id": "s"})
    answers = many.answers(2)
    assert (answers["d"]["text"], failure(answers["a"])[0]) == ("closed", "INTERNAL")


def test_a_deadline_ends_one_request_and_no_other(many: Many, hosts: Hosts) -> None:
    many.send(run("a", "!bash touch begun; sleep 600", timeout_ms=1500), run("b", "!slow 20 0.1"))
    late = many.answer()
    assert (late["request_id"], failure(late)) == ("a", ("TIMEOUT", "request exceeded timeout_ms"))
    assert many.answer()["ok"] is True
    many.send(run("c", "!echo on"))
    assert many.answer()["text"] == "on"
    assert many.finish() == []


def test_a_deadline_ends_a_tool_even_when_the_event_loop_hangs(hosts: Hosts) -> None:
    """It hangs in a script that is not there to be read."""
    script = hosts.directory / "pipe.lab"
    os.mkfifo(script)
    many = Many(hosts.fork(*MANY, *FREE, "--script", str(script)))
    many.send(run("a", "hi", timeout_ms=4000))
    script.write_text('call bash {"command":"echo $$ >making; mv making pid; sleep 600"}')
    assert eventually((hosts.directory / "pid").exists)
    many.send(run("b", "hi"))
    assert failure(many.answer()) == ("TIMEOUT", "request exceeded timeout_ms")
    tool = Path("/proc") / (hosts.directory / "pid").read_text().strip()
    assert eventually(lambda: not tool.exists(), within_s=3.0 * slowness())
    many.close()


def test_a_request_late_or_cancelled_before_its_turn_never_runs(hosts: Hosts) -> None:
    many = Many(hosts.fork(*MANY, "--max-concurrency", "1", *FREE))
    many.send(run("a", "!bash until test -e go; do sleep 0.02; done"), run("b", "!bash touch ran", timeout_ms=400))
    many.send(run("c", "!bash touch ran"), {"type": "cancel", "request_id": "d", "target_request_id": "c"})
    ended = many.answers(3)
    assert {name: answer["error_code"] for name, answer in ended.items()} == {
        "b": "TIMEOUT", "c": "INTERNAL", "d": None,
    }  # fmt: skip
    many.send(run("c", "!echo again"))  # Its id is free again.
    (hosts.directory / "go").touch()
    assert [(answer["request_id"], answer["ok"]) for answer in many.finish()] == [("a", True), ("c", True)]
    assert not (hosts.directory / "ran").exists()


def test_accepted_requests_are_answered_after_the_end_of_the_input(hosts: Hosts) -> None:
    many = Many(hosts.fork(*MANY, "--max-concurrency", "2"))
    many.send(*(run(f"r{n}", f"!echo {n}") for n in range(6)), json.dumps(run("last", "!echo z")).encode())
    assert sorted(answer["request_id"] for answer in many.finish()) == ["last", *(f"r{n}" for n in range(6))]


def test_a_signal_answers_everything(hosts: Hosts) -> None:
    many = Many(hosts.start(*MANY, *FREE, env={"MARK_OF_MANY": str(hosts.directory)}))
    many.send(run("a", "!bash touch begun; sleep 600"), run("b", "!stall"))
    assert eventually((hosts.directory / "begun").exists)
    many.process.send_signal(signal.SIGTERM)
    answers = many.answers(2)
    assert {failure(answer) for answer in answers.values()} == {("INTERNAL", "zot was ended by SIGTERM")}
    assert many.process.wait(PATIENCE_S) == 0
    assert eventually(lambda: living(f"MARK_OF_MANY={hosts.directory}") == [], within_s=3.0 * slowness())
    many.close()


def test_the_longest_line_can_be_set_as_for_other_commands(hosts: Hosts) -> None:
    many = Many(hosts.fork(*MANY, "--max-line-bytes", "300"))
    many.send(run("a", "x" * 300), run("b", "!echo hi"))
    answers = many.answers(2)
    assert answers["b"]["text"] == "hi"
    assert answers["unknown"]["error_message"] == "the request is longer than 300 bytes"
    assert many.finish() == []


def test_it_ends_when_its_output_is_closed(many: Many) -> None:
    assert many.process.stdout is not None
    many.process.stdout.close()
    assert many.process.wait(PATIENCE_S) == 0


def test_a_stalled_reader_does_not_delay_answers_beyond_the_deadline(hosts: Hosts) -> None:
    many = Many(hosts.fork(*MANY, "--events"))
    many.send(run("a", "!flood 30000"), run("b", "!stall", timeout_ms=1500))
    lines = many.finish()
    answers = [line for line in lines if line.get("type") != "event"]
    assert {answer["request_id"]: answer["error_code"] for answer in answers} == {"a": None, "b": "TIMEOUT"}
    assert sum(line.get("type") == "event" for line in lines) > 30_000


def test_events_come_before_their_answer_and_are_numbered(hosts: Hosts) -> None:
    many = Many(hosts.fork(*MANY, "--events"))
    many.send(run("a", "!echo Hello"), run("b", "!echo Bye"))
    lines = many.finish()
    for name in ("a", "b"):
        *events, answer = [line for line in lines if line["request_id"] == name]
        assert checked(answer)["ok"] is True
        assert [(event["type"], event["seq"]) for event in events] == [("event", n + 1) for n in range(len(events))]
        assert [event["event"]["type"] for event in events] == [
            "user_message", "turn_start", "assistant_start", "text_delta", "usage", "assistant_message", "turn_end",
            "done",
        ]  # fmt: skip


def test_the_same_request_twice_runs_once(many: Many, hosts: Hosts) -> None:
    many.send(run("a", "!slow 3 0.05", key="k", session_id="s"), run("b", "!slow 3 0.05", key="k", session_id="s"))
    answers = many.answers(2)
    assert sorted("replayed" in answer for answer in answers.values()) == [False, True]
    assert len({answer["text"] for answer in answers.values()}) == 1
    assert many.finish() == []
    assert len(hosts.transcript()) == 2
    assert os.listdir(hosts.home)
