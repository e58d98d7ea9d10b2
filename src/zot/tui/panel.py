"""A panel of an extension: its title, lines and footer; every key is the extension's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.message import Message
from textual.widgets import Static

from zot.tui.looks import safe

#: What the protocol calls keys, by what they are called here.
KEYS: Mapping[str, str] = {
    "up": "up",
    "down": "down",
    "left": "left",
    "right": "right",
    "enter": "enter",
    "tab": "tab",
    "pageup": "pageup",
    "pagedown": "pagedown",
    "home": "home",
    "end": "end",
    "backspace": "backspace",
    "delete": "delete",
}


#: What the frame takes of a line, with the blanks around what stands in it.
_FRAME = 6


class Panel(Static, can_focus=True):
    """Shows what an extension wants shown, and tells which keys are pressed while it has the focus."""

    DEFAULT_CSS = """
    Panel { height: auto; max-height: 50vh; border: round ansi_bright_black; padding: 0 1; overflow-y: auto; }
    Panel:focus { border: round ansi_cyan; }
    """

    class Pressed(Message):
        """A key for the extension."""

        def __init__(self, panel_id: str, key: str, text: str = "") -> None:
            super().__init__()
            self.panel_id = panel_id
            self.key = key
            self.text = text

    class Dismissed(Message):
        """A person has closed the panel."""

        def __init__(self, panel_id: str) -> None:
            super().__init__()
            self.panel_id = panel_id

    def __init__(self, panel_id: str, extension: str) -> None:
        super().__init__()
        self.panel_id = panel_id
        self.extension = extension

        self._title = panel_id

    def on_focus(self) -> None:
        self._entitle()

    def on_blur(self) -> None:
        self._entitle()

    def _entitle(self) -> None:
        """Say whose it is, and how to get there."""
        hint = "" if self.has_focus else ": Shift+Tab enters it"
        self.border_title = Text(f"{self._title} ({safe(self.extension)}){hint}")

    def show(self, title: str, lines: Sequence[str], footer: str) -> None:
        """Show something else. The footer stands in the frame, where it is always seen, if there is room for it."""
        self._title, footer = safe(title or self.panel_id), safe(footer).replace("\n", " ")
        fits = cell_len(footer) <= self.app.size.width - _FRAME
        self._entitle()
        self.border_subtitle = Text(footer) if fits else None
        text = Text("\n".join(safe(line).replace("\n", " ") for line in lines))
        if not fits:
            text.append(f"{chr(10) if lines else ''}{footer}", "dim")
        self.update(text)

    def on_key(self, event: events.Key) -> None:
        if event.key == "shift+tab":
            return  # The way to the other panels, and to the editor.
        event.stop()
        event.prevent_default()
        if event.key == "escape":
            self.post_message(self.Dismissed(self.panel_id))
        elif event.key in KEYS:
            self.post_message(self.Pressed(self.panel_id, KEYS[event.key]))
        elif event.character is not None and event.character.isprintable():
            self.post_message(self.Pressed(self.panel_id, "rune", event.character))
