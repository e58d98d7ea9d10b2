"""Frames of a WebSocket, written by hand: another implementation decodes them to the same messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.uri import parse_uri

from zot.serve.web.websocket import text_frames

#: Around where a length takes more bytes.
SIZES = st.sampled_from([0, 1, 2, 124, 125, 126, 127, 65_534, 65_535, 65_536, 65_537])


def read(data: bytes) -> list[Frame]:
    """Read frames as a client does that is connected."""
    client = ClientProtocol(parse_uri("ws://localhost/"), state=OPEN, max_size=None)
    client.receive_data(data)
    assert client.parser_exc is None
    return [event for event in client.events_received() if isinstance(event, Frame)]


@given(st.lists(SIZES, max_size=8))
def test_each_line_is_one_text(sizes: list[int]) -> None:
    lines = [b"x" * size for size in sizes]
    found = read(text_frames(b"".join(line + b"\n" for line in lines)))
    assert [bytes(frame.data) for frame in found] == [line for line in lines if line]
    assert all(frame.opcode is Opcode.TEXT and frame.fin for frame in found)
