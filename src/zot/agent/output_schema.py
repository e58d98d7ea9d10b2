"""Output schema: the JSON Schema that a final answer must satisfy, and the check of an answer.

jsonschema-rs does the checking. This module bounds its work and words its findings for the model. Schemas are read as
draft 2020-12, whatever `$schema` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from zot import files
from zot.agent.transcript import Transcript
from zot.encoding import UNREADABLE, explain
from zot.errors import AnswerRejected, ConfigError, ExtraMissing, MalformedFile
from zot.messages import text_of

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator, ValidationError

Schema: TypeAlias = dict[str, Any] | bool

_MAX_PROBLEMS = 5
#: Times the model may correct its answer.
_MAX_CORRECTIONS = 2
#: Deepest answer that is checked: the library recurses on the C stack.
_MAX_DEPTH = 500
#: Most schemas that one value may be checked against. References to references multiply them.
_MAX_EXPANSION = 10_000
#: Bytes that a compiled pattern may take. Matching takes time proportional to the text and to this.
_MAX_PATTERN_BYTES = 2_000_000
#: Characters of an answer times the expansion of the schema. The library collects all problems before it returns the
#: first, at about a kilobyte each, so beyond this only one is asked for.
_MAX_WORK = 200_000

#: The meta-schema of draft 2020-12 without what would be ignored: misspelt keywords and those of older drafts.
#: References are pointers into the schema itself, so that `_expansion` can follow them.
_STRICT_DRAFT = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "urn:zot:output-schema",
    "$dynamicAnchor": "meta",
    "$ref": "https://json-schema.org/draft/2020-12/schema",
    "properties": {
        "enum": {"minItems": 1},
        "$ref": {"pattern": "^#(/[^%]*)?$"},
        **dict.fromkeys(("$dynamicRef", "$recursiveRef", "$recursiveAnchor", "dependencies"), False),
    },
    "unevaluatedProperties": False,
}


def load(path: str) -> Expected:
    """Read a schema from a file. Raise ConfigError, with the place, if it is invalid or uses unknown keywords."""
    try:
        schema = files.load(path, msgspec.json.decode)
    except FileNotFoundError as problem:
        raise ConfigError(f"the output schema {path} cannot be read: {problem.strerror}") from None
    except MalformedFile as problem:
        raise ConfigError(f"{path}: not JSON: {problem.reason}") from None
    try:
        return Expected(schema)
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from None


def unfenced(text: str) -> str:
    """Return the content of a code fence around the whole text; the text itself if there is none."""
    first, _, rest = text.strip().partition("\n")
    if first.rstrip().lower() not in ("```", "```json") or not rest.endswith("```"):
        return text
    return rest.removesuffix("```").strip()


class Expected:
    """The requirement that an answer is JSON and satisfies a schema.

    Raise ConfigError, with the place, for a schema that is invalid, uses unknown keywords or could take unbounded time.
    """

    def __init__(self, schema: Any) -> None:
        if not isinstance(schema, dict | bool):
            raise ConfigError("a schema is an object, true or false")
        self._schema: Schema = schema
        self._validator = _compiled(schema)
        self._expansion = _expansion(schema)

    @property
    def instruction(self) -> str:
        """The instruction for the system prompt."""
        text = msgspec.json.encode(self._schema).decode()
        return (
            "Your last message must be one JSON value and nothing else: no words around it, no code fence. "
            f"It must be valid against this JSON Schema:\n{text}"
        )

    def complaint(self, transcript: Transcript, *, made: int) -> str | None:
        """Return the correction to send to the model; None if its answer is valid.

        ``made`` is the number of corrections sent so far. Raise AnswerRejected once they are used up.
        """
        wrong = "; ".join(self.problems(text_of(transcript.messages[-1].content) if len(transcript) else ""))
        if not wrong:
            return None
        if made >= _MAX_CORRECTIONS:
            raise AnswerRejected(f"the answer does not match the output schema: {wrong}")
        return f"The answer does not match the schema: {wrong}. Answer again with the corrected JSON value alone."

    def problems(self, answer: str) -> list[str]:
        """Return the first few problems of an answer; none if it satisfies the schema."""
        try:
            value = msgspec.json.decode(unfenced(answer))
        except UNREADABLE as problem:
            return [f"it is not JSON ({explain(problem)})"]
        if _depth(value) > _MAX_DEPTH:
            return ["$: is nested too deeply"]
        if self._validator.is_valid(value):
            return []
        return list(islice(self._found(value, answer), _MAX_PROBLEMS))

    def _found(self, value: Any, answer: str) -> Iterator[str]:
        if len(answer) * self._expansion <= _MAX_WORK:
            for error in self._validator.iter_errors(value):
                yield from _worded(error, "$")
            return
        try:
            self._validator.validate(value)
        except _library().ValidationError as error:
            yield from _worded(error, "$")


def _library() -> ModuleType:
    """Return the validator's package, an extra. Raise ConfigError if it is not installed."""
    try:
        import jsonschema_rs  # Imported lazily: an extra.
    except ImportError:
        raise ExtraMissing("an output schema needs the package jsonschema-rs", "schema") from None
    return jsonschema_rs


