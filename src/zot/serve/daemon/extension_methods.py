"""What the daemon does for methods about the extensions of a session."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from zot.errors import UserError
from zot.runtime.pool import Hub
from zot.serve.daemon.access import used
from zot.serve.daemon.answering import Later, Told
from zot.serve.daemon.connection import Connection, Handler
from zot.slash import CommandAnswer
from zot.text import printable
from zot.wire import daemon_extensions as said
from zot.wire.daemon_types import OfSession

log = logging.getLogger("zot")


class ExtensionMethods:
    """Handlers by the name of their method."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    @property
    def table(self) -> Mapping[str, Handler]:
        """Every method, and what is done for it."""
        return {
            "session/commands": self._commands,
            "session/run_command": self._run_command,
            "session/panel_key": self._panel_key,
            "session/panel_close": self._panel_close,
            "session/dismiss": self._dismiss,
        }

    async def _commands(self, connection: Connection, asked: OfSession) -> Later:
        del connection

        async def list_commands() -> said.Commands:
            async with self._hub.use(asked.session_id, looks=True) as session:
                found = await session.commands()
            entries = (said.CommandEntry(one.name, one.description, one.extension) for one in found)
            return said.Commands(asked.session_id, tuple(entries))

        return Later(list_commands())

    async def _run_command(self, connection: Connection, asked: said.RunCommand) -> Later:
        async def run_command() -> Told:
            async with used(self._hub, connection, asked.session_id) as session:
                connection.follow(asked.session_id)
                answer = await session.run_command(asked.name, asked.args)
                return Told(_command_run(asked.session_id, answer), lambda: self._act(connection, asked, answer))

        return Later(run_command())

    def _act(self, connection: Connection, asked: said.RunCommand, answer: CommandAnswer) -> None:
        """Do what an extension wants: only prompts are ours to run."""
        session = self._hub.session(asked.session_id)
        if answer.prompt and session is not None:
            try:
                self._hub.check_open()
                session.prompt(answer.prompt, dropped=lambda why: connection.lament(asked.session_id, str(why)))
            except UserError as problem:
                connection.lament(asked.session_id, str(problem))

    async def _panel_key(self, connection: Connection, asked: said.PanelKey) -> said.PanelTold:
        async with used(self._hub, connection, asked.session_id) as session:
            session.press(asked.panel_id, asked.key, asked.text)
        return said.PanelTold(asked.session_id, asked.panel_id)

    async def _panel_close(self, connection: Connection, asked: said.PanelClose) -> said.PanelTold:
        async with used(self._hub, connection, asked.session_id) as session:
            session.close_panel(asked.panel_id)
        return said.PanelTold(asked.session_id, asked.panel_id)

    async def _dismiss(self, connection: Connection, asked: said.Dismiss) -> said.Dismissed:
        async with used(self._hub, connection, asked.session_id) as session:
            await session.dismiss_guard(asked.name)
        log.warning("the guard %s of session %s was dismissed", printable(asked.name), printable(asked.session_id))
        return said.Dismissed(asked.session_id)


def _command_run(session_id: str, answer: CommandAnswer) -> said.CommandRun:
    return said.CommandRun(
        session_id=session_id,
        extension=answer.extension,
        action=answer.action,
        prompt=answer.prompt,
        insert=answer.insert,
        display=answer.display,
        panel_id=answer.panel_id,
    )
