"""Programs and what belongs to them, as mounts for bubblewrap: all of a PATH, or one and what its first line names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
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
