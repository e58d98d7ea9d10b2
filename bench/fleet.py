"""A fleet on one machine: prompts and deltas through PostgreSQL, gateway and workers, beside one daemon with SQLite."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace

from daemon import Client
from installation import ROOT, Installation
from measure import Row, interleave, median, quantile, spread
from process import Process

_POSTGRES = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "postgres.py")))
_PACKAGES = ("psycopg[binary]", "procrastinate")
#: Sessions that prompt at once, prompts of each in a sample, and the prompts that are timed alone.
_SESSIONS, _PROMPTS, _ALONE = 16, 4, 12
_EVENTS = (
    b'{"jsonrpc":"2.0","method":"initialize","id":"events","params":{"protocolVersion":1,"features":["events"]}}\n'
)
#: The time from an append to its being safe, for a store.
_APPENDS = """
import asyncio, json, statistics, sys, time
from zot.events import TextDelta
from zot.journal.opening import open_journal

async def main():
    journal = await open_journal(sys.argv[1])
    record = await journal.record("appends")
    await record.begin()
    taken = []
    for _ in range(300):
        began = time.perf_counter()
        record.append([TextDelta("word ")], run=1)
        await record.settled()
        taken.append(time.perf_counter() - began)
    record.end()
    await journal.close()
    print(json.dumps(statistics.median(taken)))

asyncio.run(main())
"""


def fleet(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """All figures of a fleet. Installs the packages of the extra, so it comes after what measures start-up."""
    return [row for installation in installations for row in _rows(installation, rounds)]


def _rows(installation: Installation, rounds: int) -> list[Row]:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python", installation.python]
    subprocess.run([*pip, "install", "--constraint", str(ROOT / "constraints.txt"), *_PACKAGES], check=True)
    with ExitStack() as stack:
        server = _POSTGRES.Server(fast=False)
        stack.callback(server.close)
        for workers in (1, 2):
            server.execute(f"CREATE DATABASE workers{workers}")
        server.execute("CREATE DATABASE appends")
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="zot-bench-fleet-"))
        stores = {
            "SQLite": None, "1 worker": server.address("workers1"), "2 workers": server.address("workers2"),
        }  # fmt: skip
        clients = {
            name: stack.enter_context(
                _serving(installation, Path(directory), store, int(store is not None and name[0]))
            )
            for name, store in stores.items()
        }
        rates = interleave({name: partial(_rate, client) for name, client in clients.items()}, rounds)
        delays = interleave({name: partial(_delay, client) for name, client in clients.items()}, rounds)
        appends = {
            "SQLite": _appended(installation, f"{directory}/appends.db"),
            "PostgreSQL": _appended(installation, server.address("appends")),
        }
    return [*_compared(installation.name, rates, delays), _append_row(installation.name, appends)]


def _compared(
    installation: str, rates: Mapping[str, Sequence[float]], delays: Mapping[str, Sequence[float]]
) -> list[Row]:
    least_rate, least_delay = median(rates["SQLite"]), median(delays["SQLite"])
    rows = []
    for name in ("1 worker", "2 workers"):
        rate, delay = median(rates[name]), median(delays[name])
        detail = f"{rate:.0f} /s / {least_rate:.0f} /s"
        rows.append(
            Row(f"fleet: prompts, {name}", installation, rate / least_rate, "x SQLite", spread=spread(rates[name]),
                detail=detail)
        )  # fmt: skip
        rows.append(
            Row(f"fleet: later first delta, {name}", installation, (delay - least_delay) * 1e3, "ms",
                spread=spread(delays[name]), detail=f"{delay * 1e3:.1f} ms - {least_delay * 1e3:.1f} ms")
        )  # fmt: skip
    return rows


def _append_row(installation: str, appends: Mapping[str, float]) -> Row:
    detail = f"SQLite {appends['SQLite'] * 1e3:.2f} ms"
    return Row("fleet: append to safe, p50", installation, appends["PostgreSQL"] * 1e3, "ms", detail=detail)


@contextmanager
def _serving(installation: Installation, directory: Path, store: str | None, workers: int) -> Iterator[Client]:
    """Yield a client of a daemon with a file, or of a gateway with ``workers``."""
    home = directory / f"{workers}"
    home.mkdir()
    flags = ["--provider", "lab", "--config-dir", str(home), *(["--store", store] if store else [])]
    with ExitStack() as stack:
        path = f"{home}/d.sock"
        stack.enter_context(Process([installation.zot, "daemon", *flags, "--socket", path], installation))
        client = Client(path)
        client.ask(_EVENTS, b'"id":"events"')
        for _ in range(workers):
            stack.enter_context(Process([installation.zot, "worker", *flags, "--concurrency", "16"], installation))
        for number in range(_SESSIONS):
            client.open(f"s{number}")
        _rate(client)  # Everything is imported, and every session loaded.
        yield client


def _prompt(session: str, text: str) -> bytes:
    params = {"sessionId": session, "prompt": text}
    call = {"jsonrpc": "2.0", "id": f"p-{session}", "method": "session/prompt", "params": params}
    return json.dumps(call, separators=(",", ":")).encode() + b"\n"


def _rate(client: Client) -> float:
    """Return prompts per second, of many sessions at once."""
    begin = perf_counter()
    for _ in range(_PROMPTS):
        client.socket.sendall(b"".join(_prompt(f"s{number}", "!echo hi") for number in range(_SESSIONS)))
        for _ in range(_SESSIONS):
            client.ask(b"", b'"id":"p-')
    return _SESSIONS * _PROMPTS / (perf_counter() - begin)


def _delay(client: Client) -> float:
    """Return the median time from a prompt to its first delta, while nothing else runs."""
    delays = []
    for _ in range(_ALONE):
        begin = perf_counter()
        client.ask(_prompt("s0", "!echo hi"), b'"text_delta"')
        delays.append(perf_counter() - begin)
        client.ask(b"", b'"id":"p-s0"')
    return quantile(delays, 0.5)


def _appended(installation: Installation, store: str) -> float:
    argv = [installation.python, "-c", _APPENDS, store]
    return float(subprocess.run(argv, env={**os.environ, **installation.env}, capture_output=True, check=True).stdout)
