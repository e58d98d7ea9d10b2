"""One live conversation: its events, their order, and that rows are recorded before subscribers receive them."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

import claude
from fakes import (
    FINE,
    NOON,
    PATIENCE_S,
    PNG,
    Answer,
    FakeTool,
    FakeTransport,
    Guard,
    Listener,
    ListStore,
    Reports,
    finish,
    forever,
    kinds,
    listen,
    open_session,
    talk,
)
from zot.agent.hooks import MessageDecision
from zot.agent.transcript import repaired
from zot.errors import (
    AgentError,
    AuthFailed,
    ConnectionFailed,
    ContentRefused,
    QueueFull,
    RunCancelled,
    RuntimeClosed,
    StepsExhausted,
    StoreFailed,
    TurnBlocked,
    UserError,
)
from zot.events import (
    AgentEvent,
    AssistantMessage,
    AssistantStart,
    CompactDone,
    Done,
    Error,
    ExtNotify,
    Retry,
    SessionState,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolProgress,
    ToolResult,
    ToolUseArgs,
    ToolUseEnd,
    ToolUseStart,
    TurnEnd,
    TurnStart,
    Usage,
    UserMessage,
)
from zot.messages import (
    CallBlock,
    Counters,
    Message,
    ResultBlock,
    ShownCall,
    ShownImage,
    TextBlock,
    ThinkingBlock,
)
from zot.providers.base import Model
from zot.session.history import Batch
from zot.session.queue import MAX_QUEUE
from zot.session.session import Session
from zot.session.worker import NoToolResources
from zot.store import MessageAdded, MessagesReplaced, Row
from zot.tools.base import Output, ToolContext

PRICE_OF_A_REPLY = 100 * 3.0 / 1e6 + 20 * 15.0 / 1e6


def usage(replies: int = 1, output: int = 20) -> Usage:
    """Return the usage of a model call of 100 and 20 tokens, and the sum of ``replies`` of them."""
    cost = 100 * 3.0 / 1e6 + output * 15.0 / 1e6
    total = Counters(0, 0, 0, 0, 0.0)
    for _ in range(replies - 1):
        total += Counters(100, 20, 0, 0, PRICE_OF_A_REPLY)
    return Usage(100, output, 0, 0, cost, total + Counters(100, output, 0, 0, cost))


def user(text: str) -> UserMessage:
    return UserMessage((TextBlock(text),), NOON)


async def shout(args: dict[str, Any], context: ToolContext) -> Output:
    await context.reporter.progress("shouting")
    return (TextBlock(str(args)),)


async def hang(args: dict[str, Any], context: ToolContext) -> Output:
    await forever()
    return ()


SHOUT = FakeTool("shout", shout)


# How runs end.


async def test_a_prompt_with_a_tool_emits_events_in_order() -> None:
    script = [
        claude.reply(claude.thinking("Hm", signature="s"), claude.text("I ", "will"),
                     claude.tool("c1", "shout", '{"a":', "1}"), ends="tool_use"),
        claude.reply(claude.text("Done.")),
    ]  # fmt: skip
    session = open_session(FakeTransport(script), tools=[SHOUT])
    assert await talk(session) == [
        user("hi"),
        TurnStart(1),
        AssistantStart(),
        ThinkingDelta("Hm"),
        TextDelta("I "),
        TextDelta("will"),
        ToolUseStart("c1", "shout"),
        ToolUseArgs("c1", '{"a":'),
        ToolUseArgs("c1", "1}"),
        ToolUseEnd("c1"),
        usage(),
        AssistantMessage((TextBlock("I will"), ShownCall("c1", "shout", {"a": 1})), NOON),
        ToolCall("c1", "shout", {"a": 1}),
        TurnEnd("tool_use"),
        ToolProgress("c1", "shouting"),
        ToolResult("c1", False, (TextBlock("{'a': 1}"),)),
        TurnStart(2),
        AssistantStart(),
        TextDelta("Done."),
        usage(replies=2),
        AssistantMessage((TextBlock("Done."),), NOON),
        TurnEnd("end_turn"),
        Done(),
    ]
    assert session.history.transcript.messages == [
        Message("user", (TextBlock("hi"),), NOON),
        Message(
            "assistant",
            (ThinkingBlock("Hm", "s"), TextBlock("I will"), CallBlock("c1", "shout", {"a": 1})),
            NOON,
            origin="anthropic",
        ),
        Message("tool", (ResultBlock("c1", False, (TextBlock("{'a': 1}"),)),), NOON),
        Message("assistant", (TextBlock("Done."),), NOON, origin="anthropic"),
    ]


async def test_images_are_shown_as_a_count_and_kept_unchanged() -> None:
    session = open_session(FakeTransport())
    events = await talk(session, "look", [PNG])
    assert events[0] == UserMessage((TextBlock("look"), ShownImage("image/png", 4)), NOON)
    assert session.history.transcript.messages[0].content == (TextBlock("look"), PNG)


async def test_an_image_alone_is_a_prompt() -> None:
    session = open_session(FakeTransport())
    assert (await talk(session, "", [PNG]))[0] == UserMessage((ShownImage("image/png", 4),), NOON)


async def test_a_reply_cut_off_at_the_limit_loses_its_calls() -> None:
    reply = claude.reply(claude.text("I will"), claude.tool("c1", "shout", '{"a'), ends="max_tokens")
    session = open_session(FakeTransport([reply]), tools=[SHOUT])
    assert (await talk(session))[-4:] == [
        usage(),
        AssistantMessage((TextBlock("I will"),), NOON),
        TurnEnd("length"),
        Done(),
    ]


async def test_an_empty_reply_leaves_no_message() -> None:
    session = open_session(FakeTransport([claude.reply()]))
    assert (await talk(session))[2:] == [AssistantStart(), usage(), TurnEnd("end_turn"), Done()]
    assert len(session.history.transcript) == 1


async def test_calls_run_whatever_the_stop_reason_and_without_calls_the_run_ends() -> None:
    script = [
        claude.reply(claude.tool("c1", "shout"), ends="end_turn"),
        claude.reply(claude.text("ok"), ends="tool_use"),
    ]
    session = open_session(FakeTransport(script), tools=[SHOUT])
    ends = [event.stop for event in await talk(session) if isinstance(event, TurnEnd)]
    assert ends == ["tool_use", "end_turn"]


async def test_an_error_before_the_answer_begins() -> None:
    refusal = Answer([b'{"error":{"type":"authentication_error","message":"invalid x-api-key"}}'], status=401)
    session = open_session(FakeTransport([refusal]))
    text = "anthropic: http 401: invalid x-api-key (check ANTHROPIC_API_KEY, or run `zot login anthropic`)"
    listener = listen(session)
    job = session.prompt("hi")
    await finish(session)
    assert listener.events == [user("hi"), TurnStart(1), TurnEnd("error", text), Error(text), Done()]
    assert isinstance(job.error, AuthFailed)
    assert not job.aborted


async def test_retries_are_emitted_with_their_reason() -> None:
    session = open_session(FakeTransport([ConnectionFailed("refused"), FINE]))
    assert (await talk(session))[1:4] == [TurnStart(1), Retry("anthropic: refused", 1, 500), AssistantStart()]


@pytest.mark.parametrize(
    ("pieces", "said", "error"),
    [
        ([], [], "anthropic: the answer ended without its final event (try again)"),
        (
            [claude.start(), *claude.text("a", "b")(0),
             claude.event("error", error={"type": "overloaded_error", "message": "Overloaded"})],
            ["a", "b"],
            "anthropic: overloaded_error: Overloaded (try again later, or use another model)",
        ),
        ([claude.start(), *claude.text("ab")(0), ConnectionFailed("reset")], ["ab"], "anthropic: reset"),
    ],
    ids=["empty", "an error event", "a reset"],
)  # fmt: skip
async def test_an_error_inside_the_answer_keeps_the_text_so_far(pieces: list[Any], said: list[str], error: str) -> None:
    session = open_session(FakeTransport([Answer(pieces)]))
    events = await talk(session)
    message = [AssistantMessage((TextBlock("ab"),), NOON)] if said else []
    deltas = [TextDelta(piece) for piece in said]
    counted = usage(output=1) if said else Usage(0, 0, 0, 0, 0.0, Counters(0, 0, 0, 0, 0.0))
    assert events[2:] == [
        AssistantStart(), *deltas, counted, *message, TurnEnd("error", error), Error(error), Done(),
    ]  # fmt: skip
    assert [message.role for message in session.history.transcript.messages] == [
        "user",
        *(["assistant"] if said else []),
    ]


async def test_a_refusal_of_the_model_is_an_error_that_keeps_the_text() -> None:
    session = open_session(FakeTransport([claude.reply(claude.text("I cannot"), ends="refusal")]))
    listener = listen(session)
    job = session.prompt("hi")
    await finish(session)
    text = "anthropic: the model refused to answer this (rephrase it, or use another model)"
    assert listener.events[-5:] == [
        usage(),
        AssistantMessage((TextBlock("I cannot"),), NOON),
        TurnEnd("error", text),
        Error(text),
        Done(),
    ]
    assert isinstance(job.error, ContentRefused)


async def test_a_bug_is_hidden_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    session = open_session(FakeTransport([ZeroDivisionError("the secret is 42")]))
    text = "internal error (ZeroDivisionError); the log has the details"
    assert (await talk(session))[-3:] == [TurnEnd("error", text), Error(text), Done()]
    assert "the secret is 42" in caplog.text


async def test_a_bug_in_a_tool_ends_the_run_with_a_result_for_every_call() -> None:
    async def crash(args: dict[str, Any], context: ToolContext) -> Output:
        raise ZeroDivisionError

    reply = claude.reply(claude.tool("c1", "crash"), claude.tool("c2", "crash"), ends="tool_use")
    session = open_session(FakeTransport([reply]), tools=[FakeTool("crash", crash)])
    text = "internal error (ZeroDivisionError); the log has the details"
    assert (await talk(session))[-4:] == [
        ToolResult("c1", True, (TextBlock(f"not run: {text}"),)),
        ToolResult("c2", True, (TextBlock(f"not run: {text}"),)),
        Error(text),
        Done(),
    ]


async def test_too_many_steps_are_an_error_and_the_next_prompt_works() -> None:
    script = [claude.reply(claude.tool(f"c{step}", "shout"), ends="tool_use") for step in (1, 2)]
    session = open_session(FakeTransport(script), tools=[SHOUT], max_steps=2)
    listener = listen(session)
    job = session.prompt("hi")
    await finish(session)
    assert kinds(listener.events)[-3:] == ["tool_result", "error", "done"]
    assert listener.events[-2] == Error("stopped after 2 steps, the limit set by max-steps")
    assert isinstance(job.error, StepsExhausted)
    assert (await talk(session))[-2:] == [TurnEnd("end_turn"), Done()]


async def test_a_blocked_turn_reports_the_reason_and_is_not_an_error() -> None:
    guard = Guard()
    guard.on_turn = lambda step: "not on a Sunday"
    transport = FakeTransport()
    session = open_session(transport, extensions=guard)
    listener = listen(session)
    job = session.prompt("hi")
    await finish(session)
    assert listener.events == [user("hi"), TurnStart(1), TurnEnd("error", "not on a Sunday"), Done()]
    assert isinstance(job.error, TurnBlocked)
    assert transport.requests == []
    assert guard.seen == listener.events


# Prompts that an extension sees first.

TALKATIVE = claude.reply(claude.thinking("Hm", signature="s"), claude.text("a ", "secret"), claude.tool("c1", "shout"))


async def test_held_text_is_shown_once_as_decided_and_the_model_keeps_its_own() -> None:
    guard = Guard(holds=True)
    guard.on_message = lambda text: MessageDecision(text.replace("secret", "word"))
    session = open_session(FakeTransport([TALKATIVE, claude.reply()]), tools=[SHOUT], extensions=guard)
    assert (await talk(session))[2:9] == [
        AssistantStart(),
        ToolUseStart("c1", "shout"),
        ToolUseEnd("c1"),
        TextDelta("a word"),
        usage(),
        AssistantMessage((TextBlock("a word"), ShownCall("c1", "shout", {})), NOON),
        ToolCall("c1", "shout", {}),
    ]
    said = session.history.transcript.messages[1]
    assert said.content == (ThinkingBlock("Hm", "s"), TextBlock("a secret"), CallBlock("c1", "shout", {}))
    assert said.shown_text == "a word"
    assert guard.asked[0] == ("message", "a secret")


async def test_blocked_text_is_replaced_by_a_notice_and_its_calls_still_run() -> None:
    guard = Guard(holds=True)
    guard.on_message = lambda text: MessageDecision(text, refusal="that is secret", extension="guard")
    session = open_session(FakeTransport([TALKATIVE, claude.reply()]), tools=[SHOUT], extensions=guard)
    assert (await talk(session))[2:10] == [
        AssistantStart(),
        ToolUseStart("c1", "shout"),
        ToolUseEnd("c1"),
        usage(),
        ExtNotify("guard", "warn", "that is secret", "assistant_message"),
        ToolCall("c1", "shout", {}),
        TurnEnd("tool_use"),
        ToolProgress("c1", "shouting"),
    ]


async def test_no_interceptor_is_asked_about_a_reply_without_text() -> None:
    guard = Guard(holds=True)
    reply = claude.reply(claude.tool("c1", "shout"), ends="tool_use")
    session = open_session(FakeTransport([reply, claude.reply()]), tools=[SHOUT], extensions=guard)
    events = await talk(session)
    assert AssistantMessage((ShownCall("c1", "shout", {}),), NOON) in events
    assert [question[0] for question in guard.asked] == ["guard"]


@pytest.mark.parametrize("moment", ["streaming", "deciding"])
async def test_held_text_is_not_shown_after_an_abort(moment: str) -> None:
    guard = Guard(holds=True)
    pieces: list[Any] = [claude.start(), *claude.text("a secret")(0)]
    pieces += [None] if moment == "streaming" else claude.stop("end_turn")
    transport = FakeTransport([Answer(pieces)])
    session = open_session(transport, extensions=guard)

    def reads() -> int:
        return sum(response.reads for response in transport.responses)

    listener = listen(session)
    session.prompt("hi")
    await until(lambda: bool(guard.asked) if moment == "deciding" else reads() > 4)
    session.abort()
    await finish(session)
    assert kinds(listener.events)[2:] == ["assistant_start", "usage", "turn_end aborted", "done"]
    assert session.history.transcript.messages[-1].content == (TextBlock("a secret"),)
    assert session.history.transcript.messages[-1].shown_text == ""


# Aborting.


async def until(true: Callable[[], bool]) -> None:
    """Run other tasks until the condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0)


