from __future__ import annotations

import os
import re
import time
from pathlib import Path

import msgspec
import pytest

from zot.tools.sandbox import find_bwrap, sandboxed
from zot.tools.spill import Spills

from .calls import answer, refusal
from .shells import Shell, outcome

needs_bwrap = pytest.mark.skipif(find_bwrap(os.environ["PATH"], outside="/nowhere") is None, reason="no bubblewrap")


@pytest.fixture
def locked(kept: Shell, tmp_path: Path) -> Shell:
    """Works in a directory beside one with secrets."""
    for name in ("work", "home", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "home" / "secret").write_text("s3cret")
    kept.context = msgspec.structs.replace(kept.context, cwd=str(tmp_path / "work"))
    return kept


@needs_bwrap
async def test_only_the_directory_can_be_written(locked: Shell, tmp_path: Path) -> None:
    command = (
        f"echo in > file; echo out > ../elsewhere/file; echo out > /etc/zot; ln -s {tmp_path}/elsewhere l; : > l/f"
    )
    text = await locked.fail(command, locked.tool(lock=True))
    assert (tmp_path / "work" / "file").read_text() == "in\n"
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert not Path("/etc/zot").exists()
    assert text.count("Read-only file system") + text.count("nonexistent") + text.count("No such file") == 3


@needs_bwrap
async def test_everything_else_can_be_read_except_what_is_hidden(locked: Shell, tmp_path: Path) -> None:
    # The temporary directory is private, so that what is in the real one cannot be seen either.
    command = f"test -r /etc/passwd && echo yes; ls -A {tmp_path}/home /tmp; cat {tmp_path}/home/secret"
    text = await locked.fail(command, locked.tool(lock=True, hidden=(str(tmp_path / "home"),)))
    assert "\nyes\n" in text
    assert "s3cret" not in text


@needs_bwrap
async def test_hidden_directories_inside_the_working_directory_are_hidden_too(locked: Shell, tmp_path: Path) -> None:
    hidden = tmp_path / "work" / "home"
    hidden.mkdir()
    (hidden / "secret").write_text("s3cret")
    text = await locked.run(
        "ls -A home; echo x > home/new; echo y > new", locked.tool(lock=True, hidden=(str(hidden),))
    )
    assert text.endswith("\n\n[exit 0]  Took T")
    assert "secret" not in text
    assert sorted(path.name for path in hidden.iterdir()) == ["secret"]
    assert (tmp_path / "work" / "new").read_text() == "y\n"


@needs_bwrap
async def test_processes_outside_cannot_be_seen_or_ended(locked: Shell) -> None:
    command = f"kill -9 {os.getpid()}; ls -d /proc/[0-9]* | wc -l; cat /proc/{os.getpid()}/environ"
    text = await locked.fail(command, locked.tool(lock=True))
    shown = re.search(r"^(\d+)$", text, re.MULTILINE)
    assert shown
    assert int(shown[1]) < 8
    assert "No such process" in text


@needs_bwrap
@pytest.mark.skipif(os.geteuid() != 0, reason="only the super-user has something to lose")
async def test_the_super_user_can_undo_nothing(locked: Shell) -> None:
    command = "mount -o remount,rw / || mknod disk b 8 0 || unshare -m true || echo refused"
    assert "\nrefused\n" in await locked.run(command, locked.tool(lock=True))


@needs_bwrap
async def test_sockets_of_services_are_out_of_reach(locked: Shell) -> None:
    assert await locked.run("ls /run | grep -v -e systemd -e nscd -e resolvconf; true", locked.tool(lock=True)) == (
        "$ ls /run | grep -v -e systemd -e nscd -e resolvconf; true\n\n[exit 0]  Took T"
    )


@needs_bwrap
async def test_what_did_not_fit_can_be_read_by_the_next_command(locked: Shell, tmp_path: Path) -> None:
    home = tmp_path / "home"
    spills = Spills(str(home / "spill"), "s")
    tool = locked.tool(lock=True, hidden=(str(home),), spills=spills)
    match = re.search(r"the complete output is in (\S+)", await locked.run("seq 1 3000", tool))
    assert match
    text = await locked.fail(f"tail -1 {match[1]}; cat {home}/secret; echo x > {match[1]}", tool)
    assert "\n3000\n" in text
    assert "s3cret" not in text
    assert "Read-only file system" in text
    spills.close()


