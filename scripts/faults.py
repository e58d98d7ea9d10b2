"""`make faults`: each system call on our own files fails once, and zot dies at each of them once.

strace runs a command and records which calls it makes on files of its home. Then the command runs again for each of
them: strace lets that call fail, or kills the process when it makes it. A failure must end in one line that names a
file, never in a traceback or an internal error; after a death, the journal is whole and its session can be resumed.

With --sample N, only N points are tried, spread evenly. Where strace is missing, or may not trace, nothing is tried:
the output says so, and it is an error if the variable CI is set.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from zot.errors import StoreFailed
from zot.journal.journal import Journal
from zot.journal.repair import check_file

#: How long one command may take under strace. Only a command that hangs takes so long.
PATIENCE_S = 120
WORKERS = 2
#: So many calls of one kind on one file are made to fail, from the first on: later ones fail in the same places.
MOST = 12
CALLS = (
    "openat,read,pread64,write,pwrite64,fsync,fdatasync,ftruncate,fallocate,fcntl,flock,newfstatat,mmap,unlink,"
    "rename,link,mkdir,chmod,fchmod,getdents64,bind,connect"
)
#: The injected error: by default a failing disk.
ERRORS = {"write": "ENOSPC", "pwrite64": "ENOSPC", "mmap": "ENOMEM", "connect": "EACCES", "bind": "EACCES"}
#: The calls at which a death leaves something half done.
DEADLY = frozenset({"openat", "write", "pwrite64", "fdatasync", "fsync", "ftruncate", "unlink", "rename", "link"})

LAB = ("--provider", "lab")
REQUEST = b'{"request_id":"r","session_id":"s","prompt":"!bash echo ran","idempotency_key":"k","timeout_ms":100000}\n'
PROMPT = b'{"type":"prompt","id":"1","message":"!echo after"}\n'


CONVERSATION = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n'
    b'{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"agentAlias":"default","sessionId":"s"}}\n'
    b'{"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"s","prompt":"!bash echo after"}}\n'
)


class Scenario(NamedTuple):
    """A command, its input, and the text that its output has on success. ``fresh``: its home is empty."""

    argv: tuple[str, ...]
    expects: str
    given: bytes = b""
    fresh: bool = False
    dies: bool = False


SCENARIOS: dict[str, Scenario] = {
    "first prompt": Scenario(("-p", "!echo after", *LAB, "--session", "new"), "after", fresh=True, dies=True),
    "prompt": Scenario(("-p", "!bash echo after", *LAB, "--session", "s"), "finished.", dies=True),
    "resume": Scenario(("-p", "!echo after", *LAB, "--resume", "s"), "after"),
    "json": Scenario(("--json", "!echo after", *LAB, "--session", "s"), "after"),
    "rpc": Scenario(("rpc", *LAB, "--session", "s"), "after", PROMPT),
    "host": Scenario(("host", *LAB, "--policy", "*=allow"), '"ok":true', REQUEST, dies=True),
    "daemon": Scenario(("daemon", *LAB, "--ephemeral", "--socket", "socket"), '"end_turn"', dies=True),
    "list": Scenario(("sessions", "list", "--all"), "before"),
    "show": Scenario(("sessions", "show", "s"), "before"),
    "search": Scenario(("sessions", "search", "before"), "before"),
    "export": Scenario(("sessions", "export", "s", "-o", "{home}/out.jsonl"), ""),
    "page": Scenario(("sessions", "export", "s", "--html", "-o", "{home}/out.html"), ""),
    "import": Scenario(("sessions", "import", "{home}/in.jsonl", "--as", "copy"), "copy", dies=True),
    "fork": Scenario(("sessions", "fork", "s", "--as", "copy"), "copy", dies=True),
    "rename": Scenario(("sessions", "rename", "s", "Another title"), "Another title"),
    "delete": Scenario(("sessions", "delete", "s", "--yes"), "removed", dies=True),
    "gc": Scenario(("sessions", "gc"), "0 unused images", dies=True),
    "check": Scenario(("sessions", "check"), "as it was written"),
    "backup": Scenario(("sessions", "backup", "{home}/copy.db"), "", dies=True),
    "rewind": Scenario(("sessions", "rewind", "s", "--messages", "3"), ""),
    "config": Scenario(("config",), ""),
    "extensions": Scenario(("ext", "list"), ""),
    "doctor": Scenario(("doctor", *LAB), ""),
}  # fmt: skip


class Point(NamedTuple):
    """The ``nth`` call of a kind on a file, in one thread, and its fault: an error, or a kill."""

    scenario: str
    call: str
    file: str
    nth: int
    dies: bool

    def __str__(self) -> str:
        what = "dies at" if self.dies else f"{ERRORS.get(self.call, 'EIO')} from"
        return f"{self.scenario}: {what} {self.call} number {self.nth} on {self.file}"

    def inject(self) -> str:
        """Return the options of strace."""
        what = "signal=KILL" if self.dies else f"error={ERRORS.get(self.call, 'EIO')}"
        return f"inject={self.call}:{what}:when={self.nth}"


class Ended(NamedTuple):
    """The result of a command, and the output of strace."""

    code: int | None
    out: str
    err: str
    trace: str


class Place:
    """A directory to run in; ``kept`` is its home."""

    def __init__(self, directory: Path, seed: Path | None) -> None:
        self.directory = directory
        self.home = directory / "kept"
        if seed is not None:
            shutil.copytree(seed, self.home)

    def run(self, scenario: Scenario, *strace: str) -> Ended:
        """Run a command to its end, under strace if there are options for it."""
        trace = self.directory / "trace"
        tracer = ["strace", "-f", "-qq", "-y", "-s", "0", *strace, "-o", str(trace)] if strace else []
        process = subprocess.Popen(
            [*tracer, sys.executable, "-m", "zot", *(word.format(home=self.home) for word in scenario.argv)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.directory, env=self.env,
            start_new_session=True,
        )  # fmt: skip
        heard = self._converse(process) if scenario.argv[0] == "daemon" else b""
        try:
            out, err = process.communicate(scenario.given, timeout=PATIENCE_S)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            code = None
        written = trace.read_text(errors="replace") if trace.exists() else ""
        return Ended(code, (heard + out).decode(errors="replace"), err.decode(errors="replace"), written)

    def _converse(self, process: subprocess.Popen[bytes]) -> bytes:
        """Prompt the daemon as soon as it listens; return what it says up to its answer, or until it ends."""
        deadline, heard = time.monotonic() + PATIENCE_S, b""
        while process.poll() is None and time.monotonic() < deadline:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(PATIENCE_S)
                try:
                    client.connect(str(self.directory / "socket"))
                    client.sendall(CONVERSATION)
                    while b'"id":3' not in heard and (data := client.recv(1 << 16)):
                        heard += data
                except (FileNotFoundError, ConnectionRefusedError):
                    time.sleep(0.02)  # Not yet.
                except OSError:
                    return heard
                else:
                    return heard
        return heard

    @property
    def env(self) -> dict[str, str]:
        """The environment: only PATH, and an empty home."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
        return {**kept, "HOME": str(self.directory), "ZOT_HOME": str(self.home), "PYTHONDONTWRITEBYTECODE": "1"}


