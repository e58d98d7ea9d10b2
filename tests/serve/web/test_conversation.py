"""The daemon's dialect over a WebSocket: the same conversation, one message per frame, for clients with the token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.protocol import Event

from daemons import running
from zot.client.client import Client
from zot.config.config import Config, ConfigOverrides
from zot.errors import ConnectionLost
from zot.events import Done, TextDelta
from zot.runtime.open import OpenRequest, open_session
from zot.runtime.pool import NewSessionSettings
from zot.runtime.shared import SharedResources
from zot.serve.web import Limits, listen

from .face import PATIENCE_S, Face, faced, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: A turn with something of everything.
BUSY = '!script think "hm" ;; say "a" "b" ;; call read {"path":"a"} ;; call read {"path":"b"} ;; --- ;; say "c"'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def face(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Face]:
    home = tmp_path_factory.mktemp("talked")
    async with faced(home / "home", cwd=str(home)) as face:
        yield face


def unnamed(updates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return updates without the fields that differ between sessions."""
    return [{key: value for key, value in one.items() if key not in ("sessionId", "seq")} for one in updates]


async def test_a_websocket_gets_the_same_updates_as_the_local_socket(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (work / "a").write_text("to be read\n")
    async with running(home, policy=("*=allow",), cwd=str(work)) as service:
        listening = await listen(service.daemon, "ws://127.0.0.1:0")
        face = Face(service.daemon, listening.url, home, data=home)
        local = await service.caller()
        told = await local.ask("session/new", agentAlias="default", sessionId="here")
        assert "result" in told
        answer = await local.ask("session/prompt", sessionId="here", prompt=BUSY)
        heard = [one["params"] for one in local.heard if one.get("method") == "session/update"]
        async with face.connected() as client:
            session = await client.begin("there")
            over = await client.prompt(session, BUSY)
            assert unnamed(client.updates) == unnamed(heard)
            assert unnamed([over["result"]]) == unnamed([answer["result"]])
            assert {one["type"] for one in heard} >= {
                "tool_call",
                "tool_result",
                "agent_message_chunk",
                "turn_complete",
            }
            again = await client.call("session/attach", {"sessionId": "here", "after": 0})
            while len(client.updates) < 2 * len(heard):
                client.updates.append((await client.read())["params"])
            assert client.updates[len(heard) :] == heard
            assert again["result"]["lastSeq"] == heard[-1]["seq"]
        listening.stop()
        await listening.close()


async def test_messages_may_be_written_in_several_lines_and_several_at_once(face: Face) -> None:
    async with face.connected("/ws") as client:
        await client.socket.send(json.dumps({"jsonrpc": "2.0", "method": "initialize", "id": 1}, indent=2))
        await client.socket.send("  \n")
        await client.socket.send('{"jsonrpc":"2.0","method":"status","id":2}')
        await client.socket.send("no JSON")
        told = [await client.read() for _ in range(3)]
    assert sorted((one.get("id") or 0, "error" in one) for one in told) == [(0, True), (1, False), (2, False)]
    [status] = [one["result"] for one in told if one.get("id") == 2]
    assert status["listens"] == [face.url]


async def test_local_methods_are_not_offered(face: Face) -> None:
    async with face.connected() as client:
        told = await client.call("initialize")
        assert "daemon/stop" not in told["result"]["capabilities"]
        refused = await client.call("daemon/stop")
    assert refused["error"]["code"] == -32601


async def test_a_session_made_over_a_websocket_stays_read_only_later_too(face: Face) -> None:
    path = face.home.parent / "made.txt"
    face.home.parent.joinpath("seen.txt").write_text("to be seen\n")
    async with face.connected() as client:
        session = await client.begin("guarded")
        for prompt in ("!write made.txt x", "!bash touch made.txt", "!read seen.txt"):
            assert "result" in await client.prompt(session, prompt)
        await client.call("session/close", {"sessionId": session})
        await client.call("session/new", {"agentAlias": "default", "sessionId": session})
        await client.prompt(session, "!bash touch made.txt")  # It is loaded again, from the journal.
        results = [one for one in client.updates if one["type"] == "tool_result"]
    assert [(one["name"], one["isError"]) for one in results] == [
        ("write", True), ("bash", True), ("read", False), ("bash", True),
    ]  # fmt: skip
    assert results[0]["rawOutput"] == "not run: the policy of this session denies write here"
    assert not path.exists()


async def test_a_session_made_on_the_machine_can_only_be_read(face: Face) -> None:
    async with face.daemon.sessions.pool.use("local one", NewSessionSettings()):
        pass
    async with face.connected() as client:
        await client.call("initialize")
        refused = await client.call("session/prompt", {"sessionId": "local one", "prompt": "!bash id"})
        assert (refused["error"]["code"], "set a policy in [agents.default]" in refused["error"]["message"]) == (
            -32003,
            True,
        )
        seen = await client.call("session/messages", {"sessionId": "local one"})
        assert seen["result"]["total"] == 0


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_a_session_made_on_the_machine_is_not_moved_from_elsewhere(face: Face, is_loaded: bool) -> None:
    name = f"{is_loaded} one"
    here, there = face.home.parent / f"here {name}", face.home.parent / f"there {name}"
    for place in (here, there):
        place.mkdir()
    async with face.daemon.sessions.pool.use(name, NewSessionSettings(cwd=str(here))):
        pass
    here.rmdir()
    if not is_loaded:
        await face.daemon.sessions.pool.let_go(name)
    asked = {"agentAlias": "default", "sessionId": name, "cwd": str(there)}
    async with face.connected() as client:
        await client.call("initialize")
        answer = await client.call("session/new", asked)
    assert answer.get("result", {}).get("workspaceDir") != str(there)
    async with face.daemon.sessions.pool.use(name) as session:
        assert session.agent.cwd != str(there)


@pytest.mark.parametrize("secret", ["data/token", "data/journal.db"])
async def test_a_stranger_cannot_read_the_daemon_s_files(face: Face, secret: str) -> None:
    told = await face.respond({"request_id": "r", "session_id": secret, "prompt": f"!read {face.home / secret}"})
    async with face.connected() as client:
        session = await client.begin(f"reads {secret}")
        await client.prompt(session, f"!read {face.home / secret}")
        [result] = [one for one in client.updates if one["type"] == "tool_result"]
    assert face.token.encode() not in told.body
    assert result["isError"]


async def test_a_reconnecting_client_gets_the_missed_updates(face: Face) -> None:
    async with face.connected() as client:
        session = await client.begin()
        await client.prompt(session, "!say 3 one")
        seen = client.updates
    async with face.connected(additional_headers={}, subprotocols=["zot.v1", f"zot.token.{face.token}"]) as client:
        await client.call("initialize")
        await client.call("session/attach", {"sessionId": session, "after": seen[1]["seq"]})
        while len(client.updates) < len(seen) - 2:
            client.updates.append((await client.read())["params"])
    assert client.updates == seen[2:]


async def test_a_client_that_does_not_read_is_disconnected_and_the_others_get_everything(tmp_path: Path) -> None:
    async with faced(tmp_path / "home") as face, face.connected() as fast, face.connected() as slow:
        session = await fast.begin()
        await slow.call("initialize")
        await slow.call("session/attach", {"sessionId": session})
        slow.socket.transport.pause_reading()
        text = "x" * 400_000
        for _ in range(20):
            answer = await fast.prompt(session, f"!echo {text}")
            assert answer["result"]["content"] == text
            if face.daemon.metrics.cut_off:
                break
        assert face.daemon.metrics.cut_off == 1
        await until(lambda: len(face.daemon.connections) == 1)
        slow.socket.transport.resume_reading()
        async with asyncio.timeout(PATIENCE_S):
            await slow.socket.wait_closed()


async def test_a_client_that_does_not_answer_a_ping_is_disconnected(tmp_path: Path) -> None:
    limits = Limits(ping_s=0.02, pong_s=0.05)
    async with faced(tmp_path / "home", limits=limits) as face, face.connected() as client:
        client.socket.transport.pause_reading()
        await until(lambda: face.daemon.connections == ())
        client.socket.transport.abort()


class Pinged(ClientConnection):
    """A connection that counts the pings it gets; its base class answers them."""

    pings = 0

    def process_event(self, event: Event) -> None:
        if isinstance(event, Frame) and event.opcode is Opcode.PING:
            self.pings += 1
        super().process_event(event)


async def test_a_client_that_answers_pings_stays(tmp_path: Path) -> None:
    limits = Limits(ping_s=0.01, pong_s=5.0)
    options: dict[str, Any] = {"create_connection": Pinged, "ping_interval": None}
    async with faced(tmp_path / "home", limits=limits) as face, face.connected(**options) as client:
        socket = client.socket
        assert isinstance(socket, Pinged)
        await until(lambda: socket.pings > 3)  # Each comes when the one before has been answered.
        await client.call("initialize")
        assert "result" in await client.call("status")


async def test_a_stopping_daemon_sends_pending_updates_and_a_goodbye(tmp_path: Path) -> None:
    async with faced(tmp_path / "home") as face, face.connected() as client:
        session = await client.begin()
        asked = asyncio.ensure_future(client.prompt(session, "!stall-mid"))
        await until(lambda: any(one["type"] == "agent_message_chunk" for one in client.updates))
        face.daemon.grace_s = 0.0
        await face.daemon.close()
        told = await asked
        assert told["result"]["stopReason"] == "cancelled"
        with pytest.raises(ConnectionClosed) as ended:
            await client.read()
        assert ended.value.rcvd is not None
        assert ended.value.rcvd.code == 1001


async def test_the_name_of_a_token_is_in_the_audit_log_and_not_the_token(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "data").mkdir(parents=True, mode=0o700)
    (home / "data" / "token").touch(mode=0o600)
    (home / "data" / "token").write_text(f"# ours\nlaptop:{'l' * 40}\nphone:{'p' * 40}\n")
    async with faced(home) as face:
        face.token = "p" * 40
        async with face.connected() as client:
            await client.begin("named")
        calls = [one for one in face.audited() if one["event"] == "call"]
    assert [(one["transport"], one["token"], one["method"]) for one in calls] == [("ws", "phone", "session/new")]


async def test_clients_are_listed_by_the_names_of_their_tokens(face: Face) -> None:
    async with face.connected() as client:
        await client.call("initialize")
        told = await client.call("tui/list")
    assert [(one["peerLabel"], one["transport"]) for one in told["result"]["tuis"]] == [("ws:default@127.0.0.1", "ws")]


async def test_our_client_loses_nothing_when_its_connection_is_cut(face: Face) -> None:
    async with Client.connect(url=face.url, token=face.token) as client:
        session = await client.session()
        heard = []
        async for event in session.prompt("!script pace 20ms ;; words 8"):
            heard.append(event)
            if isinstance(event, TextDelta) and event.delta == "w1 ":
                for connection in face.daemon.connections:
                    connection.wire.cut("for a test")
    assert [event.delta for event in heard if isinstance(event, TextDelta)] == [f"w{number} " for number in range(8)]
    assert isinstance(heard[-1], Done)


async def test_our_client_reports_a_wrong_token(face: Face) -> None:
    with pytest.raises(ConnectionLost, match="refused the token"):
        async with Client.connect(url=face.url, token="wrong"):
            pass


async def test_a_subscriber_of_an_embedded_daemon_gets_the_updates_of_other_processes(
    tmp_path: Path,
) -> None:
    async with faced(tmp_path) as face, face.connected() as client:
        session_id = await client.begin("s")
        config = Config(provider="lab", session=session_id, journal=str(tmp_path / "data" / "journal.db"))
        other = await open_session(
            OpenRequest(config=config, overrides=ConfigOverrides(frozenset({"provider"}))), SharedResources()
        )
        other.prompt("!echo there")
        await other.worker.finish()
        await other.close()
        while (told := await client.read())["params"]["type"] != "turn_complete":
            pass
        assert told["params"]["content"] == "there"
