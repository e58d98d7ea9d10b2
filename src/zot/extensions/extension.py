"""One extension of a session: started, asked, told, restarted when it crashes, and ended with the session."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Any, Literal, Protocol, TypeAlias

from zot.errors import UserError
from zot.extensions.discovery import Located
from zot.extensions.happenings import (
    Broken,
    CommandAnswered,
    Complained,
    Decided,
    Decision,
    Ended,
    Greeted,
    Happening,
    Late,
    Settled,
    ToolAnswered,
)
from zot.extensions.log import Log
from zot.extensions.manifest import Manifest
from zot.extensions.peer import Peer
from zot.extensions.process import ExtensionProcess
from zot.extensions.surroundings import Start, Surroundings
from zot.tools.process import Child, Streams
from zot.wire import extension as wire

#: How often one that crashes is started again within `_WINDOW_S`, and after which pauses.
_PAUSES_S = (0.25, 1.0, 4.0)
_WINDOW_S = 300.0
#: How often its log is looked at.
_LOG_S = 10.0
#: Beyond its own deadlines, the time that ending it may take.
_SLACK_S = 4.0

Condition: TypeAlias = Literal["starting", "running", "restarting", "failed", "stopped"]


class Audience(Protocol):
    """Who hears what an extension does, beside answering."""

    def happened(self, extension: Extension, happening: Happening) -> None:
        """Something came of it."""


class Extension:
    """Keeps one extension running. ``manifest`` and ``directory`` say which."""

    def __init__(self, located: Located, around: Surroundings, audience: Audience) -> None:
        assert located.manifest is not None
        self.manifest: Manifest = located.manifest
        self.name = located.manifest.name
        self.directory = located.directory
        self.condition: Condition = "starting"
        #: Why it does not run, if it does not.
        self.problem = ""
        self._around = around
        self._audience = audience
        self._log = Log(around.home, self.name)
        self._settled = asyncio.Event()
        self._closing = asyncio.Event()
        self._greeted = False
        self._restarts: deque[float] = deque(maxlen=len(_PAUSES_S))
        self._broken = located.problem if located.standing == "broken" else ""
        self._start = Start(self.manifest, self.directory, around)
        self._process = self._next_process(self._start.guarded())
        self._living = asyncio.get_running_loop().create_task(self._live(), name=f"zot extension {self.name}")

    @property
    def peer(self) -> Peer:
        """What it has said it is and wants."""
        return self._process.peer

    async def settled(self) -> None:
        """Wait until a prompt need not wait for it: it is ready, or took too long, or failed."""
        await self._settled.wait()

    async def call_tool(self, tool: str, args: dict[str, Any]) -> ToolAnswered:
        """Run one of its tools."""
        process = self._process
        answered: ToolAnswered = await process.answer(process.peer.call_tool(tool, args, _now()))
        return answered

    async def run_command(self, command: str, args: str) -> wire.CommandResponse:
        """Run one of its commands."""
        process = self._process
        answered: CommandAnswered = await process.answer(process.peer.invoke_command(command, args, _now()))
        return answered.response

    async def decide(self, event: wire.Intercepted, **about: Any) -> Decision:
        """Let it decide about an event. If it cannot, that is a decision, too."""
        process = self._process
        decided = await process.answer(process.peer.ask(event, _now(), **about))
        return decided.decision if isinstance(decided, Decided) else decided

    def tell(self, event: wire.Event) -> None:
        """Let it hear of an event, if it wants to."""
        self._process.say(self.peer.tell(event))

    def press(self, panel_id: str, key: wire.Key, text: str) -> None:
        """Let it have a key that was pressed in one of its panels."""
        self._process.say(self.peer.press(panel_id, key, text))

    def close_panel(self, panel_id: str) -> None:
        """Let it know that a person has closed one of its panels."""
        self._process.say(self.peer.close_panel(panel_id))

    def note(self, text: str) -> None:
        """Write something into its log."""
        self._log.note(text)

    async def close(self) -> None:
        """End it: asked, then told, then made to. Any number of times."""
        self._closing.set()
        self._process.shut_down()
        deadlines = self._around.deadlines
        bound_s = deadlines.shutdown_s + 2 * deadlines.terminate_s + _SLACK_S
        await asyncio.wait({self._living}, timeout=bound_s)
        if not self._living.done():
            self._living.cancel()
            await asyncio.wait({self._living})
        self.condition = "stopped"

    async def _live(self) -> None:
        """Run one process after the other, until there shall be no other."""
        try:
            while True:
                await self._run_process()
                if self._closing.is_set() or not await self._may_restart():
                    return
                self._process = self._next_process(self.peer.closed)
        finally:
            self._settled.set()

    async def _run_process(self) -> None:
        self._log.note(f"starting {self.name} {self.manifest.version}".rstrip())
        errors = self._log.open()
        watching = asyncio.get_running_loop().create_task(self._watch_log(), name=f"zot extension log {self.name}")
        try:
            await self._process.run(self._spawn, errors)
        finally:
            watching.cancel()
            os.close(errors)

    async def _watch_log(self) -> None:
        """Keep its log short while it runs: it writes there itself, and as much as it likes."""
        while True:
            await asyncio.sleep(_LOG_S)
            self._log.keep_short()

    async def _spawn(self, streams: Streams) -> Child:
        if self._broken:
            raise UserError(self._broken)
        return await self._start.spawn(streams, self._log.note)

    async def _may_restart(self) -> bool:
        """Wait until it may be started again. False if it never may."""
        now = _now()
        recent = [at for at in self._restarts if now - at < _WINDOW_S]
        if not self._greeted or len(recent) == len(_PAUSES_S):
            self.condition = "failed"
            if recent:
                again = f"is not started again: it has crashed {len(recent) + 1} times"
                self._happened(Complained(again, notice=True))
            return False
        self._restarts.append(now)
        self.condition = "restarting"
        try:
            async with asyncio.timeout(_PAUSES_S[len(recent)]):
                await self._closing.wait()
        except TimeoutError:
            return True
        return False

    def _next_process(self, closed: frozenset[wire.Intercepted]) -> ExtensionProcess:
        peer = self._start.peer(closed, now=_now())
        return ExtensionProcess(peer, self._happened, terminate_s=self._around.deadlines.terminate_s)

    def _happened(self, happening: Happening) -> None:
        match happening:
            case Greeted():
                self._greeted = True
                self.condition, self.problem = "running", ""
            case Settled():
                self._settled.set()
            case Complained(reason=reason) | Late(reason=reason):
                self._log.note(reason)
            case Broken(reason=reason):
                self._settled.set()
                self.problem = reason
                self._log.note(reason)
            case Ended(reason=reason, wanted=wanted):
                self._settled.set()
                if not wanted:
                    self.problem = self.problem or reason
                self._log.note(reason)
            case _:
                pass
        self._audience.happened(self, happening)


def _now() -> float:
    return asyncio.get_running_loop().time()
