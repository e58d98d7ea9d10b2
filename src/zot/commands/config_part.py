"""`zot config`: what is configured, where each value comes from, and what is wrong. Shows no secret."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

import msgspec

from zot.commands.config import Setting, daemon_settings_of, settings_of
from zot.commands.subcommands import Request, aligned, remark, write, write_json
from zot.config import flags
from zot.config.agents import Agents
from zot.config.config import AGENT_FLAGS, DEFAULT_AGENT, config_directory
from zot.config.file import FILE_NAME
from zot.config.paths import given_config_dir
from zot.errors import ConfigError, InvalidConfigFile, UsageError
from zot.ui.readable import counted, one_line

_FLAGS = (*AGENT_FLAGS, flags.Flag("--json", "for programs"))
_SUMMARY = """\
Show every setting of an agent as it counts, and where it comes from: a flag, a variable, a table of config.toml or
zot itself. The flags are those of `zot rpc`. Of a key it only says where it is.

  zot config           how the default agent works, or that of --agent
  zot config agents    which agents there are
  zot config daemon    how the daemon works
  zot config check     what is wrong with config.toml; the exit code is 0 if nothing is, else 3"""
_WIDTH = 70
_INVALID = 3


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    settings, words = flags.parse(argv, (*_FLAGS, flags.Flag("--help", "this text", short="-h")))
    if settings.pop("help", False):
        sys.stdout.write(flags.usage("zot config [agents | daemon | check]", _SUMMARY, _FLAGS) + "\n")
        return 0
    answer = _ANSWERS.get(" ".join(words))
    if answer is None:
        raise UsageError(f"zot config cannot {words[0]!r}; it can show {', '.join(filter(None, _ANSWERS))}")
    return answer(Request(words, settings))


def _show(request: Request) -> int:
    """Show the settings of one agent."""
    agents = _load(request)
    given = {name: value for name, value in request.settings.items() if name not in ("json", "config_dir")}
    config = agents.config(given.get("agent", DEFAULT_AGENT), given)
    return _tell(request, agents, settings_of(agents, config, given))


def _daemon(request: Request) -> int:
    """Show the settings of the daemon."""
    agents = _load(request)
    return _tell(request, agents, daemon_settings_of(agents))


def _tell(request: Request, agents: Agents, found: Mapping[str, Setting]) -> int:
    if request.json:
        write_json({"file": agents.file.path or None, "settings": found})
        return 0
    rows = [
        (name, _cell(setting.value), one_line(" and ".join(map(str, setting.origins))))
        for name, setting in found.items()
    ]
    write(aligned([("SETTING", "VALUE", "FROM"), *rows]))
    if not agents.file.path:
        remark(f"there is no {FILE_NAME}{f' in {agents.directory}' if agents.directory else ''}, and need not be")
    return 0


def _cell(value: object) -> str:
    if value is None:
        return "-"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return one_line(text, _WIDTH) or '""'


def _agents(request: Request) -> int:
    """List the agents, and what tells them apart."""
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


def _check(request: Request) -> int:
    """Say what is wrong with the file; return the exit code."""
    directory = _directory(request)
    path = None if directory is None else os.path.join(directory, FILE_NAME)
    problems: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    try:
        agents = Agents.load(directory)
        names, path = agents.names, agents.file.path or None
    except InvalidConfigFile as problem:
        problems = problem.problems
    except ConfigError as problem:  # It cannot be read.
        problems = (str(problem).removeprefix(f"{path}: "),)
    if request.json:
        write_json({"ok": not problems, "file": path, "agents": names, "problems": problems})
    elif problems:
        for one in problems:
            remark(f"{path}: {one}")
    else:
        write(_verdict(path, names))
    return _INVALID if problems else 0


def _verdict(path: str | None, names: Sequence[str]) -> str:
    if path is None:
        return f"there is no {FILE_NAME}, and need not be\n"
    return f"{path}: valid, with {counted(len(names), 'agent')}: {one_line(', '.join(names))}\n"


def _load(request: Request) -> Agents:
    return Agents.load(_directory(request))


def _directory(request: Request) -> str | None:
    """Return where config.toml is looked for: by the daemon, too, which can be told so by a variable."""
    named = given_config_dir(os.environ, request.settings.get("config_dir"))
    if named is None or "config_dir" in request.settings:
        return config_directory(request.settings)
    remark(f"ZEROCLAW_CONFIG_DIR is set: this is the {FILE_NAME} of the daemon, which other commands do not read")
    return named


_ANSWERS: Mapping[str, Callable[[Request], int]] = {"": _show, "agents": _agents, "daemon": _daemon, "check": _check}
