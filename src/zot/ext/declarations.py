"""Declarations of an extension by name: handlers and their answers, tools and their arguments from type hints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from textwrap import dedent
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, get_type_hints

import msgspec

from zot.encoding import thread_safe_type
from zot.wire import extension as wire
from zot.wire.extension import CommandResponse, ContentBlock, EventInterceptResponse

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
        return msgspec.field(default_factory=default.copy)
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


Draw: TypeAlias = Callable[[], Iterable[str]]
_Handler = TypeVar("_Handler", bound=Callable[..., Any])
Handler: TypeAlias = Callable[..., Any]
#: Sends frames in one write.
Send: TypeAlias = Callable[..., None]
#: Placeholder of the id, which is set when the answer is sent.
_NO_ID = "-"


class ToolError(Exception):
    """Raise it in a tool: the model gets its text as the error of the call."""


class Image(msgspec.Struct, frozen=True):
    """Image returned by a tool."""

    data: bytes
    mime_type: str = "image/png"


#: A tool may also return any other JSON value: the model gets it as JSON text.
ToolOutput: TypeAlias = str | Image | list[str | Image] | None


class Response(msgspec.Struct, frozen=True):
    """Action of zot after a command. Create it with `prompt`, `insert`, `display`, `noop` or `Panel.open`."""

    frame: CommandResponse


class Decision(msgspec.Struct, frozen=True):
    """Decision about an event. Create it with `allow`, `block`, `modify` or `replace`."""

    frame: EventInterceptResponse


def prompt(text: str) -> Response:
    """Start a run with ``text`` as the user's prompt."""
    if not text.strip():
        raise ValueError("a prompt must not be empty")
    return Response(CommandResponse(_NO_ID, "prompt", prompt=text))


def insert(text: str) -> Response:
    """Insert ``text`` into the editor at the cursor, for the user to continue."""
    return Response(CommandResponse(_NO_ID, "insert", insert=text))


def display(text: str) -> Response:
    """Show a note to the user only; the model does not see it."""
    return Response(CommandResponse(_NO_ID, "display", display=text))


def noop() -> Response:
    """Do nothing more: the handler has done everything."""
    return Response(CommandResponse(_NO_ID))


def allow(note: str = "") -> Decision:
    """Allow the event unchanged. Returning None does the same."""
    return Decision(EventInterceptResponse(_NO_ID, reason=note))


def block(reason: str) -> Decision:
    """Block the event. The model gets the reason for a tool call, the user for other events."""
    return Decision(EventInterceptResponse(_NO_ID, block=True, reason=reason))


def modify(args: dict[str, Any], note: str = "") -> Decision:
    """Run the tool with these arguments instead. Raise TypeError if they are not JSON."""
    msgspec.json.encode(args)
    return Decision(EventInterceptResponse(_NO_ID, reason=note, modified_args=args))


def replace(text: str, note: str = "") -> Decision:
    """Show the user another text than the model's. An empty one shows nothing."""
    if not text:
        return block(note or "the message was removed")
    return Decision(EventInterceptResponse(_NO_ID, reason=note, replace_text=text))


def content_of(output: Any) -> tuple[ContentBlock, ...]:
    """Return a tool's output as content blocks."""
    pieces: Iterable[Any] = output if _is_pieces(output) else () if output is None else (output,)
    return tuple(map(_block, pieces))


def _is_pieces(output: Any) -> bool:
    return isinstance(output, list) and bool(output) and all(isinstance(piece, str | Image) for piece in output)


def _block(piece: Any) -> ContentBlock:
    if isinstance(piece, Image):
        from base64 import b64encode  # Imported lazily: not needed before hello, and few tools return images.

        return ContentBlock("image", mime_type=piece.mime_type, data=b64encode(piece.data).decode())
    return ContentBlock("text", piece if isinstance(piece, str) else msgspec.json.encode(piece).decode())


