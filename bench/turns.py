"""One session of many turns against a model that answers at once. Prints how long each turn took and how long
the processor worked for it, in seconds, and how much memory was resident after every hundredth, in MB, as JSON.

A turn adds 3 KB to the conversation, so that 200 of them just fit into a model's window; then it is compacted. With a
second argument, a path, the session is kept in a journal.

Run by `growth.py` with the interpreter that zot is installed for.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Mapping
from time import perf_counter, process_time
from typing import Any

from zot.agent import loop
from zot.agent.loop import Agent
from zot.journal.journal import Journal
from zot.messages import TextBlock, ToolSpec
from zot.providers.anthropic import AnthropicMessages
from zot.providers.base import Deadlines, HttpRequest
from zot.providers.models import catalogue
from zot.providers.service import Service
from zot.session.session import Session
from zot.tools.base import ToolContext

_PROMPT = "Please look at the function that reads the configuration. What does it do when a file is missing? " * 4
_WORD = "something"
#: So that 210 turns fit into the window.
_BYTES_PER_TOKEN = 6
_SAMPLE = 100
_RESULT = "    1\tdef read(path: str) -> dict[str, str]:\n" * 40


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def _reply(stop: str, *parts: bytes) -> bytes:
    """A reply without its first event, which reports the request's tokens."""
    end = _event("message_delta", delta={"stop_reason": stop}, usage={"output_tokens": 50})
    return b"".join([*parts, end, _event("message_stop")])


def _start(request: bytes) -> bytes:
    usage = {"input_tokens": len(request) // _BYTES_PER_TOKEN, "output_tokens": 1}
    return _event("message_start", message={"usage": usage})


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
    """A `Transport`: a call of a tool and then an answer of 150 words, over and over; an answer without tools."""

    def __init__(self) -> None:
        self._calls = 0

    async def send(self, request: HttpRequest, deadlines: Deadlines) -> InstantResponse:
        offers_tools = b'"tools":' in request.body
        self._calls += offers_tools
        calling = offers_tools and self._calls % 2
        return InstantResponse(_start(request.body) + (_CALLING if calling else _ANSWERING))

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


class _Key:
    """A key source; earlier checkouts call it instead of `read`."""

    async def read(self) -> str:
        return "key"

    def renew(self, refused: str) -> bool:
        return False

    __call__ = read


def _agent(service: Service) -> Agent:
    settings: dict[str, Any] = {"model_id": None, "system": "You help with code.", "cwd": "/", "env": {}}
    if hasattr(loop, "AgentSettings"):
        return Agent(service, catalogue("anthropic"), loop.AgentSettings(**settings), tools=[Look()])
    return Agent(service, catalogue("anthropic"), tools=[Look()], **settings)  # In earlier checkouts.


async def main(turns: int, path: str | None) -> dict[str, list[float]]:
    """Return the duration of each turn, and the memory used meanwhile."""
    journal = None if path is None else await Journal.open(path)
    agent = _agent(
        Service("bench", AnthropicMessages(base_url="http://model", origin="bench"), InstantModel(), key=_Key())
    )
    session = Session(agent, None if journal is None else await journal.record("bench"))
    finish = getattr(session, "worker", session).finish  # In earlier checkouts it is a method of the session.
    times, cpu, resident_mb = [], [], []
    for turn in range(1, turns + 1):
        started, worked = perf_counter(), process_time()
        session.prompt(_PROMPT)
        await finish()
        times.append(perf_counter() - started)
        cpu.append(process_time() - worked)
        if turn % _SAMPLE == 0:
            resident_mb.append(_resident_mb())
    await session.close()
    if journal is not None:
        await journal.close()
    return {"times": times, "cpu": cpu, "resident_mb": resident_mb}


def _resident_mb() -> float:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / (1 << 20)
    except FileNotFoundError:  # macOS: the peak
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))))
