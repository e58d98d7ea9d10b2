"""An extension that has connected by itself: who it says it is, and the one connection there is to it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from zot.errors import UserError
from zot.extensions.carrier import Carrier, Deaf
from zot.extensions.launch import Surroundings, acknowledgement
from zot.extensions.link import Link
from zot.extensions.peer import Peer
from zot.text import printable
from zot.wire import extension as wire


class Caller:
    """An `Origin` with a carrier instead of a program: when that is over, it has to call again.

    Raise UserError if ``name`` is not the name of an extension. ``closed`` is what an earlier connection of that name
    left blocked.
    """

    version = ""
    returns = False

    def __init__(
        self,
        name: str,
        carrier: Carrier,
        around: Surroundings,
        closed: frozenset[wire.Intercepted] = frozenset(),
    ) -> None:
        try:
            self.name: str = msgspec.convert(name, wire.ExtensionName)
        except msgspec.ValidationError:
            rule = "letters, digits, `.`, `_` and `-`, at most 64, and a letter or digit first"
            raise UserError(f"{printable(name)!r} is no name for an extension: {rule}") from None
        self._carrier = carrier
        self._around = around
        self._closed = closed

    def guarded(self) -> frozenset[wire.Intercepted]:
        return self._closed

    def peer(self, closed: frozenset[wire.Intercepted], *, now: float) -> Peer:
        # It may run on another machine: what is where here is not its business, and it has no directory of ours.
        ack = acknowledgement(self._around, directory="", data="")
        return Peer(self.name, ack, now=now, deadlines=self._around.deadlines, closed=closed)

    async def open(self, errors: int, note: Callable[[str], None], deaf: Deaf) -> Carrier:
        return self._carrier


class Missing(Caller):
    """A guard that had connected before the session was loaded, and has to call again: until then it blocks."""

    def __init__(self, name: str, around: Surroundings, closed: frozenset[wire.Intercepted]) -> None:
        super().__init__(name, Link(lambda data: None, lambda: None), around, closed)

    async def open(self, errors: int, note: Callable[[str], None], deaf: Deaf) -> Carrier:
        raise UserError("it had connected to this session, guards it, and has not come back yet")
