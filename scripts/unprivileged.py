"""Run a command as a user without rights that can read this checkout and its interpreter. Only root can start it.

The user has a uid of its own, which no account and no file has: "nobody" would own, in a user namespace, all files of
users that the namespace does not map. Directories that other users may not enter, as a home with an interpreter of
pyenv in it, are replaced in a mount namespace of the command by ones that hold the interpreter and nothing else.
If the machine allows none of this, the last line says so, and with CI=true that is a failure.

python scripts/unprivileged.py COMMAND [ARGUMENT...]
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

_FIRST_UID = 60001
_CLONE_NEWNS = 0x20000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_PRIVATE = 0x40000
#: Variables that name places or rights of the user who starts this.
_FOREIGN = ("SUDO_", "XDG_", "DBUS_", "SSH_", "GIT_", "ZOT_HOME", "MAIL", "OLDPWD")
#: Exit code if the command could not be started as another user.
_UNABLE = 125
_libc = ctypes.CDLL(None, use_errno=True)


class Unable(Exception):
    """This machine does not let us become another user, or show it what it needs."""


def needed_directories() -> list[Path]:
    """Return the paths that the user must read: the checkout, the environment, and its interpreter."""
    checkout = Path(__file__).resolve().parent.parent
    interpreter = Path(sys.executable).resolve().parent.parent
    found = [Path(place).resolve() for place in (checkout, sys.prefix, sys.base_prefix, interpreter)]
    return [*dict.fromkeys(found)]


def closed_directory(place: Path) -> Path | None:
    """Return the outermost directory on the way to ``place`` that other users may not enter."""
    return next((one for one in (*reversed(place.parents), place) if not one.stat().st_mode & stat.S_IXOTH), None)


def free_uid() -> int:
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    return next(uid for uid in range(_FIRST_UID, 1 << 16) if uid not in taken)


def show(places: Sequence[Path]) -> None:
    """Let other users in this process' mount namespace reach ``places``, and nothing else of what is closed to them."""
    closed = {place: found for place in places if (found := closed_directory(place))}
    if not closed:
        return
    if _libc.unshare(_CLONE_NEWNS):
        raise Unable(f"a mount namespace cannot be made: {_error()}")
    _mount("none", Path("/"), _MS_REC | _MS_PRIVATE)
    kept = {place: os.open(place, os.O_PATH | os.O_DIRECTORY) for place in closed}
    for directory in dict.fromkeys(closed.values()):
        _mount("tmpfs", directory, 0)
    for place in sorted(closed):
        if not place.exists():
            place.mkdir(parents=True)
            _mount(f"/proc/self/fd/{kept[place]}", place, _MS_BIND | _MS_REC)
    if hidden := [str(place) for place in closed if closed_directory(place)]:
        raise Unable(f"other users may not enter {', '.join(hidden)}")


def _mount(source: str, target: Path, flags: int) -> None:
    kind, options = (b"tmpfs", b"mode=755") if source == "tmpfs" else (None, None)
    if _libc.mount(source.encode(), os.fsencode(target), kind, flags, options):
        raise Unable(f"{target} cannot be mounted: {_error()}")


def _error() -> str:
    return os.strerror(ctypes.get_errno())


def become(uid: int) -> None:
    """Give up all rights for good."""
    try:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    except OSError as problem:
        raise Unable(f"uid {uid} cannot be taken: {problem.strerror}") from None
    status = Path("/proc/self/status").read_text()
    if any(line.startswith("CapEff:") and int(line.split()[1], 16) for line in status.splitlines()):
        raise Unable(f"uid {uid} keeps capabilities")


def environment(home: Path) -> Iterator[tuple[str, str]]:
    for name, value in os.environ.items():
        if not name.startswith(_FOREIGN):
            yield name, value
    for name in ("HOME", "TMPDIR"):
        yield name, str(home)


def run(command: Sequence[str], uid: int, home: Path) -> int:
    """Return the command's exit status. Raise Unable if it could not be started."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            show(needed_directories())
            become(uid)
            os.execve(command[0], [*command], dict(environment(home)))
        except BaseException as problem:
            os.write(writer, str(problem).encode())
        os._exit(_UNABLE)
    os.close(writer)
    with open(reader, "rb") as pipe:
        reason = pipe.read().decode(errors="replace")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if reason:
        raise Unable(reason)
    return status


def main(command: Sequence[str]) -> int:
    if os.geteuid() != 0:
        return 0  # This user has no rights: the previous run was unprivileged already.
    uid = free_uid()
    home = Path(tempfile.mkdtemp(prefix="zot-"))
    print(f"As uid {uid}:", flush=True)
    try:
        os.chown(home, uid, uid)
        return run(command, uid, home)
    except (Unable, PermissionError) as problem:
        fatal = os.environ.get("CI", "").lower() not in ("", "0", "false")
        print(f"{'FAILED ' if fatal else ''}not run as a user without rights: {problem}")
        return 1 if fatal else 0
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
