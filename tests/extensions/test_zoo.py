"""Bad extensions: each fails alone, with an explanation, and leaves no process and no blocked caller."""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from math import ceil
from pathlib import Path

import pytest

from timing import slowness
from tools.shells import left

from .stage import Extension, Stage, results
from .test_manager import TOOL

GREETED = 'hello("tools"); say("register_tool", name="bad", description="", schema={}); say("ready")\n'
WAIT = "for frame in frames():\n    pass\n"
CALLED = GREETED + 'for frame in frames():\n    if frame["type"] == "tool_call":\n        '
#: What an extension does; what its log says of it; and the result of a call to its tool `bad`, if it has one.
ZOO: dict[str, tuple[str, str, str]] = {
    "never says hello": ("time.sleep(60)", "did not say hello within 2 s", ""),
    "says something else first": ('say("ready")\n' + WAIT, "did not say hello first, but ready", ""),
    "has another name": ('say("hello", name="other")\n' + WAIT, "says it is 'other'", ""),
    "speaks plainly": ('print("Starting up!", flush=True)\n' + WAIT, "did not say hello first", ""),
    "exits at once": ("sys.exit(7)", "exited with 7 before it said hello", ""),
    "says half a hello": ('sys.stdout.write("{\\"type\\""); sys.stdout.flush(); sys.exit(0)', "exited with 0", ""),
    "floods": (
        CALLED + 'while True: say("notify", message="x" * 60000)', "", "did not answer",
    ),
    "talks all the time": (
        CALLED + 'while True: os.write(1, b\'{"type":"notify","message":"x"}\\n\' * 1000)',
        "sends too much: ", "did not answer",
    ),
    "floods with nonsense": (CALLED + 'while True: print("x" * 60000)', "not a frame", "not a frame"),
    "writes a line that is too long": (
        CALLED + 'sys.stdout.write("x" * (5 << 20) + "\\n"); sys.stdout.flush()', "more than 4194304 bytes", "4194304",
    ),
    "writes what is not UTF-8": (
        CALLED + 'sys.stdout.buffer.write(b"\\xff\\xfe\\n"); sys.stdout.flush()', "not a frame", "not a frame",
    ),
    "exits when it is called": (CALLED + "sys.exit(3)", "exited with 3", "exited with 3"),
    "closes its output": (CALLED + "os.close(1)", "has closed its output", "closed its output"),
    "sleeps when it is called": (CALLED + "time.sleep(60)", "{s:g} s: tool bad", "did not answer within {s:g} s"),
    "does not read": (GREETED + "time.sleep(60)", "{s:g} s: tool bad", "did not answer within {s:g} s"),
    "answers twice": (
        CALLED + '[say("tool_result", id=frame["id"], content=[{"type": "text", "text": "yes"}]) for _ in range(2)]',
        "was answered already", "yes",
    ),
    "answers what nobody asked": (
        CALLED + 'for n in ("9999", frame["id"]): say("tool_result", id=n, content=[{"type": "text", "text": "yes"}])',
        "9999", "yes",
    ),
    "takes a name of ours": (
        'hello("tools"); say("register_tool", name="read", description="mine", schema={}); say("ready")\n' + WAIT,
        "the tool read is not offered", "",
    ),
    "registers too much": (
        'hello("tools")\nfor n in range(300): say("register_tool", name=f"t{n}", schema={})\nsay("ready")\n' + WAIT,
        "more than 256 tools", "",
    ),
    "ignores being told to end": (
        "import signal; signal.signal(15, signal.SIG_IGN)\n" + GREETED + "while True: time.sleep(60)", "", "",
    ),
    "leaves a daemon behind": (
        GREETED + "import subprocess; subprocess.Popen(['setsid', 'sleep', '60'])\n" + WAIT, "", "",
    ),
    "cannot be started": ("", "could not be started", ""),
}  # fmt: skip
#: One that is never late, also on a busy machine: the deadlines of its neighbour are its own.
GOOD = r"""
echo '{"type": "hello", "name": "good", "version": "1", "capabilities": ["tools"]}'
echo '{"type": "register_tool", "name": "lookup", "description": "", "schema": {}}'
echo '{"type": "ready"}'
while read -r frame; do
    case $frame in
        *'"tool_call"'*)
            id=${frame#*'"id":"'}
            id='"'${id%%'"'*}'"'
            echo '{"type": "tool_result", "content": [{"type": "text", "text": "found it"}], "id": '"$id"'}' ;;
        *'"shutdown"'*) exit ;;
    esac
done
"""


