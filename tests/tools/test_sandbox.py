from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import msgspec
import pytest

from optional import needs
from timing import Stopwatch
from zot.config.private_paths import PrivatePath
from zot.tools.command_output import Spills
from zot.tools.mounts import locked_mounts
from zot.tools.sandbox import find_bwrap, why_no_bwrap

from .calls import PATIENCE_S, answer, refusal
from .shells import Shell, outcome


@pytest.fixture
def locked(kept: Shell, tmp_path: Path) -> Shell:
    """Works in a directory beside one with secrets."""
    for name in ("work", "home", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "home" / "secret").write_text("s3cret")
    env = {**kept.context.env, "HOME": str(tmp_path / "home")}
    kept.context = msgspec.structs.replace(kept.context, cwd=str(tmp_path / "work"), env=env)
    return kept


@needs("bwrap")
async def test_only_the_directory_can_be_written(locked: Shell, tmp_path: Path) -> None:
    command = (
        f"echo in > file; echo out > ../elsewhere/file; echo out > /etc/zot; ln -s {tmp_path}/elsewhere l; : > l/f"
    )
    text = await locked.fail(command, locked.tool(lock=True))
    assert (tmp_path / "work" / "file").read_text() == "in\n"
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert not Path("/etc/zot").exists()
    assert text.count("Read-only file system") + text.count("nonexistent") + text.count("No such file") == 3


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory with a secret that everyone could read."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "secret").write_text("s3cret")
    return place


@needs("bwrap")
async def test_the_root_has_only_programs_and_private_directories(locked: Shell) -> None:
    path = f"{os.path.dirname(shutil.which('bwrap') or '')}:/usr/bin:/bin"
    locked.context = msgspec.structs.replace(locked.context, env={**locked.context.env, "PATH": path})
    shown = (await locked.run("ls -A /; ls -A /run /var /var/tmp", locked.tool(lock=True))).split("\n\n")
    root = {name for name in shown[1].split() if not name.startswith(("lib", "/"))}
    links = {entry.name for entry in os.scandir("/") if entry.is_symlink()}
    programs = {"bin", "etc", "gnu", "nix", "opt", "sbin", "usr"}
    assert root - links <= programs | {"dev", "proc", "run", "sys", "tmp", "var", ".zot-sandbox"}
    assert {name for part in shown[2:-1] for name in part.split()} <= {
        "/var:", "/var/tmp:", "lib", "tmp", "current-system", "nscd", "resolvconf", "systemd"
    }  # fmt: skip


@needs("bwrap")
@pytest.mark.parametrize("way", ["{0}/secret", "link", "/proc/self/root{0}/secret", "/proc/1/root{0}/secret"])
async def test_outside_files_cannot_be_read(way: str, locked: Shell, outside: Path, tmp_path: Path) -> None:
    (tmp_path / "work" / "link").symlink_to(outside / "secret")
    path = way.format(outside)
    plain = await locked.run(f"cat {path}") if not path.startswith("/proc/1/") else "s3cret"
    assert "s3cret" in plain
    assert "s3cret" not in await locked.fail(f"cat {path}", locked.tool(lock=True))


@needs("bwrap")
async def test_the_home_of_the_user_is_empty_and_private(locked: Shell, outside: Path) -> None:
    (outside / ".ssh").mkdir()
    (outside / ".ssh" / "id").write_text("s3cret")
    env = {**locked.context.env, "HOME": str(outside)}
    locked.context = msgspec.structs.replace(locked.context, env=env)
    text = await locked.run('ls -A ~; echo x > ~/mine; cat ~/mine; test "$HOME" = ~', locked.tool(lock=True))
    assert text.split("\n\n")[1:] == ["x", "[exit 0]  Took T"]
    assert sorted(os.listdir(outside)) == [".ssh", "secret"]


