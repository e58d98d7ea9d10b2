"""Approvals: the policy or a person decides about a tool call. Open questions survive a restart as parked runs."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any, Final, cast, get_args

import msgspec

from zot.agent.hooks import ApprovalQuestion, ApprovalVerdict, Approver
from zot.agent.run import Run
from zot.config.policy import (
    CommandSubject,
    NoSubject,
    Nowhere,
    PathSubject,
    Policy,
    SeveralSubjects,
    Subject,
    possible_names,
    subject_of,
)
from zot.encoding import standard_json
from zot.errors import UserError
from zot.events import ApprovalAnswer, ApprovalRequest, Decision, Undecided, UserMessage
from zot.messages import CallBlock, timestamp
from zot.run_summary import BlockedCall
from zot.store import PermissionGranted, Row
from zot.text import exact_line, has_surrogate, printable_line

log = logging.getLogger("zot")

DEFAULT_TIMEOUT_S = 120.0
_MAX_ABOUT = 200
_MAX_SUMMARY = 200
#: Advice for a call on a private path, which no policy can allow.
_FINAL = "no policy allows that"
_UNATTENDED: Final = "not run: the policy of this session requires a person's approval, and no person can be asked"
#: Recent answers kept to explain why a late answer is refused.
_MAX_ANSWERS: Final = 100


class Denials:
    """Logger of one request's denials. ``where`` names the request; ``advice`` says how to allow more.

    ``mask`` removes secrets from a line.
    """

    def __init__(self, where: str, *, advice: str, mask: Callable[[str], str]) -> None:
        self._where = where
        self._advice = advice
        self._mask = mask
        self._logged: set[str] = set()

    def note(self, tool: str, about: str, *, is_final: bool) -> str:
        """Log a denied call once; return the advice for it."""
        advice = _FINAL if is_final else self._advice
        # Mask before cutting: a truncated secret would not be recognised.
        said = printable_line(self._mask(about), _MAX_ABOUT)
        line = f"{self._where}: {printable_line(tool, _MAX_ABOUT)} was denied: {said}"
        if line not in self._logged:
            self._logged.add(line)
            log.warning("%s; %s", line, advice)
        return advice


class Approvals:
    """Judge of a session's tool calls: applies its policy and remembers permanent permissions."""

    def __init__(
        self, policy: Policy, *, cwd: str, timeout_s: float = DEFAULT_TIMEOUT_S, denials: Denials | None = None
    ) -> None:
        """With ``denials`` no person can be asked; every denial is logged there."""
        self.timeout_s = timeout_s
        self._denials = denials
        #: The rules in force; a later call is judged by the policy of its time.
        self.policy = policy
        self._cwd = cwd
        self._always: set[PermissionGranted] = set()

    def judge(self, call: CallBlock, args: dict[str, Any]) -> ApprovalQuestion | str | None:
        """Return None to allow a call, the reason to deny it, or the question for a person."""
        if self.policy.allows_all:
            return None
        subject = subject_of(args, self._cwd, call.name)
        match self.policy.action(call.name, subject, possible_names(args, self._cwd, call.name)):
            case "allow":
                return None
            case "deny":
                reason = f"the policy of this session denies {call.name} here"
                return self._denial(call, args, subject, reason)
            case "ask" if self._denials is not None:
                reason = "the policy of this session requires a person's approval, and no person can be asked"
                return self._denial(call, args, subject, reason)
            case "ask":
                if _exactly(call.name, args, subject) in self._always:
                    return None
                return ApprovalQuestion(call, args, summarise(call.name, args, subject), subject)

    def _denial(self, call: CallBlock, args: dict[str, Any], subject: Subject, reason: str) -> str:
        """Log a denial, if denials are logged, and return the result for the model."""
        if self._denials is None:
            return f"not run: {reason}"
        is_final = self.policy.is_private(call.name, subject)
        advice = self._denials.note(call.name, describe(args, subject), is_final=is_final)
        return f"not run: {reason}; {advice}"

    def remember(self, question: ApprovalQuestion) -> PermissionGranted | None:
        """Allow the same call from now on: the exact command, or the tool on the resolved path.

        Return the row to record; None if it cannot be recorded faithfully.
        """
        allowed = _exactly(question.call.name, question.args, question.subject)
        self._always.add(allowed)
        # A lone surrogate would be stored as another character.
        return None if has_surrogate(f"{allowed.command}{allowed.path}") else allowed

    def recall(self, allowed: PermissionGranted) -> None:
        """Restore a recorded permission, or its revocation."""
        if allowed.revoked:
            self._always.discard(msgspec.structs.replace(allowed, revoked=False))
        else:
            self._always.add(allowed)

    def remembered(self) -> list[PermissionGranted]:
        """Return the permanent permissions."""
        return sorted(self._always, key=lambda one: (one.tool, one.subject))

    def forget(self, allowed: PermissionGranted) -> PermissionGranted:
        """Return the row that revokes ``allowed``; `recall` applies it. Raise UserError if it is not remembered."""
        if allowed not in self._always:
            raise UserError("no such permission is stored")
        return msgspec.structs.replace(allowed, revoked=True)


