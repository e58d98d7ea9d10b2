"""A process with zot loaded that forks a new zot on request: a third of the cost of a fresh start.

It is detached, so that tests that inspect their children do not see it, and ends when the control socket closes.

A request is a JSON object (`argv`, `cwd`, `env`) with four descriptors: the three standard streams, and a pipe to
report the pid and then the exit code, each on a line.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import _lru_cache_wrapper as _Cached
from importlib import import_module
from inspect import signature
from pkgutil import iter_modules
from typing import Any, NoReturn

import zot
from zot.cli import main

#: Not preloaded: it runs on import, or loads Textual, which no fork needs and every fork would copy.
_ELSEWHERE = ("zot.__main__", "zot.ui.terminal")


def load() -> None:
    """Import all of zot and its lazy imports, and freeze them in memory."""
    load_all_of(zot.__path__, "zot.", _ELSEWHERE)
    for name in ("concurrent.futures.thread", "encodings.utf_8_sig", "random", "shlex", "tempfile", "tomllib"):
        import_module(name)
    make_what_is_made_once()
    gc.collect()
    gc.freeze()  # Frozen objects are not touched, so their pages stay shared.


def load_all_of(path: Iterable[str], prefix: str, without: Collection[str] = ()) -> None:
    """Import the modules of a package, recursively."""
    for module in iter_modules(path):
        name = prefix + module.name
        if name not in without:
            loaded = import_module(name)
            if module.ispkg:
                load_all_of(loaded.__path__, f"{name}.", without)


def make_what_is_made_once() -> None:
    """Call each cached function of zot without parameters."""
    modules = [module for name, module in sys.modules.items() if name.startswith("zot.")]
    cached = {made for module in modules for made in vars(module).values() if isinstance(made, _Cached)}
    for function in cached:
        if not signature(function).parameters:
            function()


def serve(control: socket.socket) -> None:
    """Fork on request until the control socket closes, then wait for the last fork to end."""
    reports: dict[int, int] = {}
    ended, ending = os.pipe()
    os.set_blocking(ending, False)
    signal.set_wakeup_fd(ending, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll, is_open = select.poll(), True
    poll.register(ended, select.POLLIN)
    poll.register(control, select.POLLIN)
    while is_open or reports:
        for descriptor, _ in poll.poll():
            if descriptor == ended:
                os.read(ended, 1 << 16)
            elif (started := start(control)) is not None:
                reports.update([started])
            else:
                poll.unregister(control)
                is_open = False
        reap(reports)


def start(control: socket.socket) -> tuple[int, int] | None:
    """Fork as the next request says. Return the pid and the pipe to report to; None at the end of the requests."""
    order, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 4)
    if not order:
        return None
    *streams, report = descriptors
    if (pid := os.fork()) == 0:
        control.detach()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        become(json.loads(order), streams)
    for descriptor in streams:
        os.close(descriptor)
    tell(report, pid)
    return pid, report


def reap(reports: dict[int, int]) -> None:
    """Report the exit codes of ended forks."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            report = reports.pop(pid)
            tell(report, os.waitstatus_to_exitcode(status))
            os.close(report)


def tell(report: int, number: int) -> None:
    """Write a number to a report, which the test may have closed."""
    with suppress(BrokenPipeError):
        os.write(report, f"{number}\n".encode())


def become(order: dict[str, Any], streams: list[int]) -> NoReturn:
    """Run zot as freshly loaded."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.closerange(3, 1 << 12)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = ["zot", *order["argv"]]
    try:
        main()
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    finally:
        os._exit(1)  # An internal error.


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    os.setsid()
    load()
    serve(socket.socket(fileno=int(sys.argv[1])))
