"""Abort: from writing it to reading `done`, while the model streams."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from installation import Installation
from measure import Row, median, quantile, spread
from process import PROMPT, Process, streaming_rpc
from service import Service

_ABORT = b'{"type":"abort"}\n'
_DELTA = b'"type":"text_delta"'
_DONE = b'{"type":"done"}\n'


def abort(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """The 99th percentile; for the record also under a flood that exceeds the reader."""
    rows = []
    with Service(installations[0]) as service:
        for name, path, at_most in (("abort: p99", "/endless", 10.0), ("abort: p99, flooded", "/flood", None)):
            delays: dict[str, list[float]] = {installation.name: [] for installation in installations}
            for _ in range(max(2, rounds // 4)):
                for installation in installations:
                    delays[installation.name] += _delays(installation, service.url(path))
            rows += [
                _row(name, installation.name, delays[installation.name], at_most) for installation in installations
            ]
    return rows


def _delays(installation: Installation, url: str, times: int = 50) -> list[float]:
    delays = []
    with Process(streaming_rpc(installation, url), installation) as process:
        for number in range(times):
            process.write(PROMPT)
            # At a different moment of the stream each time.
            for _ in range(1 + number % 20):
                process.until(_DELTA)
            started = perf_counter()
            process.write(_ABORT)
            delays.append(process.until(_DONE) - started)
    return delays[1:]


def _row(name: str, installation: str, delays: Sequence[float], at_most: float | None) -> Row:
    return Row(
        name,
        installation,
        quantile(delays, 0.99) * 1e3,
        "ms",
        at_most=at_most,
        spread=spread(delays),
        detail=f"p50 {median(delays) * 1e3:.2f} ms, worst {max(delays) * 1e3:.2f} ms of {len(delays)}",
    )
