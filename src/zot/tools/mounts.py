"""Mounts of the sandbox: the system's programs and the working directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TypeAlias

#: The words of one mount, without the place that they all end with.
Mount: TypeAlias = tuple[str, ...]
Places: TypeAlias = dict[str, Mount]

#: Directories of programs whose neighbours belong to them, and which neighbours that are.
_SHIMS = "shims"
_BIN = ("bin", "sbin", _SHIMS)
_BESIDE_BIN = ("conf", "lib", "lib64", "libexec", "pyvenv.cfg", "version", "versions")
#: As many as a PATH and the links in it may lead to.
_MAX_PROGRAM_PLACES = 200
#: A script is run by a program, which may be a script. Kernels follow four of them, links forty.
_MAX_SCRIPTS = 4
_MAX_LINKS = 40
#: The longest first line that kernels read.
_MAX_FIRST_LINE_BYTES = 256


def in_path(path: str, *, away: Sequence[str]) -> Places:
    """Return the directories of programs, with what is beside them, unless they are in one of the ``away``.

    Of a program that a link leads to, its directory is shown if it is one of programs, or else the program alone.
    """
    places: Places = {}
    unseen = [place for place in path.split(os.pathsep) if os.path.isabs(place)]
    for place in unseen:  # grows while we walk
        real = os.path.realpath(place)
        if is_in(real, [*away, *places]) or any(is_in(other, [real]) for other in away):
            continue
        if len(places) >= _MAX_PROGRAM_PLACES or not os.path.exists(real):
            continue
        places[real] = ("--ro-bind", real)
        places |= link(place, away=[*away, *places])
        if os.path.basename(real) in _BIN:
            places |= _beside(real)
        if os.path.isdir(real):
            unseen += _linked(real)
    return places


def run_by(
    command: str, *, path: str, away: Sequence[str], covered: Sequence[str] = (), scripts: int = _MAX_SCRIPTS
) -> Places:
    """Return one program with what is beside it, the links to it, and if it is a script what runs that.

    A name is looked for in ``path``, where a binary counts before a script. Raise LookupError if there is none. What
    is in one of the ``away`` is there anyway, unless ``covered``.
    """
    found = command if "/" in command else _looked_up(command, path)
    if found is None or not _is_program(found):
        raise LookupError(f"{command} is no program, or only a script that starts others")
    places = {
        place: mount
        for place, mount in _with_links(found, away=away).items()
        if place not in covered and (is_in(place, covered) or not is_in(place, away))
    }
    words = _first_line(found) if scripts else []
    for name in [*words[:1], *_started_by_env(words)]:
        places |= run_by(name, path=path, away=away, covered=covered, scripts=scripts - 1)
    return places


def link(path: str, *, away: Sequence[str]) -> Places:
    """Return the first link on the way to ``path``, so that it can be named as it was; none if it is there anyway."""
    place = ""
    for name in os.path.abspath(path).split("/")[1:]:
        place = f"{place}/{name}"
        if os.path.islink(place):
            return {} if is_in(place, away) else {place: ("--symlink", os.path.realpath(place))}
    return {}


def is_in(path: str, places: Sequence[str]) -> bool:
    """Tell if a path is one of these places, or below one."""
    return any(path == place or path.startswith(f"{place.rstrip('/')}/") for place in places)


def _beside(directory: str) -> Places:
    found: Places = {}
    for name in _BESIDE_BIN:
        place = os.path.join(os.path.dirname(directory), name)
        if os.path.islink(place):
            found[place] = ("--symlink", os.readlink(place))
        elif os.path.exists(place):
            found[place] = ("--ro-bind", place)
    return found


def _linked(directory: str) -> Iterator[str]:
    for entry in os.scandir(directory):
        if entry.is_symlink() and os.path.isfile(entry.path):
            target = os.path.realpath(entry.path)
            parent = os.path.dirname(target)
            yield parent if os.path.basename(parent) in _BIN else target


def _with_links(program: str, *, away: Sequence[str]) -> Places:
    """Return a program and every link on the way to it, each with what is beside it."""
    places: Places = {}
    place = os.path.abspath(program)
    for _ in range(_MAX_LINKS):
        directory = os.path.realpath(os.path.dirname(place))
        places |= {} if directory == os.path.dirname(place) else link(os.path.dirname(place), away=away)
        place = os.path.join(directory, os.path.basename(place))
        if os.path.basename(directory) in _BIN:
            places |= _beside(directory)
        if not os.path.islink(place):
            places[place] = ("--ro-bind", place)
            break
        places[place] = ("--symlink", os.readlink(place))
        place = os.path.normpath(os.path.join(directory, os.readlink(place)))
    return places


def _looked_up(name: str, path: str) -> str | None:
    """Return the first binary of a name, or else the first script that is not one of a version manager.

    Those start a dozen programs to find the one that was meant.
    """
    places = [os.path.join(directory, name) for directory in path.split(os.pathsep) if os.path.isabs(directory)]
    found = [place for place in places if _is_program(place)]
    scripts = (place for place in found if os.path.basename(os.path.dirname(place)) != _SHIMS)
    return next((place for place in found if not _first_line(place)), next(scripts, None))


def _is_program(place: str) -> bool:
    return os.path.isfile(place) and os.access(place, os.X_OK)


def _first_line(program: str) -> list[str]:
    """Return the words of the line that says what runs a script; none if it is a binary, or cannot be read."""
    try:
        with open(program, "rb", buffering=0) as file:
            start = file.read(_MAX_FIRST_LINE_BYTES)
    except OSError:
        return []
    return os.fsdecode(start.partition(b"\n")[0][2:]).split() if start.startswith(b"#!") else []


def _started_by_env(words: Sequence[str]) -> list[str]:
    """Return which program is run if a first line says `env`: the next word that is neither option nor variable."""
    if not words or os.path.basename(words[0]) != "env":
        return []
    return [word for word in words[1:] if not word.startswith("-") and "=" not in word][:1]


#: Where systems keep programs and what these need; with everything in the root that begins with lib.
_SYSTEM = ("bin", "etc", "gnu", "nix", "opt", "sbin", "usr")
#: What programs need of places that are otherwise empty: certificates, how to look up names, how many processors.
_NEEDED = (
    "/run/current-system", "/run/nscd", "/run/resolvconf", "/run/systemd/resolve", "/sys/devices/system/cpu",
    "/var/lib/ca-certificates",
)  # fmt: skip
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
    places = system(home, away=[here])
    places |= in_path(path, away=[*places, here, *map(os.path.realpath, hidden)])
    places |= private(home, away=[here])
    places |= dict.fromkeys(_existing(hidden), ("--tmpfs",))
    places |= {place: ("--ro-bind", place) for place in _existing(shown)}
    places = {place: ("--bind", place) for place in _between(here, _existing(hidden))} | places
    places[here] = ("--bind", here)
    places |= link(cwd, away=[place for place, mount in places.items() if mount != ("--tmpfs",)])
    return mounts(places)


def system(home: str, *, away: Sequence[str]) -> Places:
    """Return what programs need of the system and of ``home``, to be read; what is in one of the ``away`` is there."""
    places = _root()
    needed = [*_NEEDED, *(os.path.join(home, name) for name in _NEEDED_AT_HOME if os.path.isabs(home))]
    places |= {place: ("--ro-bind", place) for place in map(os.path.realpath, needed) if os.path.exists(place)}
    return places | _resolver([*places, *away])


def private(home: str, *, away: Sequence[str]) -> Places:
    """Return where a command finds an empty directory of its own. In one of the ``away`` nothing is covered."""
    wanted = [place for place in _existing(("/var/tmp", home)) if place != "/" and not is_in(place, away)]
    return dict.fromkeys(["/tmp", *(place for place in wanted if place.removeprefix("/") not in _SYSTEM)], ("--tmpfs",))


def mounts(places: Places) -> list[tuple[str, ...]]:
    """Return the mounts in the order in which bubblewrap is to make them. The root itself is read-only."""
    # A directory before what is in it, so that nothing covers what is to be seen.
    ordered = sorted(places, key=lambda place: len(place.rstrip("/").split("/")))
    # To a super-user the settings of the kernel would be open, in /proc/sys and elsewhere there.
    last = ("/proc", "/") if os.geteuid() == 0 else ("/",)
    return [*((*places[place], place) for place in ordered), *(("--remount-ro", place) for place in last)]


def _root() -> Places:
    places: Places = {"/dev": ("--dev",), "/proc": ("--proc",), "/run": ("--tmpfs",)}
    for entry in os.scandir("/"):
        if entry.is_symlink():
            places[entry.path] = ("--symlink", os.readlink(entry.path))
        elif entry.name in _SYSTEM or entry.name.startswith("lib"):
            places[entry.path] = ("--ro-bind", entry.path)
    return places | _secrets("/etc")


@cache
def _secrets(root: str) -> Places:
    """Return how that is covered which we may read but not everyone: in the sandbox the command could, too."""
    covered: Places = {}
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


def _resolver(away: Sequence[str]) -> Places:
    """Return what says how names are looked up, if it is a link to somewhere else."""
    real = os.path.realpath("/etc/resolv.conf")
    return {real: ("--ro-bind", real)} if os.path.isfile(real) and not is_in(real, away) else {}


def _between(here: str, hidden: Sequence[str]) -> Iterator[str]:
    """Yield the directories from ``here`` down to what is hidden in it, without the ends.

    Mounted on themselves they cannot be moved: whoever moves one away could put something of their own in place of
    what is hidden.
    """
    for place in hidden:
        while is_in(place := os.path.dirname(place), [here]) and place != here:
            yield place


def _existing(paths: Sequence[str]) -> list[str]:
    """Return the real names of the directories among ``paths``."""
    return [os.path.realpath(path) for path in paths if os.path.isdir(path)]
