"""Streams of the OpenAI Responses API, written by hand: what the service would send, one event per piece.

The same words as in `claude`, so that one conversation can be had through both APIs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

#: An item of the output, once it knows its place in the reply: its events.
Part: TypeAlias = Callable[[int], list[bytes]]

_INCOMPLETE = {"max_tokens": "max_output_tokens", "refusal": "content_filter"}


def event(kind: str, **fields: Any) -> bytes:
    """One server-sent event."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def added(index: int, **item: Any) -> bytes:
    return event("response.output_item.added", output_index=index, item=item)


def done(index: int, **item: Any) -> bytes:
    return event("response.output_item.done", output_index=index, item=item)


def delta(index: int, kind: str, text: str, **place: int) -> bytes:
    return event(f"response.{kind}.delta", item_id=f"item_{index}", output_index=index, **place, delta=text)


def message(index: int, *content: dict[str, Any], status: str = "completed") -> dict[str, Any]:
    return {"id": f"msg_{index}", "type": "message", "status": status, "role": "assistant", "content": [*content]}


def output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def text(*pieces: str) -> Part:
    def events(index: int) -> list[bytes]:
        place: dict[str, Any] = {"item_id": f"msg_{index}", "output_index": index, "content_index": 0}
        whole = "".join(pieces)
        return [
            added(index, **message(index, status="in_progress")),
            event("response.content_part.added", **place, part=output_text("")),
            *(delta(index, "output_text", piece, content_index=0) for piece in pieces),
            event("response.output_text.done", **place, text=whole, logprobs=[]),
            event("response.content_part.done", **place, part=output_text(whole)),
            done(index, **message(index, output_text(whole))),
        ]

    return events


def refusal(*pieces: str) -> Part:
    def events(index: int) -> list[bytes]:
        whole = "".join(pieces)
        return [
            added(index, **message(index, status="in_progress")),
            *(delta(index, "refusal", piece, content_index=0) for piece in pieces),
            event("response.refusal.done", output_index=index, content_index=0, refusal=whole),
            done(index, **message(index, {"type": "refusal", "refusal": whole})),
        ]

    return events


def thinking(*pieces: str, signature: str) -> Part:
    def events(index: int) -> list[bytes]:
        place: dict[str, Any] = {"item_id": f"rs_{signature}", "output_index": index, "summary_index": 0}
        whole = {"type": "summary_text", "text": "".join(pieces)}
        return [
            added(index, **_thought(f"rs_{signature}", f"half of {signature}")),
            event("response.reasoning_summary_part.added", **place, part={"type": "summary_text", "text": ""}),
            *(delta(index, "reasoning_summary_text", piece, summary_index=0) for piece in pieces),
            event("response.reasoning_summary_text.done", **place, text=whole["text"]),
            event("response.reasoning_summary_part.done", **place, part=whole),
            done(index, **_thought(f"rs_{signature}", signature, whole)),
        ]

    return events


def redacted(data: str) -> Part:
    return lambda index: [added(index, **_thought(f"rs_{data}", "half")), done(index, **_thought(f"rs_{data}", data))]


def _thought(item_id: str, sealed: str, *summary: dict[str, Any]) -> dict[str, Any]:
    return {"id": item_id, "type": "reasoning", "summary": [*summary], "encrypted_content": sealed}


def call(call_id: str, name: str, arguments: str, status: str = "completed") -> dict[str, Any]:
    return {
        "id": f"fc_{call_id}",
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }


def tool(call_id: str, name: str, *pieces: str) -> Part:
    def events(index: int) -> list[bytes]:
        whole = "".join(pieces)
        return [
            added(index, **call(call_id, name, "", "in_progress")),
            *(delta(index, "function_call_arguments", piece) for piece in pieces),
            event("response.function_call_arguments.done", output_index=index, arguments=whole),
            done(index, **call(call_id, name, whole)),
        ]

    return events


def start() -> bytes:
    return event("response.created", response=response("in_progress")) + event(
        "response.in_progress", response=response("in_progress")
    )


def response(status: str, **fields: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": status, "output": [], "usage": None, **fields}


def usage(input_: int, output: int, *, cached: int = 0, written: int = 0, reasoning: int = 0) -> dict[str, Any]:
    return {
        "input_tokens": input_,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": input_ + output,
    }


def stop(reason: str, *, output: int = 20) -> bytes:
    """The last event. The reasons are those of `claude`: this API has a status, and a reason only if that is bad."""
    used = usage(100, output)
    if reason not in _INCOMPLETE:
        return event("response.completed", response=response("completed", usage=used))
    details = {"reason": _INCOMPLETE[reason]}
    return event("response.incomplete", response=response("incomplete", usage=used, incomplete_details=details))


def reply(*parts: Part, ends: str = "end_turn", output: int = 20) -> list[bytes]:
    """A whole reply."""
    items = [piece for index, part in enumerate(parts) for piece in part(index)]
    return [start(), *items, stop(ends, output=output)]
