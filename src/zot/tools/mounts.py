"""Mounts of the sandbox: the system's programs and the working directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TypeAlias

from zot.config.paths import SANDBOX_MARK
from zot.config.private_paths import PrivatePath
from zot.errors import UserError
from zot.files import MAX_LINKS

#: Arguments of one mount, without the mount point, which comes last.
Mount: TypeAlias = tuple[str, ...]
Places: TypeAlias = dict[str, Mount]

#: Directories of programs whose neighbours belong to them, and the names of those neighbours.
_SHIMS = "shims"
_BIN = ("bin", "sbin", _SHIMS)
_BESIDE_BIN = ("conf", "lib", "lib64", "libexec", "pyvenv.cfg", "version", "versions")
#: Limit of directories reached from a PATH and the links in it.
_MAX_PROGRAM_PLACES = 200
#: The limit of kernels for nested interpreters of scripts.
_MAX_SCRIPTS = 4
#: The longest shebang line that kernels read.
_MAX_FIRST_LINE_BYTES = 256
#: Directories of programs and their data in the root; also all that begin with lib.
_SYSTEM = ("bin", "etc", "gnu", "nix", "opt", "sbin", "usr")
#: Paths that programs need in otherwise empty directories: certificates, name lookup, number of processors.
_NEEDED = (
    "/run/current-system", "/run/nscd", "/run/resolvconf", "/run/systemd/resolve", "/sys/devices/system/cpu",
    "/var/lib/ca-certificates",
)  # fmt: skip
#: Paths that programs need in a home directory.
_NEEDED_AT_HOME = (".rustup/settings.toml", ".rustup/toolchains")
_EMPTY: Mount = ("--tmpfs",)
_OTHERS_MAY_LOOK = stat.S_IROTH | stat.S_IXOTH


class CannotHide(UserError):
    """A private file is in a directory that a sandbox must show. There it would be seen as soon as it appears."""

    def __init__(self, one: PrivatePath) -> None:
        what = f"{one.path} is zot's own ({one.purpose})"
        super().__init__(f"{what}, and {one.hidden} would show it: move it to a directory of its own")


def locked_mounts(
    cwd: str,
    *,
    path: str = "",
    home: str = "",
    hidden: Sequence[PrivatePath] = (),
    shown: Sequence[str] = (),
    protected: Places | None = None,
) -> list[tuple[str, ...]]:
    """Return mounts that show ``cwd`` writable, and the programs with their data read-only.

    Programs are the system's and those on ``path``, a list as in the variable PATH. ``home`` and /tmp are private and
    empty. ``hidden`` paths are empty, except for ``shown`` directories, which are readable. ``protected`` are mounts in
    ``cwd``. Raise CannotHide.
    """
    here = os.path.realpath(cwd)
    places = system(home, away=[here])
    places |= in_path(path, away=[*places, here, *(os.path.realpath(one.path) for one in hidden)])
    places |= private(home, away=[here])
    places[here] = ("--bind", here)
    places |= closing(places, [here], hidden=hidden, protected=protected or {})
    places |= {place: ("--ro-bind", place) for place in _existing(shown)}
    places[here] = ("--bind", here)
    places |= link(cwd, away=[place for place, mount in places.items() if mount != ("--tmpfs",)])
    return mounts(places)


def system(home: str, *, away: Sequence[str]) -> Places:
    """Return read-only mounts of the system and of program data in ``home``; those in ``away`` are mounted anyway."""
    places = _root()
    needed = [*_NEEDED, *(os.path.join(home, name) for name in _NEEDED_AT_HOME if os.path.isabs(home))]
    places |= {place: ("--ro-bind", place) for place in map(os.path.realpath, needed) if os.path.exists(place)}
    return places | _resolver([*places, *away])


def private(home: str, *, away: Sequence[str]) -> Places:
    """Return mounts of the private empty directories. Never covers a directory in ``away``."""
    wanted = [place for place in _existing(("/var/tmp", home)) if place != "/" and not is_in(place, away)]
    return dict.fromkeys(["/tmp", *(place for place in wanted if place.removeprefix("/") not in _SYSTEM)], ("--tmpfs",))


def mounts(places: Places) -> list[tuple[str, ...]]:
    """Return the mounts as arguments of bubblewrap, in order. The root itself is read-only, with the sandbox's mark."""
    # Parents first, so that no mount covers another.
    ordered = sorted(places, key=lambda place: len(place.rstrip("/").split("/")))
    # Root could otherwise change kernel settings in /proc/sys and elsewhere.
    last = ("/proc", "/") if os.geteuid() == 0 else ("/",)
    return [
        *((*places[place], place) for place in ordered),
        ("--dir", SANDBOX_MARK),
        *(("--remount-ro", place) for place in last),
    ]


