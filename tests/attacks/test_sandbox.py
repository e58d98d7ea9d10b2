"""The kernel's surface in a sandbox: namespaces, mounts, keys, set-user-id files, the network and the environment."""

from __future__ import annotations

import os
import re
import shutil
import socket
import struct
import sys
from pathlib import Path

import pytest

from optional import MISSING, needs
from zot.tools.guardian import Guardian
from zot.tools.process import Groups, Processes, Program
from zot.tools.sandbox import _CALLS as _CALLS_REFUSED
from zot.tools.sandbox import _MODES, PROTECTIONS, SandboxSupport, find_support, seccomp_filter

from .privilege import needs_root, thorough
from .sandboxed import locked

#: Prints what each system call answers: 0, or the number of the error. None of them may work.
_CALLS = """
import ctypes, os, socket
call = ctypes.CDLL(None, use_errno=True).syscall
machine = os.uname().machine
def errno_of(x86_64, aarch64, *args):
    number = {"x86_64": x86_64, "aarch64": aarch64}[machine]
    return ctypes.get_errno() if call(number, *args) < 0 else 0
NEWUSER = 0x10000000
print("unshare", errno_of(272, 97, NEWUSER))
print("clone", errno_of(56, 220, NEWUSER | 17, 0, 0, 0, 0))
print("clone3", errno_of(435, 435, 0, 0))
print("setns", errno_of(308, 268, 0, 0))
print("mount", errno_of(165, 40, b"cgroup2", b"/tmp", b"cgroup2", 0, 0))
print("fsopen", errno_of(430, 430, b"cgroup2", 0))
print("keyctl", errno_of(250, 219, 0, -3, 0, 0, 0))
print("add_key", errno_of(248, 217, b"user", b"k", b"v", 1, -3))
print("bpf", errno_of(321, 280, 0, 0, 0))
print("io_uring", errno_of(425, 425, 1, 0))
print("userfaultfd", errno_of(323, 282, 0))
print("open_by_handle_at", errno_of(304, 265, 0, 0, 0))
if machine == "x86_64":
    print("x32", errno_of(0x40000000 + 39, 0))
for family in (40, 38, 17):
    try:
        socket.socket(family, socket.SOCK_RAW); print("family", family, 0)
    except OSError as problem:
        print("family", family, problem.errno)
"""
_REFUSED = {
    "unshare": 1, "clone": 1, "clone3": 38, "setns": 1, "mount": 1, "fsopen": 1, "keyctl": 38, "add_key": 38, "bpf": 1,
    "io_uring": 38, "userfaultfd": 38, "open_by_handle_at": 1, "x32": 38, "family 40": 97, "family 38": 97,
    "family 17": 97,
}  # fmt: skip


_CREATE = """
import os
for flags, path in ((os.O_CREAT | os.O_WRONLY, "a"), (os.O_TMPFILE | os.O_RDWR, ".")):
    try:
        os.open(path, flags, 0o4755)
        print("made")
    except OSError as problem:
        print(problem.errno)
os.open("b", os.O_CREAT, 0o755)
print("plain")
"""
_OTHER_UID = 65534
#: A bubblewrap of an older version.
_OLD = """\
#!/bin/sh
for word; do
  case $word in --disable-userns|--seccomp) echo "Unknown option $word" >&2; exit 1;; esac
done
exec {} "$@"
"""


def _answers(text: str) -> dict[str, int]:
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.rsplit(" ", 1)[-1].isdigit()]
    return {name: int(number) for name, number in lines if name in _REFUSED}


@needs("bwrap", "python3")
async def test_calls_that_lead_around_the_sandbox_are_refused(tmp_path: Path) -> None:
    (tmp_path / "calls.py").write_text(_CALLS)
    text = await locked(f"{_python()} calls.py", tmp_path, env={"PATH": os.environ["PATH"]})
    expected = {name: number for name, number in _REFUSED.items() if name != "x32" or os.uname().machine == "x86_64"}
    assert _answers(text) == expected, text


