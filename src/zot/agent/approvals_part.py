"""Approvals: the policy decides about a call, or says that a person must."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from zot.agent.denials import Denials
from zot.agent.hooks import Question
from zot.config.policy import Command, Nothing, Nowhere, Policy, Subject, Target, subject_of
from zot.errors import UserError
from zot.messages import CallBlock
from zot.store import Allowed
from zot.surrogates import has_half
from zot.text import printable_line

DEFAULT_TIMEOUT_S = 120.0
_MAX_SUMMARY = 200


class Approvals:
    """Judges the tool calls of one session by its policy, and remembers what a person allowed for good."""

    def __init__(
        self, policy: Policy, *, cwd: str, timeout_s: float = DEFAULT_TIMEOUT_S, denials: Denials | None = None
    ) -> None:
        """With ``denials`` there is never anybody to ask, and they hear of all that is denied."""
        self.timeout_s = timeout_s
        self._denials = denials
        self._policy = policy
        self._cwd = cwd
        self._always: set[Allowed] = set()

    def judge(self, call: CallBlock, args: dict[str, Any]) -> Question | str | None:
        """Return None to let a call run, why it must not, or the question that a person must answer first."""
        if self._policy.allows_all:
            return None
        subject = subject_of(args, self._cwd)
        match self._policy.action(call.name, subject):
            case "allow":
                return None
            case "deny":
                reason = f"the policy of this session denies {call.name} here"
                return self._denial(call, args, subject, reason)
            case "ask" if self._denials is not None:
                reason = "the policy of this session wants a person's approval, and there is nobody to ask"
                return self._denial(call, args, subject, reason)
            case "ask":
                if _exactly(call.name, args, subject) in self._always:
                    return None
                return Question(call, args, summarise(call.name, args, subject), subject)

    def _denial(self, call: CallBlock, args: dict[str, Any], subject: Subject, reason: str) -> str:
        """Return what the model is told of a call that is denied, having told whoever wants to know."""
        if self._denials is None:
            return f"not run: {reason}"
        is_final = self._policy.is_private(call.name, subject)
        advice = self._denials.note(call.name, describe(args, subject), is_final=is_final)
        return f"not run: {reason}; {advice}"

    def remember(self, question: Question) -> Allowed | None:
        """Let the same call run from now on: the very command, or the tool on the path that it led to when asked."""
        allowed = _exactly(question.call.name, question.args, question.subject)
        self._always.add(allowed)
        # What cannot be written down as it is must not come back as something else.
        return None if has_half(f"{allowed.command}{allowed.path}") else allowed

    def recall(self, allowed: Allowed) -> None:
        """Know again what was remembered, or revoked, in an earlier life of the session."""
        if allowed.revoked:
            self._always.discard(msgspec.structs.replace(allowed, revoked=False))
        else:
            self._always.add(allowed)

    def remembered(self) -> list[Allowed]:
        """Return what was allowed for good."""
        return sorted(self._always, key=lambda one: (one.tool, one.subject))

    def forget(self, allowed: Allowed) -> Allowed:
        """Return what revokes it; once that is recalled, it is asked about again. Raise UserError if not remembered."""
        if allowed not in self._always:
            raise UserError("that is not remembered")
        return msgspec.structs.replace(allowed, revoked=True)


def summarise(tool: str, args: dict[str, Any], subject: Subject) -> str:
    """Return one line that tells a person what a call would do, and where it really does it."""
    replaces = tool == "write" and isinstance(subject, Target) and os.path.lexists(subject.real)
    loss = ", in place of what is there" if replaces else ""
    return printable_line(f"{tool}: {describe(args, subject)}{loss}", _MAX_SUMMARY)


def describe(args: dict[str, Any], subject: Subject) -> str:
    """Return what a call is about."""
    path = _place(subject) if isinstance(subject, Target) else args.get("path")
    match args:
        case {"command": str(command)}:
            return command
        case {"path": str(), "edits": list(edits)}:
            return f"{path} ({len(edits)} replacement{'s' if len(edits) != 1 else ''})"
        case {"path": str(), "content": str(content)}:
            return f"{path} ({len(content.encode('utf-8', 'replace'))} bytes)"
        case {"path": str()}:
            return f"{path}"
        case _:
            return msgspec.json.encode(args).decode()


def _place(target: Target) -> str:
    """Return where a path really leads, from the working directory on if it is there."""
    inside = os.path.join(os.path.realpath(target.cwd), "")
    return target.real.removeprefix(inside)


def _exactly(tool: str, args: dict[str, Any], subject: Subject) -> Allowed:
    """Return what "always" goes by: of a path where it leads, however it was written.

    A command says everything only to the shell. What another tool does with one may depend on all its arguments.
    """
    match subject:
        case Command(text=text) if tool == "bash":
            return Allowed(tool, command=text)
        case Command():
            return Allowed(tool, command=_written(args))
        case Target(real=path) | Nowhere(written=path):
            return Allowed(tool, path=path)
        case Nothing():
            return Allowed(tool)


def _written(args: dict[str, Any]) -> str:
    """Return arguments as one text, the same for the same ones."""
    import json  # Few sessions ever need it; msgspec would not write halves of characters.

    return json.dumps(args, sort_keys=True, ensure_ascii=False)
