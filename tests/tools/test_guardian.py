from __future__ import annotations

import asyncio
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import msgspec
import pytest

from harness import read_some
from timing import Stopwatch
from zot.tools.base import ToolContext
from zot.tools.guardian import GuardedChild, Guardian, open_processes
from zot.tools.process import REAP_S, Groups

from .calls import PATIENCE_S, eventually
from .shells import Shell, children, is_alive, left, outcome, processes

PR_GET_CHILD_SUBREAPER = 37


def guardian_pid() -> int:
    [pid] = children(os.getpid())
    return pid


async def test_it_is_started_with_the_first_command_and_ends_when_closed(kept: Shell) -> None:
    assert children(os.getpid()) == {}
    await kept.run("true")
    [pid] = children(os.getpid())
    await kept.processes.close()
    assert not is_alive(pid)
    assert children(os.getpid()) == {}


async def test_it_has_its_own_session_and_none_of_our_environment(
    context: ToolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOT_TEST_SECRET", "s3cret")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nenv >{tmp_path}/env\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    guardian = Guardian(python=str(python))
    await Shell(guardian, context, uuid.uuid4().hex).run("true")
    # A Ctrl+C in our terminal, or its end, is no business of the guardian's.
    assert os.getsid(guardian_pid()) == guardian_pid() != os.getsid(0)
    assert "ZOT_TEST_SECRET" not in (tmp_path / "env").read_text()
    await guardian.close()


async def test_it_leaves_our_process_unchanged(kept: Shell) -> None:
    before = signal.getsignal(signal.SIGCHLD)
    await kept.run("setsid sleep 60 &")
    adopts = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
    assert adopts.value == 0
    assert signal.getsignal(signal.SIGCHLD) is before


async def test_signals_that_our_thread_blocks_are_not_blocked_for_it_or_its_commands(kept: Shell) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})
    try:
        assert await kept.fail("kill $$") == "$ kill $$\n\n[exit -15] (killed by SIGTERM)  Took T"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


async def test_a_cancel_in_the_middle_of_a_long_request_starts_nothing(kept: Shell, tmp_path: Path) -> None:
    # Longer than what a socket takes at once, so that the rest waits for the keeper.
    env = {f"V{n}": "x" * 100_000 for n in range(12)}
    context = msgspec.structs.replace(kept.context, env={**kept.context.env, **env})
    tool = kept.tool()
    await tool.run({"command": "touch ran"}, context)
    assert (tmp_path / "ran").exists()
    for ticks in range(1, 4):
        call = asyncio.create_task(tool.run({"command": "touch ran-too; sleep 60"}, context))
        for _ in range(ticks):
            await asyncio.sleep(0)
        call.cancel()
        assert await outcome(call) == "cancelled"
        assert eventually(lambda: kept.left() == [])
    assert await kept.run("echo next") == "$ echo next\n\nnext\n\n[exit 0]  Took T"


async def test_one_keeper_takes_one_command_after_the_other(kept: Shell) -> None:
    keepers = {(await kept.run("echo $PPID")).split("\n")[2] for _ in range(5)}
    assert len(keepers) == 1


async def test_a_keeper_that_received_a_signal_takes_no_other_command(kept: Shell) -> None:
    # An order that is still on its way would reach the next command.
    first = (await kept.fail("echo $PPID; sleep 60", timeout=0.1)).split("\n")[2]
    assert (await kept.run("echo $PPID")).split("\n")[2] != first


async def test_commands_that_run_when_it_is_killed_fail_at_once_and_end(kept: Shell) -> None:
    command = "setsid sleep 60 & echo up; sleep 60"
    _, call = await kept.start(command)
    watch = Stopwatch()
    os.kill(guardian_pid(), signal.SIGKILL)
    await asyncio.wait({call}, timeout=PATIENCE_S)
    assert watch.read_s() < 1.0
    text = re.sub(r"Took .*", "Took T", str(call.exception()))
    assert text == f"$ {command}\n\nup\n\n[exit -1] (the process that kept it was killed)  Took T"
    assert eventually(lambda: kept.left() == [])
    assert await kept.run("echo next") == "$ echo next\n\nnext\n\n[exit 0]  Took T"


