"""Methods on a session's model, approvals and extensions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from zot.errors import AgentError, UserError
from zot.events import Reconfigured
from zot.panels import CommandAnswer
from zot.runtime.extensions import manager_of
from zot.runtime.pool import SessionPool
from zot.serve.daemon.access import check_idle, check_use, use_session
from zot.serve.daemon.client_connection import AnswerThen, ClientConnection, Handler, SlowAnswer
from zot.session.queue import JobObserver
from zot.store import LockChanged
from zot.text import printable
from zot.wire import daemon_types
from zot.wire.daemon_types import OfSession, Reloaded
from zot.wire.jsonrpc import NOT_OWNED, RpcError

if TYPE_CHECKING:
    from zot.serve.daemon.sessions import SessionOpener
    from zot.session.session import Session

log = logging.getLogger("zot")


class SettingsMethods:
    """Handlers of the methods on a session's settings."""

    def __init__(self, pool: SessionPool, choices: SessionOpener) -> None:
        self._pool = pool
        self._choices = choices

    @property
    def table(self) -> Mapping[str, Handler]:
        """Handlers by method."""
        return {
            "session/models": self._models,
            "session/configure": self._configure,
            "session/lock": self._lock,
            "session/reload": self._reload,
        }

    async def _models(self, connection: ClientConnection, asked: daemon_types.ListModels) -> daemon_types.Models:
        async with self._pool.use(asked.session_id, looks=True) as session:
            known = session.agent.catalogue.models
            others = self._choices.others
            away = await asyncio.to_thread(others, session) if asked.all and connection.is_local else ()
        entries = (
            daemon_types.ModelEntry(one.provider, one.id, one.name, one.context_window) for one in (*known, *away)
        )
        return daemon_types.Models(asked.session_id, tuple(entries))

    async def _configure(self, connection: ClientConnection, asked: daemon_types.Configure) -> daemon_types.Configured:
        wanted, session_id = asked.overrides, asked.session_id
        async with use_session(self._pool, connection, session_id) as session:
            moves = wanted.model_provider not in (None, session.agent.provider.name)
            if not moves and wanted != daemon_types.Overrides():
                await self._choose(session_id, session, wanted)
        if moves:
            await self._switch_provider(connection, session_id, wanted)
        if wanted != daemon_types.Overrides():
            self._notify(connection, session_id)
        async with self._pool.use(session_id, looks=True) as session:
            agent = session.agent
            return daemon_types.Configured(
                session_id, daemon_types.Overrides(agent.model.id, agent.reasoning, agent.provider.name)
            )

    async def _choose(self, session_id: str, session: Session, wanted: daemon_types.Overrides) -> None:
        if wanted.model is not None:
            session.use_model(wanted.model)
        if wanted.reasoning is not None:
            session.use_reasoning(wanted.reasoning)
        self._choices.chosen(session_id)
        await session.worker.record_settings()

    async def _switch_provider(
        self, connection: ClientConnection, session_id: str, wanted: daemon_types.Overrides
    ) -> None:
        """Switch to another provider. Remote clients may only spend their agent's own budget."""
        if not connection.is_local:
            raise RpcError(NOT_OWNED, "over the network a session keeps its provider")
        if wanted.model is None:
            raise UserError("another provider needs a model: name one")
        changes = {"provider": wanted.model_provider, "model": wanted.model}
        if wanted.reasoning is not None:
            changes["reasoning"] = wanted.reasoning
        async with use_session(self._pool, connection, session_id) as session:
            check_idle(session, "another provider cannot be used")
            changed = msgspec.structs.replace(session.agent.configured(), **changes)
            await asyncio.to_thread(self._choices.check, session_id, changed)
            await session.worker.record(changed)
        self._choices.chosen(session_id)
        await self._pool.reopen(session_id)

    async def _lock(self, connection: ClientConnection, asked: daemon_types.Lock) -> daemon_types.Lock:
        async with use_session(self._pool, connection, asked.session_id) as session:
            changes = session.agent.locked != asked.locked
            if changes:
                check_idle(session, "the lock cannot be changed")
                await session.worker.record(LockChanged(asked.locked))
        if changes:
            self._choices.chosen(asked.session_id)
            await self._pool.reopen(asked.session_id)
            self._notify(connection, asked.session_id)
        return asked

    async def _reload(self, connection: ClientConnection, asked: daemon_types.OfSession) -> SlowAnswer:
        async def reload() -> Reloaded:
            async with use_session(self._pool, connection, asked.session_id) as session:
                what = "extensions cannot be reloaded"
                check_idle(session, what)
                names = await manager_of(session.agent.extensions).reload(lambda: check_idle(session, what))
            self._notify(connection, asked.session_id)
            return Reloaded(asked.session_id, tuple(names))

        return SlowAnswer(reload())

    def _notify(self, connection: ClientConnection, session_id: str) -> None:
        """Notify all followers of a session that its settings have changed."""
        connection.daemon.sessions.feed(session_id).deliver_unrecorded(Reconfigured())


