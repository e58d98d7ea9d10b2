"""How much whoever connects may have, and how long it may take."""

from __future__ import annotations

import msgspec

from zot.wire.host import MAX_INPUT_BYTES
from zot.wire.lines import MAX_LINE_BYTES


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes, times in seconds.

    ``connections`` are those at one address, whoever is at their other end: fewer than the daemon takes in all, so that
    the local socket is never out of reach. ``head_s`` is for the handshake of TLS and, again, for the head of a
    request; ``body_s`` for its body. Who has not answered a ping ``pong_s`` after it is gone.
    """

    connections: int = 512
    head: int = 64 << 10
    head_s: float = 10.0
    body: int = MAX_INPUT_BYTES
    body_s: float = 15.0
    message: int = MAX_LINE_BYTES
    fragments: int = 4096
    ping_s: float = 20.0
    pong_s: float = 10.0