def summarise(tool: str, args: dict[str, Any], subject: Subject) -> str:
    """Return a one-line summary of a call for a person, with the real path. What cannot be seen is escaped."""
    replaces = tool == "write" and isinstance(subject, PathSubject) and os.path.lexists(subject.real)
    loss = ", replacing the existing file" if replaces else ""
    return exact_line(f"{tool}: {describe(args, subject)}{loss}", _MAX_SUMMARY)


def describe(args: dict[str, Any], subject: Subject) -> str:
    """Return the command, path or arguments of a call."""
    path = _place(subject) if isinstance(subject, PathSubject) else args.get("path")
    match args:
        case _ if isinstance(subject, SeveralSubjects):
            return msgspec.json.encode(args).decode()
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


def _place(target: PathSubject) -> str:
    """Return the resolved path, relative to the working directory if it is inside."""
    inside = os.path.join(os.path.realpath(target.cwd), "")
    return target.real.removeprefix(inside)


def _exactly(tool: str, args: dict[str, Any], subject: Subject) -> PermissionGranted:
    """Return the key of "allow always"; a path is resolved.

    A command alone identifies a call of the shell. Other tools may depend on all their arguments.
    """
    match subject:
        case CommandSubject(text=text) if tool == "bash":
            return PermissionGranted(tool, command=text)
        case CommandSubject() | SeveralSubjects():
            return PermissionGranted(tool, command=_written(args))
        case PathSubject(real=path) | Nowhere(written=path):
            return PermissionGranted(tool, path=path)
        case NoSubject():
            return PermissionGranted(tool)


def _written(args: dict[str, Any]) -> str:
    """Return a canonical text of ``args``."""
    text: str = standard_json().dumps(args, sort_keys=True, ensure_ascii=False)
    return text


class WaitingForApproval(msgspec.Struct, frozen=True):
    """A run, with ``rows`` so far, that stopped at a ``call`` of turn ``step`` to ask a person.

    ``answer`` is the person's, if there is one: the call has not started since.
    """

    request: ApprovalRequest
    answer: ApprovalAnswer | None
    call: CallBlock
    step: int
    rows: Sequence[Row]

    def left_s(self, now: float) -> float:
        """Return the seconds until the deadline; negative if it has passed."""
        return datetime.fromisoformat(self.request.deadline).timestamp() - now


def expiry_text(request: ApprovalRequest) -> str:
    """Return the result for the model of a call not approved by its deadline."""
    return f"not run: no person approved it by {request.deadline}"


class ParkedElsewhere(Exception):
    """The question is left to another process; no answer is awaited here."""


class _Open(msgspec.Struct):
    """An open question. ``question`` is None if the call would now differ from the one the person saw.

    ``outcome`` is the decision, or the reason there is none; None if the question is left to another process.
    """

    run: Run
    request: ApprovalRequest
    question: ApprovalQuestion | None
    left_s: float
    refusal: str
    outcome: asyncio.Future[Decision | Undecided | None]
    is_taken: bool = False


