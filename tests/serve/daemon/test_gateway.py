"""Gateways and workers: clients at any gateway, runs on any worker, sessions in PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from daemons import PATIENCE_S, Caller, Frame, running
from zot.config.configured_agents import AgentConfigs
from zot.config.paths import DaemonPaths
from zot.fleet.status import status_of_fleet
from zot.journal.opening import open_journal
from zot.journal.postgres.journal import PostgresJournal
from zot.runtime.shared import SharedResources
from zot.serve.daemon.audit import Audit
from zot.serve.daemon.daemon import DaemonParts
from zot.serve.daemon.logs import LogFile
from zot.serve.worker import FleetWorker, worker_sessions


def seen_as(store: str, process: str) -> str:
    """Return an address that a process of its own would use: connections are shared by address."""
    return f"{store}&lease_s=1&application_name={process}"


@asynccontextmanager
async def working(home: Path, store: str, name: str, **flags: Any) -> AsyncIterator[None]:
    """Run a worker in this event loop, as `zot worker` does."""
    address = seen_as(store, name)
    place = DaemonPaths("", str(home), str(home), None)
    journal, resources = await open_journal(address), SharedResources(serves_many=True)
    assert isinstance(journal, PostgresJournal)
    audit = Audit(LogFile(str(home / f"{name}.log")), soon=asyncio.get_running_loop().call_soon)
    given = {"provider": "lab", "journal": address, **flags}
    parts = DaemonParts(
        place, AgentConfigs.load(str(home)), journal=journal, resources=resources, audit=audit, flags=given
    )
    sessions, stop = worker_sessions(parts), asyncio.Event()
    worker = FleetWorker(sessions, journal, "default")
    task = asyncio.create_task(worker.run(concurrency=4, stop=stop, grace_s=0.1))
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, PATIENCE_S)
        await sessions.close()
        await resources.close()
        await journal.close()
        audit.close()


async def opened(caller: Caller, session_id: str, cwd: Path) -> None:
    await caller.get("session/new", sessionId=session_id, agentAlias="default", cwd=str(cwd))


async def answered(caller: Caller, number: int) -> Frame:
    """Return the answer to a request, whether or not it was read already."""
    found = [frame for frame in caller.heard if "method" not in frame and frame["id"] == number]
    return found[0] if found else await caller.answer(number)


async def test_clients_at_two_gateways_see_one_run_of_a_worker(tmp_path: Path, database: str) -> None:
    for name in ("one", "two", "work"):
        (tmp_path / name).mkdir()
    async with (
        running(tmp_path / "one", store=seen_as(database, "one")) as one,
        running(tmp_path / "two", store=seen_as(database, "two")) as two,
        working(tmp_path, database, "worker"),
    ):
        mine, theirs = await one.caller(), await two.caller()
        await opened(mine, "s", tmp_path / "work")
        await theirs.get("session/attach", sessionId="s")
        for text in ("first", "second"):
            answer = await mine.get("session/prompt", sessionId="s", prompt=f"!say 4 {text}", promptId=text)
            assert (answer["stopReason"], answer["content"]) == ("end_turn", text)
            await theirs.until(type="turn_complete")
        sent = [[update for update in caller.updates("s") if update.get("seq")] for caller in (mine, theirs)]
        assert [update["seq"] for update in sent[0]] == [update["seq"] for update in sent[1]]
        assert len({update["seq"] for update in sent[0]}) == len(sent[0])
        state = await theirs.get("session/state", sessionId="s")
        assert (state["state"], state["messageCount"]) == ("idle", 4)
        # Nothing ran here.
        assert all(not session.worker.busy for session in one.daemon.sessions.pool.sessions)


async def test_a_call_is_approved_at_another_gateway_than_the_one_that_was_prompted(
    tmp_path: Path, database: str
) -> None:
    for name in ("one", "two", "work"):
        (tmp_path / name).mkdir()
    async with (
        running(tmp_path / "one", store=seen_as(database, "one")) as one,
        running(tmp_path / "two", store=seen_as(database, "two")) as two,
        working(tmp_path, database, "worker", policy=("bash=ask",)),
    ):
        mine, theirs = await one.caller(), await two.caller()
        await opened(mine, "s", tmp_path / "work")
        number = mine.call("session/prompt", sessionId="s", prompt="!bash echo yes > done")
        request = await mine.until(type="approval_request")
        attached = await theirs.get("session/attach", sessionId="s")
        assert attached["state"] == "waiting_approval", attached
        asked = attached["pendingApproval"]["requestId"]
        assert asked == request["requestId"]
        await theirs.get("session/approve", sessionId="s", requestId=asked, decision="allow_once")
        answer = await mine.answer(number)
        assert answer["result"]["stopReason"] == "end_turn"
        assert (tmp_path / "work" / "done").read_text() == "yes\n"
        _, why = await mine.error("session/approve", sessionId="s", requestId=asked, decision="reject")
        assert "is waiting: it was answered" in why


async def test_a_run_is_steered_and_aborted_on_its_worker(tmp_path: Path, database: str) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "work").mkdir()
    async with (
        running(tmp_path / "one", store=seen_as(database, "one")) as one,
        working(tmp_path, database, "worker"),
    ):
        caller = await one.caller()
        await opened(caller, "s", tmp_path / "work")
        number = caller.call("session/prompt", sessionId="s", prompt="!bash sleep 60")
        await caller.until(type="tool_call")
        steering = caller.call("session/steer", sessionId="s", prompt="hurry up")
        await caller.answer(steering)
        began = time.monotonic()
        await caller.get("session/cancel", sessionId="s")
        assert (await caller.answer(number))["result"]["stopReason"] == "cancelled"
        assert time.monotonic() - began < 10
        code, why = await caller.error("session/cancel", sessionId="s")
        assert (code, why) == (-32000, "No active turn for this session")


async def test_an_approval_outlives_its_worker(tmp_path: Path, database: str) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "work").mkdir()
    async with running(tmp_path / "one", store=seen_as(database, "one")) as one:
        caller = await one.caller()
        await opened(caller, "s", tmp_path / "work")
        async with working(tmp_path, database, "first", policy=("bash=ask",)):
            number = caller.call("session/prompt", sessionId="s", prompt="!bash echo yes > done")
            request = await caller.until(type="approval_request")
        async with working(tmp_path, database, "second", policy=("bash=ask",)):
            asked = request["requestId"]
            await caller.get("session/approve", sessionId="s", requestId=asked, decision="allow_once")
            assert (await caller.answer(number))["result"]["stopReason"] == "end_turn"
        assert (tmp_path / "work" / "done").read_text() == "yes\n"


async def test_prompts_wait_for_a_worker_and_can_be_taken_back(tmp_path: Path, database: str) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "work").mkdir()
    async with running(tmp_path / "one", store=seen_as(database, "one")) as one:
        caller = await one.caller()
        await opened(caller, "s", tmp_path / "work")
        first = caller.call("session/prompt", sessionId="s", prompt="!echo one", promptId="a")
        second = caller.call("session/prompt", sessionId="s", prompt="!echo two", promptId="b")
        async with asyncio.timeout(PATIENCE_S):
            while "error" in await caller.ask("session/take_back", sessionId="s", promptId="b"):
                await asyncio.sleep(0.05)  # It is not in the queue yet.
        assert (await answered(caller, second))["result"]["stopReason"] == "cancelled"
        status = await one.journal.reading(status_of_fleet)
        assert (status.workers, status.sessions, status.leased, status.abandoned) == ((), 1, 0, 0)
        assert [(pool.name, pool.waiting, pool.running) for pool in status.pools] == [("default", 1, 0)]
        async with working(tmp_path, database, "worker"):
            assert (await answered(caller, first))["result"]["content"] == "one"
        assert [event["type"] for _, event in await one.events("s")].count("done") == 1


async def test_a_prompt_that_no_worker_can_run_is_refused(tmp_path: Path, database: str) -> None:
    (tmp_path / "one").mkdir()
    gone = tmp_path / "gone"
    gone.mkdir()
    async with (
        running(tmp_path / "one", store=seen_as(database, "one")) as one,
        working(tmp_path, database, "worker"),
    ):
        caller = await one.caller()
        await opened(caller, "s", gone)
        gone.rmdir()
        _, why = await caller.error("session/prompt", sessionId="s", prompt="!echo one")
        assert str(gone) in why
