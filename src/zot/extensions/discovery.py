"""Which extensions there are, in the order in which they are asked, and which of them run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from zot.errors import ConfigError, UserError
from zot.extensions.manifest import Manifest, changeable, load

Source: TypeAlias = Literal["ext", "project", "global"]
#: Why one does not run: "broken" says what is wrong with it in ``problem``, "shadowed" who took its name, "refused" why
#: it cannot be held to its permissions here.
Standing: TypeAlias = Literal["runs", "disabled", "untrusted", "shadowed", "refused", "broken"]


class Located(msgspec.Struct, frozen=True):
    """An extension in its ``directory``: where it was looked for, what its manifest says, and whether it runs.

    One that is broken has a manifest if what it was to guard could be read.
    """

    directory: str
    source: Source
    standing: Standing
    manifest: Manifest | None = None
    problem: str = ""

    @property
    def counts(self) -> bool:
        """True if it has a say in a session: it runs, or what it was to guard stays blocked."""
        return self.standing in ("runs", "refused") or (self.standing == "broken" and self.manifest is not None)

    @property
    def name(self) -> str:
        """Its name; that of its directory if its manifest cannot be read."""
        return self.manifest.name if self.manifest is not None else os.path.basename(self.directory)


def discover(
    *,
    cwd: str,
    home: str | None,
    explicit: Sequence[str] = (),
    look: bool = True,
    is_trusted: Callable[[str, Sequence[str]], bool],
    refusal: Callable[[Manifest, str], str] = lambda manifest, directory: "",
) -> list[Located]:
    """Return the extensions: those the user named, then the project's, then those of ``home``, each by name.

    ``look`` False leaves out all that were not named. Those of a project run only if ``is_trusted`` says so of their
    directory and the patterns of their data. The first of a name that could run is the one that does. If ``refusal``
    says why that one cannot be confined, no other takes its place.
    """
    found = [_located(os.path.abspath(directory), "ext") for directory in explicit]
    if look:
        found += _by_name(os.path.join(cwd, ".zot", "extensions"), "project")
        found += _by_name(os.path.join(home, "extensions"), "global") if home else []
    return [_confinable(one, refusal) for one in _ranked(found, is_trusted)]


def _by_name(place: str, source: Source) -> list[Located]:
    try:
        with os.scandir(place) as entries:
            directories = [entry.path for entry in entries if not entry.name.startswith(".") and _is_place(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as problem:
        guard = _unknown_guard(place) if source != "project" else None
        return [Located(place, source, "broken", guard, problem=f"{place}: {problem.strerror}")]
    return sorted((_located(directory, source) for directory in directories), key=lambda one: (one.name, one.directory))


def _is_place(entry: os.DirEntry[str]) -> bool:
    """Tell if an extension may be there: what cannot be told is found out when it is read, and costs no other one."""
    try:
        return entry.is_dir()
    except OSError:
        return True


def _located(directory: str, source: Source) -> Located:
    try:
        manifest = load(directory)
    except ConfigError as problem:
        # A project must not be able to block anything before it is trusted.
        guard = _broken_guard(directory) if source != "project" else None
        return Located(directory, source, "broken", guard, problem=str(problem))
    return Located(directory, source, "runs" if manifest.enabled else "disabled", manifest)


def _broken_guard(directory: str) -> Manifest | None:
    from zot.extensions.manifest import broken_guard  # Nearly all can be used.

    return broken_guard(directory)


def _unknown_guard(place: str) -> Manifest:
    from zot.extensions.manifest import unknown_guard  # Nearly every place can be read.

    return unknown_guard(place)


def _ranked(found: Sequence[Located], is_trusted: Callable[[str, Sequence[str]], bool]) -> Iterator[Located]:
    """Yield what was found, saying of each that will not run why."""
    taken: dict[str, str] = {}
    for one in found:
        if one.manifest is None or (one.standing != "runs" and not (one.counts and one.name in taken)):
            yield one  # One that is broken does not take a name, but whoever has it does its work.
        elif one.source == "project" and (problem := _distrust(one, one.manifest, is_trusted)) is not None:
            yield msgspec.structs.replace(one, standing="untrusted", problem=problem)
        elif (first := taken.setdefault(one.name, one.directory)) != one.directory:
            yield msgspec.structs.replace(
                one, standing="shadowed", problem=f"{first} has the same name and comes first"
            )
        else:
            yield one


def _distrust(one: Located, manifest: Manifest, is_trusted: Callable[[str, Sequence[str]], bool]) -> str | None:
    """Return why one is not trusted, "" if only because nobody said so; None if it is."""
    try:
        return None if is_trusted(one.directory, changeable(manifest, one.directory)) else ""
    except UserError as problem:
        return str(problem)


def _confinable(one: Located, refusal: Callable[[Manifest, str], str]) -> Located:
    if one.standing != "runs" or one.manifest is None or not (problem := refusal(one.manifest, one.directory)):
        return one
    return msgspec.structs.replace(one, standing="refused", problem=problem)
