"""Config: flags, environment and config.toml resolved into one frozen value."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Annotated, Any, get_args

import msgspec

from zot.config.flags import (
    Choice,
    DeadlineName,
    Dollars,
    Flag,
    McpServer,
    Reasoning,
    Seconds,
    choice,
    dollars,
    mcp_server,
    positive,
    seconds,
    switch,
)
from zot.config.vendors import KEY_NAMES, VENDORS, ApiName, same_address
from zot.encoding import thread_safe_type
from zot.errors import ABSENT, ConfigError, NoSuchAgent, UsageError
from zot.text import did_you_mean

#: Names the database or file of sessions. An address may have a password.
STORE_VARIABLE = "ZOT_STORE"
#: Variables that never reach a tool or an extension: our token, the keys of all providers, the address of the store.
SECRET_NAMES = frozenset({"ZOTCORE_RPC_TOKEN", "ANTHROPIC_AUTH_TOKEN", STORE_VARIABLE}) | KEY_NAMES

#: Variables with the proxies we use, which may contain a user name and password.
PROXY_NAMES = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_ADDRESS_NAMES = frozenset(name for vendor in VENDORS.values() for name in vendor.base_url_names)

#: The agent used when none is named.
DEFAULT_AGENT = "default"
#: The provider where none is configured and none has a key.
DEFAULT_PROVIDER = "anthropic"

TOOL_NAMES = ("bash", "edit", "read", "skill", "write")
#: The names of MCP tools begin so: mcp__SERVER__TOOL.
MCP_PREFIX = "mcp__"
#: Tools that a session with MCP servers has.
MCP_TOOL_NAMES = ("find_tools", "read_mcp_resource")
#: The project's list of MCP servers, in its directory.
MCP_FILE = ".mcp.json"

#: Settings that a session records and resumes with, unless given.
RECORDED = ("provider", "model", "reasoning", "cwd")

#: Settings that shape the system prompt: unless one of them is given, a resumed session keeps its prompt.
PROMPTING = frozenset(
    {
        "system_prompt",
        "append_system_prompt",
        "no_instructions",
        "output_schema",
        "skills",
        "no_skill",
        "tools",
        "no_tools",
        "cwd",
    }
)

#: Settings of one provider: its address and key must not be used for another.
OF_PROVIDER = ("base_url", "api", "api_key", "script", "replay")


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a Runtime, all optional. Without a ``provider``, it is the first that has a key."""

    agent: str = DEFAULT_AGENT
    provider: str = ""
    model: str | None = None
    api_key: str | None = None
    base_url: str | None = None
    api: ApiName | None = None
    cwd: str | None = None
    system_prompt: str | None = None
    append_system_prompt: tuple[str, ...] = ()
    no_instructions: bool = False
    reasoning: Reasoning = "off"
    max_steps: Annotated[int, msgspec.Meta(ge=1)] = 50
    max_cost: Dollars | None = None
    max_tokens_total: Annotated[int, msgspec.Meta(ge=1)] | None = None
    auto_compact: bool | None = None
    compact_at: Annotated[int, msgspec.Meta(ge=1)] | None = None
    output_schema: str | None = None
    tools: tuple[str, ...] | None = None
    policy: tuple[str, ...] = ()
    approval_timeout_s: Seconds = 120.0
    approvals: bool = False
    questions: bool = False
    lock: bool = False
    lock_net: bool = False
    lock_env: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    no_skill: bool = False
    trust_project: bool = False
    ext: tuple[str, ...] = ()
    no_ext: bool = False
    unsandboxed_ext: bool = False
    ext_deadlines: dict[DeadlineName, Seconds] = {}
    mcp: dict[str, McpServer] = {}
    mcp_servers: tuple[str, ...] = ("*",)
    mcp_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    session: str | None = None
    journal: str | None = None
    private: tuple[str, ...] = ()
    data: str | None = None
    script: str | None = None
    record: str | None = None
    replay: str | None = None
    replay_paced: bool = False
    replay_checked: bool = False
    frozen_time: str | None = None
    env: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if not self.provider:
            settings = {"api_key": self.api_key, "base_url": self.base_url, "api": self.api}
            msgspec.structs.force_setattr(self, "provider", _unnamed(settings, self.environment))

    def __repr__(self) -> str:
        """List the settings, without secrets."""
        hidden = ["env", "api_key", *(name for name in ("base_url", "journal") if "@" in (getattr(self, name) or ""))]
        pairs = ((name, getattr(self, name)) for name in self.__struct_fields__ if name not in hidden)
        return f"Config({', '.join(f'{name}={value!r}' for name, value in pairs)})"

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment to work in: the one given, else the process's own."""
        return os.environ if self.env is None else self.env


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _deadline(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in get_args(DeadlineName):
        raise ValueError(f"unknown deadline {name!r}; known: {', '.join(get_args(DeadlineName))}")
    return name, seconds(value)


def _rule(text: str) -> str:
    from zot.config.policy import Rule  # Imported lazily: most runs have no rule.

    try:
        Rule.parse(text)
    except ConfigError as problem:
        raise ValueError(str(problem)) from None
    return text


def store_address(text: str) -> str:
    """Parse the address of a database, or the path of a file."""
    if not text or ("://" in text and not is_database(text)):
        raise ValueError("must be an address that begins with postgresql://, or the path of a file")
    return text if "://" in text else os.path.abspath(text)


STORE_FLAG = Flag(
    "--store",
    "Use the sessions in this PostgreSQL database, which needs the extra `fleet`, or in this file (default: $ZOT_STORE,"
    " else journal.db in zot's home).",
    value="URL",
    parse=store_address,
    setting="journal",
    group="Session",
    advanced=True,
)
#: The flags of every command that runs an agent.
AGENT_FLAGS: Sequence[Flag] = (
    Flag("--provider", "Call this model service (default: the first that has a key). `lab` needs no key, no network.",
         value="NAME", parse=Choice(tuple(sorted(VENDORS)), "provider"), group="Model"),
    Flag("--model", "Use this model (default: the provider's first; `zot models` lists them).",
         value="ID", group="Model"),
    Flag("--reasoning", "Let the model think: off, low, medium or high (default: off).",
         value="LEVEL", parse=choice(*get_args(Reasoning)), group="Model"),
    Flag("--api-key", "Use this key. Other users can see arguments; prefer the provider's variable or `zot login`.",
         value="KEY", group="Model", advanced=True),
    Flag("--base-url", "Call this server, which speaks the provider's API.", value="URL", group="Model"),
    Flag("--api", "Choose the API where a provider has several: anthropic, responses, chat or gemini.",
         value="NAME", parse=choice("anthropic", "responses", "chat", "gemini"), group="Model", advanced=True),
    Flag("--agent", "Use the agent [agents.NAME] of config.toml (default: default).", value="NAME", group="Session"),
    Flag("--cwd", "Run the tools in this directory (default: the current one).", value="DIR", group="Session"),
    Flag("--session", "Record the conversation under this id, or resume the one that has it.",
         value="ID", group="Session"),
    Flag("--no-session", "Record nothing.", group="Session"),
    STORE_FLAG,
    Flag("--config-dir", "Read config.toml in this directory (default: $ZOT_HOME).",
         value="DIR", group="Session", advanced=True),
    Flag("--tools", "Offer exactly these tools: bash, edit, read, skill, write, or tools of extensions.",
         value="A,B", parse=_names, group="Tools and permissions"),
    Flag("--no-tools", "Offer no tools, not even those of extensions.", group="Tools and permissions"),
    Flag("--policy", "Allow, deny or ask: TOOL[:PATTERN]=ACTION, such as 'bash=ask'. The first matching rule decides.",
         value="RULE", many=True, parse=_rule, group="Tools and permissions"),
    Flag("--approval-timeout", "Deny a call that no person has approved after this long (default: 120).",
         value="SECONDS", parse=seconds, setting="approval_timeout_s", group="Tools and permissions", advanced=True),
    Flag("--lock", "Confine the tools to the directory, and bash to a sandbox without network. Needs bubblewrap.",
         group="Tools and permissions"),
    Flag("--lock-net", "With --lock: let bash use the network.", group="Tools and permissions", advanced=True),
    Flag("--lock-env", "With --lock: pass this environment variable to bash.",
         value="NAME", many=True, group="Tools and permissions", advanced=True),
    Flag("--protect", "With --lock: make this path in the directory read-only for tools.",
         value="PATH", many=True, setting="protected", group="Tools and permissions", advanced=True),
    Flag("--ext", "Load the extension in this directory.",
         value="DIR", short="-e", many=True, group="Extensions and skills"),
    Flag("--no-ext", "Do not load installed and project extensions; --ext still counts.",
         group="Extensions and skills", advanced=True),
    Flag("--no-extensions", "Same as --no-ext.", setting="no_ext", group="Extensions and skills", advanced=True),
    Flag("--ext-deadline", "Change a deadline of extensions, such as tool=120 or hello=60.",
         value="NAME=SECONDS", parse=_deadline, many=True, setting="ext_deadlines", group="Extensions and skills",
         advanced=True),
    Flag("--unsandboxed-ext", "Run extensions that declare permissions even without bubblewrap to enforce them.",
         group="Extensions and skills", advanced=True),
    Flag("--mcp", "Offer the tools of this MCP server, such as files='mcp-files --root .' or docs=URL.",
         value="NAME=COMMAND", parse=mcp_server, many=True, group="Extensions and skills"),
    Flag("--skill", "Load the skill in this directory (a SKILL.md).",
         value="DIR", many=True, setting="skills", group="Extensions and skills", advanced=True),
    Flag("--no-skill", "Load no skills.", group="Extensions and skills", advanced=True),
    Flag("--no-skills", "Same as --no-skill.", setting="no_skill", group="Extensions and skills", advanced=True),
    Flag("--trust-project", "Load the project's skills, extensions and MCP servers without asking.",
         group="Extensions and skills", advanced=True),
    Flag("--system-prompt", "Replace zot's system prompt.", value="TEXT", group="Prompt", advanced=True),
    Flag("--append-system-prompt", "Add to the system prompt.", value="TEXT", many=True, group="Prompt", advanced=True),
    Flag("--no-instructions", "Do not read AGENTS.md files.", group="Prompt", advanced=True),
    Flag("--output-schema", "Require an answer that matches this JSON Schema. Needs the extra `schema`.",
         value="FILE", group="Prompt", advanced=True),
    Flag("--max-steps", "Stop after this many model calls per prompt (default: 50).",
         value="N", parse=positive, group="Limits", advanced=True),
    Flag("--max-cost", "Stop calling the model once the session has cost this much.",
         value="USD", parse=dollars, group="Limits"),
    Flag("--max-tokens-total", "Stop calling the model once the session has used this many tokens.",
         value="N", parse=positive, group="Limits", advanced=True),
    Flag("--auto-compact", "Compact the conversation when it would not fit the model's window: on or off.",
         value="ON|OFF", parse=switch, group="Limits", advanced=True),
    Flag("--compact-at", "Compact once the conversation has this many tokens.",
         value="TOKENS", parse=positive, group="Limits", advanced=True),
    Flag("--script", "With --provider lab: play this script.", value="FILE", group="Testing", advanced=True),
    Flag("--record", "Save every request and the streamed reply to a file.",
         value="FILE", group="Testing", advanced=True),
    Flag("--replay", "With --provider lab: replay this recording.", value="FILE", group="Testing", advanced=True),
    Flag("--replay-paced", "Replay at the recorded pace instead of full speed.", group="Testing", advanced=True),
    Flag("--replay-checked", "Refuse requests that differ from the recorded ones, and name the difference.",
         group="Testing", advanced=True),
    Flag("--frozen-time", "Stamp events with this time, one millisecond apart.",
         value="TIME", group="Testing", advanced=True),
)  # fmt: skip

#: Select the conversation of one prompt; `zot rpc` accepts and ignores them.
RESUME_FLAGS: Sequence[Flag] = (
    Flag("--continue", "Resume the newest session of the directory.", short="-c", group="Session"),
    Flag(
        "--resume", "Resume this session; without an id, same as --continue.", value="[ID]", short="-r", group="Session"
    ),
)

#: Flags of the original zot that have no effect here, each with the reason.
FOREIGN_FLAGS: Sequence[Flag] = (
    Flag("--with-skills", "skills are loaded unless --no-skill is given"),
    Flag("--with-skill", "skills are loaded unless --no-skill is given"),
    Flag("--no-yolo", "zot asks for no confirmation by default; use --policy to limit tools"),
    Flag("--list-models", "use: zot models"),
)


def pop_resume_flags(settings: dict[str, Any]) -> str | None:
    """Remove the flags that select an earlier session; return its id, "" for the newest, None without them."""
    asked = [name for name in ("session", "continue", "resume", "no_session") if name in settings]
    if len(asked) > 1:
        first, second = (f"--{name.replace('_', '-')}" for name in asked[:2])
        raise UsageError(f"{first} and {second} exclude each other")
    newest = "" if settings.pop("continue", False) else None
    named: str | None = settings.pop("resume", newest)
    return named


def ignore_foreign(settings: dict[str, Any], words: Sequence[str] = (), reason: str = "") -> None:
    """Remove the foreign flags from ``settings``. Name each on standard error, and the first of ``words`` that are
    ignored, with the ``reason``."""
    found = [(flag.name, flag.help) for flag in FOREIGN_FLAGS if settings.pop(flag.key, False)]
    for name, why in (*found, *((repr(word), reason) for word in words[:1])):
        if sys.stderr is not None:
            sys.stderr.write(f"zot: {name} has no effect: {why}\n")


def resolve(settings: Mapping[str, Any], env: Mapping[str, str] | None = None, *, or_default: bool = False) -> Config:
    """Return the Config that flags, environment and files make together; a flag wins over a file.

    The setting ``agent`` selects a table of config.toml. A missing table is an error; with ``or_default`` it is
    logged and the default agent is used.

    Raise NoSuchAgent, or ConfigError with the wrong file and field.
    """
    agent: str = settings.get("agent", DEFAULT_AGENT)
    tables = _tables(config_directory(settings, env))
    if agent not in tables and agent != DEFAULT_AGENT:
        if not or_default:
            raise no_such_agent(agent, dict.fromkeys((DEFAULT_AGENT, *tables)))
        import logging  # Imported lazily: hello is answered without it.

        logging.getLogger("zot").warning("no agent %r in config.toml: the default agent answers", agent)
        agent = DEFAULT_AGENT
    return merge_settings({**settings, "agent": agent}, tables.get(agent, {}), env)


def merge_settings(settings: Mapping[str, Any], stored: Mapping[str, Any], env: Mapping[str, str] | None) -> Config:
    """Return the Config of ``settings`` over those ``stored`` in a file. Raise UsageError."""
    given = {name: value for name, value in settings.items() if name != "config_dir"}
    if given.pop("no_tools", False):
        given["tools"] = ()
    if (deadlines := given.get("ext_deadlines")) is not None:
        given["ext_deadlines"] = dict(deadlines)
    if (servers := given.get("mcp")) is not None:
        given["mcp"] = {**stored.get("mcp", {}), **dict(servers)}
    if given.get("session") == "":
        raise UsageError("--session needs a name, and this one is empty")
    if given.pop("no_session", False) and "session" in given:
        raise UsageError("--session and --no-session exclude each other")
    if config_dir := settings.get("config_dir"):
        names = ("config.toml", "data")
        given["private"] = (*given.get("private", ()), *(os.path.join(config_dir, name) for name in names))
    environment = os.environ if env is None else env
    kept = compatible_settings(stored, given, environment)
    if (cwd := kept.get("cwd", "")).startswith("~/"):
        kept["cwd"] = os.path.join(environment.get("HOME") or "/", cwd[2:])
    # The file's rules still apply after those of the flags.
    given["policy"] = (*given.get("policy", ()), *stored.get("policy", ()))
    return Config(**{**kept, **given}, env=env)


def agent_names(settings: Mapping[str, Any], env: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the configured agents, the default one first. Raise ConfigError."""
    return tuple(dict.fromkeys((DEFAULT_AGENT, *_tables(config_directory(settings, env)))))


def no_such_agent(agent: str, known: Iterable[str]) -> NoSuchAgent:
    """Return an error that lists the configured agents."""
    names = ", ".join(name if name.isprintable() else repr(name) for name in known)
    near = did_you_mean(agent, known)
    return NoSuchAgent(f"no agent {agent!r} in config.toml; known: {names}{near}")


def config_directory(settings: Mapping[str, Any], env: Mapping[str, str] | None = None) -> str | None:
    """Return the directory of config.toml; None if there is no such place. Raise ConfigError."""
    named: str | None = settings.get("config_dir")
    if named is not None and not os.path.isdir(named):
        raise ConfigError(f"--config-dir {named}: no such directory")
    return named or zot_home(os.environ if env is None else env)


def _tables(directory: str | None) -> Mapping[str, Mapping[str, Any]]:
    """Return each agent's settings in the file. Raise ConfigError."""
    if directory is None or not may_exist(os.path.join(directory, "config.toml")):
        return {}  # Skips the import of the reader: most users have no file.
    from zot.config.file import read

    found = read(directory)
    shared = {"mcp": found.mcp} if found.mcp else {}
    default = {DEFAULT_AGENT: shared} if shared else {}
    return {**default, **{name: {**table.settings, **shared} for name, table in found.agents.items()}}


def compatible_settings(stored: Mapping[str, Any], given: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """Return the stored settings that fit the given ones: a model and an address belong to their provider."""
    named: str | None = given.get("provider")
    if named is None or named == (stored.get("provider") or _unnamed(stored, env)):
        return dict(stored)
    return {name: value for name, value in stored.items() if name not in ("model", "base_url", "api")}


def _unnamed(settings: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """Return the provider of ``settings`` that name none: a key, an address or an API means Anthropic."""
    is_tied = any(settings.get(name) is not None for name in ("api_key", "base_url", "api"))
    return DEFAULT_PROVIDER if is_tied else default_provider(env)


def may_exist(path: str) -> bool:
    """True unless there is certainly no such file. `files.is_there` reports other errors; start-up does not load it."""
    try:
        os.lstat(path)
    except ABSENT:
        return False
    except (OSError, ValueError):
        return True
    return True


def default_provider(env: Mapping[str, str]) -> str:
    """Return the first provider, in the order of VENDORS, that has a key or another address; else Anthropic.

    Providers that need no key are never a default. A key in auth.json counts at the address it was stored for.
    """
    stored: Mapping[str, str] | None = None
    for vendor in VENDORS.values():
        if not vendor.needs_key:
            continue
        if any(env.get(name) for name in (*vendor.key_names, *vendor.base_url_names)):
            return vendor.name
        if stored is None:
            stored = _stored_addresses(env)
        if vendor.name in stored and same_address(stored[vendor.name], vendor.base_url):
            return vendor.name
    return DEFAULT_PROVIDER


def _stored_addresses(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the providers with a key in auth.json, and its address.

    An unusable file counts as empty here: the error comes when the key is read.
    """
    home = zot_home(env)
    if home is None or not may_exist(os.path.join(home, "auth.json")):
        return {}
    from zot.config.auth_file import addresses  # Imported lazily: few users have stored keys.

    try:
        found = addresses(home)
    except ConfigError:
        return {}
    return {name: found[name] or vendor.base_url for name, vendor in VENDORS.items() if name in found}


class ConfigOverrides(msgspec.Struct, frozen=True):
    """The settings that a user gave, by name: a resumed session uses them instead of its recorded ones.

    ``flags`` is the command line that they come from, if any.
    """

    names: frozenset[str] = frozenset()
    flags: Mapping[str, Any] | None = None

    @classmethod
    def of_flags(cls, flags: Mapping[str, Any]) -> ConfigOverrides:
        """Return the overrides of a command line.

        Naming an agent also selects its service, model and prompt, but not its directory.
        """
        of_agent = ("provider", "model", "reasoning", "system_prompt") if "agent" in flags else ()
        return cls(frozenset((*flags, *of_agent)), flags)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def including(self, *names: str) -> ConfigOverrides:
        """Return these overrides and others."""
        return ConfigOverrides(self.names.union(names), self.flags)

    def config_of(self, agent: str) -> Config | None:
        """Return an agent's Config with the flags applied; None without flags. Raise NoSuchAgent, ConfigError."""
        return None if self.flags is None else resolve({**self.flags, "agent": agent})


def resumed(config: Config, recorded: Mapping[str, str], overrides: Container[str]) -> Config:
    """Return ``config`` with the settings ``recorded`` for a session, except ``overrides``."""
    taken: dict[str, str | None] = {name: recorded[name] for name in RECORDED if name not in overrides}
    if config.provider != recorded["provider"]:  # Model, address and key belong to their provider.
        if "provider" in overrides:
            taken.pop("model", None)
        else:
            taken |= {name: None for name in OF_PROVIDER if name not in overrides}
    return msgspec.structs.replace(config, **taken)


def tool_names(config: Config) -> tuple[str, ...]:
    """Return the enabled built-in tools. Raise ConfigError for a name that no extension can provide either."""
    names = TOOL_NAMES if config.tools is None else config.tools
    unknown = [name for name in names if name not in TOOL_NAMES]
    unknown = [name for name in unknown if not name.startswith(MCP_PREFIX)]
    if unknown and not extension_places(config):
        near = did_you_mean(unknown[0], TOOL_NAMES)
        raise ConfigError(f"unknown tool {unknown[0]!r}; known: {', '.join(TOOL_NAMES)}{near}")
    return tuple(name for name in names if name in TOOL_NAMES and (name != "skill" or not config.no_skill))


def rule_warning(config: Config, tool: str) -> str:
    """Return why a policy rule about ``tool`` may have no effect; "" if zot has such a tool.

    Raise ConfigError if the name is a built-in one with a typing mistake and no extension can provide the tool.
    """
    if tool in ("*", *TOOL_NAMES, *MCP_TOOL_NAMES) or tool.startswith(MCP_PREFIX):
        return ""
    meant = next((name for name in TOOL_NAMES if _is_misspelling(tool.lower(), name)), None)
    if meant is not None and not extension_places(config):
        raise ConfigError(f"policy: no tool is named {tool!r}; did you mean {meant}?")
    near = f"; did you mean {meant}?" if meant else ""
    own = ", ".join(TOOL_NAMES)
    return f"policy: zot has no tool {tool!r}, so the rule applies only if an extension adds it; zot has {own}{near}"


def _is_misspelling(word: str, name: str) -> bool:
    """True if ``word`` is ``name`` with at most one letter added, missing or wrong, or two swapped."""
    while word and name and word[0] == name[0]:
        word, name = word[1:], name[1:]
    while word and name and word[-1] == name[-1]:
        word, name = word[:-1], name[:-1]
    return max(len(word), len(name)) <= 1 or (len(name) == 2 and word == name[::-1])


def extension_places(config: Config) -> list[str]:
    """Return the directories to look for extensions in: named ones, and the usual ones that exist."""
    if config.no_ext:
        return list(config.ext)
    home = zot_home(config.environment)
    places = [
        os.path.join(config.cwd or ".", ".zot", "extensions"),
        *([os.path.join(home, "extensions")] if home else []),
    ]
    return [*config.ext, *(place for place in places if _is_place(place))]


def has_mcp(config: Config, cwd: str) -> bool:
    """True if a session in ``cwd`` may have MCP servers: configured ones, or those of the project."""
    if config.tools is not None and not any(name.startswith(MCP_PREFIX) for name in config.tools):
        return False
    return bool(config.mcp) or may_exist(os.path.join(cwd, MCP_FILE))


def _is_place(path: str) -> bool:
    """True if ``path`` is a directory, or may be one."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def is_database(path: str) -> bool:
    """True if sessions are recorded in a database, not in a file."""
    return path.startswith(("postgresql://", "postgres://"))


def journal_path(config: Config) -> str:
    """Return the path of the journal, or the address of its database. Raise ConfigError if there is no home."""
    if path := config.journal or config.environment.get(STORE_VARIABLE):
        return path
    home = zot_home(config.environment)
    if home is None:
        raise ConfigError("no directory to record sessions in: set ZOT_HOME or HOME")
    return os.path.join(home, "journal.db")


def zot_home(env: Mapping[str, str]) -> str | None:
    """Return zot's home directory, which may not exist; None if the environment names none."""
    if home := env.get("ZOT_HOME"):
        return home
    if state := env.get("XDG_STATE_HOME"):
        return os.path.join(state, "zot")
    if not (user := env.get("HOME")):
        return None
    if sys.platform == "darwin":
        return os.path.join(user, "Library", "Application Support", "zot")
    return os.path.join(user, ".local", "state", "zot")


def data_directory(config: Config) -> str | None:
    """Return the directory for data written at run time: ``data``, or zot's home."""
    return config.data or zot_home(config.environment)


def tool_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for tools: without our secrets, and without passwords in service addresses.

    A proxy's password stays: without it, tools could not reach the network.
    """
    return {
        name: without_userinfo(value) if name in _ADDRESS_NAMES else value
        for name, value in keyless_environment(env).items()
    }


def keyless_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the user's own commands: without our keys and our token."""
    return {name: value for name, value in env.items() if name not in SECRET_NAMES}


def without_userinfo(address: str) -> str:
    """Return ``address`` without user name and password."""
    scheme, separator, rest = address.rpartition("://")
    return scheme + separator + rest.rpartition("@")[2]


def checked(settings: Mapping[str, Any], base: Config | None = None) -> Config:
    """Return ``base`` with ``settings``. Raise ConfigError if one is unknown or of the wrong type."""
    if not isinstance(base, Config | None):
        raise ConfigError("the configuration must be a zot.Config; settings are given by name")
    if unknown := [name for name in settings if name not in Config.__struct_fields__]:
        raise ConfigError(f"{unknown[0]} is not a setting{did_you_mean(unknown[0], Config.__struct_fields__)}")
    fields = {} if base is None else msgspec.structs.asdict(base)
    paths = {name: os.fspath(value) for name, value in settings.items() if isinstance(value, os.PathLike)}
    try:
        return msgspec.convert({**fields, **settings, **paths}, thread_safe_type(Config))
    except msgspec.ValidationError as problem:
        from zot.config.file import wrong_setting  # Imported lazily: only mistakes need it.

        raise ConfigError(wrong_setting(Config, {**settings, **paths}, problem)) from None
