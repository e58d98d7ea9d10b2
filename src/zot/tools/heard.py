"""What a command has said: shown as it comes, kept within a budget for the model, kept whole in a file."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from zot.tools.command_output import Spill
from zot.tools.excerpt import Excerpt
from zot.tools.process import Child
from zot.tools.utf8 import Utf8

#: What comes within this time of the last thing shown is shown together.
_GATHER_S = 0.05
_GATHER_CHARS = 64 * 1024


class Heard:
    """Listens to one command. Its memory is bounded, whatever the command says."""

    def __init__(self, child: Child, progress: Callable[[str], Awaitable[None]], spill: Spill | None) -> None:
        self._child = child
        self._progress = progress
        self._spill = spill
        self._text = Utf8()
        self._excerpt = Excerpt()
        self._gathered: list[str] = []
        self._gathered_chars = 0
        self._show_at = 0.0

    async def listen(self) -> None:
        """Return when the command has exited and been heard out."""
        while (data := await self._next()) != b"":
            if data is not None:
                self._take(data)
            await self._show_if_due()
        self._gather(self._text.decode(b"", final=True))
        await self._show()

    def close(self) -> None:
        """Keep what was heard; nothing more will be. Safe any number of times."""
        if self._spill is not None:
            self._spill.close()

    def text(self) -> str:
        """Return the output as a paragraph of its own; nothing if there was none."""
        whereabouts = None if self._spill is None else self._spill.note()
        output = self._excerpt.text(whereabouts)
        if not output:
            return ""
        ending = "" if output.endswith("\n") else "\n"
        flag = "" if self._text.is_valid else "[not all of it is UTF-8: � stands for what is not]\n"
        return f"\n{output}{ending}{flag}"

    async def _next(self) -> bytes | None:
        """Return what is said next, b"" at the end, None if it is time to show what has been gathered."""
        if not self._gathered:
            return await self._child.read()
        try:
            async with asyncio.timeout_at(self._show_at):
                return await self._child.read()
        except TimeoutError:
            return None

    def _take(self, data: bytes) -> None:
        if self._spill is not None and self._excerpt.overflows_with(data):
            if self._excerpt.is_complete:
                self._spill.write(self._excerpt.whole())
            self._spill.write(data)
        self._excerpt.feed(data)
        self._gather(self._text.decode(data))

    def _gather(self, text: str) -> None:
        if text:
            self._gathered.append(text)
            self._gathered_chars += len(text)

    async def _show_if_due(self) -> None:
        if self._gathered_chars >= _GATHER_CHARS or asyncio.get_running_loop().time() >= self._show_at:
            await self._show()

    async def _show(self) -> None:
        if self._gathered:
            text = "".join(self._gathered)
            self._gathered.clear()
            self._gathered_chars = 0
            await self._progress(text)
            self._show_at = asyncio.get_running_loop().time() + _GATHER_S
