"""Pruning: old output of tools is told by its beginning and its end. Does no I/O."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from zot.messages import ImageBlock, Message, ResultBlock, TextBlock, TranscriptBlock

#: How many of the newest messages are not touched: the model is still working with them.
KEEP_RECENT = 8
#: Results up to this length stay as they are.
MAX_RESULT_CHARS = 2000
_HEAD_CHARS = 700
_TAIL_CHARS = 500


def prune(messages: Sequence[Message], upto: int) -> tuple[list[Message], int]:
    """Return ``messages`` with shorter results in the first ``upto`` of them, and how many results that were.

    What is not changed is the same object as before. Calls and results stay together: nothing is left out.
    """
    pruned, count = list(messages), 0
    for at, message in enumerate(messages[:upto]):
        if message.role == "tool":
            content = tuple(_pruned(block) for block in message.content)
            changed = sum(new is not old for new, old in zip(content, message.content, strict=True))
            if changed:
                pruned[at] = msgspec.structs.replace(message, content=content)
                count += changed
    return pruned, count


def shorten(text: str, head: int, tail: int) -> str:
    """Return the beginning and the end of ``text``, and how much is missing between them."""
    if len(text) <= head + tail:
        return text
    end = text[len(text) - tail :]
    return f"{text[:head]}\n[... {len(text) - head - tail} characters left out ...]\n{end}"


def _pruned(block: TranscriptBlock) -> TranscriptBlock:
    """Return a result that is short; the same one if it is short already."""
    if not isinstance(block, ResultBlock):
        return block
    has_image = any(isinstance(item, ImageBlock) for item in block.content)
    if (
        not has_image
        and sum(len(item.text) for item in block.content if isinstance(item, TextBlock)) <= MAX_RESULT_CHARS
    ):
        return block
    text = "\n".join(_told(item) for item in block.content)
    return ResultBlock(block.call_id, block.is_error, (TextBlock(shorten(text, _HEAD_CHARS, _TAIL_CHARS)),))


def _told(item: TextBlock | ImageBlock) -> str:
    if isinstance(item, TextBlock):
        return item.text
    return f"[an image was here: {item.mime_type}, {len(item.data)} bytes]"
