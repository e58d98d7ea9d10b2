"""Growth: the cost of a late turn in a long session against an early one, and the memory."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from installation import HERE, Installation
from measure import Row, median, spread

_TURNS = 210
_EARLY = slice(1, 21)
_LATE = slice(189, 210)
_WARM = 20
#: A conversation is compacted about every 200 turns, so both samples include many compactions.
_MANY = 10_000
_YOUNG = slice(1_000, 3_000)
_OLD = slice(8_000, 10_000)


def growth(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """Turns 190 to 210 against turns 2 to 21 of the same session: a prompt, a tool call, an answer each."""
    times: dict[str, list[tuple[float, float]]] = {installation.name: [] for installation in installations}
    for _ in range(max(3, rounds // 5)):
        for installation in installations:
            turns = _turns(installation)
            times[installation.name].append((median(turns[_EARLY]), median(turns[_LATE])))
    return [
        row
        for installation in installations
        for row in (_row(installation.name, times[installation.name]), _kept(installation))
    ]


def _kept(installation: Installation) -> Row:
    """A warm turn in a journal: two of its transactions wait for the disk, as does the reference."""
    with tempfile.TemporaryDirectory(prefix="zot-bench-") as directory:
        kept = median(_run(installation, str(_WARM + 40), f"{directory}/journal.db")["times"][_WARM:])
        synced = median([_sync_s(Path(directory) / "synced", number) for number in range(40)])
    memory = median(_turns(installation)[_EARLY])
    detail = f"{kept * 1e3:.2f} ms / ({memory * 1e3:.2f} ms in memory + 2 syncs of {synced * 1e3:.2f} ms)"
    return Row("session: a warm turn, kept", installation.name, kept / (memory + 2 * synced), detail=detail)


def _sync_s(path: Path, number: int) -> float:
    """Return how long the disk takes to sync one more page of a file."""
    with open(path, "ab") as file:
        file.write(bytes([number]) * 4096)
        file.flush()
        began = perf_counter()
        os.fsync(file.fileno())
        return perf_counter() - began


def endurance(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """One session of 10,000 turns, in a journal: its last 2,000 turns against those after the first 1,000."""
    del rounds
    return [row for installation in installations for row in _endurance(installation)]


def _endurance(installation: Installation) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="zot-bench-") as directory:
        run = _run(installation, str(_MANY), f"{directory}/journal.db")
    times, memory = run["cpu"], run["resident_mb"]
    early, late = median(times[_YOUNG]), median(times[_OLD])
    began, ended = max(memory[_hundreds(_YOUNG)]), max(memory[_hundreds(_OLD)])
    return [
        Row("session: turn 9,000 / turn 2,000", installation.name, late / early, at_most=1.1,
            detail=f"{late * 1e3:.2f} ms / {early * 1e3:.2f} ms of the processor, with a journal"),
        Row("session: memory of these turns", installation.name, ended / began, at_most=1.05,
            detail=f"{ended:.1f} MB / {began:.1f} MB"),
    ]  # fmt: skip


def _hundreds(turns: slice) -> slice:
    return slice(turns.start // 100, turns.stop // 100)


def _turns(installation: Installation) -> list[float]:
    return _run(installation, str(_TURNS))["times"]


def _run(installation: Installation, *arguments: str) -> dict[str, list[float]]:
    argv = [installation.python, str(HERE / "turns.py"), *arguments]
    output = subprocess.run(argv, env=installation.env, capture_output=True, check=True).stdout
    found: dict[str, list[float]] = json.loads(output)
    return found


def _row(installation: str, times: Sequence[tuple[float, float]]) -> Row:
    ratios = [late / early for early, late in times]
    early, late = median([early for early, _ in times]), median([late for _, late in times])
    detail = f"{late * 1e3:.2f} ms / {early * 1e3:.2f} ms"
    return Row(
        "session: turn 200 / turn 1", installation, median(ratios), at_most=1.3, spread=spread(ratios), detail=detail
    )
