"""Growth: what a turn costs late in a long session, against an early one, and how much memory it takes."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from measure import Row, median, spread
from subject import HERE, Subject

_TURNS = 210
_EARLY = slice(1, 21)
_LATE = slice(189, 210)
_WARM = 20
#: A conversation is compacted every 200 turns or so, so these see the same, many times.
_MANY = 10_000
_YOUNG = slice(1_000, 3_000)
_OLD = slice(8_000, 10_000)


def growth(subjects: Sequence[Subject], rounds: int) -> list[Row]:
    """Turns 190 to 210 against turns 2 to 21 of the same session: a prompt, a tool call, an answer each."""
    times: dict[str, list[tuple[float, float]]] = {subject.name: [] for subject in subjects}
    for _ in range(max(3, rounds // 5)):
        for subject in subjects:
            turns = _turns(subject)
            times[subject.name].append((median(turns[_EARLY]), median(turns[_LATE])))
    return [row for subject in subjects for row in (_row(subject.name, times[subject.name]), _kept(subject))]


def _kept(subject: Subject) -> Row:
    """A warm turn in a journal: two of its transactions wait for the disk, which the reference does, too."""
    with tempfile.TemporaryDirectory(prefix="zot-bench-") as directory:
        kept = median(_run(subject, str(_WARM + 40), f"{directory}/journal.db")["times"][_WARM:])
        synced = median([_sync_s(Path(directory) / "synced", number) for number in range(40)])
    memory = median(_turns(subject)[_EARLY])
    detail = f"{kept * 1e3:.2f} ms / ({memory * 1e3:.2f} ms in memory + 2 syncs of {synced * 1e3:.2f} ms)"
    return Row("session: a warm turn, kept", subject.name, kept / (memory + 2 * synced), detail=detail)


def _sync_s(path: Path, number: int) -> float:
    """Return how long the disk takes to have one more page of a file."""
    with open(path, "ab") as file:
        file.write(bytes([number]) * 4096)
        file.flush()
        began = perf_counter()
        os.fsync(file.fileno())
        return perf_counter() - began


def endurance(subjects: Sequence[Subject], rounds: int) -> list[Row]:
    """One session of 10,000 turns, in a journal: its last 2,000 turns against those after the first 1,000."""
    del rounds
    return [row for subject in subjects for row in _endurance(subject)]


def _endurance(subject: Subject) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="zot-bench-") as directory:
        run = _run(subject, str(_MANY), f"{directory}/journal.db")
    times, memory = run["cpu"], run["resident_mb"]
    early, late = median(times[_YOUNG]), median(times[_OLD])
    began, ended = max(memory[_hundreds(_YOUNG)]), max(memory[_hundreds(_OLD)])
    return [
        Row("session: turn 9,000 / turn 2,000", subject.name, late / early, at_most=1.1,
            detail=f"{late * 1e3:.2f} ms / {early * 1e3:.2f} ms of the processor, with a journal"),
        Row("session: memory of these turns", subject.name, ended / began, at_most=1.05,
            detail=f"{ended:.1f} MB / {began:.1f} MB"),
    ]  # fmt: skip


def _hundreds(turns: slice) -> slice:
    return slice(turns.start // 100, turns.stop // 100)


def _turns(subject: Subject) -> list[float]:
    return _run(subject, str(_TURNS))["times"]


def _run(subject: Subject, *arguments: str) -> dict[str, list[float]]:
    argv = [subject.python, str(HERE / "turns.py"), *arguments]
    output = subprocess.run(argv, env=subject.env, capture_output=True, check=True).stdout
    found: dict[str, list[float]] = json.loads(output)
    return found


def _row(subject: str, times: Sequence[tuple[float, float]]) -> Row:
    ratios = [late / early for early, late in times]
    early, late = median([early for early, _ in times]), median([late for _, late in times])
    detail = f"{late * 1e3:.2f} ms / {early * 1e3:.2f} ms"
    return Row("session: turn 200 / turn 1", subject, median(ratios), at_most=1.3, spread=spread(ratios), detail=detail)
