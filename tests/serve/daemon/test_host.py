"""Requests of the host protocol that a daemon answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from daemons import PATIENCE_S, running

ASKED: dict[str, Any] = {"request_id": "r1", "session_id": "chat", "prompt": "!echo hello"}


async def test_a_request_is_answered_as_by_the_host_and_repeated_only_until_delivered(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        answer = await caller.get("host/respond", **ASKED)
        assert (answer["code"], answer["response"]["text"]) == (0, "hello")
        assert answer["response"]["request_id"] == "r1"
        assert await caller.get("host/delivered", requestId="r1") == {"noted": True}
        assert (await caller.error("host/delivered", requestId="r1"))[0] == -32602
        listed = (await caller.get("session/list"))["sessions"]
        assert [one["sessionId"] for one in listed] == ["host:chat"]


@pytest.mark.parametrize(
    "params",
    [{}, {"request_id": "r"}, {**ASKED, "prompt": " "}, {**ASKED, "type": "ping"}, {**ASKED, "protocol_version": 2}],
)
async def test_an_invalid_request_is_refused(tmp_path: Path, params: dict[str, Any]) -> None:
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        assert (await caller.error("host/respond", **params))[0] == -32602


async def test_a_slow_request_is_answered_at_its_deadline(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        answer = await caller.get("host/respond", **{**ASKED, "prompt": "!stall", "timeout_ms": 200})
        assert (answer["response"]["ok"], answer["response"]["error_code"]) == (False, "TIMEOUT")


async def test_a_stop_returns_waiting_requests_and_does_not_wait_for_answered_ones(tmp_path: Path) -> None:
    """A run that can continue elsewhere does; one that began without a key would be done twice."""
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        assert (await caller.get("host/respond", **ASKED))["code"] == 0  # We never say that it got out.
        asked = [
            {"session_id": "keyed", "prompt": "!stall", "idempotency_key": "k"},
            {"session_id": "keyed", "prompt": "!echo behind"},
            {"session_id": "keyed", "prompt": "!echo behind both", "idempotency_key": "l"},
            {"session_id": "plain", "prompt": "!stall"},
        ]
        numbers = [
            caller.call("host/respond", **{"request_id": f"q{n}", **params}) for n, params in enumerate(asked, 1)
        ]
        await until_asked(models=2)
        began = asyncio.get_running_loop().time()
        daemon.daemon.stop(grace_s=0)
        await daemon.daemon.close()
        assert asyncio.get_running_loop().time() - began < 5
        *given_back, plain = [await caller.answer(one) for one in numbers]
        assert [(one["error"]["code"], one["error"].get("data")) for one in given_back] == [
            (-32005, None),
            (-32005, {"ahead": 1}),
            (-32005, {"ahead": 2}),
        ]
        assert (plain["result"]["code"], plain["result"]["response"]["error_code"]) == (4, "INTERNAL")
        assert plain["result"]["response"]["error_message"] == "the daemon is stopping"
        assert await caller.rest() == []


async def until_asked(models: int) -> None:
    """Wait until this many model calls have begun."""
    async with asyncio.timeout(PATIENCE_S):
        while sum(task.get_name() == "zot run" for task in asyncio.all_tasks()) < models:
            await asyncio.sleep(0)


async def test_a_returned_request_keeps_its_place_even_if_it_comes_back_first(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        second = caller.call("host/respond", **{**ASKED, "prompt": "!echo second"}, ageMs=1000, ahead=1)
        await caller.get("status")
        first = {**ASKED, "request_id": "r0", "prompt": "!echo first"}
        assert (await caller.get("host/respond", **first, ageMs=2000))["response"]["text"] == "first"
        assert (await caller.answer(second))["result"]["response"]["text"] == "second"
        said = (await caller.get("session/messages", sessionId="host:chat"))["messages"]
        assert [one["content"] for one in said] == ["!echo first", "first", "!echo second", "second"]


async def test_a_running_request_gets_the_drain_time_of_turns_and_a_new_one_is_refused(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        runs = caller.call("host/respond", **{**ASKED, "prompt": "!script wait 100ms ;; say done"})
        await caller.get("status")
        daemon.daemon.stop(grace_s=PATIENCE_S)
        late = caller.call("host/respond", **{**ASKED, "request_id": "late"})
        closing = asyncio.create_task(daemon.daemon.close())
        assert (await caller.answer(late))["error"]["code"] == -32005
        assert (await caller.answer(runs))["result"]["response"]["text"] == "done"
        await closing
