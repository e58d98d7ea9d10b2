"""The composer: editor, completion, folded pastes and queued messages."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
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
from zot.file_names import FileNames, best_matches, is_mentionable
from zot.panels import CommandInfo, ResourceInfo
from zot.text import escaped
from zot.ui.readable import one_line
from zot.ui.terminal import slash
from zot.ui.terminal.mentions import UNFINISHED, mention, mentioned_path
from zot.ui.terminal.styles import safe
from zot.ui.terminal.textual_patches import run_binding

_MAX_OFFERS_SHOWN = 6
_MAX_OFFERS = 50
_MAX_RESOURCES = 20
_PATH_PREFIXES = ("/", "~/", "../", "./")

#: A text, and the row and column of its cursor.
Place: TypeAlias = tuple[str, tuple[int, int]]

#: Pastes longer than this are folded.
_FOLD_LINES = 6
_FOLD_CHARACTERS = 1000
#: Recalled messages longer than this are folded. The limit is higher: typed text is edited anywhere.
_LONG_LINES = 30
_LONG_CHARACTERS = 3000
#: A first or last line up to this length stays visible.
_VISIBLE_CHARACTERS = 200
MARK = re.compile(r"\[pasted #\d+: [^\]]*\]")

#: A word that can be completed: a command or a file.
_WORD = re.compile(rf"(?:^|(?<=\s))({UNFINISHED}|/\S*)$")
_NEWLINE_KEYS = ("ctrl+j", "shift+enter", "alt+enter", "ctrl+enter")

_MAX_QUEUED_SHOWN = 4


class Completion(msgspec.Struct, frozen=True):
    """A completion for a word."""

    text: str
    help: str = ""


class Offers(Static):
    """A short list of completions, one of them selected."""

    DEFAULT_CSS = """
    Offers { height: auto; max-height: 6; display: none; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.offers: Sequence[Completion] = ()
        self.word = ""
        #: The text and cursor that the offers were made for.
        self.place: Place | None = None
        self._at = 0

    @property
    def chosen(self) -> Completion | None:
        """The selected completion."""
        return self.offers[self._at] if self.offers else None

    def show(self, word: str, offers: Sequence[Completion], place: Place | None = None) -> None:
        """Offer completions for ``word`` at ``place``."""
        if not offers and not self.offers:  # The case of nearly every key.
            return
        self.word, self.offers, self.place, self._at = word, offers, place if offers else None, 0
        self.display = bool(offers)
        self._draw()

    def move(self, step: int) -> None:
        """Select another one."""
        if self.offers:
            self._at = (self._at + step) % len(self.offers)
            self._draw()

    def _draw(self) -> None:
        text = Text(no_wrap=True, overflow="ellipsis")
        shown = _MAX_OFFERS_SHOWN if len(self.offers) <= _MAX_OFFERS_SHOWN else _MAX_OFFERS_SHOWN - 1
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


class FileCompletions:
    """The files below a directory, for completion."""

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd
        self._names = FileNames(cwd)

    def find(self, word: str) -> list[Completion]:
        """Return the files whose paths contain the letters of ``word`` in order, best match first.

        A path that starts with ``/``, ``~``, ``.`` or ``..`` is completed in its own directory.
        """
        path = mentioned_path(word)
        if path.startswith(_PATH_PREFIXES):
            return [_offer(one) for one in self._beside(path)]
        return [_offer(one) for one in self._names.find(path, _MAX_OFFERS)]

    def _beside(self, path: str) -> list[str]:
        """Return the entries of the path's directory whose names start with its last part."""
        place, name = os.path.split(path)
        place = place if place.endswith("/") else f"{place}/"
        try:
            with os.scandir(os.path.join(self._cwd, os.path.expanduser(place))) as found:
                fits = [one for one in found if one.name.startswith(name) and is_mentionable(one.name)]
        except OSError:
            return []  # An unreadable directory has no completions.
        hidden = name.startswith(".")
        # An entry that cannot be examined, such as a link to itself, is offered as a file.
        paths = [f"{place}{one.name}{'/' * os.path.isdir(one.path)}" for one in fits if hidden or one.name[0] != "."]
        return sorted(paths)[:_MAX_OFFERS]


def _shown(text: str) -> str:
    """Return text of an extension as one line, safe for the terminal."""
    return safe(text).replace("\n", " ")


def _offer(path: str) -> Completion:
    return Completion(mention(path) if path.endswith("/") else f"{mention(path)} ")


class FoldedPastes:
    """The folded texts that can still be brought back."""

    def __init__(self) -> None:
        #: Folded texts, by their marks.
        self._folded: dict[str, str] = {}
        self._number = 0
        #: The marks in the editor or its undo history; any other mark is literal text.
        self._live: set[str] = set()
        #: The folded form of long submitted messages, by their full text.
        self._folded_forms: dict[str, str] = {}

    def paste(self, text: str) -> str:
        """Return a pasted text, or its mark if it is long."""
        return self._fold(text) if _exceeds(text, _FOLD_LINES, _FOLD_CHARACTERS) else text

    def say(self, text: str) -> str:
        """Return ``text`` unfolded, and remember its folded form."""
        said = MARK.sub(lambda found: self._folded[found[0]] if found[0] in self._live else found[0], text)
        if said != text or _exceeds(said, _LONG_LINES, _LONG_CHARACTERS):
            self._folded_forms[said] = text
        self._live.clear()
        kept = {mark for stood in self._folded_forms.values() for mark in MARK.findall(stood)}
        self._folded = {mark: text for mark, text in self._folded.items() if mark in kept}
        return said

    def recall(self, said: str) -> str:
        """Return a submitted message in its folded form; fold the middle of a long one that has none."""
        if said not in self._folded_forms and _exceeds(said, _LONG_LINES, _LONG_CHARACTERS):
            first, middle, last = _cut(said)
            self._folded_forms[said] = f"{first}{self._fold(middle)}{last}"
        stood = self._folded_forms.get(said, said)
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
    """Return the first line, the middle with its line ends, and the last line; long lines belong to the middle."""
    first, last = text.partition("\n")[0], text.rpartition("\n")[2]
    begin = len(first) if len(first) <= _VISIBLE_CHARACTERS else 0
    end = len(text) - (len(last) if len(last) <= _VISIBLE_CHARACTERS else 0)
    return text[:begin], text[begin:end], text[end:]


class Editor(TextArea):
    """A text area that Enter submits. Up and Down at its ends recall earlier messages."""

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
        """The user submitted a message. ``steers``: for the running prompt."""

        def __init__(self, text: str, *, steers: bool) -> None:
            super().__init__()
            self.text = text
            self.steers = steers

    class Escaped(Message):
        """The user pressed Esc."""

    class Ended(Message):
        """The user pressed Ctrl+D in an empty editor."""

    class Offered(Message):
        """Completions are needed for the word before the cursor; "" for none."""

        def __init__(self, word: str, place: Place) -> None:
            super().__init__()
            self.word = word
            self.place = place

    def __init__(self, offers: Offers) -> None:
        super().__init__(compact=True, highlight_cursor_line=False, placeholder="Ask anything. /help, @file")
        self.cursor_blink = False
        self._offers = offers
        #: The text and cursor that completions were last requested for.
        self._requested: Place | None = None
        #: Withdraws the newest message that was not sent, into the editor if True; False if there is none.
        self.take_back: Callable[[bool], bool] = lambda keeps: False
        self._history: list[str] = []
        self._at = 0
        self._draft = ""
        #: The text that was recalled last.
        self._recalled: str | None = None
        self._folds = FoldedPastes()

    # All text enters the editor through these two methods, which clean it.

    def edit(self, edit: Edit) -> EditResult:
        edit.text = _clean(edit.text)
        return super().edit(edit)

    def load_text(self, text: str) -> None:
        super().load_text(_clean(text))

    # History.

    def remember(self, texts: Iterable[str]) -> None:
        """Replace the history."""
        self._history = [text for text in texts if text.strip()]
        self._at = len(self._history)

    def put(self, text: str) -> None:
        """Replace the text, with the cursor at its end. Undo brings the old text back."""
        self.history.checkpoint()
        self.replace(text, (0, 0), self.document.end, maintain_selection_offset=False)
        self.history.checkpoint()

    def put_back(self, texts: Sequence[str]) -> None:
        """Put withdrawn messages before the current text."""
        stood = [self._folds.recall(_clean(text)) for text in texts]
        self.put("\n\n".join([*stood, self.text] if self.text else stood))

    def drop(self) -> None:
        """Clear the text and leave the history. Undo brings the text back."""
        self.put("")
        self._at, self._draft = len(self._history), ""

    def _recall(self, step: int) -> bool:
        if self.text != self._recalled:  # Edited or undone: it is the new draft.
            self._at = len(self._history)
        at = self._at + step
        if not 0 <= at <= len(self._history):
            return False
        if self._at == len(self._history):
            self._draft = self.text
        self._at = at
        self.put(self._draft if at == len(self._history) else self._folds.recall(_clean(self._history[at])))
        self._recalled = self.text
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

    # Submitting.

    def action_steer(self) -> None:
        self.submit(steers=True)

    def action_remove_waiting(self) -> None:
        self.take_back(False)

    def action_end_of_input(self) -> None:
        """Leave if the editor is empty, else delete a character, as shells do."""
        if self.text:
            self.action_delete_right()
        else:
            self.post_message(self.Ended())

    def submit(self, *, steers: bool = False) -> None:
        """Submit the text unless it is blank."""
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
            await run_binding(self, event)

    def _enter(self) -> None:
        row, column = self.cursor_location
        if self.offers:
            if self._accept().startswith("/"):
                self.submit()
        elif column and self.document.get_line(row)[column - 1 : column] == "\\" and self.cursor_at_end_of_line:
            self.replace("\n", (row, column - 1), (row, column))  # For terminals that cannot send the other keys.
        else:
            self.submit()

    # Pasting.

    async def on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.insert(self._folds.paste(_clean(event.text)))

    def action_delete_left(self) -> None:
        """Delete a character, or a whole mark of a folded paste."""
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        folded = next((one for one in MARK.finditer(before) if one.end() == column), None)
        if folded is not None and self.selection.is_empty:
            self.delete((row, folded.start()), (row, column))
        else:
            super().action_delete_left()

    # Completion.

    @property
    def offers(self) -> bool:
        """True while completions are shown for the current text: typing may be faster than they are."""
        return self._offers.place == self._place

    @property
    def _place(self) -> Place:
        return self.text, self.cursor_location

    def on_text_area_changed(self) -> None:
        self._offer()

    def on_text_area_selection_changed(self) -> None:
        self._offer()

    def _offer(self) -> None:
        """Request completions for the cursor position, once."""
        if self._requested == self._place:
            return
        self._requested = self._place
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        found = _WORD.search(before)
        word = found[1] if found else ""
        is_first = row == 0 and bool(found) and before.lstrip() == word
        self.post_message(self.Offered(word if word.startswith("@") or is_first else "", self._requested))

    def _accept(self) -> str:
        """Replace the word before the cursor by the selected completion, and return it."""
        chosen = self._offers.chosen
        if chosen is None:
            return ""
        row, column = self.cursor_location
        self.replace(chosen.text, (row, column - len(self._offers.word)), (row, column))
        self._offers.show("", ())
        return chosen.text


def _clean(text: str) -> str:
    """Return ``text`` with LF line ends and invisible characters as escapes."""
    return escaped(text.replace("\r\n", "\n").replace("\r", "\n"))


class Queue(Static):
    """The messages that wait for the end of the run, oldest first, and those that steer it."""

    DEFAULT_CSS = """
    Queue { height: auto; max-height: 5; display: none; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[str] = []
        #: Steering messages that the model has not received, by name.
        self._steering: dict[str, str] = {}

    def add(self, text: str) -> None:
        """Enqueue a message."""
        self.waiting.append(text)
        self.draw()

    def next(self) -> str:
        """Remove and return the oldest message; "" if there is none."""
        text = self.waiting.pop(0) if self.waiting else ""
        self.draw()
        return text

    def last(self) -> str:
        """Remove and return the newest message; "" if there is none."""
        text = self.waiting.pop() if self.waiting else ""
        self.draw()
        return text

    def all(self) -> list[str]:
        """Remove and return all messages, steering ones first."""
        texts, self.waiting = [*self._steering.values(), *self.waiting], []
        self._steering.clear()
        self.draw()
        return texts

    def steers(self, name: str) -> bool:
        """True if a steering message of this name is on its way."""
        return name in self._steering

    def steer(self, name: str, text: str) -> None:
        """Note a steering message that is on its way."""
        self._steering[name] = text
        self.draw()

    @property
    def last_steering(self) -> str:
        """The name of the newest steering message; "" if there is none."""
        return next(reversed(self._steering), "")

    def said(self, text: str) -> None:
        """Drop a steering message that the model has received."""
        self.withdraw(next((name for name, one in self._steering.items() if one == text), ""))

    def withdraw(self, name: str) -> str:
        """Remove and return a steering message; "" if there is none of this name."""
        text = self._steering.pop(name, "")
        self.draw()
        return text

    def draw(self) -> None:
        lines = [f"steering: {one_line(safe(text), 200)}" for text in self._steering.values()]
        lines += [f"{number}. {one_line(safe(text), 200)}" for number, text in enumerate(self.waiting, 1)]
        hidden = len(lines) - _MAX_QUEUED_SHOWN
        text = Text("\n".join(lines[:_MAX_QUEUED_SHOWN]), style="dim", no_wrap=True, overflow="ellipsis")
        if lines:
            more = f"{hidden} more; " if hidden > 0 else ""
            text.append(f"\n{more}Up takes one back, Ctrl+R removes it")
        self.display = bool(lines)
        self.update(text)


class Composer(Vertical):
    """The lower part of the screen: queue, completions and editor. The app handles submitted messages."""

    DEFAULT_CSS = "Composer { height: auto; border-top: solid ansi_bright_black; }"

    class Withdrawn(Message):
        """The user withdraws a steering message; ``keeps``: into the editor."""

        def __init__(self, name: str, *, keeps: bool) -> None:
            super().__init__()
            self.name = name
            self.keeps = keeps

    def __init__(self) -> None:
        self._offers = Offers()
        self.editor = Editor(self._offers)
        super().__init__(self.editor)
        self.queue = Queue()
        self.files: FileCompletions | None = None
        #: Names of the steering messages that are being withdrawn.
        self._withdrawn: set[str] = set()
        #: The commands of extensions and the resources of MCP servers that are known so far.
        self.commands: Sequence[CommandInfo] = ()
        self.resources: Sequence[ResourceInfo] = ()

    async def furnish(self) -> None:
        """Mount the other widgets: the first frame does not need them."""
        await self.mount(self.queue, self._offers, before=self.editor)
        self.editor.take_back = self._take_back

    def withdraw(self) -> bool:
        """Hide the completions; False if there were none."""
        had = bool(self._offers.display)
        self._offers.show("", ())
        return had

    def take_back_all(self) -> None:
        """Move all queued messages back into the editor."""
        self.put_back(self.queue.all())

    def steer(self, text: str, say: Callable[[str], Awaitable[None]]) -> Coroutine[Any, Any, None]:
        """Show a steering message as on its way, so that it can be withdrawn.

        The coroutine returned sends it with ``say``, by name. A message that cannot be sent returns to the editor.
        """
        name = os.urandom(8).hex()
        self.queue.steer(name, text)
        return self._steer(name, text, say)

    async def _steer(self, name: str, text: str, say: Callable[[str], Awaitable[None]]) -> None:
        try:
            await say(name)
        except (AgentError, OSError):
            if name not in self._withdrawn and self.queue.withdraw(name):  # Else it is withdrawn already.
                self.put_back([text])
                raise

    def _take_back(self, keeps: bool) -> bool:
        """Withdraw the newest message: at once if queued here, on request if it is steering. False if there is none.

        ``keeps`` puts it into the editor.
        """
        if text := self.queue.last():
            self.put_back([text] if keeps else [])
        elif name := self.queue.last_steering:
            self.post_message(self.Withdrawn(name, keeps=keeps))
        return bool(text or name)

    async def withdraw_steering(self, message: Withdrawn, take_back: Callable[[str], Awaitable[None]]) -> None:
        """Withdraw a steering message, unless the model has received it."""
        self._withdrawn.add(message.name)
        try:
            await take_back(message.name)
        finally:
            self._withdrawn.discard(message.name)
        if (text := self.queue.withdraw(message.name)) and message.keeps:
            self.put_back([text])

    def put_back(self, texts: list[str]) -> None:
        """Put messages that were not sent before the editor's text."""
        if texts:
            self.editor.put_back(texts)

    async def on_editor_offered(self, message: Editor.Offered) -> None:
        word = message.word
        if not self._offers.is_attached:
            return
        if word.startswith("/"):
            self._offers.show(word, self._fitting(word[1:]), message.place)
        elif word.startswith("@") and self.files is not None:
            files = await asyncio.to_thread(self.files.find, word)
            self._offers.show(word, self._with_resources(word, files), message.place)
        else:
            self._offers.show("", ())

    def _with_resources(self, word: str, files: Sequence[Completion]) -> list[Completion]:
        """Return ``files`` and the resources that contain the letters of ``word`` in order.

        Resources come first if their mentions start with the word.
        """
        titles = {one.mention: one.title for one in self.resources}
        found = best_matches(titles, word, _MAX_RESOURCES)
        named = [one for one in found if word != "@" and one.startswith(word)]
        first, last = (
            [Completion(f"{one} ", titles[one]) for one in found if (one in named) is is_named]
            for is_named in (True, False)
        )
        return [*first, *files[: _MAX_OFFERS - len(found)], *last]

    def _fitting(self, word: str) -> list[Completion]:
        known = [(name, one.help) for name, one in slash.COMMANDS.items()]
        known += [(one.name, one.description) for one in self.commands if one.name not in slash.COMMANDS]
        fits = sorted((one for one in known if one[0].startswith(word)), key=lambda one: one[0] != word)
        return [] if [word] == [name for name, _ in fits] else [Completion(f"/{name} ", help_) for name, help_ in fits]