async def test_a_job_ends_when_it_is_killed(kept: Shell) -> None:
    await kept.run("setsid sleep 60 &")
    os.kill(guardian_pid(), signal.SIGKILL)
    assert eventually(lambda: kept.left() == [])


async def test_a_command_right_after_it_was_killed_gets_another(kept: Shell) -> None:
    for _ in range(10):
        await kept.run("true")
        pid = guardian_pid()
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # dead, and still to be found so by who started it
        assert await kept.run("echo next") == "$ echo next\n\nnext\n\n[exit 0]  Took T"


async def test_a_process_that_ignores_termination_is_killed_before_the_result(kept: Shell) -> None:
    command = "trap '' TERM; (setsid sleep 60; sleep 60) & echo up; sleep 60; sleep 60"
    _, call = await kept.start(command)
    os.kill(guardian_pid(), signal.SIGKILL)
    await asyncio.wait({call}, timeout=PATIENCE_S)
    assert kept.left() == []
    text = re.sub(r"Took .*", "Took T", str(call.exception()))
    assert text == f"$ {command}\n\nup\n\n[exit -1] (the process that kept it was killed)  Took T"


#: What has another session, another parent, another output and another environment.
RUNAWAY = "env -i setsid sh -c 'echo $$ > runaway; exec sleep 60' > /dev/null 2>&1 & until test -s runaway; do :; done"
GUARDIAN = "guardian=$(cut -d' ' -f4 /proc/$PPID/stat)"


async def test_a_command_that_kills_its_keeper_and_the_guardian_gets_nothing_away(kept: Shell, tmp_path: Path) -> None:
    command = f"sleep 60 & {RUNAWAY}; {GUARDIAN}; kill -9 $guardian $PPID; sleep 60"
    text = await kept.fail(command)
    assert text == f"$ {command}\n\n[exit -1] (the process that kept it was killed)  Took T"
    assert kept.left() == []
    assert not is_alive(int((tmp_path / "runaway").read_text()))
    assert await kept.run("echo next") == "$ echo next\n\nnext\n\n[exit 0]  Took T"


async def test_a_guardian_whose_death_is_noticed_step_by_step_is_replaced(kept: Shell) -> None:
    guardian = kept.processes
    assert isinstance(guardian, Guardian)
    await kept.run("true")
    for control in guardian._idle:
        control.close()
    seems_ready, keeper = socket.socketpair()
    seems_ready.setblocking(False)
    guardian._idle[:] = [seems_ready]
    assert guardian._socket is not None
    guardian._socket.shutdown(socket.SHUT_WR)  # As if it were dead, which is not known yet.
    asyncio.get_running_loop().add_reader(keeper, lambda: _hang_up(keeper))
    assert await kept.run("echo next") == "$ echo next\n\nnext\n\n[exit 0]  Took T"


def _hang_up(keeper: socket.socket) -> None:
    asyncio.get_running_loop().remove_reader(keeper)
    keeper.close()


