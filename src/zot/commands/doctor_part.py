"""`zot doctor`: what is set up, what is missing, and if the model service can be reached. Shows no secret."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from zot.commands.doctor import Check, Report, examine
from zot.config import flags
from zot.config.agents import Agents
from zot.config.config import AGENT_FLAGS, Config, config_directory, resolve
from zot.errors import ConfigError, UsageError

_FLAGS = (
    *AGENT_FLAGS,
    flags.Flag("--offline", "ask no service, and run no command that prints a key"),
    flags.Flag("--json", "one JSON object"),
)
_SUMMARY = """\
Say what is set up and what is missing, one line each, and ask the services that have a key if they take it.
The exit code is 0 if the provider that would be used works. The flags of zot rpc decide which one that is."""


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    settings, words = flags.parse(argv, (*_FLAGS, flags.Flag("--help", "this text", short="-h")))
    if words:
        raise UsageError("zot doctor takes no words, only flags")
    if settings.pop("help", False):
        sys.stdout.write(flags.usage("zot doctor", _SUMMARY, _FLAGS) + "\n")
        return 0
    is_offline, as_json = settings.pop("offline", False), settings.pop("json", False)
    config_dir = settings.get("config_dir")
    config, wrong = _config(settings)
    import asyncio

    report = asyncio.run(examine(config, config_dir=config_dir, wrong=wrong, is_offline=is_offline))
    _show(report, as_json=as_json)
    return 0 if report.ok else 1


def _config(settings: Mapping[str, Any]) -> tuple[Config, str]:
    """Return the settings, and what is wrong with them: then they are the usual ones."""
    try:
        Agents.load(config_directory(settings))  # Which looks at more than what is used.
        return resolve(settings), ""
    except ConfigError as problem:
        return Config(), str(problem)


def _show(report: Report, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
        return
    width = max(len(check.name) for check in report.checks)
    for check in report.checks:
        sys.stdout.write(_line(check, width) + "\n")


def _line(check: Check, width: int) -> str:
    return f"{check.status:<5} {check.name:<{width}}  {check.detail}"
