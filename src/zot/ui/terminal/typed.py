"""The lines that somebody types. Does nothing with them."""

from __future__ import annotations

import asyncio
import os
from collections import deque


class Typed:
    """Lines in the order in which they come. Their end is for good: whoever reads on hears of it, too."""

    def __init__(self, incoming: int) -> None:
        self._incoming = incoming
        self._unread = b""
        self._lines: deque[str] = deque()
        #: What was typed before the question that waits for an answer.
        self._before: list[str] = []
        self._ended = False
        self._moved = asyncio.Event()

    def open(self) -> None:
        """Begin to read."""
        asyncio.get_running_loop().add_reader(self._incoming, self._read)

    def close(self) -> None:
        """Read no more."""
        asyncio.get_running_loop().remove_reader(self._incoming)

    @property
    def is_over(self) -> bool:
        """True if nothing is left, and nothing will come."""
        return self._ended and not self._lines

    async def line(self) -> str | None:
        """Return the next line; None if the input is over."""
        while not self._lines:
            if self._ended:
                return None
            self._moved.clear()
            await self._moved.wait()
        return self._lines.popleft()

    def end(self) -> None:
        """Take no more: what has been typed is the last of it."""
        self.close()
        self._ended = True
        self._moved.set()

    def drop(self) -> list[str]:
        """Take what was typed and not read yet."""
        dropped = [*self._before, *self._lines]
        self._before = []
        self._lines.clear()
        return dropped

    def set_aside(self) -> None:
        """Keep what was typed until now from being read, if a person typed it: nobody answers before the question."""
        if os.isatty(self._incoming):
            self._before = self.drop()

    def put_back(self) -> None:
        """Let what was set aside be read, before all else."""
        self._lines.extendleft(reversed(self._before))
        self._before = []

    def _read(self) -> None:
        try:
            data = os.read(self._incoming, 65536)
        except OSError:  # The terminal is gone.
            data = b""
        *lines, self._unread = (self._unread + data).split(b"\n")
        self._lines.extend(line.decode("utf-8", "replace").rstrip("\r") for line in lines)
        self._moved.set()
        if not data:
            self.end()
