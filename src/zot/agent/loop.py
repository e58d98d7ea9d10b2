"""The loop: model, tools, model, ... until the model has nothing more to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from zot.agent.hooks import AllowAll, Approver, Extensions, MessageDecision, NoExtensions
from zot.agent.run import Run
from zot.agent.transcript import Transcript
from zot.errors import StepsExhausted, ToolFailed, TurnBlocked, UserError
from zot.messages import CallBlock, Counters, Message, TextBlock, ToolSpec, text_of
from zot.providers.base import EncodedMessages, Model, Provider, Reasoning, Reply, Request
from zot.tools.base import Output, Tool, ToolContext


class Agent:
    """A model with tools, and how it is to be used. ``models`` are those it may be told to use."""

    def __init__(
        self,
        provider: Provider,
        models: Sequence[Model],
        *,
        model_id: str,
        system: str,
        tools: Sequence[Tool],
        cwd: str,
        env: Mapping[str, str],
        max_steps: int = 50,
        reasoning: Reasoning = "off",
        extensions: Extensions | None = None,
        approver: Approver | None = None,
    ) -> None:
        self.provider = provider
        self.models = models
        self.model = self._find(model_id)
        #: The model of the newest call: what it says is charged to it, whichever has been chosen meanwhile.
        self.asked = self.model
        self.cwd = cwd
        self.extensions = extensions or NoExtensions()
        self._system = system
        self._tools = {tool.spec.name: tool for tool in tools}
        self._env = env
        self._max_steps = max_steps
        self._reasoning = reasoning
        self._approver = approver or AllowAll()
        self._encoded = EncodedMessages()

    def use_model(self, model_id: str) -> None:
        """Use another model from the next call on. Raise UserError, with the known ones, if there is no such model."""
        self.model = self._find(model_id)

    def charge(self, counters: Counters) -> Counters:
        """Return ``counters`` with their cost at the prices of the model that was asked last."""
        return self.asked.charge(counters)

    async def run(self, run: Run, steer: Callable[[Run], bool]) -> None:
        """Answer the newest user message. ``steer`` adds what the user said meanwhile; True if there was something.

        Raise ProviderError and the like; the owner of the run says so.
        """
        await self.extensions.ready()
        for step in range(1, self._max_steps + 1):
            steer(run)
            run.turn_started(step)
            reason = await self.extensions.turn_starting(step)
            if reason is not None:
                raise TurnBlocked(reason)
            tools = self._offered()
            calls = await self._ask(run, tools)
            for call in calls:
                # What the model asked for is on record before it has any effect.
                await run.recorder.settled()
                await self._use(run, call, tools)
                await run.recorder.drain()
            if not calls and not steer(run):
                return
        raise StepsExhausted(f"stopped after {self._max_steps} steps, the limit set by max-steps")

    async def ask_plainly(self, system: str, messages: Sequence[Message], run: Run, *, max_tokens: int) -> Reply:
        """Ask the model for text alone: no tools, and nothing of it is shown or recorded but what it used."""
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

    def _find(self, model_id: str) -> Model:
        for model in self.models:
            if model.id == model_id:
                return model
        known = ", ".join(model.id for model in self.models) or "none"
        raise UserError(f"unknown model {model_id!r} (provider {self.provider.name!r}); known: {known}")

    async def _ask(self, run: Run, tools: Mapping[str, Tool]) -> tuple[CallBlock, ...]:
        """Make one model call and return the tool calls it asks for."""
        request = self._request(run.recorder.transcript, tuple(tool.spec for tool in tools.values()))
        with closing(self.provider.call(request, run.retrying)) as call:
            await call.open()
            holding = self.extensions.holds_messages
            run.reply_started(call.reply, holding=holding)
            while events := await call.read():
                run.heard(events)
                await run.recorder.drain()
            reply = call.reply()
        decision = await self._decide(reply) if holding else None
        return run.reply_ended(reply, decision)

    async def _decide(self, reply: Reply) -> MessageDecision:
        text = text_of(reply.content)
        return await self.extensions.message_written(text) if text else MessageDecision("")

    def _request(self, transcript: Transcript, tools: tuple[ToolSpec, ...]) -> Request:
        self.asked = self.model
        return Request(
            model=self.model.id,
            system=self._system,
            messages=transcript.messages,
            tools=tools,
            max_tokens=self.model.max_output,
            reasoning=self._reasoning if self.model.reasoning else "off",
            encoded=self._encoded,
        )

    def _offered(self) -> Mapping[str, Tool]:
        """Return the tools the model may call now, by name; a built-in one wins over an extension's."""
        theirs = {tool.spec.name: tool for tool in self.extensions.tools()}
        return {**self._tools, **{name: tool for name, tool in theirs.items() if name not in self._tools}}

    async def _use(self, run: Run, call: CallBlock, tools: Mapping[str, Tool]) -> None:
        """Run one call and record its result. A tool that fails is an answer, not an error."""
        try:
            output = await self._run_tool(run, call, tools)
        except ToolFailed as problem:
            run.result(call, (TextBlock(str(problem)),), is_error=True)
        else:
            run.result(call, output, is_error=False)

    async def _run_tool(self, run: Run, call: CallBlock, tools: Mapping[str, Tool]) -> Output:
        tool = tools.get(call.name)
        if tool is None:
            known = ", ".join(sorted(tools)) or "none"
            raise ToolFailed(f"there is no tool named {call.name!r}; there are: {known}")
        if call.args is None:
            raise ToolFailed(f"not run: the arguments are not a JSON object. What was sent: {call.malformed}")
        decision = await self.extensions.tool_called(call, call.args)
        if decision.refusal is not None:
            raise ToolFailed(decision.refusal)
        reason = await self._approver.refusal(call, decision.args)
        if reason is not None:
            raise ToolFailed(reason)
        context = ToolContext(self.cwd, self._env, lambda text: run.progressed(call, text))
        output = await tool.run(decision.args, context)
        return (*output, TextBlock(decision.note)) if decision.note else output
