"""Approvals: the policy decides about a call, or says that a person must."""

from __future__ import annotations

import logging
import os
from typing import Any

import msgspec

from zot.agent.hooks import Question
from zot.agent.policy import Policy, Subject, Target, subject_of
from zot.messages import CallBlock
from zot.printable import printable

log = logging.getLogger("zot")

DEFAULT_TIMEOUT_S = 120.0
_MAX_SUMMARY = 200


class Approvals:
    """Judges the tool calls of one session by its policy, and remembers what a person allowed for good."""

    def __init__(self, policy: Policy, *, cwd: str, timeout_s: float = DEFAULT_TIMEOUT_S, advice: str = "") -> None:
        """``advice`` says how more would be allowed: the model hears it with every denial, and so does the log."""
        self.timeout_s = timeout_s
        self._advice = advice
        self._policy = policy
        self._cwd = cwd
        self._always: set[tuple[str, Subject | str]] = set()

    def judge(self, call: CallBlock, args: dict[str, Any]) -> Question | str | None:
        """Return None to let a call run, why it must not, or the question that a person must answer first."""
        if not self._policy.rules and self._policy.otherwise == "allow":
            return None
        subject = subject_of(args, self._cwd)
        match self._policy.action(call.name, subject):
            case "allow":
                return None
            case "deny":
                return self._denial(call)
            case "ask":
                if (call.name, _exactly(subject)) in self._always:
                    return None
                return Question(call, args, summarise(call.name, args, subject), subject)

    def _denial(self, call: CallBlock) -> str:
        denial = f"not run: the policy of this session denies {call.name} here"
        if not self._advice:
            return denial
        log.warning("%s was denied: %s", printable(call.name), self._advice)
        return f"{denial}; {self._advice}"

    def remember(self, question: Question) -> None:
        """Let the same call run from now on: the very command, or the tool on the path that it led to when asked."""
        self._always.add((question.call.name, _exactly(question.subject)))


def summarise(tool: str, args: dict[str, Any], subject: Subject) -> str:
    """Return one line that tells a person what a call would do, and where it really does it."""
    path = _place(subject) if isinstance(subject, Target) else args.get("path")
    match args:
        case {"command": str(command)}:
            text = command
        case {"path": str(), "edits": list(edits)}:
            text = f"{path} ({len(edits)} replacement{'s' if len(edits) != 1 else ''})"
        case {"path": str(), "content": str(content)}:
            text = f"{path} ({len(content.encode('utf-8', 'replace'))} bytes)"
        case {"path": str()}:
            text = f"{path}"
        case _:
            text = msgspec.json.encode(args).decode()
    text = printable(" ".join(f"{tool}: {text}".split()))
    return text if len(text) <= _MAX_SUMMARY else f"{text[:_MAX_SUMMARY]}…"


def _place(target: Target) -> str:
    """Return where a path really leads, from the working directory on if it is there."""
    inside = os.path.join(os.path.realpath(target.cwd), "")
    return target.real.removeprefix(inside)


def _exactly(subject: Subject) -> Subject | str:
    """Return what "always" goes by: of a path where it leads, however it was written."""
    return subject.real if isinstance(subject, Target) else subject
