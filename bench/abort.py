"""Abort: from writing it to reading `done`, while the model streams."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from measure import Row, median, quantile, spread
from process import PROMPT, Process, streaming_rpc
from service import Service
from subject import Subject

_ABORT = b'{"type":"abort"}\n'
_DELTA = b'"type":"text_delta"'
_DONE = b'{"type":"done"}\n'


def abort(subjects: Sequence[Subject], rounds: int) -> list[Row]:
    """How long the slowest but one in a hundred takes; for the record also while more comes than anybody can read."""
    rows = []
    with Service(subjects[0]) as service:
        for name, path, at_most in (("abort: p99", "/endless", 10.0), ("abort: p99, flooded", "/flood", None)):
            delays: dict[str, list[float]] = {subject.name: [] for subject in subjects}
            for _ in range(max(2, rounds // 4)):
                for subject in subjects:
                    delays[subject.name] += _delays(subject, service.url(path))
            rows += [_row(name, subject.name, delays[subject.name], at_most) for subject in subjects]
    return rows


def _delays(subject: Subject, url: str, times: int = 50) -> list[float]:
    delays = []
    with Process(streaming_rpc(subject, url), subject) as process:
        for number in range(times):
            process.write(PROMPT)
            # Another moment of the stream each time.
            for _ in range(1 + number % 20):
                process.until(_DELTA)
            started = perf_counter()
            process.write(_ABORT)
            delays.append(process.until(_DONE) - started)
    return delays[1:]


def _row(name: str, subject: str, delays: Sequence[float], at_most: float | None) -> Row:
    return Row(
        name,
        subject,
        quantile(delays, 0.99) * 1e3,
        "ms",
        at_most=at_most,
        spread=spread(delays),
        detail=f"p50 {median(delays) * 1e3:.2f} ms, worst {max(delays) * 1e3:.2f} ms of {len(delays)}",
    )
