"""Questions of a tool to the user, and their answers, checked against the fields that were asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from zot.errors import UserError
from zot.events import QuestionAction, QuestionField

#: The longest answer to one field.
MAX_ANSWER: Final = 64 * 1024


class Question(msgspec.Struct, frozen=True):
    """A question of ``origin``, such as ``mcp:NAME``, as in `QuestionRequest`."""

    origin: str
    message: str
    fields: tuple[QuestionField, ...] = ()
    url: str = ""


class QuestionReply(msgspec.Struct, frozen=True):
    """The answer to a question: ``content`` has the values of an accept. ``reason`` says why no person decided."""

    action: QuestionAction
    content: Mapping[str, Any] = {}
    reason: str = ""


DECLINED: Final = QuestionReply("decline", reason="no user can be asked")


def checked(fields: Sequence[QuestionField], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an accepted question, with defaults for those left out. Raise UserError for a wrong one."""
    known = {field.name for field in fields}
    if unknown := next((name for name in content if name not in known), None):
        raise UserError(f"the question has no field {unknown!r}; it has: {', '.join(sorted(known)) or 'none'}")
    values: dict[str, Any] = {}
    for field in fields:
        value = content.get(field.name)
        if value is None:
            value = field.default
        if value is not None:
            values[field.name] = _checked(field, value)
        elif field.required:
            raise UserError(f"{field.name} is required")
    return values


def typed(field: QuestionField, text: str) -> Any:
    """Return what a person typed for a field as its value; None if nothing. Raise UserError if it does not fit."""
    text = text.strip()
    if not text:
        return None
    match field.kind:
        case "boolean":
            known = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
            if (value := known.get(text.lower())) is None:
                raise UserError(f"{field.name} is yes or no")
            return value
        case "number" | "integer":
            try:
                number = float(text) if field.kind == "number" else int(text)
            except ValueError:
                raise UserError(f"{field.name} is not a {field.kind}") from None
            return _checked(field, number)
        case "choices":
            return _checked(field, [_chosen(field, part.strip()) for part in text.split(",")])
        case "choice":
            return _checked(field, _chosen(field, text))
        case "string":
            return _checked(field, text)


def _chosen(field: QuestionField, text: str) -> str:
    """Return the value of the choice with this title, or ``text`` itself."""
    return next((one.value for one in field.choices if text == one.title), text)


def _checked(field: QuestionField, value: Any) -> Any:
    match field.kind, value:
        case "boolean", bool():
            return value
        case (("number" | "integer"), int() | float()) if not isinstance(value, bool):
            if not math.isfinite(value) or (field.kind == "integer" and value != int(value)):
                raise UserError(f"{field.name} is not a {field.kind}")
            _check_bounds(field, value, "")
            return int(value) if field.kind == "integer" else value
        case "choice", str():
            if all(value != one.value for one in field.choices):
                raise UserError(f"{field.name} is one of {', '.join(one.value for one in field.choices)}")
            return value
        case "choices", list() | tuple():
            values = {one.value for one in field.choices}
            if wrong := next((one for one in value if one not in values), None):
                raise UserError(f"{field.name} has no choice {wrong!r}")
            _check_bounds(field, len(value), " choices")
            return list(value)
        case "string", str():
            if len(value) > MAX_ANSWER:
                raise UserError(f"{field.name} has more than {MAX_ANSWER} characters")
            _check_bounds(field, len(value), " characters")
            return value
        case _:
            raise UserError(f"{field.name} is not a {field.kind}")


def _check_bounds(field: QuestionField, size: float, unit: str) -> None:
    if field.minimum is not None and size < field.minimum:
        raise UserError(f"{field.name} must have at least {field.minimum:g}{unit}")
    if field.maximum is not None and size > field.maximum:
        raise UserError(f"{field.name} must have at most {field.maximum:g}{unit}")
