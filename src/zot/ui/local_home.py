"""What faces need besides a conversation, from the files of this user: other sessions, keys, skills, trust."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from zot.config.config import DEFAULT_AGENT, Config, journal_path, zot_home
from zot.errors import ConfigError, NoSuchSession, StoreFailed, UserError
from zot.runtime.open import HOSTED, open_recorded, open_session
from zot.text import printable
from zot.ui.conversation import SessionInfo, SkillInfo, Untrusted, meant
from zot.ui.local import LocalConversation

if TYPE_CHECKING:
    from zot.config.vendors import Vendor
    from zot.journal.journal import Journal

T = TypeVar("T")


class LocalHome:
    """A `Home` over the journal and the files of the user. ``given`` names the settings that were given by flags."""

    def __init__(self, config: Config, given: Collection[str] = (), *, keep: bool = True) -> None:
        self._config = config
        self._given = frozenset(given)
        self._keep = keep

    async def begin(self) -> LocalConversation:
        """Return the session that flags name, made if it is new; without such a flag a new one."""
        if self._config.session is None:
            return await self._new()
        return await self._recorded(self._config, self._given)

    async def open(self, session: str | None = None) -> LocalConversation:
        if session is None:
            return await self._new()
        config = msgspec.structs.replace(self._config, session=await self._named(session))
        return await self._recorded(config, self._given)

    async def newest(self) -> str:
        """Return the newest session of the directory that is no stranger's. Raise NoSuchSession."""
        cwd = self._cwd
        nothing = NoSuchSession(
            f"there is no session of {printable(cwd)} to go on with; zot sessions list --all shows the others"
        )
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
        """True if anything was ever kept. Raise StoreFailed if nobody can tell."""
        from zot.journal.schema import is_there  # Imported lazily: start-up budget.

        return await asyncio.to_thread(is_there, journal_path(self._config))

    async def export(self, session: str, path: str) -> None:
        from zot.journal.transfer import exported
        from zot.private import write_new

        journal = await self._journal()
        try:
            record = await journal.find(session)
            lines = await journal.reading(lambda connection: [*exported(connection, record, home=_user())])
        finally:
            await journal.close()
        await asyncio.to_thread(write_new, path, lines)

    async def import_(self, path: str) -> str:
        from zot.journal.portable import checked
        from zot.journal.transfer import imported
        from zot.messages import timestamp
        from zot.session.session import new_session_id

        try:
            lines = (await asyncio.to_thread(_read, path)).removesuffix(b"\n").split(b"\n")
        except OSError as problem:
            raise UserError(f"{path}: {problem.strerror}") from None
        journal = await self._journal()
        try:
            made = await journal.writing(
                lambda connection: imported(
                    connection,
                    checked(enumerate(lines, 1), path),
                    wanted_id=None,
                    spare_id=new_session_id,
                    home=_user(),
                    cwd=None,
                    agent="" if self._config.agent == DEFAULT_AGENT else self._config.agent,
                    now=timestamp(),
                )
            )
        finally:
            await journal.close()
        return made.id

    async def skills(self) -> Sequence[SkillInfo]:
        from zot.config.skills import discover

        config = self._config
        found = discover(cwd=self._cwd, home=self._home, explicit=config.skills, is_trusted=self._is_trusted)
        return [SkillInfo(one.name, one.description, one.directory or "built in") for one in found.skills]

    async def untrusted(self) -> Sequence[Untrusted]:
        return await asyncio.to_thread(self._untrusted)

    async def trust(self, one: Untrusted) -> None:
        from zot.config.trust_part import TrustStore

        if self._home is None:
            raise ConfigError("there is no home to remember it in: set ZOT_HOME or HOME")
        patterns: Sequence[str] = ()
        if one.kind == "extension":
            from zot.extensions.manifest import changeable, load

            patterns = changeable(load(one.directory), one.directory)
        TrustStore(self._home).trust(one.directory, patterns)

    async def providers(self) -> Sequence[str]:
        from zot.config.vendors import VENDORS

        return [name for name, vendor in VENDORS.items() if vendor.key_names]

    async def login(self, provider: str, key: str) -> str:
        from zot.config.auth_file import Entry, path_in, store
        from zot.config.credentials import checked
        from zot.config.vendors import endpoint
        from zot.providers.http import HttpTransport
        from zot.providers.probe import probe

        vendor, home, env = self._vendor(provider), self._needed_home(), self._config.environment
        entry = Entry(key=checked(provider, key.strip()))
        transport = HttpTransport(env)
        try:
            where = endpoint(vendor, api=None, base_url=None, env=env)
            probed = await probe(vendor, where, entry.key, transport)
        finally:
            await transport.close()
        if probed.outcome == "refused":
            raise UserError(f"refused: {provider}: {probed.detail}; nothing was stored")
        await asyncio.to_thread(store, home, provider, entry)
        tried = "" if probed.outcome == "accepted" else f"; it could not be tried: {probed.detail}"
        return f"stored for {provider} in {path_in(home)}{tried}"

    async def logout(self, provider: str) -> str:
        from zot.config.auth_file import path_in, remove

        self._vendor(provider)
        home = self._needed_home()
        if not await asyncio.to_thread(remove, home, provider):
            raise UserError(f"nothing is stored for {provider} in {path_in(home)}")
        return f"removed for {provider} from {path_in(home)}"

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
            raise ConfigError("there is no home to store it in: set ZOT_HOME or HOME")
        return self._home

    def _vendor(self, provider: str) -> Vendor:
        from zot.config.vendors import VENDORS

        vendor = VENDORS.get(provider)
        if vendor is None or not vendor.key_names:
            known = ", ".join(name for name, one in VENDORS.items() if one.key_names)
            raise UserError(f"no such provider has a key; type one of these: {known}")
        return vendor

    async def _new(self) -> LocalConversation:
        """Open a session that is new; kept if that is possible and wanted."""
        from zot.session.session import new_session_id

        if self._keep:
            try:
                config = msgspec.structs.replace(self._config, session=new_session_id())
                session = await open_recorded(config, self._given, own_process=True, parks=True, reloadable=True)
                return LocalConversation(session, config, unused=self._discard_empty)
            except StoreFailed as problem:
                _warn(problem)
            except ConfigError as problem:
                if self._home is not None:
                    raise
                _warn(problem)
        config = msgspec.structs.replace(self._config, session=None)
        return LocalConversation(open_session(config, own_process=True, reloadable=True), config)

    async def _recorded(self, config: Config, given: Collection[str]) -> LocalConversation:
        session = await open_recorded(config, given, own_process=True, parks=True, reloadable=True)
        return LocalConversation(session, config)

    async def _discard_empty(self, session: str) -> None:
        """Do not keep a session that nobody asked to keep and in which nothing was said."""
        journal = await self._journal()
        try:
            if not (await journal.find(session)).messages:
                await journal.delete(session)
        finally:
            await journal.close()

    async def _journal(self) -> Journal:
        from zot.journal.journal import Journal

        return await Journal.open(journal_path(self._config))

    async def _named(self, name: str) -> str:
        """Return the id that ``name`` means: itself, or the only one that begins so. Raise NoSuchSession, UserError."""
        found = meant(name, [one.id for one in await self.sessions()])
        if found is None:
            raise NoSuchSession(f"there is no session {name!r}; /sessions shows those that there are")
        return found

    def _is_trusted(self, directory: str) -> bool:
        from zot.config.trust_part import TrustStore

        return self._config.trust_project or (self._home is not None and TrustStore(self._home).is_trusted(directory))

    def _untrusted(self) -> list[Untrusted]:
        from zot.config.config import extension_places
        from zot.config.skills import discover

        if self._home is None or self._config.trust_project:
            return []
        found: list[Untrusted] = []
        if not self._config.no_ext and extension_places(self._config):
            found += self._untrusted_extensions()
        if not self._config.no_skill:
            skills = discover(cwd=self._cwd, home=self._home, is_trusted=self._is_trusted)
            found += [Untrusted("skill", os.path.basename(place), place) for place in skills.untrusted]
        return found

    def _untrusted_extensions(self) -> list[Untrusted]:
        from zot.config.trust_part import TrustStore
        from zot.extensions.discovery import discover

        assert self._home is not None
        located = discover(cwd=self._cwd, home=self._home, is_trusted=TrustStore(self._home).is_trusted)
        named = {one.name: one.directory for one in located if one.source == "global"}
        return [
            Untrusted("extension", one.name, one.directory, named.get(one.name, ""))
            for one in located
            if one.standing == "untrusted"
        ]


def _warn(problem: Exception) -> None:
    """Say that a session is not kept: what was said in it is lost at its end, and nobody has wanted that."""
    import logging

    logging.getLogger("zot").warning("this session is not kept: %s", problem)


def _user() -> str:
    return os.path.expanduser("~")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
