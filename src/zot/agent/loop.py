"""The agent loop: model, tools, model, until the model stops; within the session's budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeAlias, cast, get_args

import msgspec

from zot.agent.compaction import (
    AutoCompact,
    ContextCompactor,
    ContextEstimator,
    ContextShares,
    answer_tokens,
    min_tokens,
)
from zot.agent.hooks import (
    AllowAll,
    ApprovalQuestion,
    ApprovalVerdict,
    Approver,
    Extensions,
    MessageDecision,
    NoExtensions,
)
from zot.agent.run import QuietCall, RecordedCall, Run, RunPhase
from zot.agent.transcript import Transcript
from zot.errors import (
    BudgetExhausted,
    ContextTooLong,
    PromptTooLong,
    ProviderError,
    StepsExhausted,
    ToolFailed,
    TurnBlocked,
    UserError,
    plain_reason,
)
from zot.events import Usage
from zot.messages import CallBlock, Counters, Message, TextBlock, ToolSpec, text_of
from zot.providers.base import (
    Catalogue,
    EncodedMessages,
    Model,
    ModelReply,
    ModelRequest,
    Provider,
    Reasoning,
    ReplyStream,
)
from zot.run_summary import BlockedCall
from zot.store import SettingsChanged
from zot.tools.base import (
    CannotConfine,
    Output,
    Tool,
    ToolContext,
    ToolFailedWithOutput,
    ToolSource,
    undeclared_argument,
)

if TYPE_CHECKING:
    from zot.agent.output_schema import Expected  # Imported lazily elsewhere: rarely needed, slow to load.


#: The result for the model of a call that had begun when its worker was lost.
UNCERTAIN_RESULT = (
    "uncertain: this call began, and the machine that ran it was lost before there was a result. It may have had its "
    "effects, in part or in full, and was not run again; check before you repeat it"
)
#: How often a read-only call starts, if the processes that run it keep dying.
_MAX_STARTS = 3


class Budget(msgspec.Struct, frozen=True):
    """Limits for all model calls of a session together; None means unlimited."""

    max_cost: float | None = None
    max_tokens_total: int | None = None

    def check(self, used: Counters) -> None:
        """Raise BudgetExhausted if nothing is left for another call.

        Calls without a known price count only in tokens.
        """
        if self.max_cost is not None and used.cost_usd >= self.max_cost:
            raise BudgetExhausted(
                f"stopped: the session has cost ${_dollars(used.cost_usd)}, and max-cost allows "
                f"${_dollars(self.max_cost)}; to continue, start with a higher --max-cost",
                setting="max_cost",
                used=used.cost_usd,
                allowed=self.max_cost,
            )
        tokens = used.input + used.output + used.cache_read + used.cache_write
        if self.max_tokens_total is not None and tokens >= self.max_tokens_total:
            raise BudgetExhausted(
                f"stopped: the session has used {tokens} tokens, and max-tokens-total allows "
                f"{self.max_tokens_total}; to continue, start with a higher --max-tokens-total",
                setting="max_tokens_total",
                used=tokens,
                allowed=self.max_tokens_total,
            )


def _dollars(amount: float) -> str:
    """Return an amount to the cent, or with as many decimals as it needs."""
    text = f"{amount:.6f}"
    return text[:-4] + text[-4:].rstrip("0")


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an agent: its model (None for the provider's first), system prompt, directory and limits."""

    model_id: str | None = None
    system: str
    cwd: str
    #: The environment of its tools.
    env: Mapping[str, str]
    reasoning: Reasoning = "off"
    max_steps: int = 50
    budget: Budget = Budget()
    auto_compact: AutoCompact = AutoCompact()
    #: The form that its answers must have.
    expected: Expected | None = None
    #: The name of the configured agent.
    name: str = ""
    #: Untrusted users talk to it.
    guarded: bool = False
    #: Its tools are confined to the directory.
    locked: bool = False


