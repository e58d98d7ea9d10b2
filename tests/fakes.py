"""Fakes for the collaborators of a session, each with the interface of the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

import claude
from zot.agent.compaction import AutoCompact
from zot.agent.hooks import ApprovalQuestion, Approver, CallDecision, Extensions, MessageDecision, NoExtensions
from zot.agent.loop import Agent, AgentSettings, Budget
from zot.errors import AgentError, StoreFailed, UserError
from zot.events import AgentEvent
from zot.messages import CallBlock, ImageBlock, ToolSpec
from zot.providers.anthropic import AnthropicMessages
from zot.providers.base import Deadlines, FixedKey, HttpRequest, Model, Provider, Reasoning
from zot.providers.models import Catalogue, catalogue
from zot.providers.service import RetryTiming, Service
from zot.session.history import Batch, Subscriber
from zot.session.queue import JobObserver
from zot.session.session import Session
from zot.store import Acquired, Change, FindAnswer, MemoryStore, PermissionGranted, Row, Store, StoreObserver
from zot.tools.base import Output, Tool, ToolContext

#: How long anything may take before a test fails. Never how long it does take.
PATIENCE_S = 60.0
NOON = "2026-01-01T12:00:00.000Z"
PNG = ImageBlock("image/png", b"\x89PNG")


class Points:
    """Counts the points where a run awaits; at number ``at`` it calls ``act``."""

    def __init__(self, at: int = 0, act: Callable[[], None] = lambda: None) -> None:
        self.passed = 0
        self.at = at
        self.act = act

    async def reach(self) -> None:
        self.passed += 1
        if self.passed == self.at:
            self.act()
        await asyncio.sleep(0)


Piece: TypeAlias = bytes | Exception | Callable[[], bytes] | None


class Answer(msgspec.Struct):
    """A service's answer. Pieces that are exceptions are raised, functions called; None stalls without end."""

    pieces: Iterable[Piece]
    status: int = 200
    headers: Mapping[str, str] = {}


#: An exception instead of an answer is raised before there is one; None never answers.
Script: TypeAlias = Iterable[Answer | list[bytes] | Exception | None]


class FakeTransport:
    """Answers each request with the next of ``script``, and when that is over with ``fine``."""

    def __init__(self, script: Script = (), points: Points | None = None, fine: list[bytes] | None = None) -> None:
        self._script = iter(script)
        self._fine = fine or FINE
        self._points = points or Points()
        self.requests: list[HttpRequest] = []
        self.responses: list[FakeResponse] = []
        self.closed = False

    async def send(self, request: HttpRequest, deadlines: Deadlines) -> FakeResponse:
        self.requests.append(request)
        await self._points.reach()
        answer = next(self._script, self._fine)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await forever()
            raise AssertionError("unreachable")
        response = FakeResponse(answer if isinstance(answer, Answer) else Answer(answer), self._points)
        self.responses.append(response)
        return response

    async def close(self) -> None:
        self.closed = True

    def skip_to_the_end(self) -> None:
        """Answer "fine" from now on."""
        self._script = iter(())

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for request in self.requests]


class FakeResponse:
    def __init__(self, answer: Answer, points: Points) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self._pieces = iter(answer.pieces)
        self._points = points
        self.reads = 0
        self.closed = 0

    async def read(self) -> bytes:
        self.reads += 1
        await self._points.reach()
        piece = next(self._pieces, b"")
        if isinstance(piece, Exception):
            raise piece
        if piece is None:
            await forever()
            raise AssertionError("unreachable")
        return piece if isinstance(piece, bytes) else piece()

    def close(self) -> None:
        self.closed += 1


FINE = claude.reply(claude.text("fine"))


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


class FakeTool:
    """A tool whose behaviour is an async function of its arguments."""

    read_only = False

    def __init__(self, name: str, action: Callable[[dict[str, Any], ToolContext], Any]) -> None:
        self.spec = ToolSpec(name, f"The tool {name}.", {"type": "object"})
        self._action = action

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        output: Output = await self._action(args, context)
        return output


