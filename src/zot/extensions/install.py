"""Extensions put into a place, whole or not at all, and taken out of it again.

What is being made or unmade stands in the same place under a name that nobody looks at (`_SCRAP`), locked by who works
on it. If that one is killed the lock is gone, and whoever comes next clears it away.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from zot.errors import ConfigError, UserError
from zot.extensions.cloning import clone, is_repository
from zot.extensions.copying import copying, narrowing
from zot.extensions.discovery import Located, discover
from zot.extensions.manifest import Manifest, load
from zot.private import exclusive, make_directory
from zot.text import printable
from zot.tools.process import Processes

_SCRAP = ".zot-scrap-"


async def install(source: str, home: str, *, processes: Processes, env: Mapping[str, str]) -> Located:
    """Copy a directory, or clone a repository, into ``home``; return what is there now. Raise UserError.

    When that fails or is cancelled, nothing is left of it.
    """
    place = os.path.join(home, "extensions")
    directory = None if is_repository(source) else _directory(source, place)
    if directory is not None:
        _refuse_known(load(directory), home)
    with _reported(place), _scrap(place) as scrap:
        copy = os.path.join(scrap, "extension")
        if directory is None:
            await clone(source, copy, processes=processes, env=env)
        for _ in narrowing(copy) if directory is None else copying(directory, copy):
            await asyncio.sleep(0)
        return _settle(copy, place, home, source)


def remove(directory: str) -> None:
    """Remove an extension for good: at once from where it is looked for, then from the disk. Raise UserError."""
    place, name = os.path.split(directory)
    with _reported(directory):
        if os.path.islink(directory):
            os.unlink(directory)  # What it leads to is somebody else's.
            return
        with _scrap(place) as scrap:
            os.rename(directory, os.path.join(scrap, name))


def _directory(source: str, place: str) -> str:
    """Return where ``source`` is, if it can be copied into ``place``. Raise UserError."""
    if not os.path.isdir(source):
        why = "not a directory" if os.path.lexists(source) else "no such directory"
        raise UserError(f"{printable(source)}: {why}")
    directory = os.path.realpath(source)
    if f"{os.path.realpath(place)}/".startswith(f"{directory}/"):
        raise UserError(f"{printable(source)} has {place} in it, so it cannot be copied there")
    return directory


def _settle(copy: str, place: str, home: str, source: str) -> Located:
    """Put a finished ``copy`` where it is looked for."""
    try:
        manifest = load(copy)
    except ConfigError as problem:
        raise UserError(str(problem).replace(copy, printable(source), 1)) from None
    destination = os.path.join(place, manifest.name)
    with exclusive(place):
        _refuse_known(manifest, home)
        os.rename(copy, destination)
    return Located(destination, "global", "runs" if manifest.enabled else "disabled", manifest)


def _refuse_known(manifest: Manifest, home: str) -> None:
    """Raise UserError if there is one of that name."""
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
def _scrap(place: str) -> Iterator[str]:
    """Yield a new directory in ``place`` that is gone afterwards. Those that others left behind are gone as well."""
    make_directory(place)
    with exclusive(place):
        _sweep(place)
        scrap = os.path.join(place, f"{_SCRAP}{os.urandom(8).hex()}")
        os.mkdir(scrap, 0o700)
        lock = _lock(scrap, fcntl.LOCK_EX)
    try:
        yield scrap
    finally:
        shutil.rmtree(scrap, onerror=_insist)
        os.close(lock)


def _sweep(place: str) -> None:
    with os.scandir(place) as entries:
        left = [entry.path for entry in entries if entry.name.startswith(_SCRAP)]
    for path in left:
        try:
            lock = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # Somebody works on it.
            continue
        shutil.rmtree(path, onerror=_insist)
        os.close(lock)


def _insist(remove_it: object, path: str, _: object) -> None:
    """Remove what a directory without write permission keeps from being removed."""
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
