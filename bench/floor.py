"""The floor: the least asyncio + msgspec program that reads the stream and prints one line per delta.

It knows no chunks (one event is one chunk, so it looks only for the data), no errors, no other events, no
cancellation and no slow reader. What zot does beyond it is what a runtime costs.
"""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec


class Delta(msgspec.Struct, gc=False):
    text: str | None = None


class Event(msgspec.Struct, gc=False):
    type: str
    delta: Delta | None = None


class Line(msgspec.Struct, gc=False, tag_field="type", tag="text_delta"):
    delta: str


class Printer(asyncio.Protocol):
    """Prints the deltas it receives: one decode per event, one write per read."""

    def __init__(self, request: bytes, ended: asyncio.Future[None]) -> None:
        self._request = request
        self._ended = ended
        self._rest = b""
        self._decode = msgspec.json.Decoder(Event).decode
        self._encode_lines = msgspec.json.Encoder().encode_lines

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        decode = self._decode
        events = [decode(block[block.find(b"data: ") + 6 :]) for block in blocks]
        lines = [Line(delta.text) for event in events if (delta := event.delta) is not None and delta.text is not None]
        if lines:
            os.write(1, self._encode_lines(lines))
        if events and events[-1].type == "message_stop":
            self._ended.set_result(None)


async def main(port: int, path: str) -> None:
    """Print one answer of the model service."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    request = f"POST {path} HTTP/1.1\r\nhost: model\r\ncontent-length: 0\r\n\r\n".encode()
    await loop.create_connection(lambda: Printer(request, ended), "127.0.0.1", port)
    await ended
    os.write(1, b'{"type":"done"}\n')


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
