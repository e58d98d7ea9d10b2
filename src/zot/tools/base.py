"""Tool interface, argument decoding, file versions the model has read, and tools that load on their first call."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import msgspec

from zot.encoding import explain, thread_safe_type
from zot.errors import ToolFailed
from zot.files import sha256
from zot.messages import ImageBlock, TextBlock, ToolSpec
from zot.store import FileChanged

if TYPE_CHECKING:
    from zot.events import McpServerState
    from zot.panels import CommandAnswer, CommandInfo, ResourceInfo
    from zot.questions import Question, QuestionReply

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

    async def ask(self, question: Question) -> QuestionReply:
        """Ask the user while the tool runs, and return the answer; if no user can be asked, a refusal at once."""
        from zot.questions import DECLINED  # Imported lazily: few tools ask.

        return DECLINED

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
    """Source of further tools and commands, which may become known while a session runs: its MCP servers."""

    def attach(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever `states`, `commands` or `resources` change."""

    def states(self) -> Sequence[McpServerState]:
        """Return the state of each server."""

    def commands(self) -> Sequence[CommandInfo]:
        """Return the slash commands known now."""

    def resources(self) -> Sequence[ResourceInfo]:
        """Return the resources known now, which prompts can mention."""

    async def run_command(self, name: str, args: str) -> CommandAnswer:
        """Run a command. Raise NoSuchCommand if there is no such command, UserError if it fails."""

    def begin(self) -> None:
        """Look for tools in the background: the model has begun to answer. Returns at once; idempotent."""

    def tools(self, window: int) -> Sequence[Tool]:
        """Return the tools known now, for a model with a context of ``window`` tokens; 0 if unknown.

        Those found later come after those returned before.
        """


def decode_args(args: dict[str, Any], kind: type[T]) -> T:
    """Return ``args`` converted to ``kind``. Raise ToolFailed that names the invalid field."""
    try:
        return msgspec.convert(args, thread_safe_type(kind), strict=True)
    except msgspec.ValidationError as exc:
        raise ToolFailed(f"invalid arguments: {explain(exc)}") from exc


class UndeclaredArgument(msgspec.Struct, frozen=True):
    """Argument that a tool's schema does not declare, as `options.path`, and the ones declared in its place."""

    name: str
    declared: tuple[str, ...]

    def __str__(self) -> str:
        return f"no argument {self.name!r}; it has: {', '.join(self.declared) or 'none'}"


def undeclared_argument(schema: Mapping[str, Any], args: Mapping[str, Any]) -> UndeclaredArgument | None:
    """Return the first argument that ``schema`` does not declare, at any depth; None if it declares all.

    Stricter than JSON Schema: an object that lists properties accepts no others, unless `additionalProperties` is true
    or a schema, or there are `patternProperties`. An object that lists nothing accepts all. In a composed schema the
    properties of each part count for the whole, and so does `additionalProperties: false`.
    """
    schemas = _SchemaParts(schema)
    waiting: list[tuple[str, Sequence[Any], Any]] = [("", [schema], args)]
    while waiting:
        place, parts, value = waiting.pop()
        if isinstance(value, Mapping):
            declared = schemas.of(parts)
            for name, inner in value.items():
                if name not in declared.properties and not declared.is_open:
                    return UndeclaredArgument(place + name, tuple(place + known for known in declared.properties))
                waiting.append((f"{place}{name}.", declared.properties.get(name, declared.others), inner))
        elif isinstance(value, list):
            # Those of a tuple may each have a schema of its own; a property of one is accepted in all.
            inside = schemas.of(parts).items
            waiting += [(place, inside, inner) for inner in value]
    return None


class _Declared:
    """Schemas of the properties and items that a schema declares; ``others`` are for properties without a name."""

    def __init__(self) -> None:
        self.properties: dict[str, list[Any]] = {}
        self.others: list[Any] = []
        self.items: list[Any] = []
        self._lists = False
        self._opens = False
        self._excludes = False
        self._has_patterns = False

    @property
    def is_open(self) -> bool:
        if self._excludes or self._has_patterns:
            return self._has_patterns
        return self._opens or not self._lists

    def add(self, part: Mapping[str, Any]) -> None:
        properties = part.get("properties")
        if isinstance(properties, Mapping):
            self._lists = True
            for name, schema in properties.items():
                self.properties.setdefault(name, []).append(schema)
        self._has_patterns = self._has_patterns or bool(part.get("patternProperties"))
        for key in ("additionalProperties", "unevaluatedProperties"):
            match part.get(key):
                case False:
                    self._excludes = True
                case True:
                    self._opens = True
                case Mapping() as schema:
                    self._opens = True
                    self.others.append(schema)
                case _:
                    pass
        for key in ("items", "prefixItems", "additionalItems", "unevaluatedItems"):
            inner = part.get(key)
            self.items += inner if isinstance(inner, list) else [inner]