HALF = [claude.start(), *claude.text("half an", " answer")(0)[:-1], *claude.tool("c1", "shout", '{"a')(1)[:-1]]


@pytest.mark.parametrize(
    ("script", "ready", "ending"),
    [
        ([None], "turn_start", ["turn_end aborted"]),
        ([ConnectionFailed("refused"), None], "retry", ["turn_end aborted"]),
        ([Answer([None])], "turn_start", ["turn_end aborted"]),
        ([Answer([claude.start(), None])], "assistant_start", ["usage", "turn_end aborted"]),
        ([Answer([*HALF, None])], "tool_use_args", ["usage", "assistant_message", "turn_end aborted"]),
        (
            [claude.reply(claude.tool("c1", "shout"), claude.tool("c2", "hang"), claude.tool("c3", "shout"),
                          ends="tool_use")],
            "tool_result",
            ["tool_result", "tool_result", "turn_end aborted"],
        ),
    ],
    ids=[
        "before headers", "after a retry", "after headers", "before the first delta", "in a call's arguments",
        "in a tool",
    ],
)  # fmt: skip
async def test_an_abort_ends_the_run_in_every_phase(script: list[Any], ready: str, ending: list[str]) -> None:
    session = open_session(FakeTransport(script), tools=[SHOUT, FakeTool("hang", hang)])
    listener = listen(session)
    job = session.prompt("hi")
    await until(lambda: ready in kinds(listener.events))
    for _ in range(5):
        await asyncio.sleep(0)
    before = len(listener.events)
    session.abort()
    session.abort()
    assert session.worker.busy
    assert session.worker.aborting
    await finish(session)
    assert kinds(listener.events)[before:] == [*ending, "done"]
    assert (job.aborted, job.error, session.worker.busy, session.worker.aborting) == (True, None, False, False)


