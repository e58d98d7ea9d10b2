"""A pytest plugin: a test run fails if it leaves a process, or a file outside its own directory.

It checks after all workers have ended, so it also finds the leftovers of a crashed worker.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import MARK, eventually, living, located

#: Caches of Python and developer tools beside the sources, and of the run itself.
_CACHES = {".git", ".venv", "__pycache__", ".hypothesis", ".mypy_cache", ".ruff_cache", ".lab-agents"}
#: Grace period for processes that were asked to end.
_ENDING_S = 2.0


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Check the whole run from the controller; workers do not check themselves."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Leftovers(config))


class Leftovers:
    """Processes and files before the run, compared with those after it."""

    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        self._before = {*_files(self._root)}
        self._base = Path(config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined] # as xdist finds it
        self._mark = os.environ[MARK] = uuid.uuid4().hex
        self._private = [self._give("HOME", self._base / "home"), self._give("TMPDIR", Path(tempfile.mkdtemp()))]
        # Other users may enter it, as the shared one.
        self._private[-1].chmod(0o1777)
        tempfile.tempdir = None
        self.found: list[str] = []

    def _give(self, name: str, place: Path) -> Path:
        """Give the processes of the run their own temporary directory instead of the shared one."""
        place.mkdir(exist_ok=True)
        os.environ[name] = str(place)
        return place

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        eventually(lambda: self._processes() == [], within_s=_ENDING_S)
        files = {*_files(self._root)} - self._before
        files.update(path for place in self._private for path in _files(place))
        self.found = [*self._processes(), *(f"the file {path}" for path in sorted(files))]
        for place in self._private:
            shutil.rmtree(place, ignore_errors=True)
        if self.found and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for left in self.found:
            terminalreporter.write_line(f"LEFT BEHIND: {left}", red=True)

    def _processes(self) -> list[str]:
        """Return processes with our mark, and those without it that work in the tests' directory."""
        places = (self._base, *self._private)
        ours = {*living(self._mark), *(pid for place in places for pid in located(place))} - {os.getpid()}
        return [f"process {pid}: {_command(pid)}" for pid in sorted(ours)]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "(it has just ended)"


def _files(place: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(place):
        names[:] = [name for name in names if name not in _CACHES]
        yield from (Path(directory, file) for file in files)
