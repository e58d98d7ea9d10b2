"""The stream: deltas per second, and the added latency of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from time import perf_counter

from installation import Installation
from measure import Row, interleave, median, quantile, spread
from model import DELTAS, PACED
from process import PROMPT, Process, streaming_rpc
from service import Service, floor

_DELTA = b'"type":"text_delta"'
_DONE = b'{"type":"done"}'
_STAMP = re.compile(rb'"delta":"(\d+\.\d+)"')


def throughput(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """Tiny deltas, one event per chunk, at full speed: deltas per second, against the floor."""
    return _throughput(installations, rounds, "anthropic", at_least=0.4)


def apis(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """The same through each of the other APIs, against the same floor. Their events are longer."""
    others = ("responses", "chat", "gemini")
    return [row for api in others for row in _throughput(installations, rounds, api, at_least=0.3)]


def _throughput(installations: Sequence[Installation], rounds: int, api: str, *, at_least: float) -> list[Row]:
    first = installations[0]
    with Service(first) as service:
        samplers = {"floor": partial(_rate, floor(first, service, "/burst"), first)}
        for installation in installations:
            samplers[installation.name] = partial(
                _rate, streaming_rpc(installation, service.url("/burst"), api), installation
            )
        samples = interleave(samplers, rounds)
    least = median(samples["floor"])
    return [
        Row(
            "stream: deltas per second" if api == "anthropic" else f"stream: deltas per second, {api}",
            installation.name,
            median(samples[installation.name]) / least,
            "x floor",
            at_least=at_least,
            spread=spread(samples[installation.name]),
            detail=f"{median(samples[installation.name]) / 1e3:.0f} k/s / {least / 1e3:.0f} k/s",
        )
        for installation in installations
    ]


def latency(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """Paced deltas: the median delay of each, against the floor."""
    first = installations[0]
    with Service(first) as service:
        samplers = {"floor": partial(_delay, floor(first, service, "/paced"), first)}
        for installation in installations:
            samplers[installation.name] = partial(
                _delay, streaming_rpc(installation, service.url("/paced")), installation
            )
        samples = interleave(samplers, rounds)
    least = median(samples["floor"])
    return [
        Row(
            "stream: p50 added latency",
            installation.name,
            (median(samples[installation.name]) - least) * 1e3,
            "ms",
            at_most=0.4,
            spread=spread(samples[installation.name]),
            detail=f"{median(samples[installation.name]) * 1e3:.2f} ms - {least * 1e3:.2f} ms",
        )
        for installation in installations
    ]


def _rate(argv: Sequence[str], installation: Installation) -> float:
    """Return deltas per second, from the moment the service sends them to the moment the last is read."""
    blocks: list[tuple[float, bytes]] = []
    with Process(argv, installation) as process:
        process.write(PROMPT)
        tail = b""
        while _DONE not in tail:
            data = process.read()
            blocks.append((perf_counter(), data))
            tail = tail[-len(_DONE) :] + data
    output = b"".join(data for _, data in blocks)
    found = output.count(_DELTA)
    if found != DELTAS:
        raise AssertionError(f"{argv[0]} printed {found} deltas of {DELTAS}")
    stamp = _STAMP.search(output)
    assert stamp is not None
    return DELTAS / (_time_of(output.rfind(_DELTA), blocks) - float(stamp[1]))


def _time_of(offset: int, blocks: Sequence[tuple[float, bytes]]) -> float:
    """Return when the byte at ``offset`` was read."""
    seen = 0
    for time, data in blocks:
        seen += len(data)
        if seen > offset:
            return time
    raise AssertionError("offset beyond the end")


def _delay(argv: Sequence[str], installation: Installation) -> float:
    """Return the median time from the service's write to our read, in seconds."""
    delays = []
    with Process(argv, installation) as process:
        process.write(PROMPT)
        tail = b""
        while _DONE not in tail:
            data = process.read()
            now = perf_counter()
            lines = (tail + data).split(b"\n")
            tail = lines[-1] or data[-len(_DONE) - 1 :]
            delays += [now - float(stamp[1]) for line in lines[:-1] if (stamp := _STAMP.search(line))]
    if len(delays) < PACED:
        raise AssertionError(f"{argv[0]} printed {len(delays)} deltas of {PACED + 1}")
    return quantile(delays[1:], 0.5)