@pytest.mark.parametrize("times", ["once", "for ever"])
async def test_a_command_that_stops_its_keeper_and_the_guardian_is_over_in_time(
    times: str, kept: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if times == "for ever":
        monkeypatch.setattr("zot.tools.guardian.REAP_S", 0.4)  # It takes all that a core has until it ends.
    stop = "kill -STOP $guardian $PPID"
    command = f"{RUNAWAY}; {GUARDIAN}; {stop if times == 'once' else f'while {stop}; do :; done'}; sleep 60"
    watch = Stopwatch()
    text = await kept.fail(command, kept.tool(timeout_s=0.5, grace_s=0.1))
    assert watch.read_s() < 0.5 + 0.1 + 3 * REAP_S
    assert text == f"$ {command}\n\n[exit -1] (timed out after 0.5 s)  Took T"
    assert kept.left() == []
    assert not is_alive(int((tmp_path / "runaway").read_text()))


async def test_closing_waits_for_the_end_of_a_job_even_without_waiting_for_the_guardian(
    kept: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zot.tools.guardian.SHUT_DOWN_S", 0.0)
    await kept.run("(trap '' TERM; echo up; sleep 60; sleep 60) &")
    assert kept.left() != []
    await kept.processes.close()
    assert kept.left() == []


def test_a_command_that_stops_its_keeper_and_the_guardian_ends_with_a_killed_zot(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    command = f"setsid sleep 60 & {GUARDIAN}; kill -STOP $guardian $PPID; echo up; sleep 60"
    host = [sys.executable, str(Path(__file__).with_name("zoo_host.py")), str(tmp_path), mark, command]
    with subprocess.Popen(host, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert read_some(process.stdout.fileno(), time.monotonic() + PATIENCE_S) == b"1 up\n"
        [guardian] = children(process.pid)
        process.kill()
        process.wait(PATIENCE_S)
    assert eventually(lambda: left(mark) == [] and not is_alive(guardian))


async def test_a_marked_process_inside_a_marked_one_has_its_own_mark(kept: Shell) -> None:
    command = f"grep -h realtime.timeout /proc/self/limits; {sys.executable} -c '{NESTED}'"
    outer, inner = map(int, re.findall(r"timeout +(\d+)", await kept.run(command)))
    assert 0 < inner < outer


NESTED = """if True:
    import asyncio, os
    from zot.tools.guardian import Guardian
    from zot.tools.process import Program
    async def main():
        guardian = Guardian()
        child = await guardian.spawn(Program(["/bin/grep", "realtime.timeout", "/proc/self/limits"], "/", {}))
        os.write(1, await child.read())
        await guardian.close()
    asyncio.run(main())
"""


async def test_a_guardian_that_does_not_answer_is_replaced(context: ToolContext, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nmkdir {tmp_path}/asked && exec sleep 60\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    guardian = Guardian(python=str(python), patience_s=1.0)
    shell = Shell(guardian, context, uuid.uuid4().hex)
    assert await shell.fail("true") == "cannot start the command: the guardian did not answer within 1 s"
    assert await shell.run("echo next") == "$ echo next\n\nnext\n\n[exit 0]  Took T"
    assert shell.left() == []
    await guardian.close()


async def test_stopping_the_guardian_or_a_keeper_does_not_stop_the_next_command(kept: Shell) -> None:
    await kept.run(f"{GUARDIAN}; kill -STOP $guardian; sleep 60 &")
    assert await kept.run("echo new") == "$ echo new\n\nnew\n\n[exit 0]  Took T"
    guardian = guardian_pid()
    for pid in (guardian, *children(guardian)):
        os.kill(pid, signal.SIGSTOP)
    assert await kept.run("echo idle") == "$ echo idle\n\nidle\n\n[exit 0]  Took T"


async def test_an_invalid_interpreter_is_a_clear_failure(context: ToolContext, tmp_path: Path) -> None:
    for python, reason in (
        ("/bin/false", "the guardian ended before it could take it"),
        (f"{tmp_path}/none", f"{tmp_path}/none: No such file or directory"),
    ):
        guardian = Guardian(python=python)
        assert await Shell(guardian, context, "").fail("true") == f"cannot start the command: {reason}"
        await guardian.close()


async def test_it_is_used_where_it_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_processes(), Guardian)
    for target, name, value in ((sys, "platform", "darwin"), (sys, "frozen", True), (sys, "executable", "")):
        with monkeypatch.context() as changed:
            changed.setattr(target, name, value, raising=False)
            assert isinstance(open_processes(), Groups)


def test_it_loads_very_few_modules() -> None:
    program = (
        "import sys; sys.path.append(sys.argv.pop()); import zot.tools.guardian_process.main; import json;"
        "print(json.dumps(sorted(sys.modules)))"
    )
    root = str(Path(sys.modules["zot"].__path__[0]).parent)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program, root], capture_output=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert {name for name in loaded if name.startswith("zot")} == {
        "zot", "zot.tools", "zot.tools.guardian_process", "zot.tools.guardian_process.main",
        "zot.tools.guardian_process.kernel",
        "zot.tools.guardian_process.spawn_request", "zot.tools.guardian_process.tree",
    }  # fmt: skip
    assert not loaded & {"asyncio", "msgspec", "typing", "subprocess", "site"}


FORKING_HOST = r"""if True:
    import asyncio, os, sys
    from zot.tools.guardian import Guardian
    from zot.tools.process import Program
    async def main():
        guardian = Guardian()
        env = {"ZOT_TEST_CALL": sys.argv[1], "PATH": os.environ["PATH"]}
        child = await guardian.spawn(Program(["/bin/sh", "-c", "setsid sleep 60 & echo up; sleep 60"], "/", env))
        await child.read()
        if os.fork() == 0:
            os.execv("/bin/sleep", ["sleep", "60"]) if sys.argv[2] == "exec" else os.read(0, 1)
            os._exit(0)
        os.write(1, b"up\n")
        await asyncio.Event().wait()
    asyncio.run(main())
"""


@pytest.mark.parametrize("way", ["fork", "exec"])
def test_a_process_that_the_host_forked_does_not_keep_commands_alive(way: str) -> None:
    mark = uuid.uuid4().hex
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", FORKING_HOST, mark, way], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as host:
        assert host.stdout is not None
        assert read_some(host.stdout.fileno(), time.monotonic() + PATIENCE_S) == b"up\n"
        [forked] = [pid for pid in children(host.pid) if _is_fork(pid)]
        assert left(mark) != []
        host.kill()
        host.wait(PATIENCE_S)
        try:
            assert eventually(lambda: left(mark) == [])
            assert is_alive(forked)
        finally:
            os.kill(forked, signal.SIGKILL)


def _is_fork(pid: int) -> bool:
    return b"zot.tools.guardian_process" not in Path(f"/proc/{pid}/cmdline").read_bytes()


SECRETIVE_HOST = r"""if True:
    import asyncio, os, sys, time
    from zot.tools.guardian import Guardian
    from zot.tools.process import Program
    from zot.tools.guardian import protect_process
    async def main():
        if sys.argv[1] == "protected":
            protect_process()
        guardian = Guardian()
        command = f"tr '\\0' '\\n' < /proc/{os.getpid()}/environ"
        child = await guardian.spawn(Program(["/bin/sh", "-c", command], "/", {"PATH": os.environ["PATH"]}))
        while data := await child.read():
            os.write(1, data)
        await guardian.close()
    asyncio.run(main())
"""


@pytest.mark.parametrize("way", ["protected", "bare"])
def test_a_command_cannot_read_the_secrets_of_a_protected_host(way: str) -> None:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "A_SECRET": "s3cret"}
    # The super-user may read everything, so that it has to give up what makes it one.
    become = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"] if os.geteuid() == 0 else []
    host = [*become, sys.executable, "-c", SECRETIVE_HOST, way]
    done = subprocess.run(host, env=env, capture_output=True, text=True, timeout=30, check=True)
    assert ("s3cret" in done.stdout) == (way == "bare")
    assert ("Permission denied" in done.stdout) == (way == "protected")


async def test_it_ends_when_nothing_uses_it(kept: Shell) -> None:
    await asyncio.gather(*(kept.run("sleep 0.05") for _ in range(12)))
    pid = guardian_pid()
    # Those beyond a few leave as soon as they have nothing to do.
    assert eventually(lambda: len(children(pid)) == 4)
    keepers = children(pid)
    await kept.processes.close()
    assert eventually(lambda: not {pid, *keepers} & {*processes()})


async def test_a_call_cancelled_while_it_starts_leaves_no_keeper(kept: Shell) -> None:
    call = asyncio.create_task(kept.tool().run({"command": "sleep 60"}, kept.context))
    await asyncio.sleep(0)
    call.cancel()
    assert await outcome(call) == "cancelled"
    assert kept.left() == []
    assert await kept.run("echo next") == "$ echo next\n\nnext\n\n[exit 0]  Took T"


async def test_a_keeper_that_falls_silent_before_the_command_runs_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("zot.tools.guardian._ANSWER_S", 0.2)
    ours, theirs = socket.socketpair()
    reads, writes = os.pipe()
    keeper = subprocess.Popen(["sleep", "60"])
    child = GuardedChild(Guardian(), ours, reads, ())
    theirs.send(f"taken {keeper.pid} 0\n".encode())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await child.start(b"request", [writes, reads], program="sh", cwd="/")
        assert keeper.wait(PATIENCE_S) == -signal.SIGKILL
    finally:
        child.close()
        theirs.close()
        os.close(writes)
