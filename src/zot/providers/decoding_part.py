"""What the decoders of all APIs have in common: how an error inside a stream is met."""

from __future__ import annotations

from zot.errors import ProviderError
from zot.providers.base import StreamEvent
from zot.providers.decoding import SseParser


class StreamDecoder:
    """Turns the bytes of one streamed reply into events; which ones, each API says in `_feed`."""

    def __init__(self) -> None:
        self._sse = SseParser()
        self.progress = 0
        #: True when the service has sent the event after which nothing follows.
        self.is_complete = False
        self.failure: ProviderError | None = None

    def feed(self, data: bytes) -> list[StreamEvent]:
        """Return the events that ``data`` completes. Raise ProviderError for an error inside the stream."""
        events: list[StreamEvent] = []
        try:
            self._feed(data, events)
        except ProviderError as error:
            if not events:
                raise
            self.failure = error  # What was said before it must be heard first.
        return events

    def _feed(self, data: bytes, events: list[StreamEvent]) -> None:
        """Append the events that ``data`` completes."""
        raise NotImplementedError