def _compiled(schema: Schema) -> Draft202012Validator:
    library = _library()
    try:
        # A wrong keyword also makes its parents wrong: the deepest place is the one to name.
        wrong = max(
            library.Draft202012Validator(_STRICT_DRAFT, mask="it", offline=True).iter_errors(schema),
            key=lambda error: len(error.instance_path),
            default=None,
        )
        if wrong is not None:
            raise ConfigError(next(_worded(wrong, "#")))
        options = library.RegexOptions(size_limit=_MAX_PATTERN_BYTES, dfa_size_limit=_MAX_PATTERN_BYTES)
        made: Draft202012Validator = library.Draft202012Validator(
            schema, mask="it", offline=True, pattern_options=options, validate_formats=False
        )
    except library.ValidationError as error:
        raise ConfigError(next(_worded(error, "#"))) from None
    except ValueError as problem:  # The library's own limit of nesting, or a lone surrogate.
        raise ConfigError(str(problem)) from None
    return made


def _worded(error: ValidationError, root: str) -> Iterator[str]:
    """Yield the problems of one error, each with its place below ``root``: `$` in an answer, `#` in a schema."""
    Kind = _library().ValidationErrorKind
    kind, place = error.kind, _place(root, error.instance_path)
    if isinstance(kind, Kind.AdditionalProperties | Kind.UnevaluatedProperties):
        what = "which is not allowed" if root == "$" else "an unknown keyword"
        yield from (f"{place}: has {name!r}, {what}" for name in kind.unexpected)
    elif isinstance(kind, Kind.PropertyNames):
        name = _place(place, [str(kind.error.instance)])
        yield f"{name} (its name): {_reason(kind.error)}"
    elif isinstance(kind, Kind.AnyOf | Kind.OneOfNotValid):
        first = next((text for errors in kind.context for inner in errors for text in _worded(inner, root)), "")
        yield f"{place}: fits none of {len(kind.context)} alternatives" + (f"; the first: {first}" if first else "")
    else:
        yield f"{place}: {_reason(error)}"


def _reason(error: ValidationError) -> str:
    Kind = _library().ValidationErrorKind
    match error.kind:
        case Kind.FalseSchema():
            return "nothing is allowed here"
        case Kind.Type(types):
            return f"must be {' or '.join(types)}, is {_type_of(error.instance)}"
        case Kind.Enum(options):
            return f"must be one of {_shown(options)}"
        case Kind.Constant(expected):
            return f"must be {_shown(expected)}"
        case Kind.Required(name):
            return f"{name!r} is missing"
        case Kind.MinProperties(limit):
            return f"the number of properties must be at least {limit}"
        case Kind.MaxProperties(limit):
            return f"the number of properties must be at most {limit}"
        case Kind.MinItems(limit):
            return f"the number of items must be at least {limit}"
        case Kind.MaxItems(limit):
            return f"the number of items must be at most {limit}"
        case Kind.UniqueItems():
            return "items must be unique"
        case Kind.MinLength(limit):
            return f"the length must be at least {limit}"
        case Kind.MaxLength(limit):
            return f"the length must be at most {limit}"
        case Kind.Pattern(pattern):
            return f"must match {pattern}"
        case Kind.Minimum(limit):
            return f"it must be at least {limit}"
        case Kind.Maximum(limit):
            return f"it must be at most {limit}"
        case Kind.ExclusiveMinimum(limit):
            return f"must be above {limit}"
        case Kind.ExclusiveMaximum(limit):
            return f"must be below {limit}"
        case Kind.MultipleOf(step):
            return f"must be a multiple of {step}"
        case Kind.OneOfMultipleValid(context):
            return f"fits {sum(not errors for errors in context)} alternatives instead of one"
        case Kind.Not():
            return "must not match the schema of `not`"
        case Kind.Format("regex"):
            return (
                f"{error.instance!r} is not a regular expression that can be matched in bounded time: it is malformed, "
                "very large, or has backreferences or lookaround"
            )
        case _:
            return _cut(error.message)


def _place(root: str, path: Sequence[str | int]) -> str:
    if root.startswith("#"):
        return "/".join([root, *map(str, path)])
    return root + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return "number"


def _shown(value: Any) -> str:
    return _cut(msgspec.json.encode(value).decode())


def _cut(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]} ..."


def _depth(value: Any) -> int:
    """Return how deep a value is nested; a scalar has depth 0."""
    depth, level = 0, [value]
    while level := [
        inner
        for one in level
        if isinstance(one, dict | list)
        for inner in (one.values() if isinstance(one, dict) else one)
    ]:
        depth += 1
    return depth


def _expansion(schema: Schema) -> int:
    """Return the most schemas that one value is checked against. Raise ConfigError if they are too many."""
    known: dict[str, int] = {}
    most, waiting = 1, [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            most = max(most, _applied(one, schema, known))
        if isinstance(one, dict | list):
            waiting += one.values() if isinstance(one, dict) else one
    if most > _MAX_EXPANSION:
        raise ConfigError("its references lead to so many schemas that a check could take very long")
    return most


def _applied(one: Any, root: Schema, known: dict[str, int]) -> int:
    """Count the schemas that apply to the same value as ``one``; ``known`` has the counts of references."""
    count = 1
    for keyword, inner in one.items() if isinstance(one, dict) else ():
        match keyword, inner:
            case "allOf" | "anyOf" | "oneOf", list():
                count += sum(_applied(part, root, known) for part in inner)
            case "dependentSchemas", dict():
                count += sum(_applied(part, root, known) for part in inner.values())
            case "not" | "if" | "then" | "else", _:
                count += _applied(inner, root, known)
            case "$ref", str():
                if inner not in known:
                    known[inner] = 1  # A cycle is followed once.
                    known[inner] = _applied(_target(root, inner), root, known)
                count += known[inner]
            case _:
                pass
    return count


def _target(root: Schema, reference: str) -> Any:
    place: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        try:
            place = place[int(name)] if isinstance(place, list) else place[name]
        except (KeyError, IndexError, ValueError, TypeError):
            return None  # Inside a schema with an id of its own.
    return place
