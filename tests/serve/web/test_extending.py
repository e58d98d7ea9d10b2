"""An extension that connects to a session of the daemon over a WebSocket: the frames are those of any extension."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from harness import at_home
from timing import Stopwatch
from zot.errors import UserError
from zot.extensions.sources import MAX_UNREAD_BYTES
from zot.serve.web import Limits, open_daemon

from .face import PATIENCE_S, Face, faced, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO = {"type": "hello", "name": "afar", "version": "1.0.0", "capabilities": ["tools"]}
LOOKUP = {
    "type": "register_tool", "name": "lookup", "description": "looks it up",
    "schema": {"type": "object", "properties": {"q": {"type": "string"}}},
}  # fmt: skip
READY = {"type": "ready"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def face(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Face]:
    async with faced(tmp_path_factory.mktemp("joined") / "home", policy=("*=allow",)) as face:
        yield face


async def say(socket: ClientConnection, *frames: dict[str, Any], indent: int | None = None) -> None:
    for frame in frames:
        await socket.send(json.dumps(frame, indent=indent))


async def hear(socket: ClientConnection, kind: str) -> dict[str, Any]:
    """Return the next frame, which must be of a type."""
    async with asyncio.timeout(PATIENCE_S):
        frame: dict[str, Any] = json.loads(await socket.recv())
    assert frame["type"] == kind
    return frame


async def test_an_extension_connects_to_a_session_and_offers_a_tool(face: Face) -> None:
    async with face.connected() as client:
        session = await client.begin("joined")
        async with face.connected(f"/ext?session={session}&name=afar") as afar:
            await say(afar.socket, HELLO, LOOKUP, READY, indent=2)
            assert (await hear(afar.socket, "hello_ack"))["extension_dir"] == ""
            asked = asyncio.ensure_future(client.prompt(session, '!script call lookup {"q":"it"} ;; --- ;; say done'))
            call = await hear(afar.socket, "tool_call")
            assert call["args"] == {"q": "it"}
            content = [{"type": "text", "text": "found"}]
            await say(afar.socket, {"type": "tool_result", "id": call["id"], "content": content})
            assert (await asked)["result"]["content"] == "done"
            [result] = [one for one in client.updates if one["type"] == "tool_result"]
            assert (result["rawOutput"], result["isError"]) == ("found", False)
            with pytest.raises(InvalidStatus, match="409"):
                async with face.connected(f"/ext?session={session}&name=afar"):
                    pass  # One at a time has a name.
        async with face.connected(f"/ext?session={session}&name=afar") as afar:  # It has gone, and may come back.
            await say(afar.socket, HELLO, READY)
            await hear(afar.socket, "hello_ack")
    joined = [one for one in face.audited() if one["event"] == "connected" and one.get("method") == "/ext"]
    assert [(one["session"], one["token"]) for one in joined] == [("joined", "default")] * 2


async def test_it_is_notified_when_the_session_ends(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with faced(tmp_path_factory.mktemp("ended") / "home") as face, face.connected() as client:
        session = await client.begin()
        async with face.connected(f"/ext?session={session}&name=afar") as afar:
            await say(afar.socket, HELLO, READY)
            await hear(afar.socket, "hello_ack")
            closing = asyncio.ensure_future(face.daemon.close())
            await hear(afar.socket, "shutdown")
            await say(afar.socket, {"type": "shutdown_ack"})
            with pytest.raises(ConnectionClosed):
                await hear(afar.socket, "nothing")
            await closing


REFUSED = {
    "no token": ("/ext?session=there&name=afar", {}, 401),
    "no session": ("/ext?name=afar", None, 400),
    "no name": ("/ext?session=there", None, 400),
    "a session that does not exist": ("/ext?session=nobodys&name=afar", None, 404),
    "a name that is none": ("/ext?session=there&name=../up", None, 409),
    "a page elsewhere": ("/ext?session=there&name=afar", {"Origin": "https://evil.example"}, 403),
    "a token in the address": ("/ext?session=there&name=afar&token=x", None, 400),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_an_extension_that_cannot_join_is_refused_before_anything_is_read(face: Face, name: str) -> None:
    path, headers, status = REFUSED[name]
    async with face.connected() as client:
        await client.begin("there")
    given = {} if headers is None else {"additional_headers": headers}
    with pytest.raises(InvalidStatus, match=str(status)):
        async with face.connected(path, **given):
            pass


GUARD = {"type": "subscribe", "intercept": ["tool_call"], "on_failure": "block"}
CALL = '!script call read {"path":"."} ;; --- ;; say done'


async def test_a_guard_that_fails_closed_still_guards_when_the_session_is_loaded_again(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async with faced(tmp_path_factory.mktemp("guarded") / "home", policy=("*=allow",)) as face:
        async with face.connected() as client:
            session = await client.begin()
            async with face.connected(f"/ext?session={session}&name=afar") as afar:
                await say(afar.socket, HELLO, GUARD, READY)
                await hear(afar.socket, "hello_ack")
                asked = asyncio.ensure_future(client.prompt(session, CALL))
                call = await hear(afar.socket, "event_intercept")
                await say(afar.socket, {"type": "event_intercept_response", "id": call["id"]})
                assert (await asked)["result"]["content"] == "done"
            await client.call("session/close", {"sessionId": session})
            await client.call("session/new", {"agentAlias": "default", "sessionId": session})
            client.updates.clear()
            assert (await client.prompt(session, CALL))["result"]["content"] == "done"
            [result] = [one for one in client.updates if one["type"] == "tool_result"]
            gone = "extension afar, which guards this, is not running"
            assert (result["rawOutput"], result["isError"]) == (gone, True)
            refused = await client.call("session/dismiss", {"sessionId": session, "name": "afar"})
            assert (refused["error"]["code"], "local socket only" in refused["error"]["message"]) == (-32601, True)
            async with face.connected(f"/ext?session={session}&name=afar") as afar:
                await say(afar.socket, HELLO, GUARD, READY)
                await hear(afar.socket, "hello_ack")
                asked = asyncio.ensure_future(client.prompt(session, CALL))
                call = await hear(afar.socket, "event_intercept")
                await say(afar.socket, {"type": "event_intercept_response", "id": call["id"]})
                assert (await asked)["result"]["content"] == "done"
                async with face.daemon.sessions.pool.use(session) as guarded:
                    with pytest.raises(UserError, match="the guard 'afar' is connected; only a disconnected guard"):
                        await guarded.dismiss_guard("afar")


async def test_the_prompting_client_gets_the_reason_for_a_withheld_answer(face: Face) -> None:
    async with face.connected() as client:
        session = await client.begin("held")
        async with face.connected(f"/ext?session={session}&name=afar") as afar:
            await say(afar.socket, HELLO, {"type": "subscribe", "intercept": ["assistant_message"]}, READY)
            await hear(afar.socket, "hello_ack")
            asked = asyncio.ensure_future(client.prompt(session, "!echo secret"))
            call = await hear(afar.socket, "event_intercept")
            decision = {"block": True, "reason": "not for you"}
            await say(afar.socket, {"type": "event_intercept_response", "id": call["id"], **decision})
            told = (await asked)["result"]
            assert (told["stopReason"], told["content"], told["notice"]) == ("end_turn", "", "not for you")
            assert "error" not in told


ENDS: dict[str, tuple[str | bytes, int, str]] = {
    "another name": (json.dumps({**HELLO, "name": "other"}), 1008, "says it is 'other', but its manifest says 'afar'"),
    "no hello": (json.dumps(READY), 1008, "did not say hello first, but ready"),
    "no text": (json.dumps(HELLO).encode(), 1003, "frames are text"),
}


@pytest.mark.parametrize("name", ENDS)
async def test_an_extension_refused_after_the_handshake_gets_the_reason(face: Face, name: str) -> None:
    said, code, reason = ENDS[name]
    async with face.connected() as client:
        session = await client.begin("refusing")
        async with face.connected(f"/ext?session={session}&name=afar") as afar:
            await afar.socket.send(said)
            with pytest.raises(ConnectionClosed) as closed:
                await hear(afar.socket, "nothing")
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (code, reason)


async def test_a_message_may_have_several_frames_in_lines(face: Face) -> None:
    async with face.connected() as client:
        session = await client.begin("several")
        async with face.connected(f"/ext?session={session}&name=afar") as afar:
            await afar.socket.send("\n".join(map(json.dumps, (HELLO, LOOKUP, READY))))
            await hear(afar.socket, "hello_ack")
            asked = asyncio.ensure_future(client.prompt(session, '!script call lookup {"q":"it"} ;; --- ;; say done'))
            call = await hear(afar.socket, "tool_call")
            await say(afar.socket, {"type": "tool_result", "id": call["id"], "content": []})
            assert (await asked)["result"]["content"] == "done"


async def test_it_still_guards_after_a_restart_of_the_daemon(tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("again") / "home"
    async with faced(home, policy=("*=allow",)) as face, face.connected() as client:
        await client.begin("guarded")
        async with face.connected("/ext?session=guarded&name=afar") as afar:
            await say(afar.socket, HELLO, GUARD, READY)
            await hear(afar.socket, "hello_ack")
    async with faced(home, policy=("*=allow",)) as face, face.connected() as client:
        await client.begin("guarded")
        await client.prompt("guarded", CALL)
        [result] = [one for one in client.updates if one["type"] == "tool_result"]
    assert result["rawOutput"] == "extension afar, which guards this, is not running"


async def test_it_still_guards_where_no_extension_can_connect(tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("alone") / "home"
    async with faced(home, policy=("*=allow",)) as face, face.connected() as client:
        await client.begin("guarded")
        async with face.connected("/ext?session=guarded&name=afar") as afar:
            await say(afar.socket, HELLO, GUARD, READY)
            await hear(afar.socket, "hello_ack")
    # Nothing listens here, as when a daemon has just begun.
    with at_home(home / "user"):
        async with open_daemon(home, provider="lab", policy=("*=allow",)) as daemon:
            async with daemon.sessions.pool.use("guarded") as session:
                session.prompt(CALL)
                async with asyncio.timeout(PATIENCE_S):
                    await session.worker.finish()
                results = [message for message in session.history.transcript.messages if message.role == "tool"]
            await daemon.close()
    assert "extension afar, which guards this, is not running" in str(results)


NOTICE = json.dumps({"type": "notify", "message": "x" * 60}).encode()
#: More than may wait to be heard.
MONOLOGUE = b"\n".join([NOTICE] * (MAX_UNREAD_BYTES // len(NOTICE)))
#: A thousand frames of a client, masked with zeros.
CHATTER = (bytes((0x81, 0x80 | len(NOTICE), 0, 0, 0, 0)) + NOTICE) * 1000


async def flood(socket: ClientConnection, at_most: int = 1 << 30) -> None:
    """Send faster than any reader, until disconnected or until all is sent."""
    said, way = 0, socket.transport
    while said < at_most and not way.is_closing():
        way.write(CHATTER)
        said += len(CHATTER)
        await until(lambda: way.is_closing() or way.get_write_buffer_size() < len(CHATTER))


@pytest.mark.parametrize("ending", ["its session is closed", "the daemon stops"])
async def test_a_flooding_extension_is_dropped_within_its_deadlines_when(
    tmp_path_factory: pytest.TempPathFactory, ending: str
) -> None:
    deadlines = {"shutdown": 0.1, "terminate": 0.1}
    async with faced(tmp_path_factory.mktemp("flood") / "home", ext_deadlines=deadlines) as face:
        async with face.connected() as client, contextlib.AsyncExitStack() as joined:
            await client.begin("flooded")
            afar = await joined.enter_async_context(face.connected("/ext?session=flooded&name=afar"))
            await say(afar.socket, HELLO, READY)
            await hear(afar.socket, "hello_ack")
            await flood(afar.socket, 1 << 20)
            flooding = asyncio.ensure_future(flood(afar.socket))
            watch = Stopwatch()
            if ending == "the daemon stops":
                await face.daemon.close()
            else:
                await client.call("session/close", {"sessionId": "flooded"})
            assert watch.read_s() < 2  # It was more than four seconds.
            await flooding


@pytest.mark.parametrize("ending", ["hangs up", "says too much to be heard answering a ping"])
async def test_the_end_of_an_extension_is_noticed_after_all_its_frames_when_it(
    tmp_path_factory: pytest.TempPathFactory, ending: str
) -> None:
    limits = Limits() if ending == "hangs up" else Limits(ping_s=0.1, pong_s=0.5)
    async with faced(tmp_path_factory.mktemp("lost") / "home", limits=limits, policy=("*=allow",)) as face:
        async with face.connected() as client:
            session = await client.begin()
            async with face.connected(f"/ext?session={session}&name=afar") as afar:
                await say(afar.socket, HELLO, LOOKUP, READY)
                await hear(afar.socket, "hello_ack")
                prompt = '!script call lookup {"q":"it"} ;; --- ;; say done'
                asked = asyncio.ensure_future(client.prompt(session, prompt))
                await hear(afar.socket, "tool_call")
                if ending == "hangs up":
                    for said in (MONOLOGUE, MONOLOGUE, NOTICE):  # One is being heard, one is all that may wait.
                        await afar.socket.send(said, text=True)
                else:
                    await flood(afar.socket)
            watch = Stopwatch()
            assert (await asked)["result"]["content"] == "done"
        # At the reader's pace, all its frames would have taken more than a minute.
        assert watch.read_s() < 5
        [result] = [one for one in client.updates if one["type"] == "tool_result"]
        assert (result["rawOutput"], result["isError"]) == ("extension afar disconnected", True)
