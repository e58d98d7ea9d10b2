"""A daemon stays where it is: a socket that others have removed, as those do that clean /tmp, is made again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from zot.errors import ConfigError, DaemonRunning, Stopping

if TYPE_CHECKING:
    from zot.serve.daemon.daemon import Daemon
    from zot.serve.daemon.endpoint import Claim

log = logging.getLogger("zot")

#: How often we look if the socket is still there. Clients wait longer for an endpoint that is owned (`dial.Patience`).
_LOOK_S = 2.0


async def stay(daemon: Daemon, claim: Claim, leave: Callable[[], None], *, every_s: float = _LOOK_S) -> None:
    """Look after the socket of a daemon for as long as it is there. ``leave`` ends that anybody is accepted there.

    Who is connected notices nothing.
    """
    from zot.serve.daemon.daemon import listen

    complained = ""
    while True:
        await asyncio.sleep(every_s)
        try:
            daemon.hub.check_open()
            if not claim.restore():
                complained = ""
                continue
        except Stopping:  # The endpoint may be given away; or all goes on, if nobody takes it.
            continue
        except (OSError, ConfigError, DaemonRunning) as problem:
            if str(problem) != complained:
                complained = str(problem)
                log.warning("the socket %s was removed, and could not be made again: %s", claim.path, problem)
            continue
        log.warning("the socket %s was removed by somebody, and has been made again", claim.path)
        former, leave = leave, await listen(daemon, claim.listener)
        await asyncio.sleep(every_s)  # Who waited at the former one has come in by then.
        former()