@pytest.mark.parametrize("kind", ZOO)
async def test_a_bad_extension_costs_only_itself(tmp_path: Path, kind: str) -> None:
    script, explained, result = ZOO[kind]
    more = {"exec": "./missing"} if kind == "cannot be started" else {}
    bad, mark = Extension(tmp_path, "bad", script, **more), uuid.uuid4().hex
    good = Extension(tmp_path, "good", "", exec="/bin/sh", args=["-c", GOOD])
    env = {"ZOT_HOME": str(tmp_path), "PATH": os.environ["PATH"], "ZOT_TEST_CALL": mark}
    # Who does say hello, or answer, may take its time on a busy machine. Who floods takes a core until the deadline.
    tool_s = (0.4 if slowness() < 1.2 else 1.0) if "did not answer" in result else 60.0
    explained, result = (text.replace("{s:g}", f"{tool_s:g}") for text in (explained, result))
    hello_s = 60.0
    if "hello within" in explained:
        hello_s = min(ceil(2.0 * slowness()), 6)  # The whole conversation must have time, too.
        explained = explained.replace("within 2 s", f"within {hello_s} s")
    deadlines = {"hello": hello_s, "tool": tool_s, "shutdown": 0.2, "terminate": 0.2}
    async with Stage(tmp_path, bad, good, env=env, ext_deadlines=deadlines) as stage:
        await stage.session.commands()  # Waits for extensions that start slowly on a busy machine.
        await stage.until_offered("lookup")
        if result:
            await stage.until_offered("bad")
            [(text, _)] = results(await stage.prompt("call bad {} ;; --- ;; say done"))
            assert result in text
        assert results(await stage.prompt('call lookup {"q": "it"} ;; --- ;; say done')) == [("found it", False)]
        await stage.until_logged("bad", explained)
    assert left(mark) == []


async def test_an_extension_that_does_not_read_gets_a_bounded_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zot.extensions.sources.MAX_UNSENT_BYTES", 200_000)
    deaf = Extension(
        tmp_path,
        "deaf",
        'hello("events"); say("subscribe", events=["assistant_message"]); say("ready")\ntime.sleep(60)',
    )
    async with Stage(tmp_path, deaf, ext_deadlines={"shutdown": 0.1, "terminate": 0.1}) as stage:
        for _ in range(4):
            await stage.prompt(f"say {'x' * 100_000}")
        await stage.until(lambda: bool(stage.notices()))
    [(_, reason), *_] = stage.notices()
    assert re.fullmatch(r"has not read \d+ bytes that were sent to it", reason)


async def test_a_session_closed_before_its_start_starts_nothing(tmp_path: Path) -> None:
    extension = Extension(tmp_path, "never", TOOL)
    async with Stage(tmp_path, extension):
        pass
    assert not (tmp_path / "logs").exists()


async def test_a_starting_extension_ends_with_its_session(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    env = {"ZOT_HOME": str(tmp_path), "PATH": os.environ["PATH"], "ZOT_TEST_CALL": mark}
    async with Stage(
        tmp_path, Extension(tmp_path, "slow", "time.sleep(60)"), env=env, ext_deadlines={"shutdown": 0.1}
    ) as stage:
        stage.session.extensions.start()
        await asyncio.sleep(0)
    assert left(mark) == []
