"""MCP servers of a session: those of the user's settings and those of the project, expanded and checked."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from shutil import which
from typing import Any

import msgspec

from zot.config.base_url import split_url
from zot.config.config import MCP_FILE, Config, keyless_environment, zot_home
from zot.config.flags import MCP_NAME_RULE, LiteralMcpServer, McpServer, is_mcp_name
from zot.config.trust import TrustStore, file_fingerprint, fingerprint
from zot.encoding import UNREADABLE, decoder, explain
from zot.errors import ConfigError, ConnectionImpossible, UserError
from zot.files import read_chunks
from zot.text import printable
from zot.tools.environment import ENVIRONMENT, PROXIES
from zot.tools.mounts import is_in

#: The most servers in a project's file, and its largest size.
MAX_SERVERS = 100
MAX_FILE_BYTES = 1024 * 1024
_PIECES = re.compile(r"[^\s\"'`;|&()<>=,:]+")
#: Other programs keep much else in the same file.
MAX_OTHER_BYTES = 64 * 1024 * 1024
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
    #: The state of the files that trust in the project's file covers (`named_files`); None if nothing was checked.
    files: Mapping[str, str] | None = None
    #: The address of a server over HTTP; then there is no program.
    url: str = ""
    headers: Mapping[str, str] = {}
    sandbox: bool = True
    #: zot's registration at the authorization server, and the scopes to ask for; "" if not configured.
    client_id: str = ""
    client_secret: str = ""
    scope: str = ""

    @property
    def label(self) -> str:
        """The program or the address, without secrets."""
        return self.url.partition("?")[0] if self.url else self.argv[0] if self.argv else ""

    @property
    def runs(self) -> bool:
        """True if it can be started."""
        return self.enabled and not self.problem

    @property
    def digest(self) -> str:
        """A hash of the program and its surroundings: another one may have other tools."""
        if self.url:
            place: list[Any] = [self.name, self.url, sorted(self.headers.items())]
        else:
            place = [self.name, self.argv, {name: self.env[name] for name in sorted(self.own_env)}, self.cwd]
        return hashlib.sha256(msgspec.json.encode(place)).hexdigest()[:32]


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


#: Fields for which Gemini CLI, Windsurf and Codex have names of their own.
_LISTED_NAMES = {"gemini_url": "httpUrl", "windsurf_url": "serverUrl", "codex_headers": "http_headers"}


class ListedServer(msgspec.Struct, frozen=True, rename=_LISTED_NAMES):
    """An entry of the project's file, as other programs write it."""

    command: str = ""
    args: tuple[str, ...] | None = ()
    env: Mapping[str, str] | None = {}
    cwd: str | None = None
    url: str = ""
    gemini_url: str = ""
    windsurf_url: str = ""
    headers: Mapping[str, str] | None = {}
    codex_headers: Mapping[str, str] = {}
    bearer_token_env_var: str = ""
    enabled: bool = True
    disabled: bool = False

    def settings(self) -> McpServer:
        """Return the same as zot's own settings."""
        enabled = self.enabled and not self.disabled
        url = self.gemini_url or self.windsurf_url or self.url
        if url and not self.command:
            headers = {**(self.headers or {}), **self.codex_headers}
            if self.bearer_token_env_var:
                headers["Authorization"] = f"Bearer ${{{self.bearer_token_env_var}}}"
            return McpServer(url=url, headers=headers, enabled=enabled)
        return McpServer(command=self.command, args=self.args or (), env=self.env or {}, cwd=self.cwd, enabled=enabled)


class _ProjectFile(msgspec.Struct, frozen=True, rename={"servers": "mcpServers"}):
    servers: dict[str, msgspec.Raw] = {}


def find_servers(config: Config, cwd: str) -> list[McpSource]:
    """Return the servers of a session in ``cwd``, by name. The user's settings win over the project's file."""
    found = {one.name: one for one in _project_servers(config, cwd)}
    for name, server in config.mcp.items():
        found[name] = _source(name, server, config.environment, cwd, "")
    return [_of_agent(found[name], config) for name in sorted(found)]


def _of_agent(source: McpSource, config: Config) -> McpSource:
    """Return a server as the agent of ``config`` has it: switched off if none of its patterns names it."""
    if any(fnmatchcase(source.name, pattern) for pattern in config.mcp_servers):
        return source
    return msgspec.structs.replace(source, enabled=False)


#: Files in which other programs keep their servers, in the home directory and in a project.
_HOME_FILES = (
    ".claude.json",
    ".config/Claude/claude_desktop_config.json",
    "Library/Application Support/Claude/claude_desktop_config.json",
    ".cursor/mcp.json",
    ".gemini/settings.json",
    ".codeium/windsurf/mcp_config.json",
    ".codex/config.toml",
    ".config/Code/User/mcp.json",
    "Library/Application Support/Code/User/mcp.json",
    ".config/zed/settings.json",
)
_PROJECT_FILES = (".cursor/mcp.json", ".vscode/mcp.json", ".gemini/settings.json")


def other_files(home: str, cwd: str) -> list[str]:
    """Return the files in which other programs may keep servers."""
    return [os.path.join(home, one) for one in _HOME_FILES] + [os.path.join(cwd, one) for one in _PROJECT_FILES]


_OTHER_NAMES = {"servers": "mcpServers", "vscode": "servers", "codex": "mcp_servers", "zed": "context_servers"}