async def test_a_second_abort_does_not_interrupt_the_clean_up_after_the_first() -> None:
    cleaning, may_end, cleaned = asyncio.Event(), asyncio.Event(), []

    async def clean_up(args: dict[str, Any], context: ToolContext) -> Output:
        try:
            return await hang(args, context)
        finally:
            cleaning.set()
            await may_end.wait()
            cleaned.append("all of it")

    calls = [claude.reply(claude.tool("c1", "hold"), ends="tool_use")]
    session = open_session(FakeTransport(calls), tools=[FakeTool("hold", clean_up)])
    listener = listen(session)
    session.prompt("hi")
    await until(lambda: "tool_call" in kinds(listener.events))
    for _ in range(5):
        await asyncio.sleep(0)
    session.abort()
    async with asyncio.timeout(PATIENCE_S):
        await cleaning.wait()
    session.abort()
    session.abort(queue=True)
    for _ in range(5):
        await asyncio.sleep(0)
    may_end.set()
    await finish(session)
    assert (cleaned, kinds(listener.events)[-2:]) == (["all of it"], ["turn_end aborted", "done"])


async def test_an_abort_keeps_the_text_so_far_and_drops_the_half_written_call() -> None:
    session = open_session(FakeTransport([Answer([*HALF, None])]), tools=[SHOUT])
    listener = listen(session)
    session.prompt("hi")
    await until(lambda: "tool_use_args" in kinds(listener.events))
    session.abort()
    await finish(session)
    assert listener.events[-4:] == [
        usage(output=1),
        AssistantMessage((TextBlock("half an answer"),), NOON),
        TurnEnd("aborted"),
        Done(),
    ]
    assert session.history.transcript.messages[-1] == Message(
        "assistant", (TextBlock("half an answer"),), NOON, origin="anthropic"
    )


