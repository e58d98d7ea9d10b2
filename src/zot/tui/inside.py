"""What we need of Textual that it does not offer. Nobody else looks inside of it but `driver.py` and `pasting.py`."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from rich.text import Text
from textual import screen
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.app import App
from textual.drivers import linux_driver
from textual.events import Key
from textual.geometry import Size
from textual.keys import Keys
from textual.reactive import Reactive
from textual.widget import Widget
from textual.worker import Worker

from zot.tui.charset import decoder
from zot.tui.driver import Driver
from zot.tui.pasting import WholePastes, is_written

#: What has changed is drawn so often at most: a key waits half as long for it as Textual would have it.
_DRAW_S = 1 / 120
#: So many pieces may wait to be taken by the terminal.
_UNTAKEN = 2
#: Most terminals send this for Alt+Enter, of which Textual would make other keys.
_ALT_ENTER = "\x1b\r"


class Ground(App[int]):
    """An app as Textual has it, where it must be another."""

    #: Not one that is replaced at once: every style would be read twice.
    theme = Reactive("ansi-dark")

    def __init__(self) -> None:
        prepare()
        super().__init__(Driver, ansi_color=True)

    @property
    def is_leaving(self) -> bool:
        """True if it is about to end."""
        return self._exit

    def send(self, text: str) -> None:
        """Write something to the terminal that is not drawn, between two frames."""
        if self._driver is not None:
            self._driver.write(text)

    def run_owned(self, work: Callable[[], Coroutine[Any, Any, None]], *, then: Callable[[], None]) -> None:
        """Run a worker, and call ``then`` when it is over, also if it is cancelled before it begins."""
        worker: Worker[None] = self.run_worker(work)
        if worker._task is not None:
            worker._task.add_done_callback(lambda _: then())

    def _fatal_error(self) -> None:
        """Say what broke us, when the terminal is as it was: without the values of variables, which may be secret."""
        self._exit_renderables.append(Text(f"{traceback.format_exc()}zot: internal error; this is a bug"))
        self._close_messages_no_wait()


def prepare() -> None:
    """Have every app from now on draw soon, and take what terminals send as it is meant."""
    screen.UPDATE_PERIOD = _DRAW_S  # type: ignore[misc]  # it has no other place for it
    linux_driver.XTermParser = WholePastes  # type: ignore[attr-defined]  # the same
    linux_driver.getincrementaldecoder = decoder  # type: ignore[attr-defined,assignment]  # the same
    Key.is_printable = property(writes)  # type: ignore[method-assign,assignment]  # the same
    if isinstance(ANSI_SEQUENCES_KEYS, dict):
        ANSI_SEQUENCES_KEYS.setdefault(_ALT_ENTER, (Keys.ControlJ,))


def writes(key: Key) -> bool:
    """True if a key writes something. Textual would drop what Python does not call printable."""
    return key.character is not None and all(map(is_written, key.character))


def reach(widget: Widget, size: Size) -> None:
    """Have a widget scroll over so much. The screen needs no new layout for that, if its scrollbar has its place."""
    if size != widget.virtual_size:
        widget.set_reactive(Widget.virtual_size, size)
        widget._scroll_update(size)


def is_behind(app: App[Any]) -> bool:
    """True while the terminal has not taken what was written before: over a slow line, or because it has been stopped.

    To write more would make what is typed wait for it, and at last everything: Textual waits when it has too much.
    """
    writer = getattr(app._driver, "_writer_thread", None)
    return writer is not None and writer._queue.qsize() > _UNTAKEN
