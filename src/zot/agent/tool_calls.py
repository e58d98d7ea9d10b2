"""The tool calls of one step: prepared by extensions and approvals, then run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from zot.agent.hooks import ApprovalQuestion, ApprovalVerdict, Approver, Extensions
from zot.agent.run import RecordedCall, Run
from zot.errors import ToolFailed, plain_reason
from zot.messages import CallBlock, TextBlock
from zot.run_summary import BlockedCall
from zot.tools.base import CannotConfine, Output, Tool, ToolContext, ToolFailedWithOutput, undeclared_argument


class ReadyCall(msgspec.Struct, frozen=True):
    """A call that may run with these arguments. ``note`` is added to its result."""

    tool: Tool
    args: dict[str, Any]
    note: str


class RefusedCall(msgspec.Struct, frozen=True):
    """A call that must not run, with the reason for the model."""

    reason: str


Prepared: TypeAlias = ReadyCall | RefusedCall


class CallRunner:
    """Runner of tool calls in the model's order. Read-only calls run concurrently; results keep the order."""

    def __init__(self, extensions: Extensions, approver: Approver, *, cwd: str, env: Mapping[str, str]) -> None:
        self._extensions = extensions
        self._approver = approver
        self._cwd = cwd
        self._env = env

    async def run(self, run: Run, tools: Mapping[str, Tool]) -> ApprovalQuestion | None:
        """Run the open calls of ``run`` until each has a result, or return the question that a person must answer
        first.

        Called again with the answer, it continues.
        """
        while calls := run.open_calls():
            # A call is recorded, and delivered to extensions, before it has any effect.
            await run.recorder.store.settled()
            group, question = await self._next_group(run, calls, tools)
            if question is not None and not group:
                return question
            await self._run_group(run, group)
            await run.recorder.drain()
        return None

    async def _next_group(
        self, run: Run, calls: Sequence[CallBlock], tools: Mapping[str, Tool]
    ) -> tuple[list[tuple[CallBlock, Prepared]], ApprovalQuestion | None]:
        """Return the calls that can run together next, and the question that blocks the rest, if any."""
        group: list[tuple[CallBlock, Prepared]] = []
        for call in calls:
            prepared = await self._prepare(run, call, tools)
            if isinstance(prepared, ApprovalQuestion):
                return group, prepared
            alone = isinstance(prepared, ReadyCall) and not prepared.tool.read_only
            if alone and group:
                break
            group.append((call, prepared))
            if alone:
                break
        return group, None

    async def _prepare(self, run: Run, call: CallBlock, tools: Mapping[str, Tool]) -> Prepared | ApprovalQuestion:
        if call.args is None:
            return RefusedCall(f"not run: the arguments are not a usable JSON object. What was sent: {call.malformed}")
        tool = tools.get(call.name)
        if tool is None:
            known = ", ".join(sorted(tools)) or "none"
            return RefusedCall(f"there is no tool named {call.name!r}; there are: {known}")
        decision = run.decisions.get(call.id)
        if decision is None:
            decision = run.decisions[call.id] = await self._extensions.tool_called(call, call.args)
        if decision.refusal is not None:
            return RefusedCall(decision.refusal)
        if undeclared := undeclared_argument(tool.spec.schema, decision.args):
            return RefusedCall(f"not run: {call.name} has {undeclared}")
        match _answered(run.answers.get(call.id), self._approver.judge(call, decision.args)):
            case None:
                return ReadyCall(tool, decision.args, decision.note)
            case str(reason):
                return RefusedCall(reason)
            case question:
                return question

    async def _run_group(self, run: Run, group: Sequence[tuple[CallBlock, Prepared]]) -> None:
        ready = [(call, prepared.tool) for call, prepared in group if isinstance(prepared, ReadyCall)]
        await run.beginning([call for call, _ in ready], changing=any(not tool.read_only for _, tool in ready))
        if len(group) == 1:
            ((call, prepared),) = group
            context = ToolContext(self._cwd, self._env, run.owners, RecordedCall(run, call))
            output, is_error = await self._outcome(run, prepared, context)
            run.result(call, output, is_error=is_error, extension=_extension(prepared))
            return
        for (call, prepared), outcome in zip(group, await self._together(run, group), strict=True):
            output, is_error = outcome
            run.result(call, output, is_error=is_error, extension=_extension(prepared))

    async def _together(self, run: Run, group: Sequence[tuple[CallBlock, Prepared]]) -> list[tuple[Output, bool]]:
        """Run calls concurrently. They show no progress: it would appear among the results of the others."""
        context = ToolContext(self._cwd, self._env, run.owners)
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(self._outcome(run, prepared, context), name=f"zot call {call.id}")
                    for call, prepared in group
                ]
        except BaseExceptionGroup as problems:
            raise problems.exceptions[0] from None
        return [task.result() for task in running]

    async def _outcome(self, run: Run, prepared: Prepared, context: ToolContext) -> tuple[Output, bool]:
        """Return the output of a call, and whether it failed. A failing tool is a result, not an error."""
        if isinstance(prepared, RefusedCall):
            return (TextBlock(prepared.reason),), True
        try:
            output = await prepared.tool.run(prepared.args, context)
        except ToolFailedWithOutput as problem:
            return problem.output, True
        except ToolFailed as problem:
            if isinstance(problem, CannotConfine):
                run.blocked.append(BlockedCall(prepared.tool.spec.name, problem.why))
            return (TextBlock(str(problem)),), True
        except OSError as problem:
            # A system error is a result for the model, not the end of its run.
            return (TextBlock(f"failed: {plain_reason(problem)}"),), True
        return ((*output, TextBlock(prepared.note)) if prepared.note else output), False


def _extension(prepared: Prepared) -> str:
    return prepared.tool.spec.extension if isinstance(prepared, ReadyCall) else ""


def _answered(answer: ApprovalVerdict | None, verdict: ApprovalQuestion | str | None) -> ApprovalQuestion | str | None:
    """Return ``verdict``, or the answer of a person to that question."""
    if answer is not None and answer.refusal is not None:
        return answer.refusal
    if answer is None or not isinstance(verdict, ApprovalQuestion) or answer.question.args != verdict.args:
        return verdict  # With other arguments it is another question.
    if answer.question.subject != verdict.subject:
        return "not run: the path resolves to another file than when it was approved"
    return None