async def test_open_calls_at_an_abort_get_results_in_order() -> None:
    reply = claude.reply(claude.tool("c1", "hang"), claude.tool("c2", "shout"), ends="tool_use")
    session = open_session(FakeTransport([reply]), tools=[SHOUT, FakeTool("hang", hang)])
    listener = listen(session)
    session.prompt("hi")
    await until(lambda: "turn_end tool_use" in kinds(listener.events))
    session.abort()
    await finish(session)
    aborted = (TextBlock("aborted before it finished"),)
    assert listener.events[-4:] == [
        ToolResult("c1", True, aborted),
        ToolResult("c2", True, aborted),
        TurnEnd("aborted"),
        Done(),
    ]


async def test_an_abort_right_after_its_prompt_still_emits_every_event() -> None:
    session = open_session(FakeTransport())
    listener = listen(session)
    session.prompt("hi")
    session.abort()
    await finish(session)
    assert listener.events == [user("hi"), TurnEnd("aborted"), Done()]


async def test_an_abort_when_idle_does_nothing() -> None:
    session = open_session(FakeTransport())
    listener = listen(session)
    session.abort()
    session.abort(queue=True)
    assert (listener.events, session.worker.aborting) == ([], False)
    assert (await talk(session))[-2:] == [TurnEnd("end_turn"), Done()]


async def test_an_error_caused_by_an_abort_is_an_abort() -> None:
    async def stumble(args: dict[str, Any], context: ToolContext) -> Output:
        try:
            await forever()
        except asyncio.CancelledError:
            raise ConnectionFailed("it stumbled over the cancellation") from None
        return ()

    reply = claude.reply(claude.tool("c1", "stumble"), ends="tool_use")
    session = open_session(FakeTransport([reply]), tools=[FakeTool("stumble", stumble)])
    listener = listen(session)
    session.prompt("hi")
    await until(lambda: "turn_end tool_use" in kinds(listener.events))
    session.abort()
    await finish(session)
    assert kinds(listener.events)[-3:] == ["tool_result", "turn_end aborted", "done"]


# One run at a time.


async def test_prompts_wait_for_each_other_and_start_in_order() -> None:
    session = open_session(FakeTransport())
    listener = listen(session)
    started: list[str] = []
    for text in ("one", "two", "three"):
        session.prompt(text, observer=Reports(started=partial(started.append, text)))
    assert started == ["one"]
    session.compact(observer=Reports(started=lambda: started.append("compact")))
    await finish(session)
    assert started == ["one", "two", "three", "compact"]
    borders = [kind for kind in kinds(listener.events) if kind in ("user_message", "compact_done", "done")]
    assert borders == [*("user_message", "done") * 3, "compact_done", "done"]


async def test_the_queue_is_bounded() -> None:
    session = open_session(FakeTransport([None]))
    dropped: list[AgentError] = []
    session.prompt("running")
    for number in range(MAX_QUEUE):
        (session.steer if number % 2 else session.prompt)("waiting", observer=Reports(dropped=dropped.append))
    for ask in (session.prompt, session.steer):
        with pytest.raises(QueueFull, match=f"^{MAX_QUEUE} prompts are waiting already"):
            ask("one too many")
    with pytest.raises(QueueFull):
        session.compact()
    session.abort(queue=True)
    await finish(session)
    assert [(type(one), str(one)) for one in dropped] == [(RunCancelled, "dropped by an abort")] * MAX_QUEUE


