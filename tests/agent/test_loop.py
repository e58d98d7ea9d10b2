"""The loop: what the model is asked, and what becomes of the calls it makes."""

from __future__ import annotations

import json
from typing import Any

import pytest

import claude
from fakes import PNG, Doorman, FakeTool, FakeTransport, Guard, open_session, talk
from zot.agent.hooks import AllowAll, Approver, CallDecision, Extensions, NoExtensions
from zot.errors import ToolFailed, UserError
from zot.events import AgentEvent, ToolCall, ToolProgress, ToolResult
from zot.messages import ImageBlock, ShownImage, TextBlock
from zot.providers.base import Model, Reasoning
from zot.tools.base import Output, ToolContext


class Work:
    """A tool that remembers how it was called."""

    def __init__(self, text: str = "done", *images: ImageBlock) -> None:
        self.calls: list[tuple[dict[str, Any], ToolContext]] = []
        self.output: Output = (*((TextBlock(text),) if text else ()), *images)
        self.tool = FakeTool("work", self._run)

    async def _run(self, args: dict[str, Any], context: ToolContext) -> Output:
        self.calls.append((args, context))
        return self.output


def calling(*calls: tuple[str, str, str]) -> list[bytes]:
    """A reply that makes calls: id, name and arguments."""
    return claude.reply(*(claude.tool(*call) for call in calls), ends="tool_use")


async def results(script: list[list[bytes]], **settings: Any) -> list[ToolResult]:
    events = await talk(open_session(FakeTransport(script), **settings))
    return [event for event in events if isinstance(event, ToolResult)]


async def test_a_tool_runs_with_its_arguments_in_the_working_directory() -> None:
    work = Work()
    assert await results([calling(("c1", "work", '{"a": 1}'))], tools=[work.tool]) == [
        ToolResult("c1", False, (TextBlock("done"),))
    ]
    ((args, context),) = work.calls
    assert (args, context.cwd, context.env) == ({"a": 1}, "/", {})


async def test_calls_run_one_after_the_other_in_the_models_order() -> None:
    order: list[str] = []

    async def note(args: dict[str, Any], context: ToolContext) -> Output:
        order.append(f"begin {args['n']}")
        await context.reporter.progress("...")
        order.append(f"end {args['n']}")
        return ()

    calls = calling(*((f"c{n}", "note", json.dumps({"n": n})) for n in range(3)))
    session = open_session(FakeTransport([calls]), tools=[FakeTool("note", note)])
    seen: list[AgentEvent] = [
        event for event in await talk(session) if isinstance(event, ToolCall | ToolProgress | ToolResult)
    ]
    assert order == [f"{what} {n}" for n in range(3) for what in ("begin", "end")]
    assert seen == [
        *(ToolCall(f"c{n}", "note", {"n": n}) for n in range(3)),
        *(event for n in range(3) for event in (ToolProgress(f"c{n}", "..."), ToolResult(f"c{n}", False, ()))),
    ]


async def test_an_image_from_a_tool_is_shown_as_a_count_and_sent_whole() -> None:
    transport = FakeTransport([calling(("c1", "work", ""))])
    session = open_session(transport, tools=[Work("", PNG).tool])
    events = await talk(session)
    assert ToolResult("c1", False, (ShownImage("image/png", 4),)) in events
    assert b'"data":"iVBORw=="' in transport.bodies[1]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (("c1", "nothing", "{}"), "there is no tool named 'nothing'; there are: break, work"),
        (("c1", "work", '{"a'), 'not run: the arguments are not a usable JSON object. What was sent: {"a'),
        (("c1", "work", "[1]"), "not run: the arguments are not a usable JSON object. What was sent: [1]"),
        (("c1", "break", "{}"), "it broke"),
    ],
)
async def test_a_call_that_cannot_run_is_answered_with_the_reason(call: tuple[str, str, str], text: str) -> None:
    async def fail(args: dict[str, Any], context: ToolContext) -> Output:
        raise ToolFailed("it broke")

    work = Work()
    found = await results([calling(call, ("c2", "work", "{}"))], tools=[work.tool, FakeTool("break", fail)])
    assert found == [ToolResult("c1", True, (TextBlock(text),)), ToolResult("c2", False, (TextBlock("done"),))]
    assert len(work.calls) == 1


async def test_a_call_without_any_tools_is_answered_with_that_reason() -> None:
    (found,) = await results([calling(("c1", "work", "{}"))])
    assert found == ToolResult("c1", True, (TextBlock("there is no tool named 'work'; there are: none"),))


# Decisions of extensions and approvers.


