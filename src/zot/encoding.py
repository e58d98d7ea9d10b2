"""JSON encoding of frames, msgspec decoders that are safe to build from several threads, and their errors in words."""

from __future__ import annotations

from _thread import RLock
from collections.abc import Sequence
from types import ModuleType
from typing import Any, TypeVar

import msgspec

from zot.text import replace_surrogates

#: Exceptions that decoding JSON can raise: not JSON or not of the type, not UTF-8, nested too deeply.
UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)

_encoder = msgspec.json.Encoder()

T = TypeVar("T")

#: Words for the types in msgspec's messages.
_TYPES = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_FOUND = {"bool": "a boolean", "float": "a fraction"}
_COMPARISONS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}

_guard = RLock()
_known: set[Any] = set()


def encode(frame: Any) -> bytes:
    """Return one frame as its line of JSON, without the LF. A lone surrogate becomes U+FFFD."""
    try:
        return _encoder.encode(frame)
    except UnicodeEncodeError:
        return _encoder.encode(_without_surrogates(msgspec.to_builtins(frame)))


def encode_lines(frames: Sequence[Any]) -> bytes:
    """Return several frames as lines, each ending in LF."""
    try:
        return _encoder.encode_lines(frames)
    except UnicodeEncodeError:
        return b"".join(encode(frame) + b"\n" for frame in frames)


def _without_surrogates(value: Any) -> Any:
    match value:
        case str():
            return replace_surrogates(value)
        case dict():
            return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
        case list() | tuple():
            return [_without_surrogates(item) for item in value]
        case _:
            return value


def thread_safe_type(kind: T) -> T:
    """Return ``kind`` after building its msgspec decoder under a lock, so any thread may decode it."""
    if kind not in _known:
        with _guard:
            msgspec.json.Decoder(kind)
            _known.add(kind)
    return kind


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder for ``kind``, built under a lock."""
    with _guard:
        return msgspec.json.Decoder(kind)


def explain(problem: Exception) -> str:
    """Return in words why data could not be decoded, such as "prompt must be a string, not a list"."""
    match problem:
        case RecursionError():
            return "nested too deeply"
        case UnicodeDecodeError():
            return f"not UTF-8, at byte {problem.start}"
        case msgspec.ValidationError():
            return explain_validation(str(problem))
        case msgspec.DecodeError() if str(problem) == "Input data was truncated":
            return "the JSON ends too early"
        case _:
            return str(problem)


def explain_validation(message: str, name: str = "it") -> str:
    """Return msgspec's message about a wrong value in words that begin with the place of the value; ``name`` is the
    name of the whole."""
    reason, at, place = message.rpartition(" - at `")
    if not at:
        reason, place = message, ""
    path = place.removeprefix("key` in `").removesuffix("`").removeprefix("$").removeprefix(".")
    name = path or name
    if place.startswith("key` in `"):
        name = f"a key of {name}"
    beginning, quoted, rest = reason.partition("`")
    match beginning if quoted else reason.partition("'")[0]:
        case "Expected ":
            return f"{name} must be {_expected(rest)}"
        case "Object missing required field ":
            return f"{path}{'.' if path else ''}{rest[:-1]} is missing"
        case "Object contains unknown field ":
            return f"{path}{'.' if path else ''}{rest[:-1]} is unknown"
        case "Invalid enum value " | "Invalid value ":
            return f"{name} cannot be {reason.partition('value ')[2]}"
        case _:
            return f"{name}: {reason[:1].lower()}{reason[1:]}"


def _expected(demand: str) -> str:
    """Return the rest of a message after "Expected `" in words: "int` >= 1", "str | null`, got `bool`"."""
    kinds, _, limit = demand.partition("`")
    # Optional fields accept null, but clients need not send it.
    names = [name for name in kinds.split(" | ") if name != "null"]
    wanted = " or ".join(_TYPES.get(name, name) for name in names) or "null"
    if limit.startswith(", got "):
        found = limit.removeprefix(", got ").strip("`")
        return f"{wanted}, not {_FOUND.get(found) or _TYPES.get(found, found)}"
    limit = limit.strip().removesuffix(".0")
    if limit.startswith("matching regex "):
        return f"{wanted} that matches {limit.removeprefix('matching regex ')}"
    if limit == "of length >= 1":
        return f"{wanted} that is not empty"
    unit = ""
    if limit.startswith("of length "):
        unit = " characters" if "str" in names else " items"
    comparison, _, bound = limit.removeprefix("of length ").partition(" ")
    words = _COMPARISONS.get(comparison)
    return f"{wanted} {limit}".rstrip() if words is None else f"{wanted} {words} {bound}{unit}"


def standard_json() -> ModuleType:
    """Return the standard library's `json`, which takes lone surrogates and repeated keys, unlike msgspec.

    Imported on first use: both are rare.
    """
    import json

    return json
