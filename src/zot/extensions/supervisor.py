"""Supervisor of one extension: start, ask, notify, restart after a crash, shut down."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from zot.extensions.log import AGAIN, Log
from zot.extensions.peer import (
    ExtensionPeer,
    GivenUp,
    Greeted,
    InterceptDecision,
    PeerBroken,
    PeerEnded,
    PeerEvent,
    ProtocolViolation,
    RequestTimedOut,
    Settled,
    SlowRequest,
    ToolAnswered,
    Unconfined,
)
from zot.extensions.peer_connection import ExtensionConnection, PeerObserver
from zot.extensions.sources import ExtensionSource, LaunchSettings
from zot.messages import TextBlock, ToolSpec, timestamp
from zot.tools.base import Output, ToolContext, ToolFailedWithOutput
from zot.tools.command_output import Excerpt
from zot.wire import extension as wire
from zot.wire.extension import Event, RegisterTool

if TYPE_CHECKING:
    from zot.extensions.manager import Manager

#: Waits are announced after this time.
PATIENCE_S = 1.0
#: Pauses before restarts after crashes; their number limits the restarts within `_WINDOW_S`.
_PAUSES_S = (0.25, 1.0, 4.0)
_WINDOW_S = 300.0
#: Time to end an extension, in addition to its own deadlines.
_SLACK_S = 4.0
Condition: TypeAlias = Literal["starting", "running", "restarting", "failed", "stopped"]


class SlowWaitNotice:
    """Context manager of a wait. Calls ``tell`` once, with the start time, if it takes longer than `PATIENCE_S`."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._tell, timestamp())

    def __exit__(self, *problem: object) -> None:
        self._timer.cancel()


class Registrations:
    """Commands and tools of an extension, by name."""

    def __init__(self) -> None:
        self.commands: dict[str, wire.RegisterCommand] = {}
        self.tools: dict[str, wire.RegisterTool] = {}

    def add(self, peer: ExtensionPeer) -> None:
        """Add the registrations of ``peer``, replacing those of the same name."""
        self.commands |= {command.name: command for command in peer.commands}
        self.tools |= {tool.name: tool for tool in peer.tools}


class SupervisedExtension(PeerObserver):
    """Running extension, restarted after crashes if its ``source`` allows that."""

    def __init__(self, source: ExtensionSource, settings: LaunchSettings, manager: Manager) -> None:
        self.name = source.name
        #: True if zot starts it; False if it connected from outside.
        self.returns = source.returns
        self.condition: Condition = "starting"
        #: Why it does not run; "" while it runs.
        self.problem = ""
        self._evidence = ""
        self._log_began = 0
        self._settings = settings
        self._manager = manager
        self.log = Log(settings.home, self.name)
        #: Its notifications, in order with the decisions that it is asked for.
        self.events = EventQueue(self)
        self._settled = asyncio.Event()
        self._closing = asyncio.Event()
        self._greeted = False
        self._restarts: deque[float] = deque(maxlen=len(_PAUSES_S))
        self._source = source
        #: The current connection; a restart makes another one.
        self.connection = self._new_connection(source.guarded())
        #: Registrations from before a crash, until the restarted extension is ready.
        self._before_crash = Registrations()
        #: Cleared during a restart.
        self._restarted = asyncio.Event()
        self._restarted.set()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"zot extension {self.name}")

    @property
    def is_over(self) -> bool:
        """True if it does not run and will not be restarted."""
        return self.condition in ("failed", "stopped")

    @property
    def explained(self) -> str:
        """Why it does not run, with the last lines of its standard error and how to see all; "" while it runs."""
        return f"{self.problem}{self._evidence}" if self.problem else ""

    @property
    def offer(self) -> Registrations:
        """Current commands and tools: none once it is over; during a restart, those from before the crash."""
        offer = Registrations()
        if not self.is_over:
            offer.commands |= self._before_crash.commands
            offer.tools |= self._before_crash.tools
            offer.add(self.connection.peer)
        return offer

    async def over(self) -> None:
        """Wait until it does not run and will not be restarted."""
        await asyncio.wait({self._task})

    async def settled(self) -> None:
        """Wait until prompts need not wait for it: it is ready, timed out, or failed."""
        await self._settled.wait()

    async def call_tool(self, tool: str, args: dict[str, Any]) -> ToolAnswered:
        """Call a tool, after a restart that is under way."""
        with self._wait(f"tool {tool}"):
            await self._restarted.wait()
            return await self.connection.call_tool(tool, args)

    async def run_command(self, command: str, args: str) -> wire.CommandResponse:
        """Run a command, after a restart that is under way."""
        with self._wait(f"command {command}"):
            await self._restarted.wait()
            return (await self.connection.run_command(command, args)).response

    def guards(self, event: wire.Intercepted) -> bool:
        """Return whether the event is blocked unless the extension allows it."""
        return event in self.connection.peer.closed

    async def decide(self, event: wire.Intercepted, **about: Any) -> InterceptDecision:
        """Return its decision about an event, or the one in its place if it cannot decide. Cancelling ends the wait."""
        if not self.connection.peer.decides(event):
            return InterceptDecision()
        with self._wait(f"intercept {event}"):
            return await self.connection.decide(event, **about)

    async def close(self) -> None:
        """Shut it down: by request, then SIGTERM, then SIGKILL. Idempotent."""
        self._closing.set()
        self.connection.shut_down()
        deadlines = self._settings.deadlines
        bound_s = deadlines.shutdown_s + 2 * deadlines.terminate_s + _SLACK_S
        await asyncio.wait({self._task}, timeout=bound_s)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        self.condition = "stopped"

    async def _run(self) -> None:
        """Run it, and restart it after crashes, until it is closed or has failed for good."""
        try:
            while True:
                await self._run_once()
                if self._closing.is_set() or not await self._may_restart():
                    return
                self.connection = self._new_connection(self.connection.peer.closed)
        finally:
            self._settled.set()
            self._restarted.set()

    async def _run_once(self) -> None:
        again = AGAIN if self._restarts else ""
        self.log.note(f"starting {again}{self.name} {self._source.version}".rstrip())
        errors = self.log.open()
        self._log_began = self.log.end()
        watching = asyncio.get_running_loop().create_task(self._watch_log(), name=f"zot extension log {self.name}")
        try:
            await self.connection.run(self._source, errors)
        finally:
            watching.cancel()
            os.close(errors)

    async def _watch_log(self) -> None:
        """Bound the size of its log while it runs."""
        self.connection.lose(await self.log.watch())

    async def _may_restart(self) -> bool:
        """Wait for the pause before a restart. False if it must not be restarted."""
        now = _now()
        recent = [at for at in self._restarts if now - at < _WINDOW_S]
        if not self._greeted or not self.returns or len(recent) == len(_PAUSES_S):
            self.condition = "failed"
            again = f"is not started again: it has crashed {len(recent) + 1} times" if recent else ""
            self.on_peer_event(GivenUp(again))
            return False
        self._before_crash = self.offer
        self._restarted.clear()
        self._restarts.append(now)
        self.condition = "restarting"
        try:
            async with asyncio.timeout(_PAUSES_S[len(recent)]):
                await self._closing.wait()
        except TimeoutError:
            return True
        return False

    def _new_connection(self, closed: frozenset[wire.Intercepted]) -> ExtensionConnection:
        return ExtensionConnection(self._source.peer(closed, now=_now()), self)

    def _wait(self, what: str) -> SlowWaitNotice:
        return SlowWaitNotice(lambda since: self.on_peer_event(SlowRequest(what, since)))

    def on_peer_event(self, peer_event: PeerEvent) -> None:
        """Update its condition and its log, then notify the manager."""
        match peer_event:
            case Greeted():
                self._greeted = True
                self.condition, self.problem, self._evidence = "running", "", ""
            case Settled():
                self._settled.set()
                self._before_crash = Registrations()
                self._restarted.set()
            case GivenUp(reason=reason) if reason:
                self.log.note(reason)
            case Unconfined(reason=reason) | ProtocolViolation(reason=reason) | RequestTimedOut(reason=reason):
                self.log.note(reason)
            case PeerBroken(reason=reason):
                self._settled.set()
                self._fail(reason)
                self.log.note(reason)
            case PeerEnded(reason=reason, wanted=wanted):
                self._settled.set()
                if not wanted and not self.problem:
                    self._fail(reason)
                self.log.note(reason)
            case _:
                pass
        self._manager.on_peer_event(self, peer_event)

    def _fail(self, reason: str) -> None:
        """Record the reason of a failure and the last lines of its standard error, before its log grows further."""
        self.problem = reason
        self._evidence = ""
        if words := self.log.last_words(self._log_began):  # Without them, the log has no more than the reason.
            log = f"zot ext logs {self.name}" if self._settings.logs_are_home else self.log.path
            self._evidence = f": {' | '.join(words)} (all of it: {log})"


