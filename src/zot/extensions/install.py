"""Installation and removal of extensions: copy or clone, all or nothing."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from zot.errors import ConfigError, UserError, plain_reason
from zot.extensions.discovery import Located, discover
from zot.extensions.manifest import FILE_NAME, Manifest, load
from zot.files import directory_lock, make_directory
from zot.text import printable
from zot.tools.process import Processes, Program

_SLICE_BYTES = 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_GRACE_S = 0.5
_MAX_OUTPUT_BYTES = 16 * 1024
PROTOCOLS = ("https", "ssh", "git", "file")
DEADLINE_S = 600.0
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(://|::)")
#: scp-like address host:path, as opposed to a local path.
_AT_HOST = re.compile(r"[^/:]+@[^/:]+:[^:]")
#: Variables that redirect git, set when zot runs in a hook of a repository.
_REDIRECTING_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY")
_GIT_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS_REQUIRE": "never",
    "GIT_ALLOW_PROTOCOL": ":".join(PROTOCOLS),
    "LC_ALL": "C",
}
_TEMPORARY = ".zot-scrap-"


async def install(source: str, home: str, *, processes: Processes, env: Mapping[str, str]) -> Located:
    """Copy a directory, or clone a repository, into ``home``; return the installed extension. Raise UserError.

    Leaves no files when it fails or is cancelled.
    """
    place = os.path.join(home, "extensions")
    directory = None if is_repository(source) else _directory(source, place)
    if directory is not None:
        _refuse_known(load(directory), home)
    with _reported(place), _temporary_directory(place) as scrap:
        copy = os.path.join(scrap, "extension")
        if directory is None:
            await clone(source, copy, processes=processes, env=env)
        for _ in make_private(copy) if directory is None else copying(directory, copy):
            await asyncio.sleep(0)
        return _move_into_place(copy, place, home, source)


def remove(directory: str) -> None:
    """Remove an extension: atomically from the place of discovery, then from the disk. Raise UserError."""
    place, name = os.path.split(directory)
    with _reported(directory):
        if os.path.islink(directory):
            os.unlink(directory)  # The target of a link does not belong to the extension.
            return
        with _temporary_directory(place) as scrap:
            os.rename(directory, os.path.join(scrap, name))


def is_repository(source: str) -> bool:
    """Return whether ``source`` is for git, as opposed to the path of a directory."""
    if _URL.match(source):
        return True
    if os.path.isdir(source):  # A bare repository has no files of the extension itself.
        return source.endswith(".git") and not os.path.lexists(os.path.join(source, FILE_NAME))
    return source.endswith(".git") or bool(_AT_HOST.match(source))


def checked_url(url: str) -> str:
    """Return ``url`` in the form for git. Raise UserError if it is not allowed."""
    if os.path.isdir(url):
        return f"file://{os.path.abspath(url)}"  # For a plain path git ignores --depth.
    if url.startswith("-"):
        raise UserError(f"{printable(url)} is not the address of a repository")
    if "\0" in url:
        raise UserError("an address cannot have a NUL character")
    found = _URL.match(url)
    protocol = found[1] if found else "ssh"
    if protocol not in PROTOCOLS or (found and found[2] == "::"):
        raise UserError(f"{printable(url)}: {protocol} is not allowed, only {', '.join(PROTOCOLS)}")
    return url


async def clone(url: str, destination: str, *, processes: Processes, env: Mapping[str, str]) -> None:
    """Clone ``url`` to ``destination``, which must not exist. Raise UserError with git's message. Leaves no process."""
    argv = ["git", "clone", "--quiet", "--depth", "1", "--no-recurse-submodules", "--", checked_url(url), destination]
    plain = {name: value for name, value in env.items() if name not in _REDIRECTING_VARIABLES}
    env = {**plain, **_GIT_ENVIRONMENT}
    status, said = await run_program(argv, cwd="/", env=env, processes=processes, within_s=DEADLINE_S)
    if status:
        raise UserError(f"git clone {printable(url)}: {_reason(said) or f'exit status {status}'}")


async def run_program(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    processes: Processes,
    within_s: float,
    max_bytes: int = _MAX_OUTPUT_BYTES,
) -> tuple[int, str]:
    """Run a program without input or terminal; return its exit status and the end of its output. Raise UserError.

    Leaves no process when it times out or is cancelled.
    """
    try:
        child = await processes.spawn(Program(argv, cwd, env))
    except (OSError, ValueError) as problem:
        raise UserError(f"{argv[0]} could not be started: {plain_reason(problem)}") from None
    said = b""
    try:
        async with asyncio.timeout(within_s):
            while data := await child.read():
                said = (said + data)[-max_bytes:]
    except TimeoutError:
        raise UserError(f"{argv[0]} did not finish within {within_s:g} s") from None
    finally:
        await child.end(grace_s=_GRACE_S)
        child.close()
    return child.status(), said.decode("utf-8", "replace")