class PendingApprovals:
    """The open question of a session, at most one. The first answer wins."""

    def __init__(self, approver: Approver, *, clock: Callable[[], float] = time.time) -> None:
        self._approver = approver
        self._clock = clock
        self._asked = 0
        self._open: _Open | None = None
        self._answers: dict[str, ApprovalAnswer] = {}

    @property
    def pending(self) -> ApprovalRequest | None:
        """The request that waits for an answer."""
        return self._open.request if self._open is not None and not self._open.outcome.done() else None

    @property
    def prompted_by(self) -> Collection[str]:
        """Names of the tokens whose clients prompted or steered the run that waits; none if no run does."""
        return frozenset() if self._open is None else frozenset(self._open.run.prompted_by)

    async def ask(self, run: Run, question: ApprovalQuestion, *, number: int, can_ask: bool) -> ApprovalVerdict:
        """Ask a person about a call and return the outcome.

        ``number`` is the run's, part of the request's id: a late answer to a question of an earlier run cannot
        match.
        """
        if not can_ask:
            run.blocked.append(BlockedCall(question.call.name))
            return ApprovalVerdict(question, _UNATTENDED)
        self._asked += 1
        timeout_s = self._approver.timeout_s
        deadline = timestamp(self._clock() + timeout_s)
        request_id = f"approval_{number}_{self._asked}"
        request = ApprovalRequest(request_id, question.call.name, question.args, question.summary, deadline)
        self._open = _opened(
            run, request, question, timeout_s, f"not run: no person approved it within {timeout_s:g} s"
        )
        try:
            run.approval_requested(request)
            return ApprovalVerdict(question, self._refusal(await self._outcome(self._open), self._open.refusal))
        finally:
            self._open = None

    def restore(self, run: Run, rows: Sequence[Row]) -> None:
        """Restore the earlier questions of a run whose process is gone, and the names of those who prompted it."""
        for row in rows:
            if isinstance(row, ApprovalRequest):
                self._asked = max(self._asked, _number(row.id))
            elif isinstance(row, ApprovalAnswer):
                self._remember(row)
            elif isinstance(row, UserMessage):
                run.prompted_by.add(row.by)

    def reopen(self, run: Run, waiting: WaitingForApproval, *, left_s: float) -> None:
        """Reopen the question of a run whose process is gone, for ``left_s`` seconds."""
        self.restore(run, waiting.rows)
        question = self._approver.judge(waiting.call, waiting.request.args)
        is_same = isinstance(question, ApprovalQuestion) and question.summary == waiting.request.summary
        self._open = _opened(
            run,
            waiting.request,
            question if isinstance(question, ApprovalQuestion) and is_same else None,
            left_s,
            expiry_text(waiting.request),
        )
        if waiting.answer is not None:
            self._open.outcome.set_result(waiting.answer.decision)

    async def resume(self, waiting: WaitingForApproval) -> ApprovalVerdict | None:
        """Return the outcome of a reopened question; None if the call that was allowed has changed since."""
        reopened = self._open
        assert reopened is not None
        try:
            decision = await self._outcome(reopened)
        finally:
            self._open = None
        refusal = self._refusal(decision, reopened.refusal)
        if reopened.question is None and refusal is None:
            return None
        return ApprovalVerdict(reopened.question or ApprovalQuestion(waiting.call, waiting.request.args, ""), refusal)

    def answer(self, request_id: str, decision: str, by: str = "") -> None:
        """Answer an approval request; ``by`` names the person. The first answer counts and is recorded.

        Raise UserError if the request is not open, with its outcome if that is known, or if the decision is unknown;
        StoreFailed.
        """
        if decision not in get_args(Decision):
            raise UserError(f"{decision!r} is not a decision; use one of: {', '.join(get_args(Decision))}")
        waiting = self._open
        if waiting is None or waiting.request.id != request_id or waiting.outcome.done() or waiting.is_taken:
            raise UserError(f"no approval request {request_id!r} is waiting: {self._reason_closed(request_id)}")
        answer = ApprovalAnswer(request_id, cast(Decision, decision), by)
        waiting.is_taken = True
        try:
            allowed = None
            if decision == "allow_always" and waiting.question is not None:
                allowed = self._approver.remember(waiting.question)
            waiting.run.approval_answered(answer, *([allowed] if allowed is not None else []))
        except BaseException:
            waiting.is_taken = False
            raise
        self._remember(answer)
        waiting.outcome.set_result(answer.decision)

    def give_up(self, why: Undecided) -> None:
        """Close the open question without a decision: no person can answer it, or the answer is not needed."""
        if self.pending is not None and self._open is not None:
            self._open.outcome.set_result(why)

    def park(self) -> None:
        """Leave the open question to another process: waiters here get ParkedElsewhere."""
        if self.pending is not None and self._open is not None:
            self._open.outcome.set_result(None)

    async def _outcome(self, waiting: _Open) -> Decision | Undecided:
        """Wait for an answer or the deadline. Record an outcome that no person decided."""
        if not waiting.outcome.done():
            await asyncio.wait({waiting.outcome}, timeout=waiting.left_s)
        if not waiting.outcome.done():
            waiting.outcome.set_result("expired")
        decision = waiting.outcome.result()
        if decision is None:
            raise ParkedElsewhere
        if waiting.request.id not in self._answers:
            answer = ApprovalAnswer(waiting.request.id, decision)
            self._remember(answer)
            waiting.run.approval_answered(answer)
        return decision

    def _remember(self, answer: ApprovalAnswer) -> None:
        self._answers[answer.id] = answer
        while len(self._answers) > _MAX_ANSWERS:
            del self._answers[next(iter(self._answers))]

    def _reason_closed(self, request_id: str) -> str:
        """Return why a question is not open."""
        answer = self._answers.get(request_id)
        match answer.decision if answer is not None else None:
            case None:
                return "it was answered, expired or never made"
            case "expired":
                return "it was not answered in time"
            case "unanswerable":
                return "no client was left that could answer it"
            case "aborted":
                return "its run was aborted"
            case decision:
                return f"the answer was {decision}{f', by {answer.by}' if answer is not None and answer.by else ''}"

    def _refusal(self, decision: Decision | Undecided, expired: str) -> str | None:
        match decision:
            case "allow_once" | "allow_always":
                return None
            case "reject":
                return "not run: the user refused this call"
            case "expired":
                return expired
            case "unanswerable":
                return _UNATTENDED
            case "aborted":
                return "not run: the run was aborted"


def _opened(
    run: Run, request: ApprovalRequest, question: ApprovalQuestion | None, left_s: float, refusal: str
) -> _Open:
    return _Open(run, request, question, left_s, refusal, asyncio.get_running_loop().create_future())


def _number(request_id: str) -> int:
    last = request_id.rpartition("_")[2]
    return int(last) if last.isdecimal() else 0
