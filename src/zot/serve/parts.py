"""What a daemon needs of whoever starts it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from zot.serve.audit import Audit
from zot.serve.settings_methods import Choices

if TYPE_CHECKING:
    from zot.agents import Agents
    from zot.daemon_settings import DaemonSettings
    from zot.endpoint import Place
    from zot.hub import Opening
    from zot.journal.journal import Journal
    from zot.serve.respond import OpeningBy


class Parts(Choices, Protocol):
    """What a daemon is made of: whoever starts it has chosen."""

    place: Place
    agents: Agents
    journal: Journal
    audit: Audit
    #: Whether the process is the daemon's own, not one that embeds it.
    own_process: bool
    #: Whether extensions may connect to the sessions that are opened from now on.
    joinable: bool

    @property
    def settings(self) -> DaemonSettings:
        """How it works, whichever agent it runs."""

    @property
    def opening(self) -> Opening:
        """Opens a session."""

    @property
    def opening_by(self) -> OpeningBy:
        """Opens the session of a request of the host protocol."""

    def describe(self, alias: str) -> tuple[str, str]:
        """Return the provider and the model of an agent, as far as they are known."""

    def has_rules(self, alias: str) -> bool:
        """True if an agent has a policy of its own."""
