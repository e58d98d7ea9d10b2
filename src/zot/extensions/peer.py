"""The extension protocol's state machine. Does no I/O and has no clock."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from zot.encoding import learned
from zot.errors import ProtocolError
from zot.extensions.permissions import Permissions, admit
from zot.messages import ImageBlock, TextBlock
from zot.text import printable
from zot.wire import extension as wire
from zot.wire.extension import (
    EVENTS,
    INTERCEPTED,
    AnyToExtension,
    CommandResponse,
    ContentBlock,
    EventInterceptResponse,
    EventName,
    Hello,
    Intercepted,
    Level,
    Panel,
    PanelRender,
    RegisterCommand,
    RegisterTool,
    Subscribe,
    ToolResult,
    encode_frame,
)
from zot.wire.lines import LineSplitter, TooLong, has_more_values

#: What is asked: a tool, a command, or a decision.
Kind: TypeAlias = Literal["tool", "command", "intercept"]
#: How many ids are remembered after their end, to tell a late answer from an invented one.
_REMEMBERED: Final = 256


class Waiting(msgspec.Struct, frozen=True):
    """One question: to which tool or command, or about which event, and until when it may be answered."""

    id: str
    kind: Kind
    subject: str
    deadline: float


class Asked(msgspec.Struct, frozen=True):
    """A question on its way: its id, the bytes to write, and when it will have been answered at the latest."""

    id: str
    data: bytes
    deadline: float


def asked(waiting: Waiting, frame: AnyToExtension) -> Asked:
    """Return a question as the frame that asks it."""
    return Asked(waiting.id, encode_frame(frame), waiting.deadline)


class Calls:
    """Questions by id. Ids count up and are never used twice."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: dict[str, Waiting] = {}
        self._over: dict[str, str] = {}

    def open(self, kind: Kind, subject: str, deadline: float) -> Waiting:
        """Ask something."""
        waiting = Waiting(self.new_id(), kind, subject, deadline)
        self._waiting[waiting.id] = waiting
        return waiting

    def new_id(self) -> str:
        """Return an id for something that is not waited for."""
        self._count += 1
        return str(self._count)

    def get(self, call_id: str) -> Waiting | None:
        """Return what waits under an id."""
        return self._waiting.get(call_id)

    def close(self, waiting: Waiting, how: str) -> None:
        """It is over. ``how`` is what is said of an answer that comes now."""
        del self._waiting[waiting.id]
        self._over[waiting.id] = how
        if len(self._over) > _REMEMBERED:
            del self._over[next(iter(self._over))]

    def why_not(self, call_id: str) -> str:
        """Return why nothing waits under an id."""
        if call_id in self._over:
            return self._over[call_id]
        asked = call_id.isascii() and call_id.isdigit() and 0 < int(call_id[:20]) <= self._count
        return "was answered or given up long ago" if asked else "was never asked"

    def all(self) -> tuple[Waiting, ...]:
        """Return all that wait, in the order in which they were asked."""
        return tuple(self._waiting.values())

    def due(self, now: float) -> tuple[Waiting, ...]:
        """Return those whose time is up."""
        return tuple(waiting for waiting in self._waiting.values() if waiting.deadline <= now)

    def next_deadline(self) -> float | None:
        """Return when the next one's time is up."""
        return min((waiting.deadline for waiting in self._waiting.values()), default=None)


class Deadlines(msgspec.Struct, frozen=True):
    """In seconds, each settable with ``--ext-deadline``. ``silence_s`` is for those with only commands and panels."""

    hello_s: float = 30.0
    ready_s: float = 3.0
    silence_s: float = 0.25
    tool_s: float = 60.0
    intercept_s: float = 5.0
    command_s: float = 30.0
    shutdown_s: float = 2.0
    terminate_s: float = 1.0

    def of(self, kind: Kind) -> float:
        """Return how long an answer may take."""
        return {"tool": self.tool_s, "command": self.command_s, "intercept": self.intercept_s}[kind]


#: What asks for no more than this can be used before it is complete.
_UNHURRIED: Final = frozenset({"commands", "panels"})


