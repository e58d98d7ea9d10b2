"""How far the connection to an extension has come, and until when it may stay there. No clock: every time is given."""

from __future__ import annotations

from enum import Enum
from typing import Final

from zot.extensions.deadlines import Deadlines
from zot.wire.extension import Hello

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