async def test_an_abort_keeps_the_queue_unless_asked_to_drop_it() -> None:
    session = open_session(FakeTransport())
    listener = listen(session)
    session.prompt("one")
    session.prompt("two")
    session.abort()
    await finish(session)
    assert listener.events[:4] == [user("one"), TurnEnd("aborted"), Done(), user("two")]
    assert listener.events[-2:] == [TurnEnd("end_turn"), Done()]


async def test_a_job_can_be_cancelled_before_it_began_while_it_runs_and_after() -> None:
    session = open_session(FakeTransport([None]))
    listener = listen(session)
    dropped: list[AgentError] = []
    running = session.prompt("one")
    waiting = session.prompt("two", observer=Reports(dropped=dropped.append))
    session.worker.cancel(waiting)
    assert [(type(one), str(one)) for one in dropped] == [(RunCancelled, "cancelled before it began")]
    session.worker.cancel(running)
    await finish(session)
    session.worker.cancel(running)
    session.worker.cancel(waiting)
    assert listener.events == [user("one"), TurnEnd("aborted"), Done()]
    assert (running.aborted, waiting.aborted) == (True, True)


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
async def test_an_empty_prompt_is_refused(text: str) -> None:
    session = open_session(FakeTransport())
    for ask in (session.prompt, session.steer):
        with pytest.raises(UserError, match="the prompt is empty"):
            ask(text)
    assert not session.worker.busy


# Steering.


async def test_steering_is_sent_before_the_next_model_call() -> None:
    async def steered(args: dict[str, Any], context: ToolContext) -> Output:
        session.steer("faster")
        session.steer("and louder", [PNG])
        return ()

    transport = FakeTransport([claude.reply(claude.tool("c1", "work"), ends="tool_use"), FINE])
    session = open_session(transport, tools=[FakeTool("work", steered)])
    events = await talk(session)
    place = events.index(ToolResult("c1", False, ()))
    assert events[place + 1 : place + 4] == [
        user("faster"),
        UserMessage((TextBlock("and louder"), ShownImage("image/png", 4)), NOON),
        TurnStart(2),
    ]
    assert kinds(events).count("done") == 1
    assert b"and louder" in transport.bodies[1]


async def test_steering_a_run_about_to_end_continues_it() -> None:
    transport = FakeTransport([claude.reply(claude.text("bye"))])
    session = open_session(transport)
    listener = listen(session)

    def steer_late(event: AgentEvent) -> None:
        if event == TextDelta("bye"):
            session.steer("wait!")

    listener.on_event = steer_late
    session.prompt("hi")
    await finish(session)
    assert kinds(listener.events)[-7:] == [
        "turn_start", "assistant_start", "text_delta", "usage", "assistant_message", "turn_end end_turn", "done",
    ]  # fmt: skip
    assert kinds(listener.events).count("done") == 1
    assert listener.events.index(user("wait!")) == listener.events.index(TurnStart(2)) - 1


async def test_steering_a_run_that_fails_is_a_prompt_ahead_of_the_others() -> None:
    transport = FakeTransport([claude.reply(claude.text("bye"))[:-2]])
    session = open_session(transport)
    listener = listen(session)
    started: list[str] = []

    def steer(event: AgentEvent) -> None:
        if event == TextDelta("bye"):
            for text in ("first", "second"):
                session.steer(text, observer=Reports(started=partial(started.append, text)))

    listener.on_event = steer
    session.prompt("one")
    session.prompt("later")
    await finish(session)
    said = [event.content[0] for event in listener.events if isinstance(event, UserMessage)]
    assert said == [TextBlock(text) for text in ("one", "first", "second", "later")]
    assert started == ["first", "second"]
    assert kinds(listener.events).count("error") == 1


async def test_an_abort_drops_steering_only() -> None:
    transport = FakeTransport([None])
    session = open_session(transport)
    listener = listen(session)
    dropped: list[AgentError] = []
    session.prompt("one")
    await until(lambda: bool(transport.requests))
    await asyncio.sleep(0)
    session.prompt("later")
    session.steer("first", observer=Reports(dropped=dropped.append))
    session.steer("second", observer=Reports(dropped=dropped.append))
    session.abort()
    assert [type(why) for why in dropped] == [RunCancelled, RunCancelled]
    with pytest.raises(RunCancelled, match="was aborted"):
        session.steer("third")
    await finish(session)
    said = [event.content[0] for event in listener.events if isinstance(event, UserMessage)]
    assert said == [TextBlock(text) for text in ("one", "later")]


async def test_steering_when_idle_is_a_prompt() -> None:
    session = open_session(FakeTransport())
    listener = listen(session)
    session.steer("hi")
    await finish(session)
    assert listener.events[0] == user("hi")
    assert listener.events[-1] == Done()


async def test_steering_a_compact_waits_for_it() -> None:
    session = open_session(FakeTransport([claude.reply(claude.text("a summary")), claude.reply(claude.text("yes"))]))
    session.replace_messages(long_talk())
    listener = listen(session)
    session.compact()
    session.steer("hi")
    await finish(session)
    seen = kinds(listener.events)
    assert seen.index("done") < seen.index("user_message")


async def test_an_abort_of_a_compact_drops_the_steering_after_it() -> None:
    session = open_session(FakeTransport())
    session.replace_messages(long_talk())
    listener = listen(session)
    session.compact()
    session.steer("hi")
    session.abort()
    await finish(session)
    assert kinds(listener.events) == ["turn_end aborted", "done"]


# Recorded, then shown.


