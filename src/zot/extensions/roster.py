"""Who takes part in a session, in their order: those it has started, those that have connected, and those it misses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zot.errors import UserError
from zot.extensions.caller import Caller, Missing
from zot.extensions.carrier import Carrier
from zot.extensions.launch import Surroundings
from zot.extensions.listener import Listener
from zot.extensions.supervisor import Audience, Extension, Origin
from zot.store import Guarded
from zot.wire import extension as wire


class Roster:
    """``audience`` hears what they do, ``dismissed`` the name of a guard that is not missed any more.

    A guard that had connected before the session was loaded is missed until it has come back: it blocks what it guards.
    """

    def __init__(self, around: Surroundings, audience: Audience, dismissed: Callable[[str], None]) -> None:
        self.extensions: list[Extension] = []
        self.listeners: list[Listener] = []
        self._around = around
        self._audience = audience
        self._dismissed = dismissed
        self._begun = False
        #: What is blocked by those that had connected, by name.
        self._recalled: dict[str, frozenset[wire.Intercepted]] = {}
        self._missing: dict[str, Extension] = {}
        #: Who hears what those guard that have connected.
        self._guards: dict[Extension, Callable[[Guarded], None]] = {}

    def __bool__(self) -> bool:
        """True if somebody takes part, or is missed."""
        return bool(self.extensions or self._recalled)

    def begin(self, origins: Sequence[Origin]) -> None:
        """Start those that the session has, side by side, and miss those that it has had."""
        self._begun = True
        self.extensions = [Extension(origin, self._around, self._audience) for origin in origins]
        self._seat()
        for name in self._recalled:
            self._miss(name)

    def recall(self, guarded: Guarded) -> None:
        """Hear who guards the session and may be away; or, if it guards nothing, that it was dismissed."""
        if guarded.intercept:
            self._recalled[guarded.name] = frozenset(one for one in wire.INTERCEPTED if one in guarded.intercept)
            if self._begun:
                self._miss(guarded.name)
        elif self._recalled.pop(guarded.name, None) is not None:
            self._dismiss(guarded.name)

    def attends(self, name: str) -> bool:
        """Tell if there is one of this name, and not only one that is missed."""
        return any(one.name == name and not self._is_away(one) for one in self.extensions)

    def join(self, name: str, carrier: Carrier, guards: Callable[[Guarded], None]) -> Extension:
        """Let one take part that has connected by itself, as `Manager.join` says. Raise UserError."""
        earlier = next((one for one in self.extensions if one.name == name), None)
        if earlier is not None and not self._is_away(earlier):
            raise UserError(f"the session has an extension named {name!r} already")
        caller = Caller(name, carrier, self._around, frozenset() if earlier is None else earlier.peer.closed)
        # Those that have gone and block nothing leave no trace.
        self.extensions = [one for one in self.extensions if one is not earlier and not _is_gone(one)]
        extension = Extension(caller, self._around, self._audience)
        self._guards = {one: hear for one, hear in self._guards.items() if one in self.extensions}
        self._guards[extension] = guards
        self._admit(extension)
        return extension

    def put_on_record(self, extension: Extension) -> None:
        """Let who brought it hear what it guards whether it is there or not, if it does."""
        if extension.peer.closed and extension in self._guards:
            self._guards[extension](Guarded(extension.name, tuple(sorted(extension.peer.closed))))

    def _miss(self, name: str) -> None:
        """Let a guard that is away block what it guards, unless somebody has its name."""
        if all(one.name != name for one in self.extensions):
            missing = Missing(name, self._around, self._recalled[name])
            self._missing[name] = Extension(missing, self._around, self._audience)
            self._admit(self._missing[name])

    def _dismiss(self, name: str) -> None:
        """Let go of a guard that is away. One that has come back meanwhile goes on record again."""
        for one in [one for one in self.extensions if one.name == name]:
            if self._is_away(one):
                self.extensions.remove(one)
                self._seat()
                self._dismissed(name)
            else:
                self.put_on_record(one)

    def _is_away(self, extension: Extension) -> bool:
        """Tell if one that had come by itself has gone, or has not come back yet."""
        return not extension.returns and (extension.is_over or self._missing.get(extension.name) is extension)

    def _admit(self, extension: Extension) -> None:
        self.extensions.append(extension)
        self._seat()

    def _seat(self) -> None:
        kept = {listener.extension: listener for listener in self.listeners}
        self.listeners = [kept.get(one) or Listener(one) for one in self.extensions]


def _is_gone(extension: Extension) -> bool:
    """Tell if one that had come by itself has gone, and left nothing blocked."""
    return not extension.returns and extension.is_over and not extension.peer.closed
