"""A session with extensions. Prints how long each question to one took, and how long ten took to start, as JSON.

Run by `questions.py` with the interpreter that zot is installed for.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from zot.agent.hooks import Extensions
from zot.messages import CallBlock
from zot.sdk.runtime import Runtime

_SCRIPT = """\
import sys, json
def say(**frame): sys.stdout.write(json.dumps(frame) + "\\n"); sys.stdout.flush()
say(type="hello", name=sys.argv[1], version="1", capabilities=["events"])
say(type="subscribe", events=[], intercept=["tool_call"])
say(type="ready")
for line in sys.stdin:
    frame = json.loads(line)
    if frame["type"] == "event_intercept": say(type="event_intercept_response", id=frame["id"])
    if frame["type"] == "shutdown": break
"""
_QUESTIONS = 300
_MANY = 10


def _extension(place: Path, name: str) -> str:
    directory = place / name
    directory.mkdir()
    (directory / "main.py").write_text(_SCRIPT)
    described = {"name": name, "exec": sys.executable, "args": ["main.py", name]}
    (directory / "extension.json").write_text(json.dumps(described))
    return str(directory)


async def _started(directories: list[str], home: str) -> float:
    """Return the time until the first prompt may begin."""
    async with Runtime(provider="lab", ext=tuple(directories), env={**os.environ, "ZOT_HOME": home}) as runtime:
        start = perf_counter()
        await _extensions(runtime).ready()
        return perf_counter() - start


def _bare(directories: list[str]) -> float:
    """Return the time until each of the same processes has finished its greeting."""
    start = perf_counter()
    children = [
        subprocess.Popen([sys.executable, "main.py", "x"], cwd=one, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for one in directories
    ]
    for child in children:
        assert child.stdout is not None
        for _ in range(3):
            child.stdout.readline()
    taken = perf_counter() - start
    for child in children:
        child.communicate()
    return taken


async def _asked(directory: str, home: str) -> list[float]:
    async with Runtime(provider="lab", ext=(directory,), env={**os.environ, "ZOT_HOME": home}) as runtime:
        extensions, times = _extensions(runtime), []
        await extensions.ready()
        for number in range(_QUESTIONS):
            call = CallBlock(str(number), "bash", {"command": "ls"})
            start = perf_counter()
            await extensions.tool_called(call, {"command": "ls"})
            times.append(perf_counter() - start)
        return times


def _extensions(runtime: Runtime) -> Extensions:
    # Private, but the same in every checkout that may be measured: a question is asked without a run around it.
    assert runtime._session is not None
    return runtime._session.agent.extensions


async def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as place:
        directories = [_extension(Path(place), f"e{number}") for number in range(_MANY)]
        asked = await _asked(directories[0], place)
        bare, ours = _bare(directories), await _started(directories, place)
    sys.stdout.write(json.dumps({"asked": asked, "bare": bare, "ours": ours}))


asyncio.run(main())