@needs("bwrap")
async def test_only_public_settings_of_the_system_can_be_read(locked: Shell) -> None:
    command = "test -r /etc/passwd && echo yes; find /etc -type f ! -perm -004 -exec cat {} +; cat /etc/shadow"
    text = await locked.fail(command, locked.tool(lock=True))
    lines = text.split("\n\n")[1].split("\n")
    assert lines[0] == "yes"
    assert lines[-1] == "cat: /etc/shadow: Permission denied"
    assert [line for line in lines[1:] if "Permission denied" not in line] == []


@needs("bwrap")
async def test_programs_of_the_path_run_with_their_files_and_show_nothing_else(
    locked: Shell, outside: Path, tmp_path: Path
) -> None:
    tools = outside / "tools"
    for name in ("bin", "lib", "etc", "elsewhere"):
        (tools / name).mkdir(parents=True)
    (tools / "lib" / "data").write_text("data\n")
    (tools / "etc" / "token").write_text("s3cret")
    (tools / "elsewhere" / "notes").write_text("s3cret")
    script = "#!/bin/sh\ncat $(dirname $(readlink -f $0))/../lib/data\n"
    (tools / "bin" / "direct").write_text(script)
    (tools / "elsewhere" / "far").write_text("#!/bin/sh\necho far\n")
    for program in (tools / "bin" / "direct", tools / "elsewhere" / "far"):
        program.chmod(0o755)
    (tools / "bin" / "far").symlink_to("../elsewhere/far")
    (outside / "links").mkdir()
    (outside / "links" / "indirect").symlink_to("../tools/bin/direct")
    (tmp_path / "way").symlink_to(outside / "links")
    env = {**locked.context.env, "PATH": f"{tmp_path}/way:{tools}/bin:{locked.context.env['PATH']}"}
    locked.context = msgspec.structs.replace(locked.context, env=env)
    tool = locked.tool(lock=True)
    command = "direct; indirect; far"
    assert await locked.run(command, tool) == f"$ {command}\n\ndata\ndata\nfar\n\n[exit 0]  Took T"
    assert "s3cret" not in await locked.fail(f"cat {tools}/etc/* {tools}/elsewhere/notes {outside}/secret", tool)
    assert "Read-only file system" in await locked.fail(f"echo x > {tools}/bin/direct", tool)


@needs("bwrap")
async def test_no_setting_of_the_kernel_can_be_changed(locked: Shell) -> None:
    # As a super-user, too: only looked at, since what could be changed here would be changed for everyone.
    command = "cat /proc/sys/kernel/ostype; find /proc/sys /proc/fs /proc/irq /proc/bus /proc/sysrq-trigger -writable"
    text = await locked.run(f"{command} 2>&1 | grep -v -e 'No such' -e denied; true", locked.tool(lock=True))
    assert text.split("\n\n")[1:] == ["Linux", "[exit 0]  Took T"]


@needs("bwrap")
async def test_a_directory_is_reachable_under_the_session_s_name_for_it(locked: Shell, outside: Path) -> None:
    (outside / "real").mkdir()
    (outside / "real" / "file").write_text("here\n")
    (outside / "link").symlink_to("real")
    locked.context = msgspec.structs.replace(locked.context, cwd=str(outside / "link"))
    command = f"cat file {outside}/link/file"
    assert await locked.run(command, locked.tool(lock=True)) == f"$ {command}\n\nhere\nhere\n\n[exit 0]  Took T"


@needs("bwrap")
async def test_hidden_directories_inside_the_working_directory_are_hidden_too(locked: Shell, tmp_path: Path) -> None:
    hidden = tmp_path / "work" / "home"
    hidden.mkdir()
    (hidden / "secret").write_text("s3cret")
    tool = locked.tool(lock=True, hidden=(PrivatePath(str(hidden), "home"),))
    text = await locked.run("ls -A home; echo x > home/new; echo y > new", tool)
    assert text.endswith("\n\n[exit 0]  Took T")
    assert "secret" not in text
    assert sorted(path.name for path in hidden.iterdir()) == ["secret"]
    assert (tmp_path / "work" / "new").read_text() == "y\n"


