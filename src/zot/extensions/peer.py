"""State machine of the extension protocol, for one connection to one extension. Does no I/O and reads no clock.

The caller passes bytes and times in and carries out the returned peer_events: it writes, signals, and shows notices.

===========  =============================================  ====================================================
State        Accepts from the extension                     Ends with
===========  =============================================  ====================================================
GREETING     ``hello`` with the manifest's name. Any other  ``hello``: REGISTERING.
             line breaks the connection.                    ``hello_s`` passed, other line: CLOSING (broken).
                                                            `shut_down`: CLOSING (requested).
REGISTERING  ``register_command``, ``register_tool``,       ``ready``: READY.
             one ``subscribe``, ``ready``, answers,         ``ready_s`` passed, or ``silence_s`` without a line
             ``panel_render``, ``panel_close``,             if it has only commands and panels: READY.
             ``notify``. A second ``hello`` is a fault.     `shut_down`: CLOSING (requested).
                                                            `lose`, ``MAX_FAULTS`` faults: CLOSING (broken).
READY        As REGISTERING; ``ready`` is ignored.          `shut_down`: CLOSING (requested).
                                                            `lose`, ``MAX_FAULTS`` faults: CLOSING (broken).
CLOSING,     Answers, panels, ``notify``,                   `end`: CLOSED. ``shutdown_s`` passed: `Terminate`;
requested    ``shutdown_ack``. Registrations and            then ``terminate_s`` passed: `Kill`.
             ``hello`` are ignored.
CLOSING,     Nothing: input is discarded.                   `end`: CLOSED. ``terminate_s`` passed: `Kill`.
broken
CLOSED       Nothing: input is discarded.                   Final; `PeerEnded` was the last event.
===========  =============================================  ====================================================

`end` leads from every state to CLOSED. Tools, commands and intercepts can be requested in REGISTERING and READY only.
Every request gets exactly one answer unless its caller gives it up: the extension's own, or a failure in its place when
the deadline passes, a malformed line answers it (or has no readable id: then all open requests fail), or the connection
breaks or ends. A frame of an unknown type is reported, counts as a fault, and is otherwise ignored.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from zot.encoding import UNREADABLE, thread_safe_type
from zot.errors import ProtocolError
from zot.extensions.permissions import Permissions, admit
from zot.messages import ImageBlock, TextBlock
from zot.text import printable
from zot.wire import extension as wire
from zot.wire.lines import LineSplitter, TooLong, has_more_values

#: Bad lines after which the connection is broken.
MAX_FAULTS: Final = 100
MAX_COMMANDS: Final = 256
MAX_TOOLS: Final = 256
#: Limit for all registrations together, as sent: each step sends the tools to the model again.
MAX_BYTES: Final = 1024 * 1024
#: Notices shown at once, and rate per second after that.
BURST: Final = 1000
PER_S: Final = 100
_CLIP: Final = 200
#: Maximum length of a quoted line.
QUOTED_BYTES: Final = 4 * _CLIP
#: Number of finished request ids kept, to tell a late answer from an invented id.
_FINISHED_IDS_KEPT: Final = 256
#: Capabilities no prompt depends on: an extension with only these need not delay the first prompt.
_NOT_NEEDED_BY_PROMPTS: Final = frozenset({"commands", "panels"})
#: Reasons of blocks for which the extension gave none.
_DEFAULT_REASONS: Final[dict[wire.Intercepted, str]] = {
    "tool_call": "tool call refused by extension {}",
    "turn_start": "turn blocked by extension {}",
    "assistant_message": "message held back by extension {}",
}
#: Kinds of requests to an extension; an intercept asks for a `Decision` about an event.
Kind: TypeAlias = Literal["tool", "command", "intercept"]


class PeerState(Enum):
    """Progress of a connection. The head of this file has the transitions."""

    GREETING = "greeting"
    REGISTERING = "registering"
    READY = "ready"
    CLOSING = "closing"
    CLOSED = "closed"


class ExtensionDeadlines(msgspec.Struct, frozen=True):
    """Time limits in seconds, each settable with ``--ext-deadline``.

    ``silence_s`` replaces ``ready_s`` for extensions that have only commands and panels.
    """

    hello_s: float = 30.0
    ready_s: float = 3.0
    silence_s: float = 0.25
    tool_s: float = 60.0
    intercept_s: float = 5.0
    command_s: float = 30.0
    shutdown_s: float = 2.0
    terminate_s: float = 1.0

    def of(self, kind: Kind) -> float:
        """Return the time limit for answers of this kind."""
        return {"tool": self.tool_s, "command": self.command_s, "intercept": self.intercept_s}[kind]


class OutgoingRequest(msgspec.Struct, frozen=True):
    """Request to send: its id, the bytes to write, and the deadline of its answer."""

    id: str
    data: bytes
    deadline: float


class Unconfined(msgspec.Struct, frozen=True):
    """Start of the extension without its sandbox, as the user allowed; ``reason`` is a sentence for the log."""

    reason: str


class Greeted(msgspec.Struct, frozen=True):
    """Hello received. The caller writes ``reply`` at once."""

    hello: wire.Hello
    reply: bytes


class CommandRegistered(msgspec.Struct, frozen=True):
    command: wire.RegisterCommand


class ToolRegistered(msgspec.Struct, frozen=True):
    """Tool registered; one registered late is offered from the next step on."""

    tool: wire.RegisterTool


class SubscribeReceived(msgspec.Struct, frozen=True):
    """Events that the extension is notified of, and those it decides about."""

    events: frozenset[wire.EventName]
    intercept: frozenset[wire.Intercepted]


class Settled(msgspec.Struct, frozen=True):
    """Prompts need not wait for the extension any more. ``said`` is false if it did not send `ready`, which is fine."""

    said: bool


class ToolAnswered(msgspec.Struct, frozen=True):
    """Tool result for the model. ``failure`` explains why the extension did not produce it; "" if it did."""

    id: str
    content: tuple[TextBlock | ImageBlock, ...]
    is_error: bool = False
    failure: str = ""


class CommandAnswered(msgspec.Struct, frozen=True):
    """Command response. A ``failure`` is also its ``error``."""

    id: str
    response: wire.CommandResponse
    failure: str = ""


class InterceptDecision(msgspec.Struct, frozen=True):
    """Decision about an event: unchanged, changed, or blocked for a reason.

    ``modified_args`` is set only for a tool call, ``replace_text`` only for a message, neither with a block.
    Without a block, ``reason`` is a note. ``failure`` explains why the extension did not decide; "" if it did.
    """

    block: bool = False
    reason: str = ""
    modified_args: dict[str, Any] | None = None
    replace_text: str | None = None
    failure: str = ""


class Decided(msgspec.Struct, frozen=True):
    """Answer to an intercept."""

    id: str
    decision: InterceptDecision


class Notified(msgspec.Struct, frozen=True):
    """Notice for the user."""

    level: wire.Level
    message: str


class PanelOpenReceived(msgspec.Struct, frozen=True):
    """Panel opened. The `CommandAnswered` of the command that opened it follows."""

    panel: wire.Panel


class PanelRenderReceived(msgspec.Struct, frozen=True):
    """New content of an open panel."""

    panel: wire.PanelRender


class PanelCloseReceived(msgspec.Struct, frozen=True):
    """Panel closed by the extension or by its end."""

    panel_id: str


class ProtocolViolation(msgspec.Struct, frozen=True):
    """Protocol violation for the extension's log; with ``notice`` the user sees it, too."""

    reason: str
    notice: bool = False


