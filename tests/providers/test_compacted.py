"""Every service accepts any compacted conversation, whenever it was compacted."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from apis import APIS
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import KEY, NOON, PATIENCE_S, PNG, FakeTool, at_once, open_session, talk
from zot.agent.compaction import AutoCompact
from zot.config.vendors import ApiName
from zot.messages import CallBlock, ImageBlock, Message, ResultBlock, TextBlock, ThinkingBlock
from zot.providers.base import Api, Deadlines, HttpRequest, HttpResponse
from zot.providers.lab.script import demo
from zot.providers.lab.transport import LabTransport
from zot.providers.service import Service
from zot.tools.base import Output, ToolContext


class Recording:
    """lab, and the requests it received."""

    def __init__(self) -> None:
        self._lab = LabTransport(demo())
        self.bodies: list[bytes] = []

    async def send(self, request: HttpRequest, deadlines: Deadlines) -> HttpResponse:
        self.bodies.append(request.body)
        return await self._lab.send(request, deadlines)

    async def close(self) -> None:
        await self._lab.close()


class Part(msgspec.Struct, frozen=True):
    """A piece of a conversation: its number of calls, the lengths of its texts and results, and its extras."""

    kind: str
    calls: int
    chars: int
    has_image: bool


_parts = st.lists(
    st.builds(
        Part,
        st.sampled_from(["user", "turn", "turn", "text"]),
        st.integers(1, 3),
        st.sampled_from([1, 500, 3000, 9000]),
        st.booleans(),
    ),
    max_size=14,
)


def messages_of(parts: list[Part]) -> list[Message]:
    messages = [Message("user", (TextBlock("begin"),), NOON)]
    for number, part in enumerate(parts):
        words, image = TextBlock("w" * part.chars), (PNG,) if part.has_image else ()
        match part.kind:
            case "user":
                messages.append(Message("user", (words, *image), NOON))
            case "text":
                messages.append(Message("assistant", (words,), NOON, origin="lab"))
                messages.append(Message("user", (TextBlock("go on"),), NOON))
            case _:
                ids = [f"toolu_{number}_{call}" for call in range(part.calls)]
                messages += _turn(ids, (words, *image))
    return messages


def _turn(ids: list[str], output: tuple[TextBlock | ImageBlock, ...]) -> list[Message]:
    calls = [CallBlock(call_id, "look", {"path": call_id}) for call_id in ids]
    results = [ResultBlock(call_id, False, output) for call_id in ids]
    thought = ThinkingBlock("hm", "c2lnbmF0dXJl")
    return [
        Message("assistant", (thought, *calls), NOON, origin="lab"),
        Message("tool", tuple(results), NOON),
    ]


@pytest.mark.parametrize("name", APIS)
@settings(max_examples=25, deadline=None)
@given(_parts, st.integers(20, 6000))
def test_every_request_is_accepted(name: ApiName, parts: list[Part], limit: int) -> None:
    spoken = APIS[name]
    bodies = asyncio.run(converse(spoken.api(), messages_of(parts), limit))
    assert [problem for body in bodies for problem in spoken.problems(body)] == []


async def converse(api: Api, messages: list[Message], limit: int) -> list[bytes]:
    """Continue a conversation with a compaction at ``limit`` tokens; return the requests."""

    async def look(args: dict[str, Any], context: ToolContext) -> Output:
        return (TextBlock("." * 3000),)

    transport = Recording()
    service = Service("lab", api, transport, key=KEY, retries=at_once())
    session = open_session(service, tools=[FakeTool("look", look)], auto_compact=AutoCompact(at=limit), max_steps=6)
    session.replace_messages(messages)
    async with asyncio.timeout(PATIENCE_S):
        await talk(
            session, '!script call look {} ;; call look {"a": 1} ;; --- ;; say "x" ;; call look {} ;; --- ;; say y'
        )
        await talk(session, "!echo and then?")
        await session.close()
    return transport.bodies


async def test_the_test_really_compacts_and_keeps_the_needed_messages() -> None:
    parts = [Part("turn", 2, 9000, has_image=True) for _ in range(8)]
    bodies = await converse(APIS["anthropic"].api(), messages_of(parts), 5000)
    kinds = ["summary" if b"hand-over notes" in body else "answer" for body in bodies]
    assert kinds.count("summary") >= 1
    assert kinds.count("answer") >= 3
    assert b"characters left out" in b"".join(bodies)
