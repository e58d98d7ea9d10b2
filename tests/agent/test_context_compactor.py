"""Compaction before a request would not fit, or after the service refused it: enough, in order, never in a loop."""

from __future__ import annotations

import json
from typing import Any

import pytest

import claude
from fakes import (
    NOON,
    PNG,
    Answer,
    FakeResponse,
    FakeTool,
    FakeTransport,
    ListStore,
    Points,
    finish,
    kinds,
    listen,
    open_session,
    talk,
)
from zot.agent.compaction import KEEP_MESSAGES, KEEP_RECENT, AutoCompact
from zot.agent.loop import Budget
from zot.errors import BadRequest, BudgetExhausted, ContextExhausted, ContextTooLong, UserError
from zot.events import CompactDone, Done, TurnEnd, Usage
from zot.messages import CallBlock, Message, ResultBlock, Role, TextBlock, TranscriptBlock
from zot.providers.base import Deadlines, HttpRequest, Model
from zot.session.session import Session
from zot.store import MessagesReplaced
from zot.tools.base import Output, ToolContext

#: Room is made for it from 5000 tokens on: half of its window.
SMALL = Model("small", "anthropic", 10_000, 1_000, reasoning=False)
SUMMARY = claude.reply(claude.text("They talked."))
TOO_LONG = Answer([b'{"error":{"code":"context_length_exceeded","message":"too long"}}'], status=400)
TOO_BIG = Answer([b"{}"], status=413)
#: What Anthropic says, which has no word for it; and what a service may say to anything that is wrong.
SENTENCE = Answer(
    [b'{"error":{"type":"invalid_request_error","message":"prompt is too long: 4 tokens > 3 maximum"}}'], status=400
)
VAGUE = Answer([b'{"error":{"type":"invalid_request_error","message":"no"}}'], status=400)
QUIET = ["user_message", "turn_start", "assistant_start", "text_delta", "usage", "assistant_message"]
QUIET += ["turn_end end_turn", "done"]


def said(role: Role, *blocks: TranscriptBlock) -> Message:
    return Message(role, blocks, NOON)


def user(tokens: int, word: str = "word") -> Message:
    """Return a text of about this many tokens."""
    return said("user", TextBlock(word.ljust(4 * tokens, ".")))


def turn(number: int, tokens: int) -> list[Message]:
    """Return a call and its result, of about this many tokens."""
    return [
        said("assistant", CallBlock(f"c{number}", "look", {})),
        said("tool", ResultBlock(f"c{number}", False, (TextBlock(str(number).ljust(4 * tokens, ".")),))),
    ]


def counted(tokens: int, *parts: claude.Part, ends: str = "end_turn") -> list[bytes]:
    """Return a reply to a request of this many tokens."""
    blocks = [piece for index, part in enumerate(parts) for piece in part(index)]
    return [claude.start(input_tokens=tokens), *blocks, *claude.stop(ends, output_tokens=10)]


def open_small(transport: FakeTransport, messages: list[Message], **settings: Any) -> Session:
    session = open_session(transport, **{"models": [SMALL], "model": "small", **settings})
    session.replace_messages(messages)
    return session


def asked(transport: FakeTransport) -> list[str]:
    """Return the purpose of each request."""
    return ["summary" if b"hand-over notes" in body else "answer" for body in transport.bodies]


