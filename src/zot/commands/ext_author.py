"""`zot ext run`: an extension whose commands are typed, and whose frames are shown."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Literal

from zot.commands.ext_bench import bench_of, on_signal
from zot.commands.subcommands import Request, remark, write, write_json
from zot.errors import UserError
from zot.extensions.bench import Bench
from zot.extensions.happenings import Broken, CommandAnswered, Complained, Ended, Happening, Notified
from zot.text import printable
from zot.wire.lines import LineSplitter, TooLong


def run(request: Request) -> int:
    """Start an extension, and run its commands as they are typed until the input ends."""
    return asyncio.run(_run(request))


async def _run(request: Request) -> int:
    from zot.serve.streams import read_chunks

    shown = _Traced(json=request.json) if request.json or request.settings.get("trace") else _Told()
    async with bench_of(request, shown.heard, shown.trace) as bench:
        typing = asyncio.create_task(_type(bench, shown, read_chunks(0)), name="zot ext run")
        ending = asyncio.create_task(bench.over(), name="zot ext end")
        on_signal(typing.cancel)
        try:
            await asyncio.wait({typing, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            typing.cancel()
            await asyncio.wait({typing})
            await bench.close()
            await ending
    if not typing.cancelled():
        typing.result()
    if shown.failure:
        raise UserError(f"{bench.manifest.name} {shown.failure}")
    return 0


async def _type(bench: Bench, shown: _Told, chunks: AsyncIterator[bytes]) -> None:
    """Run the commands that are typed, one after the other."""
    await bench.settled()
    lines = LineSplitter()
    async for data in chunks:
        for line in lines.feed(data):
            await _run_line(bench, shown, line)
    for line in lines.finish():
        await _run_line(bench, shown, line)


async def _run_line(bench: Bench, shown: _Told, line: bytes | TooLong) -> None:
    text = "" if isinstance(line, TooLong) else line.decode("utf-8", "replace").strip()
    name, _, args = text.removeprefix("/").partition(" ")
    known = [command.name for command in bench.peer.commands]
    if not text.startswith("/") or name not in known:
        there = ", ".join(f"/{one}" for one in known) or "none"
        remark(f"not a command: {printable(text)}; there are: {there}")
    else:
        shown.answered(await bench.run_command(name, args))


class _Told:
    """Tells a person what an extension does. ``failure`` is what went wrong in the end; "" if nothing did."""

    def __init__(self) -> None:
        self.failure = ""

    def trace(self, way: Literal["<", ">"], data: bytes) -> None:
        """Take the bytes that are said."""

    def heard(self, happening: Happening) -> None:
        """Take what the extension does by itself."""
        match happening:
            case Notified(level=level, message=message):
                self._show(f"{level}: {message}")
            case Complained(reason=reason):
                remark(printable(reason))
            case Broken(reason=reason):
                self.failure = reason
            case Ended(reason=reason, wanted=False):
                self.failure = self.failure or reason
            case _:
                pass

    def answered(self, answered: CommandAnswered) -> None:
        """Take what a command wants done."""
        response = answered.response
        if response.error:
            remark(printable(response.error))
            return
        said = response.prompt or response.insert or response.display
        lines = response.open_panel.lines if response.open_panel else tuple(said.split("\n")) if said else ()
        self._show(response.action, *(f"  {line}" for line in lines))

    def _show(self, *lines: str) -> None:
        write("".join(f"{printable(line)}\n" for line in lines))
        sys.stdout.flush()


class _Traced(_Told):
    """Shows every frame instead, a line each; with ``json`` as an object with the way and the line."""

    def __init__(self, *, json: bool) -> None:
        super().__init__()
        self._json = json
        self._lines = {"<": LineSplitter(), ">": LineSplitter()}

    def trace(self, way: Literal["<", ">"], data: bytes) -> None:
        """Take the bytes that are said."""
        for line in self._lines[way].feed(data):
            text = "(a line that is too long)" if isinstance(line, TooLong) else line.decode("utf-8", "replace")
            if self._json:
                write_json({"way": way, "line": text})
            else:
                write(f"{way} {printable(text)}\n")
        sys.stdout.flush()

    def heard(self, happening: Happening) -> None:
        """Take what is not a frame, or a wrong one."""
        if not isinstance(happening, Notified):
            super().heard(happening)

    def answered(self, answered: CommandAnswered) -> None:
        """Take what was shown as a frame."""
        if answered.failure:
            remark(printable(answered.failure))
