"""Notifications about sessions that a client does not follow: changes at once, the queue, and the window's content."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from daemons import PATIENCE_S, Caller, Running, running

from .test_elsewhere import say_elsewhere


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, policy=("bash=ask",)) as service:
        watching = asyncio.create_task(service.daemon.sessions.watch.run())
        yield service
        watching.cancel()


async def begun(daemon: Running) -> tuple[Caller, Caller]:
    """Return the client of a session, and one that watches."""
    owner, watcher = await daemon.caller(), await daemon.caller()
    await owner.get("session/new", agentAlias="default", sessionId="s")
    assert await watcher.get("sessions/watch") == {"watching": True}
    return owner, watcher


def changes(caller: Caller) -> list[dict[str, Any]]:
    return [one["params"] for one in caller.heard if one.get("method") == "sessions/changed"]


async def test_a_watching_client_learns_of_each_step_of_a_session_that_it_does_not_follow(daemon: Running) -> None:
    owner, watcher = await begun(daemon)
    run = owner.call("session/prompt", sessionId="s", prompt="!bash true")
    await watcher.until(sessionId="s", state="waiting_approval")
    pending = (await watcher.get("session/state", sessionId="s"))["pendingApproval"]["requestId"]
    await watcher.get("session/approve", sessionId="s", requestId=pending, decision="allow_once")
    await watcher.until(sessionId="s", state="idle")
    await owner.answer(run)
    states = [one["state"] for one in changes(watcher)]
    assert [now for before, now in zip(["", *states], states, strict=False) if now != before] == [
        "running", "waiting_approval", "running", "idle",
    ]  # fmt: skip
    assert watcher.updates() == []
    assert changes(owner) == []


async def test_a_watching_client_spells_as_it_does_everywhere(daemon: Running) -> None:
    watcher = await daemon.caller(protocol_version=1)
    await watcher.get("sessions/watch")
    owner = await daemon.caller()
    await owner.get("session/new", agentAlias="default", sessionId="s")
    await owner.get("session/prompt", sessionId="s", prompt="!echo hi")
    assert await watcher.until(state="idle") == {"session_id": "s", "state": "idle"}


async def test_a_run_in_another_process_is_a_change(daemon: Running, tmp_path: Path) -> None:
    _, watcher = await begun(daemon)
    saying = asyncio.create_task(say_elsewhere(tmp_path, "there", "!slow 300 0.01"))
    await watcher.until(sessionId="there", state="running")
    await watcher.until(sessionId="there", state="idle")
    await saying


async def test_a_run_here_is_not_ended_by_one_that_was_elsewhere(daemon: Running) -> None:
    owner, watcher = await begun(daemon)
    daemon.daemon.sessions.watchers.note_elsewhere(["s"])
    run = owner.call("session/prompt", sessionId="s", prompt="!bash true")
    await watcher.until(sessionId="s", state="waiting_approval")
    daemon.daemon.sessions.watchers.note_elsewhere([])
    await watcher.get("status")
    assert changes(watcher)[-1]["state"] == "waiting_approval"
    await owner.get("session/cancel", sessionId="s")
    await owner.answer(run)


async def test_a_client_that_left_is_notified_no_more(daemon: Running) -> None:
    owner, watcher = await begun(daemon)
    await watcher.close()
    await owner.get("session/prompt", sessionId="s", prompt="!echo hi")
    async with asyncio.timeout(PATIENCE_S):
        while len(daemon.daemon.connections) > 1:
            await asyncio.sleep(0)
    assert not daemon.daemon.sessions.watchers


async def test_the_state_has_the_first_lines_of_waiting_prompts(daemon: Running) -> None:
    owner, watcher = await begun(daemon)
    owner.call("session/prompt", sessionId="s", prompt="!script say Hello ;; stall")
    await owner.until(type="agent_message_chunk")
    assert "queue" not in await watcher.get("session/state", sessionId="s")
    owner.call("session/prompt", sessionId="s", promptId="later", prompt=f"\n  {'x' * 300}\nsecret second line")
    owner.call("session/steer", sessionId="s", promptId="now", prompt="turn left")
    state: dict[str, Any] = {}
    async with asyncio.timeout(PATIENCE_S):
        while len(state.get("queue", ())) < 2:
            state = await watcher.get("session/state", sessionId="s")
    assert state["queue"] == [
        {"promptId": "now", "text": "turn left", "steers": True, "by": ""},
        {"promptId": "later", "text": f"{'x' * 200}…", "steers": False, "by": ""},
    ]
    before = len(changes(watcher))
    await watcher.get("session/take_back", sessionId="s", promptId="later")
    assert len(changes(watcher)) == before + 1
    assert [one["promptId"] for one in (await watcher.get("session/state", sessionId="s"))["queue"]] == ["now"]
    await owner.get("session/cancel", sessionId="s")


async def test_the_parts_of_the_context_are_the_whole(daemon: Running) -> None:
    owner, watcher = await begun(daemon)
    empty = await watcher.get("session/context", sessionId="s")
    assert min(empty["system"], empty["tools"]) > 0
    assert (empty["messages"], empty["results"]) == (0, 0)
    await owner.get("session/prompt", sessionId="s", prompt="!echo " + "word " * 2000)
    spoken = await watcher.get("session/context", sessionId="s")
    assert spoken["messages"] > spoken["results"] == 0
    Path("long.txt").write_text("line\n" * 1000)
    await owner.get("session/prompt", sessionId="s", prompt="!read long.txt")
    full = await watcher.get("session/context", sessionId="s")
    state = await watcher.get("session/state", sessionId="s")
    assert full["results"] > 0
    assert sum(full[name] for name in ("system", "tools", "messages", "results")) == state["contextTokens"]
    assert full["free"] + state["contextTokens"] == full["window"] == state["contextWindow"]
