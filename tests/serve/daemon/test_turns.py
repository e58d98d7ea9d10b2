"""Turns over the daemon's socket: their updates, in order, and their ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from daemons import PATIENCE_S, Caller, Frame, Running, order, request, running
from reference_cycles import left_over
from zot.events import Done
from zot.session.history import Batch, Subscriber

USED = {"input": 100, "output": 20, "cacheRead": 0, "cacheWrite": 0, "costUsd": 0.0, "reasoning": 0}


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as service:
        yield service


def numbers(frames: list[Frame]) -> list[int]:
    return [frame["params"]["seq"] for frame in frames if "seq" in frame.get("params", {})]


def assert_in_order(caller: Caller) -> None:
    seen = numbers(caller.heard)
    assert seen == sorted(set(seen))


async def test_a_turn_is_sent_in_order_and_answered_right_after_its_end(daemon: Running) -> None:
    caller = await daemon.caller()
    opened = await caller.get("session/new", agentAlias="default", sessionId="s")
    assert caller.updates() == []
    del opened["workspaceDir"], opened["lastSeq"], opened["epoch"]
    assert opened == {"sessionId": "s", "agentAlias": "default", "messageCount": 0}
    caller.heard.clear()
    answer = await caller.ask("session/prompt", sessionId="s", prompt="!say 2 Hello")
    assert answer["result"] == {"sessionId": "s", "stopReason": "end_turn", "content": "Hello", "usage": USED}
    for update in caller.updates():
        assert (update.pop("sessionId"), update.pop("seq") > 0) == ("s", True)
    assert [frame["params"] for frame in caller.heard[:-1]] == [
        {"type": "state", "state": "running", "prompt": "!say 2 Hello"},
        {"type": "agent_message_chunk", "text": "Hel"},
        {"type": "agent_message_chunk", "text": "lo"},
        {"type": "usage", **USED, "cumulative": USED},
        {"type": "turn_complete", "outcome": "completed", "content": "Hello", "stopReason": "end_turn"},
    ]


async def test_a_turn_leaves_nothing_for_the_garbage_collector(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    await caller.get("session/prompt", sessionId="s", prompt="!bash true")  # Objects made once may stay.
    with left_over() as found:
        await caller.get("session/prompt", sessionId="s", prompt="!bash true")
    assert found == []


async def test_tools_are_called_and_their_results_sent(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    await caller.get("session/prompt", sessionId="s", prompt="!bash echo hi")
    [call] = [one for one in caller.updates() if one["type"] == "tool_call"]
    [result] = [one for one in caller.updates() if one["type"] == "tool_result"]
    assert (call["name"], call["rawInput"]) == ("bash", {"command": "echo hi"})
    assert (result["toolCallId"], result["name"], result["isError"]) == (call["toolCallId"], "bash", False)
    assert "\nhi\n" in result["rawOutput"]
    assert_in_order(caller)


async def test_a_prompt_too_large_for_the_window_fails_and_is_not_kept(tmp_path: Path) -> None:
    async with running(tmp_path, policy=("bash=ask",)) as daemon:
        caller = await daemon.caller()
        await caller.get("session/new", agentAlias="default", sessionId="s")
        too_long = f"!script status 413 ;; repeat ;; # {'x ' * 390_000}"
        code, why = await caller.error("session/prompt", sessionId="s", prompt=too_long)
        assert (code, why.partition(":")[0]) == (-32603, "context exhausted")
        assert (await caller.get("session/prompt", sessionId="s", prompt="!echo one"))["content"] == "one"
        prompted = caller.call("session/prompt", sessionId="s", prompt="!bash sleep 20")
        request_id = (await caller.until(type="approval_request"))["requestId"]
        caller.call("session/steer", sessionId="s", prompt=too_long)
        caller.call("session/approve", sessionId="s", requestId=request_id, decision="reject_once")
        assert "error" in await caller.answer(prompted)
        assert (await caller.get("session/prompt", sessionId="s", prompt="!echo two"))["content"] == "two"
        said = (await caller.get("session/messages", sessionId="s"))["messages"]
        assert [one["content"] for one in said if one["role"] == "user"] == ["!echo one", "!bash sleep 20", "!echo two"]


async def test_prompts_of_one_session_wait_for_each_other(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    caller.heard.clear()
    caller.write(*(request("session/prompt", n, {"sessionId": "s", "prompt": f"!echo {n}"}) for n in "abc"))
    await caller.answer("c")
    turn = ["state", "agent_message_chunk", "usage", "turn_complete"]
    assert order(caller.heard) == [*turn, "a", *turn, "b", *turn, "c"]
    assert [one["content"] for one in caller.updates() if one["type"] == "turn_complete"] == ["a", "b", "c"]


async def test_more_than_32_waiting_prompts_are_refused_and_the_others_run(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    prompts = [request("session/prompt", n, {"sessionId": "s", "prompt": f"!echo {n}"}) for n in range(1, 35)]
    caller.write(request("session/prompt", 0, {"sessionId": "s", "prompt": "!stall"}), *prompts)
    refused = [await caller.answer(33), await caller.answer(34)]
    assert [one["error"]["code"] for one in refused] == [-32002, -32002]
    caller.write(request("session/cancel", "stop", {"sessionId": "s"}))
    await caller.answer(32)
    answers = {one["id"]: one["result"]["content"] for one in caller.heard if "stopReason" in one.get("result", {})}
    assert answers == {0: "", **{n: str(n) for n in range(1, 33)}}


async def test_a_cancel_right_after_a_prompt_ends_that_prompt(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    caller.write(
        request("session/prompt", "p", {"sessionId": "s", "prompt": "!stall"}),
        request("session/cancel", "c", {"sessionId": "s"}),
    )
    answer = await caller.answer("p")
    assert {"result": {"sessionId": "s", "cancelled": True}, "id": "c", "jsonrpc": "2.0"} in caller.heard
    assert (answer["result"]["stopReason"], answer["result"]["content"]) == ("cancelled", "")
    assert (caller.updates()[-1]["type"], caller.updates()[-1]["outcome"]) == ("turn_complete", "cancelled")


async def test_a_cancel_after_a_clear_and_a_prompt_in_one_write_ends_that_prompt(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    caller.write(
        request("session/clear", "clear", {"sessionId": "s"}),
        request("session/prompt", "p", {"sessionId": "s", "prompt": "!stall"}),
        request("session/prompt", "next", {"sessionId": "s", "prompt": "!echo next"}),
        request("session/clear", "late", {"sessionId": "s"}),
        request("session/cancel", "c", {"sessionId": "s"}),
    )
    answer = await caller.answer("p")
    cancelled, refused = (next(one for one in caller.heard if one.get("id") == number) for number in ("c", "late"))
    assert cancelled["result"] == {"sessionId": "s", "cancelled": True}
    assert refused["error"]["code"] == -32002
    assert (answer["result"]["stopReason"], answer["result"]["content"]) == ("cancelled", "")
    assert (caller.updates()[0]["prompt"], caller.updates()[-1]["outcome"]) == ("!stall", "cancelled")
    assert (await caller.answer("next"))["result"]["content"] == "next"


async def test_a_client_s_prompt_id_is_sent_where_its_turn_begins_and_ends(daemon: Running) -> None:
    caller, other = await daemon.caller(), await daemon.caller(protocol_version=1)
    for one in (caller, other):
        await one.get("session/new", agentAlias="default", sessionId="s")
    first = caller.call("session/prompt", sessionId="s", prompt="!stall", promptId="a")
    await caller.until(type="state")
    second = caller.call("session/prompt", sessionId="s", prompt="!stall", promptId="b")
    await caller.get("session/cancel", sessionId="s")
    await caller.answer(first)
    await caller.until(type="state")
    await caller.get("session/cancel", sessionId="s")
    await caller.answer(second)
    await caller.get("session/prompt", sessionId="s", prompt="!echo mine")
    told = [one.get("promptId") for one in caller.updates() if one["type"] in ("state", "turn_complete")]
    assert told == ["a", "a", "b", "b", None, None]
    await other.get("session/state", session_id="s")
    assert [one.get("prompt_id") for one in other.updates() if one["type"] in ("state", "turn_complete")] == told
    assert (await caller.error("session/prompt", sessionId="s", prompt="x", promptId="x" * 201))[0] == -32602


async def test_a_prompt_sent_as_a_notification_that_never_begins_is_named_to_its_sender(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    caller.tell("session/prompt", sessionId="s", prompt="", promptId="empty")
    assert (await caller.until(type="turn_complete"))["promptId"] == "empty"


async def test_a_client_that_asked_for_it_is_notified_when_the_daemon_begins_to_stop(daemon: Running) -> None:
    curious, other = await daemon.caller(features=["stopping"]), await daemon.caller()
    daemon.daemon.stop()
    daemon.daemon.stop()
    closing = asyncio.create_task(daemon.daemon.close())
    assert await curious.rest() == [{"jsonrpc": "2.0", "method": "daemon/stopping", "params": {}}]
    assert await other.rest() == []
    await closing


async def test_a_stopping_daemon_begins_nothing_and_says_so(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    await caller.get("session/new", agentAlias="default", sessionId="other")
    runs = caller.call("session/prompt", sessionId="s", prompt="!script wait 100ms ;; say done")
    waits = caller.call("session/prompt", sessionId="s", prompt="!echo waits", promptId="w")
    caller.tell("session/prompt", sessionId="s", prompt="!echo waits, too", promptId="quiet")
    await caller.until(type="state")
    daemon.daemon.stop(grace_s=5)
    late = caller.call("session/prompt", sessionId="other", prompt="!echo late")
    steers = caller.call("session/steer", sessionId="s", prompt="quick")
    closing = asyncio.create_task(daemon.daemon.close())
    assert (await caller.answer(runs))["result"]["content"] == "done"
    assert (await caller.until(type="turn_complete", promptId="quiet"))["outcome"] == "failed"
    await closing
    await caller.rest()
    refused = {one["id"]: one["error"] for one in caller.heard if "error" in one}
    why = {"code": -32005, "message": "the daemon is stopping, so this did not begin; send it to the next daemon"}
    assert refused == {waits: why, late: why, steers: why}
    told = caller.heard[[one.get("id") for one in caller.heard].index(waits) - 1]["params"]  # Right before its answer.
    assert (told["type"], told.get("promptId"), told["outcome"]) == ("turn_complete", "w", "failed")
    assert [frame["content"] for _, frame in await daemon.events("s") if frame["type"] == "user_message"] == [
        [{"type": "text", "text": "!script wait 100ms ;; say done"}]
    ]


async def test_prompts_waiting_in_a_closed_session_are_withdrawn_after_the_running_turn(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    caller.write(
        request("session/prompt", "a", {"sessionId": "s", "prompt": "!stall", "promptId": "A"}),
        request("session/prompt", "b", {"sessionId": "s", "prompt": "!echo b", "promptId": "B"}),
        request("session/prompt", "c", {"sessionId": "s", "prompt": "!echo c", "promptId": "C"}),
    )
    await caller.until(type="state")
    caller.heard.clear()
    caller.write(request("session/close", "x", {"sessionId": "s"}))
    await caller.answer("x")
    told = [one.get("id") or one["params"].get("promptId") for one in caller.heard]
    assert told == ["A", "a", "B", "b", "C", "c", "x"]
    assert {one["params"]["outcome"] for one in caller.heard if "params" in one} == {"cancelled"}


async def test_a_stopping_daemon_answers_replaying_clients_before_its_goodbye(
    daemon: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zot.serve.daemon.lifecycle._OWED_S", PATIENCE_S)
    caller, late = await daemon.caller(), await daemon.stranger(limit=1 << 14)
    await caller.get("session/new", agentAlias="default", sessionId="s")
    await caller.get("session/prompt", sessionId="s", prompt="!say 9000 " + 9000 * "x")
    await late.get("initialize")
    await late.get("session/attach", sessionId="s", after=0)
    runs = late.call("session/prompt", sessionId="s", prompt="!stall")
    await caller.until(type="state", prompt="!stall")
    daemon.daemon.stop(grace_s=0)
    closing = asyncio.create_task(daemon.daemon.close())
    await caller.until(type="turn_complete", outcome="cancelled")
    async with asyncio.timeout(PATIENCE_S):
        while daemon.daemon.sessions.pool.ending("s") is not None:
            await asyncio.sleep(0)
    assert (await late.answer(runs))["result"]["stopReason"] == "cancelled"
    assert_in_order(late)
    await closing


@contextmanager
def busy_disk(daemon: Running) -> Iterator[None]:
    """Delay the disk until this is set: prompts do not begin meanwhile."""
    is_free = threading.Event()
    daemon.journal.writer.run(lambda _: is_free.wait(PATIENCE_S))
    try:
        yield
    finally:
        is_free.set()


async def test_a_prompt_cancelled_while_the_daemon_stops_is_not_left_to_the_next_one(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    with busy_disk(daemon):
        asked = caller.call("session/prompt", sessionId="s", prompt="!echo never")
        assert (await caller.get("session/state", sessionId="s"))["state"] == "running"
        daemon.daemon.stop(grace_s=PATIENCE_S)
        await caller.get("session/cancel", sessionId="s")
        assert (await caller.answer(asked))["result"]["stopReason"] == "cancelled"
    assert await daemon.events("s") == []


async def test_a_prompt_not_begun_when_the_daemon_ends_is_left_to_the_next_one(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    with busy_disk(daemon):
        asked = caller.call("session/prompt", sessionId="s", prompt="!echo never")
        assert (await caller.get("session/state", sessionId="s"))["state"] == "running"
        daemon.daemon.stop(grace_s=0)
        closing = asyncio.create_task(daemon.daemon.close())
        assert (await caller.answer(asked))["error"]["code"] == -32005
    await closing
    assert await daemon.events("s") == []


async def test_a_client_replaying_a_session_is_answered_when_it_is_deleted(daemon: Running) -> None:
    caller, late = await daemon.caller(), await daemon.stranger(limit=1 << 14)
    await caller.get("session/new", agentAlias="default", sessionId="s")
    await caller.get("session/prompt", sessionId="s", prompt="!say 9000 " + 9000 * "x")
    await late.get("initialize")
    await late.get("session/attach", sessionId="s", after=0)
    runs = late.call("session/prompt", sessionId="s", prompt="!stall")
    await caller.until(type="state", prompt="!stall")
    await caller.get("session/delete", sessionId="s")
    assert (await late.answer(runs))["result"]["stopReason"] == "cancelled"


class AtTheEnd(Subscriber):
    """Subscribes to a session, and acts at the moment when a run ends."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def deliver(self, batch: Batch) -> None:
        if isinstance(batch.events[-1], Done):
            self._act()


