"""Approvals in the daemon: the clients that get the request, whose answer counts, and their state after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from daemons import PATIENCE_S, Caller, Running, order, running

ASKS: dict[str, Any] = {"policy": ("bash=ask",)}


async def asked(daemon: Running, prompt: str = "!bash echo hi") -> tuple[Caller, int, str]:
    """Return a client whose prompt waits for a person: the id of the prompt, and that of the question."""
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    number = caller.call("session/prompt", sessionId="s", prompt=prompt)
    question = await caller.until(type="approval_request")
    assert (question["toolName"], question["argumentsSummary"] != "", question["timeoutSecs"] > 0) == (
        "bash",
        True,
        True,
    )
    return caller, number, question["requestId"]


def of_type(caller: Caller, name: str) -> list[dict[str, Any]]:
    return [one for one in caller.updates() if one["type"] == name]


async def test_an_allowed_call_runs(tmp_path: Path) -> None:
    async with running(tmp_path, **ASKS) as daemon:
        caller, number, request_id = await asked(daemon)
        assert (await caller.get("session/state", sessionId="s"))["state"] == "waiting_approval"
        approved = await caller.get("session/approve", sessionId="s", requestId=request_id, decision="allow_once")
        assert approved == {"sessionId": "s", "requestId": request_id, "acknowledged": True}
        await caller.answer(number)
        [result] = of_type(caller, "tool_result")
        assert not result["isError"]
        states = [(one.get("requestId"), one.get("decision")) for one in of_type(caller, "state")]
        assert states == [(None, None), (request_id, "allow_once")]


async def test_a_stopping_daemon_does_not_wait_for_open_approvals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zot.serve.daemon.lifecycle._OWED_S", 2 * PATIENCE_S)
    async with running(tmp_path, **ASKS) as daemon:
        caller, _, _ = await asked(daemon)
        async with asyncio.timeout(PATIENCE_S):
            await daemon.daemon.close()
        assert await caller.rest() == []


async def test_a_prompt_waiting_after_a_question_is_answered_when_the_daemon_stops(tmp_path: Path) -> None:
    async with running(tmp_path, **ASKS) as daemon:
        caller, _, _ = await asked(daemon)
        waits = caller.call("session/prompt", sessionId="s", prompt="!echo waits")
        assert (await caller.get("session/state", sessionId="s"))["queued"] == 1
        daemon.daemon.stop()
        assert (await caller.answer(waits))["error"]["code"] == -32005


async def test_a_prompt_waiting_after_a_turn_that_asks_while_the_daemon_stops_is_answered(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, **ASKS) as daemon:
        caller = await daemon.caller()
        await caller.get("session/new", agentAlias="default", sessionId="s")
        caller.call("session/prompt", sessionId="s", prompt='!script wait 300ms ;; call bash {"command":"echo hi"}')
        waits = caller.call("session/prompt", sessionId="s", prompt="!echo waits", promptId="w")
        await caller.until(type="state")
        daemon.daemon.stop(grace_s=2 * PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):  # It does not wait for a person.
            await daemon.daemon.close()
        assert order(await caller.rest())[-3:] == ["approval_request", "turn_complete", waits]
        assert caller.heard[-1]["error"]["code"] == -32005
        assert caller.updates()[-1]["promptId"] == "w"


async def test_a_stopping_daemon_waits_for_a_run_that_a_decision_continued(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, **ASKS) as daemon:
        goes_on = '!script call bash {"command":"echo hi"} ;; --- ;; wait 600ms ;; say done'
        caller, number, request_id = await asked(daemon, goes_on)
        other = await daemon.caller()
        await other.get("session/new", agentAlias="default", sessionId="other")
        other.call("session/prompt", sessionId="other", prompt="!script wait 300ms ;; say done")
        await other.until(type="state")
        daemon.daemon.stop(grace_s=PATIENCE_S)
        closing = asyncio.create_task(daemon.daemon.close())
        await caller.get("session/approve", sessionId="s", requestId=request_id, decision="allow_once")
        assert (await caller.answer(number))["result"]["content"] == "done"
        await closing


@pytest.mark.parametrize("decision", ["reject", "reject_once"])
async def test_a_rejected_call_does_not_run(tmp_path: Path, decision: str) -> None:
    async with running(tmp_path, **ASKS) as daemon:
        caller, number, request_id = await asked(daemon, "!bash touch ran")
        await caller.get("session/approve", sessionId="s", requestId=request_id, decision=decision)
        await caller.answer(number)
        [result] = of_type(caller, "tool_result")
        assert result["isError"]
        assert not (tmp_path / "ran").exists()


async def test_the_first_answer_counts_and_a_late_one_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, **ASKS) as daemon:
        caller, number, request_id = await asked(daemon)
        other = await daemon.caller()
        attached = await other.get("session/attach", sessionId="s")
        assert (attached["state"], attached["pendingApproval"]["requestId"]) == ("waiting_approval", request_id)
        assert (await other.until(type="approval_request"))["requestId"] == request_id
        await other.get("session/approve", sessionId="s", requestId=request_id, decision="allow_once")
        code, why = await caller.error("session/approve", sessionId="s", requestId=request_id, decision="reject")
        assert code == -32602
        assert request_id in why
        await caller.answer(number)
        assert [one["isError"] for one in of_type(caller, "tool_result")] == [False]
        assert (await caller.error("session/approve", sessionId="s", requestId="no", decision="reject"))[0] == -32602


async def test_a_question_waits_while_no_client_is_connected_and_is_shown_again(tmp_path: Path) -> None:
    async with running(tmp_path, **ASKS) as daemon:
        first, _, request_id = await asked(daemon)
        await first.close()
        caller = await daemon.caller()
        await caller.get("session/new", agentAlias="default", sessionId="s")
        assert (await caller.until(type="approval_request"))["requestId"] == request_id
        await caller.get("session/approve", sessionId="s", requestId=request_id, decision="allow_once")
        assert (await caller.until(type="turn_complete"))["outcome"] == "completed"
        numbers = [one["seq"] for one in caller.updates()]
        assert numbers == sorted(set(numbers))


async def test_a_question_outlives_the_daemon_and_its_answer_continues_the_run(tmp_path: Path) -> None:
    async with running(tmp_path, **ASKS) as daemon:
        first, number, request_id = await asked(daemon)
        before = first.updates()
        deadline = of_type(first, "approval_request")[0]["deadline"]
        del number
    async with running(tmp_path, **ASKS) as daemon:
        caller, other = await daemon.caller(), await daemon.caller()
        attached = await caller.get("session/attach", sessionId="s", after=0)
        assert attached["state"] == "waiting_approval"
        assert attached["pendingApproval"]["deadline"] == deadline
        assert (await caller.until(type="approval_request"))["requestId"] == request_id
        assert [one["seq"] for one in caller.updates()] == [one["seq"] for one in before]
        await other.get("session/attach", sessionId="s")
        assert (await other.until(type="approval_request"))["seq"] == before[-1]["seq"]
        await other.get("session/approve", sessionId="s", requestId=request_id, decision="allow_once")
        assert (await caller.until(type="turn_complete"))["outcome"] == "completed"
        assert [one["isError"] for one in of_type(caller, "tool_result")] == [False]


async def test_an_attaching_client_gets_the_sequence_number_of_the_open_question(tmp_path: Path) -> None:
    async with running(tmp_path, **ASKS) as daemon:
        caller, _, request_id = await asked(daemon)
        seq = of_type(caller, "approval_request")[0]["seq"]
        other = await daemon.caller()
        attached = await other.get("session/attach", sessionId="s", after=seq)
        assert (attached["state"], attached["askedSeq"]) == ("waiting_approval", seq)
        await other.get("session/approve", sessionId="s", requestId=request_id, decision="reject")
        await other.until(type="turn_complete")
        assert of_type(other, "approval_request") == []
        assert "askedSeq" not in await other.get("session/attach", sessionId="s")


async def test_a_client_that_connects_before_recovery_finished_is_asked_too(tmp_path: Path) -> None:
    async with running(tmp_path, **ASKS) as daemon:
        _, _, request_id = await asked(daemon)
    async with running(tmp_path, mends=False, **ASKS) as daemon:
        caller = await daemon.caller()
        attached = await caller.get("session/attach", sessionId="s")
        assert (attached["state"], attached["pendingApproval"]["requestId"]) == ("waiting_approval", request_id)
        await caller.get("session/approve", sessionId="s", requestId=request_id, decision="reject")
        assert (await caller.until(type="turn_complete"))["outcome"] == "completed"


async def test_a_cancel_ends_a_turn_that_waits_for_an_approval(tmp_path: Path) -> None:
    async with running(tmp_path, **ASKS) as daemon:
        caller, number, request_id = await asked(daemon)
        await caller.get("session/cancel", sessionId="s")
        assert (await caller.answer(number))["result"]["stopReason"] == "cancelled"
        assert [one["decision"] for one in of_type(caller, "state") if "decision" in one] == ["aborted"]
        assert (await caller.error("session/approve", sessionId="s", requestId=request_id, decision="reject"))[
            0
        ] == -32602
        assert (await caller.get("session/state", sessionId="s"))["state"] == "idle"


async def test_an_undecided_question_expires(tmp_path: Path) -> None:
    async with running(tmp_path, approval_timeout_s=0.05, **ASKS) as daemon:
        caller, number, request_id = await asked_briefly(daemon)
        await caller.answer(number)
        [answer] = [one for one in of_type(caller, "state") if "decision" in one]
        assert (answer["requestId"], answer["decision"]) == (request_id, "expired")
        assert [one["isError"] for one in of_type(caller, "tool_result")] == [True]


async def asked_briefly(daemon: Running) -> tuple[Caller, int, str]:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    number = caller.call("session/prompt", sessionId="s", prompt="!bash echo hi")
    return caller, number, (await caller.until(type="approval_request"))["requestId"]


async def test_an_always_allowed_call_is_not_asked_about_again(tmp_path: Path) -> None:
    async with running(tmp_path, **ASKS) as daemon:
        caller, number, request_id = await asked(daemon)
        await caller.get("session/approve", sessionId="s", requestId=request_id, decision="allow_always")
        await caller.answer(number)
        await caller.get("session/prompt", sessionId="s", prompt="!bash echo hi")
        assert len(of_type(caller, "approval_request")) == 1


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_revoked_approval_is_asked_for_again(tmp_path: Path, restarted: bool) -> None:
    async with running(tmp_path, **ASKS) as daemon:
        caller, number, request_id = await asked(daemon)
        await caller.get("session/approve", sessionId="s", requestId=request_id, decision="allow_always")
        await caller.answer(number)
        allowed = {"tool": "bash", "subject": "echo hi"}
        assert (await caller.get("session/allowed", sessionId="s"))["allowed"] == [allowed]
        await caller.get("session/forget", sessionId="s", **allowed)
        if not restarted:
            await asked_again(caller)
    if restarted:
        async with running(tmp_path, **ASKS) as daemon:
            caller = await daemon.caller()
            await caller.get("session/attach", sessionId="s")
            await asked_again(caller)


async def asked_again(caller: Caller) -> None:
    """See that the command needs an approval, and reject it."""
    assert (await caller.get("session/allowed", sessionId="s"))["allowed"] == []
    number = caller.call("session/prompt", sessionId="s", prompt="!bash echo hi")
    async with asyncio.timeout(PATIENCE_S):
        request_id = (await caller.until(type="approval_request"))["requestId"]
        await caller.get("session/approve", sessionId="s", requestId=request_id, decision="reject")
        await caller.answer(number)
