"""Streams of the Anthropic Messages API, written by hand: the service's events, one per piece."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

#: A content block, once it knows its place in the reply.
Part: TypeAlias = Callable[[int], list[bytes]]


def event(kind: str, **fields: Any) -> bytes:
    """One server-sent event."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def delta(index: int, kind: str, **fields: Any) -> bytes:
    return event("content_block_delta", index=index, delta={"type": kind, **fields})


def block(index: int, begins: dict[str, Any], *deltas: bytes) -> list[bytes]:
    return [
        event("content_block_start", index=index, content_block=begins),
        *deltas,
        event("content_block_stop", index=index),
    ]


def text(*pieces: str) -> Part:
    return lambda index: block(
        index, {"type": "text", "text": ""}, *(delta(index, "text_delta", text=piece) for piece in pieces)
    )


def thinking(*pieces: str, signature: str) -> Part:
    return lambda index: block(
        index,
        {"type": "thinking", "thinking": "", "signature": ""},
        *(delta(index, "thinking_delta", thinking=piece) for piece in pieces),
        delta(index, "signature_delta", signature=signature),
    )


def redacted(data: str) -> Part:
    return lambda index: block(index, {"type": "redacted_thinking", "data": data})


def tool(call_id: str, name: str, *pieces: str) -> Part:
    return lambda index: block(
        index,
        {"type": "tool_use", "id": call_id, "name": name, "input": {}},
        *(delta(index, "input_json_delta", partial_json=piece) for piece in pieces),
    )


def start(**usage: int) -> bytes:
    counters = {"input_tokens": 100, "output_tokens": 1, **usage}
    return event("message_start", message={"id": "msg_1", "role": "assistant", "content": [], "usage": counters})


def stop(reason: str, **usage: int) -> list[bytes]:
    return [
        event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage),
        event("message_stop"),
    ]


def reply(*parts: Part, ends: str = "end_turn", output: int = 20) -> list[bytes]:
    """A whole reply."""
    blocks = [piece for index, part in enumerate(parts) for piece in part(index)]
    return [start(), *blocks, *stop(ends, output_tokens=output)]
