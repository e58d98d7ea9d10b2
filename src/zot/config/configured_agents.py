"""The agents of config.toml, from one reading of the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from zot.config.config import DEFAULT_AGENT, DEFAULT_PROVIDER, Config, journal_path, merge_settings, no_such_agent
from zot.config.file import AgentTable, ConfigFile, read
from zot.config.paths import DaemonPaths
from zot.config.vendors import VENDORS
from zot.errors import ConfigError
from zot.text import did_you_mean


class AgentConfigs(msgspec.Struct, frozen=True):
    """Snapshot of the configured agents; `reloaded` reads the file again.

    ``directory`` is where config.toml is looked up, None for nowhere.
    """

    directory: str | None
    file: ConfigFile

    @staticmethod
    def load(directory: str | None) -> AgentConfigs:
        """Read config.toml in ``directory``. Raise ConfigError: InvalidConfigFile has all problems, in any table.

        Conditions that change over time, such as a key or an existing directory, are not checked.
        """
        return AgentConfigs(directory, read(directory, _semantic_problems))

    def reloaded(self) -> AgentConfigs:
        """Return a new snapshot. Raise ConfigError as `load` does; the old snapshot stays usable."""
        return AgentConfigs.load(self.directory)

    @property
    def names(self) -> tuple[str, ...]:
        """The configured agents, the default one first, even if the file does not name it."""
        return tuple(dict.fromkeys((DEFAULT_AGENT, *self.file.agents)))

    def config(
        self, alias: str, settings: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None
    ) -> Config:
        """Return an agent's Config; ``settings`` win over the file. Raise NoSuchAgent, ConfigError."""
        if alias not in self.names:
            raise no_such_agent(alias, self.names)
        return merge_settings({**(settings or {}), "agent": alias}, self.settings(alias), env)

    def settings(self, alias: str) -> dict[str, Any]:
        """Return the settings that the file has for an agent: its table's, and the MCP servers of all agents."""
        return {**self.table(alias).settings, **({"mcp": self.file.mcp} if self.file.mcp else {})}

    def table(self, alias: str) -> AgentTable:
        """Return an agent's table; an empty one if the file does not name it."""
        return self.file.agents.get(alias, AgentTable())

    def has_policy(self, alias: str) -> bool:
        """True if the file has rules for an agent; without rules it is guarded when untrusted users talk to it."""
        return bool(self.table(alias).policy)


def daemon_journal(place: DaemonPaths, agents: AgentConfigs, flags: Mapping[str, Any]) -> str:
    """Return the path of a daemon's journal, or the address of its database. Raise ConfigError."""
    return flags.get("journal") or place.journal or journal_path(agents.config(DEFAULT_AGENT))


def _semantic_problems(table: AgentTable) -> list[str]:
    """Return an agent's problems beyond single types, each with its field."""
    problems: list[str] = []
    vendor = VENDORS.get(table.provider or DEFAULT_PROVIDER)
    if vendor is None:
        near = did_you_mean(table.provider or "", VENDORS)
        problems.append(f"provider: unknown provider {table.provider!r}; known: {', '.join(sorted(VENDORS))}{near}")
    elif table.api is not None and table.api not in vendor.apis:
        spoken = ", ".join(vendor.apis)
        problems.append(f"api: {vendor.name} does not speak {table.api!r}; it speaks: {spoken}")
    if not table.policy:
        return problems
    from zot.config.policy import Policy  # Imported lazily: few agents have a policy.

    for number, rule in enumerate(table.policy):
        try:
            Policy.parse((rule,))
        except ConfigError as problem:
            problems.append(f"policy[{number}]: {problem}")
    return problems
