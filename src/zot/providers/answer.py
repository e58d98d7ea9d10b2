"""One HTTP/1.1 answer, put together from the bytes of a connection. Does no I/O."""

from __future__ import annotations

import enum
from collections.abc import Callable

import httptools

from zot.errors import ConnectionFailed, ProviderError, StreamBroken

MAX_HEADERS = 100
MAX_HEAD_BYTES = 64 * 1024
MAX_INTERIM = 10


class Progress(enum.Enum):
    """How much of the answer is here."""

    HEAD = "waiting for the head"
    BODY = "receiving the body"
    WHOLE = "all there"
    BROKEN = "will never be whole"


class Answer:
    """The answer to one request, as it arrives.

    ``label`` names the peer in messages; ``bodiless`` says that no body follows the head whatever the headers
    claim (HEAD, CONNECT). ``status`` and ``headers`` are meaningful once ``has_head`` is true, ``failure`` once
    ``progress`` is BROKEN. ``heard`` tells whether any byte has come, ``reusable`` whether the connection may carry
    another request after this answer.
    """

    def __init__(self, label: str, *, bodiless: bool = False) -> None:
        self.progress = Progress.HEAD
        self.status = 0
        self.headers: dict[str, str] = {}
        self.failure: ProviderError | None = None
        self.has_head = False
        self.heard = False
        self.reusable = False
        self.unread_bytes = 0
        self._label = label
        self._bodiless = bodiless
        self._until_close = False
        self._interim = 0
        self._header_count = 0
        self._header_bytes = 0
        self._barren_bytes = 0
        self._parts: list[bytes] = []
        # The parser calls the list's own append for each piece of body: no Python code runs per chunk.
        self.on_body: Callable[[bytes], None] = self._parts.append
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Take the next bytes from the peer."""
        self.heard = True
        if self.progress is not Progress.HEAD and self.progress is not Progress.BODY:
            self.reusable = False
            return
        parts_before = len(self._parts)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._break("switched protocols without being asked")
        except httptools.HttpParserError as exc:
            self._stopped(str(exc))
        self._weigh(len(data), fruitful=len(self._parts) > parts_before)

    def end(self, *, clean: bool) -> None:
        """The connection is gone; ``clean`` if the peer closed it in order. Nothing can follow."""
        self.reusable = False
        if self.progress is Progress.HEAD:
            self.progress = Progress.BROKEN
            how = "closed" if clean else "lost"
            self.failure = ConnectionFailed(
                f"the connection to {self._label} was {how} before an answer came: "
                "check the address and any proxy or firewall in between"
            )
        elif self.progress is Progress.BODY:
            if clean and self._until_close:
                self.progress = Progress.WHOLE
            else:
                self._break("was cut short")

    def take(self, limit: int) -> bytes:
        """Return the oldest untaken part of the body, about ``limit`` bytes at most; b"" if there is none."""
        size = count = 0
        for part in self._parts:
            size += len(part)
            count += 1
            if size >= limit:
                break
        data = b"".join(self._parts[:count])
        # Emptied in place: the parser holds on to this very list.
        del self._parts[:count]
        self.unread_bytes = max(1, self.unread_bytes - size) if self._parts else 0
        return data

    def on_message_begin(self) -> None:
        """A message begins. One after the whole answer was not asked for."""
        if self.progress is Progress.WHOLE:
            raise _Stop

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header or trailer is complete. Trailers are counted, not kept."""
        self._header_count += 1
        self._header_bytes += len(name) + len(value)
        if self._header_count > MAX_HEADERS or self._header_bytes > MAX_HEAD_BYTES:
            self._break("has too many or too large headers")
            raise _Stop
        if self.progress is Progress.HEAD:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        """A head is complete; 1xx heads are skipped."""
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self._skip_interim()
            return
        self.progress = Progress.BODY
        self.has_head = True
        self.reusable = self._parser.should_keep_alive()
        self._until_close = not self._has_length()
        if self._bodiless:
            # The parser does not know the method and would wait for the body that the headers announce.
            self.progress = Progress.WHOLE
            raise _Stop

    def on_message_complete(self) -> None:
        """A message is complete: the answer, unless it was a 1xx head."""
        if self.progress is Progress.BODY:
            self.progress = Progress.WHOLE

    def _skip_interim(self) -> None:
        self.headers.clear()
        self._interim += 1
        if self._interim > MAX_INTERIM:
            self._break("is preceded by too many 1xx answers")
            raise _Stop

    def _has_length(self) -> bool:
        codings = self.headers.get("transfer-encoding", "").lower().split(",")
        return "content-length" in self.headers or codings[-1].strip() == "chunked"

    def _stopped(self, reason: str) -> None:
        """The parser gave up: what it was fed is malformed, or we stopped it on purpose."""
        if self.progress is Progress.HEAD or self.progress is Progress.BODY:
            self._break(f"is not valid HTTP ({reason})")
        self.reusable = False

    def _weigh(self, size: int, *, fruitful: bool) -> None:
        """Bound what brings no body: endless heads, trailers and chunk extensions."""
        if fruitful:
            self.unread_bytes += size
            self._barren_bytes = 0
            return
        self._barren_bytes += size
        if self._barren_bytes > MAX_HEAD_BYTES and self.progress in (Progress.HEAD, Progress.BODY):
            self._break("has too many or too large headers")

    def _break(self, how: str) -> None:
        self.progress = Progress.BROKEN
        self.reusable = False
        self.failure = StreamBroken(f"the answer of {self._label} {how}")


class _Stop(Exception):
    """Raised inside a parser callback to leave the rest of the input alone."""
