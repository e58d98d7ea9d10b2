"""Where a person writes: several lines, what was written before, long pastes folded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from textual import events
from textual.binding import Binding
from textual.message import Message
from textual.widgets import TextArea
from textual.widgets.text_area import Edit, EditResult

from zot.ui.readable import escaped
from zot.ui.terminal.completion import Offers, Place
from zot.ui.terminal.folding import MARK, Folds
from zot.ui.terminal.mention import BEGUN
from zot.ui.terminal.order import obey

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
