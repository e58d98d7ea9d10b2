"""Questions to the user: choices, forms and approvals."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rich.cells import cell_len, chop_cells
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Input, Static

from zot.events import AgentEvent, ApprovalAnswer, ApprovalRequest, Decision, Done, QuestionAnswer, QuestionRequest
from zot.text import printable
from zot.ui.readable import counted
from zot.ui.terminal.composer import Composer
from zot.ui.terminal.panel_views import Panels
from zot.ui.terminal.slash import Option, ask_question
from zot.ui.terminal.styles import Decided, in_full, safe, unabridged, until
from zot.ui.terminal.textual_patches import IGNORE_KEYS_S, as_keys, run_binding

if TYPE_CHECKING:
    from zot.ui.terminal.app import ZotApp

_SHOWN = 8
#: Lines besides the body and the options: one of the transcript, the border, the count of hidden lines, the keys, the
#: status.
_AROUND = 5
#: A lower screen has room for hardly more than the options.
_LOW_SCREEN = 8

#: A question that the user did not ask for takes the keys only after this pause in typing.
_PAUSE_S = 0.4

_OPTIONS: list[Option[Decision]] = [
    Option("allow_once", "allow it this time", "y"),
    Option("allow_always", "allow it for the rest of the session", "a"),
    Option("reject", "do not allow it", "n"),
]


class QuestionView(Vertical, can_focus=True):
    """Shows a body in full and options to choose from. ``answer`` is the chosen value, or None."""

    DEFAULT_CSS = """
    QuestionView { height: auto; border-top: solid ansi_yellow; padding: 0 1; }
    QuestionView .body { height: auto; }
    QuestionView .title { height: auto; }
    QuestionView .options { height: auto; text-wrap: nowrap; text-overflow: ellipsis; }
    QuestionView.-low { border-top: none; }
    QuestionView.-low .title { max-height: 1; }
    """

    def __init__(
        self,
        title: str,
        options: Sequence[Option[Any]],
        *,
        body: str = "",
        diff: Sequence[tuple[str, str]] = (),
        hint: str = "",
        sudden: bool = False,
    ) -> None:
        """``body`` and ``diff``, which has styled lines, describe the subject; ``hint`` names the keys.

        ``sudden``: the user did not ask for it, so keys typed now are not meant for it.
        """
        super().__init__()
        self.sudden = sudden
        by_key = any(one.key for one in options)
        self._hint = hint or ("Esc cancels" if by_key else "Enter selects, Esc cancels; type to search")
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._title = safe(title)
        self._options = options
        self._body = Text(unabridged(body).rstrip("\n"))
        for number, (line, style) in enumerate(diff):
            self._body.append(f"{chr(10) if number or body else ''}{line}", style)
        self._filter = ""
        #: In a decision, Enter only confirms an option that the user selected.
        self._at = -1 if self.by_key else 0
        self._listens = False

    def compose(self) -> ComposeResult:
        yield Static(Text(self._title, style="bold"), classes="title")
        if self._body.plain:
            with VerticalScroll(classes="body", can_focus=False):
                yield Static(self._body)
        yield Static(classes="options")

    def on_mount(self) -> None:
        for body in self.query(".body"):
            for name in ("scroll_y", "virtual_size"):
                self.watch(body, name, self._draw, init=False)
        self.fit()

    def on_resize(self) -> None:
        self.fit()

    def listen(self) -> None:
        """Take the keys."""
        self._listens = True
        self._draw()
        self.focus()

    def fit(self) -> None:
        """Give the body the height that the rest leaves, and panels the remainder."""
        screen, width = self.app.size, max(1, self.app.size.width - 2)
        title = -(-cell_len(self._title) // width)
        left = screen.height - _AROUND - title - min(self._shown, len(self._options))
        most = max(1, min(left, screen.height * 2 // 5)) if self._body.plain else 0
        self.set_class(self._is_low, "-low")
        if self._is_low and most:  # The transcript, the title and the status have a line each.
            most = max(1, screen.height - 3 - (1 if self.by_key else min(self._shown, len(self._options))))
        for body in self.query(".body"):
            body.styles.max_height = most
        rows = sum(1 + cell_len(line) // width for line in self._body.plain.split("\n"))
        for panels in self.screen.query(Panels):
            panels.leave(left - min(most, rows))
        self._draw()

    def on_unmount(self) -> None:
        for panels in self.screen.query(Panels):
            panels.leave(None)

    def close(self, value: Any = None) -> None:
        """Set the answer."""
        if not self.answer.done():
            self.answer.set_result(value)

    @property
    def _fitting(self) -> list[Option[Any]]:
        words = self._filter.lower().split()
        return [one for one in self._options if all(word in one.label.lower() for word in words)]

    @property
    def by_key(self) -> bool:
        """True if a single key decides."""
        return any(one.key for one in self._options)

    @property
    def is_sudden(self) -> bool:
        """True if a stray key must not answer it."""
        return self.sudden or self.by_key

    @property
    def _is_low(self) -> bool:
        return self.app.size.height < _LOW_SCREEN

    @property
    def _shown(self) -> int:
        if self._is_low:
            return max(1, self.app.size.height - 3 - bool(self._body.plain))
        return max(3, min(_SHOWN, self.app.size.height // 3))

    def _draw(self) -> None:
        text = Text() if self._is_low else self._more()
        if self._listens or not self.is_sudden:
            text.append(self._keys() if self._is_low and self.by_key else self._choice())
        else:
            text.append("stop typing to answer", "dim")
        for options in self.query(".options").results(Static):  # None once the screen is closing.
            options.update(text)

    def _more(self) -> Text:
        """Return the note on how much of the body is hidden."""
        for body in self.query(".body"):
            if left := round(body.max_scroll_y - body.scroll_y):
                return Text(f"{counted(left, 'more line')}; PageDown scrolls\n", "yellow")
            if body.max_scroll_y:
                return Text("this is the end; PageUp scrolls\n", "dim")
        return Text()

    def _choice(self) -> Text:
        fitting, shown = self._fitting, self._shown
        first = max(0, min(self._at - shown // 2, len(fitting) - shown))
        text = Text(no_wrap=True, overflow="ellipsis")
        if self._filter:
            text.append(f"/{safe(self._filter)}\n", "cyan")
        for number, option in enumerate(fitting[first : first + shown], first):
            label = f"{option.key}  {option.label}" if option.key else option.label
            text.append(safe(label).replace("\n", " "), "reverse" if number == self._at else "")
            text.append("\n")
        if self._is_low:
            return text[:-1]
        for row in self._rest(fitting):
            text.append(f"{row}\n", "cyan")
        hidden = len(fitting) - shown
        text.append(f"{hidden} more; {self._hint}" if hidden > 0 else self._hint, "dim")
        return text

    def _keys(self) -> Text:
        """Return the options in one line, each cut to its share, and the number of hidden lines."""
        left = sum(round(body.max_scroll_y - body.scroll_y) for body in self.query(".body"))
        more = f" +{left}" if left else ""
        width = (self.app.size.width - 2 - len(more)) // len(self._options) - 1
        text = Text()
        for number, one in enumerate(self._options):
            text.append(f"{one.key} {safe(one.label)}"[:width].ljust(width), "reverse" if number == self._at else "")
            text.append(" ")
        return text.append(more.lstrip(), "yellow")

    def _rest(self, fitting: Sequence[Option[Any]]) -> list[str]:
        """Return the wrapped label of the selected option if it is too long for one line: others may begin alike."""
        width = max(1, self.app.size.width - 2)
        label = safe(fitting[self._at].label).replace("\n", " ") if 0 <= self._at < len(fitting) else ""
        # The rest: border, title, options, filter, keys and status.
        room = self.app.size.height - 5 - -(-cell_len(self._title) // width) - min(len(fitting), self._shown)
        rows = chop_cells(label, width) if cell_len(label) > width and not self.by_key else []
        return rows[: max(0, min(room, self._shown))]

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        fitting = self._fitting
        match event.key:
            case "escape" | "ctrl+c":
                self.close(None)
            case "up" | "down" if fitting:
                self._at = (max(self._at, 0) - 1 if event.key == "up" else self._at + 1) % len(fitting)
            case "pageup" | "pagedown":
                pages = 1 if event.key == "pagedown" else -1
                for body in self.query(".body"):  # At once: the next key may already be queued.
                    body.scroll_relative(y=pages * body.size.height, animate=False, immediate=True)
            case "enter" if fitting and self._at >= 0:
                self.close(fitting[self._at].value)
            case "backspace" if not self.by_key:
                self._filter, self._at = self._filter[:-1], 0
            case _:
                self._typed(event.character if event.is_printable and event.character else "")
        self._draw()

    def _typed(self, character: str) -> None:
        if self.by_key:
            chosen = next((one for one in self._options if one.key and one.key == character.lower()), None)
            if chosen is not None:
                self.close(chosen.value)
        elif character:
            self._filter, self._at = self._filter + character, 0

    def on_paste(self, event: events.Paste) -> None:
        """Use a paste as search text. One that is too long, or in a decision, is left to the app."""
        if not self.by_key and (keys := as_keys(event.text)) is not None:
            event.stop()
            self._typed(keys)
            self._draw()


class Line(Input):
    """A one-line input."""

    async def on_key(self, event: events.Key) -> None:
        await run_binding(self, event)


class Form(Vertical):
    DEFAULT_CSS = """
    Form { height: auto; border-top: solid ansi_yellow; padding: 0 1; }
    Form Input { border: none; height: 1; padding: 0; }
    Form Static { height: auto; }
    """

    def __init__(self, title: str, *, secret: bool) -> None:
        super().__init__()
        self.answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._title = safe(title)
        self._secret = secret

    def compose(self) -> ComposeResult:
        yield Static(Text(self._title, style="bold"))
        yield Line(password=self._secret, compact=True)

    def listen(self) -> None:
        """Take the keys."""
        self.query_one(Line).focus()

    def close(self, value: str | None = None) -> None:
        """Set the answer."""
        if not self.answer.done():
            self.answer.set_result(value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.close(event.value)

    def on_key(self, event: events.Key) -> None:
        if event.key in ("escape", "ctrl+c"):
            event.stop()
            self.close(None)


class QuestionQueue:
    """Shows questions one after the other, and restores the focus."""

    def __init__(self, composer: Composer, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds; it times the pauses in typing."""
        self._composer = composer
        self._clock = clock
        self._turn = asyncio.Lock()
        self._shown: QuestionView | Form | None = None
        #: The questions that are shown or wait to be.
        self._open: list[QuestionView | Form] = []
        self._keyed = -_PAUSE_S

    def keyed(self) -> None:
        """Note that a key was pressed."""
        self._keyed = self._clock()

    async def put(self, question: QuestionView | Form) -> Any:
        """Show a question after the earlier ones, and return its answer."""
        self._open.append(question)
        try:
            return await self._put(question)
        finally:
            self._open.remove(question)

    async def _put(self, question: QuestionView | Form) -> Any:
        async with self._turn:
            if not question.answer.done():
                screen, self._shown = self._composer.screen, question
                before = screen.focused  # Textual moves the focus if the focused widget must make room.
                await screen.mount(question, before=self._composer)
                try:
                    if isinstance(question, QuestionView) and question.is_sudden:
                        await self._pause(question)
                    if not question.answer.done():
                        await self._listen(question)
                finally:  # Also of a question that is withdrawn.
                    self._shown = None
                    await question.remove()
                    screen.set_focus(before if before is not None and before.is_attached else self._composer.editor)
            return question.answer.result()

    async def _listen(self, question: QuestionView | Form) -> None:
        """Give a question the keys until it is answered."""
        self._composer.display = False  # Small screens have no room for both.
        question.listen()
        try:
            await question.answer
        finally:
            self._composer.display = True

    def fit(self) -> None:
        """Adapt the question to a new screen size."""
        if isinstance(self._shown, QuestionView) and self._shown.is_mounted:
            self._shown.fit()

    def overtake(self) -> None:
        """Close sudden questions: a run has started, or another session is shown."""
        for question in self._open:
            if isinstance(question, QuestionView) and question.sudden:
                question.close(None)

    def refuse(self) -> bool:
        """Close the question that is shown; False if there is none."""
        shown = self._shown
        if shown is not None:
            shown.close(None)
        return shown is not None

    async def _pause(self, question: QuestionView) -> None:
        """Wait until the user pauses typing."""
        at = self._clock() + IGNORE_KEYS_S
        while not question.answer.done() and (left := max(at, self._keyed + _PAUSE_S) - self._clock()) > 0:
            await asyncio.wait([question.answer], timeout=left)


