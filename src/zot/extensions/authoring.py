"""Tools for extension authors: scaffold, test bench, sample arguments and protocol checks."""

from __future__ import annotations

import asyncio
import math
import os
import re
import shutil
from collections.abc import Collection, Iterator
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from zot.encoding import thread_safe_type
from zot.errors import UserError
from zot.extensions.manifest import Manifest
from zot.extensions.peer import (
    Acknowledged,
    Greeted,
    PeerBroken,
    PeerEnded,
    PeerEvent,
    ProtocolViolation,
    Settled,
)
from zot.extensions.peer_connection import ExtensionConnection, PeerObserver
from zot.extensions.sources import ProgramSource
from zot.text import printable
from zot.wire import extension as wire

_TEMPLATES = os.path.join(os.path.dirname(__file__), "templates")
#: Keeps linters and packagers from treating templates as source.
_SUFFIX = ".txt"
_HINTS = {
    "python": "It is `main.py`, and uses `zot.ext`. zot runs it with its own Python: nothing has to be installed.",
    "typescript": "Change `main.ts`, then run `npm install` once and `npm run build`, which makes `main.js` of it.",
    "shell": "It is `main.sh`, and needs `jq`.",
    "go": "Change `main.go`, then build it: `go build -o bin/@NAME@ .`",
}
#: Build commands, run in the extension's directory.
BUILDS = {"go": ("go", "build", "-o", "bin/@NAME@", ".")}
T = TypeVar("T")
#: Schemas may be recursive.
_MAX_DEPTH = 8
#: Limit of generated lengths and counts.
_MANY = 1000
#: Correct, incorrect, or worth knowing.
Verdict: TypeAlias = Literal["ok", "wrong", "note"]


def build_of(language: str, name: str) -> list[str]:
    """Return the build command of a new extension; [] if it needs none."""
    return [_filled(word, name, language) for word in BUILDS.get(language, ())]


def scaffold(name: str, language: str, directory: str) -> list[str]:
    """Create the extension ``name`` in ``directory``; return its files. Raise UserError, leaving no files.

    The directory may exist if it is empty.
    """
    try:
        msgspec.convert({"name": name, "exec": "x"}, thread_safe_type(Manifest))
    except msgspec.ValidationError:
        raise UserError(
            f"{printable(name)!r} is not a valid name: use at most 64 letters, digits, dots, dashes and underscores"
        ) from None
    existed = os.path.isdir(directory)
    if os.path.lexists(directory) and not (existed and not os.listdir(directory)):
        raise UserError(f"{printable(directory)} exists already; name another directory: zot ext new NAME DIR")
    try:
        os.makedirs(directory, exist_ok=True)
        return [_write(directory, path, _filled(text, name, language)) for path, text in _files(language)]
    except OSError as problem:
        if not existed:
            shutil.rmtree(directory, ignore_errors=True)
        raise UserError(f"{printable(str(problem.filename or directory))}: {problem.strerror}") from None


def _files(language: str) -> Iterator[tuple[str, str]]:
    """Yield the names and contents of the templates."""
    place = os.path.join(_TEMPLATES, language)
    for path in [
        *(os.path.join(place, name) for name in sorted(os.listdir(place))),
        f"{_TEMPLATES}/README.md{_SUFFIX}",
    ]:
        with open(path, encoding="utf-8") as file:
            yield os.path.basename(path).removesuffix(_SUFFIX), file.read()


def _filled(text: str, name: str, language: str) -> str:
    # The suffix avoids the names of zot's own tools.
    tool = re.sub(r"[^A-Za-z0-9_]", "_", f"{'_' if name[0].isdigit() else ''}{name[:57]}_greet")
    words = {"HINT": _HINTS[language], "NAME": name, "TOOL": tool, "PACKAGE": name.lower().strip("._-")}
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


def _write(directory: str, name: str, text: str) -> str:
    path = os.path.join(directory, name)
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
    if text.startswith("#!"):
        os.chmod(path, os.stat(path).st_mode | 0o111 & ~_umask())
    return name


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def sample(schema: dict[str, Any]) -> dict[str, Any]:
    """Return sample arguments for ``schema``: only the required ones."""
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
        return _value(_resolved(reference, root), root, depth + 1)
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
            properties = _keyword(schema, "properties", dict, {})
            names = [name for name in _keyword(schema, "required", list, []) if isinstance(name, str)]
            return {name: _value(properties.get(name, {}), root, depth + 1) for name in names}
        case "array":
            count = min(_keyword(schema, "minItems", int, 0), _MANY)
            return [_value(schema.get("items"), root, depth + 1)] * count
        case "string":
            text = "text".ljust(min(_keyword(schema, "minLength", int, 0), _MANY), "x")
            return text[: max(0, _keyword(schema, "maxLength", int, len(text)))]
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return False
        case _:
            return None


