"""An extension by itself, started for a command of its author."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from zot.commands.subcommands import Request, directory, remark
from zot.config.config import tool_environment, zot_home
from zot.extensions.bench import Bench
from zot.extensions.confinement_part import Confinement
from zot.extensions.connection import Trace
from zot.extensions.deadlines import Deadlines
from zot.extensions.happenings import Happening
from zot.extensions.launch import Start, Surroundings
from zot.extensions.manifest import load
from zot.tools.process import open_processes
from zot.version import __version__


@asynccontextmanager
async def bench_of(
    request: Request, heard: Callable[[Happening], None], trace: Trace = lambda way, data: None
) -> AsyncIterator[Bench]:
    """Give the extension that the request names, running; nothing of it runs afterwards. Raise ConfigError.

    What it writes to standard error is seen on ours.
    """
    where, cwd, env = directory(request.words[0]), directory(None), tool_environment(os.environ)
    manifest, home = load(where), zot_home(os.environ)
    limits = {f"{name}_s": seconds for name, seconds in request.settings.get("ext_deadlines", ())}
    processes, errors = open_processes(protected=True), os.dup(2)
    try:
        around = Surroundings(
            lambda: processes,
            env,
            home,
            "lab",
            "lab",
            cwd,
            __version__,
            Deadlines(**limits),
            Confinement(lambda: processes, env, cwd=cwd, zot_home=home),
            bool(request.settings.get("unsandboxed_ext")),
        )
        bench = Bench(Start(manifest, where, around), errors, heard=heard, note=remark, trace=trace)
        try:
            yield bench
        finally:
            await bench.close()
    finally:
        await processes.close()
        os.close(errors)


def on_signal(call: Callable[[], object]) -> None:
    """Let ``call`` be called when somebody wants us to end, in place of what usually happens."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, call)