class RequestTimedOut(msgspec.Struct, frozen=True):
    """Request that timed out. The failure in place of its answer follows."""

    kind: Kind
    reason: str


class SlowRequest(msgspec.Struct, frozen=True):
    """Caller waiting for a while: for ``what``, such as "tool weather", and since when."""

    what: str
    since: str


class GivenUp(msgspec.Struct, frozen=True):
    """The extension is not restarted and offers nothing any more. ``reason`` is "" if it was reported before."""

    reason: str


class Acknowledged(msgspec.Struct, frozen=True):
    """The extension acknowledged the shutdown request."""


class PeerBroken(msgspec.Struct, frozen=True):
    """Communication with the extension is broken. `Terminate` follows."""

    reason: str


class Terminate(msgspec.Struct, frozen=True):
    """Request to send SIGTERM to the process."""


class Kill(msgspec.Struct, frozen=True):
    """Request to send SIGKILL to the process."""


class PeerEnded(msgspec.Struct, frozen=True):
    """End of the connection: always the last peer_event. ``wanted`` if shutdown was requested."""

    reason: str
    wanted: bool


Answered: TypeAlias = ToolAnswered | CommandAnswered | Decided
PeerEvent: TypeAlias = (
    Unconfined
    | Greeted
    | CommandRegistered
    | ToolRegistered
    | SubscribeReceived
    | Settled
    | Answered
    | Notified
    | PanelOpenReceived
    | PanelRenderReceived
    | PanelCloseReceived
    | ProtocolViolation
    | RequestTimedOut
    | SlowRequest
    | GivenUp
    | Acknowledged
    | PeerBroken
    | Terminate
    | Kill
    | PeerEnded
)


class DecodedFrame(msgspec.Struct, frozen=True):
    """Decoded frame with the length of its line."""

    frame: wire.AnyFromExtension
    size: int


class MalformedLine(msgspec.Struct, frozen=True):
    """Malformed line: a reason, the JSON id of the request it answers (if readable), and its beginning.

    ``later`` if the only problem is a frame type that this version does not know.
    """

    reason: str
    frame_id: bytes = b""
    line: bytes = b""
    later: bool = False


DecodedLine: TypeAlias = DecodedFrame | MalformedLine
Reply: TypeAlias = wire.ToolResult | wire.CommandResponse | wire.EventInterceptResponse


