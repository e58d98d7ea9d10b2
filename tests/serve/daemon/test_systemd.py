"""Notifications to systemd, and the sockets that it passes."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from zot.serve.daemon.lifecycle import Notifier, take_listeners


@pytest.fixture(params=["a file", "no file"])
def ear(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """Systemd's notification socket, at an address with a file and at one without."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.settimeout(5)
        if request.param == "a file":
            bound.bind(str(tmp_path / "notify"))
            yield bound, str(tmp_path / "notify")
        else:
            name = f"zot-test-{os.getpid()}"
            bound.bind(f"\0{name}")
            yield bound, f"@{name}"


def test_systemd_is_notified_of_the_state(ear: tuple[socket.socket, str]) -> None:
    bound, address = ear
    env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid()), "PATH": "/bin"}
    notifier = Notifier(env)
    assert env == {"PATH": "/bin"}, "no child speaks in our name"
    assert notifier.ping_every_s == 15.0
    notifier.ready("listening at /x")
    notifier.reloading()
    notifier.ping()
    notifier.succeeded_by(7)
    notifier.stopping()
    heard = [bound.recv(4096).decode() for _ in range(5)]
    assert heard[0] == f"READY=1\nSTATUS=listening at /x\nMAINPID={os.getpid()}"
    assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", heard[1])
    assert heard[2:] == ["WATCHDOG=1", "MAINPID=7", "STOPPING=1"]


def test_a_watchdog_for_another_process_is_ignored() -> None:
    assert Notifier({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).ping_every_s is None
    assert Notifier({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "soon"}).ping_every_s is None
    assert Notifier({"WATCHDOG_USEC": "1000000"}).ping_every_s is None


def test_without_systemd_nothing_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Notifier({}).ready("listening")
    assert caplog.records == []


def test_a_systemd_that_does_not_listen_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Notifier({"NOTIFY_SOCKET": str(tmp_path / "nowhere")}).ready("listening")
    assert caplog.messages == ["systemd was not notified of READY=1: No such file or directory"]


def test_listening_sockets_are_taken_in_order_and_the_rest_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two, deaf = (socket.socket(socket.AF_UNIX) for _ in range(3))
    for listener, name in ((one, "one"), (two, "two")):
        listener.bind(str(tmp_path / name))
        listener.listen()
    first = 200  # systemd passes 3 and so on, which a test may be using itself
    for offset, passed in enumerate((one, deaf, two)):
        os.dup2(passed.fileno(), first + offset)
        passed.close()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, first + 3)
    os.close(nothing)
    env = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "4", "LISTEN_FDNAMES": "a:b:c:d", "PATH": "/bin"}
    with caplog.at_level(logging.WARNING):
        found = take_listeners(env, first=first)
    assert env == {"PATH": "/bin"}
    assert [listener.getsockname() for listener in found] == [str(tmp_path / "one"), str(tmp_path / "two")]
    assert not any(os.get_inheritable(listener.fileno()) for listener in found)
    assert caplog.messages == [
        "descriptor 201, which was passed to us, does not listen",
        "descriptor 203, which was passed to us, is not a socket: Socket operation on non-socket",
    ]
    for listener in found:
        listener.close()
    os.close(first + 3)


def test_sockets_for_another_process_are_ignored() -> None:
    env = {"LISTEN_PID": "1", "LISTEN_FDS": "1"}
    assert take_listeners(env) == ()
    assert env == {}
    assert take_listeners({}) == ()
