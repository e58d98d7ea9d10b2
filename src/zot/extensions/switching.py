"""Whether an extension is enabled, changed in its manifest; nothing else in that file changes."""

from __future__ import annotations

import json
import os
import stat
from typing import NamedTuple

from zot.errors import ConfigError
from zot.extensions.manifest import FILE_NAME, load, parse
from zot.files import load as load_file
from zot.private import replace_file

_KEY = "enabled"
_BLANK = " \t\r\n"
_VALUES = json.JSONDecoder()


class _Member(NamedTuple):
    """One ``key`` of an object, and where in the text it and its value stand."""

    key: str
    at: int
    value_at: int
    end: int


def switch(directory: str, *, enabled: bool) -> bool:
    """Enable or disable the extension in ``directory``; False if it was so already. Raise ConfigError.

    The file is replaced as a whole, so nobody ever reads half of it.
    """
    if load(directory).enabled == enabled:
        return False
    # Whoever has linked to a manifest elsewhere means that one.
    path = os.path.realpath(os.path.join(directory, FILE_NAME))
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        new = load_file(path, lambda data: switched(data.decode(), enabled=enabled).encode())
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None
    if parse(new, path).enabled != enabled:
        raise ConfigError(f'{path}: "{_KEY}" could not be changed; please edit it')
    replace_file(path, new, mode=mode)
    return True


def switched(text: str, *, enabled: bool) -> str:
    """Return the manifest ``text``, which is valid, with another value for the one key."""
    members = _members(text)
    value = json.dumps(enabled)
    if known := [one for one in members if one.key == _KEY]:
        last = known[-1]  # Of a repeated key the last value counts.
        return text[: last.value_at] + value + text[last.end :]
    last = members[-1]
    before = text[: last.at]
    indent = before[len(before.rstrip(_BLANK)) :]
    return f'{text[: last.end]},{indent}"{_KEY}": {value}{text[last.end :]}'


def _members(text: str) -> list[_Member]:
    """Return the members of the object that ``text`` is."""
    members: list[_Member] = []
    at = text.index("{")
    while text[at] != "}":
        key_at = _skip(text, at + 1)
        key, colon = _VALUES.raw_decode(text, key_at)
        value_at = _skip(text, _skip(text, colon) + 1)
        _, end = _VALUES.raw_decode(text, value_at)
        members.append(_Member(key, key_at, value_at, end))
        at = _skip(text, end)
    return members


def _skip(text: str, at: int) -> int:
    while text[at] in _BLANK:
        at += 1
    return at
