"""Write docs/explanation/architecture.svg: the packages in layers, drawn from the import table of the tests.

An arrow leads from a package to one that it may import. Arrows that follow from others are left out.

python scripts/diagram.py
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise, permutations
from pathlib import Path
from typing import NamedTuple, TypeAlias

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "test_architecture.py"
PATH = ROOT / "docs" / "explanation" / "architecture.svg"

#: Python's own names, and how the picture shows them. `__main__` only calls `cli`.
_NAMES = {"__init__": "import zot"}
_OMITTED = {"__main__"}
_WIDTH, _ROW, _BOX, _GAP, _PAD = 720, 78, 36, 36, 24
_CHAR, _BEND = 8.4, 12
#: Width that an arrow takes where it passes a layer.
_PASSAGE = 14
_STYLE = """\
  <style>
    text { font: 600 14px ui-monospace, Menlo, Consolas, monospace; fill: #1f2933; text-anchor: middle; }
    .small { font-size: 12px; font-weight: 400; }
    rect { fill: #eef3fb; stroke: #52709c; stroke-width: 1.2; }
    .base { fill: #e7f4ea; stroke: #4c8a5b; }
    path { fill: none; stroke: #7b8794; stroke-width: 1.3; }
    marker path { fill: #7b8794; stroke: none; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6e9ef; }
      rect { fill: #1d2b42; stroke: #7ea2d6; }
      .base { fill: #1a3323; stroke: #74b587; }
      path { stroke: #97a3b3; }
      marker path { fill: #97a3b3; }
    }
  </style>"""

Table: TypeAlias = Mapping[str, set[str]]


class Place(NamedTuple):
    """A package in its layer, or, with a ``goal``, an arrow from ``name`` to ``goal`` that passes the layer."""

    name: str
    goal: str = ""

    @property
    def width(self) -> float:
        return _PASSAGE if self.goal else len(_NAMES.get(self.name, self.name)) * _CHAR + 28


def read_table() -> tuple[dict[str, set[str]], list[str]]:
    """Return the import table and the vocabulary, without importing the test."""
    found = {}
    for node in ast.parse(TABLE.read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if name in ("MAY_IMPORT", "VOCABULARY") and node.value is not None:
                    found[name] = ast.literal_eval(node.value)
    table = {name: needs for name, needs in found["MAY_IMPORT"].items() if name not in _OMITTED}
    return table, sorted(found["VOCABULARY"])


def reachable(table: Table, name: str) -> set[str]:
    """Return the packages that ``name`` imports, directly or through others."""
    return table[name].union(*(reachable(table, need) for need in table[name]))


def arrows(table: Table) -> dict[str, list[str]]:
    """Return the imports of each package that do not follow from the others."""
    return {
        name: sorted(need for need in needs if not any(need in reachable(table, other) for other in needs - {need}))
        for name, needs in table.items()
    }


def layers(table: Table) -> dict[str, int]:
    """Return the layer of each package, 0 at the bottom: as high as its importers permit.

    A package that no other imports stands right above its own imports.
    """
    importers = {name: [other for other in table if name in table[other]] for name in table}
    depth = dict.fromkeys(table, 0)
    for _ in table:  # Enough rounds for the longest chain.
        depth = {name: max((depth[need] + 1 for need in table[name]), default=0) for name in table}
    placed: dict[str, int] = {}
    for name in sorted(table, key=lambda name: -depth[name]):
        if importers[name]:
            placed[name] = min(placed[other] for other in importers[name]) - 1
        else:
            placed[name] = depth[name]
    for name in table:
        if not importers[name]:
            placed[name] = max((placed[need] + 1 for need in table[name]), default=0)
    lowest = min(placed.values())
    return {name: layer - lowest for name, layer in placed.items()}


def arrange(table: Table) -> list[list[Place]]:
    """Return the layers from top to bottom, ordered so that few arrows cross."""
    layer = layers(table)
    rows: list[list[Place]] = [[] for _ in range(max(layer.values()) + 1)]
    links: list[tuple[Place, Place]] = []
    for name in table:
        rows[layer[name]].append(Place(name))
    for name, goals in arrows(table).items():
        for goal in goals:
            chain = [Place(name)]
            for passed in range(layer[name] - 1, layer[goal], -1):
                chain.append(Place(name, goal))
                rows[passed].append(chain[-1])
            links += pairwise([*chain, Place(goal)])
    rows.reverse()
    for _ in range(8):
        for at, row in enumerate(rows):
            rows[at] = list(min(permutations(row), key=lambda order: _cost(rows, at, order, links)))
    return rows


def _cost(
    rows: Sequence[Sequence[Place]], at: int, order: Sequence[Place], links: Iterable[tuple[Place, Place]]
) -> tuple[int, float]:
    """Return how many arrows cross next to a row in this order, and how long they are sideways."""
    tried = [*rows[:at], order, *rows[at + 1 :]]
    x = {(number, place): left for number, row in enumerate(tried) for place, left in _positions(row).items()}
    crossings, sideways = 0, 0.0
    for upper in {max(at - 1, 0), min(at, len(rows) - 2)}:
        spans = [
            (x[upper, start], x[upper + 1, end])
            for start, end in links
            if (upper, start) in x and (upper + 1, end) in x
        ]
        sideways += sum(abs(start - end) for start, end in spans)
        crossings += sum((a - c) * (b - d) < 0 for a, b in spans for c, d in spans) // 2
    return crossings, sideways


def _positions(row: Sequence[Place]) -> dict[Place, float]:
    """Return the middle of each place, with the row centred."""
    left = (_WIDTH - sum(place.width for place in row) - _GAP * (len(row) - 1)) / 2
    middles = {}
    for place in row:
        middles[place] = left + place.width / 2
        left += place.width + _GAP
    return middles


def render() -> str:
    """Return the text of the file."""
    table, vocabulary = read_table()
    rows = arrange(table)
    at = {
        (place, number): (middle, _PAD + number * _ROW)
        for number, row in enumerate(rows)
        for place, middle in _positions(row).items()
    }
    number_of = {place: number for place, number in at if not place.goal}
    height = _PAD + len(rows) * _ROW + _BOX + 20 + _PAD
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        "  <title>The packages of zot: an arrow leads to a package that may be imported</title>",
        _STYLE,
        '  <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z"/></marker></defs>',
    ]
    for name, goals in arrows(table).items():
        for goal in goals:
            first, last = number_of[Place(name)], number_of[Place(goal)]
            middles = [at[Place(name, goal), number] for number in range(first + 1, last)]
            lines.append(_arrow(at[Place(name), first], middles, at[Place(goal), last]))
    for (place, _), (middle, top) in at.items():
        if not place.goal:
            lines.append(_box(_NAMES.get(place.name, place.name), middle, top, place.width))
    top = _PAD + len(rows) * _ROW
    lines += [
        f'  <rect class="base" x="{_PAD}" y="{top}" width="{_WIDTH - 2 * _PAD}" height="{_BOX + 20}" rx="6"/>',
        f'  <text x="{_WIDTH / 2:g}" y="{top + 23}">the vocabulary, for all of them</text>',
        f'  <text class="small" x="{_WIDTH / 2:g}" y="{top + 43}">{escape(", ".join(vocabulary))}</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _box(text: str, middle: float, top: float, width: float) -> str:
    return (
        f'  <rect x="{middle - width / 2:.1f}" y="{top}" width="{width:.1f}" height="{_BOX}" rx="6"/>'
        f'<text x="{middle:.1f}" y="{top + 23}">{escape(text)}</text>'
    )


def _arrow(start: tuple[float, int], middles: Sequence[tuple[float, int]], end: tuple[float, int]) -> str:
    """Return a curve from the lower edge of one box to the upper edge of another, straight down past layers."""
    x, y = start[0], start[1] + _BOX
    path = f"M{x:.1f} {y}"
    for middle, top in [*middles, end]:
        bend = (top - y) / 2 + _BEND
        path += f" C{x:.1f} {y + bend:g} {middle:.1f} {top - bend:g} {middle:.1f} {top}"
        x, y = middle, top
        if (middle, top) != end:
            y += _BOX
            path += f" V{y}"
    return f'  <path d="{path}" marker-end="url(#tip)"/>'


if __name__ == "__main__":
    PATH.write_text(render())
