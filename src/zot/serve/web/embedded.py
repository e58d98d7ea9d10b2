"""A daemon inside another program: without a socket, a lock and signals of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from zot.config.agents import Agents
from zot.config.paths import Place
from zot.journal.journal import Journal
from zot.runtime.shared import Premises
from zot.serve.daemon.audit import Audit
from zot.serve.daemon.chores import Chores
from zot.serve.daemon.daemon import Daemon
from zot.serve.daemon.logs import LogFile
from zot.serve.daemon.parts import Establishment, journal_of


@asynccontextmanager
async def open_daemon(config_dir: str | os.PathLike[str], **settings: Any) -> AsyncIterator[Daemon]:
    """Open a daemon whose `config.toml` is in ``config_dir``, and everything that it keeps in `data` there.

    ``settings`` win over what the file says of agents, as the flags of `zot daemon` do: ``provider="lab"``. At the end
    what runs is given the time that the configuration says, and then ended. Raise ConfigError, StoreFailed.
    """
    place = _place_in(config_dir)
    agents = Agents.load(place.config_dir)
    journal = await Journal.open(journal_of(place, agents))
    premises = Premises()
    # Those who look with `zot ext logs` look in zot's home; whoever embeds a daemon has asked for one place for all.
    flags = {**settings, "data": place.data_dir}
    audit = Audit(LogFile(os.path.join(place.logs, "audit.log")), soon=asyncio.get_running_loop().call_soon)
    parts = Establishment(place, agents, journal=journal, premises=premises, audit=audit, flags=flags)
    daemon = Daemon(parts)
    try:
        async with Chores() as chores:
            chores.start(daemon.mend(), "mending")
            chores.start(daemon.watch.run(), "watching")
            yield daemon
    finally:
        await daemon.close()
        await premises.close()
        await journal.close()
        audit.close()


def _place_in(config_dir: str | os.PathLike[str]) -> Place:
    """Return where everything is; nobody connects to it by a socket."""
    directory = os.path.abspath(config_dir)
    data_dir = os.path.join(directory, "data")
    return Place("", data_dir, directory, os.path.join(data_dir, "journal.db"))
