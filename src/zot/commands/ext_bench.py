"""An extension by itself, started for a command of its author."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from zot.commands.asked import Request, directory
from zot.config import tool_environment
from zot.extensions.bench import Bench
from zot.extensions.deadlines import Deadlines
from zot.extensions.happenings import Happening
from zot.extensions.manifest import load
from zot.extensions.process import Trace
from zot.tools.process import open_processes
from zot.version import __version__


@asynccontextmanager
async def bench_of(
    request: Request, heard: Callable[[Happening], None], trace: Trace = lambda way, data: None
) -> AsyncIterator[Bench]:
    """Give the extension that the request names, running; nothing of it runs afterwards. Raise ConfigError.

    What it writes to standard error is seen on ours.
    """
    where = directory(request.words[0])
    manifest = load(where)
    limits = {f"{name}_s": seconds for name, seconds in request.settings.get("ext_deadlines", ())}
    processes, errors = open_processes(protected=True), os.dup(2)
    try:
        bench = Bench(
            manifest,
            where,
            cwd=directory(None),
            processes=processes,
            env=tool_environment(os.environ),
            errors=errors,
            zot_version=__version__,
            deadlines=Deadlines(**limits),
            heard=heard,
            trace=trace,
        )
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
