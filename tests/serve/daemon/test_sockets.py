"""The daemon's socket when other programs remove it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from daemon_process import eventually
from daemons import running
from zot.serve.daemon.sockets import keep_socket


async def test_a_socket_is_still_watched_after_a_failed_hand_over(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        staying = asyncio.create_task(keep_socket(daemon.daemon, daemon._claim, daemon._stop_listening, every_s=0))
        heir = await daemon.caller()
        await heir.get("daemon/stop", handover=True)
        for _ in range(9):  # It looks in each tick, and there is nothing to be done now.
            await asyncio.sleep(0)
        await heir.close()
        await eventually(lambda: not daemon.daemon.connections)
        os.unlink(daemon.path)
        await eventually(lambda: os.path.exists(daemon.path))
        assert (await (await daemon.caller()).get("status"))["clients"] == 1
        staying.cancel()
