"""Discovery of extensions: their order, and which of them run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from zot.errors import ConfigError, UserError
from zot.extensions.manifest import Manifest, broken_guard, changeable, load, unknown_guard

Source: TypeAlias = Literal["ext", "project", "global"]
#: "broken", "shadowed" and "refused" (cannot be held to its permissions here) have a reason in ``problem``.
Standing: TypeAlias = Literal["runs", "disabled", "untrusted", "shadowed", "refused", "broken"]


class Located(msgspec.Struct, frozen=True):
    """Extension in its ``directory``, with its manifest and whether it runs.

    A broken one has a manifest if the events it was to guard could be read.
    """

    directory: str
    source: Source
    standing: Standing
    manifest: Manifest | None = None
    problem: str = ""
    #: Content of a project's extension that is trusted: it runs from a `Snapshot`. "": it runs where it is.
    fingerprint: str = ""

    @property
    def counts(self) -> bool:
        """True if it affects a session: it runs, or the events it guards are blocked."""
        return self.standing in ("runs", "refused") or (self.standing == "broken" and self.manifest is not None)

    @property
    def name(self) -> str:
        """Its name, or its directory's if its manifest is unreadable."""
        return self.manifest.name if self.manifest is not None else os.path.basename(self.directory)


def discover(
    *,
    cwd: str,
    home: str | None,
    explicit: Sequence[str] = (),
    look: bool = True,
    is_trusted: Callable[[str, Sequence[str]], bool],
) -> list[Located]:
    """Return the extensions: those named by the user, then the project's, then those of ``home``, each by name.

    ``look`` False omits all but the named ones. A project's extensions run only if ``is_trusted`` accepts their
    directory and the patterns of their data. The first of a name that could run does, but a guard of ``home`` gives its
    name to no project.
    """
    found = [_located(os.path.abspath(directory), "ext") for directory in explicit]
    if look:
        found += _by_name(os.path.join(cwd, ".zot", "extensions"), "project")
        found += _by_name(os.path.join(home, "extensions"), "global") if home else []
    return [*_ranked(found, is_trusted)]


def _by_name(place: str, source: Source) -> list[Located]:
    try:
        with os.scandir(place) as entries:
            directories = [entry.path for entry in entries if not entry.name.startswith(".") and _is_place(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as problem:
        guard = unknown_guard(place) if source != "project" else None
        return [Located(place, source, "broken", guard, problem=f"{place}: {problem.strerror}")]
    return sorted((_located(directory, source) for directory in directories), key=lambda one: (one.name, one.directory))


def _is_place(entry: os.DirEntry[str]) -> bool:
    """Return whether this may be an extension. Errors count as yes: loading it reports them."""
    try:
        return entry.is_dir()
    except OSError:
        return True


def _located(directory: str, source: Source) -> Located:
    try:
        manifest = load(directory)
    except ConfigError as problem:
        # A project must not block anything before it is trusted.
        guard = broken_guard(directory) if source != "project" else None
        return Located(directory, source, "broken", guard, problem=str(problem))
    return Located(directory, source, "runs" if manifest.enabled else "disabled", manifest)


def _ranked(found: Sequence[Located], is_trusted: Callable[[str, Sequence[str]], bool]) -> Iterator[Located]:
    """Yield each extension, with its reason if it does not run."""
    taken: dict[str, str] = {}
    guards = {one.name: one.directory for one in found if one.source == "global" and one.counts and _is_guard(one)}
    for one in found:
        if one.manifest is None or (one.standing != "runs" and not (one.counts and one.name in taken)):
            yield one  # A broken one does not take a name; a working one of its name replaces it.
        elif one.source == "project" and (problem := _distrust(one, one.manifest, is_trusted)) is not None:
            yield msgspec.structs.replace(one, standing="untrusted", problem=problem)
        elif one.source == "project" and one.name in guards:
            problem = f"{guards[one.name]} has the same name and is a guard, which no project replaces"
            yield msgspec.structs.replace(one, standing="shadowed", problem=problem)
        elif (first := taken.setdefault(one.name, one.directory)) != one.directory:
            yield msgspec.structs.replace(
                one, standing="shadowed", problem=f"{first} has the same name and comes first"
            )
        else:
            yield one


def _is_guard(one: Located) -> bool:
    return one.manifest is not None and one.manifest.on_failure == "block"


def _distrust(one: Located, manifest: Manifest, is_trusted: Callable[[str, Sequence[str]], bool]) -> str | None:
    """Return why it is not trusted, "" if it was just never trusted; None if it is trusted."""
    try:
        return None if is_trusted(one.directory, changeable(manifest, one.directory)) else ""
    except UserError as problem:
        return str(problem)
