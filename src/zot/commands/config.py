"""`zot config`: each setting and its source. Never shows a secret."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import asdict, replace

from zot.commands.subcommands import CommandRequest, aligned, print_note, write, write_json
from zot.config import flags
from zot.config.config import (
    AGENT_FLAGS,
    DEFAULT_AGENT,
    DEFAULT_PROVIDER,
    Config,
    compatible_settings,
    config_directory,
    rule_warning,
    without_userinfo,
)
from zot.config.configured_agents import AgentConfigs
from zot.config.credentials import find
from zot.config.file import FILE_NAME
from zot.config.paths import given_config_dir
from zot.config.policy import Rule
from zot.config.shell_commands import risk_of
from zot.config.vendors import VENDORS, endpoint
from zot.errors import AgentError, ConfigError, InvalidConfigFile, UsageError
from zot.providers.models import Model
from zot.runtime.provider_choice import models_of
from zot.text import did_you_mean
from zot.ui.readable import counted, one_line

#: Flags that set a setting of another name.
_OTHER_NAMES = {"tools": "no_tools"}
#: Not a setting: the environment that the others were read from.
_HIDDEN = ("env",)

MANUAL = flags.Manual(
    "zot config [agents | daemon | check]",
    """\
Show every effective setting of an agent and its source: a flag, a variable, a table of config.toml, or the default.
The flags are those of `zot rpc`. Keys are never shown, only where they come from.

  zot config           settings of the default agent, or of --agent
  zot config agents    list the agents
  zot config daemon    settings of the daemon
  zot config check     check config.toml""",
    (flags.Flag("--json", "Print JSON."), *AGENT_FLAGS),
    examples=(("zot config check", "Find mistakes in config.toml before a program does."),),
    exits={0: "Done; config.toml has no mistakes.", 1: "It could not be read.", 2: "Wrong usage.",
           3: "zot config check found a mistake."},
)  # fmt: skip
_WIDTH = 70
_INVALID = 3


class SettingSource(msgspec.Struct, frozen=True):
    """The source of a value. ``name`` is the flag, the variable, or the file and its table; "" for a default."""

    source: Literal["flag", "environment", "file", "default"]
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.source


class Setting(msgspec.Struct, frozen=True, rename={"origins": "from"}):
    """An effective value and its sources: rules have several. The value of a key is only whether it is set."""

    value: Any
    origins: tuple[SettingSource, ...]


_DEFAULT = (SettingSource("default"),)


def settings_of(agents: AgentConfigs, config: Config, given: Mapping[str, Any]) -> dict[str, Setting]:
    """Return every setting of ``config``, which was resolved from ``given`` flags and the file of ``agents``."""
    table = compatible_settings(agents.settings(config.agent), given, config.environment)
    place = SettingSource("file", f"{agents.file.path} [agents.{config.agent}]")
    found = {
        name: Setting(getattr(config, name), _origins(name, given, table, place))
        for name in config.__struct_fields__
        if name not in _HIDDEN
    }
    found["mcp"] = _servers(agents, config, found["mcp"])
    found |= {"cwd": replace(found["cwd"], value=_directory(config)), **_effective(config, found)}
    if found["provider"].origins == _DEFAULT and config.provider != DEFAULT_PROVIDER:
        found["provider"] = replace(found["provider"], origins=found["api_key"].origins)  # chosen for its key
    return found


def daemon_settings_of(agents: AgentConfigs) -> dict[str, Setting]:
    """Return every setting of the daemon, and whether the file sets it."""
    place = (SettingSource("file", f"{agents.file.path} [daemon]"),)
    return {
        name: Setting(value, place if name in agents.file.daemon_names else _DEFAULT)
        for name, value in asdict(agents.file.daemon).items()
    }


def _origins(
    name: str, given: Mapping[str, Any], table: Mapping[str, Any], place: SettingSource
) -> tuple[SettingSource, ...]:
    key = next((key for key in (_OTHER_NAMES.get(name), name) if key in given), None)
    flag = () if key is None else (SettingSource("flag", _flag(key)),)
    if name == "policy":
        return (*flag, *((place,) if table.get(name) else ())) or _DEFAULT
    return flag or ((place,) if name in table else _DEFAULT)


def _servers(agents: AgentConfigs, config: Config, found: Setting) -> Setting:
    """Return the names of the MCP servers: their environment and arguments may contain secrets."""
    flag = tuple(one for one in found.origins if one.source == "flag")
    file = (SettingSource("file", f"{agents.file.path} [mcp]"),) if agents.file.mcp else ()
    return Setting([*config.mcp], (*flag, *file) or _DEFAULT)


def _directory(config: Config) -> str | None:
    try:
        return os.path.abspath(config.cwd or os.getcwd())
    except FileNotFoundError:  # It is gone; starting an agent there reports that.
        return None


def _flag(key: str) -> str:
    return next(flag.name for flag in AGENT_FLAGS if flag.key == key)


def _effective(config: Config, found: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return the defaults that depend on the service: model, address, API and key."""
    shown = {
        "api_key": _api_key(config, ""),
        "base_url": replace(found["base_url"], value=_place(config.base_url or "") or None),
    }
    vendor = VENDORS.get(config.provider)
    if vendor is None:
        return shown
    model = _model(config)
    address = config.base_url or (None if model is None else model.base_url)
    try:
        where = endpoint(vendor, api=config.api, base_url=address or None, env=config.environment)
    except AgentError:
        return shown  # Show settings that contradict each other as given.
    return {
        "model": replace(found["model"], value=config.model or (None if model is None else model.id)),
        "api": replace(found["api"], value=where.api),
        "base_url": Setting(_place(where.base_url), _address_origin(config, model) or found["base_url"].origins),
        "api_key": _api_key(config, where.base_url),
    }


