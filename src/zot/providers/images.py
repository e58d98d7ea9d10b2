"""Images on their way to a model: what an API does not take is said in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from zot.config.vendors import ImageLimits
from zot.messages import ImageBlock, Message, ResultBlock, TextBlock, TranscriptBlock, begins_with

_OUTDATED = TextBlock("[an image was here; it is no longer shown, because there are too many newer ones]")


def fits(image: ImageBlock, limits: ImageLimits) -> bool:
    """Whether an API with these limits takes the image.

    One that it cannot take would make it refuse this and every later request.
    """
    return image.mime_type in limits.types and 0 < len(image.data) <= limits.max_bytes


def left_out(image: ImageBlock) -> str:
    """Return what the model is told instead."""
    return f"[an image was left out: {image.mime_type or 'unknown type'}, {len(image.data)} bytes]"


class ShownImages:
    """Sees to it that a conversation never has more images than an API takes in one request.

    The oldest go first. They go many at a time, so that the requests in between begin alike, for whoever caches them;
    and how many depends on the conversation alone, so that it is the same after a restart.
    """

    def __init__(self) -> None:
        self._limits: ImageLimits | None = None
        self._seen: list[Message] = []
        self._sizes: list[int] = []
        self._gone = 0
        self._thinned: list[Message] = []

    def of(self, messages: Sequence[Message], limits: ImageLimits) -> Sequence[Message]:
        """Return the messages with as many images as ``limits`` allow; those that stay as they are, are the same."""
        self._look_at(messages, limits)
        gone = _too_many(self._sizes, limits)
        if not gone:
            return messages
        if gone != self._gone:
            self._gone, self._thinned = gone, [*_thinned(messages, gone, limits)]
        return [*self._thinned, *messages[len(self._thinned) :]]

    def _look_at(self, messages: Sequence[Message], limits: ImageLimits) -> None:
        """Note the images that are new; of all messages, if these are not the ones of last time and more."""
        seen = self._seen
        if limits != self._limits or not begins_with(messages, seen):
            self._limits, self._sizes, self._gone = limits, [], 0
            seen.clear()
        new = messages[len(seen) :]
        self._sizes += (len(image.data) for message in new for image in _images(message.content) if fits(image, limits))
        seen += new


def _images(content: Iterable[TranscriptBlock]) -> Iterator[ImageBlock]:
    for block in content:
        if isinstance(block, ImageBlock):
            yield block
        elif isinstance(block, ResultBlock):
            yield from _images(block.content)


def _too_many(sizes: Sequence[int], limits: ImageLimits) -> int:
    """Return how many of the oldest images have to go: by their number and by their size in steps of half a limit."""
    by_count = _stepped(len(sizes) - limits.max_count, limits.max_count)
    to_free, by_size = _stepped(sum(sizes) - limits.max_total_bytes, limits.max_total_bytes), 0
    while to_free > 0:
        to_free -= sizes[by_size]
        by_size += 1
    return min(max(by_count, by_size), len(sizes))


def _stepped(excess: int, limit: int) -> int:
    step = max(1, limit // 2)
    return -(-excess // step) * step if excess > 0 else 0


def _thinned(messages: Sequence[Message], gone: int, limits: ImageLimits) -> Iterator[Message]:
    """Yield the messages up to the last image that goes."""
    left = gone

    def without(content: Iterable[TranscriptBlock]) -> Iterator[TranscriptBlock]:
        nonlocal left
        for block in content:
            if isinstance(block, ResultBlock):
                yield msgspec.structs.replace(block, content=tuple(without(block.content)))
            elif left and isinstance(block, ImageBlock) and fits(block, limits):
                left -= 1
                yield _OUTDATED
            else:
                yield block

    for message in messages:
        if not left:
            return
        before, content = left, tuple(without(message.content))
        yield message if left == before else msgspec.structs.replace(message, content=content)
