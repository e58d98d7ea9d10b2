"""Helpers for lab's tests: request bodies, transports that never really sleep, and responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from zot.providers.base import Deadlines, HttpRequest
from zot.providers.lab.http_server import serve
from zot.providers.lab.performance import Step
from zot.providers.lab.script import Script, demo
from zot.providers.lab.stage import LabService
from zot.providers.lab.transport import LabResponse, LabTransport

WAIT_S = 20.0
TOOL = {"name": "bash", "input_schema": {"type": "object"}}

MESSAGES = "/v1/messages"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
GEMINI = "/v1beta/models/m:streamGenerateContent?alt=sse"
GEMINI_WHOLE = "/v1beta/models/m:generateContent"


class Clock:
    """A sleep that takes no time and records its length."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def called(*ids: str) -> list[dict[str, Any]]:
    """An assistant's turn with these calls, and their results."""
    uses = [{"type": "tool_use", "id": id_, "name": "bash", "input": {}} for id_ in ids]
    results = [{"type": "tool_result", "tool_use_id": id_, "content": "ok"} for id_ in ids]
    return [{"role": "assistant", "content": uses}, {"role": "user", "content": results}]


def tool(name: str, *arguments: str) -> dict[str, Any]:
    """A tool as Anthropic's API has it, which takes texts."""
    schema = {"type": "object", "properties": {argument: {"type": "string"} for argument in arguments}}
    return {"name": name, "input_schema": schema}


#: As zot offers them.
OWN_TOOLS = (tool("write", "path", "content"), tool("read", "path"), tool("edit", "path", "edits"), TOOL)


def body(*messages: dict[str, Any] | str, tools: Sequence[dict[str, Any]] | bool = True, stream: bool = True) -> bytes:
    """Return an Anthropic request that offers these tools; True stands for bash alone."""
    listed = [user(message) if isinstance(message, str) else message for message in messages]
    offered = ([TOOL] if tools else []) if isinstance(tools, bool) else [*tools]
    return json.dumps({"model": "lab", "stream": stream, "tools": offered, "messages": listed}).encode()


def steps(script: Script, request: bytes, target: str = MESSAGES) -> list[Step]:
    """Return a fresh service's steps for one request."""
    return list(LabService(script).answer("POST", target, {}, request).steps)


def stream(lines: str, request: bytes | None = None, target: str = MESSAGES) -> str:
    """The bytes with which a script answers its first request, waits and faults left out."""
    answered = steps(Script.parse(lines), request or body("hi"), target)
    return b"".join(step for step in answered if isinstance(step, bytes)).decode()


def texts(data: bytes) -> list[str]:
    """The text deltas of an Anthropic stream."""
    found = []
    for line in data.decode().split("\n"):
        if line.startswith("data: "):
            delta = json.loads(line[6:]).get("delta", {})
            found += [delta["text"]] if "text" in delta else []
    return found


async def send(
    transport: LabTransport, request: bytes, *, target: str = MESSAGES, deadlines: Deadlines | None = None
) -> LabResponse:
    async with asyncio.timeout(WAIT_S):
        return await transport.send(HttpRequest(f"http://lab{target}", {}, request), deadlines or Deadlines())


async def read_all(response: LabResponse) -> bytes:
    data = bytearray()
    async with asyncio.timeout(WAIT_S):
        while more := await response.read():
            data += more
    return bytes(data)


async def said(transport: LabTransport, request: bytes) -> str:
    """Return the text of a response, or its status if it is an error."""
    response = await send(transport, request)
    data = await read_all(response)
    return "".join(texts(data)) if response.status == 200 else f"status {response.status}"


@asynccontextmanager
async def serving(script: Script | None = None, clock: Clock | None = None) -> AsyncIterator[tuple[str, int]]:
    """A running server: its host and port."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving_ = serve(
        LabService(script or demo()), host="127.0.0.1", port=0, ready=ready.set_result, sleep=clock or Clock()
    )
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        task = group.create_task(serving_)
        host, _, port = (await ready).removeprefix("http://").rpartition(":")
        try:
            yield host, int(port)
        finally:
            task.cancel()
