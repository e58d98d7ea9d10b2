"""What a locked command sees of the file system: its directory, the programs, and nothing that is somebody's own.

The result is a list of mounts for bubblewrap, on an empty root.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TypeAlias

#: The words of one mount, without the place that they all end with.
Mount: TypeAlias = tuple[str, ...]

#: Where systems keep programs and what these need; with everything in the root that begins with lib.
_SYSTEM = ("bin", "etc", "gnu", "nix", "opt", "sbin", "usr")
#: What programs need of places that are otherwise empty: certificates, how to look up names, how many processors.
_NEEDED = (
    "/run/current-system", "/run/nscd", "/run/resolvconf", "/run/systemd/resolve", "/sys/devices/system/cpu",
    "/var/lib/ca-certificates",
)  # fmt: skip
#: Directories of programs whose neighbours belong to them, and which neighbours that are.
_BIN = ("bin", "sbin", "shims")
_BESIDE_BIN = ("conf", "lib", "lib64", "libexec", "pyvenv.cfg", "version", "versions")
#: As many as a PATH and the links in it may lead to.
_MAX_PROGRAM_PLACES = 200
#: What programs need of a home directory.
_NEEDED_AT_HOME = (".rustup/settings.toml", ".rustup/toolchains")
_OTHERS_MAY_LOOK = stat.S_IROTH | stat.S_IXOTH


def view(
    cwd: str, *, path: str = "", home: str = "", hidden: Sequence[str] = (), shown: Sequence[str] = ()
) -> list[tuple[str, ...]]:
    """Return the mounts that show ``cwd``, which can be written, and what programs need, which can be read.

    Programs are those of the system and those in ``path``, as in the variable of that name. ``home`` and /tmp are
    private and empty. Directories in ``hidden`` are empty, except for those in ``shown``, which can be read.
    """
    here = os.path.realpath(cwd)
    places = _system()
    needed = [*_NEEDED, *(os.path.join(home, name) for name in _NEEDED_AT_HOME if os.path.isabs(home))]
    places |= {place: ("--ro-bind", place) for place in map(os.path.realpath, needed) if os.path.exists(place)}
    places |= _resolver([*places, here])
    away = [*places, here, *map(os.path.realpath, hidden)]
    places |= _programs(path, away=away)
    places |= dict.fromkeys(_private(home, here), ("--tmpfs",))
    places |= dict.fromkeys(_existing(hidden), ("--tmpfs",))
    places |= {place: ("--ro-bind", place) for place in _existing(shown)}
    places = {place: ("--bind", place) for place in _between(here, _existing(hidden))} | places
    places[here] = ("--bind", here)
    places |= _link(cwd, away=[place for place, mount in places.items() if mount != ("--tmpfs",)])
    # A directory before what is in it, so that nothing covers what is to be seen.
    ordered = sorted(places, key=lambda place: len(place.rstrip("/").split("/")))
    # To a super-user the settings of the kernel would be open, in /proc/sys and elsewhere there.
    last = ("/proc", "/") if os.geteuid() == 0 else ("/",)
    return [*((*places[place], place) for place in ordered), *(("--remount-ro", place) for place in last)]


def _system() -> dict[str, Mount]:
    places: dict[str, Mount] = {"/dev": ("--dev",), "/proc": ("--proc",), "/run": ("--tmpfs",)}
    for entry in os.scandir("/"):
        if entry.is_symlink():
            places[entry.path] = ("--symlink", os.readlink(entry.path))
        elif entry.name in _SYSTEM or entry.name.startswith("lib"):
            places[entry.path] = ("--ro-bind", entry.path)
    return places | _secrets("/etc")


@cache
def _secrets(root: str) -> dict[str, Mount]:
    """Return how that is covered which we may read but not everyone: in the sandbox the command could, too."""
    covered: dict[str, Mount] = {}
    for directory, subdirectories, files in os.walk(root):
        for name in [*subdirectories, *files]:
            path = os.path.join(directory, name)
            if os.path.islink(path) or not os.access(path, os.R_OK):
                continue
            mode = os.stat(path).st_mode
            if stat.S_ISDIR(mode) and mode & _OTHERS_MAY_LOOK != _OTHERS_MAY_LOOK:
                covered[path] = ("--tmpfs",)
                subdirectories.remove(name)
            elif stat.S_ISREG(mode) and not mode & stat.S_IROTH:
                covered[path] = ("--ro-bind", "/dev/null")
    return covered


def _resolver(away: Sequence[str]) -> dict[str, Mount]:
    """Return what says how names are looked up, if it is a link to somewhere else."""
    real = os.path.realpath("/etc/resolv.conf")
    return {real: ("--ro-bind", real)} if os.path.isfile(real) and not _is_in(real, away) else {}


def _programs(path: str, *, away: Sequence[str]) -> dict[str, Mount]:
    """Return the directories of programs, with what is beside them, unless they are in one of the ``away``.

    Of a program that a link leads to, its directory is shown if it is one of programs, or else the program alone.
    """
    places: dict[str, Mount] = {}
    unseen = [place for place in path.split(os.pathsep) if os.path.isabs(place)]
    for place in unseen:  # grows while we walk
        real = os.path.realpath(place)
        if _is_in(real, [*away, *places]) or any(_is_in(other, [real]) for other in away):
            continue
        if len(places) >= _MAX_PROGRAM_PLACES or not os.path.exists(real):
            continue
        places[real] = ("--ro-bind", real)
        places |= _link(place, away=[*away, *places])
        if os.path.basename(real) in _BIN:
            places |= _beside(real)
        if os.path.isdir(real):
            unseen += _linked(real)
    return places


def _beside(directory: str) -> dict[str, Mount]:
    found: dict[str, Mount] = {}
    for name in _BESIDE_BIN:
        place = os.path.join(os.path.dirname(directory), name)
        if os.path.islink(place):
            found[place] = ("--symlink", os.readlink(place))
        elif os.path.exists(place):
            found[place] = ("--ro-bind", place)
    return found


def _linked(directory: str) -> Iterator[str]:
    for entry in os.scandir(directory):
        if entry.is_symlink() and entry.is_file():
            target = os.path.realpath(entry.path)
            parent = os.path.dirname(target)
            yield parent if os.path.basename(parent) in _BIN else target


def _private(home: str, cwd: str) -> Iterator[str]:
    """Yield where every command finds an empty directory of its own. In its working directory nothing is covered."""
    yield "/tmp"
    for place in _existing(("/var/tmp", home)):
        if not (place == "/" or _is_in(place, [cwd]) or place.removeprefix("/") in _SYSTEM):
            yield place


def _between(here: str, hidden: Sequence[str]) -> Iterator[str]:
    """Yield the directories from ``here`` down to what is hidden in it, without the ends.

    Mounted on themselves they cannot be moved: whoever moves one away could put something of their own in place of
    what is hidden.
    """
    for place in hidden:
        while _is_in(place := os.path.dirname(place), [here]) and place != here:
            yield place


def _link(path: str, *, away: Sequence[str]) -> dict[str, Mount]:
    """Return the first link on the way to ``path``, so that it can be named as it was; none if it is there anyway."""
    place = ""
    for name in os.path.abspath(path).split("/")[1:]:
        place = f"{place}/{name}"
        if os.path.islink(place):
            return {} if _is_in(place, away) else {place: ("--symlink", os.path.realpath(place))}
    return {}


def _existing(paths: Sequence[str]) -> list[str]:
    """Return the real names of the directories among ``paths``."""
    return [os.path.realpath(path) for path in paths if os.path.isdir(path)]


def _is_in(path: str, places: Sequence[str]) -> bool:
    """Tell if a path is one of these places, or below one."""
    return any(path == place or path.startswith(f"{place.rstrip('/')}/") for place in places)