class Log(ListStore):
    """A store that records its calls."""

    def __init__(self, log: list[tuple[str, object]]) -> None:
        super().__init__()
        self._log = log

    def append(self, rows: Sequence[Row], *, run: int, ends: bool = False) -> int:
        self._log += [("stored", row) for row in rows]
        return super().append(rows, run=run, ends=ends)


async def test_everything_is_stored_before_a_subscriber_sees_it() -> None:
    log: list[tuple[str, object]] = []
    reply = claude.reply(claude.text("a"), claude.tool("c1", "shout"), ends="tool_use")
    guard = Guard()
    session = open_session(FakeTransport([reply]), tools=[SHOUT], store=Log(log), extensions=guard)
    listener = listen(session)
    listener.on_event = lambda event: log.append(("shown", event))
    session.prompt("hi")
    await finish(session)
    stored: list[object] = []
    shown: list[object] = []
    for what, row in log:
        if what == "stored":
            stored += [] if isinstance(row, MessageAdded | MessagesReplaced) else [row]
        else:
            shown.append(row)
            assert shown == stored[: len(shown)]
    assert shown == stored == listener.events == guard.seen


async def test_a_message_is_stored_before_the_event_that_shows_it() -> None:
    store = ListStore()
    reply = claude.reply(claude.text("a"), claude.tool("c1", "shout"), ends="tool_use")
    session = open_session(FakeTransport([reply]), tools=[SHOUT], store=store)
    await talk(session)
    rows = [row.message.role if isinstance(row, MessageAdded) else type(row).__name__ for row in store.rows]
    assert [name for name in rows if name.islower() or name.endswith("Message") or name == "ToolResult"] == [
        "user", "UserMessage", "assistant", "AssistantMessage", "tool", "ToolResult", "assistant", "AssistantMessage",
    ]  # fmt: skip
    replayed = [row.message for row in store.rows if isinstance(row, MessageAdded)]
    assert replayed == list(session.history.transcript.messages)


async def test_a_failed_write_ends_the_run_and_is_not_shown() -> None:
    store = ListStore(fails_at=5, error=StoreFailed("the disk is full"))
    session = open_session(FakeTransport(), store=store)
    listener = listen(session)
    job = session.prompt("hi")
    await finish(session)
    assert listener.events[-2:] == [Error("the disk is full"), Done()]
    assert isinstance(job.error, StoreFailed)
    assert [row for row in store.rows if not isinstance(row, MessageAdded | MessagesReplaced)] == listener.events
    assert (await talk(session))[-2:] == [TurnEnd("end_turn"), Done()]


async def test_a_prompt_that_cannot_be_stored_fails_and_the_next_one_runs() -> None:
    store = ListStore(fails_at=1, error=StoreFailed("the disk is full"))
    transport = FakeTransport()
    session = open_session(transport, store=store)
    listener = listen(session)
    job = session.prompt("hi")
    await finish(session)
    assert (listener.events, transport.requests) == ([Error("the disk is full"), Done()], [])
    assert isinstance(job.error, StoreFailed)
    assert (await talk(session))[-2:] == [TurnEnd("end_turn"), Done()]


@pytest.mark.parametrize("fails_at", range(1, 7))
async def test_a_permanently_broken_store_still_emits_the_end(fails_at: int) -> None:
    store = ListStore(fails_at=fails_at, error=StoreFailed("the disk is gone"), for_good=True)
    session = open_session(FakeTransport(), store=store)
    listener = listen(session)
    job = session.prompt("hi")
    await finish(session)
    assert listener.events[-2:] == [Error("the disk is gone"), Done()]
    assert (kinds(listener.events).count("done"), session.worker.busy) == (1, False)
    assert isinstance(job.error, StoreFailed)


@pytest.mark.parametrize("fails_at", range(1, 12))
async def test_a_store_that_failed_in_mid_run_leaves_a_conversation_that_can_continue(fails_at: int) -> None:
    store = ListStore(fails_at=fails_at, error=StoreFailed("the disk was full"), for_good=True)
    reply = claude.reply(claude.text("a"), claude.tool("c1", "shout"), claude.tool("c2", "shout"), ends="tool_use")
    session = open_session(FakeTransport([reply]), tools=[SHOUT], store=store)
    session.prompt("hi")
    await finish(session)
    store.mend()
    assert (await talk(session, "again"))[-2:] == [TurnEnd("end_turn"), Done()]
    assert repaired(session.history.transcript.messages) == list(session.history.transcript.messages)


# Subscribers.


async def test_a_slow_subscriber_pauses_the_run_and_loses_nothing() -> None:
    transport = FakeTransport([claude.reply(claude.text(*"abcdef"))])
    session = open_session(transport)
    slow, fast = listen(session), listen(session)
    gate = asyncio.Event()
    waiting = 0

    async def room() -> None:
        nonlocal waiting
        waiting += 1
        await gate.wait()
        slow.full = False

    slow.room = room  # type: ignore[method-assign]
    slow.on_event = lambda event: setattr(slow, "full", slow.full or event == TextDelta("b"))
    session.prompt("hi")
    await until(lambda: waiting == 1)
    reads = transport.responses[0].reads
    for _ in range(20):
        await asyncio.sleep(0)
    assert (transport.responses[0].reads, slow.events[-1]) == (reads, TextDelta("b"))
    gate.set()
    await finish(session)
    assert slow.events == fast.events
    assert [event.delta for event in slow.events if isinstance(event, TextDelta)] == list("abcdef")