class Guard(NoExtensions):
    """Extensions that allow everything, until a test sets one of their answers."""

    def __init__(self, *, holds: bool = False, points: Points | None = None) -> None:
        self.holds_messages = holds
        self.seen: list[AgentEvent] = []
        self.asked: list[tuple[Any, ...]] = []
        self.on_turn: Callable[[int], str | None] = lambda step: None
        self.on_call: Callable[[CallBlock, dict[str, Any]], CallDecision] = lambda call, args: CallDecision(args)
        self.on_message: Callable[[str], MessageDecision] = MessageDecision
        self.offered: Sequence[Tool] = ()
        self._points = points or Points()

    def tools(self) -> Sequence[Tool]:
        return self.offered

    async def ready(self) -> None:
        await self._points.reach()

    async def turn_starting(self, step: int) -> str | None:
        await self._points.reach()
        return self.on_turn(step)

    async def tool_called(self, call: CallBlock, args: dict[str, Any]) -> CallDecision:
        self.asked.append(("guard", call.id, args))
        await self._points.reach()
        return self.on_call(call, args)

    async def message_written(self, text: str) -> MessageDecision:
        self.asked.append(("message", text))
        await self._points.reach()
        return self.on_message(text)

    def observe(self, events: Sequence[AgentEvent]) -> None:
        self.seen.extend(events)


class Doorman:
    """An approver that answers ``reason`` to everything, or asks a person."""

    timeout_s = PATIENCE_S

    def __init__(self, reason: str | None = None, *, asks: bool = False) -> None:
        self.reason = reason
        self.asks = asks
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def judge(self, call: CallBlock, args: dict[str, Any]) -> ApprovalQuestion | str | None:
        self.asked.append((call.id, args))
        return ApprovalQuestion(call, args, f"{call.name}!") if self.asks else self.reason

    def remember(self, question: ApprovalQuestion) -> PermissionGranted | None:
        return None

    def recall(self, allowed: PermissionGranted) -> None:
        return

    def remembered(self) -> Sequence[PermissionGranted]:
        return ()

    def forget(self, allowed: PermissionGranted) -> PermissionGranted:
        raise UserError("no such permission is stored")


