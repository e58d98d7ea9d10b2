"""The agents that config.toml names, from one reading of the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from zot.config.config import DEFAULT_AGENT, Config, combined, no_such_agent
from zot.config.file import AgentTable, ConfigFile, DaemonSettings, read
from zot.config.vendors import VENDORS
from zot.errors import ConfigError


class Agents(msgspec.Struct, frozen=True):
    """A snapshot: what is configured stays as it was read, until somebody asks for another one.

    ``directory`` is where config.toml is looked for, None for nowhere.
    """

    directory: str | None
    file: ConfigFile

    @staticmethod
    def load(directory: str | None) -> Agents:
        """Read config.toml in ``directory``. Raise ConfigError: InvalidConfigFile has all that is wrong, in any table.

        What depends on the moment, such as a key or a directory that must be there, is not looked at.
        """
        return Agents(directory, read(directory, _senseless))

    def reloaded(self) -> Agents:
        """Return what the file says now. Raise ConfigError as `load` does; this one can be used further, then."""
        return Agents.load(self.directory)

    @property
    def names(self) -> tuple[str, ...]:
        """Who may be asked for, the default one first: it is there also if the file does not name it."""
        return tuple(dict.fromkeys((DEFAULT_AGENT, *self.file.agents)))

    @property
    def daemon(self) -> DaemonSettings:
        """How the file wants the daemon to work."""
        return self.file.daemon

    def config(
        self, alias: str, settings: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None
    ) -> Config:
        """Return how an agent works, with ``settings`` that win over the file's. Raise NoSuchAgent, ConfigError."""
        if alias not in self.names:
            raise no_such_agent(alias, self.names)
        return combined({**(settings or {}), "agent": alias}, self.table(alias).settings, env)

    def table(self, alias: str) -> AgentTable:
        """Return what the file says about an agent; nothing, if it does not name it."""
        return self.file.agents.get(alias, AgentTable())

    def has_policy(self, alias: str) -> bool:
        """True if the file has rules for an agent. One without is to be guarded where strangers talk to it."""
        return bool(self.table(alias).policy)


def _senseless(table: AgentTable) -> list[str]:
    """Return what is wrong with an agent beyond single types, each with its field."""
    problems: list[str] = []
    vendor = VENDORS.get(table.provider or Config().provider)
    if vendor is None:
        problems.append(f"provider: unknown provider {table.provider!r}; known: {', '.join(sorted(VENDORS))}")
    elif table.api is not None and table.api not in vendor.apis:
        spoken = ", ".join(vendor.apis)
        problems.append(f"api: {vendor.name} does not speak {table.api!r}; it speaks: {spoken}")
    if not table.policy:
        return problems
    from zot.config.policy import Policy

    for number, rule in enumerate(table.policy):
        try:
            Policy.parse((rule,))
        except ConfigError as problem:
            problems.append(f"policy[{number}]: {problem}")
    return problems
