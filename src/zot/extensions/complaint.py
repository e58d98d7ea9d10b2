"""What is wrong with a manifest, told to who wrote it: which field, what stands there, and what would be right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec

from zot.learned import learned
from zot.text import printable
from zot.wire.extension import EVENTS, INTERCEPTED, OnFailure

_NAMES: Final = "a list of names, or true for all"
_PATHS: Final = 'a list of paths, such as ["~/notes", "$CWD"]'
#: What each field has to be.
RIGHT: Final[Mapping[str, str]] = {
    "name": "letters, digits, `.`, `_` and `-`, at most 64 of them, the first a letter or a digit",
    "exec": 'the program to start, such as "./main.py"',
    "version": 'a text, such as "1.0.0"',
    "args": 'a list of texts, such as ["--quiet"]',
    "language": "a text",
    "description": "a text",
    "enabled": "true or false",
    "intercept": f"a list of what it decides about: {', '.join(INTERCEPTED)}",
    "on_failure": " or ".join(f'"{name}"' for name in get_args(OnFailure)),
    "data": 'a list of patterns, such as ["data/**"]',
    "permissions": 'an object with the scopes it needs, such as {"net": true}; without the field it may do everything',
}
#: And what each scope has to be.
SCOPES: Final[Mapping[str, str]] = {
    "fs.read": _PATHS,
    "fs.write": _PATHS,
    "net": "true or false",
    "exec": f"{_NAMES}; of programs, or absolute paths",
    "env": f"{_NAMES}; of variables",
    "tools": f"{_NAMES}; of tools: letters, digits, `_` and `-`, at most 64, no digit or `-` first",
    "events": f"true for all, or a list of: {', '.join(EVENTS)}",
    "intercept": f"true for all, or a list of: {', '.join(INTERCEPTED)}",
    "ui": "true or false",
}
_MAX_SHOWN: Final = 60


def complaint(data: bytes, manifest: type[msgspec.Struct], permissions: type[msgspec.Struct]) -> str:
    """Return what is wrong with ``data``, which could not be read as a ``manifest``; "" if nothing is found."""
    try:
        found = json.loads(data.decode())
    except UnicodeDecodeError as problem:
        return f"is not UTF-8, at byte {problem.start}"
    except RecursionError:
        return "is nested too deeply"
    except json.JSONDecodeError as problem:
        return _no_json(data.decode(), problem)
    except ValueError as problem:  # a number with more digits than Python converts
        return f"is not JSON: {problem}"
    if not isinstance(found, dict):
        return f"must be an object with at least `name` and `exec`, but is {_shown(found)}"
    if wrong := _wrong_field(found, manifest, RIGHT):
        return wrong
    scopes = found.get("permissions", {})
    if not isinstance(scopes, dict):
        return f"`permissions` must be {RIGHT['permissions']}; but it is {_shown(scopes)}"
    return _wrong_scope(scopes, permissions)


def _no_json(text: str, problem: json.JSONDecodeError) -> str:
    where = f"line {problem.lineno}, column {problem.colno}"
    if not text.strip():
        return "is empty; it must be an object with at least `name` and `exec`"
    if problem.pos >= len(text.rstrip()):
        return f"is not JSON: it ends too early, at {where}"
    return f"is not JSON, at {where}: {problem.msg}"


def _wrong_scope(scopes: dict[str, Any], permissions: type[msgspec.Struct]) -> str:
    if unknown := [name for name in scopes if name not in SCOPES]:
        return f"`permissions` has {_shown(unknown[0])}, which is no scope; there are: {', '.join(SCOPES)}"
    if wrong := _wrong_field(scopes, permissions, SCOPES):
        return f"permissions: {wrong}"
    fields = {field.encode_name: field for field in msgspec.structs.fields(permissions)}
    try:
        permissions(
            **{fields[name].name: msgspec.convert(value, learned(fields[name].type)) for name, value in scopes.items()}
        )
    except ValueError as problem:
        return f"permissions: {problem}"
    return ""


def _wrong_field(found: dict[str, Any], kind: type[msgspec.Struct], right: Mapping[str, str]) -> str:
    """Return what is wrong with the first field that is not what it has to be; "" if all are."""
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        if name not in found:
            if field.required:
                return f"`{name}` is missing; it must be {right[name]}"
        elif name != "permissions":  # Which has its own.
            try:
                msgspec.convert(found[name], learned(field.type))
            except msgspec.ValidationError:
                return f"`{name}` must be {right[name]}; but it is {_shown(found[name])}"
    return ""


def _shown(value: Any) -> str:
    text = printable(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
