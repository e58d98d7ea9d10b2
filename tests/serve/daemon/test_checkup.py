"""`health` reports fresh checks, not old results; `status` has the daemon's place."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from daemons import running
from zot.serve.daemon.server_methods import HealthCheck


async def test_health_reports_whether_sessions_can_be_recorded(tmp_path: Path) -> None:
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


async def test_health_reports_a_full_disk(tmp_path: Path) -> None:
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


async def test_a_session_can_be_closed_and_resumed_on_a_full_disk(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        await caller.get("session/new", agentAlias="default", sessionId="s")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(tmp_path / "journal.db-wal"), hard))
        try:
            await caller.get("session/close", sessionId="s")
            assert (await caller.error("session/prompt", sessionId="s", prompt="!echo hi"))[0] == -32000
            assert (await caller.get("session/state", sessionId="s"))["closed"] is True
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await caller.get("session/new", agentAlias="default", sessionId="s")
        assert (await caller.get("session/state", sessionId="s"))["closed"] is False


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB where we may mount one; elsewhere a directory like any other."""
    home = tmp_path / "home"
    home.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "zot-test", str(home)], capture_output=True, check=False
    )
    try:
        yield home
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", str(home)], check=True)


@contextmanager
def filled(disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave room for a few pages, and for no more; where the disk is not ours to fill, new files find no room."""
    if not os.path.ismount(disk):
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "TemporaryFile", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
            yield
        return
    room = os.statvfs(disk)
    with open(disk / "filler", "wb", buffering=0) as filler:
        filler.write(bytes(room.f_bavail * room.f_frsize - (64 << 10)))
    try:
        yield
    finally:
        (disk / "filler").unlink()


async def test_health_notices_a_disk_with_room_for_a_page_and_not_for_a_turn(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(small_disk) as daemon:
        caller = await daemon.caller()
        await caller.get("session/new", agentAlias="default", sessionId="s")
        assert (await caller.get("health"))["components"]["journal"]["status"] == "ok"
        with filled(small_disk, monkeypatch):
            ill = (await caller.get("health"))["components"]["journal"]
            if os.path.ismount(small_disk):
                await caller.error("session/prompt", sessionId="s", prompt="!echo " + 200_000 * "x")
        well = (await caller.get("health"))["components"]["journal"]
        assert (await caller.get("session/prompt", sessionId="s", prompt="!echo after"))["content"] == "after"
    assert (ill["status"], well["status"]) == ("error", "ok")
    assert "the disk has no room for another 1 MiB" in ill["lastError"]


async def test_a_check_that_does_not_answer_is_a_failure() -> None:
    told = await HealthCheck(asyncio.Event().wait, within_s=0.01).make()
    assert (told.status, told.last_ok, told.last_error) == ("error", None, "no answer within 0.01 s")


async def test_status_says_where_the_daemon_keeps_its_files(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        told = await (await daemon.caller()).get("status")
    assert (told["dataDir"], told["configDir"]) == (str(tmp_path), str(tmp_path))