class _CommandPrompt(JobObserver):
    """The prompt of an extension's command, which has been answered already."""

    def __init__(self, connection: ClientConnection, session_id: str) -> None:
        self._connection = connection
        self._session_id = session_id

    def dropped(self, why: AgentError) -> None:
        self._connection.send_turn_failed(self._session_id, str(why))


class ExtensionMethods:
    """Handlers of the methods on a session's extensions."""

    def __init__(self, pool: SessionPool) -> None:
        self._pool = pool

    @property
    def table(self) -> Mapping[str, Handler]:
        """Handlers by method."""
        return {
            "session/extensions": self._extensions,
            "session/commands": self._commands,
            "session/resources": self._resources,
            "session/run_command": self._run_command,
            "session/panel_key": self._panel_key,
            "session/panel_close": self._panel_close,
            "session/dismiss": self._dismiss,
        }

    async def _extensions(self, connection: ClientConnection, asked: OfSession) -> daemon_types.ExtensionEntries:
        del connection
        async with self._pool.use(asked.session_id, looks=True) as session:
            found = session.extensions.listed()
        entries = (
            daemon_types.ExtensionEntry(one.name, one.state, one.problem, one.tools, one.commands) for one in found
        )
        return daemon_types.ExtensionEntries(asked.session_id, tuple(entries))

    async def _commands(self, connection: ClientConnection, asked: OfSession) -> SlowAnswer:
        del connection

        async def list_commands() -> daemon_types.Commands:
            async with self._pool.use(asked.session_id, looks=True) as session:
                found = await session.commands()
            entries = (daemon_types.CommandEntry(one.name, one.description, one.extension) for one in found)
            return daemon_types.Commands(asked.session_id, tuple(entries))

        return SlowAnswer(list_commands())

    async def _resources(self, connection: ClientConnection, asked: OfSession) -> daemon_types.Resources:
        await check_use(self._pool, connection, asked.session_id)
        async with self._pool.use(asked.session_id, looks=True) as session:
            found = session.resources()
        entries = (daemon_types.ResourceEntry(one.mention, one.title) for one in found)
        return daemon_types.Resources(asked.session_id, tuple(entries))

    async def _run_command(self, connection: ClientConnection, asked: daemon_types.RunCommand) -> SlowAnswer:
        async def run_command() -> AnswerThen:
            async with use_session(self._pool, connection, asked.session_id) as session:
                connection.follow(asked.session_id)
                answer = await session.run_command(asked.name, asked.args)
                return AnswerThen(
                    _command_run(asked.session_id, answer), lambda: self._run_prompt(connection, asked, answer)
                )

        return SlowAnswer(run_command())

    def _run_prompt(self, connection: ClientConnection, asked: daemon_types.RunCommand, answer: CommandAnswer) -> None:
        """Run the prompt that an extension's answer contains, if any; the client applies the rest."""
        session = self._pool.session(asked.session_id)
        if answer.prompt and session is not None:
            try:
                self._pool.check_open()
                observer = _CommandPrompt(connection, asked.session_id)
                session.prompt(answer.prompt, by=connection.grant.name, observer=observer)
            except UserError as problem:
                connection.send_turn_failed(asked.session_id, str(problem))

    async def _panel_key(self, connection: ClientConnection, asked: daemon_types.PanelKey) -> daemon_types.PanelTold:
        async with use_session(self._pool, connection, asked.session_id) as session:
            session.extensions.panels.send_key(asked.panel_id, asked.key, asked.text)
        return daemon_types.PanelTold(asked.session_id, asked.panel_id)

    async def _panel_close(
        self, connection: ClientConnection, asked: daemon_types.PanelClose
    ) -> daemon_types.PanelTold:
        async with use_session(self._pool, connection, asked.session_id) as session:
            session.extensions.panels.close(asked.panel_id)
        return daemon_types.PanelTold(asked.session_id, asked.panel_id)

    async def _dismiss(self, connection: ClientConnection, asked: daemon_types.Dismiss) -> daemon_types.Dismissed:
        async with use_session(self._pool, connection, asked.session_id) as session:
            await session.dismiss_guard(asked.name)
        log.warning("the guard %s of session %s was dismissed", printable(asked.name), printable(asked.session_id))
        return daemon_types.Dismissed(asked.session_id)


def _command_run(session_id: str, answer: CommandAnswer) -> daemon_types.CommandRun:
    return daemon_types.CommandRun(
        session_id=session_id,
        extension=answer.extension,
        action=answer.action,
        prompt=answer.prompt,
        insert=answer.insert,
        display=answer.display,
        panel_id=answer.panel_id,
    )