class State(Enum):
    """How far a connection has come."""

    GREETING = "greeting"
    REGISTERING = "registering"
    READY = "ready"
    CLOSING = "closing"
    CLOSED = "closed"


class Phase:
    """A ``state``, and ``until`` when it is waited for what ends it: hello, ready, or that it stops."""

    def __init__(self, deadlines: Deadlines, now: float) -> None:
        self.state = State.GREETING
        self.until: float | None = now + deadlines.hello_s
        #: It was told to end, and may have its say meanwhile.
        self.wanted = False
        self.kill_next = False
        self._deadlines = deadlines
        self._settle_at = 0.0
        self._unhurried = False

    @property
    def running(self) -> bool:
        """True while it can be talked to."""
        return self.state in (State.REGISTERING, State.READY)

    @property
    def ending(self) -> bool:
        """True once its end has been arranged for."""
        return self.state in (State.CLOSING, State.CLOSED)

    @property
    def deaf(self) -> bool:
        """True once it does not matter what it says."""
        return self.state is State.CLOSED or (self.state is State.CLOSING and not self.wanted)

    def greeted(self, hello: Hello, now: float) -> None:
        """It said who it is."""
        self.state = State.REGISTERING
        self._settle_at = now + self._deadlines.ready_s
        self._unhurried = bool(hello.capabilities) and _UNHURRIED.issuperset(hello.capabilities)
        self.spoke(now)

    def spoke(self, now: float) -> None:
        """It said something: wait for ready; if it has nothing a prompt needs, no longer than a moment of silence."""
        if self.state is State.REGISTERING:
            self.until = self._settle_at
            if self._unhurried:
                self.until = min(self.until, now + self._deadlines.silence_s)

    def settled(self) -> None:
        """It is ready, or took too long for it."""
        self.state, self.until = State.READY, None

    def shut_down(self, now: float) -> None:
        """It is told to end."""
        self.state, self.wanted = State.CLOSING, True
        self.until, self.kill_next = now + self._deadlines.shutdown_s, False

    def terminated(self, now: float) -> None:
        """It is made to end, and will be killed if that does not help."""
        self.state = State.CLOSING
        self.until, self.kill_next = now + self._deadlines.terminate_s, True

    def killed(self) -> None:
        """It is killed. There is nothing else to do."""
        self.until = None

    def ended(self) -> None:
        """It is over."""
        self.state, self.until = State.CLOSED, None


_CLIP: Final = 200
#: More of a line is never quoted.
QUOTED_BYTES: Final = 4 * _CLIP


def with_line(reason: str, line: bytes) -> str:
    """Return a reason with the line that it is about, if there is one."""
    return f"{reason}: {clipped(line[:QUOTED_BYTES].decode('utf-8', 'replace'))}" if line else reason


def clipped(text: str) -> str:
    """Return the beginning of what others wrote."""
    shown = printable(text[: _CLIP + 1])
    return shown if len(shown) <= _CLIP else shown[:_CLIP] + "..."


class _Identified(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(max_length=128)] = ""


class Framed(msgspec.Struct, frozen=True):
    """A frame, and how long its line was."""

    frame: wire.AnyFromExtension
    size: int


class Unfit(msgspec.Struct, frozen=True):
    """A line that is no frame: what the extension did, what it answers, if that can be read, and how it begins.

    ``later`` if all that is wrong with it is that this version does not know its type.
    """

    reason: str
    frame_id: bytes = b""
    line: bytes = b""
    later: bool = False


Said: TypeAlias = Framed | Unfit


def read(line: bytes | TooLong) -> Said:
    """Read a line."""
    if isinstance(line, TooLong):
        return Unfit(f"wrote a line of more than {line.limit} bytes")
    if has_more_values(line, wire.MAX_VALUES):
        return Unfit(f"wrote a line with more than {wire.MAX_VALUES} values", _id_in(line), line[:QUOTED_BYTES])
    try:
        return Framed(wire.decode_from_extension(line), len(line))
    except wire.UnknownFrame as problem:
        return Unfit(clipped(str(problem)), problem.frame_id, line[:QUOTED_BYTES], later=True)
    except ProtocolError as problem:
        reason = f"wrote a line that is no frame: {clipped(str(problem))}"
        return Unfit(reason, problem.frame_id, line[:QUOTED_BYTES])