def copying(source: str, destination: str) -> Iterator[None]:
    """Copy ``source`` to ``destination``, which must not exist. Yields often, so that the caller can stop it.

    Keeps only the executable bit of the modes: the copy is private to its owner. Raise OSError, or UserError for
    special files.
    """
    left = [""]
    while left:
        below = left.pop()
        os.mkdir(os.path.join(destination, below), 0o700)
        with os.scandir(os.path.join(source, below)) as entries:
            names = sorted(entry.name for entry in entries)
        for path in (os.path.join(below, name) for name in names):
            there, here = os.path.join(source, path), os.path.join(destination, path)
            mode = os.lstat(there).st_mode
            if stat.S_ISDIR(mode):
                left.append(path)
            elif stat.S_ISLNK(mode):
                os.symlink(os.readlink(there), here)
            elif stat.S_ISREG(mode):
                yield from _copying_file(there, here)
            else:
                raise UserError(f"{there} is neither a file nor a directory nor a link")
            yield


def make_private(directory: str) -> Iterator[None]:
    """Make ``directory`` and its content private to its owner. Yields and raises as `copying`."""
    left = [directory]
    while left:
        place = left.pop()
        mode = os.lstat(place).st_mode
        if not stat.S_ISLNK(mode):  # The target of a link does not belong to the extension.
            os.chmod(place, mode & 0o700)
        if stat.S_ISDIR(mode):
            with os.scandir(place) as entries:
                left += [entry.path for entry in entries]
        yield


def _copying_file(there: str, here: str) -> Iterator[None]:
    source = os.open(there, _READ)
    try:
        mode = os.fstat(source).st_mode
        if not stat.S_ISREG(mode):  # Replaced since the check.
            raise UserError(f"{there} is not a regular file")
        with open(os.open(here, _WRITE, 0o700 if mode & 0o111 else 0o600), "wb") as copy:
            while data := os.read(source, _SLICE_BYTES):
                copy.write(data)
                yield
    finally:
        os.close(source)


def _reason(said: str) -> str:
    """Return git's error as one line, with the lines before "fatal": the reason may be an error of ssh."""
    lines = [line.strip() for line in said.split("\n") if line.strip()]
    gave_up = max((at for at, line in enumerate(lines) if line.startswith("fatal: ")), default=len(lines))
    told = [line.removeprefix("fatal: ") for line in lines[: gave_up + 1] if not line.lower().startswith("warning: ")]
    return printable("; ".join(told[-3:]))


def _directory(source: str, place: str) -> str:
    """Return the real path of ``source``, if it can be copied into ``place``. Raise UserError."""
    if not os.path.isdir(source):
        why = "not a directory" if os.path.lexists(source) else "no such directory"
        raise UserError(f"{printable(source)}: {why}")
    directory = os.path.realpath(source)
    if f"{os.path.realpath(place)}/".startswith(f"{directory}/"):
        raise UserError(f"{printable(source)} contains {place}, so it cannot be copied there")
    return directory


def _move_into_place(copy: str, place: str, home: str, source: str) -> Located:
    """Move a finished ``copy`` to the place of discovery."""
    try:
        manifest = load(copy)
    except ConfigError as problem:
        raise UserError(str(problem).replace(copy, printable(source), 1)) from None
    destination = os.path.join(place, manifest.name)
    with directory_lock(place):
        _refuse_known(manifest, home)
        os.rename(copy, destination)
    return Located(destination, "global", "runs" if manifest.enabled else "disabled", manifest)


def _refuse_known(manifest: Manifest, home: str) -> None:
    """Raise UserError if an extension of this name is installed."""
    destination = os.path.join(home, "extensions", manifest.name)
    there = discover(cwd=os.devnull, home=home, is_trusted=lambda *_: False)
    known = next((one.directory for one in there if one.name == manifest.name), None)
    if known is None and os.path.lexists(destination):
        known = destination
    if known is not None:
        how = f"to replace it: zot ext remove {manifest.name}, which also removes its data"
        raise UserError(f"{manifest.name} is installed already in {printable(known)}; {how}")


@contextmanager
def _reported(place: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise UserError(f"{printable(str(problem.filename or place))}: {problem.strerror}") from None


@contextmanager
def _temporary_directory(place: str) -> Iterator[str]:
    """Yield a temporary directory in ``place``, and remove it afterwards. Also removes those of crashed processes."""
    make_directory(place)
    with directory_lock(place):
        _remove_stale(place)
        scrap = os.path.join(place, f"{_TEMPORARY}{os.urandom(8).hex()}")
        os.mkdir(scrap, 0o700)
        lock = _lock(scrap, fcntl.LOCK_EX)
    try:
        yield scrap
    finally:
        shutil.rmtree(scrap, onerror=_force_remove)
        os.close(lock)


def _remove_stale(place: str) -> None:
    with os.scandir(place) as entries:
        left = [entry.path for entry in entries if entry.name.startswith(_TEMPORARY)]
    for path in left:
        try:
            lock = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # In use by another process.
            continue
        shutil.rmtree(path, onerror=_force_remove)
        os.close(lock)


def _force_remove(remove_it: object, path: str, _: object) -> None:
    """Remove a path despite missing write permissions."""
    parent = os.path.dirname(path)
    os.chmod(parent, 0o700)
    if os.path.isdir(path) and not os.path.islink(path):
        os.chmod(path, 0o700)
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _lock(directory: str, how: int) -> int:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, how)
    except BaseException:
        os.close(fd)
        raise
    return fd
