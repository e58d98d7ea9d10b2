"""Fixtures for all tests: zot processes, a model service on a socket, and the check for leftovers."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from editor import Editor
from forked import ForkServer, the_fork_server
from harness import Zot, serving
from hosts import Hosts
from shell import Shell
from zot.providers.lab.script import demo

#: Plugins: report tests that lack a program, fail on leftovers, fewer messages of workers.
pytest_plugins = ["optional_report", "leftovers", "quiet_workers", "postgres", "forked_workers"]

# The same examples on every run, nothing written to disk, and no deadline: a slow machine is not a failure.
settings.register_profile("zot", derandomize=True, database=None, deadline=None)
settings.load_profile("zot")


def pytest_configure() -> None:
    """Put the interpreter itself first in PATH as `python3`: a version manager's shim costs six starts.

    Restore SIGINT for started processes, which a shell ignores for background jobs.
    """
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze the collected tests, so that the garbage collector does not scan them again and again."""
    gc.disable()
    try:
        result = yield
    finally:
        gc.enable()
    gc.collect()
    gc.freeze()
    # The default of 700 new objects per collection takes an eighth of the run.
    gc.set_threshold(10_000)
    return result


@pytest.fixture
def zot(tmp_path: Path, fork_server: ForkServer) -> Iterator[Callable[..., Zot]]:
    """Start `zot rpc` in an empty directory, any number of times; without the fork server if ``fresh``."""
    started: list[Zot] = []

    def start(*flags: str, fresh: bool = False, **popen: Any) -> Zot:
        started.append(Zot(*flags, fork_server=None if fresh else fork_server, **{"cwd": tmp_path, **popen}))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture
def editors(tmp_path: Path, fork_server: ForkServer) -> Iterator[Callable[..., Editor]]:
    """Start `zot acp` in an empty directory with its own home, any number of times."""
    started: list[Editor] = []

    def start(*flags: str, **more: Any) -> Editor:
        started.append(Editor(*flags, cwd=tmp_path, fork_server=fork_server, **more))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture
def shell(tmp_path: Path, fork_server: ForkServer) -> Shell:
    """zot as it is used in a shell, in an empty directory and with a home of its own."""
    return Shell(tmp_path, fork_server)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Have a fork server, which all forked workers share."""
    with ForkServer() as server:
        if session.config.option.forks > 1:
            server.start()
        return (yield)


@pytest.fixture(scope="session")
def fork_server() -> ForkServer:
    """The fork server of this test run."""
    return the_fork_server()


@pytest.fixture
def hosts(tmp_path: Path, fork_server: ForkServer) -> Hosts:
    """`zot host` as bridges start it, in an empty directory and with a home of its own."""
    return Hosts(tmp_path, fork_server)


@pytest.fixture(scope="session")
def lab_url() -> Iterator[str]:
    """The address of a lab server that plays the built-in scenes."""
    with serving(demo()) as url:
        yield url