def _now() -> float:
    return asyncio.get_running_loop().time()


class EventQueue:
    """Ordered event queue of ``extension``. An event that it decides about waits for `release`.

    The store may emit an event before or after the extension is asked about it: in both cases it gets the request
    before the notification.
    """

    def __init__(self, extension: SupervisedExtension) -> None:
        self._extension = extension
        self._waiting: deque[tuple[Event, str]] = deque()
        self._asked: set[tuple[str, str]] = set()

    def notify(self, event: Event, about: str) -> None:
        """Enqueue a notification; ``about`` identifies the request about the same event."""
        self._waiting.append((event, about))
        self._flush()

    def release(self, event: str, about: str) -> None:
        """Mark the requests about this event as done, and send its notification."""
        self._asked.add((event, about))
        self._flush()

    def release_all(self) -> None:
        """Send all queued notifications at the end of a run: no request about them will follow."""
        for event, _ in self._waiting:
            self._extension.connection.notify(event)
        self._waiting.clear()
        self._asked.clear()

    def _flush(self) -> None:
        while self._waiting:
            event, about = self._waiting[0]
            if self._must_be_asked_first(event) and (event.event, about) not in self._asked:
                return
            self._waiting.popleft()
            self._asked.discard((event.event, about))
            self._extension.connection.notify(event)

    def _must_be_asked_first(self, event: Event) -> bool:
        match event.event:
            case "turn_start" | "tool_call":
                return self._extension.connection.peer.decides(event.event)
            case _:
                return False


class ExtensionTool:
    """Tool of an extension. Its effects are unknown, so it never runs in parallel with other tools."""

    read_only = False

    def __init__(self, extension: SupervisedExtension, registered: RegisterTool) -> None:
        self.extension = extension
        self.spec = ToolSpec(registered.name, registered.description, registered.schema, extension.name)

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Return the extension's result, as `Tool.run` specifies."""
        answered = await self.extension.call_tool(self.spec.name, args)
        content = _within_budget(answered.content)
        if answered.is_error:
            raise ToolFailedWithOutput(content)
        return content


def _within_budget(content: Output) -> Output:
    """Return a result within the model's limit: the beginning and the end of its whole text, if that is long."""
    texts = [block.text.encode() for block in content if isinstance(block, TextBlock)]
    whole = Excerpt()
    for text in texts:
        whole.feed(text)
    if whole.is_complete:
        return content
    return (TextBlock(whole.text()), *(block for block in content if not isinstance(block, TextBlock)))
