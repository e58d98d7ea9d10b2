"""config.toml: its tables, decoded and checked, with the daemon's settings and listen addresses."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
import msgspec.inspect as types

from zot.config.flags import (
    MAX_SECONDS,
    MCP_NAME_RULE,
    DeadlineName,
    Dollars,
    McpServer,
    Reasoning,
    Seconds,
    is_mcp_name,
)
from zot.config.vendors import ApiName
from zot.encoding import explain, explain_validation, thread_safe_type
from zot.errors import ConfigError, InvalidConfigFile, MalformedFile
from zot.files import is_there, load
from zot.text import did_you_mean, printable

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

T = TypeVar("T", bound=msgspec.Struct)

FILE_NAME = "config.toml"
#: Settings that belong elsewhere.
_ELSEWHERE = {"api_key": "a key does not belong in this file: run `zot login PROVIDER`, or set the provider's variable"}

# Patterns are compiled when first used: start-up budget.
#: No user before the host and no query after the path: a token in an address would end up in logs.
_ADDRESS = r"(wss?)://(\[[0-9A-Fa-f:.]+\]|[^\s/:@?#\[\]]+):(\d{1,5})(/[^\s?#]*)?"
_MAX_PORT = 65_535
#: A pool of workers; and a branch, as git allows it without quotes.
_POOL = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_BRANCH = r"(?!.*(?:\.\.|//|/\.|\.lock(?:/|$)|[./]$))[A-Za-z0-9][A-Za-z0-9._/-]{0,199}"
#: A repository: an address without password, query or option, or an absolute path.
_REPOSITORY = r"(?:git\+)?(?:(?:https|ssh)://(?:[A-Za-z0-9._~-]+@)?[A-Za-z0-9\[][A-Za-z0-9.:\[\]-]*/|file:///)[^\s?#\0]+|/[^\0\n]+"
#: Settings of an agent that gateways and workers use themselves: a session does not know them.
_OF_FLEET = frozenset({"pool", "workspace", "branch"})


class DaemonSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a daemon, for all its sessions. Every field has a default.

    ``max_sessions`` limits the sessions loaded at once, 0 for no limit; ``idle_s`` is how long an unused session
    stays loaded; ``listen`` has addresses besides the socket; ``grace_s`` is how long runs may take to finish at
    shutdown; ``server_version`` replaces zot's version for clients.

    For HTTP, ``hosts`` are further host names to accept, ``origins`` the origins of web pages that may connect;
    ``tls_cert`` and ``tls_key`` are the certificate's files.
    """

    max_sessions: Annotated[int, msgspec.Meta(ge=0)] = 0
    idle_s: Seconds = 600.0
    listen: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    grace_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)] = 1.0
    server_version: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    log_level: LogLevel = "info"

    def __post_init__(self) -> None:
        """Raise ValueError for an invalid listen address."""
        if self.listen:
            for address in self.listen:
                ListenAddress.parse(address)


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of gateways, for sessions in a database.

    ``pools`` are the pools of workers for directories, with all directories below them. ``prompts_waiting`` and
    ``runs`` limit each tenant, 0 for no limit: a token, or a local user.
    """

    pools: dict[str, str] = {}
    prompts_waiting: Annotated[int, msgspec.Meta(ge=0)] = 0
    runs: Annotated[int, msgspec.Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        """Raise ValueError for a wrong name or path."""
        for directory, pool in self.pools.items():
            if not directory.startswith("/"):
                raise ValueError("expected paths that begin with /, each with the name of a pool")
            _check_pool(pool)

    def pool_of(self, directory: str) -> str | None:
        """Return the pool for a directory; None if there is none. The longest path counts."""
        found = [
            (len(above), pool)
            for above, pool in self.pools.items()
            if os.path.join(directory, "").startswith(os.path.join(above, ""))
        ]
        return max(found)[1] if found else None


def _check_pool(name: str) -> None:
    if not re.fullmatch(_POOL, name):
        raise ValueError("expected the name of a pool: up to 64 letters, digits, '.', '_' and '-'")


class AgentTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[agents.NAME]` table. None means not set."""

    provider: str | None = None
    model: str | None = None
    base_url: str | None = None
    api: ApiName | None = None
    cwd: str | None = None
    system_prompt: str | None = None
    append_system_prompt: tuple[str, ...] | None = None
    no_instructions: bool | None = None
    reasoning: Reasoning | None = None
    max_steps: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_cost: Dollars | None = None
    max_tokens_total: Annotated[int, msgspec.Meta(ge=1)] | None = None
    auto_compact: bool | None = None
    compact_at: Annotated[int, msgspec.Meta(ge=1)] | None = None
    tools: tuple[str, ...] | None = None
    policy: tuple[str, ...] | None = None
    approval_timeout_s: Seconds | None = None
    lock: bool | None = None
    lock_net: bool | None = None
    lock_env: tuple[str, ...] | None = None
    protected: tuple[str, ...] | None = None
    skills: tuple[str, ...] | None = None
    no_skill: bool | None = None
    ext: tuple[str, ...] | None = None
    no_ext: bool | None = None
    unsandboxed_ext: bool | None = None
    ext_deadlines: dict[DeadlineName, Seconds] | None = None
    mcp_servers: tuple[str, ...] | None = None
    mcp_share: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    pool: str | None = None
    workspace: str | None = None
    branch: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a path that would depend on the current directory, and for a wrong name or address."""
        if self.cwd is not None and not self.cwd.startswith(("/", "~/")):
            raise ValueError("expected a path that begins with / or ~/")
        if self.pool is not None:
            _check_pool(self.pool)
        if self.workspace is not None and not re.fullmatch(_REPOSITORY, self.workspace):
            raise ValueError(
                "expected a repository without a password: git+ssh://host/path, git+https://…, or an absolute path"
            )
        if self.branch is not None and not re.fullmatch(_BRANCH, self.branch):
            raise ValueError("expected the name of a branch")

    @property
    def settings(self) -> dict[str, Any]:
        """The fields that are set, except those for gateways and workers."""
        names = [name for name in self.__struct_fields__ if name not in _OF_FLEET]
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class ConfigFile(msgspec.Struct, frozen=True):
    """The decoded file. ``path`` is "" if there is none."""

    path: str = ""
    agents: Mapping[str, AgentTable] = {}
    daemon: DaemonSettings = DaemonSettings()
    #: The daemon's settings that the file sets.
    daemon_names: frozenset[str] = frozenset()
    #: The MCP servers of all agents.
    mcp: Mapping[str, McpServer] = {}
    fleet: FleetSettings = FleetSettings()


def read(directory: str | None, look: Callable[[AgentTable], list[str]] | None = None) -> ConfigFile:
    """Return the decoded file in ``directory``; an empty one if there is none.

    ``look`` may find more problems in an agent. Raise InvalidConfigFile with all problems in all tables, or
    ConfigError if the file cannot be read.
    """
    path = os.path.join(directory or "", FILE_NAME)
    if directory is None or not is_there(path):
        return ConfigFile()
    found = _parsed(path)
    problems = _misplaced(found)
    tables = found.get("agents", {})
    if not isinstance(tables, dict):
        problems.append("[agents] is not a table: write [agents.NAME]")
        tables = {}
    agents: dict[str, AgentTable] = {}
    for name, table in tables.items():
        label = f"[agents.{name}]"
        agents[name] = _table(label, table, AgentTable, problems)
        problems += [f"{label} {problem}" for problem in (look(agents[name]) if look is not None else ())]
    daemon = _table("[daemon]", found.get("daemon", {}), DaemonSettings, problems)
    fleet = _table("[fleet]", found.get("fleet", {}), FleetSettings, problems)
    servers = _servers(found.get("mcp", {}), problems)
    if problems:
        problems = [*map(printable, problems)]  # A quoted name may contain any character.
        raise InvalidConfigFile(f"{path}: {'; '.join(problems)}", path=path, problems=tuple(problems))
    return ConfigFile(path, agents, daemon, frozenset(found.get("daemon", ())), servers, fleet)


def _servers(tables: object, problems: list[str]) -> dict[str, McpServer]:
    """Decode the MCP servers. Add their problems to ``problems``."""
    if not isinstance(tables, dict):
        problems.append("[mcp] is not a table: write [mcp.NAME]")
        return {}
    servers: dict[str, McpServer] = {}
    for name, table in tables.items():
        servers[name] = _table(f"[mcp.{name}]", table, McpServer, problems)
        if not is_mcp_name(name):
            problems.append(f"[mcp.{name}] is not a valid server name: {MCP_NAME_RULE}")
        if isinstance(table, dict) and not table.get("command") and not table.get("url"):
            problems.append(f"[mcp.{name}] command: missing; a server has a program to start, or a url")
    return servers


def _parsed(path: str) -> dict[str, Any]:
    import tomllib  # Imported lazily: few have a configuration file.

    try:
        return load(path, lambda data: tomllib.loads(data.decode("utf-8-sig")))
    except FileNotFoundError as problem:  # a dangling link, or removed just now
        raise ConfigError(f"{path}: {problem.strerror}") from None
    except MalformedFile as problem:
        raise InvalidConfigFile(str(problem), path=path, problems=(problem.reason,)) from None


def _misplaced(found: Mapping[str, Any]) -> list[str]:
    """Return the problems of names outside all tables."""
    tables = ("agents", "daemon", "fleet", "mcp")
    names = [name for name in found if name not in tables]
    return [
        f"{name} belongs to an agent: write it below [agents.default]"
        if name in AgentTable.__struct_fields__
        else f"{name}: {_unknown(name, tables)}"
        for name in names
    ]


def _table(label: str, found: object, kind: type[T], problems: list[str]) -> T:
    """Decode a table as ``kind``. Add its problems to ``problems`` and return an empty table if there are any."""
    try:
        return msgspec.convert(found, thread_safe_type(kind))
    except msgspec.ValidationError:
        pass
    if not isinstance(found, dict):
        problems.append(f"{label} is not a table")
        return kind()
    for name, value in found.items():
        # One by one: msgspec stops at the first problem.
        try:
            if name in kind.__struct_fields__:
                msgspec.convert({name: value}, thread_safe_type(kind))
            else:
                problems.append(f"{label} {name}: {_unknown(name, kind.__struct_fields__)}")
        except msgspec.ValidationError as problem:
            problems.append(f"{label} {_described(name, str(problem), kind)}")
    return kind()


def _described(name: str, problem: str, kind: type[msgspec.Struct]) -> str:
    """Return the problem of a setting, with the possible values if it has few."""
    words = explain_validation(problem, name)
    if problem.startswith("Invalid enum value"):
        words += f"; use one of: {', '.join(choices(kind, name))}"
    return words


def wrong_setting(kind: type[msgspec.Struct], settings: Mapping[str, object], problem: msgspec.ValidationError) -> str:
    """Explain the error in ``settings``, for which msgspec has raised ``problem``."""
    for name, value in settings.items():
        try:
            msgspec.convert({name: value}, thread_safe_type(kind))
        except msgspec.ValidationError as found:
            if name == "mcp" and isinstance(value, dict):
                problems: list[str] = []
                for server, table in value.items():
                    _table(f"mcp[{server!r}]", table, McpServer, problems)
                if problems:
                    return problems[0]
            return _described(name, str(found), kind)
    return explain(problem)


def choices(kind: type[msgspec.Struct], name: str) -> tuple[str, ...]:
    """Return the allowed values of a field, or of its keys, if it is a Literal."""
    described = types.type_info(kind)
    assert isinstance(described, types.StructType)
    waiting = [field.type for field in described.fields if field.name == name]
    while waiting:
        match waiting.pop():
            case types.LiteralType(values=values):
                return tuple(map(str, values))
            case types.UnionType(types=several):
                waiting += several
            case types.DictType(key_type=key):
                waiting.append(key)
            case _:
                pass
    return ()


def _unknown(name: str, known: Iterable[str]) -> str:
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    return f"unknown setting{did_you_mean(name, known)}"


class ListenAddress(msgspec.Struct, frozen=True):
    """Listen address. ``host`` has no brackets; ``port`` 0 means any free port; ``path`` is a prefix of our paths."""

    scheme: str
    host: str
    port: int
    path: str = ""

    @staticmethod
    def parse(text: str) -> ListenAddress:
        """Parse an address. Raise ValueError if it is invalid."""
        found = re.fullmatch(_ADDRESS, text)
        if found is None or int(found[3]) > _MAX_PORT:
            raise ValueError("expected addresses such as ws://127.0.0.1:7777, without a user, a query or a token")
        return ListenAddress(found[1], found[2].strip("[]"), int(found[3]), (found[4] or "").rstrip("/"))

    @property
    def is_secure(self) -> bool:
        """True if connections are encrypted."""
        return self.scheme == "wss"

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can connect. Names other than localhost may resolve to any address."""
        if self.host.lower() == "localhost":
            return True
        import ipaddress

        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


class Tls(msgspec.Struct, frozen=True):
    """Files of a TLS certificate chain and of its key, which may be in the same file."""

    cert: str
    key: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """Both files: either may have the key."""
        return (self.cert,) if self.key is None else (self.cert, self.key)


def checked_listen_address(url: str, tls: Tls | None) -> ListenAddress:
    """Return an address that is safe to listen at. Raise ConfigError."""
    try:
        address = ListenAddress.parse(url)
    except ValueError as problem:
        raise ConfigError(f"cannot listen at {url.partition('?')[0]}: {problem}") from None
    if not address.is_secure and not address.is_loopback:
        raise ConfigError(
            f"{address}: others could read unencrypted traffic. On this machine, use ws://127.0.0.1:{address.port}; "
            "elsewhere, use wss:// with --tls-cert and --tls-key"
        )
    if address.is_secure and tls is None:
        raise ConfigError(f"{address}: wss:// needs a certificate: --tls-cert FILE and --tls-key FILE")
    return address
