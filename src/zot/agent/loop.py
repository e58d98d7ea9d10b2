"""The agent loop: model, tools, model, until the model stops; with the session's budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, cast, get_args

import msgspec

from zot.agent.compaction import AutoCompact, Gauge, Relief, answer_tokens, least_tokens
from zot.agent.hooks import AllowAll, Approver, Extensions, MessageDecision, NoExtensions, Question
from zot.agent.run import Run
from zot.agent.tool_calls import CallRunner
from zot.agent.transcript import Transcript
from zot.errors import (
    BudgetExhausted,
    ContextTooLong,
    PromptTooLong,
    ProviderError,
    StepsExhausted,
    TurnBlocked,
    UserError,
)
from zot.events import Usage
from zot.messages import Counters, Message, ToolSpec, text_of
from zot.providers.base import Catalogue, EncodedMessages, Model, Provider, Reasoning, Reply, ReplyStream, Request
from zot.store import Configured
from zot.tools.base import Tool

if TYPE_CHECKING:
    from zot.agent.output_schema import Expected  # Few want it, and a schema's checks take time to load.


class Budget(msgspec.Struct, frozen=True):
    """Bounds for all model calls of a session together; None is no bound."""

    max_cost: float | None = None
    max_tokens_total: int | None = None

    def check(self, used: Counters) -> None:
        """Raise BudgetExhausted if nothing is left for another call.

        Of calls whose price is not known only the tokens count: what they cost may be nothing, or anything.
        """
        if self.max_cost is not None and used.cost_usd >= self.max_cost:
            raise BudgetExhausted(
                f"stopped: the session has cost ${_dollars(used.cost_usd)}, and max-cost allows "
                f"${_dollars(self.max_cost)}; to go on, start with a higher --max-cost",
                setting="max_cost",
                used=used.cost_usd,
                allowed=self.max_cost,
            )
        tokens = used.input + used.output + used.cache_read + used.cache_write
        if self.max_tokens_total is not None and tokens >= self.max_tokens_total:
            raise BudgetExhausted(
                f"stopped: the session has used {tokens} tokens, and max-tokens-total allows "
                f"{self.max_tokens_total}; to go on, start with a higher --max-tokens-total",
                setting="max_tokens_total",
                used=tokens,
                allowed=self.max_tokens_total,
            )


def _dollars(amount: float) -> str:
    """Return an amount to the cent, or to as many places as it takes to see it."""
    text = f"{amount:.6f}"
    return text[:-4] + text[-4:].rstrip("0")


class Agent:
    """A model with tools, and how it is to be used. ``catalogue`` has the models it may be told to use."""

    def __init__(
        self,
        provider: Provider,
        catalogue: Catalogue,
        *,
        model_id: str | None,
        system: str,
        tools: Sequence[Tool],
        cwd: str,
        env: Mapping[str, str],
        max_steps: int = 50,
        budget: Budget | None = None,
        reasoning: Reasoning = "off",
        extensions: Extensions | None = None,
        approver: Approver | None = None,
        expected: Expected | None = None,
        auto_compact: AutoCompact | None = None,
        name: str = "",
        guarded: bool = False,
        locked: bool = False,
    ) -> None:
        """``name`` is what it was chosen by, ``guarded`` that it is strangers whom it answers.

        The tools of one that is ``locked`` are kept inside its directory.
        """
        self.name = name
        self.guarded = guarded
        self.locked = locked
        self.provider = provider
        self.catalogue = catalogue
        self.model: Model = catalogue.find(model_id)
        #: The model of the newest call: what it says is charged to it, whichever has been chosen meanwhile.
        self.asked = self.model
        self.cwd = cwd
        self.extensions = extensions or NoExtensions()
        self.system = system
        self._tools = {tool.spec.name: tool for tool in tools}
        self._max_steps = max_steps
        self._budget = budget or Budget()
        self.reasoning = reasoning
        self.approver = approver or AllowAll()
        self._expected = expected
        self._calls = CallRunner(self.extensions, self.approver, cwd=cwd, env=env)
        self._encoded = EncodedMessages()
        self.auto_compact = auto_compact or AutoCompact()
        #: Knows how much of the window the conversation takes.
        self.gauge = Gauge()

    def use_model(self, model_id: str) -> None:
        """Use another model from the next call on. Raise UserError, with the known ones, if there is no such model."""
        self.model = self.catalogue.find(model_id)

    def configured(self) -> Configured:
        """Return what a session works with that has this agent now."""
        return Configured(
            self.provider.name, self.model.id, self.system, self.reasoning, self.cwd, self.name, self.guarded
        )

    def use_reasoning(self, level: str) -> None:
        """Let the model think so much from the next call on. Raise UserError if that is no level."""
        if level not in get_args(Reasoning):
            raise UserError(
                f"{level!r} is not how much a model thinks; that is one of {', '.join(get_args(Reasoning))}"
            )
        self.reasoning = cast(Reasoning, level)

    def charge(self, counters: Counters) -> Counters:
        """Return ``counters`` with their cost at the prices of the model that was asked last."""
        return self.asked.charge(counters)

    def measured(self, usage: Usage, transcript: Transcript) -> None:
        """Know what the service counted for a reply, the newest message then, that another process has heard."""
        counters = Counters(usage.input, usage.output, usage.cache_read, usage.cache_write, usage.cost_usd)
        specs = [tool.spec for tool in self._offered().values()]
        self.gauge.measured(counters, self.system, specs, transcript.messages)

    async def run(self, run: Run, steer: Callable[[Run], bool]) -> Question | None:
        """Answer the newest user message. Return what a person must be asked before it can go on; None when done.

        It goes by what the transcript says, so a run that was parked goes on when this is called again. ``steer``
        adds what the user said meanwhile; True if there was something. Raise StepsExhausted, BudgetExhausted,
        ProviderError and the like; the owner of the run says so.
        """
        await self.extensions.ready()
        while True:
            question = await self._calls.run(run, self._offered())
            if question is not None:
                return question
            if run.answered and not steer(run) and not self._complain(run):
                return None
            if run.step >= self._max_steps:
                raise StepsExhausted(f"stopped after {self._max_steps} steps, the limit set by max-steps")
            self._budget.check(run.recorder.totals)
            steer(run)
            await self._turn(run)

    def _complain(self, run: Run) -> bool:
        """Tell the model what is wrong with its answer. True if something is. Raise AnswerRejected."""
        if self._expected is None:
            return False
        complaint = self._expected.complaint(run.recorder.transcript, made=run.complaints)
        if complaint is None:
            return False
        run.complaints += 1
        run.prompt(complaint)
        return True

    async def _turn(self, run: Run) -> None:
        """Ask the model once. What it wants called is then open in the transcript."""
        run.turn_started()
        if self.extensions.attentive:
            await run.recorder.settled()
        reason = await self.extensions.turn_starting(run.step)
        if reason is not None:
            raise TurnBlocked(reason)
        await self._ask(run, self._offered())

    async def ask_plainly(self, system: str, messages: Sequence[Message], run: Run, *, max_tokens: int) -> Reply:
        """Ask the model for text alone: no tools, and nothing of it is shown or recorded but what it used.

        Raise BudgetExhausted, ProviderError and the like.
        """
        self._budget.check(run.recorder.totals)
        self.asked = self.model
        request = Request(
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
        """Raise PromptTooLong if a prompt surely does not fit the model's window. What is only likely is asked."""
        needed, limit = least_tokens(text), self.model.context_window
        if needed > limit and self.model.window_known:
            raise PromptTooLong(
                f"the prompt is too long: it takes at least {needed} tokens, and the model's window holds {limit}",
                needed=needed,
                limit=limit,
            )

    def _fits_alone(self, message: Message) -> bool:
        """True if a message leaves room in the window, as far as we can tell, when it is all that is said."""
        if not self.auto_compact.on:
            return True
        specs = [tool.spec for tool in self._offered().values()]
        needed = Gauge().need(self.system, specs, [message])
        return needed <= self.gauge.limit(self.model, self.auto_compact.at)

    def take_back(self, run: Run, text: str | None) -> None:
        """There was no room for what was said last: let go of it if it is ``text``, or if there never is any for it.

        Otherwise, nothing that is said from then on could be answered.
        """
        for said in run.recorder.transcript.messages[-1:]:
            if said.role == "user" and text_of(said.content) != text and not self._fits_alone(said):
                text = text_of(said.content)
        if text is not None:
            run.take_back(text)

    def need(self, transcript: Transcript, tools: Sequence[ToolSpec]) -> int:
        """Return how many tokens the next request takes, as far as we can tell."""
        return self.gauge.need(self.system, tools, transcript.messages)

    async def _ask(self, run: Run, tools: Mapping[str, Tool]) -> None:
        """Make one model call and take its reply."""
        specs, transcript = tuple(tool.spec for tool in tools.values()), run.recorder.transcript
        with closing(await self._opened(run, specs)) as call:
            holding = self.extensions.holds_messages
            run.reply_started(call.reply, holding=holding)
            try:
                while events := await call.read():
                    if run.heard(events):
                        await run.recorder.settled()  # The notice follows what was recorded before.
                        self.extensions.text_held()
                    await run.recorder.drain()
            except ContextTooLong:
                # Too late to ask again, for the answer has begun; the next prompt makes room first.
                self.gauge.refused(self.asked, self.need(transcript, specs))
                raise
            reply = call.reply()
        decision = await self._decide(run, reply) if holding else None
        run.reply_ended(reply, decision)
        self.gauge.measured(reply.counters, self.system, specs, transcript.messages)

    async def _opened(self, run: Run, tools: tuple[ToolSpec, ...]) -> ReplyStream:
        """Return a model call whose answer has begun, having made room for it where it must be."""
        relief = Relief(self, run, tools)
        await relief.before()
        while True:
            self._budget.check(run.recorder.totals)  # Making room has its price, too.
            call = self.provider.call(self._request(run.recorder.transcript, tools), run.retrying)
            try:
                await call.open()
            except ProviderError as refusal:
                call.close()
                await relief.after(refusal)
            except BaseException:
                call.close()
                raise
            else:
                return call

    async def _decide(self, run: Run, reply: Reply) -> MessageDecision:
        text = text_of(reply.content)
        if not text:
            return MessageDecision("")
        await run.recorder.settled()
        return await self.extensions.message_written(text)

    def _request(self, transcript: Transcript, tools: tuple[ToolSpec, ...]) -> Request:
        self.asked = self.model
        return Request(
            model=self.model.id,
            system=self.system,
            messages=transcript.messages,
            tools=tools,
            max_tokens=answer_tokens(self.model, self.need(transcript, tools)),
            reasoning=self.reasoning if self.model.reasoning else "off",
            encoded=self._encoded,
        )

    def _offered(self) -> Mapping[str, Tool]:
        """Return the tools the model may call now, by name; a built-in one wins over an extension's."""
        theirs = {tool.spec.name: tool for tool in self.extensions.tools()}
        return {**self._tools, **{name: tool for name, tool in theirs.items() if name not in self._tools}}
