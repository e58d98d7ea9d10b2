"""The composer: editor, completion, folded pastes, queued messages."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
from rich.text import Text
from textual import events
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Static, TextArea
from textual.widgets.text_area import Edit, EditResult

from zot.errors import AgentError
from zot.panels import CommandInfo
from zot.ui.readable import escaped, one_line
from zot.ui.terminal import slash
from zot.ui.terminal.looks import safe
from zot.ui.terminal.mentions import BEGUN, can_be_named, meant, mention
from zot.ui.terminal.textual_patches import obey

_MAX_FILES = 20_000
_FRESH_S = 10.0
_SHOWN = 6
_MOST = 50
_ELSEWHERE = ("/", "~/", "../", "./")
_UNLISTED = {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".mypy_cache", ".ruff_cache"}


#: A text, and the line and column of the cursor in it.
Place: TypeAlias = tuple[str, tuple[int, int]]


class Offer(msgspec.Struct, frozen=True):
    """Something that can take the place of a word."""

    text: str
    help: str = ""


class Offers(Static):
    """A short list of offers, one of which is looked at."""

    DEFAULT_CSS = """
    Offers { height: auto; max-height: 6; display: none; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.offers: Sequence[Offer] = ()
        self.word = ""
        #: The text and the cursor that they are for.
        self.place: Place | None = None
        self._at = 0

    @property
    def chosen(self) -> Offer | None:
        """The offer that is looked at."""
        return self.offers[self._at] if self.offers else None

    def show(self, word: str, offers: Sequence[Offer], place: Place | None = None) -> None:
        """Offer these for ``word``, which stands at ``place``."""
        if not offers and not self.offers:  # As with nearly every key.
            return
        self.word, self.offers, self.place, self._at = word, offers, place if offers else None, 0
        self.display = bool(offers)
        self._draw()

    def move(self, step: int) -> None:
        """Look at another one."""
        if self.offers:
            self._at = (self._at + step) % len(self.offers)
            self._draw()

    def _draw(self) -> None:
        text = Text(no_wrap=True, overflow="ellipsis")
        shown = _SHOWN if len(self.offers) <= _SHOWN else _SHOWN - 1
        first = max(0, min(self._at - shown // 2, len(self.offers) - shown))
        for number, offer in enumerate(self.offers[first : first + shown], first):
            line = Text(_shown(offer.text), style="reverse" if number == self._at else "bold")
            if offer.help:
                line.append(f"  {_shown(offer.help)}", "dim")
            text.append(line)
            text.append("\n")
        if (hidden := len(self.offers) - shown) > 0:
            text.append(f"{hidden} more: Up, Down; Tab takes it", "dim")
        text.rstrip()
        self.update(text)


class Files:
    """The files below a directory, as they can be named in a prompt."""

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd
        self._known: list[str] = []
        self._until = 0.0

    def find(self, word: str) -> list[Offer]:
        """Return the files whose path has the letters in it that ``word`` means, the likeliest first.

        What begins like a path of its own, with ``/``, ``~`` or ``..``, is completed as one.
        """
        path = meant(word)
        if path.startswith(_ELSEWHERE):
            return [_offer(one) for one in self._beside(path)]
        if time.monotonic() > self._until:
            self._known = [*self._walk()]
            self._until = time.monotonic() + _FRESH_S
        wanted = path.lower()
        fits = [(_rank(one.lower(), wanted), len(one), one) for one in self._known if _fits(one.lower(), wanted)]
        return [_offer(one) for _, _, one in sorted(fits)[:_MOST]]

    def _beside(self, path: str) -> list[str]:
        """Return what there is in the directory that a path names, and begins like the rest of it."""
        place, name = os.path.split(path)
        place = place if place.endswith("/") else f"{place}/"
        try:
            with os.scandir(os.path.join(self._cwd, os.path.expanduser(place))) as found:
                fits = [one for one in found if one.name.startswith(name) and can_be_named(one.name)]
        except OSError:
            return []  # There is nothing to be offered in what cannot be read.
        hidden = name.startswith(".")
        # What cannot be looked at, such as a link that leads to itself, is offered as it is.
        paths = [f"{place}{one.name}{'/' * os.path.isdir(one.path)}" for one in fits if hidden or one.name[0] != "."]
        return sorted(paths)[:_MOST]

    def _walk(self) -> Iterator[str]:
        count = 0
        for place, directories, files in os.walk(self._cwd):
            directories[:] = sorted(name for name in directories if name not in _UNLISTED)
            inside = os.path.relpath(place, self._cwd)
            for name in sorted(files):
                count += 1
                if count > _MAX_FILES:
                    return
                path = name if inside == "." else os.path.join(inside, name)
                if can_be_named(path):
                    yield path


def _shown(text: str) -> str:
    """Return what may come from an extension as one line that the terminal can be given."""
    return safe(text).replace("\n", " ")


def _offer(path: str) -> Offer:
    return Offer(mention(path) if path.endswith("/") else f"{mention(path)} ")


def _fits(path: str, wanted: str) -> bool:
    letters = iter(path)
    return all(letter in letters for letter in wanted)


def _rank(path: str, wanted: str) -> int:
    name = os.path.basename(path)
    if name.startswith(wanted):
        return 0
    if path.startswith(wanted):
        return 1
    return 2 if wanted in path else 3


#: What is pasted and longer than this is folded.
_FOLD_LINES = 6
_FOLD_CHARACTERS = 1000
#: What was said elsewhere, or before, and is longer than this. It may have been typed, to be changed in any place.
_LONG_LINES = 30
_LONG_CHARACTERS = 3000
#: So much of the first line and of the last one is still to be seen.
_SEEN_CHARACTERS = 200
MARK = re.compile(r"\[pasted #\d+: [^\]]*\]")


class Folds:
    """Knows what is folded, for as long as it can be brought back."""

    def __init__(self) -> None:
        #: What is folded, by the word that stands for it.
        self._folded: dict[str, str] = {}
        self._number = 0
        #: Those words that stand in the editor, or can be had back there: whoever writes another says just that.
        self._live: set[str] = set()
        #: How stood what was said, by what was said, if that is long.
        self._stood: dict[str, str] = {}

    def paste(self, text: str) -> str:
        """Return what is to stand for something that is pasted."""
        return self._fold(text) if _exceeds(text, _FOLD_LINES, _FOLD_CHARACTERS) else text

    def say(self, text: str) -> str:
        """Return all of what stands there, and know from now on how it stood."""
        said = MARK.sub(lambda found: self._folded[found[0]] if found[0] in self._live else found[0], text)
        if said != text or _exceeds(said, _LONG_LINES, _LONG_CHARACTERS):
            self._stood[said] = text
        self._live.clear()
        kept = {mark for stood in self._stood.values() for mark in MARK.findall(stood)}
        self._folded = {mark: text for mark, text in self._folded.items() if mark in kept}
        return said

    def recall(self, said: str) -> str:
        """Return how something stood before it was said; if that is not known, it is folded between its ends."""
        if said not in self._stood and _exceeds(said, _LONG_LINES, _LONG_CHARACTERS):
            first, middle, last = _cut(said)
            self._stood[said] = f"{first}{self._fold(middle)}{last}"
        stood = self._stood.get(said, said)
        self._live |= self._folded.keys() & set(MARK.findall(stood))
        return stood

    def _fold(self, text: str) -> str:
        lines = text.strip("\n").count("\n") + 1
        size = f"{lines} lines" if lines > 1 else f"{len(text)} characters"
        self._number += 1
        mark = f"[pasted #{self._number}: {size}]"
        self._folded[mark] = text
        self._live.add(mark)
        return mark


def _exceeds(text: str, lines: int, characters: int) -> bool:
    return len(text) > characters or text.count("\n") >= lines


def _cut(text: str) -> tuple[str, str, str]:
    """Return the first line, what is between, line ends as well, and the last line; lines that are long are between."""
    first, last = text.partition("\n")[0], text.rpartition("\n")[2]
    begin = len(first) if len(first) <= _SEEN_CHARACTERS else 0
    end = len(text) - (len(last) if len(last) <= _SEEN_CHARACTERS else 0)
    return text[:begin], text[begin:end], text[end:]


#: What can be completed: a command, or a file.
_WORD = re.compile(rf"(?:^|(?<=\s))({BEGUN}|/\S*)$")
_NEWLINE_KEYS = ("ctrl+j", "shift+enter", "alt+enter", "ctrl+enter")


class Editor(TextArea):
    """A text that is submitted with Enter. Up and Down at its ends bring back what was submitted before."""

    DEFAULT_CSS = """
    Editor { height: auto; max-height: 40vh; min-height: 1; border: none; padding: 0 1; background: transparent; }
    Editor:focus { border: none; }
    Editor .text-area--placeholder { color: ansi_bright_black; }
    """
    BINDINGS = [  # noqa: RUF012  (as every widget has it)
        Binding("ctrl+s", "steer", "steer", show=False),
        Binding("ctrl+d", "end_of_input", "leave", show=False),
        Binding("ctrl+underscore", "undo", "undo", show=False),
        Binding("ctrl+r", "remove_waiting", "remove", show=False),
        Binding("pageup", "app.page(-1)", "scroll up", show=False),
        Binding("pagedown", "app.page(1)", "scroll down", show=False),
        Binding("ctrl+home", "app.page(-9999)", "to the beginning", show=False),
        Binding("ctrl+end", "app.page(9999)", "to the end", show=False),
    ]

    class Submitted(Message):
        """Somebody has written something. ``steers``: to the prompt that runs."""

        def __init__(self, text: str, *, steers: bool) -> None:
            super().__init__()
            self.text = text
            self.steers = steers

    class Escaped(Message):
        """Somebody wants out."""

    class Ended(Message):
        """Somebody has nothing more to say."""

    class Offered(Message):
        """What can be completed is to be offered: the word before the cursor, "" for nothing."""

        def __init__(self, word: str, place: Place) -> None:
            super().__init__()
            self.word = word
            self.place = place

    def __init__(self, offers: Offers) -> None:
        super().__init__(compact=True, highlight_cursor_line=False, placeholder="Ask anything. /help, @file")
        self.cursor_blink = False
        self._offers = offers
        #: Where something to complete was asked for the last time.
        self._asked: Place | None = None
        #: Takes back what was written last and has not been said, to keep it here or not; False if nothing can be.
        self.take_back: Callable[[bool], bool] = lambda keeps: False
        self._history: list[str] = []
        self._at = 0
        self._draft = ""
        #: What was brought back last.
        self._brought: str | None = None
        self._folds = Folds()

    # Whoever wrote it, nothing gets into the editor by another way than these two.

    def edit(self, edit: Edit) -> EditResult:
        edit.text = _clean(edit.text)
        return super().edit(edit)

    def load_text(self, text: str) -> None:
        super().load_text(_clean(text))

    # What was written before.

    def remember(self, texts: Iterable[str]) -> None:
        """Have these as what was written before."""
        self._history = [text for text in texts if text.strip()]
        self._at = len(self._history)

    def put(self, text: str) -> None:
        """Have this text, the cursor at its end. What stood there can be had back."""
        self.history.checkpoint()
        self.replace(text, (0, 0), self.document.end, maintain_selection_offset=False)
        self.history.checkpoint()

    def put_back(self, texts: Sequence[str]) -> None:
        """Put what was submitted, and has not been said, before what stands here."""
        stood = [self._folds.recall(_clean(text)) for text in texts]
        self.put("\n\n".join([*stood, self.text] if self.text else stood))

    def drop(self) -> None:
        """Have nothing, and be where nothing was brought back. What stood here can be had back."""
        self.put("")
        self._at, self._draft = len(self._history), ""

    def _recall(self, step: int) -> bool:
        if self.text != self._brought:  # It was undone, or changed: that is what one comes back to.
            self._at = len(self._history)
        at = self._at + step
        if not 0 <= at <= len(self._history):
            return False
        if self._at == len(self._history):
            self._draft = self.text
        self._at = at
        self.put(self._draft if at == len(self._history) else self._folds.recall(_clean(self._history[at])))
        self._brought = self.text
        return True

    def action_cursor_up(self, select: bool = False) -> None:
        if self.offers:
            self._offers.move(-1)
        elif not self.text and self.take_back(True):
            return
        elif select or not self.cursor_at_first_line or not self._recall(-1):
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        if self.offers:
            self._offers.move(1)
        elif select or not self.cursor_at_last_line or not self._recall(1):
            super().action_cursor_down(select)

    # What is submitted.

    def action_steer(self) -> None:
        self.submit(steers=True)

    def action_remove_waiting(self) -> None:
        self.take_back(False)

    def action_end_of_input(self) -> None:
        """Leave, if there is nothing to lose; else delete a character, as shells do."""
        if self.text:
            self.action_delete_right()
        else:
            self.post_message(self.Ended())

    def submit(self, *, steers: bool = False) -> None:
        """Have it said, if there is anything."""
        text = self._folds.say(self.text)
        if not text.strip():
            return
        if not self._history or self._history[-1] != text:
            self._history.append(text)
        self._at, self._draft = len(self._history), ""
        self.text = ""
        self.post_message(self.Submitted(text, steers=steers))

    async def on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self._enter()
        elif event.key == "escape":
            event.stop()
            event.prevent_default()
            self.post_message(self.Escaped())
        elif event.key in _NEWLINE_KEYS:
            event.stop()
            event.prevent_default()
            self.insert("\n")
        elif event.key == "tab":
            event.stop()
            event.prevent_default()
            if self.offers:
                self._accept()
        else:
            await obey(self, event)

    def _enter(self) -> None:
        row, column = self.cursor_location
        if self.offers:
            if self._accept().startswith("/"):
                self.submit()
        elif column and self.document.get_line(row)[column - 1 : column] == "\\" and self.cursor_at_end_of_line:
            self.replace("\n", (row, column - 1), (row, column))  # For terminals that have no other way.
        else:
            self.submit()

    # What is pasted.

    async def on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.insert(self._folds.paste(_clean(event.text)))

    def action_delete_left(self) -> None:
        """Delete a character, or all of what was pasted and folded."""
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        folded = next((one for one in MARK.finditer(before) if one.end() == column), None)
        if folded is not None and self.selection.is_empty:
            self.delete((row, folded.start()), (row, column))
        else:
            super().action_delete_left()

    # What can be completed.

    @property
    def offers(self) -> bool:
        """True while there is something to choose from for what stands here now: keys may be faster than offers."""
        return self._offers.place == self._place

    @property
    def _place(self) -> Place:
        return self.text, self.cursor_location

    def on_text_area_changed(self) -> None:
        self._offer()

    def on_text_area_selection_changed(self) -> None:
        self._offer()

    def _offer(self) -> None:
        """Ask for what can be completed at the cursor, if that was not asked yet."""
        if self._asked == self._place:
            return
        self._asked = self._place
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        found = _WORD.search(before)
        word = found[1] if found else ""
        is_first = row == 0 and bool(found) and before.lstrip() == word
        self.post_message(self.Offered(word if word.startswith("@") or is_first else "", self._asked))

    def _accept(self) -> str:
        """Put the offer that is looked at in the place of the word before the cursor, and return it."""
        chosen = self._offers.chosen
        if chosen is None:
            return ""
        row, column = self.cursor_location
        self.replace(chosen.text, (row, column - len(self._offers.word)), (row, column))
        self._offers.show("", ())
        return chosen.text


def _clean(text: str) -> str:
    """Return ``text`` as the terminal can be given it: every line end is one, what is not seen stands as its escape."""
    return escaped(text.replace("\r\n", "\n").replace("\r", "\n"))


_queue_SHOWN = 4


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
        hidden = len(lines) - _queue_SHOWN
        text = Text("\n".join(lines[:_queue_SHOWN]), style="dim", no_wrap=True, overflow="ellipsis")
        if lines:
            more = f"{hidden} more; " if hidden > 0 else ""
            text.append(f"\n{more}Up takes one back, Ctrl+R removes it")
        self.display = bool(lines)
        self.update(text)


class Composer(Vertical):
    """The lower part of the screen. What is submitted goes on to the app."""

    DEFAULT_CSS = "Composer { height: auto; border-top: solid ansi_bright_black; }"

    class Withdrawn(Message):
        """Somebody wants back what is on its way by this name; ``keeps``: to change it."""

        def __init__(self, name: str, *, keeps: bool) -> None:
            super().__init__()
            self.name = name
            self.keeps = keeps

    def __init__(self) -> None:
        self._offers = Offers()
        self.editor = Editor(self._offers)
        super().__init__(self.editor)
        self.queue = Queue()
        self.files: Files | None = None
        #: The names of what is being taken back.
        self._withdrawn: set[str] = set()
        #: What extensions offer, as far as it is known.
        self.commands: Sequence[CommandInfo] = ()

    async def furnish(self) -> None:
        """Have everything: the first frame must not wait for what nobody needs yet."""
        await self.mount(self.queue, self._offers, before=self.editor)
        self.editor.take_back = self._take_back

    def withdraw(self) -> bool:
        """Offer nothing any more; False if nothing was offered."""
        had = bool(self._offers.display)
        self._offers.show("", ())
        return had

    def take_back_all(self) -> None:
        """Put what waits back into the editor."""
        self.put_back(self.queue.all())

    def steer(self, text: str, say: Callable[[str], Awaitable[None]]) -> Coroutine[Any, Any, None]:
        """Show that something is on its way to the running prompt; it can be taken back from now on.

        What is returned lets ``say`` say it, by a name. What cannot be said is put back into the editor.
        """
        name = os.urandom(8).hex()
        self.queue.steer(name, text)
        return self._steer(name, text, say)

    async def _steer(self, name: str, text: str, say: Callable[[str], Awaitable[None]]) -> None:
        try:
            await say(name)
        except (AgentError, OSError):
            if name not in self._withdrawn and self.queue.withdraw(name):  # Else somebody has it back already.
                self.put_back([text])
                raise

    def _take_back(self, keeps: bool) -> bool:
        """Take back what was written last: what waits here at once, what is on its way if it can be. False if nothing.

        What ``keeps`` is put into the editor.
        """
        if text := self.queue.last():
            self.put_back([text] if keeps else [])
        elif name := self.queue.last_steering:
            self.post_message(self.Withdrawn(name, keeps=keeps))
        return bool(text or name)

    async def withdraw_steering(self, message: Withdrawn, take_back: Callable[[str], Awaitable[None]]) -> None:
        """Take back what is on its way, unless it has been said."""
        self._withdrawn.add(message.name)
        try:
            await take_back(message.name)
        finally:
            self._withdrawn.discard(message.name)
        if (text := self.queue.withdraw(message.name)) and message.keeps:
            self.put_back([text])

    def put_back(self, texts: list[str]) -> None:
        """Put what has not been said before what stands in the editor."""
        if texts:
            self.editor.put_back(texts)

    async def on_editor_offered(self, message: Editor.Offered) -> None:
        word = message.word
        if not self._offers.is_attached:
            return
        if word.startswith("/"):
            self._offers.show(word, self._fitting(word[1:]), message.place)
        elif word.startswith("@") and self.files is not None:
            self._offers.show(word, await asyncio.to_thread(self.files.find, word), message.place)
        else:
            self._offers.show("", ())

    def _fitting(self, word: str) -> list[Offer]:
        known = [(name, one.help) for name, one in slash.COMMANDS.items()]
        known += [(one.name, one.description) for one in self.commands if one.name not in slash.COMMANDS]
        fits = sorted((one for one in known if one[0].startswith(word)), key=lambda one: one[0] != word)
        return [] if [word] == [name for name, _ in fits] else [Offer(f"/{name} ", help_) for name, help_ in fits]