async def test_waiting_prompts_are_answered_even_if_dropped_at_the_moment_a_turn_ends(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    session = daemon.daemon.sessions.pool.session("s")
    assert session is not None
    caller.write(
        request("session/prompt", "runs", {"sessionId": "s", "prompt": "!script wait 50ms ;; say done"}),
        request("session/prompt", "waits", {"sessionId": "s", "prompt": "!echo never"}),
    )
    await caller.until(type="state")
    session.history.subscribe(AtTheEnd(daemon.daemon.stop))
    assert (await caller.answer("runs"))["result"]["content"] == "done"
    assert (await caller.answer("waits"))["error"]["code"] == -32005


async def test_a_cancelled_turn_returns_the_text_so_far(daemon: Running) -> None:
    caller, other = await daemon.caller(), await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    asked = caller.call("session/prompt", sessionId="s", prompt='!script say "so far" ;; stall')
    await caller.until(type="agent_message_chunk")
    assert await other.get("session/cancel", sessionId="s") == {"sessionId": "s", "cancelled": True}
    answer = (await caller.answer(asked))["result"]
    assert (answer["stopReason"], answer["content"]) == ("cancelled", "so far")
    ended = caller.updates()[-1]
    assert (ended["outcome"], ended["stopReason"], ended["content"]) == ("cancelled", "cancelled", "so far")
    assert await other.error("session/cancel", sessionId="s") == (-32000, "No active turn for this session")


async def test_a_failed_turn_is_an_error_with_the_text_so_far(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    answer = await caller.ask("session/prompt", sessionId="s", prompt="!status 400")
    ended = caller.updates()[-1]
    problem = answer["error"]
    assert (problem["code"], problem["data"]["stopReason"], problem["data"]["content"]) == (-32603, "error", "")
    assert (ended["type"], ended["outcome"], ended["stopReason"]) == ("turn_complete", "failed", "error")
    assert ended["content"] == ended["error"] == problem["message"]


@pytest.mark.parametrize(
    "params",
    [
        {"sessionId": "nobody", "prompt": "hello"},
        {"sessionId": "s", "prompt": ""},
        {"sessionId": "s", "prompt": "see", "attachments": [{"path": "relative.txt"}]},
        {"sessionId": "s", "prompt": "see", "attachments": "many"},
        {"sessionId": "s", "prompt": 7},
    ],
    ids=["no session", "no words", "bad attachment", "no list", "no text"],
)
async def test_a_prompt_without_an_answer_still_ends(daemon: Running, params: Frame) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    caller.heard.clear()
    caller.tell("session/prompt", **params)
    ended = await caller.until(type="turn_complete")
    assert (ended["sessionId"], ended["outcome"]) == (params["sessionId"], "failed")
    assert ended["content"] == ended["error"] != ""
    assert len(caller.heard) == 1


async def test_a_prompt_as_a_notification_runs_and_ends_with_turn_complete(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    caller.heard.clear()
    caller.tell("session/prompt", sessionId="s", prompt="!echo Hello")
    await caller.until(type="turn_complete", content="Hello")
    assert order(caller.heard) == ["state", "agent_message_chunk", "usage", "turn_complete"]
    assert (await caller.get("session/state", sessionId="s"))["state"] == "idle"


async def test_all_subscribers_get_the_same_updates(daemon: Running) -> None:
    first, second, third = [await daemon.caller() for _ in range(3)]
    await first.get("session/new", agentAlias="default", sessionId="s")
    await second.get("session/attach", sessionId="s")
    await first.get("session/prompt", sessionId="s", prompt="!say 3 abc")
    await second.until(type="turn_complete")
    assert second.updates() == first.updates()
    await third.get("session/prompt", sessionId="s", prompt="!echo more")
    await first.until(type="turn_complete")
    assert third.updates() == first.updates()[-len(third.updates()) :]
    await second.get("session/detach", sessionId="s")
    heard = len(second.updates())
    await third.get("session/prompt", sessionId="s", prompt="!echo last")
    await second.get("status")
    assert len(second.updates()) == heard


async def test_a_turn_outlives_its_client(daemon: Running) -> None:
    first, second = await daemon.caller(), await daemon.caller()
    await first.get("session/new", agentAlias="default", sessionId="s")
    await second.get("session/attach", sessionId="s")
    first.call("session/prompt", sessionId="s", prompt='!script wait 100ms ;; say "still here"')
    await first.until(type="state")
    await first.close()
    assert (await second.until(type="turn_complete"))["content"] == "still here"


async def test_the_summary_of_a_compaction_is_a_turn(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    for number in range(6):
        await caller.get("session/prompt", sessionId="s", prompt=f"!echo {number}")
    compacted = await caller.get("session/compact", sessionId="s")
    ended = caller.updates()[-1]
    assert (ended["type"], ended["content"]) == ("turn_complete", compacted["summary"])
    assert compacted["summary"] != ""


async def test_a_steering_message_can_be_withdrawn_until_it_is_sent(daemon: Running) -> None:
    caller, other = await daemon.caller(), await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    asked = caller.call("session/prompt", sessionId="s", prompt="!stall", promptId="first")
    await caller.until(type="state")
    steers = caller.call("session/steer", sessionId="s", prompt="to the left", promptId="left")
    waits = caller.call("session/prompt", sessionId="s", prompt="!echo later", promptId="later")
    await caller.get("session/state", sessionId="s")
    taken = await other.get("session/take_back", sessionId="s", promptId="left")
    assert taken == {"sessionId": "s", "promptId": "left", "takenBack": True}
    assert (await caller.answer(steers))["error"]["message"] == "withdrawn before it was sent"
    await other.get("session/take_back", sessionId="s", promptId="later")
    for too_late in ("first", "left", "never heard of", ""):
        code, why = await other.error("session/take_back", sessionId="s", promptId=too_late)
        assert (code, "cannot be withdrawn" in why) == (-32602, True)
    await other.get("session/cancel", sessionId="s")
    for number in (asked, waits):
        assert (await caller.answer(number))["result"]["stopReason"] == "cancelled"
    prompts = [one["prompt"] for one in caller.updates() if one["type"] == "state"]
    assert prompts == ["!stall"]


async def test_a_steering_message_reaches_the_running_turn(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    script = '!script wait 100ms ;; call bash {"command":"true"} ;; --- ;; say "done"'
    asked = caller.call("session/prompt", sessionId="s", prompt=script)
    await caller.until(type="state")
    steered = await caller.ask("session/steer", sessionId="s", prompt="be brief")
    assert steered["result"] == {"sessionId": "s", "accepted": True}
    await caller.answer(asked)
    prompts = [one["prompt"] for one in caller.updates() if one["type"] == "state"]
    assert prompts == [script, "be brief"]
    assert [one["type"] for one in caller.updates()].count("turn_complete") == 1