def _id_in(line: bytes) -> bytes:
    """Return the id in a line, as JSON, without looking at anything else; b"" if there is none."""
    try:
        found = msgspec.json.decode(line, type=learned(_Identified)).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return b""
    return msgspec.json.encode(found) if found else b""


class Greeted(msgspec.Struct, frozen=True):
    """It said who it is. ``reply`` is to be written to it at once."""

    hello: Hello
    reply: bytes


class CommandRegistered(msgspec.Struct, frozen=True):
    """It answers to a command."""

    command: RegisterCommand


class ToolRegistered(msgspec.Struct, frozen=True):
    """It has a tool, from the next turn on if it is late."""

    tool: RegisterTool


class Subscribed(msgspec.Struct, frozen=True):
    """What it will hear, and what it will be asked."""

    events: frozenset[EventName]
    intercept: frozenset[Intercepted]


class Settled(msgspec.Struct, frozen=True):
    """Nobody has to wait for it any more. ``said`` is false if it did not say `ready`, which is fine."""

    said: bool


class ToolAnswered(msgspec.Struct, frozen=True):
    """A tool's result, ready for the model. ``failure`` is why it is not the extension's own; "" if it is."""

    id: str
    content: tuple[TextBlock | ImageBlock, ...]
    is_error: bool = False
    failure: str = ""


class CommandAnswered(msgspec.Struct, frozen=True):
    """What a command wants done. A ``failure`` also stands in its ``error``."""

    id: str
    response: CommandResponse
    failure: str = ""


class Decision(msgspec.Struct, frozen=True):
    """What becomes of what an extension was asked about: as it is, changed, or blocked for a reason.

    ``modified_args`` is only ever there for a tool call, ``replace_text`` only for a message, neither if it is blocked.
    Without a block, ``reason`` is a note. ``failure`` is why this is not the extension's own decision; "" if it is.
    """

    block: bool = False
    reason: str = ""
    modified_args: dict[str, Any] | None = None
    replace_text: str | None = None
    failure: str = ""


class Decided(msgspec.Struct, frozen=True):
    """A question has its decision."""

    id: str
    decision: Decision


class Notified(msgspec.Struct, frozen=True):
    """A person should read this."""

    level: Level
    message: str


class PanelOpened(msgspec.Struct, frozen=True):
    """A panel is open from now on. The `CommandAnswered` that opens it follows."""

    panel: Panel


class PanelRendered(msgspec.Struct, frozen=True):
    """An open panel shows something else."""

    panel: PanelRender


class PanelClosed(msgspec.Struct, frozen=True):
    """An open panel is over: it said so, or it has ended."""

    panel_id: str


class Complained(msgspec.Struct, frozen=True):
    """It did something wrong. Belongs into its log; with ``notice`` a person should see it, too."""

    reason: str
    notice: bool = False


class Late(msgspec.Struct, frozen=True):
    """It did not answer in time. The failure that stands in for its answer follows."""

    kind: Kind
    reason: str


class Awaited(msgspec.Struct, frozen=True):
    """Somebody has waited for it for a while: for what, such as "tool weather", and since when."""

    what: str
    since: str


class GivenUp(msgspec.Struct, frozen=True):
    """It will not be started again, and has nothing to offer any more. ``reason`` is "" if that was told before."""

    reason: str


class Acknowledged(msgspec.Struct, frozen=True):
    """It has heard that it shall end."""


class Broken(msgspec.Struct, frozen=True):
    """It cannot be talked to. `Terminate` follows."""

    reason: str


class Terminate(msgspec.Struct, frozen=True):
    """Ask its process to end: SIGTERM."""


class Kill(msgspec.Struct, frozen=True):
    """End its process: SIGKILL."""


