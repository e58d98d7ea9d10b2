"""zot's side of the connection to one extension: greeting, registering, ready, closing, closed. Does no I/O.

No clock either: every time is seconds of whatever clock the shell uses, given as ``now``. A shell needs three things:

- **Bytes in.** `receive(data, now)` for what the extension wrote, `end(reason, now)` when that is over (it exited, was
  killed, closed its output), `expire(now)` when a deadline has come. Each returns *happenings* (`happenings.py`), to be
  acted upon in their order. A shell that reads long lines elsewhere cuts them with `lines` and `last_lines`, and hands
  what was `said.read` to `take`.
- **Bytes out.** `call_tool`, `invoke_command`, `ask`, `tell`, `press`, `close_panel`, `shut_down` return bytes to
  write, in the order of the calls; b"" if there is nothing to say. The three that have an answer return `Asked`, with
  its id, or the answer itself if there is no asking. `Greeted.reply` is to be written, too.
- **Time.** `next_deadline()` is when to call `expire` if nothing else happens; None if nothing is waited for. It may
  change with every call of anything.

What holds:

- What was `Asked` is answered by exactly one happening with its id, `ToolAnswered`, `CommandAnswered` or `Decided`,
  unless the shell says `give_up(id)`. If the extension does not answer in time, answers wrongly, breaks or ends,
  that is an answer too, at once, with a ``failure``.
- A failed question is allowed, or blocked if the extension fails closed: its subscription said ``on_failure`` "block",
  or its manifest did (``fails_closed``). What is in ``closed`` is blocked from the start until it has subscribed to it,
  and whenever it is not running; hand `closed` of a peer that has ended to the one that follows it.
- What ``permissions`` do not include is refused and `Complained` about. A guard that is refused stays ``closed``.
- A line that is no frame fails what it answers, by its id, or else everything that waits, since it may have been any
  of the answers. It is `Complained` about. The first line must be a good hello, and `MAX_FAULTS` bad lines are the
  end: `Broken`.
- `Terminate` and `Kill` say when to signal the process: after `Broken`, and when it does not shut down in time.
- `Settled` says that no first prompt has to wait for it any more; so do `Broken` and `Ended`.
- `Ended` is the last happening. Nothing is said to an extension after `shut_down`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from zot.errors import ProtocolError
from zot.extensions import answers
from zot.extensions.calls import Asked, asked
from zot.extensions.deadlines import Deadlines
from zot.extensions.happenings import (
    Acknowledged,
    Broken,
    CommandAnswered,
    CommandRegistered,
    Complained,
    Decision,
    Ended,
    Greeted,
    Happening,
    Kill,
    Notified,
    Settled,
    Subscribed,
    Terminate,
    ToolAnswered,
    ToolRegistered,
)
from zot.extensions.panels import Panels
from zot.extensions.permissions import Permissions, admit
from zot.extensions.phase import Phase, State
from zot.extensions.questions import Questions
from zot.extensions.quotes import with_line
from zot.extensions.registry import Registry
from zot.extensions.said import Framed, Said, Unfit, read
from zot.text import printable
from zot.wire import extension as wire
from zot.wire.lines import LineSplitter, TooLong

#: So many lines that are no frames are the end of it.
MAX_FAULTS: Final = 100


class Peer:
    """One extension, from the start of its process to its end. See the head of this file."""

    def __init__(
        self,
        name: str,
        ack: wire.HelloAck,
        *,
        now: float,
        deadlines: Deadlines | None = None,
        closed: frozenset[wire.Intercepted] = frozenset(),
        fails_closed: bool = False,
        permissions: Permissions | None = None,
        max_line_bytes: int = wire.MAX_LINE_BYTES,
    ) -> None:
        self.name = name
        self.hello: wire.Hello | None = None
        #: What may be the reason if it does not get to say hello; begins with a separator.
        self.advice = ""
        self._ack = ack
        self._deadlines = deadlines or Deadlines()
        self._fails_closed = fails_closed
        self._permissions = permissions
        self._lines = LineSplitter(max_line_bytes=max_line_bytes)
        self._registry = Registry()
        self._questions = Questions(name, self._deadlines, closed)
        self._panels = Panels()
        self._faults = 0
        self._phase = Phase(self._deadlines, now)

    # What is known of it.

    @property
    def state(self) -> State:
        """How far it has come."""
        return self._phase.state

    @property
    def running(self) -> bool:
        """True while it can be talked to."""
        return self._phase.running

    @property
    def closed(self) -> frozenset[wire.Intercepted]:
        """What is blocked when it cannot be asked."""
        return self._questions.closed

    @property
    def commands(self) -> tuple[wire.RegisterCommand, ...]:
        """What it answers to, in the order in which it said so."""
        return tuple(self._registry.commands.values())

    @property
    def tools(self) -> tuple[wire.RegisterTool, ...]:
        """What the model may call, in the order in which it said so."""
        return tuple(self._registry.tools.values())

    @property
    def panels(self) -> tuple[str, ...]:
        """The panels that are open."""
        return self._panels.open

    def hears(self, event: wire.EventName) -> bool:
        """True if it is told about ``event``."""
        return self.running and event in self._registry.events

    def decides(self, event: wire.Intercepted) -> bool:
        """True if it is to be asked about ``event``, be it that it cannot be and so blocks it."""
        return event in self.closed or (self.running and event in self._registry.intercept)

    @property
    def start_deadline(self) -> tuple[str, float]:
        """What its start waits for, by the name of its deadline, and for how many seconds."""
        if self.state is State.GREETING:
            return "hello", self._deadlines.hello_s
        return "ready", self._deadlines.ready_s

    def next_deadline(self) -> float | None:
        """Return when `expire` has something to do; None if nothing is waited for."""
        times = (self._phase.until, self._questions.next_deadline())
        return min((time for time in times if time is not None), default=None)

    # What it is told.

    def call_tool(self, tool: str, args: dict[str, Any], now: float) -> Asked | ToolAnswered:
        """Run one of its tools."""
        problem = self._why_not("tool", tool, self._registry.tools)
        if problem:
            return answers.tool_failure(self._questions.new_id(), problem)
        waiting = self._questions.open("tool", tool, now)
        return asked(waiting, wire.ToolCall(waiting.id, tool, args))

    def invoke_command(self, command: str, args: str, now: float) -> Asked | CommandAnswered:
        """Run one of its commands."""
        problem = self._why_not("command", command, self._registry.commands)
        if problem:
            return answers.command_failure(self._questions.new_id(), problem)
        waiting = self._questions.open("command", command, now)
        return asked(waiting, wire.CommandInvoked(waiting.id, command, args.strip()))

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
    ) -> Asked | Decision:
        """Let it decide about an event: about a turn by its step, about a call, about the text of a message."""
        if self.running and event in self._registry.intercept:
            waiting = self._questions.open("intercept", event, now)
            return asked(waiting, wire.EventIntercept(waiting.id, event, step, tool_id, tool_name, tool_args, text))
        if event not in self.closed:
            return Decision()
        what = f"has not subscribed to {event}" if self.running else "is not running"
        return answers.decision_failure(f"extension {self.name}, which guards this, {what}", closed=True)

    def tell(self, event: wire.Event) -> bytes:
        """Let it hear about an event, if it wants to."""
        return wire.encode_frame(event) if self.hears(event.event) else b""

    def press(self, panel_id: str, key: wire.Key, text: str = "") -> bytes:
        """Let it have a key that was pressed in one of its panels."""
        if not self.running or panel_id not in self._panels.open:
            return b""
        return wire.encode_frame(wire.PanelKey(panel_id, key, text))

    def close_panel(self, panel_id: str) -> bytes:
        """A person closed one of its panels."""
        closed = self._panels.close(panel_id)
        return wire.encode_frame(wire.PanelClose(panel_id)) if closed and self.running else b""

    def give_up(self, call_id: str) -> None:
        """Nobody waits for this any more. An answer that still comes is only noted."""
        self._questions.give_up(call_id)

    def shut_down(self, now: float) -> bytes:
        """Let it end. What it was asked may still be answered meanwhile."""
        if self._phase.ending:
            return b""
        self._phase.shut_down(now)
        return wire.encode_frame(wire.Shutdown())

    # What comes of it.

    def receive(self, data: bytes, now: float) -> list[Happening]:
        """Take what it wrote, in chunks of any size."""
        return self._take_all(self.lines(data), now)

    def lines(self, data: bytes) -> list[bytes | TooLong]:
        """Return the lines that are complete with ``data``."""
        return [] if self._phase.deaf else self._lines.feed(data)

    def last_lines(self) -> list[bytes | TooLong]:
        """Return the last line, which has no end, if there is one: nothing more comes.

        What was cut off because it was made to end is no fault of its own.
        """
        return [] if self._phase.deaf or self._phase.kill_next else self._lines.finish()

    def take(self, said: Said, now: float) -> list[Happening]:
        """Take what was read of one line, in their order."""
        if self._phase.deaf:
            return []
        if isinstance(said, Unfit):
            return self._unknown(said, now) if said.later else self._fault(said, now)
        self._phase.spoke(now)
        try:
            return self._admit(said, now)
        except ProtocolError as problem:
            return self._complain(str(problem), now)

    def end(self, reason: str, now: float, *, began: bool = True) -> list[Happening]:
        """It is over, or never ``began``, for a reason to be shown, such as "exited with 1": nothing more comes."""
        if self.state is State.CLOSED:
            return []
        happenings = self._take_all(self.last_lines(), now)
        if self.state is State.GREETING and began:
            reason = f"{reason} before it said hello{self.advice}"
        if self._phase.wanted and self._phase.kill_next:
            reason = f"{reason}: it did not end within {self._deadlines.shutdown_s:g} s of shutdown"
        happenings += self._questions.fail_all(reason)
        happenings += self._panels.close_all()
        self._phase.ended()
        return [*happenings, Ended(reason, self._phase.wanted)]

    def expire(self, now: float) -> list[Happening]:
        """Draw the consequences of the time. Any number of times."""
        happenings = self._questions.expire(now)
        if self._phase.until is not None and self._phase.until <= now:
            happenings += self._phase_expired(now)
        return happenings

    def _phase_expired(self, now: float) -> list[Happening]:
        match self.state:
            case State.GREETING:
                late = f"did not say hello within {self._deadlines.hello_s:g} s"
                return self.lose(f"{late} (--ext-deadline hello=SECONDS changes that){self.advice}", now)
            case State.REGISTERING:
                return self._settle(said=False)
            case State.CLOSING if self._phase.kill_next:
                self._phase.killed()
                return [Kill()]
            case State.CLOSING:
                self._phase.terminated(now)
                return [Terminate()]
            case State.READY | State.CLOSED:
                return []

    def _take_all(self, lines: list[bytes | TooLong], now: float) -> list[Happening]:
        return [happening for line in lines for happening in self.take(read(line), now)]

    def _admit(self, said: Framed, now: float) -> list[Happening]:
        """Take what its permissions leave of a frame. Raise ProtocolError if nothing is left, or it is not allowed."""
        frame, refused = said.frame, ""
        if self.state is not State.GREETING:
            frame, refused = admit(frame, self._permissions)
        happenings = self._act(frame, said.size, now)
        return [Complained(refused, notice=True), *happenings] if refused else happenings

    def _act(self, frame: wire.AnyFromExtension, size: int, now: float) -> list[Happening]:
        """Take one frame. Raise ProtocolError if it is not allowed here and now."""
        if isinstance(frame, wire.Hello):
            return self._greet(frame, now)
        if self.state is State.GREETING:
            return self.lose(f"did not say hello first, but {wire.name_of(frame)}", now)
        match frame:
            case wire.RegisterCommand() | wire.RegisterTool() | wire.Subscribe() | wire.Ready() if not self.running:
                return []  # It was told to end meanwhile.
            case wire.RegisterCommand():
                self._registry.add_command(frame, size)
                return [CommandRegistered(frame)]
            case wire.RegisterTool():
                return [ToolRegistered(self._registry.add_tool(frame, size))]
            case wire.Subscribe():
                return self._subscribe(frame)
            case wire.Ready():
                return self._settle(said=True) if self.state is State.REGISTERING else []
            case wire.ToolResult() | wire.CommandResponse() | wire.EventInterceptResponse():
                return self._panels.watch(self._questions.take(frame))
            case wire.PanelRender() | wire.PanelClose():
                return [self._panels.take(frame)]
            case wire.Notify(message=message, level=level):
                return [Notified(next((known for known in wire.LEVELS if known == level), "info"), message)]
            case wire.ShutdownAck():
                return (
                    [Acknowledged()] if self._phase.wanted else [Complained("acknowledged a shutdown nobody asked for")]
                )

    def _greet(self, hello: wire.Hello, now: float) -> list[Happening]:
        if self.state is State.CLOSING:
            return []  # It was told to end before it had begun.
        if self.state is not State.GREETING:
            raise ProtocolError("said hello again")
        if hello.name != self.name:
            return self.lose(f"says it is {hello.name!r}, but its manifest says {self.name!r}", now)
        self.hello = hello
        self._phase.greeted(hello, now)
        return [Greeted(hello, wire.encode_frame(self._ack))]

    def _settle(self, *, said: bool) -> list[Happening]:
        self._phase.settled()
        return [Settled(said)]

    def _subscribe(self, wanted: wire.Subscribe) -> list[Happening]:
        unknown = self._registry.subscribe(wanted)
        promised = self.closed - self._registry.intercept
        if self._fails_closed or wanted.on_failure == "block":
            self._questions.closed |= self._registry.intercept
        happenings: list[Happening] = [Subscribed(self._registry.events, self._registry.intercept)]
        if unknown:
            happenings.append(Complained(f"subscribe: no such event: {', '.join(map(printable, unknown))}"))
        if promised:
            missing = ", ".join(sorted(promised))
            happenings.append(Complained(f"did not subscribe to {missing}, as promised: it stays blocked", notice=True))
        return happenings

    # What goes wrong.

    def _unknown(self, said: Unfit, now: float) -> list[Happening]:
        """A frame of a later version harms nobody; one that answers a question was meant as an answer."""
        if self.state is State.GREETING or self._questions.meant(said.frame_id) is not None:
            return self._fault(msgspec.structs.replace(said, reason=f"wrote an {said.reason}"), now)
        return self._complain(said.reason, now)

    def _fault(self, said: Unfit, now: float) -> list[Happening]:
        """A line is no frame: fail what it answers, or else all that waits."""
        reason, line = said.reason, said.line
        if self.state is State.GREETING:
            advice = "" if line[:1] in (b"", b"{") else "; what it prints belongs on standard error"
            return self.lose(f"did not say hello first, but {with_line(reason, line)}{advice}", now)
        meant = self._questions.meant(said.frame_id)
        failed = [self._questions.fail(meant, reason)] if meant else self._questions.fail_all(reason)
        complaint = Complained(with_line(reason, line), notice=bool(failed) or not self._faults)
        return [complaint, *failed, *self._count_fault(now)]

    def _complain(self, reason: str, now: float) -> list[Happening]:
        """A frame is not allowed here and now: it does nothing."""
        return [Complained(reason, notice=not self._faults), *self._count_fault(now)]

    def _count_fault(self, now: float) -> list[Happening]:
        self._faults += 1
        return self.lose(f"wrote {MAX_FAULTS} bad lines", now) if self._faults == MAX_FAULTS else []

    def lose(self, reason: str, now: float) -> list[Happening]:
        """It cannot be talked to any more although it runs: it speaks nonsense, does not read, has closed a pipe."""
        if self._phase.ending:
            return []  # Its end has been arranged for.
        failed = self._questions.fail_all(reason)
        self._phase.terminated(now)
        return [*failed, Broken(reason), Terminate()]

    def _why_not(self, kind: str, name: str, known: dict[str, Any]) -> str | None:
        if not self.running:
            return f"extension {self.name} is not running"
        return None if name in known else f"extension {self.name} has no {kind} named {name!r}"
