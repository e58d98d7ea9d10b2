from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from timing import Stopwatch
from zot.tools.base import ToolContext
from zot.tools.bash import ABORT_GRACE_S, Bash
from zot.tools.process import Groups, Program, Streams

from .calls import PATIENCE_S, answer, eventually, refusal
from .shells import Shell, outcome, untimed


async def test_output_of_both_streams_is_shown_as_a_shell_shows_it(shell: Shell) -> None:
    assert await shell.run("echo out; echo err >&2") == "$ echo out; echo err >&2\n\nout\nerr\n\n[exit 0]  Took T"


async def test_a_command_without_output_has_no_empty_paragraph(shell: Shell) -> None:
    assert await shell.run("true") == "$ true\n\n[exit 0]  Took T"


async def test_output_without_a_final_newline_gets_one(shell: Shell) -> None:
    assert await shell.run("printf abc") == "$ printf abc\n\nabc\n\n[exit 0]  Took T"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.0, "0.0s"), (0.26, "0.3s"), (59.9, "59.9s"), (65.4, "1m5s"), (3599.9, "59m59s"), (7400.0, "2h3m")],
)
async def test_the_duration_is_reported(seconds: float, told: str, context: ToolContext) -> None:
    clock = iter([100.0, 100.0 + seconds])
    text = await answer(Bash(clock=clock.__next__), {"command": "true"}, context)
    assert text == f"$ true\n\n[exit 0]  Took {told}"


async def test_a_status_other_than_zero_is_a_failure_with_the_same_text(shell: Shell) -> None:
    assert await shell.fail("echo no; exit 3") == "$ echo no; exit 3\n\nno\n\n[exit 3]  Took T"


async def test_a_command_killed_by_a_signal_says_which(shell: Shell) -> None:
    assert await shell.fail("kill -9 $$") == "$ kill -9 $$\n\n[exit -9] (killed by SIGKILL)  Took T"


async def test_a_command_killed_by_a_signal_without_a_name_says_its_number(shell: Shell) -> None:
    assert await shell.fail("kill -40 $$") == "$ kill -40 $$\n\n[exit -40] (killed by signal 40)  Took T"


async def test_a_command_that_reads_its_input_finds_it_empty(shell: Shell) -> None:
    assert await shell.run("cat; echo read") == "$ cat; echo read\n\nread\n\n[exit 0]  Took T"


async def test_it_runs_in_the_cwd_of_the_session(shell: Shell, tmp_path: Path) -> None:
    assert await shell.run("pwd") == f"$ pwd\n\n{tmp_path}\n\n[exit 0]  Took T"