class Listener(Subscriber):
    """A subscriber that records everything. While ``full``, a run waits in `room`."""

    can_approve = full = False

    def __init__(self, points: Points | None = None) -> None:
        self.events: list[AgentEvent] = []
        self.batches: list[Batch] = []
        self.full = points is not None
        self.on_event: Callable[[AgentEvent], None] = lambda event: None
        self._points = points or Points()

    def deliver(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.events.extend(batch.events)
        for event in batch.events:
            self.on_event(event)

    async def room(self) -> None:
        await self._points.reach()


class ListStore(MemoryStore):
    """A store that keeps every row, and refuses the append numbered ``fails_at``, or from there on ``for_good``."""

    def __init__(self, *, fails_at: int = 0, error: Exception | None = None, for_good: bool = False) -> None:
        super().__init__(keep=None)
        self.rows: list[Row] = []
        self.appends = 0
        self._fails_at = fails_at
        self._error = error
        self._for_good = for_good

    def append(self, rows: Sequence[Row], *, run: int, ends: bool = False) -> int:
        self.appends += 1
        is_broken = self.appends == self._fails_at or (self._for_good and self.appends > self._fails_at)
        if self._error is not None and is_broken:
            raise self._error
        self.rows.extend(rows)
        return super().append(rows, run=run, ends=ends)

    def mend(self) -> None:
        """Accept every append from now on."""
        self._error = None


class Reports(JobObserver):
    """Records the callbacks of a job."""

    def __init__(
        self, started: Callable[[], object] = lambda: None, dropped: Callable[[AgentError], object] = lambda why: None
    ) -> None:
        self._started = started
        self._dropped = dropped

    def started(self) -> None:
        self._started()

    def dropped(self, why: AgentError) -> None:
        self._dropped(why)


class SlowStore:
    """A store whose disk the test controls: `commit` makes rows durable, `lose` drops them."""

    full = False
    is_broken = False
    shared = False
    keeps = False
    is_continued = False
    left_behind = False
    epoch = 1
    last_run = 0

    def __init__(self) -> None:
        self.last_seq = 0
        self.runs: list[int] = []
        self._safe_seq = 0
        self._changed = asyncio.Event()
        self._problem: StoreFailed | None = None
        self._observer = StoreObserver()

    async def begin(self, find_answer: FindAnswer | None = None) -> Acquired:
        return Acquired()

    def end(self, *, parked: bool = False) -> None:
        pass

    def append(self, rows: Sequence[Row], *, run: int, ends: bool = False) -> int:
        self.last_seq += len(rows)
        self.runs.append(run)
        return self.last_seq - len(rows) + 1

    def watch(self, observer: StoreObserver) -> None:
        self._observer = observer

    def commit(self, up_to: int | None = None) -> None:
        """Make all rows, or those up to a number, durable."""
        self._safe_seq = self.last_seq if up_to is None else up_to
        self._observer.on_safe(self._safe_seq)
        self._changed.set()

    def lose(self, problem: StoreFailed) -> None:
        """Lose the rows that are not durable."""
        self._problem = problem
        self._observer.on_failed(problem)
        self._changed.set()

    async def room(self) -> None:
        """The store always has room."""

    async def settled(self) -> None:
        while self._safe_seq < self.last_seq:
            if self._problem is not None:
                raise self._problem
            self._changed.clear()
            await self._changed.wait()

    async def synced(self) -> None:
        await self.settled()

    async def read(self, after: int, limit: int) -> list[tuple[int, Row]]:
        raise NotImplementedError

    async def newest(self) -> Sequence[tuple[int, Row]]:
        raise NotImplementedError

    async def changes(self) -> Sequence[tuple[int, Change]]:
        raise NotImplementedError

    async def changes_with_failures(self) -> Sequence[Row]:
        raise NotImplementedError

    async def content(self, digest: str) -> bytes | None:
        raise NotImplementedError

    async def fork(self, new_id: str, at: int) -> None:
        raise NotImplementedError


KEY = FixedKey("sk-test-1234")


async def no_sleep(seconds: float) -> None:
    await asyncio.sleep(0)


def service(transport: FakeTransport, **settings: Any) -> Service:
    """The real provider over a fake network, with retries without sleep and jitter."""
    api = AnthropicMessages(base_url="https://api.test", origin="anthropic")
    given = {name: settings.pop(name) for name in RetryTiming.__struct_fields__ if name in settings}
    return Service("anthropic", api, transport, **{"key": KEY, "retries": at_once(**given), **settings})


def at_once(**timing: Any) -> RetryTiming:
    """Retries without sleep and jitter."""
    return RetryTiming(**{"sleep": no_sleep, "jitter": lambda: 0.5, **timing})


def open_session(
    provider: FakeTransport | Provider,
    *,
    tools: Sequence[Tool] = (),
    models: Sequence[Model] = catalogue("anthropic").models,
    model: str = "claude-sonnet-4-5",
    max_steps: int = 50,
    budget: Budget | None = None,
    reasoning: Reasoning = "off",
    extensions: Extensions | None = None,
    approver: Approver | None = None,
    store: Store | None = None,
    auto_compact: AutoCompact | None = None,
) -> Session:
    agent = Agent(
        service(provider) if isinstance(provider, FakeTransport) else provider,
        Catalogue("anthropic", tuple(models)),
        AgentSettings(
            model_id=model,
            system="You are a test.",
            cwd="/",
            env={},
            max_steps=max_steps,
            budget=budget or Budget(),
            reasoning=reasoning,
            auto_compact=auto_compact or AutoCompact(),
        ),
        tools=tools,
        extensions=extensions,
        approver=approver,
    )
    return Session(agent, store, now=lambda: NOON)


def listen(session: Session, points: Points | None = None) -> Listener:
    listener = Listener(points)
    session.history.subscribe(listener)
    return listener


async def finish(session: Session) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await session.worker.finish()


async def talk(session: Session, text: str = "hi", images: Sequence[ImageBlock] = ()) -> list[AgentEvent]:
    """Run one prompt to its end and return its events."""
    listener = Listener()
    unsubscribe = session.history.subscribe(listener)
    session.prompt(text, images)
    await finish(session)
    unsubscribe()
    return listener.events


def kinds(events: Iterable[AgentEvent]) -> list[str]:
    """The names of events, with the stop reason of each turn."""
    return [_kind(event) for event in events]


def _kind(event: AgentEvent) -> str:
    name = str(event.__struct_config__.tag)
    return f"{name} {event.stop}" if name == "turn_end" and hasattr(event, "stop") else name
