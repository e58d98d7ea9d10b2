"""How figures are taken and shown: interleaved samples, medians, ratios, budgets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Samples = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Row:
    """One figure of one installation. ``detail`` shows its components."""

    name: str
    installation: str
    figure: float
    unit: str = "x"
    at_most: float | None = None
    at_least: float | None = None
    spread: float = 0.0
    detail: str = ""

    @property
    def ok(self) -> bool:
        if self.at_most is not None and self.figure > self.at_most:
            return False
        return self.at_least is None or self.figure >= self.at_least

    @property
    def budget(self) -> str:
        if self.at_most is not None:
            return f"<= {self.at_most:g} {self.unit}"
        return f">= {self.at_least:g} {self.unit}" if self.at_least is not None else ""

    @property
    def verdict(self) -> str:
        if self.at_most is None and self.at_least is None:
            return "-"
        return "ok" if self.ok else "OVER"


def interleave(samplers: Mapping[str, Callable[[], float]], rounds: int) -> Samples:
    """Return ``rounds`` interleaved samples of each, in alternating order, after one warm-up."""
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    for sampler in samplers.values():
        sampler()
    for index in range(rounds):
        for name in list(samplers) if index % 2 else reversed(list(samplers)):
            samples[name].append(samplers[name]())
    return samples


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that ``share`` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: Sequence[float]) -> float:
    """Return how far the middle half of the values is apart, as a share of their median."""
    return (quantile(values, 0.75) - quantile(values, 0.25)) / (median(values) or 1.0)


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text, one line each; figures of other installations follow zot's."""
    lines = [("measurement", "figure", "budget", "", "spread", "[from]")]
    for row in rows:
        name = row.name if row.installation == "zot" else f"  {row.installation}"
        figure = f"{row.figure:.2f} {row.unit}"
        lines.append((name, figure, row.budget, row.verdict, f"{row.spread:.0%}", f"[{row.detail}]"))
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), line[1].rjust(widths[1]), line[2].ljust(widths[2]),
                   line[3].ljust(widths[3]), line[4].rjust(widths[4]), line[5]]).rstrip()
        for line in lines
    )  # fmt: skip