def _model(config: Config) -> Model | None:
    """Return the configured model, or None if it is unknown: the other settings are still shown."""
    try:
        return models_of(config).find(config.model)
    except AgentError:
        return None


def _address_origin(config: Config, model: Model | None) -> tuple[SettingSource, ...]:
    """Return the source of an address that is neither given nor the provider's default; empty if it is."""
    if config.base_url:
        return ()
    if model is not None and model.base_url:
        return (SettingSource("file", "models.json"),)
    names = VENDORS[config.provider].base_url_names
    return tuple(SettingSource("environment", name) for name in names if config.environment.get(name))[:1]


def _place(base_url: str) -> str:
    """Return an address without userinfo and query, which may be secret."""
    return without_userinfo(base_url).partition("?")[0]


def _api_key(config: Config, base_url: str) -> Setting:
    """Return whether a key is set, valid or not."""
    vendor = VENDORS.get(config.provider)
    if config.api_key:
        return Setting("set", (SettingSource("flag", "--api-key"),))
    if vendor is None:
        return Setting(None, _DEFAULT)
    if name := next((name for name in vendor.key_names if config.environment.get(name)), None):
        return Setting("set", (SettingSource("environment", name),))
    stored = find(vendor, None, config.environment, base_url=base_url)
    return Setting(None, _DEFAULT) if stored is None else Setting("set", (SettingSource("file", stored.origin),))


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    if (given := flags.parse_or_help(argv, MANUAL)) is None:
        return 0
    settings, words = given
    answer = _ANSWERS.get(" ".join(words))
    if answer is None:
        known = [*filter(None, _ANSWERS)]
        near = did_you_mean(words[0], known)
        raise UsageError(f"zot config has no subcommand {words[0]!r}; known: {', '.join(known)}{near}")
    return answer(CommandRequest(words, settings))


def _show(request: CommandRequest) -> int:
    """Show the settings of one agent."""
    agents = _load(request)
    given = {name: value for name, value in request.settings.items() if name not in ("json", "config_dir")}
    config = agents.config(given.get("agent", DEFAULT_AGENT), given)
    return _print_settings(request, agents, settings_of(agents, config, given))


def _daemon(request: CommandRequest) -> int:
    """Show the settings of the daemon."""
    agents = _load(request)
    return _print_settings(request, agents, daemon_settings_of(agents))


