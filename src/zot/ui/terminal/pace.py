"""How often something is shown: soon after it is wanted, but never so often that nothing else can be done."""

from __future__ import annotations

import time
from collections.abc import Callable

from textual.message_pump import MessagePump

from zot.ui.terminal.textual_patches import is_behind

#: Something is shown so often at most, and less often if showing it takes long: so many times as long is rested.
_FRAME_S = 1 / 20
_REST = 4


class Pace:
    """Calls ``show`` when that is wanted, in the context of ``pump``, and then leaves time for others."""

    def __init__(self, pump: MessagePump, show: Callable[[], None], *, frame_s: float = _FRAME_S) -> None:
        """``frame_s``: the least time between two times."""
        self._frame_s = frame_s
        self._pump = pump
        self._show = show
        self._resting = False
        self._wanted = False

    def want(self) -> None:
        """There is something to show. May be called from anywhere in the loop."""
        self._wanted = True
        if not self._resting:
            self._resting = True
            # Who tells us does so in a context of their own; timers need that of the pump.
            self._pump.call_later(self._rest, self._frame_s)

    def _rest(self, seconds: float) -> None:
        self._pump.set_timer(seconds, self._go_on)

    def _go_on(self) -> None:
        if not self._wanted:
            self._resting = False
            return
        if is_behind(self._pump.app):
            self._rest(self._frame_s)
            return
        self._wanted = False
        began = time.process_time()
        self._show()
        # What it costs is known when the screen has been drawn.
        self._pump.call_after_refresh(lambda: self._rest(max(self._frame_s, _REST * (time.process_time() - began))))
