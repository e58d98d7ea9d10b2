"""Requests and messages, written down in few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from zot.messages import CallBlock, Message, ResultBlock, TextBlock, ToolSpec, TranscriptBlock
from zot.providers.base import EncodedMessages, ModelRequest

TOOLS = (
    ToolSpec("read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}}),
    ToolSpec("bash", "Run a command.", {"type": "object"}),
)


def ask(*messages: Message, model: str = "m", **changes: Any) -> ModelRequest:
    """Return a plain request, with changes."""
    plain = ModelRequest(
        model=model, system="", messages=messages, tools=(), max_tokens=1000, reasoning="off", encoded=EncodedMessages()
    )
    return msgspec.structs.replace(plain, **changes)


def user(*blocks: TranscriptBlock | str) -> Message:
    return Message("user", _blocks(blocks), "t")


def assistant(*blocks: TranscriptBlock | str, origin: str = "") -> Message:
    return Message("assistant", _blocks(blocks), "t", origin=origin)


def results(*blocks: TranscriptBlock) -> Message:
    return Message("tool", blocks, "t")


def _blocks(blocks: Sequence[TranscriptBlock | str]) -> tuple[TranscriptBlock, ...]:
    return tuple(TextBlock(block) if isinstance(block, str) else block for block in blocks)


CALL = CallBlock("c1", "t", {})
RESULT = results(ResultBlock("c1", False, (TextBlock("ok"),)))
