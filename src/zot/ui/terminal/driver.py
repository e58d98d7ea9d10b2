"""The terminal itself: taken, given back, and taken again by whoever was stopped."""

from __future__ import annotations

import sys
from typing import Any

from textual.drivers.linux_driver import LinuxDriver

_CLEAR = "\x1b[2J\x1b[H"


class Driver(LinuxDriver):
    """Draws on standard output, draws everything anew after a stop, and leaves nothing behind."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._file = sys.__stdout__  # Not standard error, as Textual does: that may be a file (`zot 2>log`).

    def stop_application_mode(self) -> None:
        if self._writer_thread is not None:
            self.write(_CLEAR)  # A terminal that was resized may bring back what stood on the other screen.
        super().stop_application_mode()

    def _sigcont_application(self, *arguments: object) -> None:
        if self._must_signal_resume:  # After Ctrl+Z, for which the terminal was given back.
            super()._sigcont_application(*arguments)
        # Else theirs would begin a second time, and take our settings of the terminal for those before.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self._app.refresh(layout=True))
