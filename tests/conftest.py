"""What all tests share: the process under test, a model service on a socket, and that nothing is left running."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from editor import Editor
from forked import Nursery
from harness import Zot, serving
from hosts import Hosts
from shell import Shell
from zot.providers.lab.script import demo

#: What a run says at its end: which checks a missing program kept from running, and what was left behind.
pytest_plugins = ["optional_report", "leftovers", "terse", "postgres"]

# The same examples on every run, nothing written to disk, and no clock: slow machines are no failure.
settings.register_profile("zot", derandomize=True, database=None, deadline=None)
settings.load_profile("zot")


def pytest_configure() -> None:
    """Let `python3` be the interpreter itself: what a manager of versions puts before it costs six starts of it.

    And let Ctrl+C be heard by what is started here, also where a shell has put all of it into the background.
    """
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Let the thousands of tests that are there now be no concern of whoever looks for garbage, time and again."""
    gc.collect()
    gc.freeze()
    # By default it is looked for after every 700 new objects, which is an eighth of the time of what runs in here.
    gc.set_threshold(10_000)


@pytest.fixture
def zot(tmp_path: Path, nursery: Nursery) -> Iterator[Callable[..., Zot]]:
    """Start `zot rpc` in an empty directory, as often as a test likes; from nothing if ``fresh``."""
    started: list[Zot] = []

    def start(*flags: str, fresh: bool = False, **popen: Any) -> Zot:
        started.append(Zot(*flags, nursery=None if fresh else nursery, **{"cwd": tmp_path, **popen}))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture
def editors(tmp_path: Path, nursery: Nursery) -> Iterator[Callable[..., Editor]]:
    """Start `zot acp` in an empty directory with a home of its own, as often as a test likes."""
    started: list[Editor] = []

    def start(*flags: str, **more: Any) -> Editor:
        started.append(Editor(*flags, cwd=tmp_path, nursery=nursery, **more))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture
def shell(tmp_path: Path, nursery: Nursery) -> Shell:
    """zot as it is used in a shell, in an empty directory and with a home of its own."""
    return Shell(tmp_path, nursery)


@pytest.fixture(scope="session", autouse=True)
def nursery() -> Iterator[Nursery]:
    """Where processes come from that need not be started from nothing."""
    with Nursery() as started:
        yield started


@pytest.fixture
def hosts(tmp_path: Path, nursery: Nursery) -> Hosts:
    """`zot host` as bridges start it, in an empty directory and with a home of its own."""
    return Hosts(tmp_path, nursery)


@pytest.fixture(scope="session")
def lab_url() -> Iterator[str]:
    """The address of a lab server that plays the built-in scenes."""
    with serving(demo()) as url:
        yield url
