"""`make bench`: is zot as fast as promised? Ratios to references taken in the same run, against their budgets.

docs/explanation/performance.md says what is compared with what and how to read the table.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from abort import abort
from acp_turns import editor
from daemon import daemon
from fleet import fleet
from growth import endurance, growth
from installation import ROOT, Installation, install
from mcp_servers import sleeping_servers
from measure import Row, table
from memory import memory
from questions import extensions
from startup import bad_request, extension, first_delta, hello, version
from storage import journal
from stream import apis, latency, throughput
from terminal import terminal

#: Each with the number of rounds of a full run.
_MEASUREMENTS: Mapping[str, tuple[Callable[[Sequence[Installation], int], list[Row]], int]] = {
    "version": (version, 60),
    "hello": (hello, 100),
    "bad-request": (bad_request, 100),
    "extension-hello": (extension, 60),
    "first-delta": (first_delta, 30),
    "throughput": (throughput, 40),
    "apis": (apis, 15),
    "latency": (latency, 6),
    "abort": (abort, 24),
    "memory": (memory, 20),
    "growth": (growth, 25),
    "endurance": (endurance, 1),
    "journal": (journal, 10),
    "extensions": (extensions, 8),
    "mcp": (sleeping_servers, 20),
    "daemon": (daemon, 24),
    "editor": (editor, 24),
    "terminal": (terminal, 10),
    "fleet": (fleet, 10),  # The last: it installs further packages.
}
_QUICK = 5


def main() -> int:
    """Measure and print. Return 1 if a budget is missed or a row could not be measured."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="zot-bench-") as directory:
        sources = {"zot": ROOT, **({"before": options.against} if options.against else {})}
        installations = [install(name, source, Path(directory) / name) for name, source in sources.items()]
        rows: list[Row] = []
        failed = []
        for name in options.only or _MEASUREMENTS:
            measure, rounds = _MEASUREMENTS[name]
            _say(f"measuring {name} ...")
            try:
                rows += measure(installations, max(2, rounds // _QUICK) if options.quick else rounds)
            except Exception as problem:  # Such as another checkout that lacks a command. The other rows still count.
                failed.append(f"{name} could not be measured: {problem}")
        _say("")
    print(table(rows))
    for line in failed:
        print(line)
    return 0 if not failed and all(row.ok for row in rows if row.installation == "zot") else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/run.py", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds: a rough idea in a minute")
    parser.add_argument("--only", action="append", choices=list(_MEASUREMENTS), metavar="NAME",
                        help=f"only this, repeatable: {', '.join(_MEASUREMENTS)}")  # fmt: skip
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout, measured in the same rounds")
    return parser.parse_args()


def _say(text: str) -> None:
    """Show progress, on a terminal only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
