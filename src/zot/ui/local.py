"""A conversation in this process: what faces need, over a `Session`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from zot.config.config import Config
from zot.errors import AgentError, RunCancelled, RuntimeBusy, UserError
from zot.events import Done, Error
from zot.messages import ImageBlock, Message, PastMessage, ResultBlock, text_of
from zot.panels import OpenPanels
from zot.runtime.left_providers import LeftProviders
from zot.runtime.open import open_recorded, open_session
from zot.session.abortable import Abortable
from zot.session.foreign_runs import Overhearing, left_open
from zot.session.history import Batch, Subscriber
from zot.session.session import Session
from zot.session.transcripts import Past, endings, recalled, told
from zot.slash import CommandAnswer, CommandInfo
from zot.store import Locked, Row, Said
from zot.ui.conversation import Aside, Decision, ModelInfo, Remembered, Snapshot

if TYPE_CHECKING:
    from zot.providers.models import Model


class LocalConversation:
    """A `Conversation` over a session of this process, which it opens anew where settings need that."""

    def __init__(
        self, session: Session, config: Config, *, unused: Callable[[str], Awaitable[None]] | None = None
    ) -> None:
        """``config`` is what the session was opened with; ``config.session`` is None if it is not kept.

        ``unused`` hears the name of one that is let go of with nothing in it.
        """
        self._session = session
        self._unused = unused
        self._config = config
        self._followers: dict[Subscriber, Callable[[], None]] = {}
        self._overhearing: Overhearing | None = None
        #: What is on record of the run that another process has begun, if one has.
        self._begun: Sequence[tuple[int, Row]] = ()
        self._panels = _Panels(session)
        self._left = LeftProviders()
        #: What is asked without being part of the conversation.
        self._asides = Abortable("the answer by the way was aborted")
        session.start()

    def follow(self, subscriber: Subscriber) -> Callable[[], None]:
        self._followers[subscriber] = self._session.subscribe(subscriber)
        if self._overhearing is None and self._config.session is not None:
            self._overhearing = Overhearing(self._session, self._tell, self._begun)
            self._begun = ()

        def stop() -> None:
            self._followers.pop(subscriber)()

        return stop

    @property
    def is_reachable(self) -> bool:
        return True

    async def state(self) -> Snapshot:
        session, agent = self._session, self._session.agent
        messages = session.transcript.messages
        return Snapshot(
            self._config.session or "",
            agent.provider.name,
            agent.model.id,
            agent.cwd,
            session.busy,
            len(messages),
            session.totals,
            agent.gauge.need(agent.system, (), messages) if messages else 0,
            agent.model.context_window,
            agent.locked,
            session.pending,
            session.waiting,
        )

    async def messages(self) -> Sequence[PastMessage]:
        return await self._recalled(self._session.transcript.messages)

    async def past(self) -> Sequence[PastMessage]:
        if self._overhearing is None and self._config.session is not None:
            self._begun = await left_open(self._session)
        known = [row for seq, row in self._begun if seq <= self._session.last_seq]
        messages = self._session.transcript.messages
        before = messages[: len(messages) - sum(isinstance(row, Said) for row in known)]
        return await self._recalled(before)

    async def _recalled(self, messages: Sequence[Message]) -> Sequence[PastMessage]:
        messages = tuple(messages)  # Others may follow while we look.
        ended = endings(await self._session.record.troubled())
        return [recalled(message, ended) for message in messages]

    async def images(self, place: str) -> Sequence[ImageBlock]:
        for message in reversed(self._session.transcript.messages):
            if message.role == "user" and message.time == place:
                return [block for block in message.content if isinstance(block, ImageBlock)]
            for block in message.content:
                if isinstance(block, ResultBlock) and block.call_id == place:
                    return [one for one in block.content if isinstance(one, ImageBlock)]
        return []

    async def prompt(
        self, text: str, images: Sequence[ImageBlock] = (), *, unsaid: Callable[[], None] = lambda: None
    ) -> None:
        def dropped(why: AgentError) -> None:
            self._dropped(why)
            unsaid()

        self._session.prompt(text, images, dropped=dropped)

    async def steer(self, text: str, images: Sequence[ImageBlock] = (), *, name: str = "") -> None:
        def dropped(why: AgentError) -> None:
            if not isinstance(why, RunCancelled):  # Whoever wanted that has it back.
                self._dropped(why)

        self._check_here("it cannot be steered from here")
        self._session.steer(text, images, prompt_id=name, dropped=dropped)

    async def take_back(self, name: str) -> None:
        self._session.take_back(name)

    async def retry(self) -> None:
        asked = [message for message in self._session.transcript.messages if message.role == "user"]
        if not asked:
            raise UserError("nothing has been asked yet")
        self._check_here("wait for its end")
        self._session.request(text_of(asked[-1].content) or "go on", lambda messages: None)

    async def abort(self) -> None:
        self._asides.abort()
        if self._overhearing is not None and self._is_elsewhere:
            await self._overhearing.abort()
            return
        self._session.abort()

    async def approve(self, request: str, decision: Decision) -> None:
        self._session.approve(request, decision)

    async def remembered(self) -> Sequence[Remembered]:
        return [Remembered(one.tool, one.subject) for one in self._session.remembered()]

    async def forget(self, one: Remembered) -> None:
        for known in self._session.remembered():
            if (known.tool, known.subject) == (one.tool, one.subject):
                await self._session.forget(known)
                return
        raise UserError("that is not remembered")

    async def commands(self) -> Sequence[CommandInfo]:
        return await self._session.commands()

    async def run_command(self, name: str, args: str) -> CommandAnswer:
        return await self._session.run_command(name, args)

    async def press(self, panel_id: str, key: str, text: str = "") -> None:
        self._session.press(panel_id, key, text)

    async def close_panel(self, panel_id: str) -> None:
        self._session.close_panel(panel_id)

    async def reload_extensions(self) -> Sequence[str]:
        from zot.runtime.extensions import reloadable

        extensions = reloadable(self._session.agent.extensions)
        self._check_idle("extensions cannot be reloaded")
        return await extensions.reload(lambda: self._check_idle("extensions cannot be reloaded"))

    async def models(self) -> Sequence[ModelInfo]:
        known = [_info(model) for model in self._session.agent.catalogue.models]
        return [*known, *map(_info, self._left.elsewhere(self._session.agent.provider.name, self._config))]

    async def use_model(self, model: ModelInfo) -> None:
        if model.provider == self._session.agent.provider.name:
            self._session.use_model(model.id)
            return
        self._check_idle("another provider cannot be used")
        self._check_here("wait for its end")
        config, agent = self._working(), self._session.agent
        await self._reopen(**self._left.settings(model.provider), model=model.id)
        self._left.leave(agent.provider.name, config, agent.model)

    async def lock(self, *, locked: bool) -> None:
        if locked != self._session.agent.locked:
            self._check_idle("the lock cannot be changed")
            if self._config.session is not None:  # First: what cannot be kept must not seem to hold.
                await self._session.keep_setting(Locked(locked))
            await self._reopen(lock=locked)

    async def compact(self) -> None:
        self._check_here("wait for its end")
        self._session.compact(dropped=self._dropped)

    async def clear(self) -> None:
        over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._session.clear(started=lambda: over.set_result(""), dropped=lambda why: over.set_result(str(why)))
        if reason := await over:
            raise UserError(reason)

    async def fork(self, messages: int | None = None) -> str:
        return await self._session.fork(messages=messages)

    async def aside(self, question: str) -> Aside:
        from zot.session.side_question import ask, bare

        def opened() -> Session:
            return open_session(bare(self._working()), past=self._past())

        answer = await self._asides.run(ask(self._session, opened, question))
        return Aside(answer.text, answer.usage)

    async def close(self) -> None:
        self._asides.abort()
        for stop in self._followers.values():
            stop()
        self._followers.clear()
        await self._overhear_no_more()
        # What waits for a person goes on waiting, for whoever opens the session next.
        await self._session.close(parks=True)
        if self._unused is not None and self._config.session is not None and not self._session.transcript.messages:
            unused, self._unused = self._unused, None
            await unused(self._config.session)

    def _dropped(self, why: AgentError) -> None:
        """What was asked will never run: whoever follows must hear it, and that it is over."""
        self._tell(Batch(0, 0, [Error(str(why)), Done()]))

    def _tell(self, batch: Batch) -> None:
        for subscriber in self._followers:
            subscriber.deliver(batch)

    async def _overhear_no_more(self) -> None:
        overhearing, self._overhearing = self._overhearing, None
        if overhearing is not None:
            await overhearing.stop()

    def _check_idle(self, what: str) -> None:
        if self._session.busy:
            raise RuntimeBusy(f"{what} while a prompt or compact is running; abort it first")

    @property
    def _is_elsewhere(self) -> bool:
        """True while another process is at work in the session."""
        return self._overhearing is not None and self._overhearing.is_elsewhere

    def _check_here(self, advice: str) -> None:
        """Refuse what would fail, and would seem to end the run that another process makes."""
        if self._is_elsewhere:
            raise RuntimeBusy(f"another process is at work in this session; {advice}")

    def _working(self) -> Config:
        """Return the settings with what the session works with now."""
        agent = self._session.agent
        # A recording is named by its own provider, but played by lab.
        provider = self._config.provider if self._config.replay else agent.provider.name
        changes = {"provider": provider, "model": agent.model.id, "cwd": agent.cwd, "lock": agent.locked}
        return msgspec.structs.replace(self._config, **changes)

    def _past(self) -> Past:
        return told(self._session.transcript.messages, self._session.totals)

    async def _reopen(self, **changes: Any) -> None:
        """Open the same session with other settings, and let go of the old one; if that fails, it stays."""
        config = msgspec.structs.replace(self._working(), **changes)
        if config.session is None:
            session = open_session(config, own_process=True, past=self._past(), reloadable=True)
        else:
            given = {"provider", "model", "reasoning", "cwd", "lock", *changes}
            session = await open_recorded(config, given, own_process=True, parks=True, reloadable=True)
        await self._overhear_no_more()
        panels, self._panels = self._panels, _Panels(session)
        former, self._session, self._config = self._session, session, config
        if config.session is not None and self._followers:
            self._overhearing = Overhearing(session, self._tell)
        for subscriber, stop in self._followers.items():
            stop()
            self._followers[subscriber] = session.subscribe(subscriber)
        # Nobody hears any more how they end.
        self._tell(Batch(0, 0, panels.gone()))
        session.start()
        await former.close()


class _Panels(OpenPanels):
    """Hears of the panels of a session, for as long as that lasts."""

    can_approve = False
    full = False

    def __init__(self, session: Session) -> None:
        super().__init__()
        session.subscribe(self)

    def deliver(self, batch: Batch) -> None:
        self.hear(batch.events)

    async def room(self) -> None:
        return


def _info(model: Model) -> ModelInfo:
    return ModelInfo(model.provider, model.id, model.name, model.context_window)
