"""The Textual application: layout, keys, sending prompts, and the conversation: its history, then live events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.events import Event, Key, Paste

from zot.errors import AgentError, UserError
from zot.events import (
    AgentEvent,
    ApprovalRequest,
    ConversationReplaced,
    Done,
    ExtWaiting,
    QuestionRequest,
    Reconfigured,
    SessionState,
    TextDelta,
    ThinkingDelta,
    TurnStart,
    UserMessage,
)
from zot.messages import text_of
from zot.panels import CommandInfo
from zot.session.history import Batch, Subscriber
from zot.ui.conversation import Conversation, FirstConversation, Home
from zot.ui.terminal import slash
from zot.ui.terminal.composer import Composer, Editor, FileCompletions
from zot.ui.terminal.mentions import named_images
from zot.ui.terminal.panel_views import PanelEvent, Panels, PanelView
from zot.ui.terminal.question_views import ApprovalDialogs, Form, QuestionDialogs, QuestionQueue, QuestionView
from zot.ui.terminal.slash import Option, ask_trust, offer_retry
from zot.ui.terminal.status_line import StatusLine
from zot.ui.terminal.styles import Level, Look, look_for, safe
from zot.ui.terminal.textual_patches import Ground, collect_briefly, on_worker_end
from zot.ui.terminal.transcript_view import Pace, TranscriptView

if TYPE_CHECKING:
    pass
    from zot.ui.terminal.entries import Entry, TranscriptBuilder
    from zot.ui.terminal.pictures import ImageLoader


KEYS = """\
**Keys**

- `Enter` sends; `Ctrl+J`, `Shift+Enter`, `Alt+Enter` or `\\` `Enter` begin a new line
- `Esc` aborts the run; `Ctrl+C` twice, or `Ctrl+D`, leaves; `Ctrl+Z` suspends, `Ctrl+_` undoes
- while the model is busy, `Enter` queues a message, `Ctrl+S` steers; `Up` takes a queued one back, `Ctrl+R` removes it
- `Up`, `Down` recall your earlier prompts; `Tab` completes `/commands`, `@files` and `@server:resources`
- `PageUp`, `PageDown`, `Ctrl+Home`, `Ctrl+End` or the mouse wheel scroll
- `Ctrl+O` unfolds everything, a click one block; `Shift+Tab` goes to the transcript, where `j`, `k` and `Enter` do it
- when a call needs approval, `y` allows it once, `a` for the rest of the session; `n` or `Esc` rejects it
- in a panel, all keys go to the extension, except `Esc`, which closes it; `Shift+Tab` enters and leaves it"""


#: A second press after more than this counts as the first.
_SECOND_PRESS_S = 2.0

#: Extension work that our own commands wait for.
_AWAITED_BY_COMMAND = {"btw": ("start", "intercept"), "reload-ext": ("start",)}

T = TypeVar("T")


class DoublePress:
    """Detects a key pressed twice with no other input between. ``clock`` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pressed_s: float | None = None

    def press(self) -> bool:
        """Note a press; return True if it is the second one."""
        is_second, self._pressed_s = self.is_pressed, self._clock()
        return is_second

    @property
    def is_pressed(self) -> bool:
        """True while a press would be the second one."""
        return self._pressed_s is not None and self._clock() - self._pressed_s < _SECOND_PRESS_S

    def forget(self) -> None:
        """Note other input: the next press is the first."""
        self._pressed_s = None


def awaited_by(command: str, *, is_ours: bool) -> tuple[str, ...]:
    """Return the `ExtWaiting` reasons that a command waits for."""
    return _AWAITED_BY_COMMAND.get(command, ()) if is_ours else ("start", f"command {command}")


