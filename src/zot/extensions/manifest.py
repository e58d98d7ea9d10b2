"""extension.json: what an extension is called, how it is started, and what it may do."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, TypeAlias

import msgspec

from zot import files
from zot.config.trust import DEFAULT_DATA
from zot.errors import ConfigError, MalformedFile, UserError
from zot.extensions.permissions import Permissions
from zot.learned import learned
from zot.wire.extension import ExtensionName, Intercepted, OnFailure

FILE_NAME = "extension.json"
MAX_BYTES = 256 * 1024

#: As `exec`: the interpreter that runs zot, in which a script can import zot.ext however zot was installed.
ZOT_PYTHON = "zot-python"
#: Runs a script as ``python SCRIPT ARGS`` does. zot, and what it needs, come last in the path if they are not in it:
#: zot may have been started from a directory that only its own process knows.
_LAUNCH = """
import os, sys
places, sys.argv = sys.argv[1:3], sys.argv[3:]
__file__ = os.path.abspath(sys.argv[0])
if not sys.flags.safe_path:
    sys.path[0] = os.path.dirname(__file__)
sys.path += [place for place in places if place not in sys.path]
del places
with open(__file__, "rb") as source:
    source = compile(source.read(), __file__, "exec")
exec(source)
"""
#: What makes a pattern stand for several names.
_WILD = frozenset("*?[")
_NonEmpty: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]


class Manifest(msgspec.Struct, frozen=True):
    """What the file says. Fields that we do not know are for others."""

    name: ExtensionName
    exec: _NonEmpty
    version: str = ""
    args: tuple[str, ...] = ()
    language: str = ""
    description: str = ""
    enabled: bool = True
    #: What is blocked from the start, and while it does not run, if ``on_failure`` says "block".
    intercept: tuple[Intercepted, ...] = ()
    on_failure: OnFailure = "allow"
    #: Patterns of the files that it may change itself, see `fingerprint`.
    data: tuple[str, ...] = DEFAULT_DATA
    #: What it may do. None: whatever its user may.
    permissions: Permissions | None = None


def load(directory: str) -> Manifest:
    """Return the manifest in ``directory``. Raise ConfigError that names the file and the field that is wrong."""
    path = os.path.join(directory, FILE_NAME)
    try:
        data = files.load(path, bytes, max_bytes=MAX_BYTES)
    except FileNotFoundError:
        if not os.path.lexists(directory):
            raise ConfigError(f"{directory}: no such directory") from None
        raise ConfigError(f"{directory} is not an extension directory: it has no {FILE_NAME}") from None
    except NotADirectoryError:
        raise ConfigError(f"{directory} is not an extension directory: it is a file") from None
    return parse(data, path)


def parse(data: bytes, path: str) -> Manifest:
    """Return the manifest that ``data`` is, which was found at ``path``. Raise ConfigError."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        manifest, fields = files.decoded(data, _decoded, path)
    except MalformedFile as problem:
        raise ConfigError(f"{path}: {_explained(data) or problem.reason}") from None
    for word in (manifest.exec, *manifest.args):
        if "\0" in word:
            raise ConfigError(f"{path}: `exec` and `args` must be without NUL characters")
    _check_spelling(fields, path)
    if manifest.permissions is None and "permissions" in fields:
        # Whoever writes this hardly wants to allow everything.
        raise ConfigError(f"{path}: {_explained(data)}")
    return manifest


def _decoded(data: bytes) -> tuple[Manifest, Mapping[str, msgspec.Raw]]:
    """Return a manifest, and all the fields that the file has."""
    return (
        msgspec.json.decode(data, type=learned(Manifest)),
        msgspec.json.decode(data, type=dict[str, msgspec.Raw]),
    )


def _explained(data: bytes) -> str:
    from zot.extensions.complaint import complaint  # Nearly all are right.

    return complaint(data, Manifest, Permissions)


def _check_spelling(fields: Iterable[str], path: str) -> None:
    """Raise ConfigError for a field that looks like one of ours: a guard that is misspelt would be none."""
    known = Manifest.__struct_fields__
    if unknown := [field for field in fields if field not in known]:
        from difflib import get_close_matches  # Nearly all are spelt well.

        for field in unknown:
            if close := get_close_matches(field.lower(), known, n=1, cutoff=0.8):
                raise ConfigError(f"{path}: there is no field {field!r}; did you mean {close[0]!r}?")


def changeable(manifest: Manifest, directory: str) -> tuple[str, ...]:
    """Return the patterns of what may change in a trusted directory: its data, and never what it runs.

    Raise UserError if what it runs lies in its data or outside of its directory, where nobody would notice a change.
    """
    runs = [word for word in (manifest.exec, *manifest.args) if not os.path.isabs(word)]
    inside: list[str] = []
    for word in runs:
        path = os.path.normpath(word)
        if not os.path.isfile(os.path.join(directory, path)):
            continue
        if path.startswith("../"):
            raise UserError(f"{directory} cannot be trusted: it runs {word}, which lies outside of it")
        if any(path.startswith(f"{place}/") for place in _data_places(manifest)):
            raise UserError(f"{directory} cannot be trusted: it runs {word}, which is among its data")
        inside.append(path)
    return (*manifest.data, *(f"!{_literal(path)}" for path in inside))


def _data_places(manifest: Manifest) -> list[str]:
    """Return the directories whose content is data; "" stands for all of them."""
    return [pattern.removesuffix("/**") for pattern in manifest.data if pattern.endswith("/**")]


def _literal(path: str) -> str:
    return "".join(f"[{sign}]" if sign in _WILD else sign for sign in path)


def program(manifest: Manifest, directory: str) -> str:
    """Return what is to be started: relative to the manifest, or a bare name beside it, or else on the PATH.

    ZOT_PYTHON is the interpreter that runs zot.
    """
    if "/" in manifest.exec:
        return os.path.join(directory, manifest.exec)
    beside = os.path.join(directory, manifest.exec)
    if os.path.isfile(beside):
        return beside
    return own_python() if manifest.exec == ZOT_PYTHON else manifest.exec


def command_line(manifest: Manifest, directory: str) -> list[str]:
    """Return the program to start and its arguments."""
    itself = program(manifest, directory)
    is_ours = manifest.exec == ZOT_PYTHON and itself == own_python()
    if not is_ours or not manifest.args or manifest.args[0].startswith("-"):
        return [itself, *manifest.args]
    return [itself, "-c", _LAUNCH, _parent(msgspec.__file__), _parent(__file__, 2), *manifest.args]


def own_python() -> str:
    """Return the interpreter that runs zot; a program that has zot built in has none, so the PATH must do."""
    return "python3" if not sys.executable or getattr(sys, "frozen", False) else sys.executable


def _parent(file: str, levels: int = 1) -> str:
    """Return the directory from which the package of ``file`` is imported, which lies so many packages deep."""
    path = os.path.abspath(file)
    for _ in range(levels + 1):
        path = os.path.dirname(path)
    return path


def data_directories(manifest: Manifest) -> list[str]:
    """Return the directories that are data as a whole, relative to the manifest, the first as the first is named."""
    whole = [pattern.removesuffix("/**") for pattern in manifest.data if pattern.endswith("/**")]
    names = [os.path.normpath(name) for name in whole if name and not name.startswith("!") and not _WILD & {*name}]
    return [name for name in names if not os.path.isabs(name) and name.split("/")[0] not in (".", "..")]
