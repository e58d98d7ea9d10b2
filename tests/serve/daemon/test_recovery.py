"""Recovery by the daemon of runs whose process died, whether or not their session was loaded."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from daemons import PATIENCE_S, Caller, Running, running
from forked import Forked, ForkServer
from harness import environment, read_some

ASKS = "!bash echo hi"


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as service:
        yield service


@pytest.fixture
def begin(tmp_path: Path, fork_server: ForkServer) -> Callable[[str], Forked]:
    """Return code that begins a prompt in the session in another process; it continues, or waits for an approval."""

    def begin(prompt: str) -> Forked:
        home = str(tmp_path)
        argv = ["rpc", "--provider", "lab", "--session", "s", "--policy", "bash=ask"]
        process = fork_server.fork(argv, tmp_path, environment({"HOME": home, "ZOT_HOME": home}))
        said, deadline = b"", time.monotonic() + PATIENCE_S
        for frame in ({"type": "hello", "features": ["approvals"]}, {"type": "prompt", "message": prompt}):
            process.stdin.write(json.dumps(frame).encode() + b"\n")
        process.stdin.flush()
        while (b"approval_request" if prompt == ASKS else b"text_delta") not in said:
            more = read_some(process.stdout.fileno(), deadline)
            assert more, said
            said += more
        return process

    return begin


@pytest.fixture
def leave(begin: Callable[[str], Forked]) -> Callable[[str], None]:
    """Return what does so, and lets that process die meanwhile."""
    return lambda prompt: die(begin(prompt))


def die(process: Forked) -> None:
    process.kill()
    process.wait(PATIENCE_S)
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


async def opened(daemon: Running, *, is_loaded: bool = True) -> Caller:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    if not is_loaded:
        await daemon.daemon.sessions.pool.let_go("s")
    return caller


@pytest.mark.parametrize("is_loaded", [True, False])
@pytest.mark.parametrize("method", ["attach", "state"])
async def test_a_question_of_a_dead_process_can_be_answered_by_a_client_that_attaches(
    daemon: Running, leave: Callable[[str], None], method: str, is_loaded: bool
) -> None:
    caller = await opened(daemon, is_loaded=is_loaded)
    await asyncio.to_thread(leave, ASKS)
    looked = await caller.get(f"session/{method}", sessionId="s")
    assert looked["state"] == "waiting_approval"
    request_id = looked["pendingApproval"]["requestId"]
    await caller.get("session/approve", sessionId="s", requestId=request_id, decision="allow_once")
    assert (await caller.until(type="turn_complete"))["outcome"] == "completed"
    [result] = [one for one in caller.updates() if one["type"] == "tool_result"]
    assert (result["name"], result["isError"]) == ("bash", False)


async def test_a_question_of_a_dead_process_can_be_answered_in_a_closed_session(
    daemon: Running, leave: Callable[[str], None]
) -> None:
    caller = await opened(daemon)
    await caller.get("session/close", sessionId="s")
    await asyncio.to_thread(leave, ASKS)
    looked = await caller.get("session/attach", sessionId="s")
    request_id = looked["pendingApproval"]["requestId"]
    await caller.get("session/approve", sessionId="s", requestId=request_id, decision="allow_once")
    assert (await caller.until(type="turn_complete"))["outcome"] == "completed"
    assert (await caller.error("session/prompt", sessionId="s", prompt="!echo hi"))[0] == -32000


async def test_a_prompt_waits_for_the_question_of_a_dead_process(daemon: Running, leave: Callable[[str], None]) -> None:
    caller = await opened(daemon)
    await asyncio.to_thread(leave, ASKS)
    prompted = caller.call("session/prompt", sessionId="s", prompt="!echo next")
    question = await caller.until(type="approval_request")
    state = await caller.get("session/state", sessionId="s")
    assert (state["state"], state["queued"]) == ("waiting_approval", 1)
    await caller.get("session/approve", sessionId="s", requestId=question["requestId"], decision="reject")
    assert (await caller.answer(prompted))["result"]["content"] == "next"
    outcomes = [one["outcome"] for one in caller.updates() if one["type"] == "turn_complete"]
    assert outcomes == ["completed", "completed"]


async def test_closing_a_session_leaves_the_question_of_a_dead_process_unchanged(
    daemon: Running, leave: Callable[[str], None]
) -> None:
    caller = await opened(daemon)
    await asyncio.to_thread(leave, ASKS)
    async with daemon.daemon.sessions.pool.use("s") as session:
        job = session.prompt("!echo next")
    await daemon.daemon.sessions.pool.let_go("s", parks=True)
    assert job.aborted
    assert (await caller.get("session/attach", sessionId="s"))["state"] == "waiting_approval"


@pytest.mark.parametrize("is_loaded", [True, False])
@pytest.mark.parametrize("method", ["cancel", "close", "kill"])
async def test_a_question_of_a_dead_process_can_be_ended(
    daemon: Running, leave: Callable[[str], None], method: str, is_loaded: bool
) -> None:
    caller, other = await opened(daemon, is_loaded=is_loaded), await daemon.caller()
    await other.get("session/attach", sessionId="s")
    await asyncio.to_thread(leave, ASKS)
    await caller.get(f"session/{method}", sessionId="s")
    assert (await other.until(type="turn_complete"))["outcome"] == "cancelled"
    [entry] = (await caller.get("session/list"))["sessions"]
    assert entry["state"] == "idle"
    [question] = [one for one in other.updates() if one["type"] == "approval_request"]
    verdict = {"requestId": question["requestId"], "decision": "allow_once"}
    if method != "cancel":
        assert (await caller.error("session/approve", sessionId="s", **verdict))[0] == -32000
        await caller.get("session/new", agentAlias="default", sessionId="s")
    assert (await caller.error("session/approve", sessionId="s", **verdict))[0] == -32602


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_a_question_of_another_process_is_shown_with_the_process_that_must_answer(
    daemon: Running, begin: Callable[[str], Forked], is_loaded: bool
) -> None:
    caller = await opened(daemon, is_loaded=is_loaded)
    process = await asyncio.to_thread(begin, ASKS)
    try:
        looked = [await caller.get(f"session/{method}", sessionId="s") for method in ("attach", "state")]
        assert [one["state"] for one in looked] == ["waiting_approval"] * 2
        [entry] = (await caller.get("session/list"))["sessions"]
        assert entry["state"] == "waiting_approval"
        verdict = {"requestId": looked[0]["pendingApproval"]["requestId"], "decision": "allow_once"}
        refusals = [
            await caller.error("session/approve", sessionId="s", **verdict),
            *[await caller.error(f"session/{method}", sessionId="s") for method in ("cancel", "close", "kill")],
        ]
        assert [code for code, _ in refusals] == [-32002] * 4
        assert all(f"is running in process {process.pid}" in why for _, why in refusals)
    finally:
        die(process)


@pytest.mark.parametrize("method", ["close", "kill"])
@pytest.mark.parametrize("is_loaded", [True, False])
async def test_a_dead_process_s_session_with_a_missing_directory_can_be_read_and_discarded(
    daemon: Running, leave: Callable[[str], None], tmp_path: Path, is_loaded: bool, method: str
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s", cwd=str(place))
    if not is_loaded:
        await daemon.daemon.sessions.pool.let_go("s")
    await asyncio.to_thread(leave, ASKS)
    place.rmdir()
    await daemon.daemon.sessions.pool.let_go("s", parks=True)
    assert (await caller.get("session/attach", sessionId="s"))["state"] == "waiting_approval"
    assert len((await caller.get("session/messages", sessionId="s"))["messages"]) == 2
    await caller.get(f"session/{method}", sessionId="s")


async def test_a_list_shows_the_question_of_a_dead_process(daemon: Running, leave: Callable[[str], None]) -> None:
    caller = await opened(daemon)
    await asyncio.to_thread(leave, ASKS)
    [entry] = (await caller.get("session/list"))["sessions"]
    assert entry["state"] == "waiting_approval"


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_a_subscriber_is_notified_that_the_running_process_died(
    daemon: Running, leave: Callable[[str], None], is_loaded: bool
) -> None:
    watching = asyncio.create_task(daemon.daemon.sessions.watch.run())
    caller = await opened(daemon, is_loaded=is_loaded)
    await asyncio.to_thread(leave, "!stall-mid")
    assert (await caller.until(type="turn_complete"))["outcome"] == "cancelled"
    await asyncio.to_thread(leave, ASKS)
    question = await caller.until(type="approval_request")
    async with asyncio.timeout(PATIENCE_S):
        while (session := daemon.daemon.sessions.pool.session("s")) is None or session.approvals.pending is None:
            await asyncio.sleep(0.01)
    [entry] = (await caller.get("session/list"))["sessions"]
    assert entry["state"] == "waiting_approval"
    await caller.get("session/approve", sessionId="s", requestId=question["requestId"], decision="allow_once")
    assert (await caller.until(type="turn_complete"))["outcome"] == "completed"
    watching.cancel()


async def test_a_dead_process_s_session_with_a_missing_agent_can_be_read(
    tmp_path: Path, leave: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    agents, policy = '[agents.default]\nprovider = "lab"\n', 'policy = ["bash=ask"]\n'
    for prompt, state, last in (
        (ASKS, "waiting_approval", "approval_request"),
        ("!stall-mid", "idle", "turn_complete"),
    ):
        (tmp_path / "config.toml").write_text(f'{agents}[agents.gone]\nprovider = "lab"\n{policy}')
        async with running(tmp_path) as daemon:
            caller = await daemon.caller()
            await caller.get("session/delete", sessionId="s")
            await caller.get("session/new", agentAlias="gone", sessionId="s")
        await asyncio.to_thread(leave, prompt)
        (tmp_path / "config.toml").write_text(agents)
        async with running(tmp_path) as daemon:
            caller = await daemon.caller()
            [entry] = (await caller.get("session/list"))["sessions"]
            attached = await caller.get("session/attach", sessionId="s", after=0)
            assert (entry["state"], attached["state"], "pendingApproval" in attached) == (state, state, state != "idle")
            await caller.until(type=last)
            assert (await caller.error("session/prompt", sessionId="s", prompt="!echo hi"))[0] == -32602
    told = [record for record in caplog.records if "could not be recovered" in record.message]
    assert [(record.levelname, record.exc_info) for record in told] == [("WARNING", None)] * 2