class Counting(FakeTransport):
    """Counts the tokens of each request, as a service would, and requests 60 tool calls."""

    async def send(self, request: HttpRequest, deadlines: Deadlines) -> FakeResponse:
        number = len(self.requests)
        call = counted(len(request.body) // 4, claude.tool(f"c{number}", "look"), ends="tool_use")
        summarises = b"hand-over notes" in request.body
        self._script = iter([SUMMARY] if summarises else [call] if number < 60 else [])
        return await super().send(request, deadlines)


# Before a call.


async def test_a_conversation_that_fits_is_not_compacted() -> None:
    messages = [user(450) for _ in range(10)]
    transport = FakeTransport()
    session = open_small(transport, messages)
    assert kinds(await talk(session)) == QUIET
    assert list(session.history.transcript.messages)[:10] == messages


async def test_a_conversation_that_does_not_fit_is_summarised_before_the_model_call() -> None:
    messages = [user(800) for _ in range(8)]
    transport, store = FakeTransport([SUMMARY]), ListStore()
    session = open_small(transport, messages, store=store)
    events = await talk(session)
    assert asked(transport) == ["summary", "answer"]
    assert kinds(events) == [*QUIET[:2], "usage", "compact_done", *QUIET[2:]]
    assert events[3] == CompactDone("They talked.", auto=True)
    assert [event.auto for event in events if isinstance(event, Usage)] == [True, False]
    summary = said("user", TextBlock("## Context Summary (compacted)\n\nThey talked."))
    assert list(session.history.transcript.messages)[:4] == [summary, *messages[-3:]]
    assert MessagesReplaced(0, 5, (summary,), "compaction") in store.rows
    assert session.history.totals.input == 200


async def test_old_output_of_tools_goes_first_and_the_model_is_not_asked() -> None:
    old = [message for number in range(3) for message in turn(number, 1500)]
    new = [message for number in range(3, 7) for message in turn(number, 300)]
    messages = [user(10), *old, *new]
    transport = FakeTransport()
    session = open_small(transport, messages)
    events = await talk(session)
    assert asked(transport) == ["answer"]
    assert events[2] == CompactDone("", auto=True, pruned=3)
    after = list(session.history.transcript.messages)[: len(messages)]
    assert after[7:] == new
    assert len(new) == KEEP_RECENT
    assert after[1::2][:3] == old[::2]
    for number, message in enumerate(after[2:7:2]):
        dots = f"{'.' * 699}\n[... 4800 characters left out ...]\n{'.' * 500}"
        assert message.content == (ResultBlock(f"c{number}", False, (TextBlock(f"{number}{dots}"),)),)


async def test_an_image_in_old_output_becomes_a_note() -> None:
    image = [
        said("assistant", CallBlock("i", "look", {})),
        said("tool", ResultBlock("i", False, (PNG, PNG, TextBlock("a picture")))),
    ]
    session = open_small(FakeTransport(), [user(10), *image, *(user(200) for _ in range(KEEP_RECENT + 1))])
    await talk(session)
    await talk(session)
    note = "[an image was here: image/png, 4 bytes]"
    assert session.history.transcript.messages[2].content == (
        ResultBlock("i", False, (TextBlock(f"{note}\n{note}\na picture"),)),
    )


async def test_where_shortened_output_is_not_enough_old_messages_are_summarised() -> None:
    messages = [*(user(900) for _ in range(6)), *turn(1, 1000), *(user(10) for _ in range(8))]
    transport = FakeTransport([SUMMARY])
    session = open_small(transport, messages)
    events = await talk(session)
    assert asked(transport) == ["summary", "answer"]
    assert CompactDone("They talked.", auto=True) in events
    assert len(session.history.transcript) == 1 + KEEP_MESSAGES + 1


@pytest.mark.parametrize(("tokens", "summaries"), [(1000, 0), (4900, 1)])
async def test_the_service_s_token_count_is_used(tokens: int, summaries: int) -> None:
    """The estimate alone would be 2400 tokens."""
    transport = FakeTransport([counted(tokens, claude.text("one"))])
    session = open_small(transport, [user(400) for _ in range(6)])
    await talk(session)
    await talk(session, "x" * 1000)
    assert asked(transport).count("summary") == summaries


async def test_the_user_s_prompts_stay_verbatim() -> None:
    async def look(args: dict[str, Any], context: ToolContext) -> Output:
        return (TextBlock("." * 3800),)

    calls = [
        counted(tokens, claude.tool(f"c{number}", "look"), ends="tool_use")
        for number, tokens in enumerate((100, 1100, 2100, 3100, 4100))
    ]
    transport = FakeTransport([*calls, SUMMARY, counted(2000, claude.tool("c5", "look"), ends="tool_use")])
    session = open_small(transport, [], tools=[FakeTool("look", look)])
    await talk(session, "Find it.")
    assert asked(transport) == [*["answer"] * 5, "summary", "answer", "answer"]
    roles = [message.role for message in session.history.transcript.messages]
    assert roles == ["user", "user", "assistant", "tool", "assistant", "tool", "assistant", "tool", "assistant"]
    assert session.history.transcript.messages[1] == said("user", TextBlock("Find it."))


async def test_new_output_is_shortened_if_nothing_else_helps() -> None:
    messages = [user(10), *turn(1, 6000)]
    transport = FakeTransport()
    session = open_small(transport, messages)
    events = await talk(session)
    assert asked(transport) == ["answer"]
    assert CompactDone("", auto=True, pruned=1) in events
    assert kinds(events)[-1] == "done"


async def test_a_conversation_that_only_seems_too_long_and_cannot_be_shortened_is_sent() -> None:
    transport = FakeTransport()
    session = open_small(transport, [user(9000)])
    events = await talk(session)
    assert asked(transport) == ["answer"]
    assert kinds(events)[-2:] == ["turn_end end_turn", "done"]


async def test_a_conversation_that_cannot_be_shortened_ends_with_a_clear_error() -> None:
    transport = FakeTransport([TOO_LONG])
    session = open_small(transport, [user(9000)])
    listener = listen(session)
    job = session.prompt("hi")
    await finish(session)
    assert asked(transport) == ["answer"]
    assert kinds(listener.events) == ["user_message", "turn_start", "turn_end error", "error", "done"]
    assert isinstance(job.error, ContextExhausted)
    assert (job.error.window // 100, job.error.needed // 100) == (90, 90)
    assert str(job.error).startswith("context exhausted: the next request takes about 90")


async def test_compactions_are_rare_and_requests_stay_bounded() -> None:
    """One prompt of 60 turns, each of which adds a tenth of the window."""

    async def look(args: dict[str, Any], context: ToolContext) -> Output:
        return (TextBlock("." * 2000),)

    transport = Counting()
    session = open_small(transport, [], tools=[FakeTool("look", look)], max_steps=100)
    await talk(session, "go")
    sizes = [len(body) // 4 for body in transport.bodies]
    assert max(sizes) < 6000
    assert 3 <= asked(transport).count("summary") <= 12


@pytest.mark.parametrize("at", [None, 1500])
async def test_the_compaction_threshold_can_be_lowered(at: int | None) -> None:
    transport = FakeTransport([SUMMARY])
    session = open_small(transport, [user(300) for _ in range(7)], auto_compact=AutoCompact(at=at))
    await talk(session)
    assert asked(transport) == (["answer"] if at is None else ["summary", "answer"])


async def test_compaction_can_be_switched_off() -> None:
    transport = FakeTransport([TOO_LONG])
    session = open_small(transport, [user(1000) for _ in range(9)], auto_compact=AutoCompact(on=False))
    job = session.prompt("hi")
    await finish(session)
    assert asked(transport) == ["answer"]
    assert isinstance(job.error, ContextTooLong)
    assert len(session.history.transcript) == 10


# When the service found it too long.


@pytest.mark.parametrize("refusal", [TOO_LONG, TOO_BIG])
async def test_a_refused_conversation_is_shortened_and_sent_again(refusal: Answer) -> None:
    transport = FakeTransport([refusal, SUMMARY])
    session = open_small(transport, [user(400) for _ in range(10)])
    events = await talk(session)
    assert asked(transport) == ["answer", "summary", "answer"]
    assert kinds(events) == [*QUIET[:2], "usage", "compact_done", *QUIET[2:]]


@pytest.mark.parametrize(("refusal", "again"), [(TOO_LONG, ["summary", "answer"]), (TOO_BIG, ["answer"])])
async def test_a_refusal_reveals_the_size_of_the_window(refusal: Answer, again: list[str]) -> None:
    transport = FakeTransport([refusal, SUMMARY])
    session = open_small(transport, [user(400) for _ in range(10)])
    await talk(session)
    session.replace_messages([user(400) for _ in range(10)])
    await talk(session)
    assert asked(transport) == ["answer", "summary", "answer", *again]


async def test_a_refused_small_request_reveals_nothing() -> None:
    session = open_small(FakeTransport([TOO_LONG]), [])
    assert kinds(await talk(session))[-3:] == ["turn_end error", "error", "done"]
    assert kinds(await talk(session)) == QUIET


@pytest.mark.parametrize("messages", [[], [user(400) for _ in range(10)], [user(1000) for _ in range(10)]])
async def test_a_service_that_refuses_every_length_is_not_retried_without_end(messages: list[Message]) -> None:
    scripts: list[list[Answer | list[bytes]]] = [[TOO_LONG] * 9, [TOO_LONG, SUMMARY, TOO_LONG, TOO_LONG]]
    for script in scripts:
        transport = FakeTransport(script)
        session = open_small(transport, messages)
        listener = listen(session)
        job = session.prompt("hi")
        await finish(session)
        assert len(transport.requests) <= 3
        assert kinds(listener.events)[-3:] == ["turn_end error", "error", "done"]
        assert isinstance(job.error, ContextExhausted)


#: Room is made for it from 35,804 tokens on, and from 28,000 on it may be what a service means.
WIDE = Model("wide", "anthropic", 40_000, 100, reasoning=False)


@pytest.mark.parametrize(("tokens", "requests"), [(2700, ["answer"]), (3000, ["answer", "summary", "answer"])])
async def test_a_refusal_without_a_reason_means_too_long_when_the_window_is_nearly_full(
    tokens: int, requests: list[str]
) -> None:
    transport = FakeTransport([VAGUE, SUMMARY])
    session = open_small(transport, [user(tokens) for _ in range(10)], models=[WIDE], model="wide")
    await talk(session)
    assert asked(transport) == requests


async def test_a_refusal_with_a_reason_is_never_taken_for_too_long() -> None:
    transport = FakeTransport([SENTENCE, SUMMARY])
    session = open_small(transport, [user(2000) for _ in range(10)], models=[WIDE], model="wide")
    await talk(session)
    assert asked(transport) == ["answer", "summary", "answer"]


async def test_a_lasting_refusal_without_a_reason_is_reported_unchanged() -> None:
    transport = FakeTransport([VAGUE, SUMMARY, VAGUE])
    session = open_small(transport, [user(3000) for _ in range(10)], models=[WIDE], model="wide")
    job = session.prompt("hi")
    await finish(session)
    assert asked(transport) == ["answer", "summary", "answer"]
    assert isinstance(job.error, BadRequest)


async def test_a_refusal_inside_an_answer_shortens_the_conversation_for_the_next_prompt() -> None:
    error = claude.event("error", error={"type": "context_length_exceeded", "message": "too long"})
    transport = FakeTransport([[claude.start(), error], SUMMARY])
    session = open_small(transport, [user(400) for _ in range(10)])
    assert kinds(await talk(session))[-3:] == ["turn_end error", "error", "done"]
    await talk(session)
    assert asked(transport) == ["answer", "summary", "answer"]


# When making room goes wrong.


async def test_an_abort_during_a_summary_ends_the_run() -> None:
    points = Points(at=1)
    transport = FakeTransport([None], points)
    messages = [user(800) for _ in range(8)]
    session = open_small(transport, messages)
    points.act = session.abort
    events = await talk(session)
    assert events[1:] == [*events[1:2], TurnEnd("aborted"), Done()]
    assert list(session.history.transcript.messages)[:-1] == messages


async def test_an_empty_summary_is_not_retried_without_end() -> None:
    empty = claude.reply(claude.text(" "))
    transport = FakeTransport([empty])
    session = open_small(transport, [user(800) for _ in range(8)])
    listener = listen(session)
    job = session.prompt("hi")
    await finish(session)
    assert asked(transport) == ["summary", "answer"]
    assert job.error is None
    assert kinds(listener.events)[-2:] == ["turn_end end_turn", "done"]
    assert len(session.history.transcript) == 10


async def test_a_failing_summary_fails_the_turn() -> None:
    transport = FakeTransport([Answer([b"{}"], status=401)])
    session = open_small(transport, [user(800) for _ in range(8)])
    events = await talk(session)
    assert kinds(events)[1:] == ["turn_start", "turn_end error", "error", "done"]
    assert len(session.history.transcript) == 9


async def test_a_summary_counts_towards_the_budget() -> None:
    transport = FakeTransport([SUMMARY])
    session = open_small(transport, [user(800) for _ in range(8)], budget=Budget(max_tokens_total=100))
    job = session.prompt("hi")
    await finish(session)
    assert asked(transport) == ["summary"]
    assert isinstance(job.error, BudgetExhausted)


@pytest.mark.parametrize(
    ("tokens", "allowed"), [(10, 12_000), (7000, 12_000), (10_000, 9480), (18_000, 4096), (30_000, 12_000)]
)
async def test_an_answer_gets_only_the_free_part_of_the_window(tokens: int, allowed: int) -> None:
    """Without any message left, the window is smaller than configured."""
    model = Model("m", "anthropic", 20_000, 12_000, reasoning=False)
    transport = FakeTransport()
    session = open_small(transport, [user(tokens)], models=[model], model="m", auto_compact=AutoCompact(on=False))
    await talk(session)
    assert json.loads(transport.bodies[0])["max_tokens"] == pytest.approx(allowed, abs=30)


# Taking it back.


async def test_a_compaction_can_be_undone_and_later_messages_stay() -> None:
    messages = [user(800) for _ in range(8)]
    session = open_small(FakeTransport([SUMMARY]), messages)
    await talk(session)
    session.undo_compact()
    after = list(session.history.transcript.messages)
    assert (after[:8], [message.role for message in after[8:]]) == (messages, ["user", "assistant"])


async def test_only_the_newest_compaction_can_be_undone() -> None:
    session = open_small(FakeTransport([SUMMARY]), [user(10) for _ in range(8)])
    with pytest.raises(UserError, match="there is no compaction to undo"):
        session.undo_compact()
    session.compact()
    await finish(session)
    session.undo_compact()
    with pytest.raises(UserError, match="there is no compaction to undo"):
        session.undo_compact()
    session.compact()
    await finish(session)
    session.clear()
    with pytest.raises(UserError, match="there is no compaction to undo"):
        session.undo_compact()