class Ended(msgspec.Struct, frozen=True):
    """It is over. The last happening there is. ``wanted`` if it was told to shut down."""

    reason: str
    wanted: bool


Answered: TypeAlias = ToolAnswered | CommandAnswered | Decided
Happening: TypeAlias = (
    Greeted
    | CommandRegistered
    | ToolRegistered
    | Subscribed
    | Settled
    | Answered
    | Notified
    | PanelOpened
    | PanelRendered
    | PanelClosed
    | Complained
    | Late
    | Awaited
    | GivenUp
    | Acknowledged
    | Broken
    | Terminate
    | Kill
    | Ended
)


#: What is said of a block for which the extension gave no reason.
_BLOCKED: Final[dict[Intercepted, str]] = {
    "tool_call": "tool call refused by extension {}",
    "turn_start": "turn blocked by extension {}",
    "assistant_message": "message held back by extension {}",
}


def tool_answer(result: ToolResult, extension: str) -> ToolAnswered:
    """Return a tool's result as the model can be told it: never empty, and wrong images as words."""
    content: list[TextBlock | ImageBlock] = []
    is_error = result.is_error
    for block in result.content:
        made = _block(block, extension)
        is_error = is_error or made is None
        if made is None:
            content.append(TextBlock(f"[the data of an image from extension {extension} is not base64]"))
        elif not isinstance(made, TextBlock) or made.text:
            content.append(made)
    return ToolAnswered(result.id, tuple(content) or (TextBlock("(extension returned no content)"),), is_error)


def _block(block: ContentBlock, extension: str) -> TextBlock | ImageBlock | None:
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


def command_answer(response: CommandResponse, extension: str) -> CommandAnswered:
    """Return what a command wants done; if it lacks what its action needs, a failure."""
    if response.action == "prompt" and not response.prompt.strip() and not response.error:
        return command_failure(response.id, f"extension {extension} answered with an empty prompt")
    if response.action == "open_panel" and response.open_panel is None and not response.error:
        return command_failure(response.id, f"extension {extension} opened a panel without saying what is in it")
    return CommandAnswered(response.id, response)


def decision(response: EventInterceptResponse, event: Intercepted, extension: str) -> Decided:
    """Return a decision with what it may have for ``event``."""
    if response.block:
        return Decided(response.id, Decision(block=True, reason=response.reason or _BLOCKED[event].format(extension)))
    changed = Decision(
        reason=response.reason,
        modified_args=response.modified_args if event == "tool_call" else None,
        # As the first zot has it: an empty text replaces nothing. Block to show none.
        replace_text=response.replace_text or None if event == "assistant_message" else None,
    )
    return Decided(response.id, changed)


def tool_failure(call_id: str, failure: str) -> ToolAnswered:
    """Return what the model hears of a call that the extension did not answer."""
    return ToolAnswered(call_id, (TextBlock(failure),), is_error=True, failure=failure)


def command_failure(call_id: str, failure: str) -> CommandAnswered:
    """Return what becomes of a command that the extension did not answer."""
    return CommandAnswered(call_id, CommandResponse(call_id, error=failure), failure)


def decision_failure(failure: str, *, closed: bool) -> Decision:
    """Return what holds when the extension did not decide: blocked if it fails closed, else allowed."""
    return Decision(block=closed, reason=failure if closed else "", failure=failure)


Reply: TypeAlias = wire.ToolResult | wire.CommandResponse | wire.EventInterceptResponse


