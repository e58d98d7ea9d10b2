"""Local conversations: a Session in this process, with the user's files around it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from zot.config import auth_file
from zot.config.config import DEFAULT_AGENT, Config, ConfigOverrides, extension_places, journal_path, zot_home
from zot.config.credentials import checked
from zot.config.skills import discover
from zot.config.trust import TrustStore, coverage
from zot.config.vendors import VENDORS, Vendor, endpoint
from zot.errors import AgentError, ConfigError, NoSuchSession, RunCancelled, RuntimeBusy, StoreFailed, UserError
from zot.events import Decision, Done, Error, QuestionAction, SessionState
from zot.extensions import discovery
from zot.extensions.manifest import changeable, load, trust_summary
from zot.files import write_new
from zot.journal import portable
from zot.journal.opening import is_there, open_journal
from zot.journal.recorded_sessions import SessionJournal
from zot.messages import ImageBlock, Message, PastMessage, ResultBlock, text_of
from zot.panels import CommandAnswer, CommandInfo, ResourceInfo
from zot.providers.http import HttpTransport
from zot.providers.model_listing import probe
from zot.runtime.extensions import manager_of
from zot.runtime.open import HOSTED, OpenRequest, open_session, open_unrecorded
from zot.runtime.provider_choice import EarlierProviders
from zot.runtime.shared import SharedResources
from zot.session.foreign_runs import ForeignRuns, open_foreign_run
from zot.session.history import Batch, Subscriber
from zot.session.queue import EditCompletion, JobObserver, RepeatedPrompt
from zot.session.recovery import WaitingRuns
from zot.session.session import AbortableWaits, Session, new_session_id
from zot.session.side_question import ask, side_config
from zot.session.transcripts import RewindTarget, TranscriptPast, endings, past_message, past_of
from zot.store import LockChanged, MessageAdded, Row
from zot.text import printable
from zot.ui.conversation import (
    AllowedCall,
    ModelInfo,
    RewindResult,
    SessionInfo,
    SideReply,
    SkillInfo,
    Untrusted,
)
from zot.ui.readable import match_session_id

if TYPE_CHECKING:
    from zot.providers.models import Model


class _DropReport(JobObserver):
    """Shows why a job was dropped, and returns its text to the user by ``unsaid``."""

    def __init__(
        self,
        conversation: LocalConversation,
        unsaid: Callable[[], None] | None = None,
        *,
        is_withdrawable: bool = False,
    ) -> None:
        self._conversation = conversation
        self._unsaid = unsaid
        self._is_withdrawable = is_withdrawable

    def dropped(self, why: AgentError) -> None:
        if not (self._is_withdrawable and isinstance(why, RunCancelled)):
            self._conversation.report_dropped(why)
        if self._unsaid is not None:
            self._unsaid()


class LocalConversation:
    """A `Conversation` over a session of this process. Reopens the session when settings require it."""

    def __init__(
        self,
        session: Session,
        config: Config,
        resources: SharedResources,
        *,
        unused: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """``config`` is the one that the session was opened with; ``config.session`` is None if it is not recorded.

        Sessions borrow ``resources``. ``unused`` is called with the id of a session that is closed without messages.
        """
        self._session = session
        self._resources = resources
        self._unused = unused
        self._config = config
        self._followers: dict[Subscriber, Callable[[], None]] = {}
        self._foreign_runs: ForeignRuns | None = None
        #: Journal rows of the active run of another process, if there is one.
        self._begun: Sequence[tuple[int, Row]] = ()
        self._left = EarlierProviders()
        #: Side questions that are not answered yet.
        self._side_questions = AbortableWaits("the side question was aborted")
        session.extensions.start()

    def follow(self, subscriber: Subscriber) -> Callable[[], None]:
        self._followers[subscriber] = self._session.history.subscribe(subscriber)
        if self._foreign_runs is None and self._config.session is not None:
            self._foreign_runs = ForeignRuns(self._session, self._deliver, self._begun)
            self._begun = ()

        def stop() -> None:
            self._followers.pop(subscriber)()

        return stop

    @property
    def is_reachable(self) -> bool:
        return True

    async def state(self) -> SessionState:
        return msgspec.structs.replace(self._session.state(), session=self._config.session or "")

    async def messages(self) -> Sequence[PastMessage]:
        return await self._recalled(self._session.history.transcript.messages)

    async def past(self) -> Sequence[PastMessage]:
        if self._foreign_runs is None and self._config.session is not None:
            self._begun = await open_foreign_run(self._session)
        known = [row for seq, row in self._begun if seq <= self._session.store.last_seq]
        messages = self._session.history.transcript.messages
        before = messages[: len(messages) - sum(isinstance(row, MessageAdded) for row in known)]
        return await self._recalled(before)

    async def _recalled(self, messages: Sequence[Message]) -> Sequence[PastMessage]:
        messages = tuple(messages)  # Messages may be added during the await.
        ended = endings(await self._session.store.changes_with_failures())
        return [past_message(message, ended) for message in messages]

    async def images(self, place: str) -> Sequence[ImageBlock]:
        for message in reversed(self._session.history.transcript.messages):
            if message.role == "user" and message.time == place:
                return [block for block in message.content if isinstance(block, ImageBlock)]
            for block in message.content:
                if isinstance(block, ResultBlock) and block.call_id == place:
                    return [one for one in block.content if isinstance(one, ImageBlock)]
        return []

    async def prompt(
        self, text: str, images: Sequence[ImageBlock] = (), *, unsaid: Callable[[], None] = lambda: None
    ) -> None:
        self._session.prompt(text, images, observer=_DropReport(self, unsaid))

    async def steer(self, text: str, images: Sequence[ImageBlock] = (), *, name: str = "") -> None:
        self._check_here("it cannot be steered from here")
        # The user has the text of a withdrawn message back.
        observer = _DropReport(self, is_withdrawable=True)
        self._session.steer(text, images, prompt_id=name, observer=observer)

    async def withdraw(self, name: str) -> None:
        self._session.queue.withdraw(name)

    async def retry(self) -> None:
        asked = [message for message in self._session.history.transcript.messages if message.role == "user"]
        if not asked:
            raise UserError("there is no prompt yet")
        self._check_here("wait until it ends")
        self._session.repeat(text_of(asked[-1].content) or "continue", RepeatedPrompt())

    async def abort(self) -> None:
        self._side_questions.abort()
        if self._foreign_runs is not None and self._runs_elsewhere:
            await self._foreign_runs.abort()
            return
        self._session.abort()

    async def approve(self, request: str, decision: Decision) -> None:
        self._session.approvals.answer(request, decision)

    async def answer(self, request: str, action: QuestionAction, content: Mapping[str, Any]) -> None:
        self._session.worker.questions.answer(request, action, content)

    async def remembered(self) -> Sequence[AllowedCall]:
        return [AllowedCall(one.tool, one.subject) for one in self._session.agent.approver.remembered()]

    async def forget(self, one: AllowedCall) -> None:
        for known in self._session.agent.approver.remembered():
            if (known.tool, known.subject) == (one.tool, one.subject):
                await self._session.forget(known)
                return
        raise UserError("no such permission is stored")

    async def commands(self) -> Sequence[CommandInfo]:
        return await self._session.commands()

    async def resources(self) -> Sequence[ResourceInfo]:
        return self._session.resources()

    async def run_command(self, name: str, args: str) -> CommandAnswer:
        return await self._session.run_command(name, args)

    async def send_key(self, panel_id: str, key: str, text: str = "") -> None:
        self._session.extensions.panels.send_key(panel_id, key, text)

    async def close_panel(self, panel_id: str) -> None:
        self._session.extensions.panels.close(panel_id)

    async def reload_extensions(self) -> Sequence[str]:
        extensions = manager_of(self._session.agent.extensions)
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
        self._check_here("wait until it ends")
        config, agent = self._current_config(), self._session.agent
        await self._reopen(**self._left.settings(model.provider), model=model.id)
        self._left.leave(agent.provider.name, config, agent.model)

    async def lock(self, *, locked: bool) -> None:
        if locked != self._session.agent.locked:
            self._check_idle("the lock cannot be changed")
            if self._config.session is not None:  # Record it first: a lock that is not recorded must not seem to hold.
                await self._session.worker.record(LockChanged(locked))
            await self._reopen(lock=locked)

    async def compact(self) -> None:
        self._check_here("wait until it ends")
        self._session.compact(_DropReport(self))

    async def undo_compact(self) -> None:
        await self._edited(self._session.undo_compact)

    async def rewind(self, messages: int, *, files: bool = True, preview: bool = False) -> RewindResult:
        self._check_here("wait until it ends")
        rewound = await self._session.rewind(RewindTarget(messages, None, files, preview))
        return RewindResult(rewound.messages, [(file.path, file.change) for file in rewound.files], rewound.undo)

    async def clear(self) -> None:
        await self._edited(self._session.clear)

    async def _edited(self, edit: Callable[[JobObserver], None]) -> None:
        """Change the conversation, and wait until that is done. Raise AgentError."""
        completion = EditCompletion()
        edit(completion)
        await completion.over

    async def fork(self, messages: int | None = None) -> str:
        return await self._session.fork(messages=messages)

    async def aside(self, question: str) -> SideReply:
        def opened() -> Session:
            request = OpenRequest(config=side_config(self._current_config()), past=self._past())
            return open_unrecorded(request, self._resources)

        answer = await self._side_questions.run(ask(self._session, opened, question))
        return SideReply(answer.text, answer.usage)

    async def close(self) -> None:
        self._side_questions.abort()
        for stop in self._followers.values():
            stop()
        self._followers.clear()
        await self._stop_foreign_runs()
        # A pending approval stays pending, for the next process that opens the session.
        await self._session.close(parks=True)
        if (
            self._unused is not None
            and self._config.session is not None
            and not self._session.history.transcript.messages
        ):
            unused, self._unused = self._unused, None
            await unused(self._config.session)

    def report_dropped(self, why: AgentError) -> None:
        """Notify the subscribers that a request will never run, and that it is over."""
        self._deliver(Batch(0, 0, [Error(str(why)), Done()]))

    def _deliver(self, batch: Batch) -> None:
        for subscriber in self._followers:
            subscriber.deliver(batch)

    async def _stop_foreign_runs(self) -> None:
        following, self._foreign_runs = self._foreign_runs, None
        if following is not None:
            await following.stop()

    def _check_idle(self, what: str) -> None:
        if self._session.worker.busy:
            raise RuntimeBusy(f"{what} while a prompt or compact is running; abort it first")

    @property
    def _runs_elsewhere(self) -> bool:
        """True while another process runs a prompt in the session."""
        return self._foreign_runs is not None and self._foreign_runs.is_elsewhere

    def _check_here(self, advice: str) -> None:
        """Refuse a request that would fail, and whose failure would seem to end the other process's run."""
        if self._runs_elsewhere:
            raise RuntimeBusy(f"another process is running this session; {advice}")

    def _current_config(self) -> Config:
        """Return the config with the session's current provider, model, directory and lock."""
        agent = self._session.agent
        # A recording reports its own provider, but the lab provider replays it.
        provider = self._config.provider if self._config.replay else agent.provider.name
        changes = {"provider": provider, "model": agent.model.id, "cwd": agent.cwd, "lock": agent.locked}
        return msgspec.structs.replace(self._config, **changes)

    def _past(self) -> TranscriptPast:
        return past_of(self._session.history.transcript.messages, self._session.history.totals)

    async def _reopen(self, **changes: Any) -> None:
        """Reopen the session with other settings, then close the old one, which stays if reopening fails."""
        config = msgspec.structs.replace(self._current_config(), **changes)
        overrides = ConfigOverrides(frozenset({"provider", "model", "reasoning", "cwd", "lock", *changes}))
        past = self._past() if config.session is None else None
        session = await open_session(_request(config, overrides, past), self._resources)
        await self._stop_foreign_runs()
        former, self._session, self._config = self._session, session, config
        if config.session is not None and self._followers:
            self._foreign_runs = ForeignRuns(session, self._deliver)
        for subscriber, stop in self._followers.items():
            stop()
            self._followers[subscriber] = session.history.subscribe(subscriber)
        # The subscribers no longer receive the end of the old session's panels.
        self._deliver(Batch(0, 0, former.extensions.panels.gone()))
        session.extensions.start()
        await former.close()


