"""A pytest plugin: `--forks N` runs the tests in N processes that are forked after one collection.

The workers of xdist collect all tests each: together, that takes as long as running a tenth of them.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections import deque
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import pytest

#: At most so many tests are handed out at once, so that no worker is the last one with many.
_PIECE = 100


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="Run the tests in this many forked processes.")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    option = session.config.option
    if option.forks < 1 or option.collectonly or session.testsfailed or not session.items:
        return None
    workers = Workers(session, option.forks)
    try:
        workers.run()
    finally:
        workers.end()
    return True


class Workers:
    """The forked processes, and the tests that no process has yet."""

    def __init__(self, session: pytest.Session, count: int) -> None:
        self._session = session
        self._count = count
        self._waiting = deque(range(len(session.items)))
        self._workers: dict[Connection, Worker] = {}
        self._numbers = 0

    def run(self) -> None:
        """Hand out tests and take reports until all workers have ended."""
        _directories(self._session.config).getbasetemp()  # Made here: this process removes its lock at the end.
        for _ in range(self._count):
            self._fork()
        while self._workers:
            for connection in wait([*self._workers]):
                assert isinstance(connection, Connection)
                worker = self._workers[connection]
                try:
                    self._take(worker, connection.recv())
                except EOFError:
                    self._ended(worker)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def end(self) -> None:
        """End the workers that still run."""
        for worker in self._workers.values():
            os.kill(worker.pid, signal.SIGTERM)
            os.waitpid(worker.pid, 0)

    def _fork(self) -> None:
        ours, theirs = Pipe()
        number, self._numbers = self._numbers, self._numbers + 1
        sys.stdout.flush()
        sys.stderr.flush()
        if (pid := os.fork()) == 0:
            ours.close()
            for connection in self._workers:
                connection.close()
            _work(self._session, theirs, number)
        theirs.close()
        self._workers[ours] = Worker(pid, ours)

    def _take(self, worker: Worker, message: Any) -> None:
        """Take a message: None asks for tests, a number says which one begins, all others are reports."""
        if message is None:
            piece = self._next()
            worker.has.extend(piece)
            worker.connection.send(piece)
        elif isinstance(message, int):
            worker.has.remove(message)
            worker.runs = message
        else:
            config = self._session.config
            self._report(config.hook.pytest_report_from_serializable(config=config, data=message))

    def _report(self, report: pytest.TestReport) -> None:
        hook = self._session.config.hook
        hook.pytest_runtest_logreport(report=report)
        if report.when == "call" or not report.passed:
            hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)

    def _next(self) -> list[int]:
        """Return the next tests, of whole files if they are short; none if there are none, or no more shall run."""
        if self._session.shouldfail or self._session.shouldstop:
            self._waiting.clear()
        size = min(_PIECE, len(self._waiting) // (4 * self._count) + 1)
        piece: list[int] = []
        while self._waiting and len(piece) < 2 * size:
            if len(piece) >= size and self._file(piece[-1]) != self._file(self._waiting[0]):
                break
            piece.append(self._waiting.popleft())
        return piece

    def _file(self, number: int) -> str:
        return self._session.items[number].nodeid.partition("::")[0]

    def _ended(self, worker: Worker) -> None:
        """Reap a worker. If a test ended it, report that, and let another worker run its tests."""
        del self._workers[worker.connection]
        worker.connection.close()
        _, status = os.waitpid(worker.pid, 0)
        if (code := os.waitstatus_to_exitcode(status)) == 0:
            return
        if worker.runs is None:
            raise RuntimeError(f"a worker ended with {code} before its first test")
        item = self._session.items[worker.runs]
        why = f"the worker ended with {code} in this test"
        self._report(pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call"))
        self._waiting.extendleft(reversed(worker.has))
        self._fork()


class Worker:
    """A forked process, the tests that it has and the one that it runs."""

    def __init__(self, pid: int, connection: Connection) -> None:
        self.pid = pid
        self.connection = connection
        self.has: list[int] = []
        self.runs: int | None = None


def _work(session: pytest.Session, connection: Connection, number: int) -> NoReturn:
    """Run tests in a forked process, with directories and captured output of its own, and end the process."""
    config = session.config
    code = 1
    try:
        os.environ["PYTEST_XDIST_WORKER"] = f"gw{number}"
        factory = _directories(config)
        factory._basetemp = factory.getbasetemp() / f"gw{number}"
        factory._basetemp.mkdir(mode=0o700)
        capture: Any = config.pluginmanager.get_plugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
        config.pluginmanager.register(_Sender(config, connection))
        reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        config.pluginmanager.unregister(reporter)
        config.pluginmanager.register(_Colours(reporter._tw), "terminalreporter")
        _run(session, connection)
        code = 0
    except KeyboardInterrupt:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _directories(config: pytest.Config) -> pytest.TempPathFactory:
    return config._tmp_path_factory  # type: ignore[attr-defined, no-any-return] # as xdist finds it


def _run(session: pytest.Session, connection: Connection) -> None:
    """Run tests as long as there are any, one known ahead: fixtures that the next test needs stay."""
    numbers: deque[int] = deque()
    is_last = False
    while numbers or not is_last:
        while len(numbers) < 2 and not is_last:
            connection.send(None)
            piece = connection.recv()
            numbers.extend(piece)
            is_last = not piece
        if numbers:
            item = session.items[numbers[0]]
            following = session.items[numbers[1]] if len(numbers) > 1 else None
            connection.send(numbers.popleft())
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


class _Sender:
    """Sends the reports of a worker: that of the call, and all that did not pass."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection
        self._sends_all = config.getoption("durations") is not None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._sends_all or report.when == "call" or not report.passed or report.sections:
            self._connection.send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))


class _Colours:
    """What is left of a worker's terminal reporter: it says how assertions are highlighted."""

    def __init__(self, writer: Any) -> None:
        self._tw = writer
