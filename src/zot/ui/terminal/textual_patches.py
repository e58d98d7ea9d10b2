"""All code that depends on Textual's internals."""

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

from zot.ui.terminal.styles import charset

_CLEAR = "\x1b[2J\x1b[H"

_ESC = "\x1b"
_BLANKS = re.compile(r"[\r\n]+|\t")
#: Control characters and surrogates.
_NO_TEXT_CATEGORIES = ("Cc", "Cs")
#: A longer paste is not meant as keys.
_MAX_KEYS = 1000

_AS_WIDE = "zot.as_wide"

#: The shortest time between two frames: half of Textual's, so that keys show sooner.
_DRAW_S = 1 / 120
#: Frames that may be queued for the terminal.
_MAX_QUEUED_FRAMES = 2
#: Sent by most terminals for Alt+Enter; Textual would parse it as two keys.
_ALT_ENTER = "\x1b\r"

#: A widget that the user did not open takes keys only after this time: they may be meant for something else.
IGNORE_KEYS_S = 0.6

#: Garbage collection thresholds while running: few objects at a time.
_OFTEN = (4_000, 10, 60)
#: While starting, nearly all objects stay: collections would take a tenth of the time.
_SELDOM = (200_000, 10, 10)


class Driver(LinuxDriver):
    """Writes to standard output, redraws after a stop, and clears the screen at the end."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._file = sys.__stdout__  # Textual uses standard error, which may be a file (`zot 2>log`).

    def stop_application_mode(self) -> None:
        if self._writer_thread is not None:
            self.write(_CLEAR)  # A resized terminal may restore it on the other screen.
        super().stop_application_mode()

    def _sigcont_application(self, *arguments: object) -> None:
        if self._must_signal_resume:  # After Ctrl+Z, which gave the terminal back.
            super()._sigcont_application(*arguments)
        # Else Textual would start twice, and save our terminal settings as the original ones.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self._app.refresh(layout=True))


def as_keys(text: str) -> str | None:
    """Return a paste as typed characters in one line; None if it is too long."""
    return None if len(text) > _MAX_KEYS else "".join(filter(is_text, _BLANKS.sub(" ", text.strip("\r\n"))))


def is_text(character: str) -> bool:
    """True if a character is text.

    `str.isprintable` rejects some text: white space other than the space, joiners that Persian and Hindi spelling
    needs, and characters newer than the tables of Python.
    """
    return unicodedata.category(character) not in _NO_TEXT_CATEGORIES


class PasteParser(XTermParser):
    """A terminal input parser that writes ESC in a paste as its escape."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._pastes = False
        #: The start of a possible end marker, not parsed yet.
        self._held = ""
        #: The start of a possible start marker, already parsed.
        self._read = ""

    def feed(self, data: str) -> Iterable[Message]:
        """Yield the messages of a piece of input; "" marks the end of input."""
        text = self._escaped_pastes(self._held + data)
        return super().feed(text) if text or not data else ()

    def _escaped_pastes(self, data: str) -> str:
        done = ""
        while data:
            piece, data = self._pasted(data) if self._pastes else self._typed(data)
            done += piece
        return done

    def _typed(self, data: str) -> tuple[str, str]:
        """Return the input up to and including the start of a paste, and the rest."""
        seen = self._read + data
        at = seen.find(BRACKETED_PASTE_START)
        if at < 0:
            self._read = seen[1 - len(BRACKETED_PASTE_START) :]
            return data, ""
        cut = at + len(BRACKETED_PASTE_START) - len(self._read)
        self._read, self._pastes = "", True
        return data[:cut], data[cut:]

    def _pasted(self, data: str) -> tuple[str, str]:
        """Return the pasted text, and the rest."""
        text, end, rest = data.partition(BRACKETED_PASTE_END)
        self._held = "" if end else _partial_end(text)
        self._pastes = not end
        text = text.removesuffix(self._held)
        return text.replace(_ESC, "\\x1b") + end, rest


def _partial_end(text: str) -> str:
    """Return the end of a text that may start an end marker."""
    at = text.rfind(_ESC)
    return text[at:] if at >= 0 and BRACKETED_PASTE_END.startswith(text[at:]) else ""


