"""Extensions: what a question to one costs, and how long ten of them keep the first prompt waiting."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from measure import Row, median, spread
from subject import HERE, Subject


def extensions(subjects: Sequence[Subject], rounds: int) -> list[Row]:
    """A Python extension that lets a call pass; ten of them against the same ten processes, started without zot."""
    found: dict[str, list[dict[str, Any]]] = {subject.name: [] for subject in subjects}
    for _ in range(rounds):
        for subject in subjects:
            argv = [subject.python, str(HERE / "guarded.py")]
            done = subprocess.run(argv, env=subject.env, capture_output=True, check=True)
            found[subject.name].append(json.loads(done.stdout))
    return [row for subject in subjects for row in _rows(subject.name, found[subject.name])]


def _rows(subject: str, runs: Sequence[dict[str, Any]]) -> list[Row]:
    asked = [median(run["asked"]) * 1e3 for run in runs]
    ratios = [run["ours"] / run["bare"] for run in runs]
    ours, bare = (median([run[name] for run in runs]) * 1e3 for name in ("ours", "bare"))
    return [
        Row("extensions: intercept, p50", subject, median(asked), unit="ms", at_most=1.0, spread=spread(asked)),
        Row("extensions: start of ten", subject, median(ratios), at_most=1.5, spread=spread(ratios),
            detail=f"{ours:.0f} ms / {bare:.0f} ms"),
    ]  # fmt: skip
