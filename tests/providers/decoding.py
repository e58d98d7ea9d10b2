"""What a stream comes to when a decoder is fed as a service feeds it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from zot.errors import ProviderError
from zot.providers.base import Decoder, Reply, StreamEvent


class Outcome(msgspec.Struct):
    """What a stream came to."""

    events: list[StreamEvent]
    reply: Reply
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
