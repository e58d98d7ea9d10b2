"""One extension that runs by itself, without a session: for who writes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from zot.extensions.connection import Connection, Trace
from zot.extensions.happenings import (
    Broken,
    CommandAnswered,
    Decided,
    Decision,
    Ended,
    Happening,
    Settled,
    ToolAnswered,
)
from zot.extensions.launch import Start
from zot.wire import extension as wire


class Bench:
    """Runs an extension. ``heard`` is told what happens but answers, ``note`` what is odd about how it is started.

    Its standard error goes to ``errors``. Unlike a session it does not start one again that has crashed.
    """

    def __init__(
        self,
        start: Start,
        errors: int,
        *,
        heard: Callable[[Happening], None],
        note: Callable[[str], None],
        trace: Trace = lambda way, data: None,
    ) -> None:
        self.manifest = start.manifest
        self.deadlines = start.around.deadlines
        #: How it ended, once it has.
        self.ended: Ended | None = None
        self._heard = heard
        self._settled = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.peer = start.peer(start.guarded(), now=self._loop.time())
        self._talk = Connection(self.peer, self._happened, trace=trace)
        running = self._talk.run(lambda deaf: start.open(errors, note, deaf))
        self._running = self._loop.create_task(running, name="zot extension")

    def now(self) -> float:
        """Return the time, in seconds of no matter which clock."""
        return self._loop.time()

    async def settled(self) -> None:
        """Wait until it is ready, or took too long for it, or has failed."""
        await self._settled.wait()

    async def over(self) -> None:
        """Wait until nothing of it runs."""
        await asyncio.wait({self._running})

    async def call_tool(self, tool: str, args: dict[str, Any]) -> ToolAnswered:
        """Run one of its tools."""
        answered: ToolAnswered = await self._talk.answer(self.peer.call_tool(tool, args, self._loop.time()))
        return answered

    async def run_command(self, command: str, args: str) -> CommandAnswered:
        """Run one of its commands."""
        asked = self.peer.invoke_command(command, args, self._loop.time())
        answered: CommandAnswered = await self._talk.answer(asked)
        return answered

    async def decide(self, event: wire.Intercepted, **about: Any) -> Decision:
        """Let it decide about an event."""
        decided = await self._talk.answer(self.peer.ask(event, self._loop.time(), **about))
        return decided.decision if isinstance(decided, Decided) else decided

    def tell(self, event: wire.Event) -> None:
        """Let it hear of an event, if it wants to."""
        self._talk.say(self.peer.tell(event))

    def press(self, panel_id: str, key: wire.Key) -> None:
        """Press a key in one of its panels."""
        self._talk.say(self.peer.press(panel_id, key))

    async def close(self) -> None:
        """End it: asked, then told, then made to. Returns when nothing of it runs; any number of times."""
        self._talk.shut_down()
        try:
            await asyncio.shield(self._running)
        except asyncio.CancelledError:
            self._running.cancel()
            await asyncio.wait({self._running})
            raise

    def _happened(self, happening: Happening) -> None:
        match happening:
            case Settled() | Broken():
                self._settled.set()
            case Ended():
                self.ended = happening
                self._settled.set()
            case _:
                pass
        self._heard(happening)
