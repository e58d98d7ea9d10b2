"""MCP servers of a project's `.mcp.json`, which run only if the user trusts its content."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from shutil import which

import msgspec

from zot.config.config import MCP_FILE, Config, keyless_environment, zot_home
from zot.config.flags import MCP_NAME_RULE, is_mcp_name
from zot.config.trust import TrustStore, file_fingerprint, fingerprint
from zot.encoding import UNREADABLE, decoder, explain
from zot.errors import UserError
from zot.files import read_chunks
from zot.mcp.listed_server import ListedServer
from zot.mcp.source import McpSource, make_source
from zot.text import printable
from zot.tools.mounts import is_in

#: The most servers in a project's file, and its largest size.
MAX_SERVERS = 100
MAX_FILE_BYTES = 1024 * 1024
_PIECES = re.compile(r"[^\s\"'`;|&()<>=,:]+")


def named_files(source: McpSource, project: str) -> dict[str, str]:
    """Return the files in ``project`` that a server's command line and variables may name, each with its state: a hash,
    or "".

    They run with the trust in the project's file. Missing ones count as well: they could appear later.
    """
    top = os.path.realpath(project)
    given = (*source.argv, *(source.env[name] for name in source.own_env))
    # A word may be a script for a shell, a list, or an option with its value.
    words = {word for one in given for word in (one, one.partition("=")[2], *_PIECES.findall(one))}
    places = {os.path.normpath(os.path.join(source.cwd, os.path.expanduser(word))) for word in words}
    if program := which(source.argv[0] if source.argv else "", path=source.env.get("PATH")):
        places.add(os.path.join(source.cwd, program))
    inside = (
        place for place in sorted(places) if is_in(os.path.realpath(place), [top]) or is_in(place, [top, project])
    )
    return {place: _state(place, top) for place in inside}


def _state(place: str, top: str) -> str:
    real = os.path.realpath(place)
    if not is_in(real, [top]):
        return f"link to {real}"
    if not os.path.isfile(real):
        return ""
    try:
        return fingerprint(real)
    except UserError as problem:  # Unreadable or too large: then it stays so.
        return str(problem)


class _ProjectFile(msgspec.Struct, frozen=True, rename={"servers": "mcpServers"}):
    servers: dict[str, msgspec.Raw] = {}


def project_file(cwd: str) -> str:
    """Return the path of the project's list of servers."""
    return os.path.join(cwd, MCP_FILE)


class ProjectServers(msgspec.Struct, frozen=True):
    """The servers of a project's file, and the fingerprint of all that trust in it covers; "" if it has no servers."""

    sources: Sequence[McpSource]
    fingerprint: str = ""


def read_project(config: Config, cwd: str) -> ProjectServers:
    """Return the servers of the project's file as if it were trusted, from one reading."""
    path = project_file(cwd)
    try:
        data = b"".join(read_chunks(path, max_bytes=MAX_FILE_BYTES))
    except FileNotFoundError:
        return ProjectServers(())
    except OSError as problem:
        return ProjectServers([McpSource(MCP_FILE, origin=path, problem=problem.strerror or str(problem))])
    try:
        entries = decoder(_ProjectFile).decode(data).servers
    except UNREADABLE as problem:
        return ProjectServers([McpSource(MCP_FILE, origin=path, problem=f"it is damaged: {explain(problem)}")])
    if len(entries) > MAX_SERVERS:
        return ProjectServers([McpSource(MCP_FILE, origin=path, problem=f"it has more than {MAX_SERVERS} servers")])
    env = keyless_environment(config.environment)  # A project gets none of zot's keys.
    sources = [_entry(name, raw, env, cwd, path) for name, raw in entries.items()]
    sources = [msgspec.structs.replace(one, files=named_files(one, cwd)) if one.argv else one for one in sources]
    covered = {place: state for one in sources for place, state in (one.files or {}).items() if state}
    bound = msgspec.json.encode(sorted((os.path.relpath(place, cwd), state) for place, state in covered.items()))
    return ProjectServers(sources, file_fingerprint(data + bound if covered else data))


def trusted_servers(config: Config, cwd: str) -> Sequence[McpSource]:
    """Return the servers of the project's file; without trust, each with that as its problem."""
    project, path = read_project(config, cwd), project_file(cwd)
    if config.trust_project:
        return [msgspec.structs.replace(one, files=None) for one in project.sources]
    home = zot_home(config.environment)
    recorded = "" if home is None or not project.fingerprint else TrustStore(home).recorded(path)
    if recorded and recorded == project.fingerprint:
        return project.sources
    changed = f"{path} or a file that it names has changed since it was trusted"
    why = f"{changed if recorded else f'{path} is not trusted'}; look at it, then: zot mcp trust"
    return [msgspec.structs.replace(one, problem=why) if one.argv or one.url else one for one in project.sources]


def _entry(name: str, raw: msgspec.Raw, env: Mapping[str, str], cwd: str, path: str) -> McpSource:
    try:
        entry: ListedServer = decoder(ListedServer).decode(raw)
    except UNREADABLE as problem:
        return McpSource(printable(name), origin=path, problem=f"its entry is invalid: {explain(problem)}")
    if not is_mcp_name(name):
        return McpSource(printable(name), origin=path, problem=f"it has no usable name: {MCP_NAME_RULE}")
    return make_source(name, entry.settings(), env, cwd, path)
