"""The server in process: the cost of a bug in one command."""

from __future__ import annotations

import json
import logging

import pytest

from fakes import FakeTransport, open_session
from zot.events import SessionState
from zot.serve.rpc import RpcServer
from zot.session.session import Session
from zot.wire.rpc_greeting import Greeting


class Sheet:
    """An output that keeps every line."""

    full = False

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.lines += data.split(b"\n")[:-1]

    async def room(self) -> None:
        return


async def test_a_bug_fails_one_request_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    session = open_session(FakeTransport())

    class Broken(Session):
        def state(self) -> SessionState:
            raise ZeroDivisionError("a bug")

    session.__class__ = Broken
    sheet = Sheet()
    server = RpcServer(session, Greeting(version="0", provider="lab", model=lambda: "lab-1"), sheet)
    with caplog.at_level(logging.ERROR, logger="zot"):
        server.take(b'{"type":"get_state","id":7}')
    server.take(b'{"type":"ping","id":8}')
    failed, pong = (json.loads(line) for line in sheet.lines)
    assert (failed["id"], failed["success"], failed["error"]) == (
        7, False, "internal error (ZeroDivisionError); the log has the details",
    )  # fmt: skip
    assert (pong["id"], pong["success"]) == (8, True)
    assert "ZeroDivisionError: a bug" in caplog.text