class Panel:
    """Panel, created by `Extension.panel`. Its function returns its lines; ``title`` and ``footer`` may change.

    It is rendered again after each key press while it is open.
    """

    def __init__(self, panel_id: str, draw: Draw, title: str, footer: str, send: Callable[..., None]) -> None:
        self.id = panel_id
        self.title = title
        self.footer = footer
        self.is_open = False
        self._draw = draw
        self._send: Callable[[wire.AnyFromExtension], None] = send
        #: Called with the key and, for "rune", the character.
        self.on_key: Callable[..., Any] | None = None
        #: Called after the user closed the panel.
        self.on_close: Callable[..., Any] | None = None

    def __call__(self) -> Iterable[str]:
        """Return the lines to show."""
        return self._draw()

    def key(self, handler: _Handler) -> _Handler:
        """Decorate ``handler(key, text)``, which gets the keys pressed in the panel."""
        self.on_key = handler
        return handler

    def closed(self, handler: _Handler) -> _Handler:
        """Decorate ``handler()``, which is called after the user closed the panel."""
        self.on_close = handler
        return handler

    def open(self) -> Response:
        """Return the response of a command that opens the panel."""
        self.is_open = True
        panel = wire.Panel(self.id, self.title, tuple(self._draw()), self.footer)
        return Response(CommandResponse(_NO_ID, "open_panel", open_panel=panel))

    def render(self) -> None:
        """Render the panel again, if it is open. Thread-safe."""
        if self.is_open:
            self._send(wire.PanelRender(self.id, self.title, tuple(self._draw()), self.footer))

    def close(self) -> None:
        """Close the panel, if it is open."""
        if self.is_open:
            self.is_open = False
            self._send(wire.PanelClose(self.id))


class DeclaredCommand(NamedTuple):
    """Registration of a command with its handler."""

    frame: wire.RegisterCommand
    handler: Handler


class DeclaredTool(NamedTuple):
    """Registration of a tool with its handler; ``arguments`` is None if they are not checked."""

    frame: wire.RegisterTool
    handler: Handler
    arguments: Arguments | None


class Declarations:
    """Declarations by name. Those made while the extension runs are sent at once."""

    def __init__(self) -> None:
        self.commands: dict[str, DeclaredCommand] = {}
        self.tools: dict[str, DeclaredTool] = {}
        self.events: dict[wire.EventName, list[Handler]] = {}
        self.interceptors: dict[wire.Intercepted, Handler] = {}
        self.panels: dict[str, Panel] = {}
        self.setup: list[Handler] = []
        self.at_end: list[Handler] = []
        self.host: wire.HelloAck | None = None
        self.send: Send | None = None
        self.subscribed = False
        self._unsent: list[wire.Notify] = []

    def add_command(self, command: DeclaredCommand) -> None:
        _must_be_new("command", command.frame.name, self.commands)
        self.commands[command.frame.name] = command
        self.tell(command.frame)

    def add_tool(self, tool: DeclaredTool) -> None:
        _must_be_new("tool", tool.frame.name, self.tools)
        self.tools[tool.frame.name] = tool
        self.tell(tool.frame)

    def add_event(self, event: wire.EventName, handler: Handler) -> None:
        self._must_not_be_subscribed()
        self.events.setdefault(event, []).append(handler)

    def add_interceptor(self, event: wire.Intercepted, handler: Handler) -> None:
        self._must_not_be_subscribed()
        _must_be_new("interceptor of", event, self.interceptors)
        self.interceptors[event] = handler

    def add_panel(self, panel: Panel) -> None:
        _must_be_new("panel", panel.id, self.panels)
        self.panels[panel.id] = panel

    def tell(self, frame: wire.AnyFromExtension) -> None:
        """Send a frame if the extension runs. Before that, keep notices; registrations are sent at the start anyway."""
        if self.send is not None:
            self.send(frame)
        elif isinstance(frame, wire.Notify):
            self._unsent.append(frame)

    def take_unsent(self) -> list[wire.Notify]:
        """Return the notices from before the start, once."""
        unsent, self._unsent = self._unsent, []
        return unsent

    def _must_not_be_subscribed(self) -> None:
        if self.subscribed:
            raise RuntimeError("events and interceptors must be declared before the extension reports that it is ready")


def _must_be_new(kind: str, name: str, known: Iterable[str]) -> None:
    if name in known:
        raise ValueError(f"there is already a {kind} {name}")
