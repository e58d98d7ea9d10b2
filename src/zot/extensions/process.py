"""The process of an extension as its carrier: started, its pipes, and ended to the last of its descendants."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence

from zot.extensions.carrier import Deaf
from zot.extensions.outbox import Outbox
from zot.tools.process import Child, Streams

#: What is still running this long after its parent has exited was left behind; before, it may be exiting, too.
_LEAVE_S = 0.1


class ExtensionProcess:
    """A `Carrier`: what is said goes through ``outbox`` to ``child``, which has ``grace_s`` when it is made to end."""

    def __init__(self, child: Child, outbox: Outbox, *, grace_s: float, advice: str) -> None:
        self.advice = advice
        self._child = child
        self._outbox = outbox
        self._grace_s = grace_s
        self._ending: asyncio.Task[None] | None = None

    def send(self, data: bytes) -> None:
        self._outbox.write(data)

    async def read(self) -> bytes:
        return await self._child.read(until_exit=False)

    def arrived(self) -> int:
        return self._child.arrived()

    async def gone(self, *, within_s: float | None) -> bool:
        return await self._child.exited(within_s=within_s)

    async def leftovers(self) -> Sequence[str]:
        if self._ending is not None or not await self._child.background():
            return ()
        await asyncio.sleep(_LEAVE_S)
        return [command for _, command in await self._child.background()]

    def acknowledged(self) -> None:
        return  # It exits by itself, or is made to.

    def end(self) -> None:
        # Once is enough, for that takes its own time to ask and then kills.
        if self._ending is None:
            ending = self._child.end(grace_s=self._grace_s)
            self._ending = asyncio.get_running_loop().create_task(ending, name="zot extension end")

    async def close(self) -> str:
        self.end()  # It may have exited and left others behind.
        assert self._ending is not None
        try:
            await asyncio.shield(self._ending)
        finally:
            self._child.close()
            self._outbox.close()
        return _ending(self._child)


async def spawned(
    start: Callable[[Streams], Awaitable[Child]], errors: int, deaf: Deaf, *, grace_s: float, advice: str
) -> ExtensionProcess:
    """Let ``start`` start a process that complains to ``errors``, and return it. Raise what ``start`` does."""
    theirs, ours = os.pipe()
    outbox = Outbox(ours, deaf)
    try:
        child = await start(Streams(theirs, errors))
    except BaseException:
        outbox.close()
        raise
    finally:
        os.close(theirs)
    return ExtensionProcess(child, outbox, grace_s=grace_s, advice=advice)


def _ending(child: Child) -> str:
    try:
        status = child.status()
    except (ChildProcessError, asyncio.InvalidStateError):
        return "was killed"
    return f"was killed by signal {-status}" if status < 0 else f"exited with {status}"