async def test_it_sees_the_given_environment_and_not_ours(
    context: ToolContext, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "s3cret")
    given = {"PATH": context.env["PATH"], "ODD": "a=b\n\udcff é", "empty": ""}
    text = await answer(Bash(shell.processes), {"command": "env -0 | tr '\\0' '|'"}, replaced(context, env=given))
    shown = set(text.split("\n\n")[1].split("|")[:-1])
    # Shells and the tool add variables of their own.
    git = {"GIT_OPTIONAL_LOCKS", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0"}
    own = {"PWD", "OLDPWD", "_", "SHLVL"} | git
    assert {line for line in shown if line.partition("=")[0] not in own} == {
        f"PATH={given['PATH']}",
        "ODD=a=b\n\ufffd é",
        "empty=",
    }


async def test_limits_and_umask_are_inherited(shell: Shell) -> None:
    import resource

    before = os.umask(0o27)
    try:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert await shell.run("umask; ulimit -n") == f"$ umask; ulimit -n\n\n0027\n{soft}\n\n[exit 0]  Took T"
    finally:
        os.umask(before)


async def test_signals_ignored_by_zot_are_not_ignored_by_a_command(shell: Shell) -> None:
    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        assert await shell.fail("kill -PIPE $$") == "$ kill -PIPE $$\n\n[exit -13] (killed by SIGPIPE)  Took T"
    finally:
        signal.signal(signal.SIGPIPE, before)


async def test_it_inherits_no_descriptor(shell: Shell, tmp_path: Path) -> None:
    ours = os.open(tmp_path / "private", os.O_CREAT | os.O_WRONLY)
    os.set_inheritable(ours, True)
    try:
        command = "exec ls /proc/self/fd"  # and the fourth is the listing's own
        assert await shell.run(command) == f"$ {command}\n\n0\n1\n2\n3\n\n[exit 0]  Took T"
    finally:
        os.close(ours)


async def test_a_background_child_that_holds_the_output_does_not_delay_the_result(shell: Shell) -> None:
    command = "sleep 60 & echo $!"
    started = time.monotonic()
    text = await shell.run(command)
    assert time.monotonic() - started < 5
    match = re.fullmatch(
        re.escape(f"$ {command}\n\n") + r"(\d+)\n\n\[still running: (\d+) sleep 60\]\n\[exit 0\]  Took T", text
    )
    assert match
    assert match[1] == match[2]
    assert shell.left() == ["sleep 60 "]


async def test_a_silent_background_child_delays_the_answer_by_less_than_two_seconds(shell: Shell) -> None:
    fastest_s = 60.0
    for _ in range(10):  # A busy machine may hold up some of them.
        begun = time.monotonic()
        await shell.run("sleep 60 &")
        fastest_s = min(fastest_s, time.monotonic() - begun)
        if fastest_s < 2:
            break
    assert fastest_s < 2


async def test_of_very_many_background_children_some_are_named_and_the_rest_counted(shell: Shell) -> None:
    text = await shell.run("for i in 1 2 3 4 5 6; do for j in 1 2 3 4 5 6 7 8 9; do sleep 60 & done; done")
    # A child that has not reached its exec yet still has the shell's command line.
    assert len(re.findall(r"\[still running: \d+ .*\]\n", text)) == 50
    assert text.endswith("]\n[still running: others, too]\n[exit 0]  Took T")


async def test_a_background_child_that_has_closed_its_output_is_reported_too(shell: Shell) -> None:
    text = await shell.run("sleep 61 >/dev/null 2>&1 &")
    assert re.search(r"\n\n\[still running: \d+ sleep 61\]\n\[exit 0\]  Took T$", text)


async def test_a_background_child_that_writes_without_end_does_not_delay_the_result(shell: Shell) -> None:
    text = await shell.run("yes & until read -r name </proc/$!/comm && test $name = yes; do :; done")
    assert re.search(r"\n\[still running: \d+ yes\]\n\[exit 0\]  Took T$", text)
    assert shell.left() == ["yes "]


async def test_a_background_child_may_keep_writing_after_the_command(shell: Shell, tmp_path: Path) -> None:
    # 300 kB do not fit into the pipe, and a closed pipe would kill the writer.
    command = "(until test -e go; do sleep 0.01; done; head -c 300000 /dev/zero && touch written) & true"
    await shell.run(command)
    (tmp_path / "go").touch()
    async with asyncio.timeout(PATIENCE_S):
        while not (tmp_path / "written").exists():
            await asyncio.sleep(0.005)


async def test_jobs_end_with_any_of_their_owners_and_not_with_others(shell: Shell) -> None:
    for seconds, owners in ((61, ("session 1", "run 1")), (62, ("session 1", "run 2")), (63, ("session 2", "run 3"))):
        _, call = await shell.start(f"sleep {seconds} & echo up", owners=owners)
        assert await outcome(call) == "done"
    await shell.processes.end_all("run 2", grace_s=1)
    assert sorted(shell.left()) == ["sleep 61 ", "sleep 63 "]
    await shell.processes.end_all("session 1", grace_s=1)
    assert shell.left() == ["sleep 63 "]
    await shell.processes.end_all("nobody", grace_s=1)
    assert shell.left() == ["sleep 63 "]


async def test_closing_ends_everything_and_nothing_can_be_started_afterwards(shell: Shell) -> None:
    await shell.run("sleep 60 &")
    await shell.processes.close()
    assert shell.left() == []
    assert re.match(r"cannot start the command: .* closed", await shell.fail("true"))
    await shell.processes.close()


async def test_a_command_that_closes_its_output_is_awaited(shell: Shell, tmp_path: Path) -> None:
    command = "exec >&- 2>&-; sleep 0.1; touch done; exit 4"
    assert await shell.fail(command) == f"$ {command}\n\n[exit 4]  Took T"
    assert (tmp_path / "done").exists()


async def test_where_exits_cannot_be_polled_a_thread_waits_for_them(
    context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    text = untimed(await refusal(Bash(Groups()), {"command": "echo hi; exit 5"}, context))
    assert text == "$ echo hi; exit 5\n\nhi\n\n[exit 5]  Took T"


async def test_many_commands_run_at_once(shell: Shell) -> None:
    texts = await asyncio.gather(*(shell.run(f"echo {n}; sleep 0.1") for n in range(20)))
    assert texts == [f"$ echo {n}; sleep 0.1\n\n{n}\n\n[exit 0]  Took T" for n in range(20)]


async def test_a_command_that_exceeds_its_timeout_is_ended_and_reported(shell: Shell) -> None:
    command = "echo up; sleep 60"
    assert await shell.fail(command, timeout=0.2) == f"$ {command}\n\nup\n\n[exit -1] (timed out after 0.2 s)  Took T"
    assert shell.left() == []


async def test_a_command_s_output_during_termination_is_kept(shell: Shell) -> None:
    command = "trap 'echo bye; exit 0' TERM; sleep 60 & wait"
    text = await shell.fail(command, shell.tool(timeout_s=0.2))
    assert text == f"$ {command}\n\nbye\n\n[exit -1] (timed out after 0.2 s)  Took T"


async def test_a_stopped_command_is_terminated_too(shell: Shell) -> None:
    command = "trap 'echo bye; exit 0' TERM; kill -STOP $$"
    text = await shell.fail(command, shell.tool(timeout_s=0.2))
    assert text == f"$ {command}\n\nbye\n\n[exit -1] (timed out after 0.2 s)  Took T"


async def test_on_timeout_a_tree_that_ignores_term_is_killed(shell: Shell) -> None:
    command = "trap '' TERM; echo up; (sleep 60; sleep 60) & sleep 60"
    watch, started = Stopwatch(), time.monotonic()
    text = await shell.fail(command, shell.tool(timeout_s=0.1, grace_s=0.2))
    assert time.monotonic() - started > 0.3
    assert watch.read_s() < 2.0
    assert text == f"$ {command}\n\nup\n\n[exit -1] (timed out after 0.1 s)  Took T"
    assert eventually(lambda: shell.left() == [])


async def test_the_model_gets_the_default_timeout() -> None:
    assert Bash(timeout_s=7).spec.schema["properties"]["timeout"] == {
        "type": "number",
        "minimum": 0.1,
        "description": "Seconds after which the command is killed, 7 by default",
    }


async def test_a_second_cancel_kills_at_once(shell: Shell) -> None:
    async def waited() -> bool:
        _, call = await shell.start("trap '' TERM; echo up; sleep 60; sleep 60")
        begun = time.monotonic()
        call.cancel()
        await asyncio.sleep(0)
        call.cancel()
        assert await outcome(call) == "cancelled"
        took = time.monotonic() - begun
        assert eventually(lambda: shell.left() == [])
        return took >= ABORT_GRACE_S

    # A machine that is busy may keep one that does not wait, but not all of them.
    tries = 0
    while await waited():
        tries += 1
        assert tries < 5


async def test_a_cancel_during_the_grace_of_a_timeout_is_a_cancel(shell: Shell) -> None:
    _, call = await shell.start("trap '' TERM; echo up; sleep 60; sleep 60", shell.tool(timeout_s=0.1))
    await asyncio.wait({call}, timeout=0.3)
    call.cancel()
    assert await outcome(call) == "cancelled"
    assert eventually(lambda: shell.left() == [])


async def test_a_cancel_at_any_moment_leaves_nothing(shell: Shell) -> None:
    for ticks in range(12):
        call = asyncio.create_task(shell.tool().run({"command": "sleep 60 & sleep 60"}, shell.context))
        for _ in range(ticks):
            await asyncio.sleep(0)
        call.cancel()
        assert await outcome(call) == "cancelled"
    assert eventually(lambda: shell.left() == [])


@pytest.mark.parametrize("reason", [RuntimeError("not recorded"), TimeoutError("too slow a disk")])
async def test_when_progress_cannot_be_shown_the_command_ends_and_the_reason_is_raised(
    reason: Exception, shell: Shell
) -> None:
    async def progress(text: str) -> None:
        raise reason

    with pytest.raises(type(reason)) as raised:
        await shell.heard_by(progress).run("echo up; sleep 60")
    assert raised.value is reason
    assert eventually(lambda: shell.left() == [])


async def test_no_call_keeps_a_descriptor(shell: Shell, tmp_path: Path) -> None:
    await shell.run("true")
    before = os.listdir("/proc/self/fd")
    await shell.run("echo hi")
    await shell.fail("sleep 60", timeout=0.1)
    _, call = await shell.start("echo up; sleep 60")
    call.cancel()
    await outcome(call)
    await refusal(shell.tool(), {"command": "true"}, replaced(shell.context, cwd=f"{tmp_path}/none"))
    assert len(os.listdir("/proc/self/fd")) <= len(before)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({}, "invalid arguments: command is missing"),
        ({"command": 7}, "invalid arguments: command must be a string, not a whole number"),
        ({"command": "true", "timeout": 0}, "invalid arguments: timeout must be a number of at least 0.1"),
        ({"command": "true", "cwd": "/"}, "invalid arguments: cwd is unknown"),
        ({"command": " \n"}, "command must not be empty"),
        ({"command": "echo \0"}, "command must not contain a NUL character"),
        ({"command": "echo \ud800"}, "invalid arguments: command has a lone surrogate at character 5"),
    ],
)
async def test_bad_arguments_are_named(args: dict[str, Any], text: str, context: ToolContext) -> None:
    assert await refusal(Bash(), args, context) == text