def replace_unencodable(file: object) -> None:
    """Encode characters outside of the locale's charset as question marks of the same width."""
    if isinstance(file, io.TextIOWrapper):
        codecs.register_error(_AS_WIDE, _as_wide)
        file.reconfigure(encoding=charset(), errors=_AS_WIDE)


def _as_wide(problem: UnicodeError) -> tuple[str, int]:
    assert isinstance(problem, UnicodeEncodeError)
    return "?" * cell_len(problem.object[problem.start : problem.end]), problem.end


def decoder(_: str) -> Callable[[], codecs.IncrementalDecoder]:
    """Return a decoder that replaces invalid bytes instead of raising."""
    name = charset()
    return partial(codecs.getincrementaldecoder("utf-8" if name == "ascii" else name), "replace")


class Ground(App[int]):
    """Textual's App with our changes."""

    #: The initial theme: changing it later would parse all styles twice.
    theme = Reactive("ansi-dark")

    def __init__(self) -> None:
        prepare()
        super().__init__(Driver, ansi_color=True)

    @property
    def is_leaving(self) -> bool:
        """True if it is about to exit."""
        return self._exit

    def send(self, text: str) -> None:
        """Write an escape sequence to the terminal between two frames."""
        if self._driver is not None:
            self._driver.write(text)

    def _fatal_error(self) -> None:
        """Print the traceback after the terminal is restored, without values of variables, which may be secret."""
        self._exit_renderables.append(Text(f"{traceback.format_exc()}zot: internal error; this is a bug"))
        self._close_messages_no_wait()


def prepare() -> None:
    """Patch Textual's frame rate, parser, decoder and keys, for all apps."""
    screen.UPDATE_PERIOD = _DRAW_S  # type: ignore[misc]  # it has no other place for it
    linux_driver.XTermParser = PasteParser  # type: ignore[attr-defined]  # the same
    linux_driver.getincrementaldecoder = decoder  # type: ignore[attr-defined,assignment]  # the same
    Key.is_printable = property(is_text_key)  # type: ignore[method-assign,assignment]  # the same
    if isinstance(ANSI_SEQUENCES_KEYS, dict):
        ANSI_SEQUENCES_KEYS.setdefault(_ALT_ENTER, (Keys.ControlJ,))


def is_text_key(key: Key) -> bool:
    """True if a key is text. Textual would drop characters that Python does not call printable."""
    return key.character is not None and all(map(is_text, key.character))


def set_scroll_size(widget: Widget, size: Size) -> None:
    """Set the scrollable size of a widget without a new layout, which a stable scrollbar does not need."""
    if size != widget.virtual_size:
        widget.set_reactive(Widget.virtual_size, size)
        widget._scroll_update(size)


def on_worker_end(worker: Worker[None], call: Callable[[], None]) -> None:
    """Call ``call`` when a worker has ended, also if it was cancelled before its first step."""
    if worker._task is not None:
        worker._task.add_done_callback(lambda _: call())


def is_backlogged(app: App[Any]) -> bool:
    """True while the terminal has not read earlier frames, because it is slow or stopped.

    More frames would delay the response to keys, and finally block: Textual's writer waits when its queue is full.
    """
    writer = getattr(app._driver, "_writer_thread", None)
    return writer is not None and writer._queue.qsize() > _MAX_QUEUED_FRAMES


async def run_binding(widget: Widget, event: Key) -> None:
    """Run the action that ``widget`` binds to a key at once.

    Textual would first look for bindings in all ancestors, and process later keys meanwhile: of `x`, backspace and `y`
    that arrive together, `x` would remain.
    """
    action = next(filter(None, map(_bound(type(widget)).get, event.aliases)), None)
    if action is not None:
        event.stop()
        event.prevent_default()
        await widget.run_action(action)


@cache
def _bound(kind: type[Widget]) -> dict[str, str]:
    """Return the actions of a widget class by key."""
    actions: dict[str, str] = {}
    for one in kind.__mro__:
        for binding in Binding.make_bindings(vars(one).get("BINDINGS", ())):
            actions.setdefault(binding.key, binding.action)
    return actions


def collect_rarely() -> None:
    """Collect garbage rarely until start-up is complete."""
    gc.set_threshold(*_SELDOM)


def collect_briefly() -> None:
    """Collect garbage often but briefly, and exempt the objects of start-up: modules and styles."""
    gc.freeze()
    gc.set_threshold(*_OFTEN)
