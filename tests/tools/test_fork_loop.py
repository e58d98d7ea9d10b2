"""A command that starts processes faster than they can be killed one by one, and every way to end it."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from harness import read_some
from timing import slowness

from .calls import PATIENCE_S
from .shells import Shell, children, is_alive, left, outcome

HERE = Path(__file__).parent
PROCESSES = 60
#: It ends by itself after so many seconds: what is gone before that has been ended by us.
LIFE_S = 12
#: With nothing to import or to read from where it may not look: it becomes nobody if it was root.
COMMAND = shlex.join(
    [sys.executable, "-I", "-S", "-c", (HERE / "fork_loop.py").read_text(), str(PROCESSES), str(LIFE_S)]
)


def deadline_s() -> float:
    """Return the limit for the end of all processes, on the machine as it is now."""
    return min(6.0 * slowness(), LIFE_S - 2.0)


async def test_a_timeout_ends_a_fork_loop(kept: Shell) -> None:
    # It is up in a fraction of this time, and then takes all of the machine.
    timeout_s = min(0.75 * slowness(), 1.5)
    tool = kept.tool(timeout_s=timeout_s, grace_s=0.2)
    begun = time.monotonic()
    said, call = await kept.start(COMMAND, tool)
    assert said == "up"
    await asyncio.wait({call}, timeout=PATIENCE_S)
    assert kept.left() == []
    assert time.monotonic() - begun < timeout_s + 0.2 + deadline_s()
    assert f"[exit -1] (timed out after {timeout_s:g} s)" in str(call.exception())
    assert await kept.run("echo next") == "$ echo next\n\nnext\n\n[exit 0]  Took T"


async def test_an_abort_ends_a_fork_loop(kept: Shell) -> None:
    said, call = await kept.start(COMMAND)
    assert said == "up"
    begun = time.monotonic()
    call.cancel()
    assert await outcome(call) == "cancelled"
    assert kept.left() == []
    assert time.monotonic() - begun < deadline_s()


async def test_a_fork_loop_in_the_background_ends_with_its_session(kept: Shell, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    said, call = await kept.start(f"{COMMAND} & read -r _ <{tmp_path}/go", owners=("session",))
    assert said == "up"
    (tmp_path / "go").write_text("\n")
    assert await outcome(call) == "done"
    begun = time.monotonic()
    await kept.processes.end_all("session", grace_s=0.2)
    assert kept.left() == []
    assert time.monotonic() - begun < deadline_s()


async def test_a_fork_loop_that_lost_its_keeper_and_the_guardian_is_ended_by_us(kept: Shell) -> None:
    said, call = await kept.start(COMMAND)
    assert said == "up"
    [guardian] = children(os.getpid())
    keepers = list(children(guardian))
    begun = time.monotonic()
    for pid in (guardian, *keepers):
        os.kill(pid, signal.SIGKILL)
    assert await outcome(call) == "failed"
    assert kept.left() == []
    assert time.monotonic() - begun < deadline_s()


def test_a_fork_loop_ends_with_a_zot_that_is_killed(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, HERE / "zoo_host.py", tmp_path, mark, COMMAND], env=env, stdout=subprocess.PIPE
    ) as host:
        assert host.stdout is not None
        assert read_some(host.stdout.fileno(), time.monotonic() + PATIENCE_S) == b"1 up\n"
        [guardian] = children(host.pid)
        begun = time.monotonic()
        host.kill()
        host.wait(PATIENCE_S)
        while left(mark) or is_alive(guardian):
            assert time.monotonic() - begun < LIFE_S - 2.0
            os.sched_yield()
    assert time.monotonic() - begun < deadline_s()