async def test_a_guard_may_change_the_arguments_and_the_transcript_keeps_the_models_own() -> None:
    work, guard, doorman = Work(), Guard(), Doorman()
    guard.on_call = lambda call, args: CallDecision({**args, "safe": True}, note="made safe")
    transport = FakeTransport([calling(("c1", "work", '{"a": 1}'))])
    session = open_session(transport, tools=[work.tool], extensions=guard, approver=doorman)
    events = await talk(session)
    assert [args for args, _ in work.calls] == [{"a": 1, "safe": True}]
    assert doorman.asked == [("c1", {"a": 1, "safe": True})]
    assert ToolCall("c1", "work", {"a": 1}) in events
    assert ToolResult("c1", False, (TextBlock("done"), TextBlock("made safe"))) in events
    assert b'"input":{"a":1}' in transport.bodies[1]


async def test_a_guard_may_refuse_and_then_no_approver_is_asked() -> None:
    work, guard, doorman = Work(), Guard(), Doorman()
    guard.on_call = lambda call, args: CallDecision(args, refusal="not that one")
    (found,) = await results([calling(("c1", "work", "{}"))], tools=[work.tool], extensions=guard, approver=doorman)
    assert found == ToolResult("c1", True, (TextBlock("not that one"),))
    assert (work.calls, doorman.asked) == ([], [])


async def test_an_approver_may_refuse() -> None:
    work = Work()
    (found,) = await results([calling(("c1", "work", "{}"))], tools=[work.tool], approver=Doorman("denied by rule"))
    assert found == ToolResult("c1", True, (TextBlock("denied by rule"),))
    assert work.calls == []


@pytest.mark.parametrize("call", [("c1", "nothing", "{}"), ("c1", "work", "[")])
async def test_no_approver_is_asked_about_a_call_that_cannot_run(call: tuple[str, str, str]) -> None:
    guard, doorman = Guard(), Doorman()
    await results([calling(call)], tools=[Work().tool], extensions=guard, approver=doorman)
    assert (guard.asked, doorman.asked) == ([], [])


async def test_extensions_give_tools_and_a_built_in_one_wins() -> None:
    mine, theirs, more = Work("mine"), Work("theirs"), Work("more")
    more.tool = FakeTool("more", more._run)
    guard = Guard()
    guard.offered = [theirs.tool, more.tool]
    transport = FakeTransport([calling(("c1", "work", "{}"), ("c2", "more", "{}"))])
    events = await talk(open_session(transport, tools=[mine.tool], extensions=guard))
    found = [event.content for event in events if isinstance(event, ToolResult)]
    assert found == [(TextBlock("mine"),), (TextBlock("more"),)]
    assert [tool["name"] for tool in json.loads(transport.bodies[0])["tools"]] == ["work", "more"]


async def test_a_tool_that_comes_later_is_offered_in_the_next_turn() -> None:
    guard, work = Guard(), Work()
    guard.on_turn = lambda step: setattr(guard, "offered", [work.tool] if step == 2 else [])
    transport = FakeTransport([calling(("c1", "work", "{}")), calling(("c2", "work", "{}"))])
    await talk(open_session(transport, extensions=guard))
    assert [b'"tools"' in body for body in transport.bodies] == [False, True, False]
    assert len(work.calls) == 1


# Requests to the model.


@pytest.mark.parametrize(
    ("reasoning", "model", "thinks"),
    [("off", "claude-sonnet-4-5", False), ("low", "claude-sonnet-4-5", True), ("low", "claude-3-opus-20240229", False)],
)
async def test_a_model_reasons_if_it_can_and_is_asked_to(reasoning: Reasoning, model: str, *, thinks: bool) -> None:
    transport = FakeTransport()
    await talk(open_session(transport, reasoning=reasoning, model=model))
    assert ("thinking" in json.loads(transport.bodies[0])) == thinks


async def test_a_request_carries_session_directory_and_limits() -> None:
    transport = FakeTransport()
    model = Model("m", "acme", 1000, 123, reasoning=False)
    await talk(open_session(transport, models=[model], model="m", tools=[Work().tool]))
    body = json.loads(transport.bodies[0])
    assert (body["model"], body["max_tokens"], body["system"][0]["text"]) == ("m", 123, "You are a test.")
    assert [tool["name"] for tool in body["tools"]] == ["work"]


async def test_an_agent_with_an_unknown_model_cannot_be_made() -> None:
    with pytest.raises(UserError, match=r"^unknown model 'x' \(provider 'anthropic'\); known: none$"):
        open_session(FakeTransport(), models=[], model="x")


async def test_without_interceptors_everything_passes() -> None:
    extensions: Extensions = NoExtensions()
    approver: Approver = AllowAll()
    work = Work()
    found = await results([calling(("c1", "work", "{}"))], tools=[work.tool], extensions=extensions, approver=approver)
    assert found == [ToolResult("c1", False, (TextBlock("done"),))]
    assert (extensions.holds_messages, extensions.tools()) == (False, ())
    assert (await extensions.message_written("a")).text == "a"
