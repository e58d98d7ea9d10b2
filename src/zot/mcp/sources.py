"""MCP servers of a session: those of the user's settings and those of the project, expanded and checked."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from zot.config.config import MCP_FILE, Config, keyless_environment, zot_home
from zot.config.flags import MCP_NAME_RULE, McpServer, is_mcp_name
from zot.config.trust import TrustStore, file_fingerprint
from zot.encoding import UNREADABLE, decoder, explain
from zot.errors import ConfigError
from zot.files import read_chunks
from zot.text import printable
from zot.tools.sandbox import ENVIRONMENT, PROXIES

#: The most servers in a project's file, and its largest size.
MAX_SERVERS = 100
MAX_FILE_BYTES = 1024 * 1024
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


class McpSource(msgspec.Struct, frozen=True):
    """A server, ready to start. ``problem`` says why it cannot; ``origin`` is its file, "" for the user's settings."""

    name: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    #: The variables that its configuration sets, which a sandbox passes on.
    own_env: frozenset[str] = frozenset()
    cwd: str = ""
    tools: tuple[str, ...] = ("*",)
    timeout_s: float = 60.0
    enabled: bool = True
    origin: str = ""
    problem: str = ""

    @property
    def runs(self) -> bool:
        """True if it can be started."""
        return self.enabled and not self.problem

    @property
    def digest(self) -> str:
        """A hash of the program and its surroundings: another one may have other tools."""
        mine = {name: self.env[name] for name in sorted(self.own_env)}
        return hashlib.sha256(msgspec.json.encode([self.name, self.argv, mine, self.cwd])).hexdigest()[:32]


class _ProjectServer(msgspec.Struct, frozen=True):
    """An entry of the project's file, as other programs write it."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    cwd: str | None = None
    url: str = ""
    disabled: bool = False


class _ProjectFile(msgspec.Struct, frozen=True, rename={"servers": "mcpServers"}):
    servers: dict[str, msgspec.Raw] = {}


def find_servers(config: Config, cwd: str) -> list[McpSource]:
    """Return the servers of a session in ``cwd``, by name. The user's settings win over the project's file."""
    found = {one.name: one for one in _project_servers(config, cwd)}
    for name, server in config.mcp.items():
        found[name] = _source(name, server, config.environment, cwd, "")
    return [found[name] for name in sorted(found)]


def project_file(cwd: str) -> str:
    """Return the path of the project's list of servers."""
    return os.path.join(cwd, MCP_FILE)


def _project_servers(config: Config, cwd: str) -> list[McpSource]:
    path = project_file(cwd)
    try:
        data = b"".join(read_chunks(path, max_bytes=MAX_FILE_BYTES))
    except FileNotFoundError:
        return []
    except OSError as problem:
        return [McpSource(MCP_FILE, origin=path, problem=problem.strerror or str(problem))]
    # The bytes that were trusted are those that are read.
    home = zot_home(config.environment)
    trusted = config.trust_project or (home is not None and TrustStore(home).recorded(path) == file_fingerprint(data))
    try:
        entries = decoder(_ProjectFile).decode(data).servers
    except UNREADABLE as problem:
        return [McpSource(MCP_FILE, origin=path, problem=f"it is damaged: {explain(problem)}")]
    if len(entries) > MAX_SERVERS:
        return [McpSource(MCP_FILE, origin=path, problem=f"it has more than {MAX_SERVERS} servers")]
    env = keyless_environment(config.environment)  # A project gets none of zot's keys.
    return [_entry(name, raw, env, cwd, path, trusted=trusted) for name, raw in entries.items()]


def _entry(name: str, raw: msgspec.Raw, env: Mapping[str, str], cwd: str, path: str, *, trusted: bool) -> McpSource:
    try:
        entry: _ProjectServer = decoder(_ProjectServer).decode(raw)
    except UNREADABLE as problem:
        return McpSource(printable(name), origin=path, problem=f"its entry is invalid: {explain(problem)}")
    if not is_mcp_name(name):
        return McpSource(printable(name), origin=path, problem=f"it has no usable name: {MCP_NAME_RULE}")
    if entry.url and not entry.command:
        return McpSource(name, origin=path, problem="it is reached over HTTP, which zot does not support yet")
    server = McpServer(command=entry.command, args=entry.args, env=entry.env, cwd=entry.cwd, enabled=not entry.disabled)
    source = _source(name, server, env, cwd, path)
    if not trusted:
        return msgspec.structs.replace(source, problem=f"{path} is not trusted; look at it, then: zot mcp trust")
    return source


def _source(name: str, server: McpServer, env: Mapping[str, str], cwd: str, origin: str) -> McpSource:
    shown: dict[str, Any] = {"name": name, "enabled": server.enabled, "origin": origin}
    if not is_mcp_name(name):
        return McpSource(printable(name), origin=origin, problem=f"it has no usable name: {MCP_NAME_RULE}")
    try:
        if not server.command:
            raise ConfigError("it has no command")
        argv = tuple(_expanded(word, env) for word in (server.command, *server.args))
        own = {key: _expanded(value, env) for key, value in server.env.items()}
        place = os.path.join(cwd, os.path.expanduser(_expanded(server.cwd or "", env)))
    except ConfigError as problem:
        return McpSource(**shown, problem=str(problem))
    if any("\0" in word for word in (*argv, *own, *own.values(), place)) or any("=" in key for key in own):
        return McpSource(**shown, problem="its command or environment has a NUL character or a name with `=`")
    more: dict[str, Any] = {"tools": server.tools, "timeout_s": server.timeout_s, "cwd": os.path.abspath(place)}
    return McpSource(**shown, **more, argv=argv, env={**_clean(env), **own}, own_env=frozenset(own))


def _clean(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``env`` that name places and manners. Secrets are passed by configuration only."""
    passed = ENVIRONMENT | PROXIES | {"TMPDIR"}
    return {key: value for key, value in env.items() if key in passed or key.startswith(("LC_", "XDG_"))}


def _expanded(text: str, env: Mapping[str, str]) -> str:
    """Return ``text`` with its variables replaced. Raise ConfigError if one is not set and has no default."""

    def value(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if (known := env.get(name, default)) is None:
            raise ConfigError(f"the variable {name} is not set")
        return known

    return _VARIABLE.sub(value, text)