class Questions:
    """What an extension was asked. ``closed`` are the events that are blocked when it does not decide about them."""

    def __init__(self, name: str, deadlines: Deadlines, closed: frozenset[wire.Intercepted]) -> None:
        self.closed = closed
        self._name = name
        self._deadlines = deadlines
        self._calls = Calls()

    def open(self, kind: Kind, subject: str, now: float) -> Waiting:
        """Ask something: of a tool, of a command, about an event."""
        return self._calls.open(kind, subject, now + self._deadlines.of(kind))

    def new_id(self) -> str:
        """Return an id for a question that has its answer already."""
        return self._calls.new_id()

    def next_deadline(self) -> float | None:
        """Return when `expire` has something to do."""
        return self._calls.next_deadline()

    def give_up(self, call_id: str) -> None:
        """Nobody waits for this any more."""
        waiting = self._calls.get(call_id)
        if waiting is not None:
            self._calls.close(waiting, "was given up")

    def meant(self, frame_id: bytes) -> Waiting | None:
        """Return the question that a wrong frame was to answer, by what could be read of its id."""
        return self._calls.get(str(msgspec.json.decode(frame_id))) if frame_id else None

    def all(self) -> tuple[Waiting, ...]:
        """Return those that wait, in the order in which they were asked."""
        return self._calls.all()

    def take(self, reply: Reply) -> list[Happening]:
        """Take an answer: late, twice or invented ones are only noted, one of a wrong kind is a failure."""
        waiting = self._calls.get(reply.id)
        if waiting is None:
            call_id = printable(reply.id)
            return [Complained(f"{wire.name_of(reply)}: the call {call_id} {self._calls.why_not(reply.id)}")]
        answer = self._answer(waiting, reply)
        if answer is None:
            wrong = f"answered a {waiting.kind} with {wire.name_of(reply)}"
            return [Complained(wrong, notice=True), self.fail(waiting, wrong)]
        self._calls.close(waiting, "was answered already")
        return [answer]

    def expire(self, now: float) -> list[Happening]:
        """Fail those whose time is up, and say so."""
        happenings: list[Happening] = []
        for waiting in self._calls.due(now):
            why = self._too_slow(waiting)
            happenings += [Late(waiting.kind, why), self.fail(waiting, why)]
        return happenings

    def fail_all(self, why: str) -> list[Happening]:
        """Fail all that wait: the extension ``why``."""
        return [self.fail(waiting, why) for waiting in self._calls.all()]

    def fail(self, waiting: Waiting, why: str) -> Answered:
        """Answer in the extension's place, because it ``why``."""
        self._calls.close(waiting, "had failed by then")
        failure = f"extension {self._name} {why}"
        match waiting.kind:
            case "tool":
                return tool_failure(waiting.id, failure)
            case "command":
                return command_failure(waiting.id, failure)
            case "intercept":
                return Decided(waiting.id, decision_failure(failure, closed=waiting.subject in self.closed))

    def _answer(self, waiting: Waiting, reply: Reply) -> Answered | None:
        """Return an answer fit for what was asked; None if it is of another kind."""
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

    def _too_slow(self, waiting: Waiting) -> str:
        seconds = self._deadlines.of(waiting.kind)
        return f"did not answer within {seconds:g} s: {waiting.kind} {waiting.subject}"


MAX_COMMANDS: Final = 256
MAX_TOOLS: Final = 256
#: All that it registers, as it stood on the wire: tools are told to the model again and again.
MAX_BYTES: Final = 1024 * 1024


class Registry:
    """What is known of an extension. What does not fit is a ProtocolError, and changes nothing."""

    def __init__(self) -> None:
        self.commands: dict[str, RegisterCommand] = {}
        self.tools: dict[str, RegisterTool] = {}
        self.events: frozenset[EventName] = frozenset()
        self.intercept: frozenset[Intercepted] = frozenset()
        self.subscribed = False
        self._bytes = 0

    def add_command(self, command: RegisterCommand, size: int) -> None:
        """Take a command; ``size`` is how long its line was."""
        if command.name in self.commands:
            raise ProtocolError(f"register_command: {command.name} is already registered")
        if len(self.commands) >= MAX_COMMANDS:
            raise ProtocolError(f"register_command: more than {MAX_COMMANDS} commands")
        self._weigh("register_command", size)
        self.commands[command.name] = command

    def add_tool(self, tool: RegisterTool, size: int) -> RegisterTool:
        """Take a tool, and return it with a schema that model services take."""
        if tool.name in self.tools:
            raise ProtocolError(f"register_tool: {tool.name} is already registered")
        if len(self.tools) >= MAX_TOOLS:
            raise ProtocolError(f"register_tool: more than {MAX_TOOLS} tools")
        usable = msgspec.structs.replace(tool, schema=_usable(tool.name, tool.schema))
        self._weigh("register_tool", size)
        self.tools[tool.name] = usable
        return usable

    def subscribe(self, wanted: Subscribe) -> list[str]:
        """Take a subscription; return the names in it that mean nothing here."""
        if self.subscribed:
            raise ProtocolError("subscribe: it has subscribed already")
        self.subscribed = True
        self.events = frozenset(name for name in EVENTS if name in wanted.events)
        self.intercept = frozenset(name for name in INTERCEPTED if name in wanted.intercept)
        unknown = {*wanted.events, *wanted.intercept} - {*self.events, *self.intercept}
        return sorted(unknown)

    def _weigh(self, kind: str, size: int) -> None:
        if self._bytes + size > MAX_BYTES:
            raise ProtocolError(f"{kind}: more than {MAX_BYTES} bytes of registrations")
        self._bytes += size


