"""Confinement: the bubblewrap sandbox that holds an extension to its permissions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from zot.errors import UserError
from zot.extensions.manifest import FILE_NAME, Manifest, data_directories, program
from zot.extensions.permissions import CWD, Permissions, allows
from zot.tools.mounts import Places, in_path, is_in, link, mounts, private, run_by, system
from zot.tools.process import Processes
from zot.tools.sandbox import find_bwrap, sandboxed, trial, why_no_bwrap

#: Whoever reaches into the kernel's own reaches other processes and their files.
_KERNEL = ("/dev", "/proc", "/sys")
#: zot itself, which extensions in Python import. It need not be where the libraries of their interpreter are.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: Where systems keep programs, apart from what these need.
_PREFIXES = ("/", "/usr", "/usr/local")
_PROGRAM_DIRECTORIES = ("bin", "games", "libexec", "opt", "sbin")


class Ground(NamedTuple):
    """Where an extension stands: its ``directory``, that of the session, zot's own files, the user's, and the PATH."""

    directory: str
    cwd: str
    zot_home: str | None
    home: str
    path: str


class Reach(NamedTuple):
    """The ``mounts`` for an extension, and the directories that it can write to, or could in an earlier life."""

    mounts: list[tuple[str, ...]]
    writable: list[str]


def reach(manifest: Manifest, permissions: Permissions, ground: Ground) -> Reach:
    """Return what an extension sees. Its directories of data are made if they are not there.

    Raise UserError for a scope that names what cannot be given to anybody.
    """
    here = os.path.realpath(ground.directory)
    data = [*_data(manifest, here)]
    write = {named: real for named, real in _granted("fs.write", permissions.fs_write, ground) if real != here}
    # What it can write it could have replaced by a link to something else, before it was started again.
    inside = [*write, *write.values(), *data]
    read = {
        named: real
        for named, real in _granted("fs.read", permissions.fs_read, ground)
        if not is_in(named, inside) and not is_in(real, inside)
    }
    granted: Places = {real: ("--ro-bind", real) for real in read.values()}
    granted |= {real: ("--bind", real) for real in _outermost(write.values())}
    granted |= {here: ("--ro-bind", here)} | {place: ("--bind", place) for place in _outermost(data)}
    # What programs need of a home are other programs.
    places = system(ground.home if permissions.exec is True else "", away=[*granted])
    places |= _programs(manifest, permissions, ground, shown=[*_shown(places), *granted])
    places |= private(ground.home, away=[*granted])
    places |= dict.fromkeys(_hidden(ground), ("--tmpfs",))
    places |= granted
    package = os.path.realpath(_PACKAGE)
    places |= {} if is_in(package, _shown(places)) else {package: ("--ro-bind", package)}
    for named in (*read, *write, ground.directory, _PACKAGE):
        places |= link(named, away=_shown(places))
    return Reach(mounts(_without_doubles(places)), [*write.values(), *data])


def written(permissions: Permissions, ground: Ground) -> Iterable[str]:
    """Yield what it could write by its scopes, as it is. Raise UserError as `reach` does."""
    return (real for _, real in _granted("fs.write", permissions.fs_write, ground))


def _programs(manifest: Manifest, permissions: Permissions, ground: Ground, *, shown: Sequence[str]) -> Places:
    """Return the programs that it may start: all, or those that are named beside itself and what runs it."""
    itself = program(manifest, ground.directory)
    if permissions.exec is True:
        places = in_path(ground.path, away=[*shown, *_hidden(ground)])
        with suppress(LookupError):  # It is among those, or bubblewrap will say that there is no such program.
            places |= run_by(itself, path=ground.path, away=[*shown, *places])
        return places
    covered = _program_directories()
    places = dict.fromkeys(covered, ("--tmpfs",))
    try:
        places |= run_by(itself, path=ground.path, away=shown, covered=covered)
    except LookupError as problem:
        raise UserError(f"{problem}, which its permissions for exec would have to include") from None
    for name in permissions.exec or ():
        with suppress(LookupError):  # What is not there cannot be run by anybody.
            places |= run_by(name, path=ground.path, away=shown, covered=covered)
    return places


def _program_directories() -> list[str]:
    found = [os.path.join(prefix, name) for prefix in _PREFIXES for name in _PROGRAM_DIRECTORIES]
    return [place for place in found if os.path.isdir(place) and not os.path.islink(place)]


def _granted(scope: str, paths: Iterable[str], ground: Ground) -> Iterable[tuple[str, str]]:
    """Yield the paths of a scope that are there, each as it was named and as it is."""
    for path in paths:
        base, named = _expanded(scope, path, ground)
        real = os.path.realpath(named)
        # What is in a project or an extension was put there by others, who could have made it a link to anywhere.
        leads_out = not is_in(real, [os.path.realpath(base)])
        if problem := "leads out of there" if leads_out else _problem(real, ground):
            raise UserError(f"permissions: {scope}: {path} {problem}")
        if os.path.exists(real):
            yield named, real


def _expanded(scope: str, path: str, ground: Ground) -> tuple[str, str]:
    """Return what a path begins from, and the path itself."""
    first, _, rest = path.partition("/")
    if first in ("", "~"):
        if first and not os.path.isabs(ground.home):
            raise UserError(f"permissions: {scope}: {path}: there is no home directory")
        named = os.path.abspath(os.path.join(ground.home, rest) if first else path)
        return named, named
    base, rest = (ground.cwd, rest) if first == CWD else (ground.directory, path)
    return os.path.abspath(base), os.path.abspath(os.path.join(base, rest))


def _problem(real: str, ground: Ground) -> str:
    here = os.path.realpath(ground.directory)
    if real == "/":
        return "is everything; name what is needed"
    if is_in(real, _KERNEL):
        return "belongs to the kernel"
    if real == os.path.join(here, FILE_NAME):
        return "is what says so, and stays as it is"
    if ground.zot_home is not None and is_in(real, [os.path.realpath(ground.zot_home)]) and not is_in(real, [here]):
        return "is where zot keeps its own files"
    return ""


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
        except OSError:  # Where we cannot write it cannot, either, and will be told so when it tries.
            continue
        yield place


def _outermost(places: Iterable[str]) -> list[str]:
    found: list[str] = []
    for place in sorted(places):
        if not is_in(place, found):
            found.append(place)
    return found


def _hidden(ground: Ground) -> list[str]:
    """Return what nobody sees, if it is there."""
    return [os.path.realpath(ground.zot_home)] if ground.zot_home is not None and os.path.isdir(ground.zot_home) else []


def _without_doubles(places: Places) -> Places:
    """Leave out links that are there already, because what they are in is shown as it is."""
    return {
        place: mount
        for place, mount in places.items()
        if mount[0] != "--symlink" or places.get(_around(place, places), ("--tmpfs",)) == ("--tmpfs",)
    }


def _around(place: str, places: Places) -> str:
    """Return the innermost of the places that this one is in."""
    return max((other for other in places if other != place and is_in(place, [other])), key=len, default="")


def _shown(places: Places) -> list[str]:
    return [place for place, mount in places.items() if mount != ("--tmpfs",)]


#: What every program needs to find others, its user's language and a place for what is temporary.
_ALWAYS = frozenset({"PATH", "HOME", "LANG", "TZ", "TMPDIR"})
_NEEDED = "it declares permissions, which take bubblewrap"
_ADVICE = "; --unsandboxed-ext runs it without"


class NoSandbox(UserError):
    """Nothing can be confined on this system: there is no bubblewrap, or it does not work."""


class Confinement:
    """Confines the extensions of one session. What works once is not tried again."""

    def __init__(
        self, processes: Callable[[], Processes], env: Mapping[str, str], *, cwd: str, zot_home: str | None
    ) -> None:
        self._processes = processes
        self._env = env
        self._cwd = cwd
        self._zot_home = zot_home
        self._works: set[tuple[str, ...]] = set()
        self._trying = asyncio.Lock()

    async def confine(
        self, argv: Sequence[str | bytes], directory: str, manifest: Manifest, permissions: Permissions
    ) -> list[str | bytes]:
        """Return the command line that runs an extension confined.

        Raise NoSandbox if nothing can be confined here, or UserError if that is due to what it wants.
        """
        env = self._env
        if problem := _without_bwrap(env, self._cwd, directory):
            raise NoSandbox(problem)
        ground = _ground(directory, env, self._cwd, self._zot_home)
        try:
            # In a thread: it looks at many files, the first time at all that say how the system is set up.
            seen = await asyncio.to_thread(reach, manifest, permissions, ground)
        except OSError as failed:
            raise UserError(str(failed)) from None
        bwrap = find_bwrap(env.get("PATH"), outside=[self._cwd, directory, *seen.writable])
        if bwrap is None:
            raise UserError(_over_bwrap(env, seen.writable))
        await self._try(bwrap, options := _options(permissions))
        return sandboxed(argv, bwrap=bwrap, cwd=directory, mounts=seen.mounts, options=options)

    async def refusal(self, permissions: Permissions, directory: str) -> str:
        """Return why the bubblewrap that there is confines nothing; "" if it does, or there is none."""
        bwrap = find_bwrap(self._env.get("PATH"), outside=[self._cwd, directory])
        try:
            if bwrap is not None:
                await self._try(bwrap, _options(permissions))
        except NoSandbox as problem:
            return str(problem)
        return ""

    async def _try(self, bwrap: str, options: tuple[str, ...]) -> None:
        async with self._trying:
            if (bwrap, *options) in self._works:
                return
            if reason := await trial(bwrap, self._processes(), self._env, options):
                raise NoSandbox(f"{_NEEDED}, which {reason}{_ADVICE}")
            self._works.add((bwrap, *options))


def _options(permissions: Permissions) -> tuple[str, ...]:
    return ("--die-with-parent", *(() if permissions.net else ("--unshare-net",)))


def environment(env: Mapping[str, str], permissions: Permissions | None) -> Mapping[str, str]:
    """Return what an extension may see of an environment: all if it declares nothing."""
    if permissions is None:
        return env
    return {name: value for name, value in env.items() if name in _ALWAYS or allows(permissions.env, name)}


def refusal(manifest: Manifest, directory: str, env: Mapping[str, str], *, cwd: str) -> str:
    """Return why an extension cannot be started here, as far as can be seen without trying; "" if it can."""
    if manifest.permissions is None:
        return ""
    if problem := _without_bwrap(env, cwd, directory):
        return problem
    try:
        writable = [*written(manifest.permissions, _ground(directory, env, cwd, None))]
    except UserError as wrong:
        return str(wrong)
    is_held = find_bwrap(env.get("PATH"), outside=[cwd, directory, *writable]) is not None
    return "" if is_held else _over_bwrap(env, writable)


def _ground(directory: str, env: Mapping[str, str], cwd: str, zot_home: str | None) -> Ground:
    return Ground(directory, cwd, zot_home, env.get("HOME", ""), env.get("PATH") or os.defpath)


def _without_bwrap(env: Mapping[str, str], cwd: str, directory: str) -> str:
    """Return why nothing can be confined here, "" if there is a bubblewrap for it."""
    path = env.get("PATH")
    if find_bwrap(path, outside=[cwd, directory]) is not None:
        return ""
    # Where it would help to go elsewhere, nobody should be led to do without.
    is_there = find_bwrap(path, outside=[directory]) is not None
    advice = "; start zot in another directory" if is_there else _ADVICE
    return f"{_NEEDED}, and {why_no_bwrap(path, outside=[cwd, directory])}{advice}"


def _over_bwrap(env: Mapping[str, str], writable: Sequence[str]) -> str:
    return f"permissions: fs.write: {why_no_bwrap(env.get('PATH'), outside=writable)}"