def in_path(path: str, *, away: Sequence[str]) -> Places:
    """Return mounts of the directories on ``path`` with their neighbours, unless they are in one of the ``away``.

    For a linked program, mounts its directory if that is one of programs, or else the program alone.
    """
    places: Places = {}
    unseen = [place for place in path.split(os.pathsep) if os.path.isabs(place)]
    for place in unseen:  # grows during the walk
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
    """Return mounts of one program with its neighbours, the links to it, and the interpreter if it is a script.

    Looks a bare name up in ``path``, preferring binaries to scripts. Raise LookupError if there is none. Skips paths in
    one of the ``away``, which are mounted anyway, unless they are ``covered``.
    """
    found = command if "/" in command else _looked_up(command, path)
    if found is None or not _is_program(found):
        raise LookupError(f"{command} is not a program, or only a script that starts others")
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
    """Return a mount of the first link in ``path``, so that it keeps its name; none if it is in one of the ``away``."""
    place = ""
    for name in os.path.abspath(path).split("/")[1:]:
        place = f"{place}/{name}"
        if os.path.islink(place):
            return {} if is_in(place, away) else {place: ("--symlink", os.path.realpath(place))}
    return {}


def is_in(path: str, places: Sequence[str]) -> bool:
    """Return whether a path is one of these places, or below one."""
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
    """Return mounts of a program and all links to it, each with its neighbours."""
    places: Places = {}
    place = os.path.abspath(program)
    for _ in range(MAX_LINKS):
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
    """Return the first binary of a name, or else the first script that is not a version manager's.

    Those start a dozen other programs to find the one that was meant.
    """
    places = [os.path.join(directory, name) for directory in path.split(os.pathsep) if os.path.isabs(directory)]
    found = [place for place in places if _is_program(place)]
    scripts = (place for place in found if os.path.basename(os.path.dirname(place)) != _SHIMS)
    return next((place for place in found if not _first_line(place)), next(scripts, None))


def _is_program(place: str) -> bool:
    return os.path.isfile(place) and os.access(place, os.X_OK)


def _first_line(program: str) -> list[str]:
    """Return the words of a script's shebang line; [] for a binary or an unreadable file."""
    try:
        with open(program, "rb", buffering=0) as file:
            start = file.read(_MAX_FIRST_LINE_BYTES)
    except OSError:
        return []
    return os.fsdecode(start.partition(b"\n")[0][2:]).split() if start.startswith(b"#!") else []


def _started_by_env(words: Sequence[str]) -> list[str]:
    """Return the program that `env` runs in a shebang line: the first word that is neither option nor variable."""
    if not words or os.path.basename(words[0]) != "env":
        return []
    return [word for word in words[1:] if not word.startswith("-") and "=" not in word][:1]


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
    """Return mounts that cover the files which this user can read but others cannot: the command runs as this user."""
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
    """Return a mount of the name lookup configuration, if it is a link to another place."""
    real = os.path.realpath("/etc/resolv.conf")
    return {real: ("--ro-bind", real)} if os.path.isfile(real) and not is_in(real, away) else {}


def _between(here: str, hidden: Sequence[str]) -> Iterator[str]:
    """Yield the directories between ``here`` and the hidden paths in it.

    Mounted on themselves they cannot be renamed: otherwise a command could rename one and create its own hidden path.
    """
    for place in hidden:
        while is_in(place := os.path.dirname(place), [here]) and place != here:
            yield place


def closing(places: Places, writable: Sequence[str], *, hidden: Sequence[PrivatePath], protected: Places) -> Places:
    """Return mounts over ``places`` that make ``hidden`` paths empty and have those that are ``protected``.

    What would be seen is covered, now and later: files that come and go with the directory that they are in.
    Directories above them in a ``writable`` place stay what they are. Raise CannotHide for a file in a directory that
    the sandbox must show.
    """
    covered: Places = {}
    directories = [one.hidden for one in hidden if one.is_directory]
    for one in hidden:
        path = one.hidden
        if places.get(innermost(path, places), _EMPTY) == _EMPTY:
            continue
        if one.is_directory or one.stays:
            mount = _EMPTY if os.path.isdir(path) else ("--ro-bind", "/dev/null")
        elif is_in(path, directories):
            continue
        elif path in places:
            raise CannotHide(one)
        else:
            mount = _EMPTY
        if os.path.exists(path):
            covered[path] = mount
    closed = protected | covered
    around = {place for here in writable for place in _between(here, [*closed])}
    return {place: ("--bind", place) for place in around if not is_in(place, [*closed])} | closed


def innermost(path: str, places: Places) -> str:
    """Return the innermost place that contains ``path`` or is it; "" if none does."""
    return max((place for place in places if is_in(path, [place])), key=len, default="")


def _existing(paths: Sequence[str]) -> list[str]:
    """Return the real paths of the directories among ``paths``."""
    return [os.path.realpath(path) for path in paths if os.path.isdir(path)]
