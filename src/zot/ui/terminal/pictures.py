"""Inline images by the kitty graphics protocol."""

from __future__ import annotations

import os
import struct
from base64 import b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from zot.ui.terminal.entries import Entry

if TYPE_CHECKING:
    from zot.ui.terminal.app import ZotApp

_TERMS = ("xterm-kitty", "xterm-ghostty")
_CELL = "\U0010eeee"
#: Diacritics for rows and columns, in the protocol's order, from 0 on.
_MARKS = (
    "\u0305\u030d\u030e\u0310\u0312\u033d\u033e\u033f\u0346\u034a\u034b\u034c\u0350\u0351\u0352\u0357\u035b\u0363"
    "\u0364\u0365\u0366\u0367\u0368\u0369\u036a\u036b\u036c\u036d\u036e\u036f\u0483\u0484\u0485\u0486\u0487\u0592"
    "\u0593\u0594\u0595\u0597"
)
_MAX_ROWS = 16
_MAX_BYTES = 8 * 1024 * 1024
#: Assumed cell size in pixels.
_CELL_WIDTH, _CELL_HEIGHT = 8, 16
#: An image's id is encoded as a colour; these colours no terminal theme changes.
_FIRST, _COUNT = 16, 216
_CHUNK = 4096
_PNG = b"\x89PNG\r\n\x1a\n"


def shows_images(env: Mapping[str, str]) -> bool:
    """True if a terminal with this environment supports Unicode placeholders of the kitty protocol."""
    if env.get("TMUX") or env.get("NO_COLOR"):  # tmux drops the sequences; ids need colours.
        return False
    return env.get("TERM", "") in _TERMS


class Picture(msgspec.Struct, frozen=True):
    """An image sent to the terminal: its id, and its size in cells."""

    number: int
    columns: int
    rows: int

    def lines(self) -> list[Strip]:
        """Return the placeholder cells."""
        style = Style(color=Color.from_ansi(self.number))
        rows = ("".join(f"{_CELL}{_MARKS[row]}{_MARKS[at]}" for at in range(self.columns)) for row in range(self.rows))
        return [Strip([Segment("  "), Segment(row, style)]) for row in rows]


def picture(number: int, data: bytes) -> Picture | None:
    """Return the image scaled to cells; None if it is not a PNG, the only format that the terminals take."""
    if not data.startswith(_PNG) or len(data) < 24 or len(data) > _MAX_BYTES:
        return None
    width, height = struct.unpack(">II", data[16:24])
    if not width or not height:
        return None
    columns = min(len(_MARKS), -(-width // _CELL_WIDTH))
    rows = -(-columns * _CELL_WIDTH * height // (width * _CELL_HEIGHT))
    if rows > _MAX_ROWS:
        rows, columns = _MAX_ROWS, max(1, _MAX_ROWS * _CELL_HEIGHT * width // (height * _CELL_WIDTH))
    return Picture(number, columns, rows)


def transmission(shown: Picture, data: bytes) -> str:
    """Return the escape sequences that send an image to the terminal and suppress its reply."""
    text = b64encode(data).decode()
    chunks = [text[at : at + _CHUNK] for at in range(0, len(text), _CHUNK)]
    first = f"a=T,U=1,q=2,f=100,i={shown.number},c={shown.columns},r={shown.rows},"
    more = [*[1] * (len(chunks) - 1), 0]
    return "".join(
        f"\x1b_G{'' if at else first}m={flag};{chunk}\x1b\\"
        for at, (chunk, flag) in enumerate(zip(chunks, more, strict=True))
    )


class ImageLoader:
    """Loads the images of entries, each when its entry is first drawn."""

    def __init__(self, app: ZotApp) -> None:
        self._app = app
        self._is_able = shows_images(os.environ)
        self._sent = 0

    def offer(self, entry: Entry, place: str) -> None:
        """Register the images of an entry."""
        if self._is_able:
            entry.wanted = lambda: self._app.do(self._load(entry, place))

    async def _load(self, entry: Entry, place: str) -> None:
        for image in await self._app.live.conversation.images(place):
            shown = picture(_FIRST + self._sent % _COUNT, image.data)
            if shown is not None:
                self._sent += 1
                self._app.send(transmission(shown, image.data))
                entry.pictures += shown.lines()
        if entry.pictures:
            entry.touch()
            self._app.transcript.settle()
