"""A real extension process, talked to through `Peer` by a shell as small as one can be."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from harness import PATIENCE_S, Late, environment
from zot.extensions.manifest import command_line, load
from zot.extensions.peer import (
    CommandAnswered,
    Decided,
    ExtensionDeadlines,
    ExtensionPeer,
    Greeted,
    InterceptDecision,
    Kill,
    OutgoingRequest,
    PeerEnded,
    PeerEvent,
    Settled,
    Terminate,
    ToolAnswered,
)
from zot.wire import extension as wire

_Kind = TypeVar("_Kind", ToolAnswered, CommandAnswered, Decided, Settled, PeerEnded)


class Running:
    """A running extension, with its peer's events in `peer_events` and its standard error in `log`."""

    def __init__(self, name: str, command: Sequence[str | Path], directory: Path, data_dir: Path | None = None) -> None:
        self._log = directory / ".test-stderr" if data_dir is None else data_dir / ".test-stderr"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(word) for word in command], cwd=directory, env=environment({}), stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=log, bufsize=0,
            )  # fmt: skip
        data = str(data_dir or directory)
        ack = wire.HelloAck(wire.PROTOCOL_VERSION, "0.1.0", "lab", "lab-1", str(directory), str(directory), data)
        # Deadlines are not tested with a real extension: the machine may be busy.
        deadlines = ExtensionDeadlines(ready_s=PATIENCE_S, intercept_s=PATIENCE_S, shutdown_s=PATIENCE_S)
        self.peer = ExtensionPeer(name, ack, now=time.monotonic(), deadlines=deadlines)
        self.peer_events: list[PeerEvent] = []

    @property
    def log(self) -> str:
        return self._log.read_text()

    def ready(self) -> None:
        """Wait until it is ready."""
        self.until(lambda peer_event: isinstance(peer_event, Settled))

    def command(self, name: str, args: str = "") -> wire.CommandResponse:
        """Run a command and return its answer."""
        asked = self.peer.invoke_command(name, args, time.monotonic())
        return self.answer(asked, CommandAnswered).response

    def call(self, tool: str, **args: Any) -> ToolAnswered:
        """Call a tool and return its answer."""
        return self.answer(self.peer.call_tool(tool, args, time.monotonic()), ToolAnswered)

    def ask(self, event: wire.Intercepted, **about: Any) -> InterceptDecision:
        """Ask for a decision and return it."""
        asked = self.peer.ask(event, time.monotonic(), **about)
        return asked if isinstance(asked, InterceptDecision) else self.answer(asked, Decided).decision

    def answer(self, asked: object, kind: type[_Kind]) -> _Kind:
        """Send a question and return the peer_event that answers it."""
        assert isinstance(asked, OutgoingRequest), asked
        self.write(asked.data)
        answered = self.until(lambda peer_event: getattr(peer_event, "id", None) == asked.id)
        assert isinstance(answered, kind)
        return answered

    def write(self, data: bytes) -> None:
        """Write bytes that the peer has made."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def until(self, wanted: Callable[[PeerEvent], bool]) -> PeerEvent:
        """Pump until something happens, and return it."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for peer_event in self.pump():
                if wanted(peer_event):
                    return peer_event
        raise Late(f"it did not happen, but {self.peer_events}; {self.log}")

    def pump(self) -> list[PeerEvent]:
        """Wait for bytes or the next deadline, and process them."""
        assert self.process.stdout is not None
        due = self.peer.next_deadline()
        wait_s = PATIENCE_S if due is None else max(0.0, due - time.monotonic())
        if select.select([self.process.stdout], [], [], min(wait_s, PATIENCE_S))[0]:
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            now = time.monotonic()
            came = self.peer.receive(data, now) if data else self.peer.end(f"exited with {self.exit_code()}", now)
        else:
            came = self.peer.expire(time.monotonic())
        for peer_event in came:
            self._act(peer_event)
        self.peer_events += came
        return came

    def _act(self, peer_event: PeerEvent) -> None:
        match peer_event:
            case Greeted(reply=reply):
                self.write(reply)
            case Terminate():
                self.process.terminate()
            case Kill():
                self.process.kill()
            case _:
                pass

    def exit_code(self) -> int:
        return self.process.wait(PATIENCE_S)

    def shut_down(self) -> PeerEnded:
        """Shut it down as zot does."""
        self.write(self.peer.shut_down(time.monotonic()))
        ended = self.until(lambda peer_event: isinstance(peer_event, PeerEnded))
        assert isinstance(ended, PeerEnded)
        return ended


@contextlib.contextmanager
def running(
    directory: Path, data_dir: Path | None = None, *, name: str = "", command: Sequence[str] = ()
) -> Iterator[Running]:
    """Start the program of a manifest, or a command; end all its processes."""
    if not command:
        manifest = load(str(directory))
        name, command = manifest.name, command_line(manifest, str(directory))
    extension = Running(name, command, directory, data_dir)
    try:
        yield extension
    finally:
        extension.process.kill()
        extension.process.wait(PATIENCE_S)
        for stream in (extension.process.stdin, extension.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