def _print_settings(request: CommandRequest, agents: AgentConfigs, found: Mapping[str, Setting]) -> int:
    if request.json:
        write_json({"file": agents.file.path or None, "settings": found})
        return 0
    rows = [
        (name, _cell(setting.value), one_line(" and ".join(map(str, setting.origins))))
        for name, setting in found.items()
    ]
    write(aligned([("SETTING", "VALUE", "FROM"), *rows]))
    if not agents.file.path:
        print_note(f"no {FILE_NAME}{f' in {agents.directory}' if agents.directory else ''}: the defaults apply")
    return 0


def _cell(value: object) -> str:
    if value is None:
        return "-"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return one_line(text, _WIDTH) or '""'


def _agents(request: CommandRequest) -> int:
    """List the agents and their main settings."""
    agents = _load(request)
    configs = [agents.config(name) for name in agents.names]
    if request.json:
        for one in configs:
            known = {name: getattr(one, name) for name in ("agent", "provider", "model", "cwd")}
            write_json({**known, "has_policy": agents.has_policy(one.agent)})
        return 0
    rows = (
        (_cell(one.agent), one.provider, _cell(one.model), _cell(one.cwd), "yes" if one.policy else "no")
        for one in configs
    )
    write(aligned([("AGENT", "PROVIDER", "MODEL", "CWD", "POLICY"), *rows]))
    return 0


def _check(request: CommandRequest) -> int:
    """Report the errors in the file; return the exit code."""
    directory = _config_dir(request)
    path = None if directory is None else os.path.join(directory, FILE_NAME)
    problems: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    try:
        agents = AgentConfigs.load(directory)
        names, path = agents.names, agents.file.path or None
        problems, warnings = _rule_findings(agents)
    except InvalidConfigFile as problem:
        problems = problem.problems
    except ConfigError as problem:  # The file cannot be read.
        problems = (str(problem).removeprefix(f"{path}: "),)
    if request.json:
        write_json({"ok": not problems, "file": path, "agents": names, "problems": problems, "warnings": warnings})
    elif problems:
        for one in problems:
            print_note(f"{path}: {one}")
    else:
        for one in warnings:
            print_note(f"{path}: warning: {one}")
        write(_verdict(path, names))
    return _INVALID if problems else 0


def _rule_findings(agents: AgentConfigs) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the problems and the warnings about policy rules.

    A rule may name a tool that zot does not have, or allow commands that write files although it looks narrow.
    """
    problems, warnings = [], []
    for name in agents.names:
        for number, text in enumerate(agents.table(name).policy or ()):
            place, rule = f"[agents.{name}] policy[{number}]: {text!r}: ", Rule.parse(text)
            try:
                found = rule_warning(agents.config(name), rule.tool).removeprefix("policy: ")
            except ConfigError as problem:
                problems.append(f"{place}{str(problem).removeprefix('policy: ')}")
                continue
            risk = risk_of(rule.pattern) if rule.action == "allow" and rule.tool in ("bash", "*") else ""
            warnings += [f"{place}{one}" for one in (found, risk) if one]
    return tuple(problems), tuple(warnings)


def _verdict(path: str | None, names: Sequence[str]) -> str:
    if path is None:
        return f"no {FILE_NAME}: the defaults apply\n"
    return f"{path}: valid, with {counted(len(names), 'agent')}: {one_line(', '.join(names))}\n"


def _load(request: CommandRequest) -> AgentConfigs:
    return AgentConfigs.load(_config_dir(request))


def _config_dir(request: CommandRequest) -> str | None:
    """Return the directory of config.toml, or the daemon's if its variable is set."""
    named = given_config_dir(os.environ, request.settings.get("config_dir"))
    if named is None or "config_dir" in request.settings:
        return config_directory(request.settings)
    print_note(f"ZEROCLAW_CONFIG_DIR is set: this is the {FILE_NAME} of the daemon; other commands do not read it")
    return named


_ANSWERS: Mapping[str, Callable[[CommandRequest], int]] = {
    "": _show,
    "agents": _agents,
    "daemon": _daemon,
    "check": _check,
}