@needs_bwrap
async def test_a_job_goes_on_in_its_sandbox_and_ends_with_its_owner(locked: Shell) -> None:
    text, call = await locked.start("setsid sleep 600 & echo up", locked.tool(lock=True), owners=("session",))
    assert text == "up"
    assert await outcome(call) == "done"
    [block] = call.result()
    assert re.search(r"\n\[still running: \d+ sleep 600\]\n\[exit 0\]", getattr(block, "text", ""))
    assert "sleep 600 " in locked.left()
    begun = time.monotonic()
    await locked.processes.end_all("session", grace_s=5)
    assert locked.left() == []
    assert time.monotonic() - begun < 2


@needs_bwrap
async def test_a_locked_command_has_time_to_end(locked: Shell) -> None:
    command = "trap 'echo bye; exit 0' TERM; echo up; sleep 60 & wait"
    text = await locked.fail(command, locked.tool(lock=True, timeout_s=0.3))
    assert text == f"$ {command}\n\nup\nbye\n\n[exit -1] (timed out after 0.3 s)  Took T"


@needs_bwrap
async def test_an_abort_leaves_nothing_in_the_sandbox(locked: Shell) -> None:
    command = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 600; sleep 600' &); echo up; sleep 600; sleep 600"
    _, call = await locked.start(command, locked.tool(lock=True))
    call.cancel()
    assert await outcome(call) == "cancelled"
    assert locked.left() == []


@needs_bwrap
async def test_a_missing_directory_is_told_as_without_lock(locked: Shell, tmp_path: Path) -> None:
    context = msgspec.structs.replace(locked.context, cwd=str(tmp_path / "gone"))
    text = await refusal(locked.tool(lock=True), {"command": "true"}, context)
    assert text == f"cannot start the command: [Errno 2] No such file or directory: '{tmp_path}/gone'"


async def test_without_bubblewrap_nothing_runs(locked: Shell, tmp_path: Path) -> None:
    env = {**locked.context.env, "PATH": str(tmp_path)}
    context = msgspec.structs.replace(locked.context, env=env)
    text = await refusal(locked.tool(lock=True), {"command": "touch ran"}, context)
    assert text == "not run: under --lock commands need bubblewrap, and there is no bwrap on the PATH"
    assert not (tmp_path / "work" / "ran").exists()


async def test_a_bubblewrap_that_does_not_work_runs_nothing(locked: Shell, tmp_path: Path) -> None:
    fake = tmp_path / "elsewhere" / "bwrap"
    fake.write_text("#!/bin/sh\necho no permission to make a namespace >&2; exit 1\n")
    fake.chmod(0o755)
    env = {**locked.context.env, "PATH": f"{fake.parent}:/usr/bin:/bin"}
    context = msgspec.structs.replace(locked.context, env=env)
    tool = locked.tool(lock=True)
    told = "not run: under --lock commands need bubblewrap, which does not work here: no permission to make a namespace"
    assert await refusal(tool, {"command": "touch ran"}, context) == told
    assert not (tmp_path / "work" / "ran").exists()
    # Whoever repairs it does not have to start again.
    fake.write_text("#!/bin/sh\nexit 0\n")
    await answer(tool, {"command": "touch ran"}, context)


def test_a_bubblewrap_that_the_confined_could_have_written_does_not_count(tmp_path: Path) -> None:
    inside = tmp_path / "work" / "bin"
    outside = tmp_path / "bin"
    for directory in (inside, outside):
        directory.mkdir(parents=True)
        (directory / "bwrap").touch(mode=0o755)
    (tmp_path / "link").symlink_to(inside)
    cwd = str(tmp_path / "work")
    assert find_bwrap(f"{inside}:{tmp_path}/link:bin:{outside}", outside=cwd) == str(outside / "bwrap")
    assert find_bwrap(f"{inside}:.:", outside=cwd) is None
    assert find_bwrap(str(outside), outside=str(tmp_path / "wo")) == str(outside / "bwrap")


def test_a_directory_is_mounted_before_what_is_in_it() -> None:
    words = sandboxed(["x"], bwrap="/bwrap", cwd="/tmp", hidden=["/", "/etc"], shown=["/etc/ssl"])
    text = " ".join(map(str, words))
    # The working directory wins over the private /tmp, and every place comes after the one it is in.
    assert "--bind /tmp /tmp" in text
    assert "--tmpfs /tmp" not in text
    assert text.index("--tmpfs / ") < text.index("--tmpfs /etc") < text.index("--ro-bind /etc/ssl")
