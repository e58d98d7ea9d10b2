"""Keys in the order in which they were pressed."""

from __future__ import annotations

from textual.events import Key
from textual.widget import Widget

#: What nobody at this terminal has opened has the keys only after this time: they may be meant for something else.
DEAD_S = 0.6


async def obey(widget: Widget, event: Key) -> None:
    """Do at once what ``widget`` has bound to a key.

    Textual asks everybody around the widget first, and what is typed meanwhile is there before it is done: of `x`,
    backspace and `y` that come together, `x` would be left.
    """
    for key in event.aliases:
        for binding in widget._bindings.key_to_bindings.get(key, ()):
            event.stop()
            event.prevent_default()
            await widget.run_action(binding.action)
            return