class ExtensionWaits:
    """This terminal's slow tasks, and the extension that they wait for."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """``changed`` is called when a task or a wait begins or ends."""
        self._changed = changed
        self._busy: list[str] = []
        #: The awaited reasons: the text of an `ExtWaiting`, or its first word.
        self._awaited: list[str] = []
        self._told: ExtWaiting | None = None

    @property
    def doing(self) -> str:
        """The awaited extension or the current task, for people; "" if there is none."""
        return next(reversed(self._busy), "") if self._told is None else f"waiting for {self._told.extension}"

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Show ``text`` as the current task during the block."""
        self._busy.append(text)
        self._changed()
        try:
            yield
        finally:
            self._busy.remove(text)
            self._changed()

    @contextmanager
    def wait(self, *awaited: str) -> Iterator[None]:
        """Wait for ``awaited`` during the block."""
        self._awaited += awaited
        try:
            yield
        finally:
            for one in awaited:
                self._awaited.remove(one)
            if self._told is not None and not self._concerns(self._told):
                self._told = None
            self._changed()

    def apply(self, event: ExtWaiting) -> None:
        """Show the extension's name if the event concerns this terminal."""
        if self._concerns(event):
            self._told = event

    def _concerns(self, event: ExtWaiting) -> bool:
        return event.what in self._awaited or event.what.partition(" ")[0] in self._awaited


class PromptSender:
    """Sends prompts one after the other, in the order in which they were submitted."""

    def __init__(self, app: ZotApp) -> None:
        self._app, self._live = app, app.live
        self._composer, self._queue = app.composer, app.composer.queue
        #: Held until the session has accepted the current prompt.
        self._turn = asyncio.Lock()

    @property
    def runs(self) -> bool:
        """True while a run is active as far as events tell: the session may become idle a moment later."""
        return bool(self._live.story.doing)

    def enqueue(self, text: str) -> None:
        """Enqueue a prompt, and send it if nothing runs."""
        self._queue.add(text)
        self.go_on()

    def go_on(self) -> None:
        """Send the oldest queued prompt unless a run is active, and show a run as active from then on."""
        if self._queue.waiting and self._live.is_open and not self.runs:
            self._show("waiting for the model")
            self._app.do(self._say(self._queue.next()))

    def steer(self, text: str) -> None:
        """Send a message to the running prompt, unless it is withdrawn before its images are read."""

        async def say(name: str) -> None:
            conversation = self._live.conversation
            async with self._turn:
                images = await named_images(text, conversation)
            if self._queue.steers(name):
                await conversation.steer(text, images, name=name)  # Outside of the lock: may wait for the model.

        self._app.do(self._composer.steer(text, say))

    async def take_back(self, name: str) -> None:
        """Withdraw a steering message. Raise UserError if the model has received it."""
        async with self._turn:  # The session may not have it yet.
            await self._live.conversation.withdraw(name)

    def abort(self) -> None:
        """Abort the run and the prompt being sent. Queued prompts return to the editor."""
        self._composer.take_back_all()  # First: the end of the run would send the next queued prompt.
        if self._live.is_open:
            self._app.do(self._abort())

    async def _abort(self) -> None:
        async with self._turn:
            await self._live.conversation.abort()

    async def _say(self, text: str) -> None:
        conversation = self._live.conversation
        try:
            async with self._turn:
                images = await named_images(text, conversation)
                await conversation.prompt(text, images, unsaid=lambda: self._composer.put_back([text]))
        except (AgentError, OSError):
            self._show("")
            self._composer.put_back([text])
            raise

    def _show(self, doing: str) -> None:
        self._live.story.doing = doing
        self._app.show_doing()


