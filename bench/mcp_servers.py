"""MCP servers that sleep: what they add to opening a session, and to its first request to the model."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from installation import Installation
from measure import Row, median, spread
from process import Process, rpc

_SERVERS = 25
_SLEEP = "import time; time.sleep(20)"
_STATE = b'{"type":"get_state"}\n'
_PROMPT = b'{"type":"prompt","message":"!script say hi"}\n'
_DELTA = b'"type":"text_delta"'


def sleeping_servers(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """`zot rpc` beside 25 servers that sleep for 20 s, against the same without servers."""
    taken = {(one.name, count): list[tuple[float, float]]() for one in installations for count in (0, _SERVERS)}
    for number in range(rounds + 1):
        for installation in installations:
            for count in (0, _SERVERS) if number % 2 else (_SERVERS, 0):
                sample = _sample(installation, count)
                if number:  # The first round warms up.
                    taken[installation.name, count].append(sample)
    rows = []
    names = (("mcp: first request beside 25 servers", 1, 5.0), ("mcp: opening a session with 25 servers", 0, 10.0))
    for name, index, at_most in names:
        for installation in installations:
            none, many = ([one[index] * 1e3 for one in taken[installation.name, count]] for count in (0, _SERVERS))
            added = median(many) - median(none)
            detail = f"{median(many):.1f} ms, without servers {median(none):.1f} ms"
            rows.append(Row(name, installation.name, added, "ms", at_most, spread=spread(many), detail=detail))
    return rows


def _sample(installation: Installation, count: int) -> tuple[float, float]:
    """Return the times to the answer to `get_state`, which opens the session, and from a prompt to its first delta."""
    flags = [word for number in range(count) for word in ("--mcp", f"s{number}={installation.python} -c '{_SLEEP}'")]
    with Process(rpc(installation, "--provider", "lab", *flags), installation) as process:
        process.write(_STATE)
        opened = process.until(b"\n")
        begun = perf_counter()
        process.write(_PROMPT)
        return opened - process.started, process.until(_DELTA) - begun
