"""One process of an extension: started, talked to, and ended to the last of its descendants."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal, TypeAlias, TypeVar

from zot.errors import UserError
from zot.extensions.calls import Asked
from zot.extensions.happenings import (
    Answered,
    CommandAnswered,
    Complained,
    Decided,
    Greeted,
    Happening,
    Kill,
    Terminate,
    ToolAnswered,
)
from zot.extensions.outbox import Outbox
from zot.extensions.pace import PER_S, Pace
from zot.extensions.peer import Peer
from zot.tools.process import Child, Streams

A = TypeVar("A")
#: Hears what is said, byte by byte: ">" to the extension, "<" by it.
Trace: TypeAlias = Callable[[Literal["<", ">"], bytes], None]
#: What has closed its output is about to exit, and has this long for it.
_EXIT_S = 0.5
#: So much of what it says is taken at a time, so that a thousand short frames keep nobody else from running.
_SLICE_BYTES = 1024


class ExtensionProcess:
    """The shell around a `Peer`: brings it bytes and time, and does what comes of them.

    ``heard`` is told everything that happens, in order, except answers, which go to whoever asked.
    """

    def __init__(
        self,
        peer: Peer,
        heard: Callable[[Happening], None],
        *,
        terminate_s: float,
        trace: Trace = lambda way, data: None,
    ) -> None:
        self.peer = peer
        self._heard = heard
        self._trace = trace
        self._terminate_s = terminate_s
        self._loop = asyncio.get_running_loop()
        self._asked: dict[str, asyncio.Future[Answered]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._outbox: Outbox | None = None
        self._child: Child | None = None
        self._ending: asyncio.Task[None] | None = None
        self._doomed = False
        self._pace = Pace()
        self._is_slowed = False
        #: Set when it shall end: then it is heard out without a pause.
        self._hurried = asyncio.Event()
        self._schedule()

    async def run(self, start: Callable[[Streams], Awaitable[Child]], errors: int) -> None:
        """Let ``start`` start it, hear it out, and return when nothing of it runs. Its last happening is `Ended`."""
        reason = "was not started"
        try:
            self._child = child = await self._started(start, errors)
            reason = "did not end in time and was killed"
            if self._doomed:
                self._end()
            reason = await self._heard_out(child)
        except (OSError, ValueError, UserError) as problem:
            reason = f"could not be started: {problem}"
        finally:
            if self._outbox is not None:
                self._outbox.close()
            self._happen(self.peer.end(reason, self._loop.time(), began=self._child is not None))
            self._stop_timer()

    async def answer(self, asked: Asked | A) -> Any:
        """Send a question and wait for its answer, which always comes. When cancelled, nobody waits any more."""
        if not isinstance(asked, Asked):
            return asked
        future = self._asked[asked.id] = self._loop.create_future()
        self.say(asked.data)
        try:
            return await future
        finally:
            if self._asked.pop(asked.id, None) is not None:
                self.peer.give_up(asked.id)
            self._schedule()

    def say(self, data: bytes) -> None:
        """Send what `peer` wants said."""
        if self._outbox is not None and data:
            self._trace(">", data)
            self._outbox.write(data)
        self._schedule()

    def shut_down(self) -> None:
        """Ask it to end; it is made to if it does not."""
        self._hurried.set()
        self.say(self.peer.shut_down(self._loop.time()))

    async def _started(self, start: Callable[[Streams], Awaitable[Child]], errors: int) -> Child:
        theirs, ours = os.pipe()
        self._outbox = Outbox(ours, self._deaf)
        try:
            return await start(Streams(theirs, errors))
        except BaseException:
            self._outbox.close()
            raise
        finally:
            os.close(theirs)

    async def _heard_out(self, child: Child) -> str:
        """Listen until it ends; return how it did."""
        try:
            while data := await child.read(until_exit=False):
                self._trace("<", data)
                for start in range(0, len(data), _SLICE_BYTES):
                    await self._hear(data[start : start + _SLICE_BYTES])
            if not await child.exited(within_s=_EXIT_S):
                self._happen(self.peer.lose("has closed its output", self._loop.time()))
                # One that was told to end may still be tidying up; it has been given a time for that.
                await child.exited(within_s=None)
        finally:
            # It may have exited and left others behind.
            self._end()
            assert self._ending is not None
            await asyncio.shield(self._ending)
            child.close()
        return _ending(child)

    async def _hear(self, data: bytes) -> None:
        """Take some of what it says. One that talks all the time is not listened to all the time."""
        happenings = self.peer.receive(data, self._loop.time())
        self._happen(happenings)
        said = sum(not isinstance(happening, ToolAnswered | CommandAnswered | Decided) for happening in happenings)
        pause_s = self._pace.pause(said, self._loop.time())
        if pause_s and not self._hurried.is_set():
            self._complain_of_talk()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._hurried.wait()
        elif said:
            await asyncio.sleep(0)  # Others want to be heard, too.

    def _complain_of_talk(self) -> None:
        if not self._is_slowed:
            self._is_slowed = True
            self._heard(Complained(f"talks too much: it is heard at {PER_S} frames a second", notice=True))

    def _happen(self, happenings: list[Happening]) -> None:
        for happening in happenings:
            match happening:
                case ToolAnswered() | CommandAnswered() | Decided():
                    future = self._asked.pop(happening.id, None)
                    if future is not None and not future.done():
                        future.set_result(happening)
                    continue
                case Greeted(reply=reply):
                    self._heard(happening)  # First: what cannot be said to it may be its end.
                    self.say(reply)
                    continue
                case Terminate() | Kill():
                    self._end()
                    continue
                case _:
                    pass
            self._heard(happening)
        self._schedule()

    def _end(self) -> None:
        """End the process and all it started, as soon as there is one.

        Once is enough, for that takes its own time to ask and then kills.
        """
        self._doomed = True
        self._hurried.set()
        if self._ending is None and self._child is not None:
            self._ending = self._loop.create_task(self._child.end(grace_s=self._terminate_s), name="zot extension end")

    def _deaf(self, reason: str) -> None:
        """It does not hear us any more. If that is because it is about to exit, that is what is told."""
        self._loop.call_later(_EXIT_S, self._lose, reason)

    def _lose(self, reason: str) -> None:
        self._happen(self.peer.lose(reason, self._loop.time()))

    def _schedule(self) -> None:
        self._stop_timer()
        if (deadline := self.peer.next_deadline()) is not None:
            self._timer = self._loop.call_at(deadline, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._happen(self.peer.expire(self._loop.time()))


def _ending(child: Child) -> str:
    try:
        status = child.status()
    except (ChildProcessError, asyncio.InvalidStateError):
        return "was killed"
    return f"was killed by signal {-status}" if status < 0 else f"exited with {status}"
