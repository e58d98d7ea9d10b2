"""Values that fit a JSON Schema, as far as that can be done without guessing: what to call a tool with to try it."""

from __future__ import annotations

import math
from typing import Any, TypeVar

T = TypeVar("T")
#: A schema may refer to itself.
_MAX_DEPTH = 8
#: No try needs more of anything.
_MANY = 1000


def sample(schema: dict[str, Any]) -> dict[str, Any]:
    """Return arguments that ``schema`` asks for: what is required, and nothing else."""
    value = _value(schema, schema, 0)
    return value if isinstance(value, dict) else {}


def _value(schema: Any, root: dict[str, Any], depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return {}
    if "const" in schema:
        return schema["const"]
    if "default" in schema:
        return schema["default"]
    for key in ("examples", "enum"):
        if isinstance(known := schema.get(key), list) and known:
            return known[0]
    if isinstance(reference := schema.get("$ref"), str):
        return _value(_referred(reference, root), root, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(choices := schema.get(key), list) and choices and "type" not in schema:
            return _value(choices[0], root, depth + 1)
    return _of_type(schema, root, depth)


def _of_type(schema: dict[str, Any], root: dict[str, Any], depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    match kind:
        case "object":
            properties = _of(schema, "properties", dict, {})
            names = [name for name in _of(schema, "required", list, []) if isinstance(name, str)]
            return {name: _value(properties.get(name, {}), root, depth + 1) for name in names}
        case "array":
            count = min(_of(schema, "minItems", int, 0), _MANY)
            return [_value(schema.get("items"), root, depth + 1)] * count
        case "string":
            text = "text".ljust(min(_of(schema, "minLength", int, 0), _MANY), "x")
            return text[: max(0, _of(schema, "maxLength", int, len(text)))]
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return False
        case _:
            return None


def _number(schema: dict[str, Any]) -> int:
    """Return a whole number within the limits that a schema has; 1 if that is."""
    limits = [limit for key, more in (("minimum", 0), ("exclusiveMinimum", 1)) for limit in _limits(schema, key, more)]
    if limits:
        return max(limits)
    limits = [limit for key, more in (("maximum", 0), ("exclusiveMaximum", -1)) for limit in _limits(schema, key, more)]
    return min(1, *limits) if limits else 1


def _limits(schema: dict[str, Any], key: str, more: int) -> list[int]:
    limit = schema.get(key)
    if not isinstance(limit, int | float) or not math.isfinite(limit):
        return []
    return [(math.floor(limit) if more < 0 or key == "maximum" else math.ceil(limit)) + more]


def _of(schema: dict[str, Any], key: str, kind: type[T], default: T) -> T:
    """Return what a schema says, if it is what it should be."""
    value = schema.get(key)
    return value if isinstance(value, kind) else default


def _referred(reference: str, root: dict[str, Any]) -> Any:
    """Return what a reference inside of the schema leads to."""
    found: Any = root
    for name in reference.removeprefix("#").split("/")[1:]:
        found = found.get(name) if isinstance(found, dict) else None
    return found