class _OtherFile(msgspec.Struct, frozen=True, rename=_OTHER_NAMES):
    servers: dict[str, msgspec.Raw] = {}
    vscode: dict[str, msgspec.Raw] = {}
    codex: dict[str, msgspec.Raw] = {}
    zed: dict[str, msgspec.Raw] = {}


class OtherServers(msgspec.Struct, frozen=True):
    """The servers that a file of another program lists, and why others of it cannot be used."""

    usable: dict[str, McpServer]
    problems: dict[str, str]


def read_servers(path: str) -> OtherServers:
    """Return the servers that a file of another program lists. Raise UserError."""
    try:
        data = b"".join(read_chunks(path, max_bytes=MAX_OTHER_BYTES))
        if path.endswith(".toml"):
            data = msgspec.json.encode(msgspec.toml.decode(data))
        found = decoder(_OtherFile).decode(_plain_json(_ENV_VARIABLE.sub(rb"${\1}", data)))
    except OSError as problem:
        raise UserError(f"{path}: {problem.strerror or problem}") from None
    except UNREADABLE as problem:
        raise UserError(f"{path} has no servers that can be read: {explain(problem)}") from None
    servers = OtherServers({}, {})
    for name, raw in {**found.zed, **found.codex, **found.vscode, **found.servers}.items():
        try:
            server = decoder(ListedServer).decode(raw).settings()
        except UNREADABLE as problem:
            servers.problems[name] = explain(problem)
            continue
        if unknown := _INPUT.search(raw):
            servers.problems[name] = f"only its own program can fill in {unknown[0].decode()}"
        elif server.command or server.url:
            servers.usable[name] = server
        else:
            servers.problems[name] = "it has no command and no url"
    return servers


#: Variables as editors write them: of the environment, and those for which the editor asks the user.
_ENV_VARIABLE = re.compile(rb"\$\{env:(\w+)\}")
_INPUT = re.compile(rb"\$\{input:[^}\"]*\}")
_COMMENT = re.compile(rb'("(?:[^"\\]|\\.)*+")|//[^\n]*+|/\*(?s:.*?)\*/')
_LAST_COMMA = re.compile(rb'("(?:[^"\\]|\\.)*+")|,(?=\s*+[}\]])')


def _plain_json(data: bytes) -> bytes:
    """Return the JSON of an editor's settings without comments and commas before a closing bracket."""
    for extra in (_COMMENT, _LAST_COMMA):
        data = extra.sub(lambda found: found[1] or b"", data)
    return data


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


def _project_servers(config: Config, cwd: str) -> Sequence[McpSource]:
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
    return _source(name, entry.settings(), env, cwd, path)


def _source(name: str, server: McpServer, env: Mapping[str, str], cwd: str, origin: str) -> McpSource:
    shown: dict[str, Any] = {"name": name, "enabled": server.enabled, "origin": origin}
    if not is_mcp_name(name):
        return McpSource(printable(name), origin=origin, problem=f"it has no usable name: {MCP_NAME_RULE}")
    shown |= {"tools": server.tools, "timeout_s": server.timeout_s, "sandbox": server.sandbox}
    variables = None if isinstance(server, LiteralMcpServer) else env
    try:
        if server.url and not server.command:
            return _remote(shown, server, variables)
        if not server.command:
            raise ConfigError("it has no command and no url")
        if server.url:
            raise ConfigError("it has a command and a url; only one of them can be used")
        argv = tuple(_expanded(word, variables) for word in (server.command, *server.args))
        own = {key: _expanded(value, variables) for key, value in server.env.items()}
        place = os.path.join(cwd, os.path.expanduser(_expanded(server.cwd or "", variables)))
    except (ConfigError, ConnectionImpossible) as problem:
        return McpSource(**shown, problem=str(problem))
    if any("\0" in word for word in (*argv, *own, *own.values(), place)) or any("=" in key for key in own):
        return McpSource(**shown, problem="its command or environment has a NUL character or a name with `=`")
    clean = {**_clean(env), **own}
    return McpSource(**shown, cwd=os.path.abspath(place), argv=argv, env=clean, own_env=frozenset(own))


def _remote(shown: dict[str, Any], server: McpServer, env: Mapping[str, str] | None) -> McpSource:
    """Return a server over HTTP. Raise ConfigError."""
    url = _expanded(server.url, env)
    split_url(url)
    headers = {key.lower(): _expanded(value, env) for key, value in server.headers.items()}
    registered: dict[str, Any] = {
        "client_id": _expanded(server.client_id, env),
        "client_secret": _expanded(server.client_secret, env),
    }
    return McpSource(**shown, **registered, scope=server.scope, url=url, headers=headers)


def _clean(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``env`` that name places and manners. Secrets are passed by configuration only."""
    passed = ENVIRONMENT | PROXIES | {"TMPDIR"}
    return {key: value for key, value in env.items() if key in passed or key.startswith(("LC_", "XDG_"))}


def _expanded(text: str, env: Mapping[str, str] | None) -> str:
    """Return ``text`` with its variables replaced, as it is if ``env`` is None.

    Raise ConfigError if one is not set and has no default.
    """
    if env is None:
        return text

    def value(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if (known := env.get(name, default)) is None:
            raise ConfigError(f"the variable {name} is not set")
        return known

    return _VARIABLE.sub(value, text)
