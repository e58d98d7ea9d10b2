"""A bridge with the habits of the one that is known: impatient, strict, and it never kills what it started."""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from contextlib import suppress

import pytest

from forked import Forked
from harness import PATIENCE_S, eventually
from hosts import Hosts

PLACEHOLDERS = ("plan completed (or explicit empty plan).", "plan completed.", "no changes were made.")


class BridgeError(Exception):
    """What the bridge would send upstream."""


class Bridge:
    """Starts `zot host` for every message; retries once, with the same key, what it takes for a passing failure."""

    def __init__(self, hosts: Hosts, *flags: str, timeout_s: float, patience_s: float | None = None) -> None:
        self._hosts = hosts
        self._flags = ("--protocol", "v1", "--bridge-compat", "--single-request", *flags)
        self._timeout_s = timeout_s
        self._patience_s = timeout_s if patience_s is None else patience_s
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
        try:
            out, errors = process.communicate(json.dumps(payload).encode(), timeout=self._patience_s)
        except subprocess.TimeoutExpired:
            self.left.append(process)  # It is not killed, nor read any more.
            process.stdout.close()
            process.stderr.close()
            raise BridgeError("the command timed out") from None
        if process.returncode != 0:
            raise BridgeError(f"exit {process.returncode}: {errors.decode()}")
        return _read(next(line for line in out.decode().split("\n") if line.strip()))


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


def test_messages_are_answered_and_the_session_goes_on(hosts: Hosts) -> None:
    bridge = Bridge(hosts, timeout_s=PATIENCE_S)
    assert bridge.send("!echo Hello \u2028 \ufffd 你好") == "Hello \u2028 \ufffd 你好"
    assert bridge.send('!script say "Hi" ;; usage input=0 output=0') == "Hi"
    assert bridge.attempts == 2
    assert [role for role, _ in hosts.transcript("host:qq:private:1")] == ["user", "assistant"] * 2


def test_what_cannot_be_helped_is_not_tried_again(hosts: Hosts) -> None:
    bridge = Bridge(hosts, timeout_s=PATIENCE_S)
    with pytest.raises(BridgeError, match=r"^zene host error PROVIDER_AUTH: "):
        bridge.send("!status 401")
    with pytest.raises(BridgeError, match=r"^zene host error PROVIDER_DOWN: "):
        bridge.send("!cut")
    with pytest.raises(BridgeError, match=r"^exit 2: $"):
        bridge.send("  ")
    assert bridge.attempts == 3


def test_a_bridge_that_drops_output_on_failure_can_hear_of_it(hosts: Hosts) -> None:
    bridge = Bridge(hosts, "--exit-zero", "--provider", "anthropic", timeout_s=PATIENCE_S)
    with pytest.raises(BridgeError, match=r"^zene host error PROVIDER_AUTH: no key for anthropic"):
        bridge.send("hi")


def test_the_retry_after_a_timeout_goes_on_with_the_work(hosts: Hosts) -> None:
    work = '!script call bash {"command":"echo ran >>log; sleep 600"} ;; --- ;; say "Done."'
    bridge = Bridge(hosts, "--policy", "*=allow", timeout_s=3.0)
    assert bridge.send(work) == "Done."
    assert bridge.attempts == 2
    assert (hosts.directory / "log").read_text() == "ran\n"
    assert [text for role, text in hosts.transcript("host:qq:private:1") if role == "user"] == [work]


def test_what_the_bridge_gave_up_on_ends_and_the_message_is_not_answered_twice(hosts: Hosts) -> None:
    """The bridge waits less than it says, leaves the process alone, and tries again at once."""
    work = '!script call bash {"command":"echo ran >>log; sleep 600"} ;; --- ;; say "Done."'
    bridge = Bridge(hosts, "--policy", "*=allow", timeout_s=PATIENCE_S, patience_s=1.5)
    with suppress(BridgeError):  # on a slow machine it gives up twice
        bridge.send(work)
    assert bridge.left != []
    assert eventually(lambda: all(process.poll() is not None for process in bridge.left))
    before = time.monotonic()
    patient = Bridge(hosts, "--policy", "*=allow", timeout_s=PATIENCE_S)
    assert patient.send(work) == "Done."
    assert time.monotonic() - before < PATIENCE_S
    assert (hosts.directory / "log").read_text() == "ran\n"
    assert [text for role, text in hosts.transcript("host:qq:private:1") if role == "user"] == [work]
    assert os.path.exists(hosts.home / "journal.db")


def test_the_same_words_said_later_are_a_new_message(hosts: Hosts) -> None:
    bridge = Bridge(hosts, "--idempotency-ttl", "0", timeout_s=PATIENCE_S)
    assert [bridge.send("!echo go on"), bridge.send("!echo go on")] == ["go on", "go on"]
    assert len(hosts.transcript("host:qq:private:1")) == 4
