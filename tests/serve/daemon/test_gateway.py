"""Gateways and workers: clients at any gateway, runs on any worker, sessions in PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from daemons import PATIENCE_S, Caller, Running, running
from zot.config.configured_agents import AgentConfigs
from zot.config.paths import DaemonPaths
from zot.events import TurnStart, UserMessage
from zot.fleet.pools import abandoned
from zot.fleet.status import status_of_fleet
from zot.journal.opening import open_journal
from zot.journal.postgres.doorbell import ROWS, Listener
from zot.journal.postgres.journal import PostgresJournal
from zot.messages import TextBlock, timestamp
from zot.runtime.shared import SharedResources
from zot.serve.daemon.audit import Audit
from zot.serve.daemon.daemon import DaemonParts
from zot.serve.daemon.logs import LogFile
from zot.serve.web.asgi import MetricsPage
from zot.serve.worker import FleetWorker


def seen_as(store: str, process: str) -> str:
    """Return an address that a process of its own would use: connections are shared by address."""
    return f"{store}&lease_s=1&application_name={process}"


@asynccontextmanager
async def working(home: Path, store: str, name: str, *, pool: str = "default", **flags: Any) -> AsyncIterator[None]:
    """Run a worker of a pool in this event loop, as `zot worker` does."""
    address = seen_as(store, name)
    place = DaemonPaths("", str(home), str(home), None)
    journal, resources = await open_journal(address), SharedResources(serves_many=True)
    assert isinstance(journal, PostgresJournal)
    audit = Audit(LogFile(str(home / f"{name}.log")), soon=asyncio.get_running_loop().call_soon)
    given = {"provider": "lab", "journal": address, **flags}
    parts = DaemonParts(
        place, AgentConfigs.load(str(home)), journal=journal, resources=resources, audit=audit, flags=given
    )
    parts.is_worker = True
    worker, stop = FleetWorker(parts, pool), asyncio.Event()
    task = asyncio.create_task(worker.run(concurrency=4, stop=stop, grace_s=0.1))
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, PATIENCE_S)
        await worker.sessions.close()
        await resources.close()
        await journal.close()
        audit.close()


async def opened(caller: Caller, session_id: str, cwd: Path) -> None:
    await caller.get("session/new", sessionId=session_id, agentAlias="default", cwd=str(cwd))


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


async def test_an_abort_right_after_the_prompt_ends_it_in_every_phase(tmp_path: Path, database: str) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "work").mkdir()
    async with (
        running(tmp_path / "one", store=seen_as(database, "one")) as one,
        working(tmp_path, database, "worker"),
    ):
        caller = await one.caller()
        for at in range(8):
            await opened(caller, f"s{at}", tmp_path / "work")
            number = caller.call("session/prompt", sessionId=f"s{at}", prompt="!stall")
            await asyncio.sleep(at * 0.01)  # In the queue, taken, being opened, begun.
            await caller.get("session/cancel", sessionId=f"s{at}")
            assert (await caller.answer(number))["result"]["stopReason"] == "cancelled"


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


async def test_a_gateway_ends_no_run_of_a_worker_that_is_gone(tmp_path: Path, database: str) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "work").mkdir()
    async with running(tmp_path / "one", store=seen_as(database, "one")) as one:
        caller = await one.caller()
        await opened(caller, "s", tmp_path / "work")
        record = await one.journal.record("s", create=False)
        await record.begin()
        record.append([UserMessage((TextBlock("hello"),), timestamp()), TurnStart(1)], run=1)
        await record.settled()
        record.end(parked=True)  # Its process ends here.
        async with asyncio.timeout(PATIENCE_S):
            while not await record.is_free():
                await asyncio.sleep(0.02)
        await one.daemon.sessions.pool.let_go("s")
        await caller.get("session/state", sessionId="s")
        await caller.get("session/attach", sessionId="s")
        assert [event["type"] for _, event in await one.events("s")] == ["user_message", "turn_start"]


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
        assert (await caller.answer(second))["result"]["stopReason"] == "cancelled"
        status = await one.journal.reading(status_of_fleet)
        assert (status.workers, status.sessions, status.leased, status.abandoned) == ((), 1, 0, 0)
        assert [(pool.name, pool.waiting, pool.running) for pool in status.pools] == [("default", 1, 0)]
        async with working(tmp_path, database, "worker"):
            assert (await caller.answer(first))["result"]["content"] == "one"
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


async def test_the_agent_decides_the_pool_else_the_directory(tmp_path: Path, database: str) -> None:
    for name in ("one", "work", "fast", "large", "big"):
        (tmp_path / name).mkdir()
    (tmp_path / "one" / "config.toml").write_text(
        f"[agents.default]\nmodel = 'lab'\n[agents.quick]\nmodel = 'lab'\npool = 'fast'\n"
        f"[fleet]\npools = {{ '{tmp_path}/big' = 'large' }}\n"
    )
    async with running(tmp_path / "one", store=seen_as(database, "one")) as one:
        caller = await one.caller()
        for session_id, agent, cwd in (("a", "quick", "big"), ("b", "default", "big"), ("c", "default", "work")):
            await caller.get("session/new", sessionId=session_id, agentAlias=agent, cwd=str(tmp_path / cwd))
        numbers = {name: caller.call("session/prompt", sessionId=name, prompt=f"!echo {name}") for name in "abc"}
        async with asyncio.timeout(PATIENCE_S):
            while len((status := await one.journal.reading(status_of_fleet)).pools) < 3:
                await asyncio.sleep(0.02)
        assert {pool.name: pool.waiting for pool in status.pools} == {"default": 1, "fast": 1, "large": 1}
        for pool, name in (("large", "b"), ("default", "c"), ("fast", "a")):
            async with working(tmp_path / "one", database, pool, pool=pool):
                assert (await caller.answer(numbers[name]))["result"]["content"] == name


async def test_a_worker_leaves_the_sessions_of_other_pools(tmp_path: Path, database: str) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "one" / "config.toml").write_text("[agents.default]\nmodel = 'lab'\npool = 'fast'\n")
    async with running(tmp_path / "one", store=seen_as(database, "one")) as one:
        caller = await one.caller()
        await opened(caller, "s", tmp_path / "work")
        async with working(tmp_path / "one", database, "first", pool="fast", policy=("bash=ask",)):
            number = caller.call("session/prompt", sessionId="s", prompt="!bash echo yes > done")
            request = await caller.until(type="approval_request")
        found = [await one.journal.writing(abandoned, pool) for pool in ("default", "fast")]
        assert found == [[], ["s"]]
        async with working(tmp_path / "one", database, "second", pool="fast", policy=("bash=ask",)):
            await caller.get("session/approve", sessionId="s", requestId=request["requestId"], decision="allow_once")
            assert (await caller.answer(number))["result"]["stopReason"] == "end_turn"


async def test_a_tenant_has_a_limit_of_waiting_prompts_and_of_sessions_that_run(tmp_path: Path, database: str) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "one" / "config.toml").write_text("[fleet]\nprompts_waiting = 3\nruns = 2\n")
    async with running(tmp_path / "one", store=seen_as(database, "one")) as one:
        caller = await one.caller()
        for session_id in "abc":
            await opened(caller, session_id, tmp_path / "work")
        waiting = []
        for count, session_id in enumerate("aab", 1):
            waiting.append(caller.call("session/prompt", sessionId=session_id, prompt="!echo done"))
            async with asyncio.timeout(PATIENCE_S):
                while sum(pool.waiting for pool in (await one.journal.reading(status_of_fleet)).pools) < count:
                    await asyncio.sleep(0.02)
            if count == 2:
                await caller.get("session/cancel", sessionId="a")  # One of them is withdrawn.
                waiting.append(caller.call("session/prompt", sessionId="a", prompt="!echo done"))
                async with asyncio.timeout(PATIENCE_S):
                    while sum(pool.waiting for pool in (await one.journal.reading(status_of_fleet)).pools) < count:
                        await asyncio.sleep(0.02)
        code, why = await caller.error("session/prompt", sessionId="a", prompt="!echo more")
        assert (code, "3 prompts waiting" in why, "session/take_back" in why) == (-32002, True, True), why
        await caller.get("session/cancel", sessionId="a")
        code, why = await caller.error("session/prompt", sessionId="c", prompt="!echo more")
        assert (code, "in 2 sessions" in why, "session/cancel" in why) == (-32002, True, True), why
        async with working(tmp_path / "one", database, "worker"):
            ends = [(await caller.answer(number))["result"]["stopReason"] for number in waiting]
            assert sorted(ends) == ["cancelled", "cancelled", "end_turn", "end_turn"]
            answer = await caller.get("session/prompt", sessionId="c", prompt="!echo done")
            assert answer["content"] == "done"


async def test_the_metrics_of_a_gateway_have_its_fleet(tmp_path: Path, database: str) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "work").mkdir()
    async with running(tmp_path / "one", store=seen_as(database, "one")) as one:
        caller = await one.caller()
        await opened(caller, "s", tmp_path / "work")
        number = caller.call("session/prompt", sessionId="s", prompt="!echo one")
        async with asyncio.timeout(PATIENCE_S):
            while 'zot_fleet_prompts_waiting{pool="default"} 1' not in await metrics(one):
                await asyncio.sleep(0.02)
        text = await metrics(one)
        assert "\nzot_fleet_workers 0\n" in text
        assert "\nzot_fleet_sessions 1\n" in text
        assert "\nzot_fleet_leases 0\n" in text
        age = next(line for line in text.split("\n") if line.startswith("zot_fleet_prompt_age_seconds{"))
        assert float(age.split()[-1]) > 0
        async with working(tmp_path, database, "worker"):
            await caller.answer(number)
            assert "\nzot_fleet_workers 1\n" in await metrics(one)


async def test_the_next_prompt_of_a_session_begins_without_a_poll(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zot.fleet.prompt_queue._POLL_S", 3600.0)
    (tmp_path / "one").mkdir()
    (tmp_path / "work").mkdir()
    async with (
        running(tmp_path / "one", store=seen_as(database, "one")) as one,
        working(tmp_path, database, "worker"),
    ):
        caller = await one.caller()
        await opened(caller, "s", tmp_path / "work")
        numbers = [caller.call("session/prompt", sessionId="s", prompt=f"!echo {at}") for at in range(3)]
        assert [(await caller.answer(number))["result"]["content"] for number in numbers] == ["0", "1", "2"]


async def test_thousands_of_deltas_need_few_notifications(tmp_path: Path, database: str) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "work").mkdir()
    rings: list[float] = []
    async with (
        running(tmp_path / "one", store=seen_as(database, "one")) as one,
        working(tmp_path, database, "worker"),
    ):
        assert isinstance(one.journal, PostgresJournal)
        caller = await one.caller()
        await opened(caller, "s", tmp_path / "work")
        heard = Listener(one.journal.address, ROWS, lambda message: rings.append(time.monotonic()))
        try:
            await caller.get("session/prompt", sessionId="s", prompt="!flood 5000")
        finally:
            await asyncio.to_thread(heard.close)
        chunks = [one for one in caller.updates("s") if one["type"] == "agent_message_chunk"]
        assert len(chunks) > 4500, len(chunks)
        # At most one in 10 ms from each of the two processes.
        assert len(rings) <= 200 * (rings[-1] - rings[0]) + 10


async def metrics(gateway: Running) -> str:
    """Return the page /metrics of a gateway."""
    body: list[bytes] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        body.append(message.get("body", b""))

    await MetricsPage(gateway.daemon)({"type": "http", "method": "GET", "headers": []}, receive, send)
    return b"".join(body).decode()
