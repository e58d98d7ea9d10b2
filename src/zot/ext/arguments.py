"""Tool arguments: JSON Schema from type hints and docstrings, and decoding."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent
from typing import Any, Final, get_type_hints

import msgspec

from zot.encoding import thread_safe_type

_PARAMETERS: Final = ("Args:", "Arguments:", "Parameters:")
_SECTIONS: Final = (*_PARAMETERS, "Returns:", "Raises:", "Yields:", "Example:", "Examples:")
_VARIABLE = 0x04 | 0x08  # Code flags of functions with *args or **kwargs.


class ParsedDocstring:
    """Parsed docstring: the description before its first section, and the ``parameters`` by name."""

    def __init__(self, text: str) -> None:
        first, _, rest = text.strip().partition("\n")
        lines = [first, *dedent(rest).rstrip().split("\n")]
        ends = [at for at, line in enumerate(lines) if line.rstrip() in _SECTIONS or line.startswith(":")]
        self.description = "\n".join(line.rstrip() for line in lines[: min(ends, default=len(lines))]).strip()
        self.parameters: dict[str, str] = {}
        self._name, self._depth = "", 0
        section = ""
        for line in lines[min(ends, default=len(lines)) :]:
            if line.rstrip() in _SECTIONS:
                section, self._name, self._depth = line.rstrip(), "", 0
            elif section in _PARAMETERS:
                self._take_argument(line)
            elif not section:
                self._take_field(line)

    def _take_argument(self, line: str) -> None:
        """Parse a line of a section: one indented no deeper than the first begins a parameter."""
        depth = len(line) - len(line.lstrip())
        self._depth = self._depth or depth
        head, colon, said = line.strip().partition(":")
        name = head.partition("(")[0].strip()
        if depth == self._depth and colon and name.isidentifier():
            self._begin(name, said)
        else:
            self._continue(line)

    def _take_field(self, line: str) -> None:
        """Parse a line of a field list: ``:param name: text``, ``:param type name: text``, or a continuation."""
        if not line.startswith(":"):
            self._continue(line)
            return
        field, _, said = line[1:].partition(":")
        words = field.split()
        self._name = ""
        if len(words) > 1 and words[0] == "param":
            self._begin(words[-1], said)

    def _begin(self, name: str, said: str) -> None:
        self._name = name
        self.parameters[name] = said.strip()

    def _continue(self, line: str) -> None:
        if self._name and line.strip():
            self.parameters[self._name] = f"{self.parameters[self._name]} {line.strip()}".strip()


class Arguments:
    """Parameters of a tool function. Raises TypeError if they cannot be described to a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        documented = ParsedDocstring(function.__doc__ or "")
        self.description = documented.description
        self._kind = _kind(function)
        self.schema = _schema(self._kind, documented.parameters)

    def read(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments converted to their types. Raise ValueError."""
        # Lax: models sometimes write "5" for 5.
        values = msgspec.convert(args, thread_safe_type(self._kind), strict=False)
        return {name: getattr(values, name) for name in self._kind.__struct_fields__}


def parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of a function's parameters by name; NODEFAULT for those without.

    Raise TypeError if it cannot be called with all of them by name.
    """
    code = getattr(function, "__code__", None)
    if code is None or hasattr(function, "__wrapped__") or hasattr(function, "__self__"):
        return _inspected(function)
    if code.co_flags & _VARIABLE or code.co_posonlyargcount:
        raise _not_by_name(function)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = getattr(function, "__defaults__", None) or ()
    defaults = dict(zip(names[code.co_argcount - len(given) : code.co_argcount], given, strict=True))
    defaults |= getattr(function, "__kwdefaults__", None) or {}
    return {name: defaults.get(name, msgspec.NODEFAULT) for name in names}


def _inspected(function: Callable[..., Any]) -> dict[str, Any]:
    """Return `parameters` of methods and other callables."""
    import inspect  # Imported lazily: a third of msgspec's import, and plain functions do not need it.

    found = inspect.signature(function).parameters.values()
    if any(one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) for one in found):
        raise _not_by_name(function)
    return {one.name: msgspec.NODEFAULT if one.default is one.empty else one.default for one in found}


def _not_by_name(function: Callable[..., Any]) -> TypeError:
    return TypeError(f"{function!r} is called by name, so it cannot take *args, **kwargs or positional-only parameters")


def _kind(function: Callable[..., Any]) -> type[msgspec.Struct]:
    """Return a struct with a function's parameters as fields."""
    hints = get_type_hints(function, include_extras=True)
    fields = [(name, hints.get(name, Any), _field(default)) for name, default in parameters(function).items()]
    return msgspec.defstruct(getattr(function, "__name__", "Arguments"), fields, kw_only=True)


def _field(default: Any) -> Any:
    """Return a default for a struct field: mutable ones are copied for each call."""
    if isinstance(default, list | dict | set | bytearray):
        from copy import copy  # Imported lazily: not needed before hello.

        return msgspec.field(default_factory=lambda: copy(default))
    return default


def _schema(kind: type[msgspec.Struct], described: dict[str, str]) -> dict[str, Any]:
    (top,), components = msgspec.json.schema_components((kind,))
    schema: dict[str, Any] = _inlined(top, components, ())
    schema.pop("title", None)
    for name, description in described.items():
        field = schema["properties"].get(name)
        if field is not None:
            field.setdefault("description", description)
    return schema


def _inlined(node: Any, components: dict[str, Any], inside: tuple[str, ...]) -> Any:
    """Return a schema without references: not every model service resolves them."""
    if isinstance(node, list):
        return [_inlined(item, components, inside) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" not in node:
        # Some services require the type of an enum of strings.
        words = isinstance(node.get("enum"), list) and all(isinstance(word, str) for word in node["enum"])
        said = {"type": "string"} if words else {}
        return said | {key: _inlined(value, components, inside) for key, value in node.items()}
    name = str(node["$ref"]).rpartition("/")[2]
    if name in inside:
        raise TypeError(f"{name} contains itself: recursive types are not supported")
    rest = {key: value for key, value in node.items() if key != "$ref"}
    return {**_inlined(components[name], components, (*inside, name)), **rest}