def _number(schema: dict[str, Any]) -> int:
    """Return an integer within the limits of a schema; 1 if possible."""
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


def _keyword(schema: dict[str, Any], key: str, kind: type[T], default: T) -> T:
    """Return the value of a keyword if it has the expected type."""
    value = schema.get(key)
    return value if isinstance(value, kind) else default


def _resolved(reference: str, root: dict[str, Any]) -> Any:
    """Resolve a reference within the schema."""
    found: Any = root
    for name in reference.removeprefix("#").split("/")[1:]:
        found = found.get(name) if isinstance(found, dict) else None
    return found


class BenchObserver(PeerObserver):
    """Base class of observers of a `TestBench`: knows whether the extension is ready, and how it ended."""

    def __init__(self) -> None:
        #: Set when the extension is ready, timed out, or failed.
        self.settled = asyncio.Event()
        #: Its last peer_event, once it has ended.
        self.ended: PeerEnded | None = None

    def on_peer_event(self, peer_event: PeerEvent) -> None:
        """Note whether the extension is ready or has ended."""
        match peer_event:
            case Settled() | PeerBroken():
                self.settled.set()
            case PeerEnded():
                self.ended = peer_event
                self.settled.set()
            case _:
                pass


class TestBench:
    """Runner of an extension under test. Unlike a session it does not restart one that crashed.

    Its standard error goes to ``errors``, its events to the ``observer``.
    """

    def __init__(self, source: ProgramSource, errors: int, observer: BenchObserver) -> None:
        self.manifest = source.manifest
        self.deadlines = source.settings.deadlines
        self.observer = observer
        self._loop = asyncio.get_running_loop()
        self.peer = source.peer(source.guarded(), now=self._loop.time())
        self.connection = ExtensionConnection(self.peer, observer)
        self._running = self._loop.create_task(self.connection.run(source, errors), name="zot extension")

    def now(self) -> float:
        """Return the event loop's time in seconds."""
        return self._loop.time()

    async def over(self) -> None:
        """Wait until none of its processes is left."""
        await asyncio.wait({self._running})

    async def close(self) -> None:
        """Shut it down: by request, then SIGTERM, then SIGKILL. Returns when no process is left; idempotent."""
        self.connection.shut_down()
        try:
            await asyncio.shield(self._running)
        except asyncio.CancelledError:
            self._running.cancel()
            await asyncio.wait({self._running})
            raise


class Finding(msgspec.Struct, frozen=True):
    verdict: Verdict
    text: str