class ExtensionPeer:
    """One connection to an extension, from its start to its end. The table at the head of this file has the states."""

    def __init__(
        self,
        name: str,
        ack: wire.HelloAck,
        *,
        now: float,
        deadlines: ExtensionDeadlines | None = None,
        closed: frozenset[wire.Intercepted] = frozenset(),
        fails_closed: bool = False,
        permissions: Permissions | None = None,
        max_line_bytes: int = wire.MAX_LINE_BYTES,
    ) -> None:
        self.name = name
        self.hello: wire.Hello | None = None
        #: Hint for the error if no hello arrives; begins with a separator.
        self.advice = ""
        self._ack = ack
        self._deadlines = deadlines or ExtensionDeadlines()
        self._fails_closed = fails_closed
        self._permissions = permissions
        self._lines = LineSplitter(max_line_bytes=max_line_bytes)
        self._registry = Registry()
        self.requests = PendingRequests(name, self._deadlines)
        self._panels = PeerPanels()
        self._faults = 0
        self.phase = ConnectionState(self._deadlines, now)
        #: Events that are blocked while the extension cannot decide about them.
        self.closed = closed

    # Queries.

    @property
    def commands(self) -> tuple[wire.RegisterCommand, ...]:
        """Registered commands, in order of registration."""
        return tuple(self._registry.commands.values())

    @property
    def tools(self) -> tuple[wire.RegisterTool, ...]:
        """Registered tools, in order of registration."""
        return tuple(self._registry.tools.values())

    @property
    def panels(self) -> tuple[str, ...]:
        """Open panels, oldest first."""
        return self._panels.open

    def is_subscribed(self, event: wire.EventName) -> bool:
        """True if the extension is notified of ``event``."""
        return self.phase.running and event in self._registry.events

    def decides(self, event: wire.Intercepted) -> bool:
        """True if `ask` is needed for ``event``: the extension decides about it, or its absence blocks it."""
        return event in self.closed or (self.phase.running and event in self._registry.intercept)

    @property
    def start_deadline(self) -> tuple[str, float]:
        """Name and seconds of the deadline that the extension's start waits for."""
        if self.phase.state is PeerState.GREETING:
            return "hello", self._deadlines.hello_s
        return "ready", self._deadlines.ready_s

    def next_deadline(self) -> float | None:
        """Return the time at which to call `expire`; None without a deadline."""
        times = (self.phase.until, self.requests.next_deadline())
        return min((time for time in times if time is not None), default=None)

    # Requests and notifications to the extension: most return the bytes to write, or at once the answer.

    def call_tool(self, tool: str, args: dict[str, Any], now: float) -> OutgoingRequest | ToolAnswered:
        """Call a tool."""
        problem = self._refusal("tool", tool, self._registry.tools)
        if problem:
            return tool_failure(self.requests.new_id(), problem)
        waiting = self.requests.open("tool", tool, now)
        return encode_request(waiting, wire.ToolCall(waiting.id, tool, args))

    def invoke_command(self, command: str, args: str, now: float) -> OutgoingRequest | CommandAnswered:
        """Run a command."""
        problem = self._refusal("command", command, self._registry.commands)
        if problem:
            return command_failure(self.requests.new_id(), problem)
        waiting = self.requests.open("command", command, now)
        return encode_request(waiting, wire.CommandInvoked(waiting.id, command, args.strip()))

    def ask(
        self,
        event: wire.Intercepted,
        now: float,
        *,
        step: int = 0,
        tool_id: str = "",
        tool_name: str = "",
        tool_args: dict[str, Any] | None = None,
        text: str = "",
    ) -> OutgoingRequest | InterceptDecision:
        """Request a decision about an event: a turn by its ``step``, a tool call, or a message by its ``text``."""
        if self.phase.running and event in self._registry.intercept:
            waiting = self.requests.open("intercept", event, now, closed=event in self.closed)
            return encode_request(
                waiting, wire.EventIntercept(waiting.id, event, step, tool_id, tool_name, tool_args, text)
            )
        if event not in self.closed:
            return InterceptDecision()
        what = f"has not subscribed to {event}" if self.phase.running else "is not running"
        return decision_failure(f"extension {self.name}, which guards this, {what}", closed=True)

    def _refusal(self, kind: str, name: str, known: dict[str, Any]) -> str | None:
        if not self.phase.running:
            return f"extension {self.name} is not running"
        return None if name in known else f"extension {self.name} has no {kind} named {name!r}"

    def notify(self, event: wire.Event) -> bytes:
        """Encode an event notification; b"" if the extension is not subscribed to it."""
        return wire.encode_frame(event) if self.is_subscribed(event.event) else b""

    def send_key(self, panel_id: str, key: wire.Key, text: str = "") -> bytes:
        """Encode a key press for an open panel; b"" if the panel is not open."""
        if not self.phase.running or panel_id not in self._panels.open:
            return b""
        return wire.encode_frame(wire.PanelKey(panel_id, key, text))

    def close_panel(self, panel_id: str) -> bytes:
        """Close a panel for the user; return the frame for the extension, or b""."""
        closed = self._panels.close(panel_id)
        return wire.encode_frame(wire.PanelClose(panel_id)) if closed and self.phase.running else b""

    def shut_down(self, now: float) -> bytes:
        """Start closing; return the shutdown frame. Open requests may still be answered."""
        if self.phase.ending:
            return b""
        self.phase.shut_down(now)
        return wire.encode_frame(wire.Shutdown())

    # Input: received bytes, passed time, a lost or ended connection.

    def receive(self, data: bytes, now: float) -> list[PeerEvent]:
        """Process received bytes, split anywhere."""
        return self._take_all(self.lines(data), now)

    def lines(self, data: bytes) -> list[bytes | TooLong]:
        """Return the lines that ``data`` completes."""
        return [] if self.phase.deaf else self._lines.feed(data)

    def last_lines(self) -> list[bytes | TooLong]:
        """Return the unterminated last line, if there is one, at the end of the input.

        Returns nothing if the process was terminated: that may have cut the line short.
        """
        return [] if self.phase.deaf or self.phase.kill_next else self._lines.finish()

    def take(self, said: DecodedLine, now: float) -> list[PeerEvent]:
        """Process one line as decoded by `read`. Call it for each line, in order."""
        if self.phase.deaf:
            return []
        if isinstance(said, MalformedLine):
            return self._unknown(said, now) if said.later else self._fault(said, now)
        self.phase.spoke(now)
        try:
            return self._process_permitted(said, now)
        except ProtocolError as problem:
            return self._complain(str(problem), now)

    def expire(self, now: float) -> list[PeerEvent]:
        """Act on the deadlines that have passed. May be called at any time."""
        peer_events = self.requests.expire(now)
        if self.phase.until is not None and self.phase.until <= now:
            peer_events += self._phase_expired(now)
        return peer_events

    def lose(self, reason: str, now: float) -> list[PeerEvent]:
        """Break the connection to a running process: it violates the protocol, does not read, or closed a pipe."""
        if self.phase.ending:
            return []
        failed = self.requests.fail_all(reason)
        self.phase.terminated(now)
        return [*failed, PeerBroken(reason), Terminate()]

    def end(self, reason: str, now: float, *, began: bool = True) -> list[PeerEvent]:
        """End the connection for a reason to show, such as "exited with 1"; ``began`` is false if the start failed."""
        if self.phase.state is PeerState.CLOSED:
            return []
        peer_events = self._take_all(self.last_lines(), now)
        if self.phase.state is PeerState.GREETING and began:
            reason = f"{reason} before it said hello{self.advice}"
        if self.phase.wanted and self.phase.kill_next:
            reason = f"{reason}: it did not end within {self._deadlines.shutdown_s:g} s of shutdown"
        peer_events += self.requests.fail_all(reason)
        peer_events += self._panels.close_all()
        self.phase.ended()
        return [*peer_events, PeerEnded(reason, self.phase.wanted)]

    # Frames, by state.

    def _take_all(self, lines: list[bytes | TooLong], now: float) -> list[PeerEvent]:
        return [peer_event for line in lines for peer_event in self.take(read(line), now)]

    def _process_permitted(self, said: DecodedFrame, now: float) -> list[PeerEvent]:
        """Process the permitted part of a frame. Raise ProtocolError if there is none or the state forbids it."""
        frame, refused = said.frame, ""
        if self.phase.state is not PeerState.GREETING:
            frame, refused = admit(frame, self._permissions)
        peer_events = self._process_frame(frame, said.size, now)
        return [ProtocolViolation(refused, notice=True), *peer_events] if refused else peer_events

    def _process_frame(self, frame: wire.AnyFromExtension, size: int, now: float) -> list[PeerEvent]:
        """Process one frame. Raise ProtocolError if the current state forbids it."""
        if isinstance(frame, wire.Hello):
            return self._greet(frame, now)
        if self.phase.state is PeerState.GREETING:
            return self.lose(f"did not say hello first, but {wire.name_of(frame)}", now)
        match frame:
            case wire.RegisterCommand() | wire.RegisterTool() | wire.Subscribe() | wire.Ready() if self.phase.ending:
                return []  # Crossed the shutdown request.
            case wire.RegisterCommand():
                self._registry.add_command(frame, size)
                return [CommandRegistered(frame)]
            case wire.RegisterTool():
                return [ToolRegistered(self._registry.add_tool(frame, size))]
            case wire.Subscribe():
                return self._subscribe(frame)
            case wire.Ready():
                return self._settle(said=True) if self.phase.state is PeerState.REGISTERING else []
            case wire.ToolResult() | wire.CommandResponse() | wire.EventInterceptResponse():
                return self._panels.watch(self.requests.take(frame))
            case wire.PanelRender() | wire.PanelClose():
                return [self._panels.take(frame)]
            case wire.Notify(message=message, level=level):
                return [Notified(next((known for known in wire.LEVELS if known == level), "info"), message)]
            case wire.ShutdownAck():
                return (
                    [Acknowledged()]
                    if self.phase.wanted
                    else [ProtocolViolation("acknowledged a shutdown that was not requested")]
                )

    def _greet(self, hello: wire.Hello, now: float) -> list[PeerEvent]:
        if self.phase.state is PeerState.CLOSING:
            return []  # Crossed the shutdown request.
        if self.phase.state is not PeerState.GREETING:
            raise ProtocolError("said hello again")
        if hello.name != self.name:
            return self.lose(f"says it is {hello.name!r}, but its manifest says {self.name!r}", now)
        self.hello = hello
        self.phase.greeted(hello, now)
        return [Greeted(hello, wire.encode_frame(self._ack))]

    def _subscribe(self, wanted: wire.Subscribe) -> list[PeerEvent]:
        unknown = self._registry.subscribe(wanted)
        promised = self.closed - self._registry.intercept
        if self._fails_closed or wanted.on_failure == "block":
            self.closed |= self._registry.intercept
        peer_events: list[PeerEvent] = [SubscribeReceived(self._registry.events, self._registry.intercept)]
        if unknown:
            peer_events.append(ProtocolViolation(f"subscribe: no such event: {', '.join(map(printable, unknown))}"))
        if promised:
            missing = ", ".join(sorted(promised))
            peer_events.append(
                ProtocolViolation(f"did not subscribe to {missing}, as promised: it stays blocked", notice=True)
            )
        return peer_events

    def _settle(self, *, said: bool) -> list[PeerEvent]:
        self.phase.settled()
        return [Settled(said)]

    def _phase_expired(self, now: float) -> list[PeerEvent]:
        match self.phase.state:
            case PeerState.GREETING:
                late = f"did not say hello within {self._deadlines.hello_s:g} s"
                return self.lose(f"{late} (--ext-deadline hello=SECONDS changes that){self.advice}", now)
            case PeerState.REGISTERING:
                return self._settle(said=False)
            case PeerState.CLOSING if self.phase.kill_next:
                self.phase.killed()
                return [Kill()]
            case PeerState.CLOSING:
                self.phase.terminated(now)
                return [Terminate()]
            case PeerState.READY | PeerState.CLOSED:
                return []

    # Faults.

    def _unknown(self, said: MalformedLine, now: float) -> list[PeerEvent]:
        """Complain about a frame of a later version; one that answers a request is a fault."""
        if self.phase.state is PeerState.GREETING or self.requests.meant(said.frame_id) is not None:
            return self._fault(msgspec.structs.replace(said, reason=f"wrote an {said.reason}"), now)
        return self._complain(said.reason, now)

    def _fault(self, said: MalformedLine, now: float) -> list[PeerEvent]:
        """Handle a malformed line: fail the request it answers, or all open requests if that is unknown."""
        reason, line = said.reason, said.line
        if self.phase.state is PeerState.GREETING:
            advice = "" if line[:1] in (b"", b"{") else "; what it prints belongs on standard error"
            return self.lose(f"did not say hello first, but {with_line(reason, line)}{advice}", now)
        meant = self.requests.meant(said.frame_id)
        failed = [self.requests.fail(meant, reason)] if meant else self.requests.fail_all(reason)
        complaint = ProtocolViolation(with_line(reason, line), notice=bool(failed) or not self._faults)
        return [complaint, *failed, *self._count_fault(now)]

    def _complain(self, reason: str, now: float) -> list[PeerEvent]:
        """Complain about a frame that is not allowed in this state; it has no effect."""
        return [ProtocolViolation(reason, notice=not self._faults), *self._count_fault(now)]

    def _count_fault(self, now: float) -> list[PeerEvent]:
        self._faults += 1
        return self.lose(f"wrote {MAX_FAULTS} bad lines", now) if self._faults == MAX_FAULTS else []