def _request(config: Config, overrides: ConfigOverrides, past: TranscriptPast | None = None) -> OpenRequest:
    """Return the request for a session that a person sits at."""
    return OpenRequest(config=config, overrides=overrides, reloadable=True, unfinished=WaitingRuns.RESUME, past=past)


def _info(model: Model) -> ModelInfo:
    return ModelInfo(model.provider, model.id, model.name, model.context_window)


class LocalHome:
    """A `Home` over the user's journal and files. Its conversations share resources, which end with `close`."""

    def __init__(self, config: Config, overrides: ConfigOverrides | None = None, *, keep: bool = True) -> None:
        self._config = config
        self._overrides = overrides or ConfigOverrides()
        self._keep = keep
        self._resources = SharedResources(own_process=True)

    async def close(self) -> None:
        """Close the connections and end the processes of its conversations. Idempotent."""
        await self._resources.close()

    async def begin(self) -> LocalConversation:
        """Open the session that the flags name, created if it is new, or a new one without such a flag."""
        if self._config.session is None:
            return await self._new()
        return await self._recorded(self._config)

    async def open(self, session: str | None = None) -> LocalConversation:
        if session is None:
            return await self._new()
        config = msgspec.structs.replace(self._config, session=await self._named(session))
        return await self._recorded(config)

    async def newest(self) -> str:
        """Return the newest session of the directory that no host owns. Raise NoSuchSession."""
        cwd = self._cwd
        nothing = NoSuchSession(f"no session of {printable(cwd)} to continue; list all with: zot sessions list --all")
        if not await self._is_kept():
            raise nothing
        journal = await self._journal()
        try:
            found = await journal.newest(cwd, but=HOSTED)
        finally:
            await journal.close()
        if found is None:
            raise nothing
        return found.id

    async def sessions(self) -> Sequence[SessionInfo]:
        if not await self._is_kept():
            return []
        journal = await self._journal()
        try:
            return [
                SessionInfo(one.id, one.title, one.cwd, one.updated, one.messages, one.parent or "")
                for one in await journal.sessions()
            ]
        finally:
            await journal.close()

    async def _is_kept(self) -> bool:
        """True if a journal exists. Raise StoreFailed if that cannot be determined."""
        return await asyncio.to_thread(is_there, journal_path(self._config))

    async def export(self, session: str, path: str) -> None:
        journal = await self._journal()
        try:
            record = await journal.find(session)
            lines = await journal.reading(lambda connection: [*portable.exported(connection, record, home=_user())])
        finally:
            await journal.close()
        await asyncio.to_thread(write_new, path, lines)

    async def import_(self, path: str) -> str:
        try:
            lines = (await asyncio.to_thread(_read, path)).removesuffix(b"\n").split(b"\n")
        except OSError as problem:
            raise UserError(f"{path}: {problem.strerror}") from None
        agent = "" if self._config.agent == DEFAULT_AGENT else self._config.agent
        target = portable.ImportTarget(new_session_id(), _user(), agent=agent)
        journal = await self._journal()
        try:
            made = await journal.writing(portable.imported, portable.checked(enumerate(lines, 1), path), target)
        finally:
            await journal.close()
        return made.id

    async def skills(self) -> Sequence[SkillInfo]:
        config = self._config
        found = discover(cwd=self._cwd, home=self._home, explicit=config.skills, is_trusted=self._is_trusted)
        return [SkillInfo(one.name, one.description, one.directory or "built in") for one in found.skills]

    async def untrusted(self) -> Sequence[Untrusted]:
        return await asyncio.to_thread(self._untrusted)

    async def trust(self, one: Untrusted) -> None:
        if self._home is None:
            raise ConfigError("no directory to store trust in: set ZOT_HOME or HOME")
        patterns: Sequence[str] = ()
        if one.kind == "extension":
            patterns = changeable(load(one.directory), one.directory)
        TrustStore(self._home).trust(one.directory, patterns, shown=one.fingerprint)

    async def providers(self) -> Sequence[str]:
        return [name for name, vendor in VENDORS.items() if vendor.key_names]

    async def login(self, provider: str, key: str) -> str:
        vendor, home, env = self._vendor(provider), self._needed_home(), self._config.environment
        entry = auth_file.AuthEntry(key=checked(provider, key.strip()))
        transport = HttpTransport(env)
        try:
            where = endpoint(vendor, api=None, base_url=None, env=env)
            probed = await probe(vendor, where, entry.key, transport)
        finally:
            await transport.close()
        if probed.outcome == "refused":
            raise UserError(f"refused: {provider}: {probed.detail}; nothing was stored")
        await asyncio.to_thread(auth_file.store, home, provider, entry)
        tried = "" if probed.outcome == "accepted" else f"; it could not be tried: {probed.detail}"
        return f"stored for {provider} in {auth_file.path_in(home)}{tried}"

    async def logout(self, provider: str) -> str:
        self._vendor(provider)
        home = self._needed_home()
        if not await asyncio.to_thread(auth_file.remove, home, provider):
            raise UserError(f"nothing is stored for {provider} in {auth_file.path_in(home)}")
        return f"removed for {provider} from {auth_file.path_in(home)}"

    @property
    def _cwd(self) -> str:
        try:
            return os.path.abspath(self._config.cwd or os.getcwd())
        except FileNotFoundError:
            raise UserError("the directory that zot was started in is gone") from None

    @property
    def _home(self) -> str | None:
        return zot_home(self._config.environment)

    def _needed_home(self) -> str:
        if self._home is None:
            raise ConfigError("no directory to store it in: set ZOT_HOME or HOME")
        return self._home

    def _vendor(self, provider: str) -> Vendor:
        vendor = VENDORS.get(provider)
        if vendor is None or not vendor.key_names:
            known = ", ".join(name for name, one in VENDORS.items() if one.key_names)
            raise UserError(f"unknown provider; use one of these: {known}")
        return vendor

    async def _new(self) -> LocalConversation:
        """Open a new session, recorded if that is wanted and possible."""
        if self._keep:
            try:
                config = msgspec.structs.replace(self._config, session=new_session_id())
                session = await open_session(_request(config, self._overrides), self._resources)
                return LocalConversation(session, config, self._resources, unused=self._discard_empty)
            except StoreFailed as problem:
                _warn(problem)
            except ConfigError as problem:
                if self._home is not None:
                    raise
                _warn(problem)
        config = msgspec.structs.replace(self._config, session=None)
        session = await open_session(_request(config, self._overrides), self._resources)
        return LocalConversation(session, config, self._resources)

    async def _recorded(self, config: Config) -> LocalConversation:
        request = _request(config, self._overrides)
        session = await open_session(request, self._resources)
        # The session may have another agent: later requests keep that agent's policy and tools.
        return LocalConversation(session, request.adapted(session.agent.configured()).config, self._resources)

    async def _discard_empty(self, session: str) -> None:
        """Delete a new session in which nothing was said."""
        journal = await self._journal()
        try:
            if not (await journal.find(session)).messages:
                await journal.delete(session)
        finally:
            await journal.close()

    async def _journal(self) -> SessionJournal:
        return await open_journal(journal_path(self._config))

    async def _named(self, name: str) -> str:
        """Return the id ``name``, or the only one that starts with it. Raise NoSuchSession, UserError."""
        found = match_session_id(name, [one.id for one in await self.sessions()])
        if found is None:
            raise NoSuchSession(f"no session matches {name!r}; list them with: /sessions")
        return found

    def _is_trusted(self, directory: str, content: bytes) -> bool:
        if self._config.trust_project or self._home is None:
            return self._config.trust_project
        return TrustStore(self._home).is_trusted_skill(directory, content)

    def _untrusted(self) -> list[Untrusted]:
        if self._home is None or self._config.trust_project:
            return []
        found: list[Untrusted] = []
        if not self._config.no_ext and extension_places(self._config):
            found += self._untrusted_extensions()
        if not self._config.no_skill:
            skills = discover(cwd=self._cwd, home=self._home, is_trusted=self._is_trusted)
            found += [_untrusted_skill(place) for place in skills.untrusted]
        return found

    def _untrusted_extensions(self) -> list[Untrusted]:
        assert self._home is not None
        located = discovery.discover(cwd=self._cwd, home=self._home, is_trusted=TrustStore(self._home).is_trusted)
        named = {one.name: one.directory for one in located if one.source == "global"}
        return [_untrusted_extension(one, named.get(one.name, "")) for one in located if one.standing == "untrusted"]


def _untrusted_extension(one: discovery.Located, shadows: str) -> Untrusted:
    assert one.manifest is not None  # Only a readable one can be untrusted.
    try:
        covered = coverage(one.directory, changeable(one.manifest, one.directory))
    except UserError as problem:
        return Untrusted("extension", one.name, one.directory, shadows, (str(problem),))
    lines = tuple(trust_summary(one.manifest, covered))
    return Untrusted("extension", one.name, one.directory, shadows, lines, covered.fingerprint)


def _untrusted_skill(directory: str) -> Untrusted:
    name = os.path.basename(directory)
    try:
        covered = coverage(directory)
    except UserError as problem:
        return Untrusted("skill", name, directory, covers=(str(problem),))
    lines = (f"covers: {covered.files} files, {covered.size_bytes} bytes",)
    return Untrusted("skill", name, directory, covers=lines, fingerprint=covered.fingerprint)


def _warn(problem: Exception) -> None:
    """Warn that a session is not recorded, so its messages are lost at its end."""
    logging.getLogger("zot").warning("this session is not recorded: %s", problem)


def _user() -> str:
    return os.path.expanduser("~")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