class ApprovalDialogs:
    """The approvals that are pending on this screen."""

    def __init__(self, app: ZotApp) -> None:
        self._app = app
        self._open: dict[str, QuestionView] = {}

    def ask(self, request: ApprovalRequest) -> Coroutine[Any, Any, None]:
        """Return the coroutine that asks. `hear` can withdraw the question from now on."""
        hint = f"until {until(request)}; press y, a or n; Esc is n"
        title = f"{request.tool} wants to run; may it?"
        question = QuestionView(title, _OPTIONS, body=_about(request), diff=in_full(request), hint=hint)
        self._open[request.id] = question
        return self._ask(request, question)

    async def _ask(self, request: ApprovalRequest, question: QuestionView) -> None:
        """Ask, and send the decision to the session."""
        call = self._app.live.story.running
        if call is not None:
            call.wait(waits=True)
        with self._app.waits.busy("waiting for you"):
            decision: Decision | Literal["gone"] | None = await self._app.asking.put(question)
            self._open.pop(request.id, None)
        if call is not None:
            call.wait(waits=False)
        if decision != "gone":
            await self._app.live.conversation.approve(request.id, decision or "reject")

    def apply(self, event: AgentEvent) -> None:
        """Close the questions that an event shows to be decided: here, in another client, or by the deadline."""
        if isinstance(event, Decided):
            for question in self._open.values():
                question.close("gone")
        if isinstance(event, ApprovalAnswer) and event.by:
            self._app.live.story.note(f"{event.decision.replace('_', ' ')}, by {event.by}")