class ProtocolCheck(BenchObserver):
    """Protocol check of an extension, and observer of its bench. ``failures`` counts the incorrect findings.

    ``taken`` are the names of zot's own tools.
    """

    def __init__(self, *, taken: Collection[str]) -> None:
        super().__init__()
        self.failures = 0
        self._taken = taken
        self._reported: set[Finding] = set()
        self._broken = False
        self._acknowledged = False
        self._said_ready = False

    def tell(self, finding: Finding) -> None:
        """Receive a finding, each once."""

    def on_peer_event(self, peer_event: PeerEvent) -> None:
        """Record the peer_events that no test requested."""
        super().on_peer_event(peer_event)
        match peer_event:
            case Greeted(hello=hello):
                self._report("ok", f"said hello as {hello.name} {hello.version}".rstrip())
            case Settled(said=said):
                self._said_ready = said
            case ProtocolViolation(reason=reason):
                self._report("wrong", reason)
            case PeerBroken(reason=reason):
                self._broken = True
                self._report("wrong", reason)
            case PeerEnded(reason=reason, wanted=False) if not self._broken:
                self._report("wrong", reason)
            case Acknowledged():
                self._acknowledged = True
            case _:
                pass

    async def run(self, bench: TestBench, *, call_tools: bool) -> None:
        """Test everything it registered, then shut it down. Stops early if it breaks."""
        await bench.observer.settled.wait()
        if bench.peer.phase.running:
            self._check_registrations(bench)
            await self._check_conversation(bench)
            await self._run_commands(bench)
            await self._call_tools(bench, call=call_tools)
        await self._check_shutdown(bench)

    def _check_registrations(self, bench: TestBench) -> None:
        """Check its registrations."""
        peer = bench.peer
        if not self._said_ready and peer.tools:
            self._report("note", f"did not say ready: a first prompt waits {bench.deadlines.ready_s:g} s for its tools")
        for command in peer.commands:
            self._report("ok", f"registered the command /{command.name}")
        for tool in peer.tools:
            if tool.name in self._taken:
                self._report("wrong", f"registered the tool {tool.name}, but zot has one of that name, which is used")
            else:
                self._report("ok", f"registered the tool {tool.name}")
            if not tool.description:
                self._report("note", f"the tool {tool.name} has no description: the model will not know what it is for")

    async def _check_conversation(self, bench: TestBench) -> None:
        """Play a short conversation: notifications and decisions."""
        call_args = {"command": "true"}
        bench.connection.notify(wire.Event("session_start"))
        await self._ask(bench, "turn_start", step=1)
        bench.connection.notify(wire.Event("turn_start", step=1))
        await self._ask(bench, "tool_call", tool_id="call-1", tool_name="bash", tool_args=call_args)
        bench.connection.notify(wire.Event("tool_call", tool_id="call-1", tool_name="bash", tool_args=call_args))
        await self._ask(bench, "assistant_message", text="Hello.")
        bench.connection.notify(wire.Event("assistant_message", text="Hello."))
        bench.connection.notify(wire.Event("turn_end", stop="end_turn"))

    async def _ask(self, bench: TestBench, event: wire.Intercepted, **about: object) -> None:
        if not bench.peer.decides(event):
            return
        decision = await bench.connection.decide(event, **about)
        if decision.failure:
            self._report("wrong", f"intercept {event}: {decision.failure}")
            return
        changed = decision.modified_args is not None or decision.replace_text is not None
        what = "blocks it" if decision.block else "changes it" if changed else "allows it"
        self._report("ok", f"intercept {event}: {what}")

    async def _run_commands(self, bench: TestBench) -> None:
        for command in bench.peer.commands:
            answered = await bench.connection.run_command(command.name, "")
            response = answered.response
            if answered.failure:
                self._report("wrong", f"command /{command.name}: {answered.failure}")
                continue
            self._report("ok", f"command /{command.name}: answered with {response.action}")
            if response.error:
                self._report("note", f"command /{command.name}: without arguments it says: {response.error}")
            if response.action == "open_panel" and response.open_panel is not None:
                bench.connection.send_key(response.open_panel.id, "down")

    async def _call_tools(self, bench: TestBench, *, call: bool) -> None:
        tools = bench.peer.tools
        if tools and not call:
            names = ", ".join(tool.name for tool in tools)
            self._report("note", f"not called, since tools act: {names}; --call-tools calls them")
            return
        for tool in tools:
            args = sample(tool.schema)
            answered = await bench.connection.call_tool(tool.name, args)
            with_args = wire.encode_frame(wire.ToolCall("1", tool.name, args)).partition(b'"args":')[2][:-2].decode()
            if answered.failure:
                self._report("wrong", f"tool {tool.name} {with_args}: {answered.failure}")
            else:
                how = "answered with an error" if answered.is_error else "answered"
                self._report("note" if answered.is_error else "ok", f"tool {tool.name} {with_args}: {how}")

    async def _check_shutdown(self, bench: TestBench) -> None:
        """Shut it down and check that it ends as it should."""
        told = bench.peer.phase.running
        deadline_s = bench.deadlines.shutdown_s
        since = bench.now()
        await bench.close()
        if not told or self.ended is None or not self.ended.wanted:
            return
        if not self._acknowledged:
            self._report("wrong", "did not say shutdown_ack")
        if bench.now() - since >= deadline_s:
            self._report("wrong", f"did not exit within {deadline_s:g} s of shutdown, and had to be killed")
        elif self.ended.reason != "exited with 0":
            self._report("wrong", f"{self.ended.reason} after the shutdown request")
        elif self._acknowledged:
            self._report("ok", "acknowledged the shutdown and exited")

    def _report(self, verdict: Verdict, text: str) -> None:
        finding = Finding(verdict, printable(text))
        if finding not in self._reported:  # Repetitions add nothing.
            self._reported.add(finding)
            self.failures += verdict == "wrong"
            self.tell(finding)
