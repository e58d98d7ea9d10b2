"""A program that has zot loaded, and forks one whenever it is asked to: that costs a third of a fresh start.

It is nobody's child, so that those who look at their children do not see it, and ends when nobody can ask any more.

Whoever asks sends a JSON object (`argv`, `cwd`, `env`) with four descriptors: the three standard streams, and where to
report the pid and then the exit code, each on a line. Each has a parent of its own, which waits for it.
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

#: Begins to run, or brings Textual along: nothing that is forked here has a terminal, and every fork would copy it.
_ELSEWHERE = ("zot.__main__", "zot.ui.terminal")


def load() -> None:
    """Load all of zot, and what it needs of the standard library only later, and let it stay where it is in memory."""
    load_all_of(zot.__path__, "zot.", _ELSEWHERE)
    for name in ("concurrent.futures.thread", "encodings.utf_8_sig", "random", "shlex", "tempfile", "tomllib"):
        import_module(name)
    make_what_is_made_once()
    gc.collect()
    gc.freeze()  # What nobody looks at is nowhere copied.


def load_all_of(path: Iterable[str], prefix: str, without: Collection[str] = ()) -> None:
    """Load the modules of a package, and of those in it."""
    for module in iter_modules(path):
        name = prefix + module.name
        if name not in without:
            loaded = import_module(name)
            if module.ispkg:
                load_all_of(loaded.__path__, f"{name}.", without)


def make_what_is_made_once() -> None:
    """Call each function of zot that does its work once in a process, and needs to be told nothing for it."""
    modules = [module for name, module in sys.modules.items() if name.startswith("zot.")]
    cached = {made for module in modules for made in vars(module).values() if isinstance(made, _Cached)}
    for function in cached:
        if not signature(function).parameters:
            function()


def serve(control: socket.socket) -> None:
    """Fork until nobody asks any more."""
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
    """Let go of those that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def attend(order: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Be the parent of one: say who it is, and how it ended."""
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
    """Be a zot that has just been loaded."""
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
        os._exit(1)  # Something is wrong.


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    os.setsid()
    load()
    serve(socket.socket(fileno=int(sys.argv[1])))