class QuestionDialogs:
    """The questions of tools that are open on this screen."""

    def __init__(self, app: ZotApp) -> None:
        self._app = app
        #: By id; set when the question is over.
        self._open: dict[str, asyncio.Event] = {}

    def ask(self, request: QuestionRequest) -> Coroutine[Any, Any, None]:
        """Return the coroutine that asks. `apply` can withdraw the question from now on."""
        over = self._open[request.id] = asyncio.Event()
        return self._ask(request, over)

    async def _ask(self, request: QuestionRequest, over: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        asking = loop.create_task(ask_question(self._app.terminal, request), name="zot question")
        watching = loop.create_task(over.wait(), name="zot question over")
        try:
            with self._app.waits.busy("waiting for you"):
                await asyncio.wait({asking, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open.pop(request.id, None)
            asking.cancel()
            watching.cancel()
            await asyncio.wait({asking, watching})
        if not asking.cancelled():
            asking.result()

    def apply(self, event: AgentEvent) -> None:
        """Withdraw the questions that an event shows to be over: answered here or elsewhere, or expired."""
        match event:
            case QuestionAnswer(id=request) if (over := self._open.get(request)) is not None:
                over.set()
                if event.by:
                    self._app.live.story.note(f"{event.action}, by {event.by}")
            case Done():
                for over in self._open.values():
                    over.set()
            case _:
                pass


def _about(request: ApprovalRequest) -> str:
    """Return the text above the arguments: the place of the change. Nothing for a command."""
    match request.args:
        case {"command": str()}:
            return ""
        case {"path": str(path)} if not _is_at(request.summary, f"{request.tool}: {os.path.normpath(path)}"):
            return f"{printable(request.summary)}\nwritten as {printable(path)}"
        case _:
            return printable(request.summary)


def _is_at(summary: str, place: str) -> bool:
    """True if a summary, which may end with a size, names this place."""
    return summary.rpartition(" (")[0] == place or summary == place
