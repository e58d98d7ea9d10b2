"""Extensions' notices on standard error."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from zot.events import AgentEvent, ExtNotify
from zot.text import printable


def show_notices(events: Sequence[AgentEvent]) -> None:
    """Write each notice among ``events`` as a line."""
    for event in events:
        if isinstance(event, ExtNotify):
            sys.stderr.write(f"[{event.extension}] {event.level}: {printable(event.message)}\n")