@needs("bwrap")
@pytest.mark.parametrize(
    "command",
    [
        "chmod 4755 f", "chmod u+s f", "chmod 2755 f", "install -m 4755 f g", "cp --preserve=mode f g && chmod u+s g",
    ],
)  # fmt: skip
async def test_no_file_gets_the_right_to_run_as_its_owner(command: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    text = await locked(command, tmp_path)
    assert "Operation not permitted" in text
    assert [path.name for path in tmp_path.iterdir() if path.stat().st_mode & 0o6000] == []


@needs("bwrap", "python3")
async def test_a_file_cannot_be_created_with_that_right_either(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text(_CREATE)
    text = await locked(f"{_python()} make.py", tmp_path, env={"PATH": os.environ["PATH"]})
    assert "\n1\n1\nplain\n" in text


async def test_a_sandbox_gets_a_session_keyring_of_its_own() -> None:
    """Also where no filter refuses the calls: this one allows them all."""
    program = (
        "import ctypes, os; number = {'x86_64': 250, 'aarch64': 219}[os.uname().machine];"
        "print(ctypes.CDLL(None).syscall(number, 0, -3, 0, 0, 0))"
    )

    async def keyring(processes: Processes, seccomp: bytes) -> bytes:
        child = await processes.spawn(Program([_python(), "-c", program], "/", {}, seccomp=seccomp))
        said = b""
        while data := await child.read():
            said += data
        child.close()
        return said

    processes = Guardian()
    try:
        apart = await keyring(processes, struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000))
    finally:
        await processes.close()
    processes = Guardian()
    try:
        usual = await keyring(processes, b"")
    finally:
        await processes.close()
    assert int(apart) != int(usual)


@needs("bwrap")
async def test_the_first_process_of_the_sandbox_is_filtered_like_the_others(tmp_path: Path) -> None:
    """It could otherwise act for programs that lack its rights."""
    text = await locked("grep -h Seccomp: /proc/1/status /proc/self/status", tmp_path)
    assert text.count("Seccomp:\t2") == 2


@needs("bwrap")
async def test_there_is_no_network_unless_it_is_shared(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command = (
            f'{_python()} -c \'import socket; socket.create_connection(("127.0.0.1", {port}), 5); print("through")\''
        )
        env = {"PATH": os.environ["PATH"]}
        assert "\nthrough\n" not in await locked(command, tmp_path, env=env)
        assert "\nthrough\n" in await locked(command, tmp_path, env=env, net=True)


@needs("bwrap")
async def test_no_variable_gets_in_that_is_not_listed(tmp_path: Path) -> None:
    secrets = {
        "GITHUB_TOKEN": "s3cret",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "https_proxy": "http://u:s3cret@h",
        "LC_ALL": "C",
    }
    text = await locked("env; tr '\\0' '\\n' < /proc/1/environ", tmp_path, env=secrets)
    assert "s3cret" not in text
    assert "LC_ALL=C" in text
    assert "s3cret@h" in await locked("env", tmp_path, env=secrets, net=True)


@needs("bwrap")
async def test_control_groups_of_the_system_are_not_there(tmp_path: Path) -> None:
    command = "mount -t cgroup2 none /tmp; ls /sys/fs/cgroup; cat /proc/self/cgroup; readlink /proc/self/ns/cgroup"
    text = await locked(command, tmp_path)
    assert "cgroup.procs" not in text
    assert "0::/\n" in text
    assert "\ncgroup:[" in text
    assert os.readlink("/proc/self/ns/cgroup") not in text


def test_a_filter_exists_for_each_machine_and_is_whole() -> None:
    for machine in ("x86_64", "aarch64"):
        program = seccomp_filter(machine)
        lines = [*struct.iter_unpack("=HBBI", program)]
        for at, (code, if_true, if_false, _) in enumerate(lines):
            if code & 0x07 == 0x05:  # a jump
                assert at + 1 + max(if_true, if_false) < len(lines)
        assert lines[-1] == (0x06, 0, 0, 0x7FFF0000)
    assert seccomp_filter("sparc") == b""


#: The kernel's own numbers of system calls, where its headers are installed. The generic ones are those of aarch64.
_HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ALLOWED, _KILLED = 0x7FFF0000, 0x80000000


def judged(machine: str, number: int, *args: int, arch: int = 0) -> int:
    """Run the filter of a machine as its kernel would, and return its verdict."""
    padded = [*args, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("=iIQ6Q", number, arch or _AUDIT_ARCH[machine], 0, *padded)
    program = [*struct.iter_unpack("=HBBI", seccomp_filter(machine))]
    at = loaded = 0
    while True:
        code, if_true, if_false, value = program[at]
        at += 1
        match code:
            case 0x20:  # load
                (loaded,) = struct.unpack_from("=I", data, value)
            case 0x06:  # return
                return int(value)
            case 0x15 | 0x35 | 0x45:  # equal, at least, any bit
                holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
                at += if_true if holds else if_false
            case _:
                raise AssertionError(f"the filter has an unknown instruction: {code:#x}")


def _numbers(machine: str) -> dict[str, int]:
    """Return the kernel's numbers by name. A header that is missing is reported; in CI that is a failure."""
    try:
        text = _HEADERS[machine].read_text()
    except OSError:
        MISSING.setdefault("kernel headers", []).append(f"numbers of {machine}")
        return {}
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)
    return {name: int(number) for name, number in found}


@pytest.mark.parametrize("machine", _HEADERS)
def test_the_filter_of_each_machine_has_the_numbers_of_its_kernel(machine: str) -> None:
    """The filter of the other machine never runs here, so its verdicts are computed."""
    known = _numbers(machine)
    with_mode = {name: (mode, flags) for name, (_, mode, flags) in _MODES.items()}
    for name in {*_CALLS_REFUSED, *with_mode, "clone", "unshare", "ioctl", "socket"} & {*known}:
        mode, flags = with_mode.get(name, (0, None))
        evil = [0] * 6
        evil[mode] = 0o4755 if name in with_mode else 0
        if flags is not None:
            evil[flags] = os.O_CREAT
        if name in ("clone", "unshare"):
            evil[0] = 0x10000000
        if name == "ioctl":
            evil[1] = 0x5412
        if name == "socket":
            evil[0] = 40
        assert judged(machine, known[name], *evil) & 0xFFFF0000 == 0x00050000, name
    # System calls that every program needs, and the harmless forms of those refused above.
    for name in {"read", "write", "openat", "execve", "mmap", "exit_group", "fchmod", "clone", "ioctl"} & {*known}:
        assert judged(machine, known[name]) == _ALLOWED, name
    if known:
        assert judged(machine, known["socket"], 1) == _ALLOWED
    other = _AUDIT_ARCH["x86_64" if machine == "aarch64" else "aarch64"]
    assert judged(machine, 0, arch=other) == _KILLED
    # Every number of the table that these headers know is theirs.
    column = 0 if machine == "x86_64" else 1
    table = {**_CALLS_REFUSED, **{name: call for name, (call, _, _) in _MODES.items()}}
    assert {name: call[column] for name, call in table.items() if name in known} == {
        name: known[name] for name in table if name in known
    }
    assert {name for name, call in table.items() if call[column] is None} & {*known} == set()


@needs("bwrap")
async def test_missing_features_of_bubblewrap_are_reported_and_the_rest_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = tmp_path / "bwrap"
    old.write_text(_OLD.format(shutil.which("bwrap")))
    old.chmod(0o755)
    processes = Groups()
    try:
        found = await find_support(str(old), processes, {"PATH": "/usr/bin:/bin"})
    finally:
        await processes.close()
    assert isinstance(found, SandboxSupport)
    assert {one.name for one in found.lacking} == {"user namespace", "system call filter"}
    assert {*found.works, *found.lacking} == {*PROTECTIONS}
    assert "lacks the system call filter: commands can use all system calls" in caplog.text


@needs("bwrap")
@pytest.mark.parametrize("groups", [False, True])
async def test_a_command_has_no_rights_in_its_sandbox(tmp_path: Path, *, groups: bool) -> None:
    command = "unshare -U true; touch f; chmod u+s f; chmod 755 f && echo plain; env"
    text = await locked(command, tmp_path, env={"SECRET": "s3cret"}, groups=groups)
    assert text.count("Operation not permitted") >= 2
    assert "\nplain\n" in text
    assert "s3cret" not in text
    assert [path.name for path in tmp_path.iterdir() if path.stat().st_mode & 0o6000] == []


@needs_root
@needs("bwrap")
async def test_root_can_write_the_directory_of_another_user_and_still_makes_no_namespace(tmp_path: Path) -> None:
    os.chown(tmp_path, _OTHER_UID, _OTHER_UID)
    tmp_path.chmod(0o700)
    text = await locked("touch f && echo made; unshare -U true; chmod u+s f", tmp_path)
    assert "\nmade\n" in text
    assert text.count("Operation not permitted") == 2


@thorough
@needs("bwrap")
async def test_a_flood_of_processes_and_output_ends_with_the_command(tmp_path: Path) -> None:
    text = await locked("for i in $(seq 200); do (seq 2000; sleep 60) & done; wait %1 & kill $! ; echo over", tmp_path)
    assert "over" in text


def _python() -> str:
    return os.path.realpath(sys.executable)