async def test_a_missing_cwd_is_a_failure(shell: Shell, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    text = await refusal(shell.tool(), {"command": "true"}, replaced(shell.context, cwd=gone))
    assert text == f"cannot start the command: {gone}: No such file or directory"


async def test_a_command_that_is_too_long_for_the_system_is_a_failure(shell: Shell) -> None:
    text = await shell.fail(f": {'x' * 200_000}")
    assert text == "cannot start the command: /bin/sh: Argument list too long"


@pytest.mark.parametrize("name", ["a=b", "a\0b", "\ud800"])
async def test_a_variable_no_program_can_have_is_a_failure(shell: Shell, name: str) -> None:
    text = await refusal(shell.tool(), {"command": "true"}, replaced(shell.context, env={name: "x"}))
    assert text.startswith("cannot start the command: ")


async def test_a_program_uses_the_given_input_and_error_stream(shell: Shell) -> None:
    (reads, we_write), (we_read, complains) = os.pipe(), os.pipe()
    with open(we_write, "wb") as given, open(we_read, "rb") as complaints:
        streams = Streams(reads, complains)
        argv, env = ["/bin/sh", "-c", "cat; echo no >&2"], {"PATH": os.environ["PATH"]}
        child = await shell.processes.spawn(Program(argv, "/", env, streams=streams))
        for fd in streams:
            os.close(fd)
        given.write(b"said\n")
        given.close()
        said = b""
        while data := await child.read():
            said += data
        child.close()
        assert (said, complaints.read(), child.status()) == (b"said\n", b"no\n", 0)


async def test_a_program_without_a_slash_is_looked_for_in_its_own_path(shell: Shell, tmp_path: Path) -> None:
    program = tmp_path / "hello"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    child = await shell.processes.spawn(Program(["hello"], "/", {"PATH": f"/nowhere:{tmp_path}"}))
    assert await child.read() == b"hello\n"
    assert await child.read() == b""
    assert child.status() == 0
    child.release()
    with pytest.raises(FileNotFoundError):
        await shell.processes.spawn(Program(["hello"], "/", {"PATH": "/nowhere"}))


def replaced(context: ToolContext, **changes: Any) -> ToolContext:
    return msgspec.structs.replace(context, **changes)
