"""What was written while the model was busy: shown until it is said."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import Static

from zot.ui.readable import one_line
from zot.ui.terminal.looks import safe

_SHOWN = 4


class Queue(Static):
    """Messages that wait for the run to end, the oldest first, and those that steer it already."""

    DEFAULT_CSS = """
    Queue { height: auto; max-height: 5; display: none; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[str] = []
        #: By their names.
        self._steering: dict[str, str] = {}

    def add(self, text: str) -> None:
        """Let something wait."""
        self.waiting.append(text)
        self.draw()

    def next(self) -> str:
        """Take out what waits longest; "" if nothing does."""
        text = self.waiting.pop(0) if self.waiting else ""
        self.draw()
        return text

    def last(self) -> str:
        """Take out what waits shortest; "" if nothing does."""
        text = self.waiting.pop() if self.waiting else ""
        self.draw()
        return text

    def all(self) -> list[str]:
        """Take out everything, with what is on its way."""
        texts, self.waiting = [*self._steering.values(), *self.waiting], []
        self._steering.clear()
        self.draw()
        return texts

    def steers(self, name: str) -> bool:
        """True if something is on its way by this name."""
        return name in self._steering

    def steer(self, name: str, text: str) -> None:
        """Something is on its way to the running prompt."""
        self._steering[name] = text
        self.draw()

    @property
    def last_steering(self) -> str:
        """The name of what has been on its way for the shortest time; "" if nothing is."""
        return next(reversed(self._steering), "")

    def said(self, text: str) -> None:
        """Something has been said: it is no longer on its way."""
        self.withdraw(next((name for name, one in self._steering.items() if one == text), ""))

    def withdraw(self, name: str) -> str:
        """Take out something that is on its way, and will not arrive; "" if it is not."""
        text = self._steering.pop(name, "")
        self.draw()
        return text

    def draw(self) -> None:
        """Show what waits."""
        lines = [f"steering: {one_line(safe(text), 200)}" for text in self._steering.values()]
        lines += [f"{number}. {one_line(safe(text), 200)}" for number, text in enumerate(self.waiting, 1)]
        hidden = len(lines) - _SHOWN
        text = Text("\n".join(lines[:_SHOWN]), style="dim", no_wrap=True, overflow="ellipsis")
        if lines:
            more = f"{hidden} more; " if hidden > 0 else ""
            text.append(f"\n{more}Up takes one back, Ctrl+R removes it")
        self.display = bool(lines)
        self.update(text)
