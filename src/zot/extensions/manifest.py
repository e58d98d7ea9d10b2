"""extension.json: what an extension is called, how it is started, and what it may do."""

from __future__ import annotations

import os
from typing import Annotated, TypeAlias

import msgspec

from zot.errors import ConfigError
from zot.extensions.permissions import Permissions
from zot.fingerprint import DEFAULT_DATA
from zot.regular import content
from zot.wire.extension import ExtensionName, Intercepted, OnFailure

FILE_NAME = "extension.json"
MAX_BYTES = 256 * 1024

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
        data = content(path)
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: longer than {MAX_BYTES} bytes")
    return parse(data, path)


def parse(data: bytes, path: str) -> Manifest:
    """Return the manifest that ``data`` is, which was found at ``path``. Raise ConfigError."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise ConfigError(f"{path}: {problem}") from None
    for word in (manifest.exec, *manifest.args):
        if "\0" in word:
            raise ConfigError(f"{path}: a NUL character in `exec` or `args`")
    if manifest.permissions is None and "permissions" in msgspec.json.decode(data, type=dict[str, msgspec.Raw]):
        # Whoever writes this hardly wants to allow everything.
        raise ConfigError(f"{path}: Expected `object`, got `null` - at `$.permissions`")
    return manifest


def program(manifest: Manifest, directory: str) -> str:
    """Return what is to be started: relative to the manifest, or a bare name beside it, or else on the PATH."""
    if "/" in manifest.exec:
        return os.path.join(directory, manifest.exec)
    beside = os.path.join(directory, manifest.exec)
    return beside if os.path.isfile(beside) else manifest.exec


def data_directories(manifest: Manifest) -> list[str]:
    """Return the directories that are data as a whole, relative to the manifest, the first as the first is named."""
    whole = [pattern.removesuffix("/**") for pattern in manifest.data if pattern.endswith("/**")]
    names = [os.path.normpath(name) for name in whole if name and not name.startswith("!") and not _WILD & {*name}]
    return [name for name in names if not os.path.isabs(name) and name.split("/")[0] not in (".", "..")]
