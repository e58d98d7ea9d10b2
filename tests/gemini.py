"""Streams of Gemini streamGenerateContent, written by hand: the service's events, one per piece."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any, TypeAlias

#: The chunks of one block.
Part: TypeAlias = list[dict[str, Any]]

_ENDS = {"end_turn": "STOP", "tool_use": "STOP", "max_tokens": "MAX_TOKENS"}


def chunk(*parts: dict[str, Any], **candidate: Any) -> bytes:
    """One server-sent event."""
    content = {"content": {"parts": parts, "role": "model"}} if parts else {}
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 20, "totalTokenCount": 120}
    said = {"candidates": [{**content, "index": 0, **candidate}], "usageMetadata": usage}
    return f"data: {json.dumps(said)}\r\n\r\n".encode()


def text(*pieces: str) -> Part:
    return [{"text": piece} for piece in pieces]


def thinking(*pieces: str, signature: str) -> Part:
    seal = {"text": "", "thought": True, "thoughtSignature": b64encode(signature.encode()).decode()}
    return [*({"text": piece, "thought": True} for piece in pieces), seal]


def redacted(data: str) -> Part:
    return thinking(signature=data)


def tool(call_id: str, name: str, *pieces: str) -> Part:
    """A call; with arguments that are not an object, the service's own substitute: a finish reason only."""
    arguments = "".join(pieces) or "{}"
    try:
        return [{"functionCall": {"id": call_id, "name": name, "args": json.loads(arguments)}}]
    except ValueError:
        return [{"remark": f"Malformed function call: {name}({arguments})"}]


def reply(*parts: Part, ends: str = "end_turn") -> list[bytes]:
    """A whole reply."""
    pieces = [piece for part in parts for piece in part]
    remarks = [piece["remark"] for piece in pieces if "remark" in piece]
    end = {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": remarks[0]} if remarks else {
        "finishReason": _ENDS[ends]}  # fmt: skip
    return [*(chunk(piece) for piece in pieces if "remark" not in piece), chunk(**end)]
