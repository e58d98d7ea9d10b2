"""Everything that reaches into Textual's internals."""

from __future__ import annotations

import codecs
import gc
import io
import re
import sys
import traceback
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

from rich.cells import cell_len
from rich.text import Text
from textual import screen
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.app import App
from textual.binding import Binding
from textual.drivers import linux_driver
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Key
from textual.geometry import Size
from textual.keys import Keys
from textual.message import Message
from textual.reactive import Reactive
from textual.widget import Widget
from textual.worker import Worker

from zot.ui.terminal.looks import charset

_CLEAR = "\x1b[2J\x1b[H"


class Driver(LinuxDriver):
    """Draws on standard output, draws everything anew after a stop, and leaves nothing behind."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._file = sys.__stdout__  # Not standard error, as Textual does: that may be a file (`zot 2>log`).

    def stop_application_mode(self) -> None:
        if self._writer_thread is not None:
            self.write(_CLEAR)  # A terminal that was resized may bring back what stood on the other screen.
        super().stop_application_mode()

    def _sigcont_application(self, *arguments: object) -> None:
        if self._must_signal_resume:  # After Ctrl+Z, for which the terminal was given back.
            super()._sigcont_application(*arguments)
        # Else theirs would begin a second time, and take our settings of the terminal for those before.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self._app.refresh(layout=True))


_ESC = "\x1b"
_BLANKS = re.compile(r"[\r\n]+|\t")
#: Control characters, and halves of characters.
_UNWRITTEN = ("Cc", "Cs")
#: What is longer is not meant for a place where keys are pressed.
_MAX_KEYS = 1000


def as_keys(text: str) -> str | None:
    """Return the characters that would be typed for a paste, its lines as one; None if it is too long for that."""
    return None if len(text) > _MAX_KEYS else "".join(filter(is_written, _BLANKS.sub(" ", text.strip("\r\n"))))


def is_written(character: str) -> bool:
    """True if a character is text.

    Python calls others not printable that are: every blank but one, joiners without which Persian and Hindi are
    misspelt, and characters that are newer than itself.
    """
    return unicodedata.category(character) not in _UNWRITTEN


class WholePastes(XTermParser):
    """Reads what a terminal sends. ESC in a paste is text: its escape stands for it."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._pastes = False
        #: What may be the beginning of the end of a paste, and is not read yet.
        self._held = ""
        #: What may be the beginning of the beginning of one, and is read.
        self._read = ""

    def feed(self, data: str) -> Iterable[Message]:
        """Yield what a piece of input says; of none, that it is over."""
        text = self._harmless(self._held + data)
        return super().feed(text) if text or not data else ()

    def _harmless(self, data: str) -> str:
        done = ""
        while data:
            piece, data = self._pasted(data) if self._pastes else self._typed(data)
            done += piece
        return done

    def _typed(self, data: str) -> tuple[str, str]:
        """Return what comes before a paste begins, and what is left."""
        seen = self._read + data
        at = seen.find(BRACKETED_PASTE_START)
        if at < 0:
            self._read = seen[1 - len(BRACKETED_PASTE_START) :]
            return data, ""
        cut = at + len(BRACKETED_PASTE_START) - len(self._read)
        self._read, self._pastes = "", True
        return data[:cut], data[cut:]

    def _pasted(self, data: str) -> tuple[str, str]:
        """Return what was pasted, and what is left."""
        text, end, rest = data.partition(BRACKETED_PASTE_END)
        self._held = "" if end else _beginning(text)
        self._pastes = not end
        text = text.removesuffix(self._held)
        return text.replace(_ESC, "\\x1b") + end, rest


def _beginning(text: str) -> str:
    """Return the end of a text that may be the beginning of the end of a paste."""
    at = text.rfind(_ESC)
    return text[at:] if at >= 0 and BRACKETED_PASTE_END.startswith(text[at:]) else ""


_AS_WIDE = "zot.as_wide"


def write_only_known(file: object) -> None:
    """Have question marks written for what the locale has no characters for, as wide as it would be."""
    if isinstance(file, io.TextIOWrapper):
        codecs.register_error(_AS_WIDE, _as_wide)
        file.reconfigure(encoding=charset(), errors=_AS_WIDE)


def _as_wide(problem: UnicodeError) -> tuple[str, int]:
    assert isinstance(problem, UnicodeEncodeError)
    return "?" * cell_len(problem.object[problem.start : problem.end]), problem.end


def decoder(_: str) -> Callable[[], codecs.IncrementalDecoder]:
    """Return what reads bytes that are no characters as such, where others give up."""
    name = charset()
    return partial(codecs.getincrementaldecoder("utf-8" if name == "ascii" else name), "replace")


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


def when_over(worker: Worker[None], call: Callable[[], None]) -> None:
    """Call ``call`` when a worker has ended, also if it was cancelled before its first step."""
    if worker._task is not None:
        worker._task.add_done_callback(lambda _: call())


def is_behind(app: App[Any]) -> bool:
    """True while the terminal has not taken what was written before: over a slow line, or because it has been stopped.

    To write more would make what is typed wait for it, and at last everything: Textual waits when it has too much.
    """
    writer = getattr(app._driver, "_writer_thread", None)
    return writer is not None and writer._queue.qsize() > _UNTAKEN


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


#: New objects until they are looked through, and how many times until those that are left are, and all.
_OFTEN = (4_000, 10, 60)
#: While we begin, nearly everything stays: looking through it again and again would be a tenth of all the work.
_SELDOM = (200_000, 10, 10)


def put_off() -> None:
    """Look for garbage seldom, until the first frame and what follows is there."""
    gc.set_threshold(*_SELDOM)


def keep_short() -> None:
    """Look for garbage often, in little at a time, and never again among what is there by now: modules and styles."""
    gc.freeze()
    gc.set_threshold(*_OFTEN)
