"""The status line: activity, model, context, cost and directory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from rich.text import Text
from textual.widgets import Static

from zot.events import SessionState
from zot.text import printable, printable_line
from zot.ui.terminal.styles import Look, shortened, tokens
from zot.ui.terminal.textual_patches import is_backlogged

_NO_CONNECTION = "no connection to the daemon, trying again"


class StatusLine(Static):
    """One line. Omits details that do not fit, the least important first."""

    DEFAULT_CSS = "StatusLine { height: 1; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }"

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self._snapshot: SessionState | None = None
        self._doing = "starting"
        self._since = time.monotonic()
        self._tick = 0
        self._was_reachable = True
        self._line = Text()
        #: Whether the session is connected.
        self.is_reachable: Callable[[], bool] = lambda: True
        #: A short-lived message that overrides the activity; "" for none.
        self.hint: Callable[[], str] = lambda: ""
        self._hinted = False

    def show(self, snapshot: SessionState) -> None:
        """Show the session's state."""
        self._snapshot = snapshot
        self.draw()

    def do(self, what: str) -> None:
        """Show the current activity; "" for none."""
        if bool(what) != bool(self._doing):
            self._since = time.monotonic()
        self._doing = what
        self.draw()

    def tick(self) -> None:
        """Advance the spinner and the seconds."""
        if is_backlogged(self.app):
            return
        if self._doing or self._hinted or not self._was_reachable or not self.is_reachable():
            self._tick += 1
            self.draw()

    def draw(self) -> None:
        width = max(10, self.size.width - 2 if self.size.width else 78)
        state = self._state(width)
        parts = [part for part in self._parts() if part]
        separator = f" {self._look.dot} "
        while parts and len(state) + len(separator.join(parts)) + 2 > width:
            parts.pop()
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(state, "green" if state == "ready" else "yellow")
        details = separator.join(parts)
        line.append(" " * max(1, width - len(state) - len(details)))
        line.append(details, "dim")
        if line != self._line:
            self._line = line
            self.update(line, layout=False)

    def _state(self, width: int) -> str:
        hint, self._was_reachable = self.hint(), self.is_reachable()
        self._hinted = bool(hint)
        if hint:
            return hint
        if self._was_reachable and not self._doing:
            return "ready"
        spinner = self._look.spinner[self._tick % len(self._look.spinner)]
        if not self._was_reachable:
            return f"{spinner} {_NO_CONNECTION}"
        seconds = int(time.monotonic() - self._since)
        waited = f" {seconds} s" if seconds else ""
        return f"{spinner} {printable_line(self._doing, max(8, width - 12))}{waited}"

    def _parts(self) -> list[str]:
        """Return the details, the most important first."""
        now = self._snapshot
        if now is None:
            return []
        cost = now.usage.cost
        return [
            printable(now.model),
            f"{now.queued} queued" if now.queued else "",
            self._window(now),
            "" if cost is None else f"${cost:.2f}" if cost >= 1 else f"${cost:.4f}",
            "locked" if now.locked else "",
            printable(shortened(now.cwd, os.environ.get("HOME", ""))),
        ]

    def _window(self, now: SessionState) -> str:
        if not now.context_window:
            return f"{tokens(now.context_tokens)} tokens" if now.context_tokens else ""
        return f"{100 * now.context_tokens // now.context_window}% of {tokens(now.context_window)}"

    def on_resize(self) -> None:
        self.draw()
