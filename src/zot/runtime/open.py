"""Opening sessions: from an `OpenRequest` to a live `Session`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

import msgspec

from zot.config.config import DEFAULT_AGENT, PROMPTING, RECORDED, Config, Overrides, journal_path
from zot.errors import AgentError
from zot.runtime.assembly import assemble, settle
from zot.runtime.check import working_directory
from zot.session.recovery import WaitingRuns
from zot.session.transcripts import TranscriptPast

if TYPE_CHECKING:
    from zot.runtime.idempotency import IdempotentRequest
    from zot.runtime.shared import SharedResources
    from zot.session.session import Session
    from zot.store import Configured

#: Prefix of session ids that strangers prompt, so that none of them can name a session of the user.
HOSTED = "host:"
_HTTP_CLIENT = "zot.providers.http"


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a session with the settings ``config``, recorded under ``config.session`` unless that is None.

    A recorded session that exists keeps its recorded settings, except the ``overrides``.
    """

    config: Config
    overrides: Overrides = Overrides()
    #: The name of its agent in the record, "" for none; None for that of ``config`` unless it is the default agent.
    agent: str | None = None
    #: Strangers prompt it: its policy denies by default. A session once guarded stays guarded.
    guarded: bool = False
    #: Its extensions can be replaced while it is open.
    reloadable: bool = False
    #: Further extensions can connect to it. So can those that guarded it before.
    joinable: bool = False
    #: Create a recorded session that does not exist. Otherwise `open_session` raises NoSuchSession.
    creates: bool = True
    #: Resume a run that waits for an approval, and request approvals even while no client can answer them.
    keeps_approvals: bool = False
    #: The host's request that it is opened for.
    host_request: IdempotentRequest | None = None
    #: The conversation that an unrecorded session starts from.
    past: TranscriptPast | None = None
    #: Returns the request for a session that exists, given its recorded settings; None to follow the recorded agent.
    adapt: Callable[[Configured], OpenRequest] | None = None

    @classmethod
    def for_host(cls, config: Config, request: IdempotentRequest) -> OpenRequest:
        """Return the request for the session of a chat: the current configuration counts, not the recorded one."""
        config = msgspec.structs.replace(config, session=f"{HOSTED}{request.session_id}")
        overrides = Overrides(frozenset({*RECORDED, *PROMPTING, "lock"}))
        # It has no agent of its own: each request names one.
        return cls(config=config, overrides=overrides, agent="", guarded=True, host_request=request)

    def adapted(self, recorded: Configured) -> OpenRequest:
        """Return the request for a session that exists, with these recorded settings.

        Policy and tools come from the session's own agent unless the user named another one.
        """
        if self.adapt is not None:
            return self.adapt(recorded)
        if recorded.agent in ("", self.config.agent) or "agent" in self.overrides:
            return self
        own = self.overrides.config_of(recorded.agent)
        if own is None:
            return self
        kept = {"session": self.config.session, "auto_compact": self.config.auto_compact}
        return msgspec.structs.replace(self, config=msgspec.structs.replace(own, **kept))

    @property
    def agent_name(self) -> str:
        """The name of its agent in the record."""
        if self.agent is not None:
            return self.agent
        return "" if self.config.agent == DEFAULT_AGENT else self.config.agent


async def open_session(request: OpenRequest, resources: SharedResources) -> Session:
    """Return the requested session, recovered if a process died in it. It borrows ``resources`` until it is closed.

    Raise ConfigError, StoreFailed if the journal cannot be used, NoSuchSession if it does not exist and the request
    does not create it.
    """
    config = request.config
    if config.session is None:
        return open_unrecorded(request, resources)
    from zot.journal.journal import Journal  # Imported lazily: most sessions of programs are not recorded.

    with _preloading(config.provider):
        journal = await Journal.open(journal_path(config))
        try:
            cwd = working_directory(config.cwd)
            record, stored = await journal.resume(config.session, cwd=cwd, create=request.creates)

            changes = resources.same_prompts(stored.changes)
            try:
                settings = settle(request, changes)
                if resources.serves_many:
                    parts = await asyncio.to_thread(assemble, settings, resources)
                else:
                    parts = assemble(settings, resources)
            except AgentError:
                await journal.discard(record)  # Invalid settings leave no empty session.
                raise
            # From here on the session closes the journal at its end.
            session = parts.session(record, TranscriptPast(changes, stored.rows, record.totals, journal.close))
            await session.worker.recover(WaitingRuns.RESUME if request.keeps_approvals else WaitingRuns.LEAVE)
        except BaseException:
            await journal.close()
            raise
    return session


def open_unrecorded(request: OpenRequest, resources: SharedResources) -> Session:
    """Return the requested session, which is kept in memory only, at once. Raise ConfigError."""
    return assemble(settle(request, ()), resources).session(None, request.past)


async def preload(provider: str) -> None:
    """Import the HTTP client in the next step of the event loop, unless ``provider`` needs none."""
    if provider != "lab":
        await asyncio.sleep(0)
        import_module(_HTTP_CLIENT)


@contextmanager
def _preloading(provider: str) -> Iterator[None]:
    """Import the HTTP client while the caller awaits something else."""
    if _HTTP_CLIENT in sys.modules:
        yield
        return
    task = asyncio.ensure_future(preload(provider))
    try:
        yield
    finally:
        task.cancel()
