"""Followers receive every update once, in order, also at the seam between replay and live."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

from zot.agent.hooks import NoExtensions
from zot.events import AgentEvent, TextDelta, UserMessage
from zot.messages import TextBlock
from zot.serve.daemon.backlog import Backlog
from zot.serve.daemon.client_connection import ClientConnection
from zot.serve.daemon.feed import RecordedEvents, SessionFeed
from zot.serve.daemon.metrics import Metrics
from zot.serve.daemon.sockets import LocalWire
from zot.session.history import Batch
from zot.session.session import Session
from zot.wire.daemon import Dialect

PATIENCE_S = 60.0
RUN: Sequence[AgentEvent] = (UserMessage((TextBlock("hi"),), "t"), *(TextDelta(f"w{number}") for number in range(4)))


class Record(RecordedEvents):
    """The rows on disk: the whole run."""

    def __init__(self) -> None:
        pass

    async def events_after(self, after: int, limit: int, epoch: int = 0) -> Sequence[tuple[int, AgentEvent]]:
        return [(seq, event) for seq, event in enumerate(RUN, 1) if seq > after][:limit]

    async def run_so_far(self, upto: int) -> Sequence[AgentEvent]:
        return RUN[:upto]


class Ears:
    """A client that takes everything at once."""

    unread = 0

    def __init__(self) -> None:
        self.said = b""

    @property
    def taken(self) -> int:
        return len(self.said)

    def send(self, data: bytes) -> None:
        self.said += data

    async def room(self) -> None:
        pass

    def cut(self, reason: str) -> None:
        raise AssertionError(reason)

    def finish(self) -> None:
        raise AssertionError("a feed closes no connection")

    @property
    def numbers(self) -> list[int]:
        return [json.loads(line)["params"]["seq"] for line in self.said.splitlines()]


async def test_committed_rows_not_yet_shown_are_sent_once() -> None:
    feed, ears = SessionFeed("s", Record()), Ears()
    agent = SimpleNamespace(extensions=NoExtensions())
    # Rows 4 and 5 have been written, and the session has not heard of it.
    store, worker = SimpleNamespace(last_seq=3), SimpleNamespace(busy=True)
    feed.opened(cast(Session, SimpleNamespace(store=store, epoch=1, worker=worker, agent=agent)))
    is_there = asyncio.Event()
    feed.follow(Backlog(ears, Metrics()), Dialect.CAMEL, 0, caught_up=is_there.set)
    async with asyncio.timeout(PATIENCE_S):
        await is_there.wait()
    assert ears.numbers == [1, 2, 3]
    feed.deliver(Batch(4, 1, RUN[3:]))
    assert ears.numbers == [1, 2, 3, 4, 5]


async def test_a_client_can_read_the_first_page_before_the_rest_is_made() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        made: list[LocalWire] = []

        class Nobody:
            def take(self, line: object) -> None:
                raise AssertionError(line)

            def end_input(self) -> None: ...

            def close(self) -> None: ...

        def connected(wire: LocalWire) -> ClientConnection:
            made.append(wire)
            return cast(ClientConnection, Nobody())

        transport, _ = await loop.create_connection(lambda: LocalWire(connected), sock=ours)
        [wire] = made
        wire.send(b"a\n")
        assert not _waits(theirs)  # Updates of one tick are sent together,
        wire.send(b"b" * 100_000)
        assert _waits(theirs)  # unless it is much.
        transport.abort()


def _waits(other: socket.socket) -> bool:
    """True if there is unread data at this moment."""
    try:
        return bool(other.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
