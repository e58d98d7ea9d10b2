"""One session of many turns against a model that answers at once. Prints how long each turn took, as JSON.

A turn adds 3 KB to the conversation, so that 200 of them just fit into a model's window.

Run by `growth.py` with the interpreter that zot is installed for.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from zot.agent.loop import Agent
from zot.messages import TextBlock, ToolSpec
from zot.providers.anthropic import AnthropicMessages
from zot.providers.base import Deadlines, HttpRequest
from zot.providers.models import catalogue
from zot.providers.service import Service
from zot.session import Session
from zot.tools.base import ToolContext

_PROMPT = "Please look at the function that reads the configuration. What does it do when a file is missing? " * 4
_WORD = "something"
_RESULT = "    1\tdef read(path: str) -> dict[str, str]:\n" * 40


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def _reply(stop: str, *parts: bytes) -> bytes:
    start = _event("message_start", message={"usage": {"input_tokens": 10, "output_tokens": 1}})
    end = _event("message_delta", delta={"stop_reason": stop}, usage={"output_tokens": 50})
    return b"".join([start, *parts, end, _event("message_stop")])


def _text(index: int, count: int) -> bytes:
    deltas = [
        _event("content_block_delta", index=index, delta={"type": "text_delta", "text": f"{_WORD} "})
        for _ in range(count)
    ]
    start = _event("content_block_start", index=index, content_block={"type": "text", "text": ""})
    return b"".join([start, *deltas, _event("content_block_stop", index=index)])


def _call(index: int) -> bytes:
    block = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    arguments = {"type": "input_json_delta", "partial_json": '{"path":"src/config.py"}'}
    return (
        _event("content_block_start", index=index, content_block=block)
        + _event("content_block_delta", index=index, delta=arguments)
        + _event("content_block_stop", index=index)
    )


_CALLING = _reply("tool_use", _text(0, 30), _call(1))
_ANSWERING = _reply("end_turn", _text(0, 150))


class InstantModel:
    """A `Transport`: a call of a tool and then an answer of 150 words, over and over."""

    def __init__(self) -> None:
        self._calls = 0

    async def send(self, request: HttpRequest, deadlines: Deadlines) -> InstantResponse:
        self._calls += 1
        return InstantResponse(_CALLING if self._calls % 2 else _ANSWERING)

    async def close(self) -> None:
        pass


class InstantResponse:
    """An `HttpResponse` that comes in blocks of a few events."""

    status = 200
    headers: Mapping[str, str] = {}

    def __init__(self, body: bytes) -> None:
        self._blocks = [body[start : start + 2048] for start in range(0, len(body), 2048)][::-1]

    async def read(self) -> bytes:
        return self._blocks.pop() if self._blocks else b""

    def close(self) -> None:
        pass


class Look:
    """A tool that answers at once."""

    read_only = True
    spec = ToolSpec("look", "Look at a file.", {"type": "object", "properties": {"path": {"type": "string"}}})

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> tuple[TextBlock, ...]:
        return (TextBlock(_RESULT),)


async def _key() -> str:
    return "key"


async def main(turns: int) -> list[float]:
    """Return how long each turn took, in seconds."""
    agent = Agent(
        Service("bench", AnthropicMessages(base_url="http://model", origin="bench"), InstantModel(), key=_key),
        catalogue("anthropic"),
        model_id=None,
        system="You help with code.",
        tools=[Look()],
        cwd="/",
        env={},
    )
    session = Session(agent)
    times = []
    for _ in range(turns):
        started = perf_counter()
        session.prompt(_PROMPT)
        await session.finish()
        times.append(perf_counter() - started)
    await session.close()
    return times


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(int(sys.argv[1])))))
