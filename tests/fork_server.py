"""A process with zot loaded that forks a new zot on request: a third of the cost of a fresh start.

It is detached, so that tests that inspect their children do not see it, and ends when the control socket closes.

A request is a JSON object (`argv`, `cwd`, `env`) with four descriptors: the three standard streams, and a pipe to
report the pid and then the exit code, each on a line. Each fork has its own parent, which waits for it.
"""

import gc
import json
import os
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
    """Fork on request until the control socket closes."""
    while True:
        order, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 4)
        reap()
        if not order:
            return
        if os.fork() == 0:
            control.detach()
            attend(json.loads(order), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def reap() -> None:
    """Reap ended children."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def attend(order: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Be the parent of one fork: report its pid and its exit code."""
    *streams, report = descriptors
    if (pid := os.fork()) == 0:
        become(order, streams)
    for descriptor in (0, 1, 2, *streams):
        os.close(descriptor)
    os.write(report, f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    os.write(report, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def become(order: dict[str, Any], streams: list[int]) -> NoReturn:
    """Run zot as freshly loaded."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.closerange(3, 64)
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
