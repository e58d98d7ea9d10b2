"""Parts of a daemon: agents, journal and shared resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from zot.config.agents import AgentConfigs
from zot.config.config import DEFAULT_AGENT, Config, journal_path
from zot.config.file import DaemonSettings
from zot.config.paths import DaemonPaths

if TYPE_CHECKING:
    from zot.journal.sessions import SessionJournal
    from zot.runtime.shared import SharedResources
    from zot.serve.daemon.audit import Audit


class DaemonParts:
    """Shared by the sessions of a daemon. ``flags`` override files."""

    def __init__(
        self,
        place: DaemonPaths,
        agents: AgentConfigs,
        *,
        journal: SessionJournal,
        resources: SharedResources,
        audit: Audit,
        flags: Mapping[str, Any],
    ) -> None:
        self.place = place
        self.agents = agents
        self.journal = journal
        self.audit = audit
        self.joinable = False
        #: Paths that no session may reach; keys of certificates are added.
        self.private: tuple[str, ...] = place.private
        self.resources = resources
        self.own_process = resources.own_process
        self.flags = flags

    @property
    def settings(self) -> DaemonSettings:
        """Settings of the daemon itself."""
        return self.agents.file.daemon

    def has_rules(self, alias: str) -> bool:
        """True if an agent has a policy of its own, so that remote clients may use it."""
        return alias in self.agents.names and bool(self.config(alias, None, None).policy)

    def config(self, alias: str, session_id: str | None, cwd: str | None) -> Config:
        """Return the settings of an agent's session. Raise NoSuchAgent, ConfigError."""
        config = self.agents.config(alias, self.flags)
        journal = self.flags.get("journal") or self.place.journal or config.journal
        config = msgspec.structs.replace(config, session=session_id, journal=journal, private=self.private)
        return config if cwd is None else msgspec.structs.replace(config, cwd=cwd)


def journal_of(place: DaemonPaths, agents: AgentConfigs, flags: Mapping[str, Any]) -> str:
    """Return the path of a daemon's journal, or the address of its database. Raise ConfigError."""
    return flags.get("journal") or place.journal or journal_path(agents.config(DEFAULT_AGENT))