@needs("bwrap")
async def test_nothing_can_be_put_in_place_of_a_hidden_directory(locked: Shell, tmp_path: Path) -> None:
    hidden = tmp_path / "work" / "local" / "state" / "zot"
    tool = locked.tool(lock=True, hidden=(PrivatePath(str(hidden), "home"),))
    text = await locked.fail(
        "mkdir -p local/state/zot; : > local/state/zot/new; mv local/state local/x; mv local x", tool
    )
    assert text.count("Device or resource busy") == 2
    assert [path.relative_to(tmp_path / "work").as_posix() for path in (tmp_path / "work").rglob("*")] == [
        "local", "local/state", "local/state/zot",
    ]  # fmt: skip
    assert hidden.stat().st_mode & 0o777 == 0o700


@needs("bwrap")
async def test_processes_outside_cannot_be_seen_or_ended(locked: Shell) -> None:
    command = f"kill -9 {os.getpid()}; ls -d /proc/[0-9]* | wc -l; cat /proc/{os.getpid()}/environ"
    text = await locked.fail(command, locked.tool(lock=True))
    shown = re.search(r"^(\d+)$", text, re.MULTILINE)
    assert shown
    assert int(shown[1]) < 8
    assert "No such process" in text


@needs("bwrap")
async def test_no_command_can_undo_it(locked: Shell) -> None:
    command = "mount -o remount,rw / || mknod disk b 8 0 || unshare -m true || echo refused"
    assert "\nrefused\n" in await locked.run(command, locked.tool(lock=True))


@needs("bwrap")
async def test_sockets_of_services_are_out_of_reach(locked: Shell) -> None:
    assert await locked.run("ls /run | grep -v -e systemd -e nscd -e resolvconf; true", locked.tool(lock=True)) == (
        "$ ls /run | grep -v -e systemd -e nscd -e resolvconf; true\n\n[exit 0]  Took T"
    )


@needs("bwrap")
async def test_spilled_output_can_be_read_by_the_next_command(locked: Shell, tmp_path: Path) -> None:
    home = tmp_path / "home"
    spills = Spills(str(home / "spill"), "s")
    tool = locked.tool(lock=True, hidden=(PrivatePath(str(home), "home"),), spills=spills)
    match = re.search(r"the complete output is in (\S+)", await locked.run("seq 1 3000", tool))
    assert match
    text = await locked.fail(f"tail -1 {match[1]}; cat {home}/secret; echo x > {match[1]}", tool)
    assert "\n3000\n" in text
    assert "s3cret" not in text
    assert "Read-only file system" in text
    spills.close()


@needs("bwrap")
async def test_a_job_continues_in_its_sandbox_and_ends_with_its_owner(locked: Shell) -> None:
    text, call = await locked.start("setsid sleep 600 & echo up", locked.tool(lock=True), owners=("session",))
    assert text == "up"
    assert await outcome(call) == "done"
    [block] = call.result()
    assert re.search(r"\n\[still running: \d+ sleep 600\]\n\[exit 0\]", getattr(block, "text", ""))
    assert "sleep 600 " in locked.left()
    watch = Stopwatch()
    await locked.processes.end_all("session", grace_s=PATIENCE_S)
    assert locked.left() == []
    assert watch.read_s() < 2


@needs("bwrap")
async def test_a_locked_command_has_time_to_end(locked: Shell) -> None:
    command = "trap 'echo bye; exit 0' TERM; echo up; sleep 60 & wait"
    text = await locked.fail(command, locked.tool(lock=True, timeout_s=0.3))
    assert text == f"$ {command}\n\nup\nbye\n\n[exit -1] (timed out after 0.3 s)  Took T"


@needs("bwrap")
async def test_an_abort_leaves_nothing_in_the_sandbox(locked: Shell) -> None:
    command = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 600; sleep 600' &); echo up; sleep 600; sleep 600"
    _, call = await locked.start(command, locked.tool(lock=True))
    call.cancel()
    assert await outcome(call) == "cancelled"
    assert locked.left() == []


