"""Extensions: the cost of an intercepted call, and the delay of the first prompt by ten extensions."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from installation import HERE, Installation
from measure import Row, median, spread


def extensions(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """A Python extension that allows a call; ten of them against the same ten processes, started without zot."""
    found: dict[str, list[dict[str, Any]]] = {installation.name: [] for installation in installations}
    for _ in range(rounds):
        for installation in installations:
            argv = [installation.python, str(HERE / "guarded.py")]
            done = subprocess.run(argv, env=installation.env, capture_output=True, check=True)
            found[installation.name].append(json.loads(done.stdout))
    return [row for installation in installations for row in _rows(installation.name, found[installation.name])]


def _rows(installation: str, runs: Sequence[dict[str, Any]]) -> list[Row]:
    asked = [median(run["asked"]) * 1e3 for run in runs]
    ratios = [run["ours"] / run["bare"] for run in runs]
    ours, bare = (median([run[name] for run in runs]) * 1e3 for name in ("ours", "bare"))
    return [
        Row("extensions: intercept, p50", installation, median(asked), unit="ms", at_most=1.0, spread=spread(asked)),
        Row("extensions: start of ten", installation, median(ratios), at_most=1.5, spread=spread(ratios),
            detail=f"{ours:.0f} ms / {bare:.0f} ms"),
    ]  # fmt: skip
