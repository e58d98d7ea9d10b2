"""Approvals: the policy decides about a call, or says that a person must."""

from __future__ import annotations

from typing import Any

import msgspec

from zot.agent.hooks import Question
from zot.agent.policy import Policy, Subject
from zot.messages import CallBlock

DEFAULT_TIMEOUT_S = 120.0
_MAX_SUMMARY = 200


class Approvals:
    """Judges the tool calls of one session by its policy, and remembers what a person allowed for good."""

    def __init__(self, policy: Policy, *, cwd: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._policy = policy
        self._cwd = cwd
        self._always: set[tuple[str, str]] = set()

    def judge(self, call: CallBlock, args: dict[str, Any]) -> Question | str | None:
        """Return None to let a call run, why it must not, or the question that a person must answer first."""
        subject = Subject.of(args, self._cwd)
        match self._policy.action(call.name, subject):
            case "allow":
                return None
            case "deny":
                return f"not run: the policy of this session denies {call.name} here"
            case "ask":
                if (call.name, subject.exactly()) in self._always:
                    return None
                return Question(call, args, summarise(call.name, args))

    def remember(self, question: Question) -> None:
        """Let the same call run from now on: the very command, or the tool on that path."""
        self._always.add((question.call.name, Subject.of(question.args, self._cwd).exactly()))


def summarise(tool: str, args: dict[str, Any]) -> str:
    """Return one line that tells a person what a call would do."""
    match args:
        case {"command": str(command)}:
            text = command
        case {"path": str(path), "edits": list(edits)}:
            text = f"{path} ({len(edits)} replacement{'s' if len(edits) != 1 else ''})"
        case {"path": str(path), "content": str(content)}:
            text = f"{path} ({len(content.encode('utf-8', 'replace'))} bytes)"
        case {"path": str(path)}:
            text = path
        case _:
            text = msgspec.json.encode(args).decode()
    text = " ".join(f"{tool}: {text}".split())
    return text if len(text) <= _MAX_SUMMARY else f"{text[:_MAX_SUMMARY]}…"
