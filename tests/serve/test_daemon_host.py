"""Requests of the host protocol that a daemon answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from daemons import PATIENCE_S, running

ASKED: dict[str, Any] = {"request_id": "r1", "session_id": "chat", "prompt": "!echo hello"}


async def test_a_request_is_answered_as_the_host_would_and_again_only_until_it_got_out(tmp_path: Path) -> None:
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
async def test_what_is_no_request_is_refused(tmp_path: Path, params: dict[str, Any]) -> None:
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        assert (await caller.error("host/respond", **params))[0] == -32602


async def test_a_request_that_takes_too_long_is_answered_in_time(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        answer = await caller.get("host/respond", **{**ASKED, "prompt": "!stall", "timeout_ms": 200})
        assert (answer["response"]["ok"], answer["response"]["error_code"]) == (False, "TIMEOUT")


async def test_a_stop_answers_who_waits_and_waits_for_nobody_who_was_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        assert (await caller.get("host/respond", **ASKED))["code"] == 0  # We never say that it got out.
        number = caller.call("host/respond", **{**ASKED, "request_id": "r2", "session_id": "b", "prompt": "!stall"})
        behind = caller.call("host/respond", **{**ASKED, "request_id": "r3", "session_id": "b"})
        await caller.get("status")
        began = asyncio.get_running_loop().time()
        daemon.daemon.stop(grace_s=0)
        await daemon.daemon.close()
        assert asyncio.get_running_loop().time() - began < 5
        for one in (number, behind):
            answer = (await caller.answer(one))["result"]
            assert (answer["code"], answer["response"]["error_code"]) == (4, "INTERNAL")
            assert answer["response"]["error_message"] == "the daemon is stopping"
        assert await caller.rest() == []


async def test_a_request_that_runs_is_given_the_time_that_turns_are_and_a_new_one_is_for_somebody_else(
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
