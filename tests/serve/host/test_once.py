"""Repeated requests: from an impatient bridge, from many at once, and after a death at any moment."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from forked import Forked
from harness import PATIENCE_S, eventually, serving
from hosts import Hosts, checked, failure, request
from zot.providers.lab.script import Script

FREE = ("--policy", "*=allow")
#: A model that uses a tool twice: each leaves a line, and is slow enough to be interrupted.
WORK = (
    '!script call bash {"command":"echo one >>log; sleep 0.1"} ;; --- ;; '
    'call bash {"command":"echo two >>log; sleep 0.1"} ;; --- ;; pace 20ms ;; split 5 "All is done."'
)


def test_a_success_is_repeated_with_the_new_request_id(hosts: Hosts) -> None:
    first = hosts.say("!echo Hello", key="k")
    again = hosts.say("!echo Hello", key="k", request_id="r2", channel_id="other", timeout_ms=9000)
    assert again == ({**first.answer, "request_id": "r2", "replayed": True}, 0, "")
    assert hosts.transcript() == [("user", "!echo Hello"), ("assistant", "Hello")]


def test_another_prompt_key_session_or_agent_is_another_request(hosts: Hosts) -> None:
    hosts.say("!echo Hello", key="k")
    for more in ({"prompt": "!echo Bye"}, {"idempotency_key": "k2"}, {"session_id": "s2"}, {"agent": "other"}):
        asked = {**request("!echo Hello", key="k"), **more}
        assert "replayed" not in hosts.ask(asked).answer
    assert hosts.say("!echo Bye", key="k").answer["replayed"] is True


def test_without_a_key_every_request_runs(hosts: Hosts) -> None:
    for _ in range(2):
        assert "replayed" not in hosts.say("!echo Hello").answer
    assert hosts.transcript() == [("user", "!echo Hello"), ("assistant", "Hello")] * 2


def test_the_ttl_of_an_answer_can_be_set(hosts: Hosts) -> None:
    hosts.say("!echo Hello", key="k")
    assert "replayed" not in hosts.say("!echo Hello", "--idempotency-ttl", "0", key="k").answer
    assert hosts.say("!echo Hello", "--idempotency-ttl", "5", key="k").answer["replayed"] is True


def test_an_undelivered_answer_is_repeated_whatever_the_flag_says(hosts: Hosts) -> None:
    with open("/dev/full", "wb") as full:
        process = hosts.start(stdout=full)
        process.communicate(json.dumps(request("!echo Hello", key="k")).encode(), timeout=PATIENCE_S)
    assert process.returncode == 4
    flags = ("--idempotency-ttl", "0")
    assert hosts.say("!echo Hello", *flags, key="k").answer["replayed"] is True
    assert "replayed" not in hosts.say("!echo Hello", *flags, key="k").answer  # now it did


def test_a_failure_is_not_repeated_and_its_prompt_is_recorded_once(hosts: Hosts) -> None:
    with serving(Script.parse('status 400\n---\nsay "better"\n---\nsay "other"')) as url:
        flags = ("--provider", "anthropic", "--base-url", url, "--api-key", "k")
        assert failure(hosts.say("hi", *flags, key="k").answer)[0] == "INTERNAL"
        again = hosts.say("hi", *flags, key="k")
    assert (again.answer["text"], "replayed" in again.answer) == ("better", False)
    assert hosts.transcript() == [("user", "hi"), ("assistant", "better")]


def test_a_failed_request_is_continued_even_after_other_prompts(hosts: Hosts) -> None:
    tape = 'call bash {"command":"echo pay >>log"}\n---\nwait 60s\n---\nsay "I am"\n---\nsay "It is paid."'
    with serving(Script.parse(tape)) as url:
        flags = ("--provider", "anthropic", "--base-url", url, "--api-key", "k", *FREE)
        assert failure(hosts.say("Pay the bill.", *flags, key="k", timeout_ms=4000).answer)[0] == "TIMEOUT"
        assert hosts.say("Are you there?", *flags, key="k2").answer["text"] == "I am"
        again = hosts.say("Pay the bill.", *flags, key="k").answer
        assert (again["text"], "replayed" in again) == ("It is paid.", False)
        assert hosts.say("Pay the bill.", *flags, key="k").answer == {**again, "replayed": True}
    assert (hosts.directory / "log").read_text() == "pay\n"
    assert [text for role, text in hosts.transcript() if role == "user"] == [
        "Pay the bill.",
        "Are you there?",
        "Your answer to an earlier message of mine was interrupted. That message begins with 'Pay the bill.'. Answer "
        "it now. What has been done for it stands above: do not do it again.",
    ]


def test_fifty_concurrent_equal_requests_run_once(hosts: Hosts) -> None:
    """The tape has another reply for a second call, so equal answers are one call."""
    with serving(Script.parse('wait 500ms\nsay "the first"\n---\nsay "the second"')) as url:
        flags = ("--provider", "anthropic", "--base-url", url, "--api-key", "k")
        asked = [json.dumps(request("hi", key="k", request_id=f"r{n}", timeout_ms=60_000)).encode() for n in range(50)]
        processes = [hosts.fork(*flags) for _ in asked]
        for process, line in zip(processes, asked, strict=True):
            process.stdin.write(line)
            process.stdin.close()
        answers = [checked(json.loads(process.communicate(timeout=60)[0])) for process in processes]
        assert hosts.say("another", *flags).answer["text"] == "the second"
    assert {
        (answer["error_message"], process.returncode) for answer, process in zip(answers, processes, strict=True)
    } == {(None, 0)}
    assert sorted(answer["request_id"] for answer in answers) == sorted(f"r{n}" for n in range(50))
    assert sorted("replayed" in answer for answer in answers) == [False] + [True] * 49
    [same] = {json.dumps({**one, "request_id": "", "replayed": True}, sort_keys=True) for one in answers}
    assert json.loads(same)["text"] == "the first"


def test_processes_run_in_arrival_order_and_dead_ones_are_skipped(hosts: Hosts) -> None:
    running = begun(hosts, "!bash touch begun; until test -e go; do sleep 0.02; done")
    assert eventually((hosts.directory / "begun").exists)
    waiting = []
    for number in range(4):
        waiting.append(begun(hosts, f"!echo {number}"))
        assert eventually(lambda: in_line(hosts) == len(waiting))
    os.kill(waiting[1].pid, signal.SIGKILL)
    (hosts.directory / "go").touch()
    ends = [process.communicate()[0] for process in (running, *waiting)]
    assert [json.loads(said)["ok"] if said else None for said in ends] == [True, True, None, True, True]
    assert [text for role, text in hosts.transcript() if role == "user"][1:] == [f"!echo {n}" for n in (0, 2, 3)]


def begun(hosts: Hosts, prompt: str) -> Forked:
    """Start a process that will run a prompt."""
    process = hosts.fork(*FREE)
    process.stdin.write(json.dumps(request(prompt, timeout_ms=30_000)).encode() + b"\n")
    process.stdin.close()
    return process


def in_line(hosts: Hosts) -> int:
    """Return how many hold their places: locks far beyond those of the sessions."""
    file = f":{(hosts.home / 'journal.db.lock').stat().st_ino}"
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return sum(lock[-3].endswith(file) and int(lock[-2]) >= 1 << 40 for lock in locks)


@pytest.mark.parametrize("moment", ["in the journal", "one", "two", "late"])
def test_after_a_crash_the_prompt_is_recorded_once_and_no_result_twice(hosts: Hosts, moment: str) -> None:
    process = hosts.fork(*FREE)
    process.stdin.write(json.dumps(request(WORK, key="k", timeout_ms=30_000)).encode() + b"\n")
    process.stdin.close()
    log = hosts.directory / "log"

    def reached() -> bool:
        said = log.read_text() if log.exists() else ""
        match moment:
            case "in the journal":
                return (hosts.home / "journal.db-wal").exists()
            case "late":
                return "two" in said and b"All" in (hosts.home / "journal.db-wal").read_bytes()
            case _:
                return moment in said

    assert eventually(reached)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    process.communicate()
    answer = hosts.say(WORK, *FREE, key="k", timeout_ms=30_000).answer
    assert (answer["ok"], answer["text"]) == (True, "All is done.")
    said = hosts.transcript()
    assert [text for role, text in said if role == "user"] == [WORK]
    assert [text for role, text in said if role == "assistant"] == ["tool_call", "tool_call", "All is done."]
    ran = log.read_text().split()
    assert ran == sorted({*ran})  # each once at most: one that was interrupted is not run again by itself
    assert hosts.say(WORK, *FREE, key="k").answer["replayed"] is True
