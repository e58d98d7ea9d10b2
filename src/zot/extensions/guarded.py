"""What a manifest that cannot be used was to guard, as far as anybody can tell: in doubt, everything."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from zot.extensions.manifest import FILE_NAME, MAX_BYTES, Manifest
from zot.files import UNDECODABLE, content
from zot.wire.extension import INTERCEPTED, ExtensionName, Intercepted

#: How much alike a misspelt word and the one that was meant have to be.
_ALIKE: Final = 0.75
#: What says that there is no manifest, not that nobody may see it.
_ABSENT: Final = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL}
#: What may be the wish of a guard in a file that is no JSON.
_SIGN: Final = re.compile(rb"on\W?_?fail\w{0,8}\W{0,16}(\w{0,5})", re.IGNORECASE)


def broken_guard(directory: str) -> Manifest | None:
    """Return the guard that the manifest in ``directory``, which cannot be used, was to be; None if it was none.

    Whoever wrote it wanted something blocked when it does not work, and a slip of the pen must not undo that.
    """
    try:
        data = content(os.path.join(directory, FILE_NAME)).removeprefix(b"\xef\xbb\xbf")
    except OSError as problem:
        return None if problem.errno in _ABSENT else unknown_guard(directory)
    try:
        fields = msgspec.json.decode(data, type=dict[str, Any])
    except UNDECODABLE:
        is_guard = any(wish.lower() != b"allow" for wish in _SIGN.findall(data[:MAX_BYTES]))
        return _guard(_name({}, directory), INTERCEPTED if is_guard else ())
    if _field(fields, "enabled") is False or not _is_closed(_field(fields, "on_failure")):
        return None
    return _guard(_name(fields, directory), _guarded(_field(fields, "intercept")))


def unknown_guard(directory: str) -> Manifest:
    """Return the guard of everything, for what cannot be read: nobody can tell that there is none in it."""
    return Manifest(_name({}, directory), exec="./nothing", intercept=INTERCEPTED, on_failure="block")


def _guard(name: str, guarded: tuple[Intercepted, ...]) -> Manifest | None:
    return Manifest(name, exec="./nothing", intercept=guarded, on_failure="block") if guarded else None


def _field(fields: Mapping[str, Any], name: str) -> Any:
    """Return what stands in a field, or in the one that looks most like it; UNSET if there is none."""
    if name in fields:
        return fields[name]
    spelt = {field.lower().replace("-", "_"): field for field in fields}
    close = get_close_matches(name, spelt, n=1, cutoff=_ALIKE)
    return fields[spelt[close[0]]] if close else msgspec.UNSET


def _is_closed(wish: object) -> bool:
    """Tell if ``on_failure`` was to be "block": it is there, and nothing that looks like "allow"."""
    if wish is msgspec.UNSET:
        return False
    return not (isinstance(wish, str) and get_close_matches(wish.strip().lower(), ["allow"], cutoff=_ALIKE))


def _guarded(wish: object) -> tuple[Intercepted, ...]:
    """Return the names that ``intercept`` has; all of them if it has none that is known."""
    if wish == []:
        return ()
    words = wish if isinstance(wish, list) else [wish]
    meant = {close for word in words if isinstance(word, str) for close in _meant(word)}
    return tuple(name for name in INTERCEPTED if name in meant) or INTERCEPTED


def _meant(words: str) -> list[str]:
    spelt = (word.lower().replace("-", "_") for word in re.split(r"[\s,;|]+", words))
    return [close for word in spelt for close in get_close_matches(word, INTERCEPTED, n=1, cutoff=_ALIKE)]


def _name(fields: Mapping[str, Any], directory: str) -> str:
    """Return its name, or else that of its directory, with what no name has left out."""
    for name in (_field(fields, "name"), os.path.basename(directory)):
        try:
            return msgspec.convert(name, ExtensionName)
        except msgspec.ValidationError:
            pass
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]+", "", os.path.basename(directory))[:64] or "guard"
