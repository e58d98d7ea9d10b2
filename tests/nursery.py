"""A program that has zot loaded, and forks one whenever it is asked to: that costs a third of a fresh start.

It is nobody's child, so that those who look at their children do not see it, and ends when nobody can ask any more.

Whoever asks sends a JSON object (`argv`, `cwd`, `env`) with four descriptors: the three standard streams, and where to
report the pid and then the exit code, each on a line. Each has a parent of its own, which waits for it.
"""

import json
import os
import socket
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from zot.cli import main

LOADED = (
    "concurrent.futures.thread", "ctypes", "hashlib", "zot.agent.prompt", "zot.agent.run", "zot.commands.doctor",
    "zot.commands.host", "zot.commands.login", "zot.commands.models", "zot.commands.once", "zot.commands.rpc",
    "zot.commands.skills", "zot.doctor", "zot.journal.journal", "zot.providers.anthropic", "zot.providers.failures",
    "zot.providers.http", "zot.providers.lab.service", "zot.providers.lab.transport", "zot.providers.probe",
    "zot.runtime", "zot.serve.host", "zot.serve.host_input", "zot.serve.host_many", "zot.serve.once", "zot.serve.rpc",
    "zot.skills", "zot.tools.bash", "zot.tools.edit", "zot.tools.guardian", "zot.tools.read", "zot.tools.skill",
    "zot.tools.write",
)  # fmt: skip


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
    for name in LOADED:
        import_module(name)
    serve(socket.socket(fileno=int(sys.argv[1])))