async def test_an_unsubscribed_listener_gets_nothing_more() -> None:
    session = open_session(FakeTransport())
    listener = listen(session)
    stop = session.history.subscribe(second := type(listener)())
    await talk(session)
    stop()
    await talk(session)
    assert len(listener.events) == 2 * len(second.events)


# Cost.


async def test_costs_add_up_to_the_bit() -> None:
    replies = [claude.reply(claude.text("a"), output=1) for _ in range(3)]
    session = open_session(FakeTransport(replies))
    events = [event for _ in replies for event in await talk(session)]
    counted = [event for event in events if isinstance(event, Usage)]
    once = 0.00031499999999999996
    assert counted[0] == Usage(100, 1, 0, 0, once, Counters(100, 1, 0, 0, once))
    assert counted[2].cumulative == session.history.totals == Counters(300, 3, 0, 0, once + once + once)


async def test_an_unknown_price_counts_as_no_price() -> None:
    models = [Model("m", "acme", 1000, 100, reasoning=False)]
    session = open_session(FakeTransport(), models=models, model="m")
    counted = next(event for event in await talk(session) if isinstance(event, Usage))
    assert (counted.cost_usd, counted.price_known, counted.cost, session.history.totals.cost) == (
        0.0,
        False,
        None,
        None,
    )


async def test_a_call_is_charged_to_the_model_that_was_asked() -> None:
    session = open_session(FakeTransport())
    listener = listen(session)
    listener.on_event = lambda event: session.use_model("claude-opus-4-1") if event == TextDelta("fine") else None
    session.prompt("hi")
    await finish(session)
    assert usage() in listener.events
    assert session.state().model == "claude-opus-4-1"


async def test_another_model_is_used_from_the_next_call_on() -> None:
    transport = FakeTransport([claude.reply(claude.tool("c1", "shout"), ends="tool_use")])
    session = open_session(transport, tools=[SHOUT])
    listener = listen(session)
    listener.on_event = lambda event: session.use_model("claude-haiku-4-5") if isinstance(event, ToolCall) else None
    session.prompt("hi")
    await finish(session)
    assert [b"claude-haiku-4-5" in body for body in transport.bodies] == [False, True]


async def test_an_unknown_model_is_answered_with_the_known_ones() -> None:
    session = open_session(FakeTransport(), models=[Model("m", "acme", 1000, 100, reasoning=False)], model="m")
    with pytest.raises(UserError, match=r"^unknown model 'x' \(provider 'anthropic'\); known: m$"):
        session.use_model("x")
    nothing = Counters(0, 0, 0, 0, 0.0)
    assert session.state() == SessionState("anthropic", "m", "/", 0, False, nothing, context_window=1000)


# The conversation.


def long_talk() -> list[Message]:
    """Six messages, so that there is something to compact."""
    return [
        Message("user" if number % 2 == 0 else "assistant", (TextBlock(f"word {number}"),), NOON) for number in range(6)
    ]


async def test_clearing_drops_the_conversation_but_not_its_cost() -> None:
    transport = FakeTransport()
    session = open_session(transport)
    await talk(session, "remember me")
    session.clear()
    session.clear()
    assert (len(session.history.transcript), session.history.totals.input) == (0, 100)
    await talk(session, "who am I?")
    assert b"remember me" not in transport.bodies[1]


async def test_messages_can_be_replaced_and_the_store_says_how() -> None:
    store = ListStore()
    session = open_session(FakeTransport(), store=store)
    await talk(session)
    stored = len(store.rows)
    session.replace_messages(long_talk())
    assert list(session.history.transcript.messages) == long_talk()
    assert store.rows[stored:] == [MessagesReplaced(0, 2, tuple(long_talk()))]


@pytest.mark.parametrize("change", [Session.clear, lambda session: session.replace_messages(long_talk())])
async def test_the_conversation_cannot_be_changed_under_a_run(change: Callable[[Session], None]) -> None:
    session = open_session(FakeTransport([None]))
    session.prompt("hi")
    with pytest.raises(UserError, match="cannot be changed while a prompt or compact is running"):
        change(session)
    session.abort()
    await finish(session)
    change(session)


async def test_a_compact_is_emitted_counted_and_ends_with_done() -> None:
    transport = FakeTransport([claude.reply(claude.text(" They talked. "))])
    session = open_session(transport)
    session.replace_messages(long_talk())
    listener = listen(session)
    session.compact()
    await finish(session)
    assert listener.events == [usage(), CompactDone("They talked."), Done()]
    assert [message.content for message in session.history.transcript.messages] == [
        (TextBlock("## Context Summary (compacted)\n\nThey talked."),),
        *(message.content for message in long_talk()[2:]),
    ]
    assert session.history.totals.input == 100


@pytest.mark.parametrize(
    ("messages", "script", "error"),
    [
        (long_talk()[:4], [], "nothing to compact: the conversation has 4 messages, and the newest 4 stay as they are"),
        (long_talk(), [claude.reply(claude.text(" "))], "nothing was compacted: the model returned an empty summary"),
        (
            long_talk(),
            [Answer([b"busy"], status=400)],
            "anthropic: http 400: busy (try another model or another --api)",
        ),
    ],
    ids=["too short", "an empty summary", "a refusal"],
)
async def test_a_compact_that_fails_says_so_and_changes_nothing(
    messages: list[Message], script: list[Any], error: str
) -> None:
    session = open_session(FakeTransport(script))
    session.replace_messages(messages)
    listener = listen(session)
    session.compact()
    await finish(session)
    assert listener.events[-2:] == [Error(error), Done()]
    assert list(session.history.transcript.messages) == messages


