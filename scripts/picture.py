"""Make docs/demo.svg, the picture in the README: what `make demo` really prints on a terminal."""

from __future__ import annotations

import os
import pty
import re
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 100
CHAR_W, LINE_H, PAD = 7.8, 18, 16
COLOURS = {"36": "#5ad4e6", "31": "#ff6b6b", "2": "#8b93a7", "0": "#e6e9ef"}
_PAINT = re.compile(r"\033\[(\d+)m")


def record() -> str:
    """Run the demonstration on a terminal of its own and return what it wrote."""
    written = bytearray()

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 65536)
        written.extend(data)
        return data

    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    os.environ.pop("NO_COLOR", None)
    pty.spawn([sys.executable, str(ROOT / "examples" / "demo.py")], read)
    text = written.decode().replace("\r\n", "\n")
    return re.sub(r"(?<=zot-demo-)\w+", "xxxxxxxx", re.sub(r"\S+(?=zot-demo-)", "/tmp/", text))


def rows(text: str) -> list[list[tuple[str, str]]]:
    """Cut the text into rows of coloured pieces, none longer than the picture is wide."""
    colour, result = COLOURS["0"], []
    for line in text.rstrip("\n").split("\n"):
        row, width = list[tuple[str, str]](), 0
        for index, piece in enumerate(_PAINT.split(line)):
            if index % 2:
                colour = COLOURS.get(piece, COLOURS["0"])
                continue
            for word in re.findall(r"\s*\S+|\s+$", piece):
                if width + len(word) > COLUMNS and row:
                    result.append(row)
                    row, width = [], 0
                if row and row[-1][0] == colour:
                    row[-1] = (colour, row[-1][1] + word)
                else:
                    row.append((colour, word))
                width += len(word)
        result.append(row)
    return result


def draw(lines: list[list[tuple[str, str]]]) -> str:
    """Return the picture."""
    width, height = round(COLUMNS * CHAR_W + 2 * PAD), len(lines) * LINE_H + 2 * PAD
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f'<rect width="{width}" height="{height}" rx="8" fill="#1b1f2a"/>',
        '<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13" xml:space="preserve">',
    ]
    for number, row in enumerate(lines):
        spans = "".join(f'<tspan fill="{colour}">{escape(text)}</tspan>' for colour, text in row)
        parts.append(f'<text x="{PAD}" y="{PAD + LINE_H * number + 13}">{spans}</text>')
    return "\n".join([*parts, "</g>", "</svg>", ""])


if __name__ == "__main__":
    prompt = [[(COLOURS["2"], "$ "), (COLOURS["0"], "make demo")]]
    (ROOT / "docs" / "demo.svg").write_text(draw(prompt + rows(record())), encoding="utf-8")
