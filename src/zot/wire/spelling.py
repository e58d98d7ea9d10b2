"""Two spellings of one name: ``sessionId`` as the protocol was published, ``session_id`` as its released clients write.

What a struct is called in Python is the one, `rename` makes the other. Only keys that a struct names are spelled in two
ways; what is inside a value that is not ours, such as the arguments of a tool, is left as it is. Does no I/O.
"""

from __future__ import annotations

import enum
import re
import typing
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from zot.encoding import learned
from zot.wire.jsonrpc import INVALID_PARAMS, RpcError


class Spelling(enum.Enum):
    """How the keys of one connection are written."""

    CAMEL = "camelCase"
    SNAKE = "snake_case"


class Spelled(msgspec.Struct, frozen=True, rename="camel"):
    """What is written in either spelling. An optional field of an answer that is not there is UNSET."""


S = TypeVar("S", bound=msgspec.Struct)
_MAX_REASON: Final = 500
#: Before the place in what msgspec says of a value.
_AT: Final = " - at `$"


def read(kind: type[S], raw: msgspec.Raw, spelling: Spelling = Spelling.CAMEL) -> S:
    """Return what ``raw`` says, in either spelling; null counts as absent, what ``kind`` does not have is ignored.

    Raise RpcError, which names the field in ``spelling``, if it is not that.
    """
    try:
        value = msgspec.json.decode(raw)
        if not isinstance(value, dict):
            raise RpcError(INVALID_PARAMS, "params must be an object")
        return msgspec.convert(_named(kind, value, "", spelling), learned(kind))
    except RecursionError:
        raise RpcError(INVALID_PARAMS, "params are nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        # It may quote what was sent, however long that is.
        reason = _respelled(kind, str(problem)) if spelling is Spelling.SNAKE else str(problem)
        raise RpcError(INVALID_PARAMS, f"params: {reason}"[:_MAX_REASON]) from None


def _respelled(kind: type[msgspec.Struct], reason: str) -> str:
    """Return what msgspec says of a value, with the place, which stands at the end, in snake_case."""
    said, at, place = reason.rpartition(_AT)
    if not at:
        return reason
    names = _snake_names(kind)
    return said + at + re.sub(r"\w+", lambda found: names.get(found[0], found[0]), place)


def _snake_names(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return every name in a struct, and in those inside of it, by how it is spelled in camelCase."""
    names = {}
    for field in _fields(kind):
        names[field.camel] = field.snake
        if field.inner is not None:
            names |= _snake_names(field.inner)
    return names


def spelled(spelling: Spelling, value: Any) -> Any:
    """Return ``value`` as what is encoded in that spelling."""
    return value if spelling is Spelling.CAMEL else _snake(value)


class _Field(NamedTuple):
    """A field: its names in both spellings; the struct that it, or each of its items, is; the words that it may be."""

    snake: str
    camel: str
    required: bool
    inner: type[msgspec.Struct] | None
    words: tuple[str, ...]

    def name(self, spelling: Spelling) -> str:
        """Return what it is called."""
        return self.camel if spelling is Spelling.CAMEL else self.snake


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[_Field, ...]:
    return tuple(
        _Field(field.name, field.encode_name, field.required, _inner(field.type), _words(field.type))
        for field in msgspec.structs.fields(kind)
    )


def _inner(annotation: Any) -> type[msgspec.Struct] | None:
    """Return the struct of ours in an annotation such as ``tuple[Attachment, ...] | None``; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, Spelled):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := _inner(part)) is not None), None)


def _words(annotation: Any) -> tuple[str, ...]:
    """Return the words of an annotation such as ``Literal["shown", "full"] | None``; none if it may be anything."""
    if typing.get_origin(annotation) is typing.Literal:
        return tuple(word for word in typing.get_args(annotation) if isinstance(word, str))
    return tuple(word for part in typing.get_args(annotation) for word in _words(part))


def _named(kind: type[msgspec.Struct], given: dict[str, Any], place: str, spelling: Spelling) -> dict[str, Any]:
    """Return what is given for the fields of ``kind``, by the names that it goes by."""
    named = {}
    for field in _fields(kind):
        value, where = _given(field, given, place), f"{place}{field.name(spelling)}"
        if field.words and isinstance(value, str) and value not in field.words:
            raise RpcError(INVALID_PARAMS, f"{where} must be one of {', '.join(field.words)}")
        if value is not None:
            named[field.camel] = value if field.inner is None else _inside(field.inner, value, where, spelling)
        elif field.required:
            raise RpcError(INVALID_PARAMS, f"{where} is required")
    return named


def _given(field: _Field, given: dict[str, Any], place: str) -> Any:
    value, other = given.get(field.camel), given.get(field.snake)
    if value is None or field.camel == field.snake:
        return other
    if other is not None and other != value:
        raise RpcError(INVALID_PARAMS, f"{place}{field.camel} and {place}{field.snake} differ")
    return value


def _inside(kind: type[msgspec.Struct], value: Any, place: str, spelling: Spelling) -> Any:
    match value:
        case dict():
            return _named(kind, value, f"{place}.", spelling)
        case list():
            return [_inside(kind, item, f"{place}[{index}]", spelling) for index, item in enumerate(value)]
        case _:
            return value  # Whatever it is, it is refused with its place.


def _snake(value: Any) -> Any:
    match value:
        case Spelled():
            pairs = ((field.snake, getattr(value, field.snake)) for field in _fields(type(value)))
            named = {name: _snake(item) for name, item in pairs if item is not msgspec.UNSET}
            config = value.__struct_config__
            return named if config.tag is None else {config.tag_field: config.tag, **named}
        case dict():
            return {key: _snake(item) for key, item in value.items()}
        case list() | tuple():
            return [_snake(item) for item in value]
        case _:
            return value
