"""What a locked command sees of the file system: its directory, the programs, and nothing that is somebody's own.

The result is a list of mounts for bubblewrap, on an empty root.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from functools import cache

from zot.tools.mounts import Places, in_path, is_in, link

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
