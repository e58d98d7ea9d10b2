"""A cheap model service that writes prepared bytes. Run it; it prints its port.

The path says what is served: `/burst` many tiny deltas at once, `/paced` one every few milliseconds, stamped,
`/endless` the same without an end, `/flood` as much as is taken. What follows it says through which API.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

DELTAS = 20_000
PACED = 300
_PACE_S = 0.005
_ENDLESS_PACE_S = 0.001

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Form(NamedTuple):
    """An API's events for the beginning, a delta (with the text for ``%s``), and the end."""

    start: bytes
    delta: bytes
    end: bytes

    def say(self, text: str) -> bytes:
        return _chunk(self.delta % text.encode())


def _chunk(event: bytes) -> bytes:
    """Return one SSE event in one HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(event), event)


def _form(delta: str, *, start: Sequence[str] = (), end: Sequence[str], named: bool = True) -> Form:
    def event(data: str) -> bytes:
        name = f"event: {data.split(chr(34))[3]}\n" if named else ""
        return f"{name}data: {data}\n\n".encode()

    ended = b"".join(_chunk(event(data)) for data in end) + b"0\r\n\r\n"
    return Form(b"".join(_chunk(event(data)) for data in start), event(delta), ended)


_MESSAGES = _form(
    '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%s"}}',
    start=(
        '{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],'
        '"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":10,"output_tokens":1}}}',
        '{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}',
    ),
    end=(
        '{"type":"content_block_stop","index":0}',
        '{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},'
        '"usage":{"output_tokens":20000}}',
        '{"type":"message_stop"}',
    ),
)
_RESPONSES = _form(
    '{"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_1","output_index":0,"content_index":0,'
    '"delta":"%s","logprobs":[],"obfuscation":"oAvSfgXPjMHn"}',
    start=(
        '{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","status":"in_progress","output":[]}}',
        '{"type":"response.output_item.added","sequence_number":1,"output_index":0,'
        '"item":{"id":"msg_1","type":"message","status":"in_progress","role":"assistant","content":[]}}',
    ),
    end=(
        '{"type":"response.completed","sequence_number":5,"response":{"id":"resp_1","status":"completed","output":[],'
        '"usage":{"input_tokens":10,"output_tokens":20000,"total_tokens":20010}}}',
    ),
)
_CHUNK = '{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":'
_CHAT = _form(
    _CHUNK + '[{"index":0,"delta":{"content":"%s"},"logprobs":null,"finish_reason":null}],"usage":null}',
    end=(
        _CHUNK + '[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}',
        _CHUNK + '[],"usage":{"prompt_tokens":10,"completion_tokens":20000,"total_tokens":20010}}',
        "[DONE]",
    ),
    named=False,
)
_COUNTED = '{"promptTokenCount":10,"candidatesTokenCount":20000,"totalTokenCount":20010}'
_USAGE = f'"usageMetadata":{_COUNTED},"modelVersion":"m"}}'
_GEMINI = _form(
    '{"candidates":[{"content":{"parts":[{"text":"%s"}],"role":"model"},"index":0}],' + _USAGE,
    end=('{"candidates":[{"content":{"parts":[{"text":""}],"role":"model"},"finishReason":"STOP"}],' + _USAGE,),
    named=False,
)
_FORMS = {"/v1/responses": _RESPONSES, "/chat/completions": _CHAT, "/v1beta/": _GEMINI}
_BURSTS: dict[Form, bytes] = {}
_FLOOD = _MESSAGES.say("word ") * 200


def _burst(form: Form) -> bytes:
    if form not in _BURSTS:
        _BURSTS[form] = b"".join(form.say(f"w{number} ") for number in range(1, DELTAS)) + form.end
    return _BURSTS[form]


def stamp() -> str:
    """Return the time on the clock that the reader uses."""
    return f"{time.perf_counter():.7f}"


def _paced(form: Form, count: float, pace_s: float) -> Iterator[bytes]:
    number = 0
    while number < count:
        time.sleep(pace_s)
        yield form.say(stamp())
        number += 1


def _pieces(path: str) -> Iterator[bytes]:
    """Yield the body of an answer, piece by piece. A first delta says when the rest began."""
    form = next((form for part, form in _FORMS.items() if part in path), _MESSAGES)
    burst = _burst(form)
    yield _HEAD + form.start + form.say(stamp())
    if path.startswith("/burst"):
        yield burst
    elif path.startswith("/paced"):
        yield from _paced(form, PACED, _PACE_S)
        yield form.end
    elif path.startswith("/endless"):
        yield from _paced(form, float("inf"), _ENDLESS_PACE_S)
    elif path.startswith("/flood"):
        while True:
            yield _FLOOD


def _serve(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, suppress(OSError):
        while path := _request(connection):
            for piece in _pieces(path):
                connection.sendall(piece)


def _request(connection: socket.socket) -> str:
    """Read one request and return its path; "" if the client disconnected."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return ""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
    missing = int(length or b"0") - len(body)
    while missing > 0:
        missing -= len(connection.recv(65536))
    return head.split()[1].decode()


def main() -> None:
    """Serve until killed."""
    sys.setswitchinterval(0.0005)
    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    print(server.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=_serve, args=(server.accept()[0],), daemon=True).start()


if __name__ == "__main__":
    main()
