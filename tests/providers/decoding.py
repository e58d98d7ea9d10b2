"""Decoders fed as by a service, and the outcome."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

from zot.errors import ProviderError
from zot.messages import Counters, Stop, TranscriptBlock
from zot.providers.base import Decoder, ModelReply, StreamEvent


class Outcome(msgspec.Struct):
    """The outcome of a stream."""

    events: list[StreamEvent]
    reply: ModelReply
    error: str | None = None


def decoded(decoder: Decoder, pieces: Iterable[bytes]) -> Outcome:
    """Feed a decoder as a service does."""
    events: list[StreamEvent] = []
    try:
        for piece in pieces:
            events += decoder.feed(piece)
            if decoder.failure is not None:
                raise decoder.failure
        events += decoder.finish()
    except ProviderError as problem:
        return Outcome(events, decoder.reply(), f"{type(problem).__name__}: {problem}")
    return Outcome(events, decoder.reply())


#: What the streams of the tests say was used.
USED = Counters(100, 20, 0, 0, 0.0)


def said(*blocks: TranscriptBlock, stop: Stop = "end_turn", counters: Counters = USED) -> ModelReply:
    return ModelReply(blocks, counters, stop)


def fed(*pieces: bytes) -> Iterator[Iterable[bytes]]:
    """Yield the ways in which a stream may arrive: as it was written, whole, and byte by byte."""
    stream = b"".join(pieces)
    yield from (pieces, [stream], (bytes([byte]) for byte in stream))


def cut(stream: bytes, places: Iterable[int]) -> Iterable[bytes]:
    """Return a stream in pieces, cut at any places."""
    bounds = [0, *sorted({place % (len(stream) + 1) for place in places}), len(stream)]
    return [stream[a:b] for a, b in pairwise(bounds)]