def main() -> int:
    """Try the requested points; return 1 if a check failed."""
    options = _options()
    if (reason := _cannot_trace()) is not None:
        print(f"faults: nothing was tried: {reason}")
        return 1 if os.environ.get("CI") else 0
    logging.disable()  # Problems of a journal are reported below.
    with tempfile.TemporaryDirectory(prefix="zot-faults-") as directory:
        seed = _seed(Path(directory))
        names = options.only or list(SCENARIOS)
        points = [point for name in names for point in _points(name, Path(directory), seed)]
        if options.sample:
            points.sort(key=lambda point: point.dies)  # So that a small sample has both.
            points = points[:: max(1, -(-len(points) // options.sample))]
        complaints, unreached = [], 0
        with ThreadPoolExecutor(WORKERS) as pool:
            for point, found in zip(points, pool.map(lambda point: _tried(point, seed), points), strict=True):
                unreached += found is None
                for complaint in found or ():
                    complaints.append(complaint)
                    print(f"{point}: {complaint}", flush=True)
    deaths = sum(point.dies for point in points)
    print(f"faults: {len(points) - deaths} failures, {deaths} deaths, {unreached} not reached; {len(complaints)} wrong")
    return 1 if complaints else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/faults.py", description=__doc__)
    parser.add_argument("--sample", type=int, metavar="N", help="try only N points")
    parser.add_argument("--only", action="append", choices=list(SCENARIOS), metavar="NAME",
                        help=f"only this command, repeatable: {', '.join(SCENARIOS)}")  # fmt: skip
    return parser.parse_args()


def _cannot_trace() -> str | None:
    """Return why strace cannot be used; None if it can."""
    if shutil.which("strace") is None:
        return "there is no strace; install it"
    tried = subprocess.run(["strace", "-qq", "-o", os.devnull, "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"strace may not trace processes here: {tried.stderr.strip()}"


def _seed(directory: Path) -> Path:
    """Return a home with a session, and one that was exported."""
    made = Place(directory / "seed", None)
    made.directory.mkdir()
    for argv in (
        ("-p", "!bash echo before", *LAB, "--session", "s"),
        ("-p", "!echo before", *LAB, "--session", "other"),
        ("sessions", "export", "s", "-o", "{home}/in.jsonl"),
    ):
        ended = made.run(Scenario(argv, ""))
        assert ended.code == 0, ended
    return made.home


def _points(name: str, directory: Path, seed: Path) -> Iterator[Point]:
    """Run a command as it is, and yield the calls that it makes on its own files."""
    scenario = SCENARIOS[name]
    place = Place(Path(tempfile.mkdtemp(dir=directory)), None if scenario.fresh else seed)
    ended = place.run(scenario, "-e", f"trace={CALLS}")
    assert ended.code == 0, (name, ended.code, ended.err)
    assert scenario.expects in ended.out, (name, ended.out)
    counts: Counter[tuple[str, str, str]] = Counter()
    for thread, call, file in _calls(ended.trace, place.directory):
        counts[call, file, thread] += 1
    most: dict[tuple[str, str], int] = {}
    for (call, file, _), count in counts.items():
        most[call, file] = max(count, most.get((call, file), 0))
    for (call, file), count in most.items():
        for dies in (False, True) if scenario.dies and call in DEADLY else (False,):
            yield from (Point(name, call, file, nth, dies) for nth in range(1, min(count, MOST) + 1))


def _calls(trace: str, directory: Path) -> Iterator[tuple[str, str, str]]:
    """Yield thread, name and file of each call on a file of the home: one that was open, or that is named."""
    line = re.compile(rf'(\d+) +(\w+)\(.*?[<"]{re.escape(str(directory))}/(kept[^">]*)[">]')
    for text in trace.split("\n"):
        if match := line.match(text):
            thread, call, file = match.groups()
            # The same file must be met again: names that SQLite and tempfile make up change with each run.
            if not file.rpartition("/")[2].startswith((".copy.db-", "etilqs")):
                yield thread, call, file


def _tried(point: Point, seed: Path) -> list[str] | None:
    """Run a command with one fault; return the problem, None if the fault was not reached."""
    scenario = SCENARIOS[point.scenario]
    with tempfile.TemporaryDirectory(prefix="zot-fault-") as directory:
        place = Place(Path(directory), None if scenario.fresh else seed)
        path = str(place.directory / point.file)
        ended = place.run(scenario, "-P", path, "-e", f"trace={point.call}", "-e", point.inject())
        if not point.dies and "(INJECTED)" not in ended.trace:
            return None
        wrong = [] if point.dies and ended.code in (-9, 137) else _wrong(scenario, ended, place)
        return [*wrong, *_left(place)]


def _wrong(scenario: Scenario, ended: Ended, place: Place) -> list[str]:
    told = ended.out + ended.err
    if ended.code is None:
        return [f"it hangs: {told}"]
    signs = ("Traceback (most recent call last)", "internal error", "unexpected error", "Exception ignored")
    found = [f"{sign!r} is shown: {told}" for sign in signs if sign in told]
    is_answered = ended.code == 0 and scenario.expects in ended.out
    if not is_answered and str(place.home) not in told:
        found.append(f"it fails with exit code {ended.code}, and names no file: {told}")
    if (
        not is_answered and ended.code == 0 and scenario.argv[0] not in ("rpc", "host", "daemon")
    ):  # their answers say it
        found.append(f"it succeeds without an answer: {told}")
    return found


def _left(place: Place) -> list[str]:
    """Return the problems of the journal, none if it does not exist."""
    path = str(place.home / "journal.db")
    if not os.path.exists(path):
        return []
    try:
        sessions = asyncio.run(_resumed(path))
        report = check_file(path)
    except StoreFailed as problem:
        return [f"the journal cannot be used afterwards: {problem}"]
    copies = [file.name for file in place.home.iterdir() if ".damaged-" in file.name]
    return [f"the journal has {what} afterwards" for what in (*report.problems, *copies)] + [
        f"session {name!r} cannot be resumed" for name in sessions
    ]


async def _resumed(path: str) -> Sequence[str]:
    """Resume every session; return those that have nothing to resume although there are messages."""
    journal = await Journal.open(path)
    try:
        empty = []
        for session in await journal.sessions():
            record, past = await journal.resume(session.id, create=False)
            empty += [session.id] if record.last_seq and not past.changes else []
        return empty
    finally:
        await journal.close()


if __name__ == "__main__":
    sys.exit(main())
