"""Faults at every moment: a run ends once, in order, and the service accepts the next request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pytest
from apis import APIS

from fakes import (
    KEY,
    PNG,
    Answer,
    Doorman,
    FakeTool,
    FakeTransport,
    Guard,
    Points,
    Reports,
    at_once,
    finish,
    listen,
    open_session,
)
from grammar import At, Grammar
from zot.config.vendors import ApiName
from zot.encoding import encode
from zot.errors import ProviderError, StreamBroken, ToolFailed
from zot.events import Done, TurnEnd
from zot.messages import ImageBlock, TextBlock
from zot.providers.service import Service
from zot.session.session import Session
from zot.tools.base import Output, ToolContext


class Conversation:
    """A long talk with everything in it: thinking, images, calls that fail, retries, steering and a compaction."""

    def __init__(self, api: ApiName, points: Points, *, holds: bool = False) -> None:
        self.spoken = APIS[api]
        self.points = points
        self.transport = FakeTransport(_script(api), points, _fine(api))
        self.session = self._open(holds=holds)
        self.listener = listen(self.session, points)
        self.grammar = Grammar()
        self.starts = 0
        self.troubled = False
        self.listener.on_event = lambda event: self.grammar.take(msgspec.json.decode(encode(event)))

    async def go_on(self) -> None:
        """Send every prompt, one after the other, until one fails."""
        await self._prompt("look at these", PNG, ImageBlock("image/tiff", b"II*"))
        for text in ("again", "think", "", "and now?"):
            if not self.troubled:
                await (self._prompt(text) if text else self._compact())

    async def go_on_after_all(self) -> None:
        """Send a prompt, compact, and send another: each must be answered."""
        self.transport.skip_to_the_end()
        for text in ("still there?", "and still?"):
            await self._prompt(text)
            assert self.listener.events[-2:] == [TurnEnd("end_turn"), Done()]
            await self._compact()

    def check(self) -> None:
        """Every job ended once and in order, and every request was acceptable."""
        self.grammar.finish()
        assert self.grammar.runs == self.starts == sum(isinstance(event, Done) for event in self.listener.events)
        bodies = self.transport.bodies
        assert [_problems(self.spoken.problems, body) for body in bodies] == [[] for _ in bodies]

    async def _prompt(self, text: str, *images: ImageBlock) -> None:
        self.session.prompt(text, images, observer=Reports(started=self.accepted))
        await finish(self.session)

    async def _compact(self) -> None:
        self.session.compact(observer=Reports(started=lambda: self.accepted("compact")))
        await finish(self.session)

    def accepted(self, command: str = "prompt") -> None:
        # Steering that came too late for its run becomes one of its own.
        self.starts += self.grammar.at is At.IDLE
        self.grammar.take({"type": "response", "command": command, "success": True})

    def _open(self, *, holds: bool) -> Session:
        tools = [FakeTool("look", self._look), FakeTool("break", self._break)]
        guard = Guard(holds=holds, points=self.points)
        api = self.spoken.api(origin="test")
        service = Service("test", api, self.transport, key=KEY, retries=at_once())
        return open_session(service, tools=tools, extensions=guard, approver=Doorman(), reasoning="low")

    async def _look(self, args: dict[str, Any], context: ToolContext) -> Output:
        await context.reporter.progress("looking")
        await self.points.reach()
        if args.get("steer"):
            self.session.steer("a word in between", [PNG], observer=Reports(started=lambda: self.accepted("steer")))
        await self.points.reach()
        return (TextBlock("seen"), PNG)

    async def _break(self, args: dict[str, Any], context: ToolContext) -> Output:
        await self.points.reach()
        raise ToolFailed("it broke")


@cache
def _problems(find: Callable[[bytes], list[str]], body: bytes) -> list[str]:
    """Return the error in a request. Until the fault, each conversation extends the previous one."""
    return find(body)


@cache
def _fine(api: ApiName) -> list[bytes]:
    words = APIS[api].words
    return words.reply(words.text("fine"))


@cache
def _script(api: ApiName) -> list[Answer | list[bytes]]:
    words = APIS[api].words
    return [
        words.reply(
            words.thinking("Let me", " see", signature="sig1"),
            words.text("I will ", "look"),
            words.tool("c1", "look", '{"steer":', " true}"),
            words.tool("c2", "break", '{"x": 1}'),
            words.tool("c3", "no_such_tool"),
            words.tool("c4", "look", '{"half'),
            ends="tool_use",
        ),
        words.reply(words.redacted("sealed"), words.tool("c5", "look"), ends="tool_use"),
        Answer([b'{"type":"error","error":{"type":"overloaded_error","message":"busy"}}'], status=529),
        words.reply(words.text("There.")),
        words.reply(words.text(" "), words.tool("c6", "look", '{"a": 1}'), ends="max_tokens"),
        words.reply(words.thinking("Hm", signature="sig2")),
        words.reply(words.text("They looked ", "at things.")),
        words.reply(words.text("Now."), words.tool("c7", "look"), ends="tool_use"),
    ]


def _raise(error: Callable[[], Exception]) -> Callable[[Conversation], None]:
    def act(conversation: Conversation) -> None:
        conversation.troubled = True
        raise error()

    return act


def _abort(conversation: Conversation) -> None:
    conversation.troubled = True
    conversation.session.abort()


TROUBLES: dict[str, Callable[[Conversation], None]] = {
    "abort": _abort,
    "a broken stream": _raise(lambda: StreamBroken("the line went dead")),
    "an overload": _raise(lambda: ProviderError("busy", status=529)),
    "a failing tool": _raise(lambda: ToolFailed("failed")),
    "a bug": _raise(lambda: ZeroDivisionError("a bug")),
}


async def _points_of_a_quiet_talk(api: ApiName, *, holds: bool) -> int:
    conversation = Conversation(api, Points(), holds=holds)
    await conversation.go_on()
    conversation.check()
    return conversation.points.passed


@pytest.mark.parametrize("api", APIS)
async def test_the_undisturbed_conversation_has_everything_in_it(api: ApiName) -> None:
    conversation = Conversation(api, Points())
    await conversation.go_on()
    conversation.check()
    assert len(conversation.transport.bodies) == 9
    assert {type(event).__name__ for event in conversation.listener.events} >= {
        "Retry", "ThinkingDelta", "ToolUseArgs", "ToolCall", "ToolProgress", "ToolResult", "CompactDone",
    }  # fmt: skip
    assert b"Context Summary" in conversation.transport.bodies[-1]
    assert b"a word in between" in conversation.transport.bodies[1]


#: What is done about trouble is the same for every API; what it leaves behind is not. Kinds of trouble that are dealt
#: with in the same place share the moments among them.
@pytest.mark.parametrize(
    ("api", "trouble", "holds", "first", "step"),
    [
        ("anthropic", "abort", False, 1, 1),
        ("anthropic", "a broken stream", False, 1, 2),
        ("anthropic", "an overload", False, 2, 2),
        ("anthropic", "a failing tool", False, 1, 2),
        ("anthropic", "a bug", False, 2, 2),
        ("anthropic", "abort", True, 1, 2),
        ("anthropic", "a broken stream", True, 2, 2),
        *((api, "abort", False, 1, 2) for api in APIS if api != "anthropic"),
        *((api, "a broken stream", True, 2, 2) for api in APIS if api != "anthropic"),
    ],
)
async def test_a_fault_at_any_moment_leaves_a_conversation_that_can_continue(
    api: ApiName, trouble: str, first: int, step: int, *, holds: bool
) -> None:
    last = await _points_of_a_quiet_talk(api, holds=holds)
    assert last > 90
    for at in range(first, last + 1, step):
        conversation = Conversation(api, Points(at), holds=holds)
        conversation.points.act = lambda chosen=conversation: TROUBLES[trouble](chosen)  # type: ignore[misc]
        await conversation.go_on()
        await conversation.go_on_after_all()
        conversation.check()


async def test_an_abort_at_any_turn_of_the_event_loop_leaves_a_conversation_that_can_continue() -> None:
    turn, aborted = 0, True
    while aborted:
        turn += 1
        conversation = Conversation("anthropic", Points())
        aborted = await _disturbed(conversation, turn)
        await conversation.go_on_after_all()
        conversation.check()
    assert turn > 100


async def _disturbed(conversation: Conversation, turns: int) -> bool:
    """Have the conversation and abort it after this many turns of the loop. False if it was over before that."""
    loop = asyncio.get_running_loop()

    def count(left: int) -> None:
        if left and not over:
            loop.call_soon(count, left - 1)
        elif not over:
            _abort(conversation)

    over = False
    count(turns)
    await conversation.go_on()
    over = True
    return conversation.troubled


@pytest.mark.parametrize("queue", [False, True])
async def test_an_abort_before_the_first_step_is_reported_by_the_owner(*, queue: bool) -> None:
    conversation = Conversation("anthropic", Points())
    conversation.transport.skip_to_the_end()
    conversation.session.prompt("hi", observer=Reports(started=conversation.accepted))
    conversation.session.abort(queue=queue)
    await finish(conversation.session)
    assert [type(event).__name__ for event in conversation.listener.events] == ["UserMessage", "TurnEnd", "Done"]
    assert conversation.transport.requests == []
    await conversation.go_on_after_all()
    conversation.check()
