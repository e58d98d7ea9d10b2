"""Keys in the order in which they were pressed."""

from __future__ import annotations

from functools import cache

from textual.binding import Binding
from textual.events import Key
from textual.widget import Widget

#: What nobody at this terminal has opened has the keys only after this time: they may be meant for something else.
DEAD_S = 0.6


async def obey(widget: Widget, event: Key) -> None:
    """Do at once what ``widget`` has bound to a key.

    Textual asks everybody around the widget first, and what is typed meanwhile is there before it is done: of `x`,
    backspace and `y` that come together, `x` would be left.
    """
    action = next(filter(None, map(_bound(type(widget)).get, event.aliases)), None)
    if action is not None:
        event.stop()
        event.prevent_default()
        await widget.run_action(action)


@cache
def _bound(kind: type[Widget]) -> dict[str, str]:
    """Return what a kind of widget does for keys."""
    actions: dict[str, str] = {}
    for one in kind.__mro__:
        for binding in Binding.make_bindings(vars(one).get("BINDINGS", ())):
            actions.setdefault(binding.key, binding.action)
    return actions
