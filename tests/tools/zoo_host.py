"""A program that runs commands until it gets the command to end: `zoo_host.py DIRECTORY MARK COMMAND...`."""

import asyncio
import os
import signal
import sys
from contextlib import suppress

from zot.errors import ToolFailed
from zot.tools.base import CallReporter, ToolContext
from zot.tools.bash import Bash
from zot.tools.guardian import open_processes


async def main(cwd: str, mark: str, commands: list[str]) -> None:
    """Run ``commands``, report once each has written a line, and end them on SIGTERM."""
    processes = open_processes()
    bash = Bash(processes)
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)

    async def run(command: str, up: asyncio.Event) -> None:
        class Up(CallReporter):
            async def progress(self, text: str) -> None:
                up.set()

        env = {"PATH": os.environ["PATH"], "ZOT_TEST_CALL": mark}
        with suppress(ToolFailed):
            await bash.run({"command": command}, ToolContext(cwd=cwd, env=env, reporter=Up()))

    ups = [asyncio.Event() for _ in commands]
    calls = [asyncio.create_task(run(command, up)) for command, up in zip(commands, ups, strict=True)]
    for up in ups:
        await up.wait()
    print(len(ups), "up", flush=True)
    await told.wait()
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await processes.close()


asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
