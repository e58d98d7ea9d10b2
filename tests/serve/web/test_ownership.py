"""Clients on the network and sessions made on this machine: they may read, follow, and end a turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from zot.runtime.pool import NewSessionSettings
from zot.session.session import Session
from zot.wire.daemon import METHODS, READ_ONLY
from zot.wire.jsonrpc import NOT_OWNED

from .face import PATIENCE_S, Client, Face, faced

#: Besides looking.
ALLOWED = ["session/new", "session/attach", "session/detach", "session/cancel"]
#: With what they are called, besides the name of the session.
REFUSED: Mapping[str, Mapping[str, Any]] = {
    "session/prompt": {"prompt": "!echo theirs"},
    "session/steer": {"prompt": "!echo theirs"},
    "session/aside": {"question": "!echo theirs"},
    "session/take_back": {"promptId": "mine"},
    "session/approve": {"requestId": "r", "decision": "allow_once"},
    "session/answer": {"requestId": "r", "action": "decline"},
    "session/files": {"query": "x"},
    "session/resources": {},
    "session/close": {},
    "session/kill": {},
    "session/delete": {},
    "session/fork": {},
    "session/configure": {"overrides": {"reasoning": "high"}},
    "session/compact": {},
    "session/clear": {},
    "session/undo_compact": {},
    "session/rewind": {"messages": 0},
    "session/rename": {"title": "theirs"},
    "session/forget": {"tool": "bash"},
    "session/run_command": {"name": "c"},
    "session/panel_key": {"panelId": "p", "key": "enter"},
    "session/panel_close": {"panelId": "p"},
}


@asynccontextmanager
async def stalled(face: Face) -> AsyncIterator[Session]:
    """Have a session that was made on this machine, in the middle of a turn."""
    async with face.daemon.sessions.pool.use("s", NewSessionSettings()) as session:
        await face.daemon.sessions.catalog.journal.rename("s", "mine")
        session.prompt("!stall-mid")
        yield session


async def ask(client: Client, method: str, **params: Any) -> dict[str, Any]:
    return await client.call(method, {"sessionId": "s", **params})


def test_every_changing_method_is_covered_here() -> None:
    changing = {one.name for one in METHODS.values() if one.scope == "session" and not one.local} - READ_ONLY
    assert changing == {*ALLOWED, *REFUSED} - READ_ONLY


@pytest.mark.parametrize("method", METHODS)
def test_each_method_declares_whether_it_needs_ownership(method: str) -> None:
    assert (NOT_OWNED in METHODS[method].errors) == (method in REFUSED)


@pytest.mark.parametrize("method", REFUSED)
async def test_changes_of_a_session_of_this_machine_are_refused(tmp_path: Path, method: str) -> None:
    async with faced(tmp_path / "home") as face, face.connected() as client, stalled(face) as session:
        await client.call("initialize")
        refused = await ask(client, method, **REFUSED[method])
        assert refused["error"]["code"] == NOT_OWNED
        assert face.daemon.sessions.pool.session("s") is session
        assert session.worker.busy
        assert [(one.id, one.title) for one in await face.daemon.sessions.catalog.journal.sessions()] == [("s", "mine")]
        session.abort()


@pytest.mark.parametrize("method", ["session/close", "session/kill", "session/delete", "session/rename"])
async def test_they_are_refused_for_an_unloaded_session_too(tmp_path: Path, method: str) -> None:
    async with faced(tmp_path / "home") as face, face.connected() as client:
        async with face.daemon.sessions.pool.use("s", NewSessionSettings()) as session:
            session.prompt("!echo keep me")
            await session.worker.finish()
        await face.daemon.sessions.pool.let_go("s")
        await client.call("initialize")
        assert (await ask(client, method, **REFUSED[method]))["error"]["code"] == NOT_OWNED
        kept = await ask(client, "session/messages")
    assert [one["content"] for one in kept["result"]["messages"]] == ["!echo keep me", "keep me"]


async def test_a_client_without_ownership_may_follow_a_session_and_end_its_turn(tmp_path: Path) -> None:
    async with faced(tmp_path / "home") as face, face.connected() as client, stalled(face) as session:
        await client.call("initialize")
        assert (await ask(client, "session/attach", after=0))["result"]["state"] == "running"
        assert (await ask(client, "session/cancel"))["result"]["cancelled"]
        async with asyncio.timeout(PATIENCE_S):
            await session.worker.finish()
        assert (await ask(client, "session/detach"))["result"]["detached"]
        assert (await ask(client, "session/new", agentAlias="default"))["result"]["sessionId"] == "s"


@pytest.mark.parametrize("is_theirs", [True, False], ids=["made over the network", "an agent with a policy"])
async def test_a_client_with_use_of_a_session_may_rename_close_and_delete_it(tmp_path: Path, is_theirs: bool) -> None:
    home = tmp_path / "home"
    home.mkdir()
    if not is_theirs:
        (home / "config.toml").write_text('[agents.default]\nprovider = "lab"\npolicy = ["bash=deny"]\n')
    async with faced(home) as face, face.connected() as client:
        async with face.daemon.sessions.pool.use("s", NewSessionSettings(guarded=is_theirs)):
            pass
        await client.call("initialize")
        assert (await ask(client, "session/rename", title="named"))["result"]["title"] == "named"
        for method in ("session/close", "session/kill"):
            assert "result" in await ask(client, method)
            await ask(client, "session/new", agentAlias="default")
        for _ in range(2):
            assert "result" in await ask(client, "session/delete")
        assert await face.daemon.sessions.catalog.journal.sessions() == []
