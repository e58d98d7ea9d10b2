"""What is logged, as notes: on a screen nobody sees standard error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zot.ui.terminal.level import Level


class NoteHandler(logging.Handler):
    """Gives warnings and errors to ``note``, in the loop, whichever thread they come from."""

    def __init__(self, note: Callable[[str, Level], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note
        self._loop = asyncio.get_running_loop()

    def filter(self, record: logging.LogRecord) -> bool:
        """Leave out what is told by an event, too: the screen shows that."""
        return not hasattr(record, "is_told") and bool(super().filter(record))

    def emit(self, record: logging.LogRecord) -> None:
        level: Level = "error" if record.levelno >= logging.ERROR else "warn"
        self._loop.call_soon_threadsafe(self._note, record.getMessage(), level)


@contextmanager
def noted(note: Callable[[str, Level], None]) -> Iterator[None]:
    """Let what is logged be noted meanwhile, and be written nowhere else."""
    log, handler = logging.getLogger("zot"), NoteHandler(note)
    spreads, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = spreads
