from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from zot.errors import ToolFailed
from zot.messages import TextBlock
from zot.tools.base import Tool, ToolContext
from zot.tools.bash import Bash

from .calls import PATIENCE_S, answer, eventually, group_members, refusal


@pytest.fixture(autouse=True)
def nothing_is_left_running(tmp_path: Path) -> Iterator[None]:
    yield
    assert eventually(lambda: _running_in(tmp_path) == []), _running_in(tmp_path)


def _running_in(directory: Path) -> list[int]:
    """The processes whose working directory is in ``directory``; zombies have none."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                where = Path(os.readlink(f"{entry.path}/cwd"))
            except OSError:  # it has ended, or is not ours to look at
                continue
            if where.is_relative_to(directory):
                found.append(int(entry.name))
    return found


def untimed(text: str) -> str:
    return re.sub(r"Took [0-9.]+s$", "Took T", text)


async def run(command: str, context: ToolContext, **args: Any) -> str:
    return untimed(await answer(Bash(), {"command": command, **args}, context))


async def fail(command: str, context: ToolContext, **args: Any) -> str:
    return untimed(await refusal(Bash(), {"command": command, **args}, context))


async def test_output_of_both_streams_is_shown_as_a_shell_shows_it(context: ToolContext) -> None:
    assert await run("echo out; echo err >&2", context) == "$ echo out; echo err >&2\n\nout\nerr\n\n[exit 0]  Took T"


async def test_a_command_without_output_has_no_empty_paragraph(context: ToolContext) -> None:
    assert await run("true", context) == "$ true\n\n[exit 0]  Took T"


async def test_output_without_a_final_newline_gets_one(context: ToolContext) -> None:
    assert await run("printf abc", context) == "$ printf abc\n\nabc\n\n[exit 0]  Took T"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.0, "0.0s"), (0.26, "0.3s"), (59.9, "59.9s"), (65.4, "1m5s"), (3599.9, "59m59s"), (7400.0, "2h3m")],
)
async def test_the_duration_is_told(seconds: float, told: str, context: ToolContext) -> None:
    clock = iter([100.0, 100.0 + seconds])
    text = await answer(Bash(clock=clock.__next__), {"command": "true"}, context)
    assert text == f"$ true\n\n[exit 0]  Took {told}"


async def test_a_status_other_than_zero_is_a_failure_with_the_same_text(context: ToolContext) -> None:
    assert await fail("echo no; exit 3", context) == "$ echo no; exit 3\n\nno\n\n[exit 3]  Took T"


async def test_a_command_killed_by_a_signal_says_which(context: ToolContext) -> None:
    assert await fail("kill -9 $$", context) == "$ kill -9 $$\n\n[exit -9] (killed by SIGKILL)  Took T"


async def test_a_command_killed_by_a_signal_without_a_name_says_its_number(context: ToolContext) -> None:
    assert await fail("kill -40 $$", context) == "$ kill -40 $$\n\n[exit -40] (killed by signal 40)  Took T"


async def test_a_command_that_reads_its_input_finds_it_empty(context: ToolContext) -> None:
    assert await run("cat; echo read", context) == "$ cat; echo read\n\nread\n\n[exit 0]  Took T"


async def test_it_runs_in_the_cwd_of_the_session(context: ToolContext, tmp_path: Path) -> None:
    assert await run("pwd", context) == f"$ pwd\n\n{tmp_path}\n\n[exit 0]  Took T"


async def test_it_sees_the_given_environment_and_not_ours(
    context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "s3cret")
    context = msgspec.structs.replace(context, env={**context.env, "GIVEN": "yes"})
    command = 'echo "$GIVEN/$A_SECRET/"'
    assert await run(command, context) == f"$ {command}\n\nyes//\n\n[exit 0]  Took T"


async def test_it_inherits_no_descriptor(context: ToolContext, tmp_path: Path) -> None:
    ours = os.open(tmp_path / "private", os.O_CREAT | os.O_WRONLY)
    os.set_inheritable(ours, True)
    try:
        command = f"test -e /proc/$$/fd/{ours} || echo closed"
        assert await run(command, context) == f"$ {command}\n\nclosed\n\n[exit 0]  Took T"
    finally:
        os.close(ours)


async def test_output_is_shown_while_the_command_still_runs(context: ToolContext, tmp_path: Path) -> None:
    # The command goes on only when its first line has been heard.
    async def progress(text: str) -> None:
        heard.append(text)
        (tmp_path / "heard").touch()

    heard: list[str] = []
    command = "echo one; until test -e heard; do sleep 0.01; done; echo two"
    text = await run(command, msgspec.structs.replace(context, progress=progress))
    assert text == f"$ {command}\n\none\ntwo\n\n[exit 0]  Took T"
    assert heard == ["one\n", "two\n"]


async def test_a_character_cut_in_two_by_a_pause_is_shown_whole(context: ToolContext, heard: list[str]) -> None:
    command = r"printf 'a\303'; sleep 0.1; printf '\251z'"
    assert await run(command, context) == f"$ {command}\n\naéz\n\n[exit 0]  Took T"
    assert heard == ["a", "éz"]


async def test_bytes_that_are_not_utf8_are_replaced(context: ToolContext, heard: list[str]) -> None:
    command = r"printf '\377ok\303'"
    assert await run(command, context) == f"$ {command}\n\n\ufffdok\ufffd\n\n[exit 0]  Took T"
    assert "".join(heard) == "\ufffdok\ufffd"


async def test_a_background_child_that_holds_the_output_is_not_waited_for(context: ToolContext) -> None:
    command = "sleep 60 & echo $!"
    started = time.monotonic()
    text = await run(command, context)
    assert time.monotonic() - started < 5
    match = re.fullmatch(re.escape(f"$ {command}\n\n") + r"(\d+)\n\n\[exit 0\]  Took T", text)
    assert match
    os.kill(int(match[1]), signal.SIGKILL)  # alive: this raises when it is not


async def test_a_background_child_that_writes_for_ever_is_not_waited_for(context: ToolContext) -> None:
    text = await run("echo $$; yes &", context)
    group = int(text.split("\n")[2])
    assert group_members(group) != []
    os.killpg(group, signal.SIGKILL)


async def test_a_background_child_may_go_on_writing_after_the_command(context: ToolContext, tmp_path: Path) -> None:
    # 300 kB do not fit into the pipe, and a closed pipe would kill the writer.
    command = "(until test -e go; do sleep 0.01; done; head -c 300000 /dev/zero && touch written) & true"
    await run(command, context)
    (tmp_path / "go").touch()
    async with asyncio.timeout(PATIENCE_S):
        while not (tmp_path / "written").exists():
            await asyncio.sleep(0.005)


async def test_a_command_that_closes_its_output_is_waited_for(context: ToolContext, tmp_path: Path) -> None:
    command = "exec >&- 2>&-; sleep 0.1; touch done; exit 4"
    assert await fail(command, context) == f"$ {command}\n\n[exit 4]  Took T"
    assert (tmp_path / "done").exists()


async def test_where_exits_cannot_be_polled_a_thread_waits_for_them(
    context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    assert await fail("echo hi; exit 5", context) == "$ echo hi; exit 5\n\nhi\n\n[exit 5]  Took T"


async def test_many_commands_run_at_once(context: ToolContext) -> None:
    texts = await asyncio.gather(*(run(f"echo {n}; sleep 0.1", context) for n in range(20)))
    assert texts == [f"$ echo {n}; sleep 0.1\n\n{n}\n\n[exit 0]  Took T" for n in range(20)]


async def test_of_many_lines_the_first_and_last_are_kept(context: ToolContext, heard: list[str]) -> None:
    text = await run("seq 1 100000", context)
    numbers = [f"{n}\n" for n in range(1, 100001)]
    left = numbers[1000:-1000]
    note = f"[... {sum(map(len, left))} bytes, {len(left)} lines left out ...]\n"
    output = "".join(numbers[:1000]) + note + "".join(numbers[-1000:])
    assert text == f"$ seq 1 100000\n\n{output}\n[exit 0]  Took T"
    assert "".join(heard) == "".join(numbers)


async def test_of_many_bytes_the_first_and_last_whole_lines_are_kept(context: ToolContext) -> None:
    lines = [f"{n:097}\n" for n in range(1, 1001)]
    kept = 25600 // 98
    left = 98 * (1000 - 2 * kept)
    note = f"[... {left} bytes, {1000 - 2 * kept} lines left out ...]\n"
    output = "".join(lines[:kept]) + note + "".join(lines[-kept:])
    assert await run("seq -f %097.0f 1000", context) == f"$ seq -f %097.0f 1000\n\n{output}\n[exit 0]  Took T"


async def test_of_one_endless_line_the_beginning_and_end_are_kept(context: ToolContext) -> None:
    command = "head -c 100000 /dev/zero | tr '\\0' a; echo; printf 'é%.0s' $(seq 30000)"
    text = await run(command, context)
    output = "a" * 25600 + "\n[... 108801 bytes, 1 lines left out ...]\n" + "é" * 12800
    assert text == f"$ {command}\n\n{output}\n\n[exit 0]  Took T"


def test_two_hundred_megabytes_of_output_do_not_grow_memory(tmp_path: Path) -> None:
    program = r"""if True:
        import asyncio, re, sys
        from zot.tools.base import ToolContext
        from zot.tools.bash import Bash
        heard = 0
        async def progress(text):
            global heard
            heard += len(text)
        context = ToolContext(cwd=sys.argv[1], env={"PATH": sys.argv[2]}, progress=progress)
        [block] = asyncio.run(Bash().run({"command": "yes | head -c 200000000"}, context))
        print(heard, len(block.text) < 60_000, re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1])
    """
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), os.environ["PATH"]],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    heard, is_short, peak_kib = done.stdout.split()
    assert (heard, is_short) == ("200000000", "True")
    assert int(peak_kib) < 60 * 1024


async def test_a_command_that_takes_too_long_is_ended_and_says_so(context: ToolContext) -> None:
    command = "echo $$; sleep 60"
    text = await fail(command, context, timeout=0.2)
    group = int(text.split("\n")[2])
    assert text == f"$ {command}\n\n{group}\n\n[exit -1] (timed out after 0.2 s)  Took T"
    assert group_members(group) == []


async def test_what_a_command_says_when_it_is_told_to_end_is_heard(context: ToolContext) -> None:
    command = "trap 'echo bye; exit 0' TERM; sleep 60 & wait"
    text = untimed(await refusal(Bash(timeout_s=0.2), {"command": command}, context))
    assert text == f"$ {command}\n\nbye\n\n[exit -1] (timed out after 0.2 s)  Took T"


async def test_on_timeout_a_tree_that_ignores_term_is_killed(context: ToolContext) -> None:
    command = "trap '' TERM; echo $$; (sleep 60; sleep 60) & sleep 60"
    started = time.monotonic()
    text = untimed(await refusal(Bash(timeout_s=0.1, grace_s=0.2), {"command": command}, context))
    assert 0.3 < time.monotonic() - started < 2.0
    group = int(text.split("\n")[2])
    assert text == f"$ {command}\n\n{group}\n\n[exit -1] (timed out after 0.1 s)  Took T"
    assert eventually(lambda: group_members(group) == [])


async def test_the_model_is_told_the_default_timeout() -> None:
    assert Bash(timeout_s=7).spec.schema["properties"]["timeout"] == {
        "type": "number",
        "minimum": 0.1,
        "description": "Seconds after which the command is killed, 7 by default",
    }


HOSTILE = {
    "sleeps": "echo $$; sleep 60",
    "ignores TERM": "trap '' TERM; echo $$; sleep 60; sleep 60",
    "has a tree that ignores TERM": "trap '' TERM; echo $$; (sleep 60; sleep 60) & (sleep 60 & sleep 60)",
    "left children and exits itself": "trap '' TERM; sleep 60 & echo $$",
    "has stopped itself": "echo $$; kill -STOP $$",
    "writes without end": "echo $$; yes",
    "has closed its output": "echo $$; exec >&- 2>&-; sleep 60",
}


async def test_a_cancelled_command_leaves_nothing_of_its_group(context: ToolContext) -> None:
    async def cancelled(command: str) -> tuple[str, list[int]]:
        group, call = await started(Bash(), command, context)
        call.cancel()
        how = await outcome(call)
        with pytest.raises(ChildProcessError):  # it has been reaped
            os.waitpid(group, os.WNOHANG)
        eventually(lambda: group_members(group) == [])
        return how, group_members(group)

    begun = time.monotonic()
    found = await asyncio.gather(*map(cancelled, HOSTILE.values()))
    assert dict(zip(HOSTILE, found, strict=True)) == dict.fromkeys(HOSTILE, ("cancelled", []))
    assert time.monotonic() - begun < 3.0


async def test_a_second_cancel_kills_at_once(context: ToolContext) -> None:
    group, call = await started(Bash(), HOSTILE["ignores TERM"], context)
    begun = time.monotonic()
    call.cancel()
    await asyncio.sleep(0)
    call.cancel()
    assert await outcome(call) == "cancelled"
    assert time.monotonic() - begun < 0.4
    assert eventually(lambda: group_members(group) == [])


async def test_a_cancel_during_the_grace_of_a_timeout_is_a_cancel(context: ToolContext) -> None:
    group, call = await started(Bash(timeout_s=0.1), HOSTILE["ignores TERM"], context)
    await asyncio.wait({call}, timeout=0.3)
    call.cancel()
    assert await outcome(call) == "cancelled"
    assert eventually(lambda: group_members(group) == [])


@pytest.mark.parametrize("reason", [RuntimeError("not recorded"), TimeoutError("too slow a disk")])
async def test_when_progress_cannot_be_shown_the_command_ends_and_the_reason_is_raised(
    reason: Exception, context: ToolContext
) -> None:
    async def progress(text: str) -> None:
        heard.append(text)
        raise reason

    heard: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(type(reason)) as raised:
            await Bash().run({"command": "echo $$; sleep 60"}, msgspec.structs.replace(context, progress=progress))
    assert raised.value is reason
    [text] = heard
    assert eventually(lambda: group_members(int(text)) == [])


async def test_no_call_keeps_a_descriptor(context: ToolContext) -> None:
    await run("true", context)
    before = os.listdir("/proc/self/fd")
    await run("echo hi", context)
    await fail("sleep 60", context, timeout=0.1)
    _, call = await started(Bash(), "echo $$; sleep 60", context)
    call.cancel()
    await outcome(call)
    await refusal(Bash(), {"command": "true"}, msgspec.structs.replace(context, cwd="/nonexistent"))
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({}, "invalid arguments: Object missing required field `command`"),
        ({"command": 7}, "invalid arguments: Expected `str`, got `int` - at `$.command`"),
        ({"command": "true", "timeout": 0}, "invalid arguments: Expected `float` >= 0.1 - at `$.timeout`"),
        ({"command": "true", "cwd": "/"}, "invalid arguments: Object contains unknown field `cwd`"),
        ({"command": " \n"}, "command must not be empty"),
        ({"command": "echo \0"}, "command must not contain a NUL character"),
        ({"command": "echo \ud800"}, "invalid arguments: command has a lone surrogate at character 5"),
    ],
)
async def test_bad_arguments_are_named(args: dict[str, Any], text: str, context: ToolContext) -> None:
    assert await refusal(Bash(), args, context) == text


async def test_a_missing_cwd_is_a_failure(context: ToolContext, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    text = await refusal(Bash(), {"command": "true"}, msgspec.structs.replace(context, cwd=gone))
    assert text == f"cannot start the command: [Errno 2] No such file or directory: '{gone}'"


async def started(
    tool: Tool, command: str, context: ToolContext
) -> tuple[int, asyncio.Task[tuple[TextBlock | Any, ...]]]:
    """Start a command that first writes its process group; return that and the call."""
    first: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def progress(text: str) -> None:
        if not first.done():
            first.set_result(int(text.split("\n", 1)[0]))

    context = msgspec.structs.replace(context, progress=progress)
    call = asyncio.create_task(tool.run({"command": command}, context))
    async with asyncio.timeout(PATIENCE_S):
        group = await first
    return group, call


async def outcome(call: asyncio.Task[Any]) -> str:
    async with asyncio.timeout(PATIENCE_S):
        try:
            await call
        except asyncio.CancelledError:
            return "cancelled"
        except ToolFailed:
            return "failed"
    return "done"
