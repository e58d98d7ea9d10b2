"""A bridge with the habits of the known one: impatient, strict, and it never kills the processes it started."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path

import pytest

from forked import Forked
from harness import PATIENCE_S, eventually
from hosts import Hosts
from timing import longer

PLACEHOLDERS = ("plan completed (or explicit empty plan).", "plan completed.", "no changes were made.")


class BridgeError(Exception):
    """The error that the bridge would send upstream."""


class Bridge:
    """Starts `zot host` for every message; retries a transient failure once, with the same key."""

    def __init__(self, hosts: Hosts, *flags: str, timeout_s: float, gives_up_at: Path | None = None) -> None:
        self._hosts = hosts
        self._flags = ("--protocol", "v1", "--bridge-compat", "--single-request", *flags)
        self._timeout_s = timeout_s
        self._gives_up_at = gives_up_at
        self.attempts = 0
        self.left: list[Forked] = []

    def send(self, prompt: str, session: str = "qq:private:1", channel: str = "qq") -> str:
        """Return the text of the answer. Raise BridgeError."""
        problem = BridgeError()
        for _ in range(2):
            try:
                return self._attempt(prompt, session, channel)
            except BridgeError as failure:
                problem = failure
                if not any(
                    word in str(failure) for word in ("placeholder", "suspicious", "error TIMEOUT", "timed out")
                ):
                    break
        raise problem

    def _attempt(self, prompt: str, session: str, channel: str) -> str:
        self.attempts += 1
        payload = {
            "protocol_version": 1, "type": "run", "request_id": str(uuid.uuid4()), "session_id": session,
            "channel_id": channel, "agent": "default", "prompt": prompt,
            "timeout_ms": max(1000, int(self._timeout_s * 900)),
            "idempotency_key": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{session}|{channel}|{prompt}")),
        }  # fmt: skip
        process = self._hosts.fork(*self._flags)
        given = json.dumps(payload).encode()
        if self._gives_up_at is not None and not self.left:
            self._leave(process, given, self._gives_up_at)
            raise BridgeError("the command timed out")
        out, errors = process.communicate(given, timeout=self._timeout_s)
        if process.returncode != 0:
            raise BridgeError(f"exit {process.returncode}: {errors.decode()}")
        return _read(next(line for line in out.decode().split("\n") if line.strip()))

    def _leave(self, process: Forked, given: bytes, when: Path) -> None:
        """Lose patience as soon as the file ``when`` exists: neither kill the process nor read its output."""
        process.stdin.write(given)
        process.stdin.close()
        assert eventually(when.exists)
        self.left.append(process)
        process.stdout.close()
        process.stderr.close()


def _read(line: str) -> str:
    answer = json.loads(line, parse_constant=_refuse)
    assert type(answer["ok"]) is bool
    assert type(answer["text"]) is str
    if not answer["ok"]:
        raise BridgeError(f"zene host error {answer['error_code']}: {answer['error_message']}")
    total = answer["usage"]["total_tokens"]
    if not answer["text"].strip():
        raise BridgeError("empty text")
    if type(total) is not int or total < 1:
        raise BridgeError("suspicious success")
    if answer["text"].strip().lower() in PLACEHOLDERS:
        raise BridgeError("placeholder")
    return str(answer["text"])


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def test_messages_are_answered_and_the_session_continues(hosts: Hosts) -> None:
    bridge = Bridge(hosts, timeout_s=PATIENCE_S)
    assert bridge.send("!echo Hello \u2028 \ufffd 你好") == "Hello \u2028 \ufffd 你好"
    assert bridge.send('!script say "Hi" ;; usage input=0 output=0') == "Hi"
    assert bridge.attempts == 2
    assert [role for role, _ in hosts.transcript("host:qq:private:1")] == ["user", "assistant"] * 2


def test_a_permanent_failure_is_not_retried(hosts: Hosts) -> None:
    bridge = Bridge(hosts, timeout_s=PATIENCE_S)
    with pytest.raises(BridgeError, match=r"^zene host error PROVIDER_AUTH: "):
        bridge.send("!status 401")
    with pytest.raises(BridgeError, match=r"^zene host error PROVIDER_DOWN: "):
        bridge.send("!cut")
    with pytest.raises(BridgeError, match=r"^exit 2: $"):
        bridge.send("  ")
    assert bridge.attempts == 3


def test_a_bridge_that_drops_output_on_failure_can_learn_of_it(hosts: Hosts) -> None:
    bridge = Bridge(hosts, "--exit-zero", "--provider", "anthropic", timeout_s=PATIENCE_S)
    with pytest.raises(BridgeError, match=r"^zene host error PROVIDER_AUTH: no key for anthropic"):
        bridge.send("hi")


def test_the_retry_after_a_timeout_continues_the_work(hosts: Hosts) -> None:
    work = '!script call bash {"command":"echo ran >>log; sleep 600"} ;; --- ;; say "Done."'
    log = hosts.directory / "log"
    for timeout_s in longer(3.0):
        bridge = Bridge(hosts, "--policy", "*=allow", timeout_s=timeout_s)
        assert bridge.send(work, session=f"qq:{timeout_s}") == "Done."
        assert bridge.attempts == 2
        if log.exists():
            break
    assert log.read_text() == "ran\n"
    assert [text for role, text in hosts.transcript(f"host:qq:{timeout_s}") if role == "user"] == [work]


def test_a_request_that_the_bridge_gave_up_ends_and_is_not_answered_twice(hosts: Hosts) -> None:
    """The bridge waits less than configured, leaves the process alone, and tries again at once."""
    work = '!script call bash {"command":"echo ran >>log; sleep 600"} ;; --- ;; say "Done."'
    log = hosts.directory / "log"
    bridge = Bridge(hosts, "--policy", "*=allow", timeout_s=PATIENCE_S, gives_up_at=log)
    assert bridge.send(work) == "Done."
    assert [process.wait(PATIENCE_S) for process in bridge.left] == [4]  # its output has no reader
    before = time.monotonic()
    patient = Bridge(hosts, "--policy", "*=allow", timeout_s=PATIENCE_S)
    assert patient.send(work) == "Done."
    assert time.monotonic() - before < PATIENCE_S
    assert log.read_text() == "ran\n"
    assert [text for role, text in hosts.transcript("host:qq:private:1") if role == "user"] == [work]
    assert os.path.exists(hosts.home / "journal.db")


def test_the_same_text_sent_later_is_a_new_message(hosts: Hosts) -> None:
    bridge = Bridge(hosts, "--idempotency-ttl", "0", timeout_s=PATIENCE_S)
    assert [bridge.send("!echo go on"), bridge.send("!echo go on")] == ["go on", "go on"]
    assert len(hosts.transcript("host:qq:private:1")) == 4
