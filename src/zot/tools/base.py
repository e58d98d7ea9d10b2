"""Tool interface, argument decoding, and tools that load on their first call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from zot.encoding import explain, thread_safe_type
from zot.errors import ToolFailed
from zot.messages import ImageBlock, TextBlock, ToolSpec
from zot.store import FileChanged

Output: TypeAlias = tuple[TextBlock | ImageBlock, ...]
T = TypeVar("T", bound=msgspec.Struct)


class ToolFailedWithOutput(ToolFailed):
    """Failure of a tool whose ``output`` the model gets, images included."""

    def __init__(self, output: Output) -> None:
        super().__init__("\n".join(block.text for block in output if isinstance(block, TextBlock)))
        self.output = output


class CallReporter:
    """Receiver of the reports of a running tool call. This one drops them: the call is neither shown nor recorded."""

    #: Whether changes of files are recorded: a call then awaits `writing` before each.
    keeps_changes = False

    async def progress(self, text: str) -> None:
        """Show ``text`` while the tool runs. Waits for slow subscribers."""

    async def writing(self, change: FileChanged) -> None:
        """Record a change that the call is about to make in a file."""

    def last_words(self, text: str) -> None:
        """Set the result of a cancelled call for the model, in place of a note that it was aborted."""


class ToolContext(msgspec.Struct, frozen=True):
    """Surroundings of a tool call.

    Background processes of a call end with the first of its ``owners``: keys of a session and a run, see `Processes`.
    """

    cwd: str
    env: Mapping[str, str]
    owners: tuple[str, ...] = ()
    reporter: CallReporter = CallReporter()


class Tool(Protocol):
    """Tool that the model can call. Stateless between calls; safe to run in parallel with itself."""

    @property
    def spec(self) -> ToolSpec: ...

    @property
    def read_only(self) -> bool:
        """True if calls change nothing, so that several may run in parallel."""

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Run one call. Raise ToolFailed with a text for the model, or ToolFailedWithOutput for an output with images.

        When cancelled, leave no process.
        """


class ToolSource(Protocol):
    """Source of further tools, which may become known while a session runs."""

    def begin(self) -> None:
        """Look for tools in the background: a prompt has arrived. Returns at once; idempotent."""

    def tools(self) -> Sequence[Tool]:
        """Return the tools known now. Those found later come after those returned before."""


def decode_args(args: dict[str, Any], kind: type[T]) -> T:
    """Return ``args`` converted to ``kind``. Raise ToolFailed that names the invalid field."""
    try:
        return msgspec.convert(args, thread_safe_type(kind), strict=True)
    except msgspec.ValidationError as exc:
        raise ToolFailed(f"invalid arguments: {explain(exc)}") from exc


def unknown_argument(schema: Mapping[str, Any], args: Mapping[str, Any]) -> str:
    """Return the first argument that ``schema`` excludes with `additionalProperties: false`, at any depth; "" if none.

    A schema that only lists its properties accepts others, as JSON Schema says: extensions may rely on that.
    """
    properties = schema.get("properties")
    known: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    for name, value in args.items():
        if name not in known:
            if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
                return name
            continue
        inner = known[name]
        if isinstance(inner, Mapping) and (found := _unknown_in(inner, value)):
            return f"{name}.{found}"
    return ""


def _unknown_in(schema: Mapping[str, Any], value: Any) -> str:
    if isinstance(value, Mapping):
        return unknown_argument(schema, value)
    items = schema.get("items")
    if isinstance(value, list) and isinstance(items, Mapping):
        return next((found for one in value if (found := _unknown_in(items, one))), "")
    return ""


def to_utf8(text: str, field: str) -> bytes:
    """Encode ``text``. Raise ToolFailed if it has a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise ToolFailed(f"invalid arguments: {field} has a lone surrogate at character {exc.start}") from exc


class LazyTool:
    """Tool created by ``make`` on its first call; ``spec`` and ``read_only`` are known before."""

    def __init__(self, spec: ToolSpec, make: Callable[[], Tool], *, read_only: bool = False) -> None:
        self.spec = spec
        self.read_only = read_only
        self._make = make
        self._made: Tool | None = None

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Run the tool as `Tool.run` specifies."""
        if self._made is None:
            self._made = self._make()
        return await self._made.run(args, context)
