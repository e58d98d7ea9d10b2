"""Connection to one extension: drives its peer over a process's pipes or a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from zot.errors import UserError, plain_reason
from zot.extensions.peer import (
    BURST,
    PER_S,
    Acknowledged,
    Answered,
    CommandAnswered,
    Decided,
    DecodedLine,
    ExtensionPeer,
    Greeted,
    InterceptDecision,
    Kill,
    NoticeLimiter,
    Notified,
    OutgoingRequest,
    PanelCloseReceived,
    PanelOpenReceived,
    PanelRenderReceived,
    PeerEvent,
    PeerState,
    ProtocolViolation,
    Terminate,
    ToolAnswered,
    clipped,
    read,
)
from zot.wire.extension import Event, Intercepted, Key
from zot.wire.lines import TooLong

if TYPE_CHECKING:
    from zot.extensions.sources import Carrier, ExtensionSource

A = TypeVar("A", ToolAnswered, CommandAnswered, Decided)
#: Direction of bytes: received from the extension, or sent to it.
Way: TypeAlias = Literal["<", ">"]
#: Time to exit after closing the output.
_EXIT_S = 0.5
#: Interval of log lines about dropped notices, and of updates of a panel that changes too fast.
_REPORT_S = 1.0
_MERGE_S = 0.1
#: Pause between reads of a flood, while no request is open.
_FLOOD_PAUSE_S = 0.1
#: Bytes processed at a time, so that a thousand short frames do not block the event loop.
_SLICE_BYTES = 1024
#: Longer lines are decoded in a thread, to keep the event loop free.
_LONG_BYTES = 256 * 1024


class PeerObserver:
    """Base class of observers of a connection. Answers are no events for them: those go to their callers."""

    def on_peer_event(self, peer_event: PeerEvent) -> None:
        """Receive an event."""

    def on_bytes(self, way: Way, data: bytes) -> None:
        """Receive the bytes of the connection, split anywhere."""


class ExtensionConnection:
    """Driver of an `ExtensionPeer`: feeds it bytes and time, and applies its events.

    Passes all events in order to the observer, except answers, which go to their callers. Notices never delay answers:
    a flood of them is dropped (`NoticeLimiter`), and updates of a panel are merged.
    """

    def __init__(self, peer: ExtensionPeer, observer: PeerObserver) -> None:
        self.peer = peer
        self.observer = observer
        self._loop = asyncio.get_running_loop()
        self._asked: dict[str, asyncio.Future[Answered]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._carrier: Carrier | None = None
        #: Bytes to send once the carrier is open.
        self._unsent = b""
        self._must_end = False
        self._pace = NoticeLimiter()
        #: Notices dropped and panel updates merged since the last report in the log.
        self._dropped = self._merged = 0
        self._flooded = self._flood_noticed = False
        self._report_timer: asyncio.TimerHandle | None = None
        #: Latest update of each panel that changes too fast, until it is shown.
        self._renders: dict[str, PanelRenderReceived] = {}
        self._render_timer: asyncio.TimerHandle | None = None
        #: True once the extension is ending or has exited: the rest is read without pauses.
        self._without_pauses = False
        #: Set to end a pause in reading.
        self._wake = asyncio.Event()
        self._reading = False
        #: Bytes received but not processed yet.
        self._unprocessed = 0
        #: Time of a passed deadline, and how many bytes received by then are processed before it applies.
        self._due_at: float | None = None
        self._due_bytes = 0
        self._schedule()

    async def run(self, source: ExtensionSource, errors: int) -> None:
        """Open the source, process its input, and return when no process is left. `PeerEnded` happens last.

        Its standard error goes to ``errors``.
        """
        reason = "was not started"
        try:
            self._carrier = carrier = await source.open(errors, self)
            reason = "did not end in time and was killed"
            self.peer.advice = carrier.advice
            carrier.send(self._unsent)
            if self._must_end:
                carrier.end()
            reason = await self._process_until_end(carrier)
        except (OSError, ValueError, UserError) as problem:
            reason = f"could not be started: {plain_reason(problem)}"
        finally:
            self._report_flood()
            self._carry_out(self.peer.end(reason, self._loop.time(), began=self._carrier is not None))
            for timer in (self._timer, self._report_timer, self._render_timer):
                if timer is not None:
                    timer.cancel()

    async def call_tool(self, tool: str, args: dict[str, Any]) -> ToolAnswered:
        """Call a tool. Cancelling gives the request up, here and below."""
        return await self._answer(self.peer.call_tool(tool, args, self._loop.time()), ToolAnswered)

    async def run_command(self, command: str, args: str) -> CommandAnswered:
        """Run a command."""
        return await self._answer(self.peer.invoke_command(command, args, self._loop.time()), CommandAnswered)

    async def decide(self, event: Intercepted, **about: Any) -> InterceptDecision:
        """Return the extension's decision about an event, or the one in its place if it cannot decide."""
        asked = self.peer.ask(event, self._loop.time(), **about)
        return asked if isinstance(asked, InterceptDecision) else (await self._answer(asked, Decided)).decision

    def notify(self, event: Event) -> None:
        """Notify the extension of an event, if it is subscribed."""
        self._send(self.peer.notify(event))

    def send_key(self, panel_id: str, key: Key, text: str = "") -> None:
        """Send a key press in one of the extension's panels."""
        self._send(self.peer.send_key(panel_id, key, text))

    def close_panel(self, panel_id: str) -> None:
        """Notify the extension that the user closed one of its panels."""
        self._send(self.peer.close_panel(panel_id))

    async def _answer(self, asked: OutgoingRequest | A, kind: type[A]) -> A:
        """Send a request and wait for its answer, which always comes."""
        if isinstance(asked, kind):
            return asked
        assert isinstance(asked, OutgoingRequest)
        future = self._asked[asked.id] = self._loop.create_future()
        self._wake.set()
        self._send(asked.data)
        try:
            answered = await future
            assert isinstance(answered, kind)  # The peer matches answers to requests.
            return answered
        finally:
            if self._asked.pop(asked.id, None) is not None:
                self.peer.requests.give_up(asked.id)
            self._schedule()

    def _send(self, data: bytes) -> None:
        """Send bytes that `peer` returned."""
        if data:
            self.observer.on_bytes(">", data)
            if self._carrier is None:
                self._unsent += data
            else:
                self._carrier.send(data)
        self._schedule()

    def cannot_send(self, reason: str) -> None:
        """Break the connection unless the extension exits soon: then its exit is the reason to report."""
        self._loop.call_later(_EXIT_S, self.lose, reason)

    def lose(self, reason: str) -> None:
        """Break the connection: end the extension with all its processes."""
        self._carry_out(self.peer.lose(reason, self._loop.time()))

    def input_closed(self) -> None:
        """Note that the extension has closed its input."""
        self.cannot_send("has closed its input")

    def shut_down(self) -> None:
        """Request shutdown; a process that does not exit in time is ended."""
        self._stop_pausing()
        self._send(self.peer.shut_down(self._loop.time()))

    async def _process_until_end(self, carrier: Carrier) -> str:
        """Process input until the extension ends; return how it ended."""
        watching = self._loop.create_task(self._stop_pausing_when_gone(carrier), name="zot extension gone")
        try:
            self._reading = True
            while data := await carrier.read():
                self.observer.on_bytes("<", data)
                await self._process(data)
                if self._flooded and self._may_pause():
                    await self._pause()
            await self._process_lines(self.peer.last_lines())
            self._stop_reading()
            if not await carrier.gone(within_s=_EXIT_S):
                self._carry_out(self.peer.lose("has closed its output", self._loop.time()))
                # One asked to shut down may still be cleaning up; its deadline bounds this wait.
                await carrier.gone(within_s=None)
            if left := await carrier.leftovers():
                self.observer.on_peer_event(
                    ProtocolViolation(f"left processes behind, which were ended: {clipped(', '.join(left))}")
                )
        finally:
            watching.cancel()
            self._stop_reading()
            self._end()
            reason = await carrier.close()
        return reason

    def _stop_reading(self) -> None:
        """Note the end of the input. A deadline that waited for received bytes to be processed applies now."""
        self._reading = False
        if self._due_at is not None:
            self._expire_now()

    async def _stop_pausing_when_gone(self, carrier: Carrier) -> None:
        """Read the rest without pauses once the extension has exited: its end fails the open requests."""
        await carrier.gone(within_s=None)
        self._stop_pausing()

    def _stop_pausing(self) -> None:
        self._without_pauses = True
        self._wake.set()

    async def _process(self, data: bytes) -> None:
        """Process ``data`` in slices, yielding to the event loop between them."""
        self._unprocessed, self._flooded = len(data), False
        for start in range(0, len(data), _SLICE_BYTES):
            piece = data[start : start + _SLICE_BYTES]
            await self._process_lines(self.peer.lines(piece))
            self._unprocessed -= len(piece)
            if self._due_at is not None:
                self._due_bytes -= len(piece)
                if self._due_bytes <= 0:
                    self._expire_now()

    async def _process_lines(self, lines: Sequence[bytes | TooLong]) -> None:
        """Process lines in order."""
        has_said = False
        for line in lines:
            peer_events = self.peer.take(await _read(line), self._loop.time())
            self._carry_out([one for one in peer_events if self._admits(one)])
            has_said |= not all(isinstance(one, ToolAnswered | CommandAnswered | Decided) for one in peer_events)
        if has_said:
            await asyncio.sleep(0)  # Yield to other tasks.

    def _may_pause(self) -> bool:
        """True while no frame is expected from the extension."""
        return not self._without_pauses and not self._asked and self.peer.phase.state is PeerState.READY

    async def _pause(self) -> None:
        """Leave a flood in the pipe for a moment, so that it costs little CPU time; a new request ends the pause."""
        self._wake.clear()
        waking = self._loop.call_later(_FLOOD_PAUSE_S, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            waking.cancel()

    def _admits(self, peer_event: PeerEvent) -> bool:
        """Return whether to show a peer_event now. Notices beyond the rate are dropped, panel updates delayed."""
        match peer_event:
            case PanelOpenReceived(panel=panel):
                self._renders.pop(panel.id, None)
            case PanelCloseReceived(panel_id=panel_id):
                self._renders.pop(panel_id, None)
            case PanelRenderReceived(panel=panel):
                if panel.panel_id in self._renders or not self._pace.admits(self._loop.time()):
                    self._merged += 1
                    self._renders[panel.panel_id] = peer_event
                    if self._render_timer is None:
                        self._render_timer = self._loop.call_later(_MERGE_S, self._show_renders)
                    self._note_flood()
                    return False
            case Notified() | ProtocolViolation(notice=False):
                if not self._pace.admits(self._loop.time()):
                    self._dropped += 1
                    self._note_flood()
                    return False
            case _:
                pass
        return True

    def _show_renders(self) -> None:
        self._render_timer = None
        renders, self._renders = self._renders, {}
        for render in renders.values():
            self.observer.on_peer_event(render)

    def _note_flood(self) -> None:
        self._flooded = True
        if self._report_timer is None:
            self._report_timer = self._loop.call_later(_REPORT_S, self._report_flood)

    def _report_flood(self) -> None:
        """Report dropped notices and merged updates in the log."""
        if self._report_timer is not None:
            self._report_timer.cancel()
            self._report_timer = None
        if self._dropped or self._merged:
            lost = f"{self._dropped} notices were dropped and {self._merged} panel updates merged"
            limit = f"{BURST} at once and {PER_S} a second are shown"
            self._dropped = self._merged = 0
            self.observer.on_peer_event(
                ProtocolViolation(f"sends too much: {lost}; {limit}", notice=not self._flood_noticed)
            )
            self._flood_noticed = True

    def _carry_out(self, peer_events: list[PeerEvent]) -> None:
        for peer_event in peer_events:
            match peer_event:
                case ToolAnswered() | CommandAnswered() | Decided():
                    future = self._asked.pop(peer_event.id, None)
                    if future is not None and not future.done():
                        future.set_result(peer_event)
                    continue
                case Greeted(reply=reply):
                    self.observer.on_peer_event(peer_event)  # First: a failed send may break the connection.
                    self._send(reply)
                    continue
                case Terminate() | Kill():
                    self._end()
                    continue
                case Acknowledged() if self._carrier is not None:
                    self._carrier.acknowledged()
                case _:
                    pass
            self.observer.on_peer_event(peer_event)
        self._schedule()

    def _end(self) -> None:
        """End the extension with all its processes, once the carrier is open."""
        self._must_end = True
        self._stop_pausing()
        if self._carrier is not None:
            self._carrier.end()

    def _schedule(self) -> None:
        if self._due_at is not None:
            return  # Received bytes are processed first.
        deadline = self.peer.next_deadline()
        if deadline is not None and self._timer is not None and self._timer.when() == deadline:
            return  # Keep the timer: an extension that sends constantly must not postpone its deadline.
        self._stop_timer()
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        """Handle a passed deadline. An answer received before it counts, so received bytes are processed first."""
        self._timer = None
        self._due_at = self._loop.time()
        arrived = 0 if self._carrier is None or not self._reading else self._unprocessed + self._carrier.arrived()
        self._due_bytes = arrived
        if arrived == 0:
            self._expire_now()

    def _expire_now(self) -> None:
        assert self._due_at is not None
        due_at, self._due_at = self._due_at, None
        self._carry_out(self.peer.expire(due_at))


async def _read(line: bytes | TooLong) -> DecodedLine:
    if isinstance(line, TooLong) or len(line) <= _LONG_BYTES:
        return read(line)
    return await asyncio.to_thread(read, line)