class _SchemaParts:
    """A JSON Schema by its parts: alternatives and references inside it are followed, others declare nothing."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[tuple[int, ...], _Declared] = {}

    def of(self, schemas: Sequence[Any]) -> _Declared:
        """Return what ``schemas`` declare together."""
        key = tuple(map(id, schemas))
        if key not in self._known:
            self._known[key] = self._read(schemas)
        return self._known[key]

    def _read(self, schemas: Sequence[Any]) -> _Declared:
        declared = _Declared()
        waiting = [*reversed(schemas)]
        seen: set[int] = set()
        while waiting:
            part = waiting.pop()
            if not isinstance(part, Mapping) or id(part) in seen:
                continue
            seen.add(id(part))
            declared.add(part)
            waiting += [part.get("if"), part.get("then"), part.get("else"), self._referred(part.get("$ref"))]
            for key in ("allOf", "anyOf", "oneOf"):
                if isinstance(part.get(key), list):
                    waiting += reversed(part[key])
            if isinstance(part.get("dependentSchemas"), Mapping):
                waiting += part["dependentSchemas"].values()
        return declared

    def _referred(self, reference: Any) -> Any:
        """Return the schema at a JSON pointer such as `#/$defs/place`; None for other references."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found: Any = self._root
        for step in filter(None, reference[1:].split("/")):
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        return found


def to_utf8(text: str, field: str) -> bytes:
    """Encode ``text``. Raise ToolFailed if it has a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise ToolFailed(f"invalid arguments: {field} has a lone surrogate at character {exc.start}") from exc


class CannotConfine(ToolFailed):
    """The tool did not run, because this system has no sandbox for it. ``why`` is a clause for the user."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


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


#: Two identities of a file: its directory's device and inode with its name, and its real path. The first survives
#: a move of its directory, the second a replacement.
Keys: TypeAlias = tuple[tuple[int, int, str], str]

#: Versions of small files are hashes of their content. Larger ones use the file's status, which is cheaper, but also
#: changes when the same content is written again.
MAX_HASHED_BYTES = 4 * 1024 * 1024
MAX_FILES = 10_000
_SLICE_BYTES = 256 * 1024


class ReadState:
    """Version of each file that the model last read or wrote in a session."""

    def __init__(self) -> None:
        self._versions: dict[tuple[int, int, str] | str, bytes] = {}

    def __contains__(self, keys: Keys) -> bool:
        return any(key in self._versions for key in keys)

    def note(self, keys: Keys, version: bytes) -> None:
        """Record the version that the model has seen. Evicts the oldest of very many files."""
        for key in keys:
            self._versions.pop(key, None)
            self._versions[key] = version
        while len(self._versions) > MAX_FILES * len(keys):
            del self._versions[next(iter(self._versions))]

    def forget(self, keys: Keys) -> None:
        """Remove a file that is gone."""
        for key in keys:
            self._versions.pop(key, None)

    def is_stale(self, keys: Keys, version: bytes) -> bool:
        """Return whether the model has seen another version of the file. An unseen file is not stale."""
        return any(self._versions.get(key, version) != version for key in keys)


async def version(fd: int) -> bytes:
    """Return the version of an open file. Yields to the event loop while hashing."""
    about = os.fstat(fd)
    if about.st_size > MAX_HASHED_BYTES:
        return version_from_status(about)
    digest, position = sha256(), 0
    while data := os.pread(fd, _SLICE_BYTES, position):
        digest.update(data)
        position += len(data)
        await asyncio.sleep(0)
    return digest.digest()


def version_of(data: bytes, about: os.stat_result) -> bytes:
    """Return the version of a file with the whole content ``data``, equal to `version`."""
    return version_from_status(about) if len(data) > MAX_HASHED_BYTES else sha256(data).digest()


def version_from_status(about: os.stat_result) -> bytes:
    """Return a version from a file's status. Unlike the mtime, the ctime cannot be set back."""
    return f"{about.st_ino} {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}".encode()
