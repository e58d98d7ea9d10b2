"""The sessions of the daemon, as a face finds its way among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from zot.client import Client
from zot.client_conversation import ClientConversation
from zot.client_session import ClientSession
from zot.conversation import SessionInfo, SkillInfo, Untrusted
from zot.errors import UserError


class ClientHome:
    """A `Home` whose sessions run in the daemon. Keys, skills and trust are the daemon's own affair."""

    def __init__(self, client: Client, *, cwd: str, agent: str = "default") -> None:
        self._client = client
        self._cwd = cwd
        self._agent = agent

    def conversation(self, session: ClientSession) -> ClientConversation:
        """Return a session as a face sees it."""
        return ClientConversation(self._client, session)

    async def open(self, session: str | None = None) -> ClientConversation:
        if session is None:
            return self.conversation(await self._client.session(agent=self._agent, cwd=self._cwd))
        return self.conversation(await self._client.attach(session))

    async def sessions(self) -> Sequence[SessionInfo]:
        return [
            SessionInfo(one.session_id, one.title, one.cwd, one.last_activity, one.message_count)
            for one in await self._client.sessions()
        ]

    async def export(self, session: str, path: str) -> None:
        _refuse("zot sessions export writes a session to a file")

    async def import_(self, path: str) -> str:
        _refuse("zot sessions import reads a session from a file")

    async def skills(self) -> Sequence[SkillInfo]:
        _refuse("which skills it has is not known here; zot skills lists those of a directory")

    async def untrusted(self) -> Sequence[Untrusted]:
        return ()

    async def trust(self, one: Untrusted) -> None:
        _refuse("zot ext trust and zot skills trust are for that")

    async def providers(self) -> Sequence[str]:
        return ()

    async def login(self, provider: str, key: str) -> str:
        _refuse("zot login stores a key")

    async def logout(self, provider: str) -> str:
        _refuse("zot logout forgets a key")


def _refuse(hint: str) -> NoReturn:
    raise UserError(f"not in a session of the daemon; {hint}")
