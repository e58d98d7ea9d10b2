"""Who is next in this process: requests of one session in the order in which they came, and so many at a time."""

from __future__ import annotations

import asyncio

from zot.wire.host import Request


class Place:
    """A request's place. Whoever has it calls `leave` when the request has run, or never will."""

    def __init__(self, slots: asyncio.Semaphore | None = None, before: Place | None = None) -> None:
        #: Held only while a request does something, and not while it waits.
        self.slots = slots or asyncio.Semaphore()
        self._before = before
        self._left = asyncio.Event()

    async def reached(self) -> None:
        """Wait until all those before us have left."""
        while self._before is not None:
            await self._before._left.wait()
            # It may have left without having been reached: then there are others before it.
            self._before = self._before._before

    @property
    def ahead(self) -> int:
        """How many are before us."""
        number, before = 0, self._before
        while before is not None:
            number, before = number + (not before.has_left), before._before
        return number

    def leave(self) -> None:
        """Let the next one have its turn. Any number of times."""
        self._left.set()

    @property
    def has_left(self) -> bool:
        return self._left.is_set()


class Line:
    """All places. A request that is the same as one that has a place comes right behind that one: it wants its answer,
    and need not wait for what was asked since."""

    def __init__(self, at_once: int) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._last: dict[str, Place] = {}
        self._same: dict[tuple[str | None, ...], Place] = {}

    def join(self, request: Request) -> Place:
        """Return the place of a request that has just come."""
        session = request.session_id or ""
        same = (session, request.key, request.prompt, request.agent_name)
        last = self._last.get(session)
        before = self._same.get(same, last) if request.key is not None else last
        place = Place(self._slots, before)
        if before is last:
            self._last[session] = place
        if request.key is not None:
            self._same[same] = place
        self._forget()
        return place

    def beside(self) -> Place:
        """Return a place that is before and behind nobody."""
        return Place(self._slots)

    def _forget(self) -> None:
        """Keep only those that have not left: sessions come and go."""
        self._last = {session: place for session, place in self._last.items() if not place.has_left}
        self._same = {same: place for same, place in self._same.items() if not place.has_left}
