"""HTTP/1.1 requests out of bytes. Does no I/O, and bounds what it keeps."""

from __future__ import annotations

import httptools
import msgspec

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_HEAD_BYTES = 64 * 1024


class Incoming(msgspec.Struct):
    """A request as far as it has arrived."""

    target: str = ""
    headers: dict[str, str] = {}
    body: bytearray = msgspec.field(default_factory=bytearray)
    method: str = ""
    keep_alive: bool = False
    chunked: bool = True


class Refused(Exception):
    """What arrives is not a request we take."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Receiver:
    """Turns bytes into requests. Does no I/O."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._incoming = Incoming()
        self._head_bytes = 0
        self._in_head = True
        self._done: list[Incoming] = []
        self.wants_continue = False

    def feed(self, data: bytes) -> list[Incoming]:
        """Return the requests that ``data`` completes. Raise Refused if it is not HTTP, or too much."""
        self._done = []
        self._head_bytes += len(data) if self._in_head else 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            raise Refused(400, "lab does not change protocols") from exc
        except httptools.HttpParserCallbackError as exc:
            raise (exc.__context__ if isinstance(exc.__context__, Refused) else Refused(400, str(exc))) from exc
        except httptools.HttpParserError as exc:
            raise Refused(400, f"not HTTP: {exc}") from exc
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            raise Refused(431, "the head of the request is too large")
        return self._done

    def on_message_begin(self) -> None:
        self._incoming = Incoming()
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        self._incoming.target += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._incoming.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._incoming.method = self._parser.get_method().decode("latin-1")
        self._incoming.keep_alive = self._parser.should_keep_alive()
        self._incoming.chunked = self._parser.get_http_version() == "1.1"
        length = self._incoming.headers.get("content-length", "0")
        if length.isdigit() and int(length) > MAX_BODY_BYTES:
            raise Refused(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
        self.wants_continue = self._incoming.headers.get("expect", "").lower() == "100-continue"

    def on_body(self, body: bytes) -> None:
        self._incoming.body += body
        if len(self._incoming.body) > MAX_BODY_BYTES:
            raise Refused(413, f"the body is larger than {MAX_BODY_BYTES} bytes")

    def on_message_complete(self) -> None:
        self._in_head, self.wants_continue = True, False
        self._done.append(self._incoming)
