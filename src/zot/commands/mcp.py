"""`zot mcp`: list, test and call MCP servers, show their logs, and trust those of a project."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from zot.commands.mcp_serve import FLAGS as SERVE_FLAGS
from zot.commands.subcommands import (
    FAILED,
    JSON_FLAG,
    CommandGroup,
    CommandRequest,
    Subcommand,
    aligned,
    follow_log,
    print_note,
    write,
    write_bytes,
    write_json,
)
from zot.config.config import AGENT_FLAGS, MCP_FILE, Config, data_directory, resolve, zot_home
from zot.config.flags import Flag
from zot.config.trust import TrustStore
from zot.errors import ConfigError, ToolFailed, UserError
from zot.extensions.log import log_path, read
from zot.mcp.listing import ToolCache
from zot.mcp.server_settings import McpSource, find_servers, project_file, read_project
from zot.mcp.servers import ManagedServer
from zot.mcp.tool import McpTool
from zot.messages import TextBlock
from zot.runtime.check import working_directory
from zot.runtime.shared import SharedResources
from zot.runtime.toolbox import Toolbox
from zot.text import did_you_mean, escaped, escaped_bytes, printable, printable_line
from zot.tools.base import Output, ToolContext, ToolFailedWithOutput

T = TypeVar("T")

_TAKEN = ("--cwd", "--config-dir", "--mcp", "--trust-project", "--agent")
_FLAGS = tuple(flag for flag in AGENT_FLAGS if flag.name in _TAKEN)
_WIDTH = 100


class McpRow(msgspec.Struct, frozen=True):
    """One server for programs. ``tools`` counts those in the cache, None if it was never asked."""

    name: str
    state: str
    tools: int | None
    command: str
    origin: str
    problem: str


def _config(request: CommandRequest) -> Config:
    return resolve({name: value for name, value in request.settings.items() if name not in ("json", "follow")})


def _found(config: Config) -> list[McpSource]:
    return find_servers(config, working_directory(config.cwd))


def _cache(config: Config) -> ToolCache:
    kept = data_directory(config)
    return ToolCache(None if kept is None else os.path.join(kept, "mcp-cache"))


def _named(config: Config, name: str) -> McpSource:
    known = {one.name: one for one in _found(config)}
    if name not in known:
        raise UserError(
            f"no MCP server is named {name!r}{did_you_mean(name, known) or '; list them with: zot mcp list'}"
        )
    return known[name]


def _list(request: CommandRequest) -> int:
    config = _config(request)
    cache, rows = _cache(config), []
    for one in _found(config):
        cached = cache.get(one.digest) if one.runs else None
        state = "disabled" if not one.enabled else "unusable" if one.problem else "usable"
        tools = None if cached is None else len(cached.tools)
        rows.append(McpRow(one.name, state, tools, one.label, one.origin or "config", one.problem))
    if request.json:
        for row in rows:
            write_json(row)
        return 0
    if not rows:
        print_note(f"there are no MCP servers: write [mcp.NAME] in config.toml, {MCP_FILE}, or --mcp NAME=COMMAND")
        return 0
    table = [("NAME", "STATE", "TOOLS", "COMMAND", "FROM")]
    for row in rows:
        known = "?" if row.tools is None else str(row.tools)
        table.append((row.name, row.state, known, printable(row.command), printable(row.origin)))
    write(aligned(table))
    for row in rows:
        if row.problem:
            print_note(f"{row.name}: {row.problem}")
    return 0


def _with_servers(config: Config, sources: list[McpSource], use: Callable[[ManagedServer], Awaitable[T]]) -> list[T]:
    """Return what ``use`` makes of each server, one after the other, as a session would start them.

    Raise UserError for a server that cannot be started.
    """
    for source in sources:
        if not source.runs:
            raise UserError(f"{source.name}: {source.problem or 'it is disabled'}")

    async def run() -> list[T]:
        async with SharedResources(own_process=True) as resources:
            toolbox = Toolbox(replace(config, tools=None), resources, cwd=working_directory(config.cwd), key="mcp")
            try:
                servers = [] if toolbox.mcp is None else toolbox.mcp.servers
                known = {server.source.name: server for server in servers}
                return [await use(known[source.name]) for source in sources]
            finally:
                await toolbox.close()

    return asyncio.run(run())


def _test(request: CommandRequest) -> int:
    config = _config(request)
    sources = [_named(config, name) for name in request.words] or [one for one in _found(config) if one.runs]

    async def test(server: ManagedServer) -> bool:
        begun, name, problem = time.monotonic(), server.source.name, ""
        try:
            await server.refresh()
        except ToolFailed as failed:
            problem = str(failed)
        took_ms = round((time.monotonic() - begun) * 1000)
        if request.json:
            tools = [one.spec.name for one in server.tools]
            write_json({"name": name, "ok": not problem, "problem": problem, "revision": server.revision,
                        "tools": tools, "ms": took_ms})  # fmt: skip
        elif problem:
            print_note(f"{name}: {printable(problem)}; its log: zot mcp logs {name}")
        else:
            write(f"{name}: {len(server.tools)} tools, protocol {server.revision}, {took_ms} ms\n")
        return not problem

    return 0 if all(_with_servers(config, sources, test)) else FAILED


def _tools(request: CommandRequest) -> int:
    config = _config(request)
    sources = [_named(config, name) for name in request.words] or [one for one in _found(config) if one.runs]

    async def show(server: ManagedServer) -> bool:
        if not server.is_current:
            try:
                await server.refresh()
            except ToolFailed as failed:
                print_note(f"{server.source.name}: {printable(str(failed))}")
                return False
        for tool in server.tools:
            if request.json:
                write_json({"server": server.source.name, "tool": tool.name, "read_only": tool.read_only,
                            **msgspec.to_builtins(tool.spec)})  # fmt: skip
            else:
                write(f"{tool.spec.name}\n    {printable_line(tool.spec.description, _WIDTH)}\n")
        return True

    return 0 if all(_with_servers(config, sources, show)) else FAILED


def _call(request: CommandRequest) -> int:
    config = _config(request)
    name, tool_name, *rest = request.words
    try:
        args: dict[str, Any] = msgspec.json.decode(rest[0] if rest else "{}", type=dict[str, Any])
    except msgspec.MsgspecError as problem:
        raise UserError(f"the arguments are not a JSON object: {problem}") from None
    source = _named(config, name)

    async def call(server: ManagedServer) -> int:
        if not server.is_current:
            await server.refresh()
        found = next((one for one in server.tools if tool_name in (one.name, one.spec.name)), None)
        if found is None:
            near = did_you_mean(tool_name, [one.name for one in server.tools])
            raise UserError(f"{name} has no tool {tool_name!r}{near or f'; list them with: zot mcp tools {name}'}")
        tool, context = McpTool(server, found, lambda: None), ToolContext(working_directory(config.cwd), source.env)
        try:
            _show(await tool.run(args, context))
        except ToolFailedWithOutput as failed:
            _show(failed.output)
            return FAILED
        return 0

    try:
        return _with_servers(config, [source], call)[0]
    except ToolFailed as problem:
        raise UserError(str(problem)) from None


def _show(output: Output) -> None:
    for block in output:
        if isinstance(block, TextBlock):
            write(f"{escaped(block.text)}\n")
        else:
            write(f"[{block.mime_type}, {len(block.data)} bytes]\n")


def _logs(request: CommandRequest) -> int:
    (name,) = request.words
    config = _config(request)
    kept = data_directory(config)
    path = log_path(kept or "", _named(config, name).name, "mcp")
    if kept is None or (not os.path.exists(path) and not request.settings.get("follow")):
        raise UserError(f"no log of {name!r} exists: it has not been started yet")
    if request.settings.get("follow"):
        return follow_log(path, _write)
    _write(read(path))
    return 0


def _write(pieces: Iterable[bytes]) -> None:
    for data in pieces:
        write_bytes(escaped_bytes(data))
        sys.stdout.flush()


def _trust(request: CommandRequest) -> int:
    config = _config(request)
    cwd = working_directory(config.cwd)
    path, project = project_file(cwd), read_project(config, cwd)
    if not project.sources:
        raise UserError(f"{path}: no such file, or it has no servers")
    if not project.fingerprint:
        raise UserError(f"{path}: {project.sources[0].problem}")
    for one in project.sources:
        what = shlex.join(one.argv) or one.url or one.problem
        write(f"{one.name}: {printable(what)}\n")
        if one.own_env:  # Not their values, which may be secret.
            write(f"    sets {printable(', '.join(sorted(one.own_env)))}\n")
    covered = {place for one in project.sources for place, state in (one.files or {}).items() if state}
    for place in sorted(covered):
        write(f"    with {printable(os.path.relpath(place, cwd))}\n")
    _store(config).trust_as(path, project.fingerprint)
    write(f"trusted {printable(path)} as it is now, and the project's files that its commands and variables name\n")
    write("not covered: what these files and programs load themselves, such as imports and installed packages\n")
    return 0


def _untrust(request: CommandRequest) -> int:
    config = _config(request)
    path = project_file(working_directory(config.cwd))
    is_known = _store(config).untrust(path)
    write(f"{'no longer trusted' if is_known else 'was not trusted'}: {printable(path)}\n")
    return 0 if is_known else FAILED


def _store(config: Config) -> TrustStore:
    if (home := zot_home(config.environment)) is None:
        raise ConfigError("no directory to store trust in: set ZOT_HOME or HOME")
    return TrustStore(home)


GROUP = CommandGroup("zot mcp", "Manage MCP servers: programs that offer tools to the model.", (
    Subcommand("serve", "", "Serve the agent to an MCP client, as the tools zot and zot_reply.", "mcp_serve.run",
               flags=SERVE_FLAGS),
    Subcommand("list", "", "List the servers, and why one cannot be used.", _list, flags=_FLAGS),
    Subcommand("test", "[NAME...]", "Start servers, ask for their tools, and keep those in the cache.", _test, (0, 100),
               _FLAGS),
    Subcommand("tools", "[NAME...]", "Show the tools of servers.", _tools, (0, 100), _FLAGS),
    Subcommand("call", "NAME TOOL [JSON]", "Call a tool with these arguments. It takes effect.", _call, (2, 3), _FLAGS),
    Subcommand("logs", "NAME", "Print the log of a server: its standard error, and notes of zot.", _logs, (1, 1), (
        Flag("--follow", "Keep printing new lines until interrupted.", short="-f"), *_FLAGS,
    )),
    Subcommand("trust", "", f"Trust the project's {MCP_FILE}, as it is now.", _trust, flags=_FLAGS),
    Subcommand("untrust", "", f"Withdraw the trust in the project's {MCP_FILE}.", _untrust, flags=_FLAGS),
), flags=(JSON_FLAG,), note=f"Servers are in config.toml ([mcp.NAME]), in the project's {MCP_FILE}, or named by --mcp.",
   examples=(
    ("zot mcp test", "Start every server once; later sessions know their tools from the beginning."),
    ("zot mcp call files read_file '{\"path\": \"a.txt\"}'", "Call a tool without a model."),
))  # fmt: skip
main = GROUP.main
