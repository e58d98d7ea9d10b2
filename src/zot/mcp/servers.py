"""MCP servers of one session: started when they are needed, restarted after a crash, and the tools that they offer.

A session opens with this module and the cached lists alone. What talks to a server is loaded when one first starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from zot.encoding import encode
from zot.errors import NoSuchCommand, ProtocolError, ToolFailed, UserError
from zot.events import McpServerState, McpStanding
from zot.mcp.launch import McpFailed, McpLaunch, McpLoginNeeded
from zot.mcp.source import McpSource
from zot.mcp.tool_cache import CachedList, OfferedPrompt, OfferedResource, OfferedTool, ToolCache, selected
from zot.text import printable
from zot.tools.base import CallReporter, LazyTool, Tool
from zot.tools.specs import FIND_TOOLS, READ_RESOURCE

if TYPE_CHECKING:
    import msgspec

    from zot.mcp.server_connection import McpConnection
    from zot.panels import CommandAnswer, CommandInfo, ResourceInfo
    from zot.tools.command_output import Spills

log = logging.getLogger("zot")

#: The longest pause before a server that keeps crashing is started again, and before its changing lists are asked for.
_MAX_PAUSE_S: Final = 60.0
#: The most servers that are started at once in the background.
_AT_ONCE: Final = 8
#: So few tools are always offered directly, and a model's window if it is unknown.
_FEW_TOOLS: Final = 8
_USUAL_WINDOW: Final = 128_000

_OWN: Final = frozenset({FIND_TOOLS.name, READ_RESOURCE.name})


class ManagedServer:
    """One server of a session: its connection, if it runs, and its tools as known from the cache or from itself."""

    def __init__(self, source: McpSource, launch: McpLaunch, cache: ToolCache) -> None:
        self.source = source
        self._launch = launch
        self._cache = cache
        cached = None if cache.is_empty else cache.get(source.digest)
        self.is_current = cached is not None and cache.is_current(cached)
        self.revision = "" if cached is None else cached.revision
        self.tools: Sequence[OfferedTool] = () if cached is None else self._selected(cached)
        self.prompts: Sequence[OfferedPrompt] = () if cached is None else cached.prompts
        self.has_resources = cached is not None and cached.has_resources
        self.resources: Sequence[OfferedResource] = () if cached is None else cached.resources
        #: Called when its state or its tools have changed.
        self.on_change: Callable[[], None] = lambda: None
        self._connection: McpConnection | None = None
        self._starting: asyncio.Task[McpConnection] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._is_outdated = False
        #: How many callers want its lists; they are asked for by one after the other.
        self._lists = 0
        self._listing = asyncio.Lock()
        self._failures = 0
        self._reason = ""
        self._needs_login = False
        self._pause_until = 0.0
        self._closed = False

    @property
    def is_running(self) -> bool:
        """True while its process runs."""
        return self._connection is not None and not self._connection.ended

    @property
    def state(self) -> McpServerState:
        """The server's current state."""
        standing: McpStanding = "running" if self.is_running else "starting" if self._starting is not None else "idle"
        problem = "" if self.is_running else self._reason
        if problem and standing == "idle":
            standing = "login" if self._needs_login else "failed"
        return McpServerState(self.source.name, standing, len(self.tools), printable(problem), self.revision)

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        reporter: CallReporter | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> msgspec.Raw:
        """Return the result of a request; starts the server if it does not run. Raise McpFailed."""
        connection = await self._connected()
        timeout_s = self.source.timeout_s
        try:
            result = await connection.request(method, params, timeout_s=timeout_s, reporter=reporter, headers=headers)
        finally:
            await connection.sweep()
        self._failures = 0
        return result

    async def refresh(self) -> None:
        """Ask the server for its tools, and keep them in the cache. Raise McpFailed."""
        self._lists += 1
        try:
            connection = await self._connected()
            from zot.mcp.listing import list_all  # Imported lazily: most sessions know the lists.

            async with self._listing:
                kept, ttl_s = await list_all(connection)
        finally:
            self._lists -= 1
        await asyncio.to_thread(self._cache.put, self.source.digest, kept, ttl_s)
        before = self.tools, self.prompts, self.has_resources, self.resources
        self.revision, self.is_current, self.tools = kept.revision, True, self._selected(kept)
        self.prompts, self.has_resources, self.resources = kept.prompts, kept.has_resources, kept.resources
        if before != (self.tools, self.prompts, self.has_resources, self.resources):
            self.on_change()

    def refresh_soon(self) -> None:
        """Ask for the tools in the background; a failure is in the log."""
        self._is_outdated = True
        if self._closed or (self._refreshing is not None and not self._refreshing.done()):
            return
        loop = asyncio.get_running_loop()
        self._refreshing = loop.create_task(self._refresh_outdated(), name=f"zot mcp list {self.source.name}")

    async def _refresh_outdated(self) -> None:
        """Ask for the tools until they are current. A server that reports changes again and again waits ever longer."""
        pause_s = 1.0
        while self._is_outdated:
            self._is_outdated = False
            await self.try_refresh()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    async def try_refresh(self) -> None:
        """Ask for the tools; log a failure."""
        try:
            await self.refresh()
        except ToolFailed as problem:
            log.warning("mcp server %s: %s", self.source.name, printable(str(problem)))

    async def close(self) -> None:
        """End the server. Idempotent; afterwards it is not started again."""
        is_first, self._closed = not self._closed, True
        tasks = [task for task in (self._refreshing, self._starting) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._connection is not None:
            if self._connection.ended and is_first:  # It failed since its last use.
                await self._keep_problem(self._connection.ended)
            await self._connection.close()

    async def _keep_problem(self, problem: str) -> None:
        """Keep why it failed for `zot mcp list`; "" once it works."""
        await asyncio.to_thread(self._cache.put_problem, self.source.digest, problem)

    def _selected(self, found: CachedList) -> Sequence[OfferedTool]:
        return selected(found.tools, self.source.tools)

    async def _connected(self) -> McpConnection:
        """Return a running connection, started by the first of its users. Raise McpFailed."""
        if self._closed:
            raise McpFailed("the session is over")
        if self._connection is not None and not self._connection.ended:
            return self._connection
        if self._connection is not None:
            former, self._connection = self._connection, None
            self._failed(former.ended)
            await self._keep_problem(former.ended)
            await former.close()  # Its processes are gone before the next one starts.
        if self._starting is None:
            left = self._pause_until - asyncio.get_running_loop().time()
            if left > 0:
                again = f"after {self._failures} failures in a row it is started again in {left:.1f} s at the earliest"
                raise McpFailed(f"{self._reason}; {again}")
            self._starting = asyncio.get_running_loop().create_task(self._start(), name="zot mcp start")
        starting = self._starting
        try:
            # A caller that is aborted does not end the start: another may wait for it.
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled():
                raise McpFailed("the session is over") from None
            raise
        finally:
            if starting.done() and self._starting is starting:
                self._starting = None

    def _failed(self, reason: str, *, needs_login: bool = False) -> None:
        """Count a crash or a failed start: each in a row doubles the pause before the next start."""
        self._failures, self._reason = self._failures + 1, reason
        self._needs_login = needs_login
        self.on_change()
        pause_s = 0.0 if self._failures < 2 else min(2.0 ** (self._failures - 2), _MAX_PAUSE_S)
        self._pause_until = asyncio.get_running_loop().time() + pause_s

    async def _start(self) -> McpConnection:
        try:
            # In a thread: it takes a while, and the model's answer arrives meanwhile.
            open_connection = await asyncio.to_thread(_load_connections)
            connection = await open_connection(self.source, self._launch, self.revision)
        except ToolFailed as problem:  # Also of a sandbox.
            self._failed(str(problem), needs_login=isinstance(problem, McpLoginNeeded))
            await self._keep_problem(str(problem))
            raise McpFailed(str(problem)) from None
        self.revision = connection.client.revision
        connection.on_change = self._list_changed
        self._connection = connection
        self.on_change()
        await self._keep_problem("")
        if not self.is_current and not self._lists:
            self.refresh_soon()
        return connection

    def _list_changed(self, kind: str) -> None:
        del kind  # All lists are asked for and kept together.
        self.refresh_soon()


def _load_connections() -> Callable[[McpSource, McpLaunch, str], Awaitable[McpConnection]]:
    """Import what talks to servers; return the function that starts one."""
    import zot.mcp.listing  # noqa: F401  # It is needed next.
    from zot.mcp.http_connection import open_connection

    return open_connection


def _unused(source: McpSource) -> McpServerState:
    """Return the state of a server that is not started in this session."""
    if not source.enabled:
        return McpServerState(source.name, "disabled")
    return McpServerState(source.name, "unusable", problem=printable(source.problem))


class McpServers:
    """All servers of a session, and the tools that they offer. Can be made in any thread.

    ``wanted`` are the names or patterns of the tools that the model may see, None for all.
    """

    def __init__(
        self,
        sources: Sequence[McpSource],
        launch: McpLaunch,
        cache: ToolCache,
        *,
        spills: Callable[[], Spills | None],
        wanted: Sequence[str] | None = None,
        share: float = 0.1,
    ) -> None:
        self._launch = launch
        self._spills = spills
        self._wanted = wanted
        self._share = share
        self._sources = sources
        self.servers = [ManagedServer(source, launch, cache) for source in sources if source.runs]
        self._offered: dict[str, Tool] = {}
        #: Whether the model asks for tools by `find_tools`, and which ones it has found.
        self.is_deferring = False
        self.found: set[str] = set()
        self._begun = False
        self._gate: asyncio.Semaphore | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def attach(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever the state of a server changes."""
        for server in self.servers:
            server.on_change = changed

    def begin(self) -> None:
        """Ask for outdated lists in the background. Returns at once; idempotent."""
        if self._begun:
            return
        self._begun = True
        self._gate = asyncio.Semaphore(_AT_ONCE)
        loop = asyncio.get_running_loop()
        outdated = [one for one in self.servers if not one.is_current]
        self._tasks = [loop.create_task(self._refresh(one), name=f"zot mcp {one.source.name}") for one in outdated]

    def states(self) -> tuple[McpServerState, ...]:
        """Return the state of every configured server, by name."""
        running = {server.source.name: server.state for server in self.servers}
        return tuple(running.get(one.name) or _unused(one) for one in self._sources)

    def known(self) -> dict[str, tuple[ManagedServer, OfferedTool]]:
        """Return the tools that the servers have and the session wants, by server and name."""
        return {
            tool.spec.name: (server, tool)
            for server in self.servers
            for tool in server.tools
            if self._wants(tool.spec.name)
        }

    def tools(self, window: int = 0) -> Sequence[Tool]:
        """Return the tools known now: by server and name, and those found later after those offered before.

        If all of them need more than their share of the ``window``, only those that were offered before or found by
        `find_tools` are returned.
        """
        known = self.known()
        self.is_deferring = self.is_deferring or self._is_too_much(known, window)
        found = {
            name: pair
            for name, pair in known.items()
            if not self.is_deferring or name in self._offered or name in self.found
        }
        order = [name for name in self._offered if name in found or name in _OWN]
        order += [name for name in self._own_tools() if name not in self._offered]
        order += [name for name in found if name not in self._offered]
        before, self._offered = self._offered, {}
        for name in order:
            self._offered[name] = self._same(before.get(name), name, found)
        return [*self._offered.values()]

    def _wants(self, name: str) -> bool:
        return self._wanted is None or any(fnmatchcase(name, one) for one in self._wanted)

    def _own_tools(self) -> list[str]:
        """Return the names of zot's own tools for servers that are of use now."""
        wanted = [FIND_TOOLS.name] if self.is_deferring else []
        wanted += [READ_RESOURCE.name] if any(server.has_resources for server in self.servers) else []
        return [name for name in wanted if self._wants(name)]

    def _same(self, known: Tool | None, name: str, found: Mapping[str, tuple[ManagedServer, OfferedTool]]) -> Tool:
        """Return the tool that was offered before if it is still the same, else a new one."""
        if name in _OWN:
            return known or LazyTool(
                FIND_TOOLS if name == FIND_TOOLS.name else READ_RESOURCE, partial(_own_tool, name, self, self._spills),
                read_only=True,
            )  # fmt: skip
        server, tool = found[name]
        is_same = known is not None and known.spec == tool.spec and known.read_only == tool.read_only
        if known is not None and is_same:
            return known
        make = partial(_server_tool, server, tool, self._spills)
        return LazyTool(tool.spec, make, read_only=tool.read_only)

    def _is_too_much(self, known: Mapping[str, tuple[ManagedServer, OfferedTool]], window: int) -> bool:
        """True if the definitions of all tools exceed their share of the window, at four bytes a token."""
        if len(known) <= _FEW_TOOLS:
            return False
        size = sum(len(encode(tool.spec)) for _, tool in known.values())
        return size / 4 > self._share * (window or _USUAL_WINDOW)

    # Resources and prompts.

    def resources(self) -> list[ResourceInfo]:
        """Return the resources that prompts can mention; none if the model may not read them."""
        from zot.panels import ResourceInfo  # Imported lazily: few sessions list resources.

        return [
            ResourceInfo(f"@{server.source.name}:{one.uri}", one.title)
            for server in self.servers
            for one in server.resources
            if self._wants(READ_RESOURCE.name)
        ]

    def commands(self) -> list[CommandInfo]:
        """Return the prompts as slash commands, SERVER:PROMPT."""
        from zot.panels import CommandInfo  # Imported lazily: few sessions list commands.

        return [
            CommandInfo(f"{server.source.name}:{prompt.name}", prompt.description, f"mcp:{server.source.name}")
            for server in self.servers
            for prompt in server.prompts
        ]

    async def run_command(self, name: str, args: str) -> CommandAnswer:
        """Return a prompt's text, to be run. Raise NoSuchCommand, UserError."""
        place, _, wanted = name.partition(":")
        server = next((one for one in self.servers if one.source.name == place), None)
        prompt = None if server is None else next((one for one in server.prompts if one.name == wanted), None)
        if server is None or prompt is None:
            raise NoSuchCommand(f"there is no command named {name!r}")
        # Imported lazily: few sessions run a prompt of a server.
        from zot.mcp.tool import prompt_arguments, prompt_text
        from zot.panels import CommandAnswer

        asked = {"name": prompt.name, "arguments": prompt_arguments(prompt, args)}
        try:
            text = prompt_text(await server.request("prompts/get", asked))
        except (McpFailed, ProtocolError) as problem:
            raise UserError(f"/{name}: {printable(str(problem))}") from None
        return CommandAnswer(f"mcp:{place}", "prompt", prompt=text)

    async def close(self) -> None:
        """End all servers, in parallel. Idempotent."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*(server.close() for server in self.servers))
        await self._launch.processes.close()

    def kill(self) -> None:
        """Kill all servers, at once and from any thread."""
        self._launch.processes.kill_all()

    async def _refresh(self, server: ManagedServer) -> None:
        assert self._gate is not None
        async with self._gate:
            await server.try_refresh()


def _own_tool(name: str, servers: McpServers, spills: Callable[[], Spills | None]) -> Tool:
    from zot.mcp.tool import FindTools, ReadResource  # Imported lazily: tools are loaded for their first call.

    return FindTools(servers) if name == FIND_TOOLS.name else ReadResource(servers, spills)


def _server_tool(server: ManagedServer, tool: OfferedTool, spills: Callable[[], Spills | None]) -> Tool:
    from zot.mcp.tool import McpTool  # Imported lazily: tools are loaded for their first call.

    return McpTool(server, tool, spills)
