"""`make mutants`: change the source in one small place at a time; a change that no test notices shows a gap.

A mutant changes one place of one module: a comparison, `and` and `or`, a `not`, a condition, a number, or a statement
that is dropped. The tests of its area (`AREAS`) run on a copy of the tree until one of them fails. A mutant that
survives is printed with its file, line and changed source: write a test that fails with it, or delete a line that
nothing needs. Some mutants change nothing that can be observed. Survivors are no failure: the exit code is 0.

With the same --seed, the same mutants are tried in the same order, until --seconds are over. --only takes a part of a
module's path. Where `unshare` can make a namespace of processes, each run has one: a mutant can neither signal other
processes nor leave one running. Elsewhere the modules that signal processes (`DANGEROUS`) are left out.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from threading import Lock
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SRC = Path("src/zot")

#: Modules, as patterns below the package, and the tests that cover them, as patterns below tests. Of those tests, the
#: files that import the module run first.
AREAS: dict[str, tuple[str, ...]] = {
    "journal/*.py": ("journal", "test_power_loss.py", "session/test_store.py"),
    "agent/*.py": ("agent", "session/test_session.py", "session/test_parking.py"),
    "session/*.py": ("session", "agent", "serve/test_abort.py", "serve/test_queue.py"),
    "serve/daemon/client_connection.py serve/daemon/feed.py serve/daemon/backlog.py serve/daemon/sockets.py": (
        "serve/daemon", "serve/test_schedules.py",
    ),
    "serve/host/*.py": ("serve/host",),
    "serve/streams.py serve/rpc.py serve/stdio.py": (
        "serve/test_stdio.py", "serve/test_lifetime.py", "serve/test_abort.py",
    ),
    "serve/daemon/claim.py client/endpoint.py": ("serve/daemon/test_claim.py", "serve/daemon/test_handover.py"),
    "tools/guardian.py tools/process.py tools/guardian_process/*.py": ("tools/test_guardian.py", "tools/test_bash.py"),
    "extensions/peer.py extensions/peer_connection.py extensions/manager.py extensions/supervisor.py": (
        "extensions/test_peer.py", "extensions/test_manager.py", "extensions/test_joining.py",
        "serve/daemon/test_guards.py",
    ),
    "runtime/idempotency.py": ("runtime/test_idempotency.py", "serve/host/test_once.py"),
    "wire/lines.py wire/jsonrpc.py": ("wire/test_lines.py", "wire/test_jsonrpc.py"),
}  # fmt: skip
#: Modules that send signals to processes by their number.
DANGEROUS = ("tools/", "serve/daemon/claim.py", "client/endpoint.py")

_COPIED = ("src", "tests", "docs", "examples", "scripts", "sdk", "bench")
_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
_FLIPPED: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Eq: ("!=",), ast.NotEq: ("==",), ast.Is: ("is not",), ast.IsNot: ("is",),
    ast.In: ("not in",), ast.NotIn: ("in",),
    ast.Lt: ("<=", ">="), ast.LtE: ("<", ">"), ast.Gt: (">=", "<="), ast.GtE: (">", "<"),
}  # fmt: skip
#: Numbers above this are limits: they become so many times as large, and others larger by one.
_SMALL, _TIMES = 10, 30
#: A run of tests that takes so long hangs.
_HANGS_S = 300.0
#: Calls that no test needs to notice.
_UNTOLD = frozenset({"log"})


class Mutant(NamedTuple):
    """One change: the text of a module, below `SRC`, and how the changed lines read."""

    module: str
    line: int
    before: str
    after: str
    source: str


class Outcome(NamedTuple):
    """How a run of tests ended: "killed" if one failed, and which."""

    verdict: str
    failed: str = ""


# Changes.


def mutants(module: str, source: str) -> Iterator[Mutant]:
    """Yield every mutant of a module that can be compiled."""
    data = source.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, text in _changes(ast.parse(source)):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        first, last = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        changed = (data[:first] + text.encode() + data[last:]).decode()
        try:
            compile(changed, module, "exec")
        except SyntaxError:
            continue
        before = " ".join(data[first:last].decode().split())
        yield Mutant(module, node.lineno, before, text, changed)


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield a part of a module and what takes its place."""
    for node in _reached(tree):
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                for other in _FLIPPED[type(operator)]:
                    yield node, f"({ast.unparse(left)} {other} {ast.unparse(right)})"
            case ast.BoolOp(op=operator, values=values):
                other = " or " if isinstance(operator, ast.And) else " and "
                yield node, "(" + other.join(f"({ast.unparse(value)})" for value in values) + ")"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield node, f"({ast.unparse(operand)})"
            case ast.Constant(value=bool(value)):
                yield node, str(not value)
            case ast.Constant(value=int(number)):
                yield node, str(number + 1 if number <= _SMALL else number * _TIMES)
            case ast.Constant(value=float(seconds)):
                yield node, str(seconds * _TIMES or 1.0)
            case ast.Raise() | ast.Delete() | ast.AugAssign():
                yield node, "pass"
            case ast.Expr(value=ast.Call() | ast.Await()) if not _is_untold(node.value):
                yield node, "pass"
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield node, "pass"
            case ast.If(test=ast.Name() | ast.Attribute() | ast.Call() as test):
                yield test, f"(not {ast.unparse(test)})"
            case _:
                pass