class ConnectionState:
    """Current state, and ``until``, the deadline of the frame or exit that ends it."""

    def __init__(self, deadlines: ExtensionDeadlines, now: float) -> None:
        self.state = PeerState.GREETING
        self.until: float | None = now + deadlines.hello_s
        #: Shutdown was requested: the extension may still answer in the meantime.
        self.wanted = False
        self.kill_next = False
        self._deadlines = deadlines
        self._ready_by = 0.0
        self._may_be_silent = False

    @property
    def running(self) -> bool:
        """True while requests can be sent."""
        return self.state in (PeerState.REGISTERING, PeerState.READY)

    @property
    def ending(self) -> bool:
        """True once the extension was asked or forced to end."""
        return self.state in (PeerState.CLOSING, PeerState.CLOSED)

    @property
    def deaf(self) -> bool:
        """True once input is discarded."""
        return self.state is PeerState.CLOSED or (self.state is PeerState.CLOSING and not self.wanted)

    def greeted(self, hello: wire.Hello, now: float) -> None:
        """Accept the hello and start waiting for ready."""
        self.state = PeerState.REGISTERING
        self._ready_by = now + self._deadlines.ready_s
        self._may_be_silent = bool(hello.capabilities) and _NOT_NEEDED_BY_PROMPTS.issuperset(hello.capabilities)
        self.spoke(now)

    def spoke(self, now: float) -> None:
        """Note a received frame: restarts the ``silence_s`` limit where that applies."""
        if self.state is PeerState.REGISTERING:
            self.until = self._ready_by
            if self._may_be_silent:
                self.until = min(self.until, now + self._deadlines.silence_s)

    def settled(self) -> None:
        """Stop waiting for ready: it was received, or timed out."""
        self.state, self.until = PeerState.READY, None

    def shut_down(self, now: float) -> None:
        """Start closing on request."""
        self.state, self.wanted = PeerState.CLOSING, True
        self.until, self.kill_next = now + self._deadlines.shutdown_s, False

    def terminated(self, now: float) -> None:
        """Start closing by force: `Kill` follows if SIGTERM does not help in time."""
        self.state = PeerState.CLOSING
        self.until, self.kill_next = now + self._deadlines.terminate_s, True

    def killed(self) -> None:
        """Note that SIGKILL was requested; no deadline remains."""
        self.until = None

    def ended(self) -> None:
        self.state, self.until = PeerState.CLOSED, None


