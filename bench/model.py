"""A model service that costs next to nothing: it writes prepared bytes. Run it; it prints its port.

The path says what is served: `/burst` many tiny deltas at once, `/paced` one every few milliseconds, stamped,
`/endless` the same without an end, `/flood` as much as is taken.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

DELTAS = 20_000
PACED = 300
_PACE_S = 0.005
_ENDLESS_PACE_S = 0.001

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _event(kind: str, data: str) -> bytes:
    """Return one SSE event in one HTTP chunk."""
    event = f"event: {kind}\ndata: {data}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(event), event)


def _delta(text: str) -> bytes:
    delta = f'{{"type":"text_delta","text":"{text}"}}'
    return _event("content_block_delta", f'{{"type":"content_block_delta","index":0,"delta":{delta}}}')


_START = _event(
    "message_start",
    '{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],'
    '"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":10,"output_tokens":1}}}',
) + _event("content_block_start",
    '{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}')  # fmt: skip
_END = (
    _event("content_block_stop", '{"type":"content_block_stop","index":0}')
    + _event(
        "message_delta",
        '{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},'
        '"usage":{"output_tokens":20000}}',
    )
    + _event("message_stop", '{"type":"message_stop"}')
    + b"0\r\n\r\n"
)
_BURST = b"".join(_delta(f"w{number} ") for number in range(1, DELTAS)) + _END
_FLOOD = _delta("word ") * 200


def stamp() -> str:
    """Return the time as the reader's clock will say it, too."""
    return f"{time.perf_counter():.7f}"


def _paced(count: float, pace_s: float) -> Iterator[bytes]:
    number = 0
    while number < count:
        time.sleep(pace_s)
        yield _delta(stamp())
        number += 1


def _pieces(path: str) -> Iterator[bytes]:
    """Yield the body of an answer, piece by piece. A first delta says when the rest began."""
    yield _HEAD + _START + _delta(stamp())
    if path.startswith("/burst"):
        yield _BURST
    elif path.startswith("/paced"):
        yield from _paced(PACED, _PACE_S)
        yield _END
    elif path.startswith("/endless"):
        yield from _paced(float("inf"), _ENDLESS_PACE_S)
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
    """Read one request and return its path; "" if the client has gone."""
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
