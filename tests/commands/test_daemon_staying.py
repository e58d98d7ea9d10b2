"""A daemon whose socket was removed: it becomes reachable again, and until then every command reports the same."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon_process import Daemons, eventually
from daemons import Caller
from forked import Forked, ForkServer


@pytest.fixture
async def daemons(tmp_path: Path, fork_server: ForkServer) -> AsyncIterator[Daemons]:
    started = Daemons(tmp_path, fork_server)
    yield started
    await started.close()


async def said(command: Forked) -> tuple[int | None, str]:
    """Return the exit code of a command, and all of its output."""
    out, err = await asyncio.to_thread(command.communicate)
    return command.returncode, (out + err).decode()


async def test_a_daemon_recreates_its_socket_and_connected_clients_notice_nothing(daemons: Daemons) -> None:
    daemon = daemons.start()
    early = await daemons.caller()
    await early.get("session/new", agentAlias="default", sessionId="s")
    os.unlink(daemons.path)
    code, told = await said(daemons.fork("call", "status"))
    assert (code, f'"serverPid":{daemon.pid}' in told) == (0, True), told
    assert stat.S_IMODE(os.stat(daemons.path).st_mode) == 0o600
    assert "was removed by another program and has been created again" in daemons.log()
    late = await daemons.caller()
    await late.get("session/attach", sessionId="s")
    assert (await early.get("session/prompt", sessionId="s", prompt="!echo here"))["content"] == "here"
    assert (await late.until(type="turn_complete"))["content"] == "here"
    assert await daemons.end(daemon) == 0
    assert not os.path.exists(daemons.path)


async def test_a_successor_waits_for_the_recreated_socket_and_is_reached_there(daemons: Daemons) -> None:
    first = daemons.start()
    os.unlink(daemons.path)
    second = await asyncio.to_thread(daemons.start, "--replace")
    assert await daemons.ended(first) == 0
    assert (await (await daemons.caller()).get("status"))["serverPid"] == second.pid
    os.unlink(daemons.path)
    await eventually(lambda: os.path.exists(daemons.path))
    assert await daemons.end(second) == 0
    assert not os.path.exists(daemons.path)


async def test_without_a_socket_every_command_says_so_and_suggests_a_remedy(daemons: Daemons) -> None:
    daemon = daemons.start()
    daemon.send_signal(signal.SIGSTOP)
    os.unlink(daemons.path)
    what = f"process {daemon.pid} is the daemon at {daemons.path}"
    commands = {"call status": 3, "daemon status": 1, "daemon": 3, "daemon --replace": 3}
    heard = await asyncio.gather(*(said(daemons.fork(*words.split())) for words in commands))
    assert [code for code, _ in heard] == list(commands.values())
    for _, told in heard:
        assert (what in told, "its socket does not exist" in told, "`zot daemon stop`" in told) == (True, True, True), (
            told
        )
    daemon.send_signal(signal.SIGCONT)
    await eventually(lambda: os.path.exists(daemons.path))
    assert isinstance(await daemons.caller(), Caller)