class ZotApp(Ground):
    """The app that shows one conversation at a time, ``first`` at its start."""

    CSS = """
    Screen { layout: vertical; background: transparent; overflow: hidden; }
    ZotApp.ascii Composer, ZotApp.ascii Question, ZotApp.ascii Form { border-top: ascii ansi_bright_black; }
    ZotApp.ascii PanelView { border: ascii ansi_bright_black; }
    ZotApp.ascii TranscriptView, ZotApp.ascii PanelView { scrollbar-size-vertical: 0; }
    """
    BINDINGS = [  # noqa: RUF012  (as every app has it)
        Binding("ctrl+c", "interrupt", "leave", show=False, priority=True),
        Binding("ctrl+o", "fold_all", "fold", show=False, priority=True),
        Binding("ctrl+q", "leave", "leave", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", "suspend", show=False, priority=True),
    ]
    AUTO_FOCUS = "Editor"
    ENABLE_COMMAND_PALETTE = False
    TITLE = "zot"

    def __init__(
        self,
        first: FirstConversation,
        *,
        look: Look | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.look = look or look_for()
        self.set_class(not self.look.unicode, "ascii")
        if self.look.code_theme == "ansi_light":
            self.theme = "ansi-light"
        self._first = first
        self._approvals = ApprovalDialogs(self)
        self._questions = QuestionDialogs(self)
        self.transcript = TranscriptView(self.look)
        self.status = StatusLine(self.look)
        self.composer = Composer()
        self.editor, self.queue = self.composer.editor, self.composer.queue
        heard = Pace(self, self._show_events).want
        self.live = LiveConversation(self, heard)
        self.asking = QuestionQueue(self.composer, clock)
        self.clock = clock
        self.terminal = AppTerminal(self)
        self.panels = Panels(self.editor, clock)
        self.speech = PromptSender(self)
        self.waits, self._leaving = ExtensionWaits(self.show_doing), DoublePress(clock)
        self.status.hint = lambda: "Ctrl+C again quits; Esc aborts the run" if self._leaving.is_pressed else ""
        #: The final state of the conversation, read when the app closes.
        self.left: SessionState | None = None

    # Layout.

    def compose(self) -> ComposeResult:
        yield self.transcript
        yield self.composer
        yield self.status

    def on_mount(self) -> None:
        self.editor.focus()
        self.set_interval(0.25, self.status.tick)
        self.call_after_refresh(lambda: self.do(self._start()))

    def on_resize(self) -> None:
        for fit in (self.panels.fit, self.asking.fit):  # An unchanged panel may have other room all the same.
            self.call_later(fit)  # The app does not know its new size yet.

    async def _start(self) -> None:
        """Ask about trust in the project, then open the session."""
        await self.screen.mount(self.panels, before=self.composer)
        await self.composer.furnish()
        try:
            self.terminal.home = home = await self._first.home()
            await ask_trust(self.terminal)
            await self.enter(await self._first.session(home))
        except AgentError as problem:
            self.exit(1, message=Text(f"zot: {safe(str(problem))}"))
        else:
            from zot.ui.terminal.markdown import warm  # Imported lazily: the first frame is drawn before.

            await asyncio.to_thread(warm)
            collect_briefly()

    async def enter(self, conversation: Conversation) -> None:
        """Show and follow a conversation."""
        self.asking.overtake()
        self.status.is_reachable = lambda: conversation.is_reachable
        self.composer.commands = self.composer.resources = ()
        await self.panels.close_all()
        former = await self.live.enter(conversation)
        await self._refresh_state()
        now = await conversation.state()
        self.composer.files = FileCompletions(now.cwd)
        if now.pending is not None:
            self.do(self._approvals.ask(now.pending))
        self.do(self._learn_commands())
        if former is not None:
            await former.close()
        self.live.opened.set()
        self.speech.go_on()

    async def _begin_anew(self) -> None:
        await self.live.begin_anew()
        await self._refresh_state()

    async def _learn_commands(self) -> None:
        with self.waits.wait("start"):
            self.composer.commands = await self.live.conversation.commands()
        self.composer.resources = await self.live.conversation.resources()

    async def _refresh_state(self) -> None:
        self.status.show(await self.live.conversation.state())
        self.show_doing()

    def show_doing(self) -> None:
        self.status.do(self.waits.doing or self.live.story.doing)

    # Events.

    def _show_events(self) -> None:
        """Show the events that arrived since the last call."""
        events = self.live.feed.take()[: 0 if self.is_leaving else None]  # An app that is closing starts nothing.
        for event in events:
            self.live.story.apply(event)
            self._react(event)
        self.transcript.settle()
        self.show_doing()

    def _react(self, event: AgentEvent) -> None:
        """React to an event, besides showing it."""
        self._approvals.apply(event)
        self._questions.apply(event)
        if isinstance(event, PanelEvent):
            self.do(self.panels.apply(event))
        match event:
            case UserMessage(content=content):
                self.queue.said(text_of(content))
                self.do(self._refresh_state())
            case ConversationReplaced(messages=0):
                self.live.forget()
                self.live.story.note("the conversation was cleared; its cost stays counted")
                self.do(self._refresh_state())
            case ConversationReplaced():
                self.do(self._begin_anew())
            case Reconfigured():
                self.do(self._refresh_state())
                self.do(self._learn_commands())
            case TurnStart():
                self.asking.overtake()
            case Done():
                self.do(self._ended(self.live.story.failure))
            case ApprovalRequest():
                self.do(self._approvals.ask(event))
            case QuestionRequest():
                self.do(self._questions.ask(event))
            case ExtWaiting():
                self.waits.apply(event)
            case _:
                pass

    async def _ended(self, failure: str) -> None:
        """A run is over: send the next queued prompt, or offer another model if this one failed."""
        await self._refresh_state()
        if failure and not self.queue.waiting:
            await offer_retry(self.terminal, failure)
        else:
            self.speech.go_on()

    # Input.

    async def on_event(self, event: Event) -> None:
        if isinstance(event, Key):
            self.asking.keyed()
            if not isinstance(self.focused, PanelView):
                self.panels.keyed(event)
        if isinstance(event, Key | Paste):
            self._typed(event)
        await super().on_event(event)

    def _typed(self, event: Key | Paste) -> None:
        """Focus the editor for keys that the transcript does not use."""
        if not (isinstance(event, Key) and event.key == "ctrl+c"):
            self._leaving.forget()
        if self.focused is self.transcript and not (isinstance(event, Key) and self.transcript.wants(event)):
            self.screen.set_focus(self.editor)  # At once: the next key may already be queued.

    def on_paste(self, event: Paste) -> None:
        """Keep a paste that no focused widget took."""
        self.editor.post_message(Paste(event.text))
        self.live.story.note("the pasted text is in the editor")

    def on_editor_submitted(self, message: Editor.Submitted) -> None:
        self.transcript.show_end()
        if slash.is_command(message.text):
            self.do(self._run_command(message.text))
        elif message.steers and self.speech.runs:
            self.speech.steer(message.text)
        else:
            self.speech.enqueue(message.text)

    def on_composer_withdrawn(self, message: Composer.Withdrawn) -> None:
        self.do(self.composer.withdraw_steering(message, self.speech.take_back))

    async def _run_command(self, line: str) -> None:
        name = line[1:].split(maxsplit=1)[0]
        if name != "exit":  # Leaving must not wait.
            await self.live.opened.wait()
        with self.waits.wait(*awaited_by(name, is_ours=name in slash.COMMANDS)):
            await slash.run(self.terminal, line)
        if name == "reload-ext":
            await self._learn_commands()
        if self.live.is_open:
            await self._refresh_state()

    async def on_editor_escaped(self) -> None:
        if not self.composer.withdraw():
            self.speech.abort()

    def action_interrupt(self) -> None:
        if (selected := self.screen.get_selected_text()) or (selected := self.editor.selected_text):
            self.copy_to_clipboard(selected)
            self.screen.clear_selection()
            return
        if isinstance(self.focused, PanelView):
            self.post_message(PanelView.CloseRequested(self.focused.panel_id))
            return
        if self._leaving.press():
            self.leave()
            return
        if not self.asking.refuse():
            self.editor.drop()
        self.status.draw()

    def action_fold_all(self) -> None:
        self.transcript.fold_all()

    def action_page(self, pages: int) -> None:
        """Scroll the transcript while the editor has the focus."""
        step = pages * max(1, self.transcript.size.height - 2)
        self.transcript.scroll_to(y=self.transcript.scroll_y + step, animate=False, immediate=True)

    # Panels.

    def on_panel_view_pressed(self, message: PanelView.Pressed) -> None:
        self.do(self.live.conversation.send_key(message.panel_id, message.key, message.text))

    def on_panel_view_close_requested(self, message: PanelView.CloseRequested) -> None:
        self.do(self.panels.dismiss(message.panel_id, self.live.conversation.close_panel))

    # Its end, and its tasks.

    def leave(self) -> None:
        self.exit(0)

    on_editor_ended = action_leave = leave

    async def close(self) -> None:
        """Note the conversation's final state and close it."""
        self.live.leave()
        if self.live.is_open:
            with suppress(AgentError):  # A lost connection cannot be asked.
                self.left = await self.live.conversation.state()
            await self.live.conversation.close()

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` as a task; show its errors as notes."""
        # A Textual worker cancelled before it starts never awaits its coroutine.
        on_worker_end(self.run_worker(partial(self._told, work)), work.close)

    async def _told(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (AgentError, OSError) as problem:  # Also a TimeoutError, which is an OSError.
            self.live.story.note(str(problem) or "there was no answer in time", "error")


class AppTerminal:
    """The `Terminal` of slash commands, over the parts of the app."""

    #: Set before the first command.
    home: Home

    def __init__(self, app: ZotApp) -> None:
        self._app = app

    @property
    def conversation(self) -> Conversation:
        return self._app.live.conversation

    @property
    def extension_commands(self) -> Sequence[CommandInfo]:
        return self._app.composer.commands

    def note(self, text: str, level: Level = "info") -> None:
        self._app.live.story.note(text, level)

    def present(self, text: str, source: str) -> None:
        self._app.live.story.present(text, source)

    def insert(self, text: str) -> None:
        self._app.editor.insert(text)
        self._app.editor.focus()

    def now(self) -> float:
        return self._app.clock()

    def enter_panel(self, panel_id: str, since: float) -> None:
        self._app.panels.enter(panel_id, since)

    def busy(self, text: str) -> AbstractContextManager[None]:
        return self._app.waits.busy(text)

    async def choose(
        self, title: str, options: Sequence[Option[T]], *, body: str = "", sudden: bool = False
    ) -> T | None:
        chosen: T | None = await self._app.asking.put(QuestionView(title, options, body=body, sudden=sudden))
        return chosen

    async def ask(self, title: str, *, secret: bool = False) -> str | None:
        written: str | None = await self._app.asking.put(Form(title, secret=secret))
        return written

    async def submit(self, text: str) -> None:
        self._app.speech.enqueue(text)

    async def start_run(self, start: Awaitable[None], doing: str = "") -> None:
        await start
        if doing:
            self._app.live.story.doing = doing
            self._app.show_doing()

    async def switch(self, session: str | None) -> None:
        if self._app.speech.runs:
            raise UserError("a run is active here; abort it first")
        await self._app.enter(await self.home.open(session))

    async def jump(self) -> None:
        """Let the user choose one of their messages, newest first, and scroll to it."""
        transcript = self._app.transcript
        said = [entry for entry in transcript.entries if entry.is_prompt]
        if not said:
            self.note("nothing has been said yet")
            return
        options = [Option(entry, " ".join(entry.text.split())[:200]) for entry in reversed(said)]
        if (chosen := await self.choose("Go to", options)) is not None:
            transcript.show_entry(chosen)

    def page(self) -> str:
        return KEYS

    def leave(self) -> None:
        self._app.exit(0)


#: A feed with more undrawn events pauses the run.
_MAX_PENDING = 20_000


class EventFeed(Subscriber):
    """The events for a screen. ``arrived`` is called when events can be taken."""

    can_approve = True
    can_answer = True

    def __init__(self, arrived: Callable[[], None]) -> None:
        self._arrived = arrived
        self._pending: list[AgentEvent] = []
        self._taken = asyncio.Event()

    def deliver(self, batch: Batch) -> None:
        self._pending.extend(batch.events)
        self._arrived()

    @property
    def full(self) -> bool:
        return len(self._pending) > _MAX_PENDING

    @property
    def waits(self) -> bool:
        """True if there are events to take."""
        return bool(self._pending)

    async def room(self) -> None:
        while self.full:
            self._taken.clear()
            await self._taken.wait()

    def take(self) -> list[AgentEvent]:
        """Return the queued events, with successive deltas joined."""
        events, self._pending = self._pending, []
        self._taken.set()
        return _joined(events)


def _joined(events: list[AgentEvent]) -> list[AgentEvent]:
    joined: list[AgentEvent] = []
    parts: list[str] = []
    kind: type[TextDelta | ThinkingDelta] | None = None
    for event in events:
        if isinstance(event, TextDelta | ThinkingDelta):
            if kind is not None and type(event) is not kind:
                joined.append(kind("".join(parts)))
                parts = []
            kind = type(event)
            parts.append(event.delta)
            continue
        if kind is not None:
            joined.append(kind("".join(parts)))
            parts, kind = [], None
        joined.append(event)
    if kind is not None:
        joined.append(kind("".join(parts)))
    return joined


class LiveConversation:
    """The conversation on screen and its subscription. ``arrived`` is called when events can be taken."""

    def __init__(self, app: ZotApp, arrived: Callable[[], None]) -> None:
        self._app = app
        self._gallery: ImageLoader | None = None
        self.feed = EventFeed(arrived)
        self._unfollow: Callable[[], None] = lambda: None
        self._conversation: Conversation | None = None
        #: Set when the first conversation is shown completely: earlier commands wait for it.
        self.opened = asyncio.Event()
        self._story: TranscriptBuilder | None = None

    @property
    def conversation(self) -> Conversation:
        """The conversation on screen. Raise UserError if there is none yet."""
        if self._conversation is None:
            raise UserError("the session is not open yet")
        return self._conversation

    @property
    def story(self) -> TranscriptBuilder:
        """The transcript's entries, created on first use, after the first frame."""
        from zot.ui.terminal.entries import TranscriptBuilder  # Imported lazily: the first frame is drawn before.

        if self._story is None:
            self._story = TranscriptBuilder(self._app.transcript, self._pictured)
        return self._story

    def _pictured(self, entry: Entry, place: str) -> None:
        from zot.ui.terminal.pictures import ImageLoader  # Imported lazily: few conversations have images.

        self._gallery = self._gallery or ImageLoader(self._app)
        self._gallery.offer(entry, place)

    @property
    def is_open(self) -> bool:
        return self._conversation is not None

    async def enter(self, conversation: Conversation) -> Conversation | None:
        """Show a conversation, and return the previous one."""
        self.leave()
        former, self._conversation = self._conversation, conversation
        await self.begin_anew()
        return former

    async def begin_anew(self) -> None:
        """Show the conversation from its beginning, including the partial answer of an active run."""
        self.leave()
        said = await self.conversation.past()
        self.forget()
        self.feed.take()
        self.story.recall(said)
        self._app.editor.remember(text_of(one.content) for one in said if one.role == "user")
        self._app.transcript.settle()
        self._unfollow = self.conversation.follow(self.feed)
        if (await self.conversation.state()).busy:
            self.story.doing = self.story.doing or "at work"

    def forget(self) -> None:
        """Clear the transcript."""
        self._app.transcript.clear()
        self._story = None

    def leave(self) -> None:
        """Unsubscribe."""
        unfollow, self._unfollow = self._unfollow, lambda: None
        unfollow()
