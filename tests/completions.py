"""Streams of Chat Completions, written by hand: a server's chunks, one per piece."""

from __future__ import annotations

import json
from typing import Any

DONE = b"data: [DONE]\n\n"


def event(**fields: Any) -> bytes:
    """One server-sent event."""
    return f"data: {json.dumps(fields)}\n\n".encode()


def chunk(finish: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event(id="chatcmpl-1", object="chat.completion.chunk", choices=[choice])


def text(*pieces: str) -> list[bytes]:
    return [chunk(content=piece) for piece in pieces]


def thinking(*pieces: str) -> list[bytes]:
    return [chunk(reasoning_content=piece) for piece in pieces]


def call(index: int | None = None, id: str | None = None, name: str | None = None, args: Any = None) -> bytes:  # noqa: A002
    """A piece of a call. None omits a field."""
    function = {key: value for key, value in (("name", name), ("arguments", args)) if value is not None}
    about = {key: value for key, value in (("index", index), ("id", id)) if value is not None}
    return chunk(tool_calls=[{**about, "function": function}])


def tool(index: int, call_id: str, name: str, *pieces: str) -> list[bytes]:
    return [call(index, call_id, name, ""), *(call(index, args=piece) for piece in pieces)]


def usage(**counters: Any) -> bytes:
    told = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120, **counters}
    return event(id="chatcmpl-1", choices=[], usage=told)


def reply(*parts: list[bytes], ends: str = "stop") -> list[bytes]:
    """A whole reply."""
    pieces = [piece for part in parts for piece in part]
    return [chunk(role="assistant", content=""), *pieces, chunk(ends), usage(), DONE]
