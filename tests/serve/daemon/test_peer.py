"""The identity of a client, and which clients are refused."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from child_process import NOBODY, Child
from harness import PATIENCE_S
from zot.client.endpoint import PeerCredentials, admits, dial, identify
from zot.errors import ConfigError
from zot.serve.daemon.claim import claim_endpoint


def test_the_kernel_reports_the_peer_s_user() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        peer = identify(ours)
    assert peer == PeerCredentials(uid=os.geteuid(), pid=os.getpid())
    assert peer.label == f"unix:pid={os.getpid()},uid={os.geteuid()}"
    assert admits(peer)


def test_another_user_is_recognised_and_refused() -> None:
    us = os.geteuid()
    other = NOBODY if us == 0 else us
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
        path = Path(directory) / "d.sock"
        Path(directory).chmod(0o755)
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen()
        listener.settimeout(PATIENCE_S)

        def visit(_: Callable[[], None]) -> str:
            client = socket.socket(socket.AF_UNIX)
            client.connect(str(path))
            return "in" if client.recv(2) == b"ok" else "out"

        with Child(visit, uid=other if us == 0 else None) as child:
            connection, _ = listener.accept()
            with connection:
                peer = identify(connection)
                assert peer == PeerCredentials(uid=other, pid=child.pid)
                assert not admits(peer, us=None if us == 0 else us + 1)
            assert child.report() == "out"


def test_root_is_another_user_unless_we_are_root() -> None:
    assert not admits(PeerCredentials(uid=0, pid=1), us=1000)
    assert admits(PeerCredentials(uid=0, pid=1), us=0)


def test_an_unknown_peer_is_not_a_user() -> None:
    assert PeerCredentials(uid=-1, pid=0).label == "unix:unknown"
    assert not admits(PeerCredentials(uid=-1, pid=0))


def test_nothing_is_sent_to_a_daemon_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    us = os.geteuid()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "d.sock"
        Path(directory).chmod(0o777)

        def listen(_: Callable[[], None]) -> str:
            listener.bind(str(path))
            listener.listen()
            path.chmod(0o666)
            return "listening"

        listener = socket.socket(socket.AF_UNIX)
        with listener, Child(listen, uid=NOBODY if us == 0 else None) as child:
            assert child.report() == "listening"
            if us != 0:
                monkeypatch.setattr(os, "geteuid", lambda: us + 1)
            with pytest.raises(PermissionError, match=r"the listener there is uid \d+"):
                dial(str(path), 1.0)
            Path(directory).chmod(0o1777)
            with pytest.raises(ConfigError, match=r"d\.sock belongs to uid \d+: name another place"):
                claim_endpoint(str(path))