class Agent:
    """A model with tools and settings. ``catalogue`` has the models to choose from, ``source`` further tools."""

    def __init__(
        self,
        provider: Provider,
        catalogue: Catalogue,
        settings: AgentSettings,
        *,
        tools: Sequence[Tool] = (),
        source: ToolSource | None = None,
        extensions: Extensions | None = None,
        approver: Approver | None = None,
    ) -> None:
        self.name = settings.name
        self.guarded = settings.guarded
        self.locked = settings.locked
        self.provider = provider
        self.catalogue = catalogue
        self.model: Model = catalogue.find(settings.model_id)
        #: The model of the newest call, which is charged for its usage even if another was chosen meanwhile.
        self.called_model = self.model
        self.cwd = settings.cwd
        self.extensions = extensions or NoExtensions()
        self.system = settings.system
        self._tools = {tool.spec.name: tool for tool in tools}
        self.source = source
        self._max_steps = settings.max_steps
        self._budget = settings.budget
        self.reasoning = settings.reasoning
        self.approver = approver or AllowAll()
        self._expected = settings.expected
        self._calls = CallRunner(self.extensions, self.approver, cwd=settings.cwd, env=settings.env)
        self._encoded = EncodedMessages()
        self.auto_compact = settings.auto_compact
        #: Estimates the share of the window that the conversation takes.
        self.gauge = ContextEstimator()

    def use_model(self, model_id: str) -> None:
        """Use another model from the next call on. Raise UserError, with the known ones, if there is no such model."""
        self.model = self.catalogue.find(model_id)

    def configured(self) -> SettingsChanged:
        """Return the agent's current settings as a row."""
        return SettingsChanged(
            self.provider.name, self.model.id, self.system, self.reasoning, self.cwd, self.name, self.guarded
        )

    def use_reasoning(self, level: str) -> None:
        """Set the reasoning level from the next call on. Raise UserError if there is no such level."""
        if level not in get_args(Reasoning):
            raise UserError(f"{level!r} is not a reasoning level; use one of {', '.join(get_args(Reasoning))}")
        self.reasoning = cast(Reasoning, level)

    def context(self, messages: Sequence[Message]) -> ContextShares:
        """Return what fills the window in a request with these messages."""
        return self.gauge.shares(self.system, [tool.spec for tool in self._offered().values()], messages)

    def measured(self, usage: Usage, transcript: Transcript) -> None:
        """Record a service's count for a reply, the newest message, that another process received."""
        counters = Counters(usage.input, usage.output, usage.cache_read, usage.cache_write, usage.cost_usd)
        specs = [tool.spec for tool in self._offered().values()]
        self.gauge.measured(counters, self.system, specs, transcript.messages)

    async def run(self, run: Run, steer: Callable[[Run], bool]) -> ApprovalQuestion | None:
        """Answer the newest user message. Return the question a person must answer first; None when done.

        State comes from the transcript, so calling this again continues a parked run. ``steer`` adds prompts sent
        meanwhile and returns True if there were any. Raise StepsExhausted, BudgetExhausted, ProviderError and the
        like; the owner of the run reports them.
        """
        await self.extensions.ready()
        while True:
            if run.phase is RunPhase.USING_TOOLS:
                question = await self._calls.run(run, self._offered())
                if question is not None:
                    return question
            if run.phase is RunPhase.ANSWERED and not steer(run) and not self._complain(run):
                return None
            if run.step >= self._max_steps:
                raise StepsExhausted(f"stopped after {self._max_steps} steps, the limit set by max-steps")
            self._budget.check(run.recorder.totals)
            steer(run)
            await self._turn(run)

    def _complain(self, run: Run) -> bool:
        """Send the model the problems of its answer. True if there are any. Raise AnswerRejected."""
        if self._expected is None:
            return False
        complaint = self._expected.complaint(run.recorder.transcript, made=run.complaints)
        if complaint is None:
            return False
        run.complaints += 1
        run.prompt(complaint)
        return True

    async def ask_plainly(self, system: str, messages: Sequence[Message], run: Run, *, max_tokens: int) -> ModelReply:
        """Ask the model for text alone: no tools; nothing is shown or recorded except usage.

        Raise BudgetExhausted, ProviderError and the like.
        """
        self._budget.check(run.recorder.totals)
        self.called_model = self.model
        request = ModelRequest(
            model=self.model.id,
            system=system,
            messages=messages,
            tools=(),
            max_tokens=min(max_tokens, self.model.max_output),
            reasoning="off",
            encoded=EncodedMessages(),
        )
        with closing(self.provider.call(request, run.retrying)) as call:
            await call.open()
            try:
                while await call.read():
                    pass
            finally:
                run.spent(call.reply().counters)
            return call.reply()

    def check_fit(self, text: str) -> None:
        """Raise PromptTooLong if a prompt certainly exceeds the model's window. In doubt the service decides."""
        needed, limit = min_tokens(text), self.model.context_window
        if needed > limit and self.model.window_known:
            raise PromptTooLong(
                f"the prompt is too long: it takes at least {needed} tokens, and the model's window holds {limit}",
                needed=needed,
                limit=limit,
            )

    def _fits_alone(self, message: Message) -> bool:
        """True if a message would fit the window, by estimate, as the only one."""
        if not self.auto_compact.on:
            return True
        specs = [tool.spec for tool in self._offered().values()]
        needed = ContextEstimator().need(self.system, specs, [message])
        return needed <= self.gauge.limit(self.model, self.auto_compact.at)

    def withdraw_prompt(self, run: Run, text: str | None) -> None:
        """Withdraw the newest user message after it did not fit, if it is ``text`` or would not fit even alone.

        Left in place, it would make every later request fail.
        """
        for said in run.recorder.transcript.messages[-1:]:
            if said.role == "user" and text_of(said.content) != text and not self._fits_alone(said):
                text = text_of(said.content)
        if text is not None:
            run.withdraw_prompt(text)

    async def _turn(self, run: Run) -> None:
        """Call the model once and record its reply. Its tool calls are then open in the transcript."""
        run.turn_started()
        if self.extensions.attentive:
            await run.recorder.store.settled()
        reason = await self.extensions.turn_starting(run.step)
        if reason is not None:
            raise TurnBlocked(reason)
        specs, transcript = tuple(tool.spec for tool in self._offered().values()), run.recorder.transcript
        with closing(await self._opened(run, specs)) as call:
            withheld = self.extensions.holds_messages
            run.reply_started(call, withheld=withheld)
            try:
                while events := await call.read():
                    if run.received(events):
                        await run.recorder.store.settled()  # The notice must follow the rows before it.
                        self.extensions.text_held()
                    await run.recorder.drain()
                    if self.source is not None:
                        self.source.begin()  # Not before: it competes with the request for the processor.
            except ContextTooLong:
                # Too late to retry: the answer has begun. The next prompt makes room first.
                need = self.gauge.need(self.system, specs, transcript.messages)
                self.gauge.refused(self.called_model, need)
                raise
            reply = call.reply()
        decision = await self._decide(run, reply) if withheld else None
        run.reply_ended(reply, decision)
        self.gauge.measured(reply.counters, self.system, specs, transcript.messages)

    async def _opened(self, run: Run, tools: tuple[ToolSpec, ...]) -> ReplyStream:
        """Return a model call whose answer has begun, after making room for it if needed."""
        relief = ContextCompactor(self, run, tools)
        need = await relief.before()
        while True:
            self._budget.check(run.recorder.totals)  # Making room costs tokens too.
            self.called_model = self.model
            request = ModelRequest(
                model=self.model.id,
                system=self.system,
                messages=run.recorder.transcript.messages,
                tools=tools,
                max_tokens=answer_tokens(self.model, need),
                reasoning=self.reasoning if self.model.reasoning else "off",
                encoded=self._encoded,
            )
            call = self.provider.call(request, run.retrying)
            try:
                await call.open()
            except ProviderError as refusal:
                call.close()
                need = await relief.after(refusal)
            except BaseException:
                call.close()
                raise
            else:
                return call

    async def _decide(self, run: Run, reply: ModelReply) -> MessageDecision:
        text = text_of(reply.content)
        if not text:
            return MessageDecision("")
        await run.recorder.store.settled()
        return await self.extensions.message_written(text)

    def _offered(self) -> Mapping[str, Tool]:
        """Return the tools the model may call now, by name; a built-in tool wins over an extension's.

        Those of the source come last, so that tools it finds later do not change the tools before them.
        """
        found = () if self.source is None else self.source.tools(self.model.context_window)
        provided = [*self.extensions.tools(), *found]
        if not provided:
            return self._tools
        others = {tool.spec.name: tool for tool in provided if tool.spec.name not in self._tools}
        return {**self._tools, **others}


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
        if (begun := run.begun.get(call.id, 0)) and (tool is None or not tool.read_only or begun >= _MAX_STARTS):
            return RefusedCall(UNCERTAIN_RESULT)
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

        def context(call: CallBlock) -> ToolContext:
            return ToolContext(self._cwd, self._env, run.owners, QuietCall(run, call))

        try:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(self._outcome(run, prepared, context(call)), name=f"zot call {call.id}")
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
