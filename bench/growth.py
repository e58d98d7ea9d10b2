"""Growth: what a turn costs late in a long session, against an early one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

from measure import Row, median, spread
from subject import HERE, Subject

_TURNS = 210
_EARLY = slice(1, 21)
_LATE = slice(189, 210)


def growth(subjects: Sequence[Subject], rounds: int) -> list[Row]:
    """Turns 190 to 210 against turns 2 to 21 of the same session: a prompt, a tool call, an answer each."""
    times: dict[str, list[tuple[float, float]]] = {subject.name: [] for subject in subjects}
    for _ in range(max(3, rounds // 5)):
        for subject in subjects:
            turns = _turns(subject)
            times[subject.name].append((median(turns[_EARLY]), median(turns[_LATE])))
    return [_row(subject.name, times[subject.name]) for subject in subjects]


def _turns(subject: Subject) -> list[float]:
    argv = [subject.python, str(HERE / "turns.py"), str(_TURNS)]
    output = subprocess.run(argv, env=subject.env, capture_output=True, check=True).stdout
    turns: list[float] = json.loads(output)
    return turns


def _row(subject: str, times: Sequence[tuple[float, float]]) -> Row:
    ratios = [late / early for early, late in times]
    early, late = median([early for early, _ in times]), median([late for _, late in times])
    detail = f"{late * 1e3:.2f} ms / {early * 1e3:.2f} ms"
    return Row("session: turn 200 / turn 1", subject, median(ratios), at_most=1.3, spread=spread(ratios), detail=detail)
