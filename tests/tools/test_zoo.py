"""Commands that refuse to end, and every way in which zot must end them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import read_some
from timing import Stopwatch

from .calls import PATIENCE_S, eventually
from .shells import Shell, children, is_alive, left, outcome

#: Each says "up" when it is what it is named.
ZOO = {
    "leaves a child": "sleep 600 & echo up",
    "leaves a session": "setsid sleep 600 & echo up",
    "leaves a session that ignores TERM": "(setsid sh -c 'trap \"\" TERM; echo up; sleep 600; sleep 600' &); sleep 600",
    "leaves a daemon": "setsid sh -c 'setsid sh -c \"sleep 600 & echo up; exec sleep 600\" >&2 & exit'; sleep 600",
    "leaves a daemon without output": "echo up; setsid sleep 600 >/dev/null 2>&1 </dev/null &",
    "ignores TERM": "trap '' TERM; echo up; sleep 600; sleep 600",
    "is a tree that ignores TERM": "trap '' TERM; (sleep 600; sleep 600) & (sleep 600 & echo up; sleep 600)",
    "has stopped itself": "echo up; kill -STOP $$",
    "floods": "echo up; yes",
    "floods in the background": "echo up; yes &",
    "writes without a newline": "printf up; while :; do printf x; done",
    "writes one huge line": "echo up; head -c 20000000 /dev/zero | tr '\\0' a; sleep 600",
    "reads its input": "cat; read line; echo up; sleep 600",
    "has closed its descriptors": "echo up; exec <&- >&- 2>&-; sleep 600",
    "kills its parent": "echo up; setsid sleep 600 & sleep 600 & kill -9 $PPID; sleep 600",
    "stops its parent": "sleep 600 & kill -STOP $PPID; echo up; sleep 600",
    "forks a tree": "f() { test $1 -gt 0 || exec sleep 600; f $(($1-1)) & f $(($1-1)) & wait; }; echo up; f 5",
    "forks and runs away": "comet() { sleep 0.001; comet & }; echo up; comet; sleep 600",
}
#: What is told to end has half a second, and a parent that does not answer is given one more.
DEADLINE_S = 3.0


async def test_an_abort_leaves_no_process(kept: Shell) -> None:
    started = [await kept.start(command, owners=("run",)) for command in ZOO.values()]
    assert [line[:2] for line, _ in started] == ["up"] * len(ZOO)
    watch = Stopwatch()
    for _, call in started:
        call.cancel()
    await asyncio.gather(*(outcome(call) for _, call in started))
    await kept.processes.end_all("run", grace_s=0.5)
    assert kept.left() == []
    assert watch.read_s() < DEADLINE_S


async def test_a_timeout_leaves_no_process(kept: Shell) -> None:
    watch = Stopwatch()
    # Those that end at once may take their time for it on a busy machine.
    at_once = ["leaves a child", "leaves a session", "leaves a daemon without output", "floods in the background"]
    tools = (kept.tool(timeout_s=PATIENCE_S if name in at_once else 0.5, grace_s=0.5) for name in ZOO)
    started = await asyncio.gather(
        *(kept.start(command, tool, owners=("run",)) for command, tool in zip(ZOO.values(), tools, strict=True))
    )
    ends = await asyncio.gather(*(outcome(call) for _, call in started))
    assert [name for name, how in zip(ZOO, ends, strict=True) if how == "done"] == at_once
    await kept.processes.end_all("run", grace_s=0.5)
    assert kept.left() == []
    assert watch.read_s() < 0.5 + DEADLINE_S + 2.0


@pytest.mark.parametrize("name", ["kills its parent", "stops its parent"])
async def test_a_command_that_attacks_its_keeper_ends_alone(name: str, kept: Shell) -> None:
    await kept.run("sleep 601 &")
    _, call = await kept.start(ZOO[name], kept.tool(timeout_s=0.3, grace_s=0.1))
    assert await outcome(call) == "failed"
    assert kept.left() == ["sleep 601 "]
    assert await kept.run("echo next") == "$ echo next\n\nnext\n\n[exit 0]  Took T"


HOST = Path(__file__).with_name("zoo_host.py")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A process that runs the zoo and has received a line from each member."""
    mark = uuid.uuid4().hex
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "A_SECRET": "s3cret"}
    with subprocess.Popen(
        [sys.executable, HOST, tmp_path, mark, *ZOO.values()], env=env, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert read_some(process.stdout.fileno(), time.monotonic() + PATIENCE_S) == b"%d up\n" % len(ZOO)
        yield process, mark
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGABRT])
def test_the_end_of_the_host_ends_every_process(
    number: signal.Signals, host: tuple[subprocess.Popen[bytes], str]
) -> None:
    process, mark = host
    [guardian] = children(process.pid)
    keepers = children(guardian)
    assert left(mark) != []
    watch = Stopwatch()
    process.send_signal(number)
    process.wait(PATIENCE_S)
    assert eventually(lambda: left(mark) == [])
    assert watch.read_s() < DEADLINE_S
    assert eventually(lambda: not any(map(is_alive, (guardian, *keepers))))


def test_processes_beside_the_host_have_none_of_its_environment(host: tuple[subprocess.Popen[bytes], str]) -> None:
    process, _ = host
    [guardian] = children(process.pid)
    for pid in (guardian, *children(guardian)):
        assert b"s3cret" not in Path(f"/proc/{pid}/environ").read_bytes()


#: Commands with what they say and how they end, where %d is a number of their own.
QUICK = (
    ("echo %d", "%d", "[exit 0]"),
    ("echo %d; exit 3", "%d", "[exit 3]"),
    ("sleep 0.0%d; echo %d", "%d", "[exit 0]"),
    ("echo %d; kill -9 $$", "%d", "[exit -9] (killed by SIGKILL)"),
    ("(echo %d) & wait", "%d", "[exit 0]"),
    ("echo %d | cat", "%d", "[exit 0]"),
    ("(setsid sh -c 'sleep 0.0%d') ; echo %d >&2", "%d", "[exit 0]"),
)


async def test_of_two_hundred_commands_at_once_none_is_lost_and_none_remains(kept: Shell) -> None:
    rng = random.Random(7)
    await kept.run("true")
    before = len(os.listdir("/proc/self/fd"))

    async def one(number: int) -> None:
        command, said, ending = (part.replace("%d", str(number)) for part in rng.choice(QUICK))
        if rng.random() < 0.2:
            call = asyncio.create_task(kept.tool().run({"command": f"{command}; sleep 60"}, kept.context))
            await asyncio.sleep(rng.random() / 20)
            call.cancel()
            assert await outcome(call) in ("cancelled", "failed")
        else:
            run = kept.run if ending == "[exit 0]" else kept.fail
            assert await run(command) == f"$ {command}\n\n{said}\n\n{ending}  Took T"

    await asyncio.gather(*(one(number) for number in range(200)))
    assert kept.left() == []
    [guardian] = children(os.getpid())
    # A few keepers wait for the next command, each with a socket of ours; none is a zombie.
    assert eventually(lambda: len(children(guardian)) <= 4 and set(children(guardian).values()) == {"S"})
    assert all(children(keeper) == {} for keeper in children(guardian))
    assert len(os.listdir("/proc/self/fd")) <= before + 4