async def test_an_aborted_compact_says_so_and_changes_nothing() -> None:
    session = open_session(FakeTransport([Answer([claude.start(), None])]))
    session.replace_messages(long_talk())
    listener = listen(session)
    session.compact()
    for _ in range(10):
        await asyncio.sleep(0)
    session.abort()
    await finish(session)
    assert kinds(listener.events)[-2:] == ["turn_end aborted", "done"]
    assert list(session.history.transcript.messages) == long_talk()


# The end.


async def test_closing_ends_the_run_drops_the_queue_and_closes_the_service() -> None:
    transport = FakeTransport([None])
    session = open_session(transport)
    listener = listen(session)
    dropped: list[AgentError] = []
    session.prompt("one")
    waiting = session.prompt("two", observer=Reports(dropped=dropped.append))
    async with asyncio.timeout(PATIENCE_S):
        await session.close()
        await session.close()
    assert kinds(listener.events) == ["user_message", "turn_end aborted", "done"]
    assert [(type(one), str(one)) for one in dropped] == [(RunCancelled, "the session was closed")]
    assert (transport.closed, waiting.aborted) == (True, True)
    for ask in (session.prompt, session.steer):
        with pytest.raises(RuntimeClosed):
            ask("three")
    with pytest.raises(RuntimeClosed):
        session.compact()


async def test_a_subscriber_that_raises_costs_no_later_one(caplog: pytest.LogCaptureFixture) -> None:
    def deaf(*_: object) -> None:
        raise ValueError("cannot hear")

    session = open_session(FakeTransport())
    listener = listen(session)
    heard: list[str] = []
    session.prompt("one", observer=Reports(started=deaf))
    for ask in (session.prompt, session.steer):
        ask("two", observer=Reports(dropped=deaf))
        ask("three", observer=Reports(dropped=lambda why: heard.append(str(why))))
    session.abort(queue=True)
    for text in ("four", "five"):
        session.prompt(text, observer=Reports(started=deaf))
    await finish(session)
    assert heard == ["dropped by an abort"] * 2
    assert [kind for kind in kinds(listener.events) if kind in ("user_message", "done")] == ["user_message", "done"] * 3
    session.prompt("six")
    session.prompt("seven", observer=Reports(dropped=deaf))
    session.prompt("eight", observer=Reports(dropped=lambda why: heard.append(str(why))))
    async with asyncio.timeout(PATIENCE_S):
        await session.close()
    assert heard[2:] == ["the session was closed"]
    assert {record.getMessage() for record in caplog.records if record.exc_info} == {"the observer of a job raised"}


async def test_finish_waits_for_everything_that_was_accepted() -> None:
    session = open_session(FakeTransport())
    listener = listen(session)
    for text in ("one", "two", "three"):
        session.prompt(text)
    await finish(session)
    assert kinds(listener.events).count("done") == 3
    assert not session.worker.busy


async def test_a_job_knows_how_it_ended() -> None:
    session = open_session(FakeTransport())
    job = session.prompt("hi")
    await finish(session)
    assert (job.error, job.aborted) == (None, False)


async def test_an_abort_takes_effect_even_if_leftover_processes_cannot_be_ended() -> None:
    class Stubborn(NoToolResources):
        async def end(self, owner: str) -> None:
            raise ChildProcessError("it does not end")

    agent = open_session(FakeTransport([None])).agent
    session = Session(agent, tools=Stubborn())
    listener = listen(session)
    session.prompt("hi")
    session.abort()
    await finish(session)
    assert kinds(listener.events)[-2:] == ["turn_end aborted", "done"]


async def test_an_abort_between_the_last_turn_and_done_ends_leftover_processes() -> None:
    ended: list[str] = []

    class Jobs(NoToolResources):
        async def end(self, owner: str) -> None:
            ended.append(owner)

    class Late(Listener):
        """Aborts when the run's task has ended, and before the worker has noticed."""

        def deliver(self, batch: Batch) -> None:
            super().deliver(batch)
            if self.events[-1] == TurnEnd("end_turn"):
                asyncio.get_running_loop().call_soon(session.abort)

    session = Session(open_session(FakeTransport()).agent, tools=Jobs(), key="s")
    listener = Late()
    session.history.subscribe(listener)
    job = session.prompt("hi")
    await finish(session)
    assert kinds(listener.events)[-3:] == ["turn_end end_turn", "turn_end aborted", "done"]
    assert (job.aborted, ended) == (True, ["s/1"])


async def test_a_late_turn_takes_as_many_loop_steps_as_an_early_one() -> None:
    """Counted in calls of functions, which no other program on the machine can disturb."""

    async def look(args: dict[str, Any], context: ToolContext) -> Output:
        return (TextBlock("seen"),)

    calling = claude.reply(claude.text("I will"), claude.tool("c1", "look"), ends="tool_use")
    transport = FakeTransport([calling, claude.reply(claude.text("Seen."))] * 60)
    session = open_session(transport, tools=[FakeTool("look", look)])
    calls: Counter[str] = Counter()
    costs = []
    for _ in range(60):
        calls.clear()
        sys.setprofile(lambda frame, event, arg: calls.update([event]))
        try:
            session.prompt("look")
            await finish(session)
        finally:
            sys.setprofile(None)
        costs.append(calls["call"] + calls["c_call"])
    await session.close()
    assert max(costs[50:]) < 1.02 * max(costs[5:15])
