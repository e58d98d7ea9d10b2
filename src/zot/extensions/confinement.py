"""bubblewrap sandbox that holds extensions to their permissions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from zot.config.config import Config
from zot.config.private_paths import PrivatePath, make_missing, private_paths
from zot.errors import UserError
from zot.extensions.manifest import FILE_NAME, Manifest, data_directories, program
from zot.extensions.permissions import CWD, Permissions, allows
from zot.tools.mounts import Places, closing, in_path, is_in, link, mounts, private, run_by, system
from zot.tools.process import Processes, Program
from zot.tools.protection import ProtectedFiles
from zot.tools.sandbox import (
    SandboxSupport,
    find_bwrap,
    find_support,
    for_files_of,
    sandboxed,
    why_no_bwrap,
)

#: Never granted: the kernel's files give access to other processes.
_KERNEL = ("/dev", "/proc", "/sys")
_OWN = "is where zot keeps its own files"
#: zot itself, which extensions in Python import. It may lie apart from the libraries of their interpreter.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: Directories of programs, below the system's prefixes.
_PREFIXES = ("/", "/usr", "/usr/local")
_PROGRAM_DIRECTORIES = ("bin", "games", "libexec", "opt", "sbin")
#: Variables that every program needs.
_ALWAYS = frozenset({"PATH", "HOME", "LANG", "TZ", "TMPDIR"})
_NEEDED = "it declares permissions, which need bubblewrap"
_ADVICE = "; to run it without a sandbox: --unsandboxed-ext"


class NoSandbox(UserError):
    """No extension can be confined on this system: bubblewrap is missing or does not work."""


class ExtensionPlace(NamedTuple):
    """Where an extension runs (``code``), where it was found (``origin``), and its data if that is elsewhere."""

    code: str
    origin: str
    data: str | None = None


class Confinement:
    """Sandbox for the extensions of one session. The private paths of ``config`` are hidden from them."""

    def __init__(
        self,
        processes: Callable[[], Processes],
        env: Mapping[str, str],
        config: Config,
        *,
        cwd: str,
    ) -> None:
        self._processes = processes
        self._env = env
        self._cwd = cwd
        self._config = config
        self._trying = asyncio.Lock()

    async def confine(
        self, command: Program, place: ExtensionPlace, manifest: Manifest, permissions: Permissions
    ) -> Program:
        """Return the command that runs an extension confined.

        Raise NoSandbox if this system cannot confine anything, or UserError if the permissions cannot be granted.
        """
        env, directory = self._env, place.code
        if problem := _without_bwrap(env, self._cwd, directory):
            raise NoSandbox(problem)
        ground = _ground(place, env, self._cwd, private_paths(self._config, self._cwd))
        try:
            # In a thread: it reads many files, at first the whole system configuration.
            seen = await asyncio.to_thread(sandbox_mounts, manifest, permissions, ground)
        except OSError as failed:
            raise UserError(str(failed)) from None
        bwrap = find_bwrap(env.get("PATH"), outside=[self._cwd, directory, *seen.writable])
        if bwrap is None:
            raise UserError(_over_bwrap(env, seen.writable))
        support = for_files_of([*seen.writable], await self._try(bwrap, options := _options(permissions)))
        return sandboxed(command, bwrap=bwrap, mounts=seen.mounts, options=options, support=support)

    async def refusal(self, permissions: Permissions, directory: str) -> str:
        """Return why the installed bubblewrap does not work; "" if it works or is not installed."""
        bwrap = find_bwrap(self._env.get("PATH"), outside=[self._cwd, directory])
        try:
            if bwrap is not None:
                await self._try(bwrap, _options(permissions))
        except NoSandbox as problem:
            return str(problem)
        return ""

    async def _try(self, bwrap: str, options: tuple[str, ...]) -> SandboxSupport:
        async with self._trying:
            found = await find_support(bwrap, self._processes(), self._env, options)
        if isinstance(found, str):
            raise NoSandbox(f"{_NEEDED}, which {found}{_ADVICE}")
        return found


def environment(env: Mapping[str, str], permissions: Permissions | None) -> Mapping[str, str]:
    """Return the variables that an extension may see: all if it declares no permissions."""
    if permissions is None:
        return env
    return {name: value for name, value in env.items() if name in _ALWAYS or allows(permissions.env, name)}


def refusal(manifest: Manifest, directory: str, env: Mapping[str, str], *, cwd: str) -> str:
    """Return why an extension cannot be confined here, as far as visible without a test; "" if it can."""
    if manifest.permissions is None:
        return ""
    if problem := _without_bwrap(env, cwd, directory):
        return problem
    try:
        writable = [*writable_paths(manifest.permissions, _ground(ExtensionPlace(directory, directory), env, cwd, ()))]
    except UserError as wrong:
        return str(wrong)
    is_held = find_bwrap(env.get("PATH"), outside=[cwd, directory, *writable]) is not None
    return "" if is_held else _over_bwrap(env, writable)


def _options(permissions: Permissions) -> tuple[str, ...]:
    return ("--die-with-parent", *(() if permissions.net else ("--unshare-net",)))


def _ground(place: ExtensionPlace, env: Mapping[str, str], cwd: str, hidden: Sequence[PrivatePath]) -> PermissionPaths:
    home, path = env.get("HOME", ""), env.get("PATH") or os.defpath
    return PermissionPaths(place.code, place.origin, place.data or place.code, cwd, hidden, home, path)


def _without_bwrap(env: Mapping[str, str], cwd: str, directory: str) -> str:
    """Return why nothing can be confined here; "" if bubblewrap is available."""
    path = env.get("PATH")
    if find_bwrap(path, outside=[cwd, directory]) is not None:
        return ""
    # Do not suggest to run unconfined where another directory would help.
    is_there = find_bwrap(path, outside=[directory]) is not None
    advice = "; start zot in another directory" if is_there else _ADVICE
    return f"{_NEEDED}, and {why_no_bwrap(path, outside=[cwd, directory])}{advice}"


def _over_bwrap(env: Mapping[str, str], writable: Sequence[str]) -> str:
    return f"permissions: fs.write: {why_no_bwrap(env.get('PATH'), outside=writable)}"


class PermissionPaths(NamedTuple):
    """Paths that permissions refer to.

    ``directory`` of the extension, where it was found (``origin``), its ``data`` directories, ``cwd`` of the session,
    ``hidden`` paths, the user's home and the PATH.
    """

    directory: str
    origin: str
    data: str
    cwd: str
    hidden: Sequence[PrivatePath]
    home: str
    path: str


class SandboxMounts(NamedTuple):
    """Mounts for an extension, and the directories it can write to, or could before a restart."""

    mounts: list[tuple[str, ...]]
    writable: list[str]


def sandbox_mounts(manifest: Manifest, permissions: Permissions, ground: PermissionPaths) -> SandboxMounts:
    """Return the mounts for an extension. Creates its data directories.

    Raise UserError for a scope that names a path that cannot be granted.
    """
    here = os.path.realpath(ground.directory)
    data = [*_data(manifest, os.path.realpath(ground.data))]
    write = {named: real for named, real in _granted("fs.write", permissions.fs_write, ground) if real != here}
    # Before a restart, the extension may have replaced a writable path by a link to another place.
    inside = [*write, *write.values(), *data]
    read = {
        named: real
        for named, real in _granted("fs.read", permissions.fs_read, ground)
        if not is_in(named, inside) and not is_in(real, inside)
    }
    make_missing(ground.hidden, [*read.values(), *write.values()])
    granted: Places = {real: ("--ro-bind", real) for real in read.values()}
    granted |= {real: ("--bind", real) for real in _outermost(write.values())}
    granted |= {here: ("--ro-bind", here)} | {place: ("--bind", place) for place in _outermost(data)}
    # Programs may need other programs in the home directory.
    places = system(ground.home if permissions.exec is True else "", away=[*granted])
    places |= _programs(manifest, permissions, ground, shown=[*_shown(places), *granted])
    places |= private(ground.home, away=[*granted])
    places |= dict.fromkeys(_hidden_directories(ground), ("--tmpfs",))
    places |= granted
    own = [here, *data]
    closed = closing(places, [*write.values()], hidden=ground.hidden, protected=_protected(write.values()))
    places |= {place: mount for place, mount in closed.items() if place not in own}
    package = os.path.realpath(_PACKAGE)
    places |= {} if is_in(package, _shown(places)) else {package: ("--ro-bind", package)}
    for named in (*read, *write, ground.directory, _PACKAGE):
        places |= link(named, away=_shown(places))
    return SandboxMounts(mounts(_without_doubles(places)), [*write.values(), *data])


def writable_paths(permissions: Permissions, ground: PermissionPaths) -> Iterable[str]:
    """Yield the real paths of the fs.write scope. Raise UserError as `reach` does."""
    return (real for _, real in _granted("fs.write", permissions.fs_write, ground))


def _programs(manifest: Manifest, permissions: Permissions, ground: PermissionPaths, *, shown: Sequence[str]) -> Places:
    """Return the mounts of the programs it may start: all, or the listed ones with itself and its interpreter."""
    itself = program(manifest, ground.directory)
    if permissions.exec is True:
        places = in_path(ground.path, away=[*shown, *_hidden_directories(ground)])
        with suppress(LookupError):  # Already included, or bubblewrap reports that it does not exist.
            places |= run_by(itself, path=ground.path, away=[*shown, *places])
        return places
    covered = _program_directories()
    places = dict.fromkeys(covered, ("--tmpfs",))
    try:
        places |= run_by(itself, path=ground.path, away=shown, covered=covered)
    except LookupError as problem:
        raise UserError(f"{problem}, which its permissions for exec would have to include") from None
    for name in permissions.exec or ():
        with suppress(LookupError):  # A missing program cannot run anyway.
            places |= run_by(name, path=ground.path, away=shown, covered=covered)
    return places


def _program_directories() -> list[str]:
    found = [os.path.join(prefix, name) for prefix in _PREFIXES for name in _PROGRAM_DIRECTORIES]
    return [place for place in found if os.path.isdir(place) and not os.path.islink(place)]


def _granted(scope: str, paths: Iterable[str], ground: PermissionPaths) -> Iterable[tuple[str, str]]:
    """Yield the existing paths of a scope, as named and as resolved."""
    for path in paths:
        base, named = _expanded(scope, path, ground)
        real = os.path.realpath(named)
        # Files of a project or an extension are foreign: they may be links to anywhere.
        leads_out = not is_in(real, [os.path.realpath(base)])
        if problem := "leads out of there" if leads_out else _problem(real, ground) or _creatable(scope, real, ground):
            raise UserError(f"permissions: {scope}: {path} {problem}")
        if os.path.exists(real):
            yield named, real


def _expanded(scope: str, path: str, ground: PermissionPaths) -> tuple[str, str]:
    """Return the base of a path, which it must not leave, and its absolute form."""
    first, _, rest = path.partition("/")
    if first in ("", "~"):
        if first and not os.path.isabs(ground.home):
            raise UserError(f"permissions: {scope}: {path}: there is no home directory")
        named = os.path.abspath(os.path.join(ground.home, rest) if first else path)
        return named, named
    base, rest = (ground.cwd, rest) if first == CWD else (ground.origin, path)
    return os.path.abspath(base), os.path.abspath(os.path.join(base, rest))


def _problem(real: str, ground: PermissionPaths) -> str:
    here = os.path.realpath(ground.directory)
    if real == "/":
        return "is everything; name what is needed"
    if is_in(real, _KERNEL):
        return "belongs to the kernel"
    if real in (os.path.join(here, FILE_NAME), os.path.join(os.path.realpath(ground.origin), FILE_NAME)):
        return "is what says so, and stays as it is"
    if is_in(real, [os.path.realpath(one.path) for one in ground.hidden]) and not is_in(real, [here]):
        return _OWN
    return ""


def _creatable(scope: str, real: str, ground: PermissionPaths) -> str:
    """Return the problem with writing where files of zot may be missing, which an extension could create."""
    around = [one.around for one in ground.hidden if one.around]
    is_own = scope == "fs.write" and any(is_in(real, [own]) or is_in(own, [real]) for own in around)
    return _OWN if is_own and not is_in(real, [os.path.realpath(ground.directory)]) else ""


def _data(manifest: Manifest, here: str) -> Iterable[str]:
    for pattern in manifest.data:
        if os.path.isabs(pattern) or os.path.normpath(pattern).split("/")[0] == "..":
            raise UserError(f"data: {pattern} leads out of its directory, where its data must be")
    for name in data_directories(manifest):
        place = os.path.join(here, name)
        if os.path.realpath(place) != place or not is_in(place, [here]):
            raise UserError(f"{place} is a link, and data must be in the directory itself")
        try:
            os.makedirs(place, exist_ok=True)
        except OSError:  # Not writable for zot, so not for the extension either: its own attempt reports that.
            continue
        yield place


def _outermost(places: Iterable[str]) -> list[str]:
    found: list[str] = []
    for place in sorted(places):
        if not is_in(place, found):
            found.append(place)
    return found


def _hidden_directories(ground: PermissionPaths) -> list[str]:
    """Return the existing directories that no extension sees."""
    return [os.path.realpath(one.path) for one in ground.hidden if os.path.isdir(one.path)]


def _protected(writable: Iterable[str]) -> Places:
    """Return read-only mounts of what other programs would run in the directories it can write to."""
    places: Places = {}
    for place in writable:
        if os.path.isdir(place):
            files = ProtectedFiles(place)
            files.survey()
            places |= files.mounts()
    return places


def _without_doubles(places: Places) -> Places:
    """Drop links that exist already, because a mount shows the directory they are in."""
    return {
        place: mount
        for place, mount in places.items()
        if mount[0] != "--symlink" or places.get(_around(place, places), ("--tmpfs",)) == ("--tmpfs",)
    }


def _around(place: str, places: Places) -> str:
    """Return the innermost place that contains this one."""
    return max((other for other in places if other != place and is_in(place, [other])), key=len, default="")


def _shown(places: Places) -> list[str]:
    return [place for place, mount in places.items() if mount != ("--tmpfs",)]
