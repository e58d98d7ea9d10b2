"""`zot daemon --replace` that fails: the old daemon continues, or ends as usual."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import zot
from daemon_process import Daemons
from daemons import Caller, request
from forked import Forked, ForkServer

STOPPING = {"jsonrpc": "2.0", "method": "daemon/stopping", "params": {}}
RESUMED = {"jsonrpc": "2.0", "method": "daemon/resumed", "params": {}}
#: A turn that goes on until it is told to end.
LONG = '!script call bash {"command":"until test -e over; do sleep 0.01; done"} ;; --- ;; say "to its end"'


@pytest.fixture
async def daemons(tmp_path: Path, fork_server: ForkServer) -> AsyncIterator[Daemons]:
    started = Daemons(tmp_path, fork_server)
    (started.home / "config.toml").write_text("[daemon]\ngrace_s = 60\n")
    yield started
    await started.close()


async def curious(daemons: Daemons) -> Caller:
    """Return a client that has a turn running, and subscribes to the daemon's end."""
    caller = await daemons.caller()
    await caller.get("initialize", features=["stopping"])
    await caller.get("session/new", agentAlias="default", sessionId="s")
    caller.write(request("session/prompt", "runs", {"sessionId": "s", "prompt": LONG}))
    await caller.until(type="tool_call")
    return caller


async def told(caller: Caller) -> dict[str, object]:
    """Return the next notification of the daemon."""
    while not str((frame := await caller.read()).get("method")).startswith("daemon/"):
        pass
    return frame


async def asking(daemons: Daemons, caller: Caller) -> Forked:
    """Return a daemon that wants to take over, as soon as the old one knows."""
    heir = daemons.fork("daemon", "--provider", "lab", "--replace")
    assert await told(caller) == STOPPING
    return heir


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_a_daemon_continues_if_its_successor_dies_before_taking_over(daemons: Daemons, number: int) -> None:
    daemon = daemons.start()
    caller = await curious(daemons)
    waits = caller.call("session/prompt", sessionId="s", prompt="!echo waits")
    assert (await caller.get("session/state", sessionId="s"))["queued"] == 1
    heir = await asking(daemons, caller)
    assert (await caller.error("session/steer", sessionId="s", prompt="now"))[0] == -32005
    comes = asyncio.create_task(daemons.caller())
    await daemons.end(heir, number)
    assert await told(caller) == RESUMED
    other = await comes
    assert (await other.get("status"))["serverPid"] == daemon.pid
    await other.get("session/new", agentAlias="default", sessionId="other")
    assert (await other.get("session/prompt", sessionId="other", prompt="!echo on"))["content"] == "on"
    (daemons.cwd / "over").touch()
    assert (await caller.answer("runs"))["result"]["content"] == "to its end"
    assert (await caller.answer(waits))["error"]["code"] == -32005
    assert (await caller.get("session/prompt", sessionId="s", prompt="!echo again"))["content"] == "again"
    assert "the daemon resumes" in daemons.log()


async def test_a_client_of_a_continuing_daemon_loses_nothing(daemons: Daemons) -> None:
    daemons.start()
    caller = await curious(daemons)
    async with zot.Client.connect(socket=daemons.path) as client:
        session = await client.session("s")
        waits = session.prompt("!echo waits")
        while (await caller.get("session/state", sessionId="s"))["queued"] < 1:
            pass
        heir = await asking(daemons, caller)
        late = session.prompt("!echo late")
        await daemons.end(heir, signal.SIGKILL)
        assert await told(caller) == RESUMED
        (daemons.cwd / "over").touch()
        assert {(await waits.result()).content, (await late.result()).content} == {"waits", "late"}


async def test_a_daemon_can_be_replaced_after_a_failed_attempt(daemons: Daemons) -> None:
    daemon = daemons.start()
    caller = await curious(daemons)
    await daemons.end(await asking(daemons, caller), signal.SIGKILL)
    assert await told(caller) == RESUMED
    heir = await asking(daemons, caller)
    (daemons.cwd / "over").touch()
    assert (await caller.answer("runs"))["result"]["content"] == "to its end"
    await asyncio.to_thread(daemons.hears, heir, "listens at")
    assert await daemons.ended(daemon) == 0
    assert (await (await daemons.caller()).get("status"))["serverPid"] == heir.pid


async def test_a_daemon_asked_to_stop_ends_even_if_its_successor_dies(daemons: Daemons) -> None:
    daemon = daemons.start()
    caller = await curious(daemons)
    heir = await asking(daemons, caller)
    await caller.get("daemon/stop")
    await daemons.end(heir, signal.SIGKILL)
    (daemons.cwd / "over").touch()
    assert (await caller.answer("runs"))["result"]["content"] == "to its end"
    assert await ended(daemon) == (0, "")
    assert not os.path.exists(daemons.path)


async def test_a_daemon_ends_normally_if_its_successor_leaves_during_the_wind_down(daemons: Daemons) -> None:
    daemon = daemons.start()
    caller, heir = await curious(daemons), await daemons.caller()
    _, silent = await asyncio.open_unix_connection(daemons.path)  # It is waited for, for a moment.
    await heir.get("daemon/stop", handover=True, graceS=0)
    assert (await caller.answer("runs"))["result"]["stopReason"] == "cancelled"
    await heir.close()
    assert await ended(daemon) == (0, "")
    assert not os.path.exists(daemons.path)
    silent.close()
    daemons.start()


async def test_a_successor_that_has_left_takes_nothing_over(daemons: Daemons) -> None:
    daemon = daemons.start()
    await curious(daemons)
    for _ in range(20):
        heir = await daemons.caller()
        heir.tell("daemon/stop", handover=True)
        await heir.close()
    assert (await (await daemons.caller()).get("status"))["serverPid"] == daemon.pid


async def ended(daemon: Forked) -> tuple[int | None, str]:
    """Return the exit code and the remaining output of a daemon that ends."""
    _, said = await asyncio.to_thread(daemon.communicate)
    return daemon.returncode, said.decode()
