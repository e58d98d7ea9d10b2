"""The talk with one extension over whatever carries it: brought bytes and time, and acted upon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias, TypeVar

from zot.errors import UserError
from zot.extensions.calls import Asked
from zot.extensions.carrier import Carrier, Opening
from zot.extensions.happenings import (
    Acknowledged,
    Answered,
    CommandAnswered,
    Complained,
    Decided,
    Greeted,
    Happening,
    Kill,
    Notified,
    Terminate,
    ToolAnswered,
)
from zot.extensions.pace import PER_S, Pace
from zot.extensions.peer import Peer
from zot.extensions.quotes import clipped
from zot.extensions.said import Said, read
from zot.wire.lines import TooLong

A = TypeVar("A")
#: Hears what is said, byte by byte: ">" to the extension, "<" by it.
Trace: TypeAlias = Callable[[Literal["<", ">"], bytes], None]
#: What says no more is about to go, and has this long for it.
_EXIT_S = 0.5
#: So many notices are still shown of one that has gone, or shall; the others are dropped.
MAX_LATE_NOTICES = 100
#: So much of what it says is taken at a time, so that a thousand short frames keep nobody else from running.
_SLICE_BYTES = 1024
#: A longer line is read in a thread, piece by piece, while others go on.
_LONG_BYTES = 256 * 1024


class Connection:
    """The shell around a `Peer`: brings it bytes and time, and does what comes of them.

    ``heard`` is told everything that happens, in order, except answers, which go to whoever asked.
    """

    def __init__(
        self, peer: Peer, heard: Callable[[Happening], None], *, trace: Trace = lambda way, data: None
    ) -> None:
        self.peer = peer
        self._heard = heard
        self._trace = trace
        self._loop = asyncio.get_running_loop()
        self._asked: dict[str, asyncio.Future[Answered]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._carrier: Carrier | None = None
        #: What is to be said once there is a way.
        self._unsent = b""
        self._doomed = False
        self._pace = Pace()
        self._is_slowed = False
        #: Set when it shall end or has gone: then it is heard out without a pause.
        self._hurried = asyncio.Event()
        #: How many notices came since then.
        self._late_notices = 0
        self._schedule()

    async def run(self, opening: Opening) -> None:
        """Open the way to it, hear it out, and return when nothing of it runs. Its last happening is `Ended`."""
        reason = "was not started"
        try:
            self._carrier = carrier = await opening(self._deaf)
            reason = "did not end in time and was killed"
            self.peer.advice = carrier.advice
            carrier.send(self._unsent)
            if self._doomed:
                carrier.end()
            reason = await self._heard_out(carrier)
        except (OSError, ValueError, UserError) as problem:
            reason = f"could not be started: {problem}"
        finally:
            self._happen(self.peer.end(reason, self._loop.time(), began=self._carrier is not None))
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
        if data:
            self._trace(">", data)
            if self._carrier is None:
                self._unsent += data
            else:
                self._carrier.send(data)
        self._schedule()

    def shut_down(self) -> None:
        """Ask it to end; it is made to if it does not."""
        self._hurried.set()
        self.say(self.peer.shut_down(self._loop.time()))

    async def _heard_out(self, carrier: Carrier) -> str:
        """Listen until it ends; return how it did."""
        watching = self._loop.create_task(self._hurry_when_gone(carrier), name="zot extension gone")
        try:
            while data := await carrier.read():
                self._trace("<", data)
                for start in range(0, len(data), _SLICE_BYTES):
                    await self._hear(self.peer.lines(data[start : start + _SLICE_BYTES]))
            await self._hear(self.peer.last_lines())
            if (dropped := self._late_notices - MAX_LATE_NOTICES) > 0:
                self._heard(Complained(f"said so much at its end that {dropped} notices were dropped"))
            if not await carrier.gone(within_s=_EXIT_S):
                self._happen(self.peer.lose("has closed its output", self._loop.time()))
                # One that was told to end may still be tidying up; it has been given a time for that.
                await carrier.gone(within_s=None)
            if left := await carrier.leftovers():
                self._heard(Complained(f"left processes behind, which were ended: {clipped(', '.join(left))}"))
        finally:
            watching.cancel()
            self._end()
            reason = await carrier.close()
        return reason

    async def _hurry_when_gone(self, carrier: Carrier) -> None:
        """Whoever waits for an answer that will not come shall not wait for everything that was said before."""
        await carrier.gone(within_s=None)
        self._hurried.set()

    async def _hear(self, lines: Sequence[bytes | TooLong]) -> None:
        """Take some of what it says. One that talks all the time is not listened to all the time."""
        happenings: list[Happening] = []
        for line in lines:
            came = self.peer.take(await _read(line), self._loop.time())
            self._happen(self._bounded(came) if self._hurried.is_set() else came)
            happenings += came
        said = sum(not isinstance(happening, ToolAnswered | CommandAnswered | Decided) for happening in happenings)
        pause_s = self._pace.pause(said, self._loop.time())
        if pause_s and not self._hurried.is_set():
            self._complain_of_talk()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._hurried.wait()
        elif said:
            await asyncio.sleep(0)  # Others want to be heard, too.

    def _bounded(self, happenings: list[Happening]) -> list[Happening]:
        """Return what happened at its end, without the notices that are too many."""
        self._late_notices += sum(isinstance(one, Notified) for one in happenings)
        if self._late_notices <= MAX_LATE_NOTICES:
            return happenings
        return [one for one in happenings if not isinstance(one, Notified)]

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
                case Acknowledged() if self._carrier is not None:
                    self._carrier.acknowledged()
                case _:
                    pass
            self._heard(happening)
        self._schedule()

    def _end(self) -> None:
        """Make it go, with all it started, as soon as there is something to go."""
        self._doomed = True
        self._hurried.set()
        if self._carrier is not None:
            self._carrier.end()

    def _deaf(self, reason: str) -> None:
        """It does not hear us any more. If that is because it is about to exit, that is what is told."""
        self._loop.call_later(_EXIT_S, self._lose, reason)

    def _lose(self, reason: str) -> None:
        self._happen(self.peer.lose(reason, self._loop.time()))

    def _schedule(self) -> None:
        deadline = self.peer.next_deadline()
        if deadline is not None and self._timer is not None and self._timer.when() == deadline:
            return  # One that is due must not be put off by who talks all the time.
        self._stop_timer()
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        self._happen(self.peer.expire(self._loop.time()))


async def _read(line: bytes | TooLong) -> Said:
    if isinstance(line, TooLong) or len(line) <= _LONG_BYTES:
        return read(line)
    return await asyncio.to_thread(read, line)
