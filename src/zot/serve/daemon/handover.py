"""Hand-over of a listening endpoint from one daemon to the next."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from zot.client import endpoint
from zot.client.endpoint import Patience, reach
from zot.encoding import UNREADABLE
from zot.errors import DaemonRunning
from zot.serve.daemon.claim import Claim
from zot.wire.lines import LineSplitter

_READ_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 20
#: Longest single poll.
_LONGEST_S = 3600.0
#: Socket and lock; and the limit including other listeners.
_DESCRIPTORS, _MAX_DESCRIPTORS = 2, 64
_ASK = (
    b'{"jsonrpc":"2.0","method":"initialize","params":{"protocolVersion":1},"id":1}\n'
    b'{"jsonrpc":"2.0","method":"daemon/stop","params":{"handover":true},"id":2}\n'
)


class _Step(msgspec.Struct, frozen=True):
    """Step of a hand-over. ``removes`` is true if the owner removes the socket's file at its end."""

    step: str = ""
    removes: bool = True


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    """Grace period of the current daemon's runs, if its answer contains one."""

    grace_s: float = 0.0


class _Line(msgspec.Struct, frozen=True):
    """The fields of a line that matter here."""

    method: str = ""
    params: _Step = _Step()
    result: _Answer = _Answer()
    error: dict[str, Any] | None = None


_lines: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)


def hand_over(claim: Claim, connection: int, *, within_s: float = 5.0) -> bool:
    """Give the endpoint to the process at the other end of the descriptor ``connection``, and forget it.

    Call it last: after accepting has stopped, all sessions are closed, and all other use of the connection
    is finished. Blocks for at most ``within_s``. False if the endpoint was not taken: then release it. The
    descriptor stays open. Raise OSError if it is invalid.
    """
    line = _Connection(socket.socket(fileno=os.dup(connection)), _Patience(within_s))
    with line.socket:
        try:
            line.send(_step("offer", removes=claim.removes), claim.descriptors[:_MAX_DESCRIPTORS])
            if not any(said.params.step == "taken" for said in line.steps()):
                return False
            claim.close_others()  # The next daemon may need an address that only one process can have.
            line.send(_step("yours", removes=claim.removes))
        except OSError:  # The other process is gone, or too slow.
            return False
        finally:
            line.close_received()
    claim.forget()
    return True


def take_over(path: str, *, within_s: float = 30.0) -> Claim | None:
    """Ask the daemon at ``path`` for its endpoint, wait until it has wound down, and own the endpoint.

    Takes at most ``within_s`` plus the grace period that the daemon reports. If this process ends earlier, the daemon
    resumes.

    None if there is no daemon, or it ended before the hand-over: `claim_endpoint` can then succeed. Raise DaemonRunning
    if it refuses, or takes too long.
    """
    patience = _Patience(within_s)
    try:
        line = _Connection(reach(path, within_s, Patience(path)), patience)
        with line.socket:
            return _taken(path, line)
    except TimeoutError:
        pid = endpoint.owner(path) or 0
        why = f"the daemon at {path} did not hand over within {patience.within_s:g} s"
        raise DaemonRunning(why, pid=pid) from None
    except OSError:  # No daemon, or it has just ended.
        return None


def _taken(path: str, line: _Connection) -> Claim | None:
    offered: _Step | None = None
    try:
        line.send(_ASK)
        for said in line.steps():
            if said.error is not None:
                why = f"the daemon at {path} does not hand over: {said.error.get('message')}"
                raise DaemonRunning(why, pid=endpoint.owner(path) or 0)
            line.patience.within_s += said.result.grace_s
            if said.params.step == "offer" and len(line.received) >= _DESCRIPTORS:
                offered = said.params
                line.send(_step("taken"))
            if said.params.step == "yours" and offered is not None:
                return _claimed(path, line, removes=offered.removes)
    finally:
        line.close_received()
    return None


def _claimed(path: str, line: _Connection, *, removes: bool) -> Claim:
    listener, lock, *others = line.received
    line.received = []
    endpoint.sign(lock)
    elsewhere = [socket.socket(fileno=one) for one in others]
    return Claim(path, socket.socket(fileno=listener), lock, removes=removes, others=elsewhere)


class _Patience:
    """Time limit that starts now."""

    def __init__(self, within_s: float) -> None:
        self.within_s = within_s
        self._began = time.monotonic()

    @property
    def left_s(self) -> float:
        """Remaining seconds."""
        return max(0.0, self._began + self.within_s - time.monotonic())


class _Connection:
    """Lines and descriptors over a socket, blocking or not, within a time limit."""

    def __init__(self, connected: socket.socket, patience: _Patience) -> None:
        self.socket = connected
        self.received: list[int] = []
        self.patience = patience

    def send(self, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Send everything, the descriptors with the first byte. Raise OSError, TimeoutError if it takes too long."""
        while data:
            self._wait(select.POLLOUT)
            try:
                sent = socket.send_fds(self.socket, [data], descriptors)
            except BlockingIOError:
                continue
            data, descriptors = data[sent:], ()

    def steps(self) -> Iterator[_Line]:
        """Yield received lines until the other end closes. Raise OSError, TimeoutError if it takes too long."""
        splitter = LineSplitter(max_line_bytes=_MAX_LINE_BYTES)
        while True:
            self._wait(select.POLLIN)
            try:
                data, descriptors, _, _ = socket.recv_fds(self.socket, _READ_BYTES, _MAX_DESCRIPTORS)
            except BlockingIOError:
                continue
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
                self.received.append(descriptor)
            if not data:
                return
            for line in splitter.feed(data):
                try:
                    yield _lines.decode(line if isinstance(line, bytes) else b"{}")
                except UNREADABLE:  # Another message of the daemon: ignore it.
                    continue

    def close_received(self) -> None:
        """Close received descriptors without an owner."""
        while self.received:
            os.close(self.received.pop())

    def _wait(self, event: int) -> None:
        poll = select.poll()
        poll.register(self.socket, event)
        while not poll.poll(min(self.patience.left_s, _LONGEST_S) * 1000):
            if not self.patience.left_s:
                raise TimeoutError


def _step(step: str, *, removes: bool = True) -> bytes:
    params = _Step(step, removes)
    return msgspec.json.encode({"jsonrpc": "2.0", "method": "daemon/handover", "params": params}) + b"\n"