class Registry:
    """Registrations and subscriptions of an extension. A ProtocolError leaves them unchanged."""

    def __init__(self) -> None:
        self.commands: dict[str, wire.RegisterCommand] = {}
        self.tools: dict[str, wire.RegisterTool] = {}
        self.events: frozenset[wire.EventName] = frozenset()
        self.intercept: frozenset[wire.Intercepted] = frozenset()
        self.subscribed = False
        self._bytes = 0

    def add_command(self, command: wire.RegisterCommand, size: int) -> None:
        """Register a command; ``size`` is the length of its line. Raise ProtocolError."""
        if command.name in self.commands:
            raise ProtocolError(f"register_command: {command.name} is already registered")
        if len(self.commands) >= MAX_COMMANDS:
            raise ProtocolError(f"register_command: more than {MAX_COMMANDS} commands")
        self._count_bytes("register_command", size)
        self.commands[command.name] = command

    def add_tool(self, tool: wire.RegisterTool, size: int) -> wire.RegisterTool:
        """Register a tool and return it with a schema that model services accept. Raise ProtocolError."""
        if tool.name in self.tools:
            raise ProtocolError(f"register_tool: {tool.name} is already registered")
        if len(self.tools) >= MAX_TOOLS:
            raise ProtocolError(f"register_tool: more than {MAX_TOOLS} tools")
        usable = msgspec.structs.replace(tool, schema=_object_schema(tool.name, tool.schema))
        self._count_bytes("register_tool", size)
        self.tools[tool.name] = usable
        return usable

    def subscribe(self, wanted: wire.Subscribe) -> list[str]:
        """Subscribe once; return the unknown event names. Raise ProtocolError."""
        if self.subscribed:
            raise ProtocolError("subscribe: it has subscribed already")
        self.subscribed = True
        self.events = frozenset(name for name in wire.EVENTS if name in wanted.events)
        self.intercept = frozenset(name for name in wire.INTERCEPTED if name in wanted.intercept)
        unknown = {*wanted.events, *wanted.intercept} - {*self.events, *self.intercept}
        return sorted(unknown)

    def _count_bytes(self, kind: str, size: int) -> None:
        if self._bytes + size > MAX_BYTES:
            raise ProtocolError(f"{kind}: more than {MAX_BYTES} bytes of registrations")
        self._bytes += size


