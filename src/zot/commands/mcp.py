"""`zot mcp`: add, list, test, call and log in to MCP servers, show their logs, and trust those of a project."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from zot.commands.mcp_serve import MANUAL as SERVE_MANUAL
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
from zot.config.flags import Flag, mcp_server
from zot.config.server_tables import add_server, enable_server, remove_server
from zot.config.trust import TrustStore
from zot.encoding import explain
from zot.errors import ConfigError, ToolFailed, UserError
from zot.extensions.log import log_path, read
from zot.mcp.authorization import ServerTokens
from zot.mcp.http_connection import HttpServerConnection
from zot.mcp.launch import McpLaunch
from zot.mcp.listed_server import other_files, read_servers
from zot.mcp.project_servers import project_file, read_project
from zot.mcp.server_settings import find_servers
from zot.mcp.servers import ManagedServer
from zot.mcp.source import McpSource
from zot.mcp.tool import McpTool
from zot.mcp.tool_cache import ToolCache
from zot.messages import TextBlock
from zot.runtime.check import working_directory
from zot.runtime.shared import SharedResources
from zot.runtime.toolbox import Toolbox
from zot.text import did_you_mean, escaped, escaped_bytes, printable, printable_line
from zot.tools.base import Output, ToolContext, ToolFailedWithOutput

T = TypeVar("T")

_SHARED = {flag.name: flag for flag in AGENT_FLAGS}
_CONFIG_DIR = replace(_SHARED["--config-dir"], advanced=False, group="")
_CWD = replace(_SHARED["--cwd"], help="Use this directory and its .mcp.json (default: the current one).", group="")
#: Flags that select servers.
_SERVER_FLAGS = (
    replace(_SHARED["--agent"], help="Use the servers of the agent [agents.NAME] of config.toml (default: default).",
            group=""),
    replace(_SHARED["--mcp"], help="Use this server, too, such as files='mcp-files --root .' or docs=URL.", group=""),
    replace(_SHARED["--trust-project"], help="Trust the project's .mcp.json for this command.", advanced=False,
            group=""),
    _CWD,
    _CONFIG_DIR,
)  # fmt: skip
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
    own = ("json", "follow", "env", "header")
    return resolve({name: value for name, value in request.settings.items() if name not in own})


def _found(config: Config) -> list[McpSource]:
    return find_servers(config, working_directory(config.cwd))


def _named(config: Config, name: str) -> McpSource:
    known = {one.name: one for one in _found(config)}
    if name not in known:
        raise UserError(
            f"no MCP server is named {name!r}{did_you_mean(name, known) or '; list them with: zot mcp list'}"
        )
    return known[name]


def _chosen(config: Config, request: CommandRequest) -> list[McpSource]:
    """Return the named servers; without names, all that can run, or if none can, all, so that the reasons are shown."""
    found = _found(config)
    return [_named(config, name) for name in request.words] or [one for one in found if one.runs] or found


def _list(request: CommandRequest) -> int:
    config = _config(request)
    cache, rows = ToolCache.of(config), []
    for one in _found(config):
        cached = cache.get(one.digest) if one.runs else None
        problem = one.problem or (cache.problem(one.digest) if one.runs else "")
        state = "disabled" if not one.enabled else "unusable" if one.problem else "failed" if problem else "usable"
        tools = None if cached is None else len(cached.tools)
        rows.append(McpRow(one.name, state, tools, one.label, one.origin or "config", problem))
    if request.json:
        for row in rows:
            write_json(row)
        return 0
    if not rows:
        return _no_servers()
    table = [("NAME", "STATE", "TOOLS", "COMMAND", "FROM")]
    for row in rows:
        known = "?" if row.tools is None else str(row.tools)
        table.append((row.name, row.state, known, printable(row.command), printable(row.origin)))
    write(aligned(table))
    for row in rows:
        if row.problem:
            more = f"; its log: zot mcp logs {row.name}" if row.state == "failed" else ""
            print_note(f"{row.name}: {printable(row.problem)}{more}")
    return 0


def _no_servers() -> int:
    print_note("there are no MCP servers; add one with: zot mcp add NAME COMMAND")
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
    if not (sources := _chosen(config, request)):
        return _no_servers()

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
    if not (sources := _chosen(config, request)):
        return _no_servers()

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
        raise UserError(f"the arguments are not a JSON object: {explain(problem)}") from None
    source = _named(config, name)

    async def call(server: ManagedServer) -> int:
        if not server.is_current:
            try:
                await server.refresh()
            except ToolFailed as problem:
                raise UserError(f"{name}: {printable(str(problem))}; its log: zot mcp logs {name}") from None
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
        raise UserError(f"no log of {name!r} exists: it has not been started yet; start it with: zot mcp test {name}")
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
        what = shlex.join(one.argv) or one.label or one.problem
        write(f"{one.name}: {printable(what)}\n")
        # Names only: values may be secret.
        for does, names in (("sets", one.own_env), ("sends the headers", one.headers), ("reads", one.reads)):
            if names:
                write(f"    {does} {printable(', '.join(sorted(names)))}\n")
        if one.cwd and one.cwd != os.path.abspath(cwd):
            write(f"    runs in {printable(one.cwd)}\n")
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


def _add(request: CommandRequest) -> int:
    name, line = request.words
    try:
        _, server = mcp_server(f"{name}={line}")
    except ValueError as problem:
        raise UserError(str(problem)) from None
    given = {key: dict(request.settings.get(key) or ()) for key in ("env", "header")}
    server = replace(server, env=given["env"], headers=given["header"])
    add_server(_directory(request), name, server)
    write(f"added {name}; try it with: zot mcp test {name}\n")
    return 0


def _remove(request: CommandRequest) -> int:
    (name,) = request.words
    remove_server(_directory(request), name)
    write(f"removed {name}\n")
    return 0


def _enable(request: CommandRequest) -> int:
    (name,) = request.words
    enable_server(_directory(request), name, enabled=True)
    write(f"enabled {name}\n")
    return 0


def _disable(request: CommandRequest) -> int:
    (name,) = request.words
    enable_server(_directory(request), name, enabled=False)
    write(f"disabled {name}\n")
    return 0


def _directory(request: CommandRequest) -> str:
    """Return the directory of config.toml."""
    found = request.settings.get("config_dir") or zot_home(os.environ)
    if found is None:
        raise ConfigError("there is no home for config.toml: set ZOT_HOME or HOME")
    return str(found)


def _import(request: CommandRequest) -> int:
    if not request.words:
        return _importable()
    path, *names = request.words
    found = read_servers(path)
    listed = [*found.usable, *found.problems]
    if unknown := next((name for name in names if name not in listed), None):
        raise UserError(f"{path} has no server {unknown!r}{did_you_mean(unknown, listed)}")
    if not listed:
        raise UserError(f"{path} lists no servers")
    known, added = set(_config(request).mcp), 0
    for name in names or listed:
        if name in found.problems:
            print_note(f"{name} was skipped: {found.problems[name]}")
            continue
        safe = re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-")[:32] or "server"
        if safe in known:
            print_note(f"{name}: there is a server {safe!r} already")
            continue
        add_server(_directory(request), safe, found.usable[name])
        write(f"added {safe}\n")
        known.add(safe)
        added += 1
    return 0 if added else FAILED


def _importable() -> int:
    """List the servers of other programs."""
    rows = [("FILE", "SERVERS")]
    for path in other_files(os.path.expanduser("~"), os.getcwd()):
        try:
            servers = read_servers(path)
        except UserError:
            continue
        if servers.usable:
            rows.append((printable(path), printable(", ".join(servers.usable))))
    if len(rows) == 1:
        print_note("no servers of other programs were found; name a file: zot mcp import FILE")
        return 0
    write(aligned(rows))
    print_note("zot mcp import FILE [NAME...] copies servers to config.toml")
    return 0


def _login(request: CommandRequest) -> int:
    config, (name,) = _config(request), request.words
    source = _named(config, name)
    if not source.url:
        raise UserError(f"{name} is a program, not an address, so it needs no login")
    if source.problem:  # Such as missing trust: a request would send the headers that the project names.
        raise UserError(f"{name}: {source.problem}")
    is_new = asyncio.run(_log_in(config, source))
    write(f"logged in to {source.label}\n" if is_new else f"{source.label} accepts requests without a new login\n")
    return 0


async def _log_in(config: Config, source: McpSource) -> bool:
    """Connect, and log in if the server wants that. Return whether it did."""
    asked = False

    async def browse(url: str) -> None:
        nonlocal asked
        asked = True
        print_note(f"open this address to log in:\n{printable(url)}")
        if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
            import webbrowser  # Imported lazily: few servers need a login.

            await asyncio.to_thread(webbrowser.open, url)

    async with SharedResources(own_process=True) as resources:
        launch = McpLaunch(
            resources.processes("mcp"),
            working_directory(config.cwd),
            data_directory(config),
            transport=lambda: resources.transport(config.environment),
            home=zot_home(config.environment),
            browse=browse,
        )
        try:
            connection = await HttpServerConnection.open(source, launch)
        except ToolFailed as problem:
            raise UserError(f"{source.name}: {printable(str(problem))}") from None
        await connection.close()
    return asked


def _logout(request: CommandRequest) -> int:
    config, (name,) = _config(request), request.words
    source = _named(config, name)
    is_known = bool(source.url) and ServerTokens(zot_home(config.environment)).remove(source.url)
    write(f"{'deleted the login to' if is_known else 'no login is stored for'} {source.label or name}\n")
    return 0 if is_known else FAILED


def _pair(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE. Raise ValueError."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError("expected NAME=VALUE")
    return name, value


GROUP = CommandGroup("zot mcp", "Manage MCP servers: programs and web services that offer tools to the model.", (
    Subcommand("serve", "", "Serve the agent to an MCP client, as the tools zot and zot_reply.", "mcp_serve.run",
               manual=SERVE_MANUAL),
    Subcommand("list", "", "List the servers, and why one cannot be used.", _list, flags=(JSON_FLAG, *_SERVER_FLAGS)),
    Subcommand("add", "NAME COMMAND|URL", "Add a server to config.toml.", _add, (2, 2), (
        Flag("--env", "Set this variable for the program; ${VAR} is replaced at its start.", value="NAME=VALUE",
             parse=_pair, many=True),
        Flag("--header", "Send this header to the address; ${VAR} is replaced.", value="NAME=VALUE", parse=_pair,
             many=True),
        _CONFIG_DIR,
    )),
    Subcommand("remove", "NAME", "Remove a server from config.toml.", _remove, (1, 1), (_CONFIG_DIR,)),
    Subcommand("enable", "NAME", "Use a server of config.toml again.", _enable, (1, 1), (_CONFIG_DIR,)),
    Subcommand("disable", "NAME", "Keep a server in config.toml without using it.", _disable, (1, 1), (_CONFIG_DIR,)),
    Subcommand("import", "[FILE [NAME...]]", "Copy servers of another program to config.toml; without FILE, list them.",
               _import, (0, 100), (_CONFIG_DIR,)),
    Subcommand("login", "NAME", "Log in to a server over HTTP, with a browser.", _login, (1, 1), _SERVER_FLAGS),
    Subcommand("logout", "NAME", "Delete the login to a server.", _logout, (1, 1), _SERVER_FLAGS),
    Subcommand("test", "[NAME...]", "Start servers, and cache the list of their tools.", _test, (0, 100),
               (JSON_FLAG, *_SERVER_FLAGS)),
    Subcommand("tools", "[NAME...]", "Show the tools of servers.", _tools, (0, 100),
               (JSON_FLAG, *_SERVER_FLAGS)),
    Subcommand("call", "NAME TOOL [JSON]", "Call a tool for real, with these arguments.", _call, (2, 3), _SERVER_FLAGS),
    Subcommand("logs", "NAME", "Print the log of a server: its standard error, and zot's notes.", _logs, (1, 1), (
        Flag("--follow", "Keep printing new lines until interrupted.", short="-f"), *_SERVER_FLAGS,
    )),
    Subcommand("trust", "", f"Trust the project's {MCP_FILE}, as it is now.", _trust, flags=(_CWD,)),
    Subcommand("untrust", "", f"Withdraw the trust in the project's {MCP_FILE}.", _untrust, flags=(_CWD,)),
), note=f"Servers are in config.toml ([mcp.NAME]), in the project's {MCP_FILE}, or named by --mcp.",
   examples=(
    ("zot mcp test", "Start every server once; later sessions know their tools from the beginning."),
    ("zot mcp call files read_file '{\"path\": \"a.txt\"}'", "Call a tool without a model."),
), more_examples=(
    ("zot mcp list", "Show each server, its source and its last problem."),
    ("zot mcp add files 'mcp-server-filesystem .'", "Add a program."),
    ("zot mcp add docs https://docs.example/mcp --header 'X-Team=core'", "Add a server over HTTP."),
    ("zot mcp remove files", "Delete the table [mcp.files]."),
    ("zot mcp enable files", "Set enabled = true."),
    ("zot mcp disable files", "Set enabled = false."),
    ("zot mcp import", "List the servers of other programs on this machine."),
    ("zot mcp import .vscode/mcp.json", "Copy the servers of a file."),
    ("zot mcp login docs", "Open the server's login page."),
    ("zot mcp logout docs", "Delete the stored tokens."),
    ("zot mcp tools files", "Print names for policies and --tools."),
    ("zot mcp logs -f files", "Watch a server."),
    ("zot mcp trust", "Look at the project's commands, then let them run."),
    ("zot mcp untrust", "Ignore the project's servers again."),
))  # fmt: skip
main = GROUP.main
