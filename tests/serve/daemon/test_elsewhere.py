"""Sessions that are used from several sides: by another process, over the host protocol, from another machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from daemon_process import eventually
from daemons import PATIENCE_S, Caller, Running, running
from zot.config.config import Config, ConfigOverrides
from zot.errors import StoreFailed
from zot.journal.journal import Journal
from zot.runtime.open import OpenRequest, open_session
from zot.runtime.shared import SharedResources


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as service:
        watching = asyncio.create_task(service.daemon.sessions.watch.run())
        yield service
        watching.cancel()


async def say_elsewhere(home: Path, session_id: str, prompt: str) -> None:
    """Run a prompt as another process would: with a session of its own in the same journal."""
    config = Config(provider="lab", session=session_id, journal=str(home / "journal.db"), cwd=str(home))
    session = await open_session(
        OpenRequest(config=config, overrides=ConfigOverrides(frozenset({"provider"}))), SharedResources()
    )
    session.prompt(prompt)
    await session.worker.finish()
    await session.close()


def said(caller: Caller, session_id: str) -> list[str]:
    return [one["text"] for one in caller.updates(session_id) if one["type"] == "agent_message_chunk"]


async def test_a_subscriber_gets_the_updates_of_other_processes(daemon: Running, tmp_path: Path) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    await caller.get("session/prompt", sessionId="s", prompt="!echo here")
    await say_elsewhere(tmp_path, "s", "!echo there")
    await caller.until(type="turn_complete", content="there")
    assert (await caller.get("session/state", sessionId="s"))["messageCount"] == 4
    assert len((await caller.get("session/messages", sessionId="s"))["messages"]) == 4
    await caller.get("session/prompt", sessionId="s", prompt="!echo again")
    assert said(caller, "s") == ["here", "there", "again"]
    late = await daemon.caller()
    await late.get("session/attach", sessionId="s", after=0)
    await late.until(type="turn_complete", content="again")
    assert late.updates("s") == caller.updates("s")


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_a_session_run_by_another_process_is_running_in_every_answer(
    daemon: Running, tmp_path: Path, is_loaded: bool
) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    if not is_loaded:
        await daemon.daemon.sessions.pool.let_go("s")
    config = Config(provider="lab", session="s", journal=str(tmp_path / "journal.db"), cwd=str(tmp_path))
    other = await open_session(
        OpenRequest(config=config, overrides=ConfigOverrides(frozenset({"provider"}))), SharedResources()
    )
    assert await states(caller) == ["idle"] * 3
    other.prompt("!stall-mid")
    await caller.until(type="agent_message_chunk")
    assert await states(caller) == ["running"] * 3
    other.abort()
    await other.worker.finish()
    await caller.until(type="turn_complete")
    assert await states(caller) == ["idle"] * 3
    await other.close()


async def states(caller: Caller) -> list[str]:
    """Return the state of the only session, from each method that reports it."""
    [entry] = (await caller.get("session/list"))["sessions"]
    told = [await caller.get(f"session/{name}", sessionId="s") for name in ("attach", "state")]
    return [one["state"] for one in (entry, *told)]


async def test_a_subscriber_of_a_deleted_session_gets_the_next_one_of_its_name_even_from_others(
    daemon: Running, tmp_path: Path
) -> None:
    caller, other = await daemon.caller(), await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    await caller.get("session/prompt", sessionId="s", prompt="!say 99 " + 99 * "x")
    await other.get("session/attach", sessionId="s")
    await caller.get("session/delete", sessionId="s")
    await say_elsewhere(tmp_path, "s", "!echo there")
    await other.until(type="turn_complete", content="there")
    assert said(other, "s") == ["there"]


async def replace_elsewhere(home: Path, session_id: str, prompt: str = "") -> None:
    """Delete a session as another process would, and make another one of its name if it is prompted."""
    journal = await Journal.open(home / "journal.db")
    await journal.delete(session_id)
    await journal.close()
    if prompt:
        await say_elsewhere(home, session_id, prompt)


@pytest.mark.parametrize("prompt", ["!echo short", "!say 99 " + 99 * "x"], ids=["shorter", "longer"])
async def test_a_subscriber_of_a_session_recreated_by_others_gets_the_new_one_from_its_beginning(
    daemon: Running, tmp_path: Path, prompt: str
) -> None:
    caller, other = await daemon.caller(), await daemon.caller(features=["events"])
    first = await caller.get("session/new", agentAlias="default", sessionId="s")
    await caller.get("session/prompt", sessionId="s", prompt="!say 20 " + 20 * "y")
    await other.get("session/attach", sessionId="s")
    heard = len(caller.heard)
    await replace_elsewhere(tmp_path, "s", prompt)
    await caller.until(type="turn_complete")
    assert caller.heard[heard]["params"]["prompt"] == prompt
    await other.until(type="restarted")
    on_record = await daemon.events("s")
    while len(other.updates()) < 1 + len(on_record):
        await other.read()
    assert [(one["seq"], one["event"]) for one in other.updates()[1:]] == on_record
    state = await caller.get("session/state", sessionId="s")
    assert (state["messageCount"], state["lastSeq"]) == (2, on_record[-1][0])
    assert state["epoch"] > first["epoch"]


async def test_a_session_recreated_by_others_is_the_new_one_in_every_method(daemon: Running, tmp_path: Path) -> None:
    caller = await daemon.caller()
    for session_id in ("new", "prompt", "messages", "state"):
        await caller.get("session/new", agentAlias="default", sessionId=session_id)
        await caller.get("session/prompt", sessionId=session_id, prompt="!say 20 " + 20 * "y")
        await replace_elsewhere(tmp_path, session_id, "!echo there")
    assert (await caller.get("session/new", agentAlias="default", sessionId="new"))["messageCount"] == 2
    assert (await caller.get("session/prompt", sessionId="prompt", prompt="!echo here"))["content"] == "here"
    said = (await caller.get("session/messages", sessionId="messages"))["messages"]
    assert [one["content"] for one in said] == ["!echo there", "there"]
    assert (await caller.get("session/state", sessionId="state"))["messageCount"] == 2


async def test_a_session_deleted_by_others_is_gone_and_can_be_recreated(daemon: Running, tmp_path: Path) -> None:
    caller = await daemon.caller()
    for session_id in ("a", "b"):
        await caller.get("session/new", agentAlias="default", sessionId=session_id)
        await caller.get("session/prompt", sessionId=session_id, prompt="!echo old")
        await replace_elsewhere(tmp_path, session_id)
    assert (await caller.get("status"))["sessionIds"] == []
    assert (await caller.error("session/prompt", sessionId="a", prompt="!echo one"))[0] == -32000
    for session_id in ("a", "b"):
        made = await caller.get("session/new", agentAlias="default", sessionId=session_id)
        assert made["messageCount"] == 0
        assert (await caller.get("session/prompt", sessionId=session_id, prompt="!echo new"))["content"] == "new"
    assert (await caller.get("status"))["sessionIds"] == ["a", "b"]


async def test_creating_a_session_that_others_delete_at_that_moment_succeeds(
    daemon: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, catalog = await daemon.caller(), daemon.daemon.sessions.catalog
    position = catalog.position

    async def late(session_id: str) -> tuple[int, int]:
        monkeypatch.undo()
        await daemon.journal.delete(session_id)
        return await position(session_id)

    monkeypatch.setattr(catalog, "position", late)
    await caller.get("session/new", agentAlias="default", sessionId="s")
    assert (await caller.get("session/prompt", sessionId="s", prompt="!echo hi"))["content"] == "hi"


@pytest.mark.parametrize("jump_s", [86_400, -86_400])
async def test_updates_of_other_processes_arrive_even_if_the_clock_is_set(
    daemon: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: int
) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    await say_elsewhere(tmp_path, "s", "!echo there")
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + jump_s)
    await caller.until(type="turn_complete", content="there")


async def test_a_subscriber_of_a_chat_gets_prompts_of_the_host_protocol(daemon: Running) -> None:
    caller, bridge = await daemon.caller(), await daemon.caller()
    for prompt in ("!echo one", "!echo two"):
        asked = {"request_id": prompt, "session_id": "chat", "prompt": prompt}
        assert (await bridge.get("host/respond", **asked))["response"]["ok"]
        if prompt == "!echo one":
            await caller.get("session/attach", sessionId="host:chat")
    await caller.until(type="turn_complete", content="two")


async def test_a_chat_with_strangers_stays_guarded_in_every_use(daemon: Running, tmp_path: Path) -> None:
    caller = await daemon.caller()
    asked = {"request_id": "r", "session_id": "chat", "prompt": "!echo hi"}
    assert (await caller.get("host/respond", **asked))["response"]["ok"]
    copy = (await caller.get("session/fork", sessionId="host:chat"))["sessionId"]
    for session_id in ("host:chat", copy):
        await caller.get("session/prompt", sessionId=session_id, prompt="!bash touch made")
    assert not (tmp_path / "made").exists()
    results = [one for one in caller.updates() if one["type"] == "tool_result"]
    assert [one["isError"] for one in results] == [True, True]


async def test_a_turn_that_never_began_is_reported_after_the_running_one(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    caller.call("session/prompt", sessionId="s", prompt="!slow 5 0.02")
    await caller.until(type="agent_message_chunk")
    caller.tell("session/prompt", sessionId="s", prompt="")
    outcomes = [(await caller.until(type="turn_complete"))["outcome"] for _ in range(2)]
    assert outcomes == ["completed", "failed"]


async def test_an_unwritable_session_is_reopened_once_it_can_be(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    session = daemon.daemon.sessions.pool.session("s")
    assert session is not None
    session.store.on_failed(StoreFailed("the disk is full"))  # type: ignore[attr-defined]  # as the writer would
    assert (await caller.get("session/prompt", sessionId="s", prompt="!echo there is room again"))["content"]
    assert daemon.daemon.sessions.pool.session("s") is not session


@pytest.mark.parametrize(
    "asked", [{"protocolVersion": 1}, {"protocolVersion": 1, "features": ["events"]}], ids=["updates", "events"]
)
async def test_a_turn_lost_by_the_disk_ends_once_for_its_subscriber_with_the_text_so_far(
    daemon: Running, asked: dict[str, Any]
) -> None:
    caller, other = await daemon.caller(), await daemon.caller(**asked)
    for one in (caller, other):
        await one.get("session/new", agentAlias="default", sessionId="s")
    followers = daemon.daemon.sessions.feed("s")._followers
    await eventually(lambda: all(one.is_live for one in followers))  # Replaying followers receive it later.
    prompted = caller.call("session/prompt", sessionId="s", prompt="!stall-mid", promptId="lost")
    heard = (await caller.until(type="agent_message_chunk"))["text"]
    session = daemon.daemon.sessions.pool.session("s")
    assert session is not None
    session.store.on_failed(StoreFailed("the disk is full"))  # type: ignore[attr-defined]  # as the writer would
    answer = await caller.answer(prompted)
    assert (answer["error"]["message"], answer["error"]["data"]["content"]) == ("the disk is full", heard)
    await caller.get("session/prompt", sessionId="s", prompt="!echo again", promptId="next")
    await other.get("session/state", sessionId="s")
    ends = [(one["promptId"], one["outcome"]) for one in caller.updates() if one["type"] == "turn_complete"]
    assert ends == [("lost", "failed"), ("next", "completed")]
    kinds = [one["event"]["type"] if "event" in one else one["type"] for one in other.updates()]
    assert kinds.count("done") + kinds.count("turn_complete") == 2
    assert kinds[kinds.index("done" if "done" in kinds else "turn_complete") + 1] in ("user_message", "state")
    assert [event["type"] for _, event in await daemon.events("s")].count("done") == 2


async def test_one_of_two_clients_that_create_a_session_for_different_agents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[agents.default]\nprovider = "lab"\n[agents.two]\nprovider = "lab"\n')
    async with running(tmp_path) as daemon:
        first, second = await daemon.caller(), await daemon.caller()
        async with asyncio.timeout(PATIENCE_S):
            answers = await asyncio.gather(
                first.ask("session/new", agentAlias="default", sessionId="s"),
                second.ask("session/new", agentAlias="two", sessionId="s"),
            )
    assert sorted("error" in answer for answer in answers) == [False, True]


async def test_a_session_whose_agent_is_gone_can_still_be_read(tmp_path: Path) -> None:
    agents = '[agents.default]\nprovider = "lab"\n'
    (tmp_path / "config.toml").write_text(f'{agents}[agents.gone]\nprovider = "lab"\n')
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        await caller.get("session/new", agentAlias="gone", sessionId="s")
        for prompt in ("!echo one", "!echo two", "!echo three"):
            await caller.get("session/prompt", sessionId="s", prompt=prompt)
        await caller.get("session/compact", sessionId="s")
        await caller.error("session/prompt", sessionId="s", prompt="!cut")
        read = {view: await caller.get("session/messages", sessionId="s", view=view) for view in ("full", "past")}
        read["shown"] = await caller.get("session/messages", sessionId="s")
        assert read["past"]["messages"][-1]["stopReason"] == "error"
    (tmp_path / "config.toml").write_text(agents)
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        for view in ("full", "past"):
            assert await caller.get("session/messages", sessionId="s", view=view) == read[view]
        assert await caller.get("session/messages", sessionId="s") == read["shown"]
        code, why = await caller.error("session/prompt", sessionId="s", prompt="!echo four")
    assert (code, why.partition(" in ")[0]) == (-32602, "no agent 'gone'")