@needs("bwrap")
async def test_a_missing_directory_is_reported_as_without_a_lock(locked: Shell, tmp_path: Path) -> None:
    context = msgspec.structs.replace(locked.context, cwd=str(tmp_path / "gone"))
    text = await refusal(locked.tool(lock=True), {"command": "true"}, context)
    assert text == f"cannot start the command: {tmp_path}/gone: No such file or directory"


async def test_without_bubblewrap_nothing_runs(locked: Shell, tmp_path: Path) -> None:
    env = {**locked.context.env, "PATH": str(tmp_path)}
    context = msgspec.structs.replace(locked.context, env=env)
    text = await refusal(locked.tool(lock=True), {"command": "touch ran"}, context)
    assert text == "not run: under --lock, commands need bubblewrap, and bwrap is not on the PATH"
    assert not (tmp_path / "work" / "ran").exists()


async def test_a_bubblewrap_that_does_not_work_runs_nothing(locked: Shell, tmp_path: Path) -> None:
    fake = tmp_path / "elsewhere" / "bwrap"
    fake.write_text("#!/bin/sh\necho no permission to make a namespace >&2; exit 1\n")
    fake.chmod(0o755)
    env = {**locked.context.env, "PATH": f"{fake.parent}:/usr/bin:/bin"}
    context = msgspec.structs.replace(locked.context, env=env)
    tool = locked.tool(lock=True)
    told = (
        "not run: under --lock, commands need bubblewrap, which does not work here: no permission to make a namespace"
    )
    assert await refusal(tool, {"command": "touch ran"}, context) == told
    assert not (tmp_path / "work" / "ran").exists()
    # A user who repairs it does not have to restart.
    fake.write_text("#!/bin/sh\nexit 0\n")
    await answer(tool, {"command": "touch ran"}, context)


def test_a_bubblewrap_that_the_confined_could_have_written_is_refused(tmp_path: Path) -> None:
    inside = tmp_path / "work" / "bin"
    outside = tmp_path / "bin"
    for directory in (inside, outside):
        directory.mkdir(parents=True)
        (directory / "bwrap").touch(mode=0o755)
    (tmp_path / "link").symlink_to(inside)
    cwd = str(tmp_path / "work")
    assert find_bwrap(f"{inside}:{tmp_path}/link:bin:{outside}", outside=[cwd]) == str(outside / "bwrap")
    assert find_bwrap(f"{inside}:.:", outside=[cwd]) is None
    why = f"{inside}/bwrap is not used: it is in {cwd}, where a confined program could have put it"
    assert why_no_bwrap(f"{inside}:.:", outside=[str(outside), cwd]) == why
    assert why_no_bwrap(str(tmp_path), outside=[cwd]) == "bwrap is not on the PATH"
    assert find_bwrap(str(outside), outside=["/"]) is None
    assert find_bwrap(str(outside), outside=[str(tmp_path / "wo")]) == str(outside / "bwrap")


def test_a_directory_is_mounted_before_what_is_in_it() -> None:
    hidden = [PrivatePath("/usr", "home"), PrivatePath("/etc", "home")]
    mounts = [" ".join(mount) for mount in locked_mounts("/tmp", hidden=hidden, shown=["/etc/ssl"])]
    # The working directory wins over the private /tmp, and every place comes after the one it is in.
    assert "--bind /tmp /tmp" in mounts
    assert "--tmpfs /tmp" not in mounts
    assert mounts.index("--tmpfs /etc") < mounts.index("--ro-bind /etc/ssl /etc/ssl")
    assert mounts[-1] == "--remount-ro /"


@pytest.mark.parametrize("home", ["/", "/usr", "", "relative", "/there-is-no-such-directory"])
def test_a_home_that_is_not_a_directory_covers_nothing(home: str) -> None:
    covered = [mount[-1] for mount in locked_mounts("/tmp", home=home) if mount[0] == "--tmpfs"]
    assert not {"/", "/usr", home} & set(covered)
