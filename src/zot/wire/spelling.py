"""Keys in two spellings: ``sessionId`` as the protocol was published, ``session_id`` as released clients write.

Python field names are the snake_case spelling, `rename` gives the other. Only keys that a struct declares are
converted; foreign values, such as tool arguments, stay as they are. Does no I/O.
"""

from __future__ import annotations

import enum
import re
import typing
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from zot.encoding import explain, explain_validation, thread_safe_type
from zot.wire.jsonrpc import INVALID_PARAMS, RpcError


class Spelling(enum.Enum):
    """The spelling of all keys on one connection."""

    CAMEL = "camelCase"
    SNAKE = "snake_case"


class Spelled(msgspec.Struct, frozen=True, rename="camel"):
    """Base of structs that exist in both spellings. An absent optional field of a result is UNSET."""


S = TypeVar("S", bound=msgspec.Struct)
_MAX_REASON: Final = 500
#: Precedes the path to the wrong value in a message of msgspec.
_AT: Final = " - at `$"


def read(kind: type[S], raw: msgspec.Raw, spelling: Spelling = Spelling.CAMEL) -> S:
    """Decode ``raw``, in either spelling, as ``kind``. null counts as absent, unknown fields are ignored.

    Raise RpcError, naming the field in ``spelling``, if that fails.
    """
    try:
        value = msgspec.json.decode(raw)
        if not isinstance(value, dict):
            raise RpcError(INVALID_PARAMS, "params must be an object")
        return msgspec.convert(_named(kind, value, "", spelling), thread_safe_type(kind))
    except RecursionError:
        raise RpcError(INVALID_PARAMS, "params are nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        # The reason may quote the input, which can be long.
        reason = explain(problem)
        if isinstance(problem, msgspec.ValidationError) and spelling is Spelling.SNAKE:
            reason = explain_validation(_respelled(kind, str(problem)))
        raise RpcError(INVALID_PARAMS, f"params: {reason}"[:_MAX_REASON]) from None


def _respelled(kind: type[msgspec.Struct], reason: str) -> str:
    """Return msgspec's message with the path at its end converted to snake_case."""
    message, at, path = reason.rpartition(_AT)
    if not at:
        return reason
    names = _snake_names(kind)
    return message + at + re.sub(r"\w+", lambda found: names.get(found[0], found[0]), path)


def _snake_names(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the snake_case name for each camelCase name in a struct and its nested structs."""
    names = {}
    for field in _fields(kind):
        names[field.camel] = field.snake
        if field.inner is not None:
            names |= _snake_names(field.inner)
    return names


def spelled(spelling: Spelling, value: Any) -> Any:
    """Return ``value`` in a form that encodes with keys in ``spelling``."""
    return value if spelling is Spelling.CAMEL else _snake(value)


class _Field(NamedTuple):
    """A struct field: both names, the struct of the value or of its items, and the allowed words of a Literal."""

    snake: str
    camel: str
    required: bool
    inner: type[msgspec.Struct] | None
    words: tuple[str, ...]

    def name(self, spelling: Spelling) -> str:
        """Return the field's name in ``spelling``."""
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
    """Return the words of an annotation such as ``Literal["shown", "full"] | None``; () if there is no Literal."""
    if typing.get_origin(annotation) is typing.Literal:
        return tuple(word for word in typing.get_args(annotation) if isinstance(word, str))
    return tuple(word for part in typing.get_args(annotation) for word in _words(part))


def _named(kind: type[msgspec.Struct], given: dict[str, Any], place: str, spelling: Spelling) -> dict[str, Any]:
    """Return the values given for the fields of ``kind``, keyed by their camelCase names."""
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
            return value  # The conversion refuses it and names its path.


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
