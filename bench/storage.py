"""The journal: the cost of recording everything before it is shown, and of reopening it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from installation import HERE, Installation
from measure import Row, median, quantile, spread


def journal(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """Each figure is measured inside one process (`recorded.py`), beside its reference."""
    taken: dict[str, list[dict[str, Any]]] = {installation.name: [] for installation in installations}
    for _ in range(max(3, rounds)):
        for installation in installations:
            taken[installation.name].append(_measure(installation))
    return [row for installation in installations for row in _rows(installation.name, taken[installation.name])]


def _measure(installation: Installation) -> dict[str, Any]:
    argv = [installation.python, str(HERE / "recorded.py")]
    output = subprocess.run(argv, env=installation.env, capture_output=True, check=True).stdout
    figures: dict[str, Any] = json.loads(output)
    return figures


def _rows(installation: str, taken: Sequence[dict[str, Any]]) -> list[Row]:
    def ratio(of: Callable[[dict[str, Any]], float]) -> tuple[float, float]:
        ratios = [of(figures) for figures in taken]
        return median(ratios), spread(ratios)

    def middle(name: str) -> float:
        return median([figures[name] for figures in taken])

    reopen, reopen_spread = ratio(lambda figures: figures["reopen"] / figures["decode"])
    agent, agent_spread = ratio(lambda figures: figures["agent, memory"] / figures["agent, journal"])
    latencies = [latency for figures in taken for latency in figures["latencies"]]
    return [
        Row("journal: reopen 2,000 messages", installation, reopen, "x msgspec", at_most=4.0, spread=reopen_spread,
            detail=f"{middle('reopen') * 1e3:.1f} ms / {middle('decode') * 1e3:.1f} ms"),
        Row("journal: streaming, whole agent", installation, agent, "x memory", at_least=0.6, spread=agent_spread,
            detail=f"{middle('agent, memory') * 1e3:.0f} ms / {middle('agent, journal') * 1e3:.0f} ms"),
        Row("journal: appending alone", installation, 64 / middle("journal") / 1e3, "M rows/s",
            detail=f"memory: {64 / middle('memory') / 1e3:.1f}"),
        Row("journal: append to safe, p50", installation, quantile(latencies, 0.5) * 1e3, "ms",
            detail=f"p99 {quantile(latencies, 0.99) * 1e3:.2f} ms"),
    ]  # fmt: skip
