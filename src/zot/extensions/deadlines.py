"""How long an extension may take for what."""

from __future__ import annotations

import msgspec

from zot.extensions.calls import Kind


class Deadlines(msgspec.Struct, frozen=True):
    """In seconds, each settable with ``--ext-deadline``. ``silence_s`` is for those with only commands and panels."""

    hello_s: float = 30.0
    ready_s: float = 3.0
    silence_s: float = 0.25
    tool_s: float = 60.0
    intercept_s: float = 5.0
    command_s: float = 30.0
    shutdown_s: float = 2.0
    terminate_s: float = 1.0

    def of(self, kind: Kind) -> float:
        """Return how long an answer may take."""
        return {"tool": self.tool_s, "command": self.command_s, "intercept": self.intercept_s}[kind]
