"""The terminal with a screen: a transcript, an editor, a status line, and what comes between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.events import Event, Key, Paste

from zot.conversation import Conversation, Home, Snapshot
from zot.errors import AgentError, UserError
from zot.events import (
    AgentEvent,
    ApprovalRequest,
    ConversationReplaced,
    Done,
    ExtWaiting,
    Reconfigured,
    TurnStart,
    UserMessage,
)
from zot.messages import text_of
from zot.slash import CommandInfo
from zot.tui import slash
from zot.tui.approval import Approvals
from zot.tui.asking import Asking
from zot.tui.awaiting import Awaiting, wanted_by
from zot.tui.completion import Files
from zot.tui.composer import Composer
from zot.tui.editor import Editor
from zot.tui.following import Following
from zot.tui.inside import Ground
from zot.tui.keys import KEYS
from zot.tui.level import Level
from zot.tui.looks import Look, look_for, safe
from zot.tui.pace import Pace
from zot.tui.panel import Panel
from zot.tui.panels import PanelEvent, Panels
from zot.tui.pauses import keep_short
from zot.tui.question import Question
from zot.tui.speech import Speech
from zot.tui.status import Status
from zot.tui.terminal import Option
from zot.tui.transcript import Transcript
from zot.tui.trust import ask_trust
from zot.tui.twice import Twice

if TYPE_CHECKING:  # The first frame must not wait for it.
    from zot.tui.story import Story

T = TypeVar("T")


class ZotApp(Ground):
    """A face of one conversation. ``begin`` gives the home, ``session`` says which session to open in it."""

    CSS = """
    Screen { layout: vertical; background: transparent; overflow: hidden; }
    ZotApp.ascii Composer, ZotApp.ascii Question, ZotApp.ascii Form { border-top: ascii ansi_bright_black; }
    ZotApp.ascii Panel { border: ascii ansi_bright_black; }
    ZotApp.ascii Transcript, ZotApp.ascii Panel { scrollbar-size-vertical: 0; }
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
        begin: Callable[[], Awaitable[Home]],
        session: Callable[[Home], Awaitable[Conversation]],
        *,
        look: Look | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.look = look or look_for()
        self.set_class(not self.look.unicode, "ascii")
        if self.look.code_theme == "ansi_light":
            self.theme = "ansi-light"
        self._begin, self._session = begin, session
        self._home: Home | None = None
        self._approvals = Approvals(self)
        self.transcript = Transcript(self.look)
        self.status = Status(self.look)
        self.composer = Composer()
        self.editor, self.queue = self.composer.editor, self.composer.queue
        heard = Pace(self, self._show_heard).want
        self.following = Following(self.transcript, self.editor, heard, send=self.send, do=self._do)
        self.asking = Asking(self.composer, clock)
        self.panels = Panels(self.editor, self.asking.is_quiet_since)
        self.speech = Speech(self.following, self.composer, do=self._do, changed=self._show_doing)
        self._awaiting, self._leaving = Awaiting(self._show_doing), Twice(clock)
        self.status.hint = lambda: "Ctrl+C again leaves; Esc aborts what runs" if self._leaving.is_pressed else ""
        #: How the conversation stood when it was left.
        self.left: Snapshot | None = None

    # The screen.

    def compose(self) -> ComposeResult:
        yield self.transcript
        yield self.composer
        yield self.status

    def on_mount(self) -> None:
        self.editor.focus()
        self.set_interval(0.25, self.status.tick)
        self.call_after_refresh(lambda: self._do(self._start()))

    def on_resize(self) -> None:
        for fit in (self.panels.fit, self.asking.fit):  # What stays as it is may have another room all the same.
            self.call_later(fit)  # Now the app does not know yet how large it is.

    @property
    def conversation(self) -> Conversation:
        return self.following.conversation

    @property
    def story(self) -> Story:
        return self.following.story

    @property
    def home(self) -> Home:
        assert self._home is not None
        return self._home

    @property
    def extension_commands(self) -> Sequence[CommandInfo]:
        return self.composer.commands

    async def _start(self) -> None:
        """Open the session, having asked about what of the project must be trusted first."""
        await self.screen.mount(self.panels, before=self.composer)
        await self.composer.furnish()
        try:
            self._home = await self._begin()
            await ask_trust(self)
            await self._enter(await self._session(self._home))
        except AgentError as problem:
            self.exit(1, message=Text(f"zot: {safe(str(problem))}"))
        else:
            from zot.tui.flow import warm

            await asyncio.to_thread(warm)
            keep_short()

    async def _enter(self, conversation: Conversation) -> None:
        """Show a conversation, and follow it."""
        self.asking.overtake()
        self.status.is_reachable = lambda: conversation.is_reachable
        self.composer.commands = ()
        await self.panels.close_all()
        former = await self.following.enter(conversation)
        await self._refresh_state()
        now = await conversation.state()
        self.composer.files = Files(now.cwd)
        if now.pending is not None:
            self._do(self._approvals.ask(now.pending))
        self._do(self._learn_commands())
        if former is not None:
            await former.close()
        self.following.opened.set()
        self.speech.go_on()

    async def _begin_anew(self) -> None:
        await self.following.begin_anew()
        await self._refresh_state()

    async def _learn_commands(self) -> None:
        with self._awaiting.wait("start"):
            self.composer.commands = await self.conversation.commands()

    async def _refresh_state(self) -> None:
        self.status.show(await self.conversation.state())
        self._show_doing()

    def _show_doing(self) -> None:
        self.status.do(self._awaiting.doing or self.story.doing)

    # What happens.

    def _show_heard(self) -> None:
        """Show what was heard since the last time."""
        events = self.following.take()[: 0 if self.is_leaving else None]  # Who leaves begins nothing any more.
        for event in events:
            self.story.tell((event,))
            self._react(event)
        self.transcript.settle()
        self._show_doing()

    def _react(self, event: AgentEvent) -> None:
        """Do what an event wants, beside being told."""
        self._approvals.hear(event)
        if isinstance(event, PanelEvent):
            self._do(self.panels.hear(event))
        match event:
            case UserMessage(content=content):
                self.queue.said(text_of(content))
                self._do(self._refresh_state())
            case ConversationReplaced(messages=0):
                self.following.forget()
                self.note("the conversation begins anew; what it cost stays counted")
                self._do(self._refresh_state())
            case ConversationReplaced():
                self._do(self._begin_anew())
            case Reconfigured():
                self._do(self._refresh_state())
                self._do(self._learn_commands())
            case TurnStart():
                self.asking.overtake()
            case Done():
                self._do(self._ended(self.story.failure))
            case ApprovalRequest():
                self._do(self._approvals.ask(event))
            case ExtWaiting():
                self._awaiting.hear(event)
            case _:
                pass

    async def _ended(self, failure: str) -> None:
        """A run is over: go on with what waits, or offer another model if this one failed."""
        await self._refresh_state()
        if failure and not self.queue.waiting:
            from zot.tui.rescue import rescue

            await rescue(self, failure)
        else:
            self.speech.go_on()

    # What people do.

    async def on_event(self, event: Event) -> None:
        if isinstance(event, Key):
            self.asking.keyed()
        if isinstance(event, Key | Paste):
            self._typed(event)
        await super().on_event(event)

    def _typed(self, event: Key | Paste) -> None:
        """Make ready for what is typed: what the transcript has no use for is meant for the editor."""
        if not (isinstance(event, Key) and event.key == "ctrl+c"):
            self._leaving.forget()
        if self.focused is self.transcript and not (isinstance(event, Key) and self.transcript.wants(event)):
            self.screen.set_focus(self.editor)  # At once: the next key may be here already.

    def on_paste(self, event: Paste) -> None:
        """Nobody who has the focus has a use for it: it must not be lost."""
        self.editor.post_message(Paste(event.text))
        self.note("what was pasted is in the editor")

    async def on_editor_submitted(self, message: Editor.Submitted) -> None:
        self.transcript.show_end()
        if slash.is_command(message.text):
            self._do(self._run_command(message.text))
        elif message.steers and self.runs:
            self.speech.steer(message.text)
        else:
            await self.submit(message.text)

    def on_composer_withdrawn(self, message: Composer.Withdrawn) -> None:
        self._do(self.composer.withdraw_steering(message, self.speech.take_back))

    async def submit(self, text: str) -> None:
        self.speech.submit(text)

    async def retry(self) -> None:
        await self.conversation.retry()

    @property
    def runs(self) -> bool:
        return self.speech.runs

    async def _run_command(self, line: str) -> None:
        name = line[1:].split(maxsplit=1)[0]
        if name != "exit":  # Nobody has to wait to leave.
            await self.following.opened.wait()
        with self._awaiting.wait(*wanted_by(name, is_ours=name in slash.COMMANDS)):
            await slash.run(self, line)
        if name == "reload-ext":
            await self._learn_commands()
        if self.following.is_open:
            await self._refresh_state()

    async def on_editor_escaped(self) -> None:
        if not self.composer.withdraw():
            self.speech.abort()

    def action_interrupt(self) -> None:
        if (selected := self.screen.get_selected_text()) or (selected := self.editor.selected_text):
            self.copy_to_clipboard(selected)
            self.screen.clear_selection()
            return
        if isinstance(self.focused, Panel):
            self.post_message(Panel.Dismissed(self.focused.panel_id))
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

    def on_panel_pressed(self, message: Panel.Pressed) -> None:
        self._do(self.conversation.press(message.panel_id, message.key, message.text))

    def on_panel_dismissed(self, message: Panel.Dismissed) -> None:
        self._do(self.panels.dismiss(message.panel_id, self.conversation.close_panel))

    # What commands can do.

    def note(self, text: str, level: Level = "info") -> None:
        self.transcript.note(text, level)

    def present(self, text: str, source: str) -> None:
        self.transcript.present(text, source)

    def insert(self, text: str) -> None:
        self.editor.insert(text)
        self.editor.focus()

    def enter_panel(self, panel_id: str, since: float) -> None:
        self.panels.enter(panel_id, since)

    def busy(self, text: str) -> AbstractContextManager[None]:
        return self._awaiting.busy(text)

    async def choose(
        self, title: str, options: Sequence[Option[T]], *, body: str = "", sudden: bool = False
    ) -> T | None:
        chosen: T | None = await self.asking.put(Question(title, options, body=body, sudden=sudden))
        return chosen

    async def ask(self, title: str, *, secret: bool = False) -> str | None:
        from zot.tui.form import Form

        written: str | None = await self.asking.put(Form(title, secret=secret))
        return written

    async def switch(self, session: str | None) -> None:
        if self.runs:
            raise UserError("something is running here; abort it first")
        await self._enter(await self.home.open(session))

    async def compact(self) -> None:
        await self.conversation.compact()
        self.story.doing = "summarising the conversation"
        self._show_doing()

    async def jump(self) -> None:
        from zot.tui.jump import jump

        await jump(self, self.transcript)

    def page(self) -> str:
        return KEYS

    def leave(self) -> None:
        self.exit(0)

    on_editor_ended = action_leave = leave

    async def close(self) -> None:
        """Let go of the conversation, having noted how it stands."""
        self.following.leave()
        if self.following.is_open:
            with suppress(AgentError):  # What cannot be reached any more cannot be asked, either.
                self.left = await self.conversation.state()
            await self.conversation.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that takes a while; what goes wrong is said."""
        # A worker that is cancelled before it begins, as on leaving, never awaits its work.
        self.run_owned(partial(self._told, work), then=work.close)

    async def _told(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (AgentError, OSError) as problem:  # Also a TimeoutError, which is one.
            self.note(str(problem) or "there was no answer in time", "error")