def _usable(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that describes an object. One that does not would make services refuse the whole request."""
    if schema.get("type", "object") != "object":
        raise ProtocolError(f"register_tool: the schema of {name} must be of type object")
    if not isinstance(schema.get("properties", {}), dict):
        raise ProtocolError(f"register_tool: the properties in the schema of {name} must be an object")
    return {"type": "object", "properties": {}, **schema}


class Panels:
    """Panels by id. What is said about one that is not open has crossed its end on the way, and is only noted."""

    def __init__(self) -> None:
        self._open: dict[str, None] = {}

    @property
    def open(self) -> tuple[str, ...]:
        """Return those that are open, the oldest first."""
        return tuple(self._open)

    def watch(self, happenings: Sequence[Happening]) -> list[Happening]:
        """Return ``happenings`` with the panels that commands among them open, each before its command's answer."""
        watched: list[Happening] = []
        for happening in happenings:
            if isinstance(happening, CommandAnswered) and (panel := _opened(happening)) is not None:
                self._open[panel.id] = None
                watched.append(PanelOpened(panel))
            watched.append(happening)
        return watched

    def take(self, frame: wire.PanelRender | wire.PanelClose) -> Happening:
        """Take what the extension says about a panel."""
        if frame.panel_id not in self._open:
            return Complained(f"{wire.name_of(frame)}: no panel {printable(frame.panel_id)} is open")
        if isinstance(frame, wire.PanelRender):
            return PanelRendered(frame)
        del self._open[frame.panel_id]
        return PanelClosed(frame.panel_id)

    def close(self, panel_id: str) -> bool:
        """Close one; False if it was not open."""
        return self._open.pop(panel_id, False) is None

    def close_all(self) -> list[Happening]:
        """Close them all: the extension has ended."""
        closed: list[Happening] = [PanelClosed(panel_id) for panel_id in self._open]
        self._open.clear()
        return closed


def _opened(answered: CommandAnswered) -> wire.Panel | None:
    """Return the panel that a command opens; one that failed opens none."""
    response = answered.response
    return response.open_panel if response.action == "open_panel" and not response.error else None


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
            return tool_failure(self._questions.new_id(), problem)
        waiting = self._questions.open("tool", tool, now)
        return asked(waiting, wire.ToolCall(waiting.id, tool, args))

    def invoke_command(self, command: str, args: str, now: float) -> Asked | CommandAnswered:
        """Run one of its commands."""
        problem = self._why_not("command", command, self._registry.commands)
        if problem:
            return command_failure(self._questions.new_id(), problem)
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
        return decision_failure(f"extension {self.name}, which guards this, {what}", closed=True)

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


#: How many notices are shown at once, and how many a second after that.
BURST: Final = 1000
PER_S: Final = 100


class Pace:
    """A token bucket. Every time is seconds of whatever clock the shell uses."""

    def __init__(self) -> None:
        self._left = float(BURST)
        self._at = 0.0

    def admits(self, now: float) -> bool:
        """Count one more notice. False if it is one too many and must not be shown."""
        self._left = min(float(BURST), self._left + (now - self._at) * PER_S)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
