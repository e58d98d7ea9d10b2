"""The sessions of the daemon, as a face finds its way among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from zot.client.client import Client
from zot.client.session import ClientSession
from zot.errors import UserError
from zot.ui.conversation import Home, SessionInfo, SkillInfo, Untrusted, meant
from zot.ui.remote import ClientConversation
from zot.wire.jsonrpc import RpcError


class ClientHome:
    """A `Home` whose sessions run in the daemon.

    Keys, skills and files of sessions are those of the user, if the daemon has the same: then ``own`` is the home of a
    session that works in a directory, for an agent. What is made from within a session is of the agent of that one.
    """

    def __init__(
        self, client: Client, *, cwd: str, agent: str = "default", own: Callable[[str, str], Home] | None = None
    ) -> None:
        self._client = client
        self._cwd = cwd
        self._agent = agent
        self._make_own = own
        self._newest: ClientConversation | None = None

    def conversation(self, session: ClientSession) -> ClientConversation:
        """Return a session as a face sees it."""
        self._newest = ClientConversation(self._client, session)
        return self._newest

    async def open(self, session: str | None = None) -> ClientConversation:
        if session is None:
            return self.conversation(await self._client.session(agent=await self._agent_here(), cwd=self._cwd))
        return self.conversation(await self._named(session))

    async def _named(self, name: str) -> ClientSession:
        """Return the session that ``name`` means: the only one that begins so, or the one of that id.

        Raise UserError, RpcError.
        """
        known = {one.session_id: one for one in await self._client.sessions()}
        session_id = meant(name, list(known)) or name
        if (entry := known.get(session_id)) is not None:
            with suppress(RpcError):  # What nobody can use can still be read.
                return await self._client.session(session_id, entry.agent_alias)  # It may have been closed.
        return await self._client.attach(session_id)

    async def sessions(self) -> Sequence[SessionInfo]:
        return [
            SessionInfo(one.session_id, one.title, one.cwd, one.last_activity, one.message_count, one.parent_id or "")
            for one in await self._client.sessions()
        ]

    async def export(self, session: str, path: str) -> None:
        own = await self._own("has its own files; where it runs, `zot sessions --config-dir DIR export` does it")
        await own.export(session, path)

    async def import_(self, path: str) -> str:
        own = await self._own("has its own files; where it runs, `zot sessions --config-dir DIR import` does it")
        return await own.import_(path)

    async def skills(self) -> Sequence[SkillInfo]:
        return await (await self._own("has its own home; where it runs, `zot skills` lists them")).skills()

    async def untrusted(self) -> Sequence[Untrusted]:
        return ()

    async def trust(self, one: Untrusted) -> None:
        raise UserError("in a session of the daemon nothing is asked; `zot ext trust` and `zot skills trust` do it")

    async def providers(self) -> Sequence[str]:
        own = await self._own("has its own keys; where it runs, `zot login` and `zot logout` do it")
        return await own.providers()

    async def login(self, provider: str, key: str) -> str:
        return await (await self._own("has its own keys; where it runs, `zot login` does it")).login(provider, key)

    async def logout(self, provider: str) -> str:
        return await (await self._own("has its own keys; where it runs, `zot logout` does it")).logout(provider)

    async def _own(self, otherwise: str) -> Home:
        """Return the home of the user, seen from where the session works. Raise UserError if the daemon has another."""
        if self._make_own is None:
            raise UserError(f"this cannot be done from here: the daemon {otherwise}")
        cwd = self._cwd if self._newest is None else (await self._newest.state()).cwd
        return self._make_own(cwd, await self._agent_here())

    async def _agent_here(self) -> str:
        """Return the agent of the session that one is in."""
        return self._agent if self._newest is None else await self._newest.agent()