def _reached(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and what is below it, without annotations, decorators, formatted strings and type checking."""
    yield node
    match node:
        case ast.JoinedStr():
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            below: Sequence[ast.AST | None] = [*node.args.defaults, *node.args.kw_defaults, *node.body]
        case ast.ClassDef():
            below = node.body
        case ast.AnnAssign():
            below = [node.value]
        case _:
            below = [*ast.iter_child_nodes(node)]
    for one in below:
        if one is not None:
            yield from _reached(one)


def _is_untold(value: ast.expr) -> bool:
    while not isinstance(value, ast.Name):
        match value:
            case ast.Await(value=inner) | ast.Attribute(value=inner) | ast.Call(func=inner):
                value = inner
            case _:
                return False
    return value.id in _UNTOLD


# Tests by area.


def area_of(module: str) -> tuple[str, ...]:
    """Return the test files of a module's area, those that import it first. They are paths below the root."""
    patterns = next(
        tests for modules, tests in AREAS.items() if any(fnmatchcase(module, one) for one in modules.split())
    )
    files = [file for pattern in patterns for file in _test_files(pattern)]
    name = "zot." + module.removesuffix(".py").replace("/", ".")
    imports = re.compile(rf"^(from|import) {re.escape(name)}\b", re.MULTILINE)
    return tuple(sorted(dict.fromkeys(files), key=lambda file: not imports.search((ROOT / file).read_text())))


def _test_files(pattern: str) -> list[str]:
    tests = ROOT / "tests"
    found = sorted(tests.glob(pattern if pattern.endswith(".py") else f"{pattern}/test_*.py"))
    if not found:
        sys.exit(f"mutants: no test matches {pattern!r}; see AREAS in {Path(__file__).name}")
    return [str(path.relative_to(ROOT)) for path in found]


def modules(only: Sequence[str], *, namespace: bool) -> list[str]:
    """Return the modules that are changed."""
    found: list[str] = []
    for pattern in (one for several in AREAS for one in several.split()):
        paths = sorted((ROOT / SRC).glob(pattern))
        if not paths:
            sys.exit(f"mutants: no module matches {pattern!r}; see AREAS in {Path(__file__).name}")
        found += [str(path.relative_to(ROOT / SRC)) for path in paths]
    return [
        module
        for module in dict.fromkeys(found)
        if (namespace or not module.startswith(DANGEROUS)) and (not only or any(part in module for part in only))
    ]


# Running.


class Copy:
    """A copy of the tree with an interpreter of its own, which imports zot from the copy and all else from ours."""

    def __init__(self, place: Path, *, namespace: bool) -> None:
        self._place = place
        self._before = _NAMESPACE if namespace else ()
        for name in _COPIED:
            ignored = shutil.ignore_patterns("__pycache__", "node_modules")
            shutil.copytree(ROOT / name, place / name, symlinks=True, ignore=ignored)
        for path in ROOT.iterdir():
            if path.is_file():
                shutil.copy(path, place)
        self._python = self._make_environment(place / ".venv")

    def _make_environment(self, venv: Path) -> str:
        """A path in a .pth file is searched, and .pth files in it are not: ours would bring our own source back."""
        packages = venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        packages.mkdir(parents=True)
        (packages / "copy.pth").write_text(f"{self._place / 'src'}\n{sysconfig.get_path('purelib')}\n")
        (venv / "bin").mkdir()
        (venv / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\n")
        for name in ("python", "python3"):
            (venv / "bin" / name).symlink_to(os.path.realpath(sys.executable))
        return str(venv / "bin" / "python")

    def run(self, tests: Sequence[str], *, left_out: Sequence[str] = (), within_s: float) -> Outcome:
        """Run tests up to the first that fails."""
        skipped = [word for one in left_out for word in ("--deselect", one)]
        process = subprocess.Popen(
            [*self._before, self._python, "-m", "pytest", "-qxrfE", "-p", "no:inline_snapshot", *skipped, *tests],
            cwd=self._place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=max(0.0, within_s))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return Outcome("hung")
        failed = re.findall(r"^(?:FAILED|ERROR) (tests/\S+)", output, re.MULTILINE)
        return Outcome("survived" if process.returncode == 0 else "killed", failed[0] if failed else "")

    def write(self, module: str, source: str) -> None:
        """Write a module's changed source."""
        (self._place / SRC / module).write_text(source)


class Trial:
    """Tries mutants on copies until the time is over."""

    def __init__(self, copies: Sequence[Copy], deadline: float) -> None:
        self._copies = list(copies)
        self._deadline = deadline
        self._lock = Lock()
        #: Which tests fail with mutants, and whether they do without one.
        self._is_broken: dict[str, bool] = {}
        self.verdicts: Counter[str] = Counter()

    def attempt(self, mutant: Mutant) -> None:
        """Try a mutant, unless the time is over, and print it if it survives."""
        if self._is_over:
            return
        with self._lock:
            copy = self._copies.pop()
        try:
            verdict = self._judged(copy, mutant)
        finally:
            with self._lock:
                self._copies.append(copy)
        if verdict == "survived":
            print(f"{SRC / mutant.module}:{mutant.line}: {mutant.before}\n    -> {mutant.after}", flush=True)
        # A run cut off by the deadline proves nothing.
        if verdict != "hung" or not self._is_over:
            with self._lock:
                self.verdicts[verdict] += 1

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._deadline

    def _judged(self, copy: Copy, mutant: Mutant) -> str:
        tests = area_of(mutant.module)
        while True:
            broken = [name for name, is_broken in [*self._is_broken.items()] if is_broken]
            copy.write(mutant.module, mutant.source)
            try:
                outcome = copy.run(tests, left_out=broken, within_s=self._limit_s)
            finally:
                copy.write(mutant.module, (ROOT / SRC / mutant.module).read_text())
            if outcome.failed in broken or not outcome.failed or not self._fails_anyway(copy, outcome.failed):
                return outcome.verdict

    def _fails_anyway(self, copy: Copy, test: str) -> bool:
        """True if a test fails even without a change: its failure then proves nothing about mutants."""
        if test not in self._is_broken:
            self._is_broken[test] = copy.run([test], within_s=self._limit_s).verdict == "killed"
            if self._is_broken[test]:
                print(f"mutants: {test} fails without any change, and is left out", flush=True)
        return self._is_broken[test]

    @property
    def _limit_s(self) -> float:
        return min(_HANGS_S, self._deadline - time.monotonic())


def main() -> None:
    """Try a sample of all mutants."""
    parser = argparse.ArgumentParser(prog="make mutants", description="Change the source, and see if a test notices.")
    parser.add_argument("--seed", type=int, default=0, help="which sample is tried")
    parser.add_argument("--seconds", type=float, default=300, help="how long it may take (300)")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="how many run side by side")
    parser.add_argument("--only", action="append", default=[], help="a part of a module's path; may be repeated")
    asked = parser.parse_args()

    namespace = _can_make_namespaces()
    chosen = modules(asked.only, namespace=namespace)
    every = [mutant for module in chosen for mutant in mutants(module, (ROOT / SRC / module).read_text())]
    random.Random(asked.seed).shuffle(every)
    if not namespace:
        print("mutants: no namespace of processes here: modules that signal processes are left out", flush=True)
    with tempfile.TemporaryDirectory(prefix="zot-mutants-") as place, ThreadPoolExecutor(asked.jobs) as pool:
        make = partial(Copy, namespace=namespace)
        trial = Trial(
            [make(Path(place) / f"{number}") for number in range(asked.jobs)], time.monotonic() + asked.seconds
        )
        for _ in pool.map(trial.attempt, every):
            pass
    counted = trial.verdicts
    print(
        f"mutants: {counted.total()} of {len(every)} tried in {len(chosen)} modules (seed {asked.seed}): "
        f"{counted['killed']} killed, {counted['hung']} hung, {counted['survived']} survived"
    )


def _can_make_namespaces() -> bool:
    try:
        done = subprocess.run([*_NAMESPACE, "true"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


if __name__ == "__main__":
    main()
