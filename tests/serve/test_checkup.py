"""`health` says what it has tried, not what was once true; `status`, where the daemon is at home."""

from __future__ import annotations

import asyncio
import os
import resource
from pathlib import Path

from daemons import running
from zot.serve.checkup import Checkup


async def test_health_says_if_sessions_can_be_recorded(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        well = (await caller.get("health"))["components"]["journal"]
        assert (well["status"], well["lastOk"], well["lastError"]) == ("ok", well["updatedAt"], None)
        (tmp_path / "journal.db").rename(tmp_path / "away.db")
        ill = (await caller.get("health"))["components"]
        assert (ill["daemon"]["status"], ill["journal"]["status"]) == ("ok", "error")
        assert ill["journal"]["lastOk"] == well["lastOk"]
        assert "was removed or replaced" in ill["journal"]["lastError"]
        (tmp_path / "away.db").rename(tmp_path / "journal.db")
        again = (await caller.get("health"))["components"]["journal"]
        assert (again["status"], again["lastError"]) == ("ok", ill["journal"]["lastError"])


async def test_health_says_that_the_disk_is_full(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        await caller.get("session/new", agentAlias="default", sessionId="s")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(tmp_path / "journal.db-wal"), hard))
        try:
            ill = (await caller.get("health"))["components"]["journal"]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        well = (await caller.get("health"))["components"]["journal"]
    assert (ill["status"], well["status"]) == ("error", "ok")
    assert "journal.db" in ill["lastError"]


async def test_what_does_not_answer_does_not_work() -> None:
    told = await Checkup(asyncio.Event().wait, within_s=0.01).make()
    assert (told.status, told.last_ok, told.last_error) == ("error", None, "no answer within 0.01 s")


async def test_status_says_where_the_daemon_keeps_its_files(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        told = await (await daemon.caller()).get("status")
    assert (told["dataDir"], told["configDir"]) == (str(tmp_path), str(tmp_path))