def _object_schema(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema completed to one of an object: services refuse a whole request that contains another."""
    if schema.get("type", "object") != "object":
        raise ProtocolError(f"register_tool: the schema of {name} must be of type object")
    if not isinstance(schema.get("properties", {}), dict):
        raise ProtocolError(f"register_tool: the properties in the schema of {name} must be an object")
    if schema.keys() <= {"type", "title", "description", "$schema"}:
        # It says nothing about arguments, so any are accepted. An empty list of properties says that there are none.
        return {"type": "object", "properties": {}, "additionalProperties": True, **schema}
    return {"type": "object", "properties": {}, **schema}


class PendingRequests:
    """Open requests to an extension, by id. Ids count up and are never reused."""

    def __init__(self, name: str, deadlines: ExtensionDeadlines) -> None:
        self._name = name
        self._deadlines = deadlines
        self._count = 0
        #: Open requests, oldest first.
        self._waiting: dict[str, PendingRequest] = {}
        #: How recent requests ended.
        self._finished: dict[str, str] = {}

    def open(self, kind: Kind, subject: str, now: float, *, closed: bool = False) -> PendingRequest:
        """Open a request whose deadline follows from its kind. If a ``closed`` one fails, its event is blocked."""
        waiting = PendingRequest(self.new_id(), kind, subject, now + self._deadlines.of(kind), closed)
        self._waiting[waiting.id] = waiting
        return waiting

    def new_id(self) -> str:
        """Return an id for a request that is answered without being sent."""
        self._count += 1
        return str(self._count)

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of the open requests."""
        return min((waiting.deadline for waiting in self._waiting.values()), default=None)

    def give_up(self, call_id: str) -> None:
        """Drop a request without an answer. A later answer to it only complains."""
        if call_id in self._waiting:
            self._close(call_id, "was given up")

    def meant(self, frame_id: bytes) -> PendingRequest | None:
        """Return the open request that a malformed frame answers, by the id read from it."""
        return self._waiting.get(str(msgspec.json.decode(frame_id))) if frame_id else None

    def take(self, reply: Reply) -> list[PeerEvent]:
        """Match an answer to its request. Late, repeated or invented ones complain; one of a wrong kind fails it."""
        waiting = self._waiting.get(reply.id)
        if waiting is None:
            call_id = printable(reply.id)
            return [ProtocolViolation(f"{wire.name_of(reply)}: the call {call_id} {self._why_not(reply.id)}")]
        answer = self._answer(waiting, reply)
        if answer is None:
            wrong = f"answered a {waiting.kind} with {wire.name_of(reply)}"
            return [ProtocolViolation(wrong, notice=True), self.fail(waiting, wrong)]
        self._close(waiting.id, "was answered already")
        return [answer]

    def expire(self, now: float) -> list[PeerEvent]:
        """Fail the requests whose deadline has passed."""
        peer_events: list[PeerEvent] = []
        for waiting in [one for one in self._waiting.values() if one.deadline <= now]:
            why = self._timeout_reason(waiting)
            peer_events += [RequestTimedOut(waiting.kind, why), self.fail(waiting, why)]
        return peer_events

    def fail_all(self, why: str) -> list[PeerEvent]:
        """Fail all open requests; ``why`` continues a sentence about the extension."""
        return [self.fail(waiting, why) for waiting in tuple(self._waiting.values())]

    def fail(self, waiting: PendingRequest, why: str) -> Answered:
        """Answer a request in the extension's place; ``why`` continues a sentence about the extension."""
        self._close(waiting.id, "had failed by then")
        failure = f"extension {self._name} {why}"
        match waiting.kind:
            case "tool":
                return tool_failure(waiting.id, failure)
            case "command":
                return command_failure(waiting.id, failure)
            case "intercept":
                return Decided(waiting.id, decision_failure(failure, closed=waiting.closed))

    def _answer(self, waiting: PendingRequest, reply: Reply) -> Answered | None:
        """Return the answer to a request; None if the reply is of another kind."""
        match waiting.kind, reply:
            case "tool", wire.ToolResult():
                return tool_answer(reply, self._name)
            case "command", wire.CommandResponse():
                return command_answer(reply, self._name)
            case "intercept", wire.EventInterceptResponse():
                event = next(name for name in wire.INTERCEPTED if name == waiting.subject)
                return decision(reply, event, self._name)
            case _:
                return None

    def _close(self, call_id: str, how: str) -> None:
        """Remove a request. ``how`` explains later answers to it, in the complaint about them."""
        del self._waiting[call_id]
        self._finished[call_id] = how
        if len(self._finished) > _FINISHED_IDS_KEPT:
            del self._finished[next(iter(self._finished))]

    def _why_not(self, call_id: str) -> str:
        """Explain why no request is open under this id."""
        if call_id in self._finished:
            return self._finished[call_id]
        asked = call_id.isascii() and call_id.isdigit() and 0 < int(call_id[:20]) <= self._count
        return "was answered or given up long ago" if asked else "was never asked"

    def _timeout_reason(self, waiting: PendingRequest) -> str:
        seconds = self._deadlines.of(waiting.kind)
        return f"did not answer within {seconds:g} s: {waiting.kind} {waiting.subject}"


class PendingRequest(msgspec.Struct, frozen=True):
    """Open request: the tool, command or event it concerns, the deadline of its answer, and whether its failure blocks
    the event."""

    id: str
    kind: Kind
    subject: str
    deadline: float
    closed: bool


def encode_request(waiting: PendingRequest, frame: wire.AnyToExtension) -> OutgoingRequest:
    """Encode a request for sending."""
    return OutgoingRequest(waiting.id, wire.encode_frame(frame), waiting.deadline)


class PeerPanels:
    """Ids of the open panels. A frame about another panel may have crossed its close on the wire: it only complains."""

    def __init__(self) -> None:
        self._open: dict[str, None] = {}

    @property
    def open(self) -> tuple[str, ...]:
        """Open panels, oldest first."""
        return tuple(self._open)

    def watch(self, peer_events: Sequence[PeerEvent]) -> list[PeerEvent]:
        """Insert a `PanelOpenReceived` before each command answer that opens a panel."""
        watched: list[PeerEvent] = []
        for peer_event in peer_events:
            if isinstance(peer_event, CommandAnswered) and (panel := _panel_opened_by(peer_event)) is not None:
                self._open[panel.id] = None
                watched.append(PanelOpenReceived(panel))
            watched.append(peer_event)
        return watched

    def take(self, frame: wire.PanelRender | wire.PanelClose) -> PeerEvent:
        """Return the peer_event for a frame about a panel."""
        if frame.panel_id not in self._open:
            return ProtocolViolation(f"{wire.name_of(frame)}: no panel {printable(frame.panel_id)} is open")
        if isinstance(frame, wire.PanelRender):
            return PanelRenderReceived(frame)
        del self._open[frame.panel_id]
        return PanelCloseReceived(frame.panel_id)

    def close(self, panel_id: str) -> bool:
        """Close one panel; False if it was not open."""
        return self._open.pop(panel_id, False) is None

    def close_all(self) -> list[PeerEvent]:
        closed: list[PeerEvent] = [PanelCloseReceived(panel_id) for panel_id in self._open]
        self._open.clear()
        return closed


def _panel_opened_by(answered: CommandAnswered) -> wire.Panel | None:
    """Return the panel that a command opens; a failed command opens none."""
    response = answered.response
    return response.open_panel if response.action == "open_panel" and not response.error else None


def tool_answer(result: wire.ToolResult, extension: str) -> ToolAnswered:
    """Return a tool's result for the model: never empty, with text in place of undecodable images."""
    content: list[TextBlock | ImageBlock] = []
    is_error = result.is_error
    for block in result.content:
        made = _content_block(block, extension)
        is_error = is_error or made is None
        if made is None:
            content.append(TextBlock(f"[the data of an image from extension {extension} is not base64]"))
        elif not isinstance(made, TextBlock) or made.text:
            content.append(made)
    return ToolAnswered(result.id, tuple(content) or (TextBlock("(extension returned no content)"),), is_error)


def _content_block(block: wire.ContentBlock, extension: str) -> TextBlock | ImageBlock | None:
    match block.type:
        case "text":
            return TextBlock(block.text)
        case "image":
            try:
                return ImageBlock(block.mime_type, b64decode(block.data, validate=True))
            except (NotBase64, ValueError):
                return None
        case kind:
            return TextBlock(f"[unknown block type {kind!r} from extension {extension}]")


def command_answer(response: wire.CommandResponse, extension: str) -> CommandAnswered:
    """Return a command's response, or a failure if it lacks the field its action needs."""
    if response.action == "prompt" and not response.prompt.strip() and not response.error:
        return command_failure(response.id, f"extension {extension} answered with an empty prompt")
    if response.action == "open_panel" and response.open_panel is None and not response.error:
        return command_failure(response.id, f"extension {extension} opened a panel without content")
    return CommandAnswered(response.id, response)


def decision(response: wire.EventInterceptResponse, event: wire.Intercepted, extension: str) -> Decided:
    """Return a decision without the fields that do not apply to ``event``."""
    if response.block:
        return Decided(
            response.id,
            InterceptDecision(block=True, reason=response.reason or _DEFAULT_REASONS[event].format(extension)),
        )
    changed = InterceptDecision(
        reason=response.reason,
        modified_args=response.modified_args if event == "tool_call" else None,
        # Compatible with the first zot: an empty text replaces nothing. To show none, block.
        replace_text=response.replace_text or None if event == "assistant_message" else None,
    )
    return Decided(response.id, changed)


def tool_failure(call_id: str, failure: str) -> ToolAnswered:
    """Return the result for a tool call that the extension did not answer."""
    return ToolAnswered(call_id, (TextBlock(failure),), is_error=True, failure=failure)


def command_failure(call_id: str, failure: str) -> CommandAnswered:
    """Return the response for a command that the extension did not answer."""
    return CommandAnswered(call_id, wire.CommandResponse(call_id, error=failure), failure)


def decision_failure(failure: str, *, closed: bool) -> InterceptDecision:
    """Return the decision in place of the extension's: a block if it fails closed, else none."""
    return InterceptDecision(block=closed, reason=failure if closed else "", failure=failure)


def read(line: bytes | TooLong) -> DecodedLine:
    """Decode a line."""
    if isinstance(line, TooLong):
        return MalformedLine(f"wrote a line of more than {line.limit} bytes")
    if has_more_values(line, wire.MAX_VALUES):
        return MalformedLine(f"wrote a line with more than {wire.MAX_VALUES} values", _id_in(line), line[:QUOTED_BYTES])
    try:
        return DecodedFrame(wire.decode_from_extension(line), len(line))
    except wire.UnknownFrame as problem:
        return MalformedLine(clipped(str(problem)), problem.frame_id, line[:QUOTED_BYTES], later=True)
    except ProtocolError as problem:
        reason = f"wrote a line that is not a frame: {clipped(str(problem))}"
        return MalformedLine(reason, problem.frame_id, line[:QUOTED_BYTES])


class _Identified(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(max_length=128)] = ""


def _id_in(line: bytes) -> bytes:
    """Return the JSON-encoded id in a line that is otherwise not decoded; b"" if it has none."""
    try:
        found = msgspec.json.decode(line, type=thread_safe_type(_Identified)).id
    except UNREADABLE:
        return b""
    return msgspec.json.encode(found) if found else b""


def with_line(reason: str, line: bytes) -> str:
    """Append a quotation of ``line`` to ``reason``, unless the line is empty."""
    return f"{reason}: {clipped(line[:QUOTED_BYTES].decode('utf-8', 'replace'))}" if line else reason


def clipped(text: str) -> str:
    """Return the printable beginning of a foreign text."""
    shown = printable(text[: _CLIP + 1])
    return shown if len(shown) <= _CLIP else shown[:_CLIP] + "..."


class NoticeLimiter:
    """Token bucket for notices. Times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self._left = float(BURST)
        self._at = 0.0

    def admits(self, now: float) -> bool:
        """Count a notice. False if it exceeds the rate and must not be shown."""
        self._left = min(float(BURST), self._left + (now - self._at) * PER_S)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
