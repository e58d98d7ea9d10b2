"""What an extension is told, on its way into a pipe that it reads at its own pace."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

#: One that is so far behind does not read at all.
MAX_BYTES = 32 * 1024 * 1024


class Outbox:
    """Writes to ``fd``, which it owns, in order and without waiting. ``failed`` hears once why it cannot go on."""

    def __init__(self, fd: int, failed: Callable[[str], None]) -> None:
        os.set_blocking(fd, False)
        self._fd: int | None = fd
        self._failed = failed
        self._waiting = bytearray()

    def write(self, data: bytes) -> None:
        """Send ``data``, after what came before."""
        if self._fd is None or not data:
            return
        was_empty = not self._waiting
        self._waiting += data
        if len(self._waiting) > MAX_BYTES:
            self._fail(f"has not read {len(self._waiting)} bytes that it was told")
        elif was_empty:
            self._flush()
            if self._waiting and self._fd is not None:
                asyncio.get_running_loop().add_writer(self._fd, self._flush)

    def close(self) -> None:
        """Let go of the pipe; what is still waiting is dropped. Any number of times."""
        if self._fd is not None:
            asyncio.get_running_loop().remove_writer(self._fd)
            os.close(self._fd)
            self._fd = None
            self._waiting.clear()

    def _flush(self) -> None:
        assert self._fd is not None
        try:
            while self._waiting:
                del self._waiting[: os.write(self._fd, self._waiting[: 64 * 1024])]
        except BlockingIOError:
            return
        except OSError:
            self._fail("has closed its input")
            return
        asyncio.get_running_loop().remove_writer(self._fd)

    def _fail(self, reason: str) -> None:
        self.close()
        self._failed(reason)
