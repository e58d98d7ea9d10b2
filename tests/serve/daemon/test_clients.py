"""Real clients: one that speaks the released dialect, lines typed by hand, pipes, and clients that never read."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from daemon_process import eventually
from daemons import PATIENCE_S, Caller, Frame, Running, order, running
from zot.serve.daemon.backlog import MAX_UNREAD_BYTES
from zot.serve.daemon.client_connection import ClientConnection, Handler
from zot.serve.daemon.sockets import LocalWire
from zot.version import __version__


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as service:
        yield service


class Released:
    """A client as it was released: string ids, snake_case, null for omitted values, prompts as notifications."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self._numbers = count()

    async def ask(self, method: str, params: Frame) -> Frame:
        name = f"zc-out-{next(self._numbers)}"
        self.caller.write({"jsonrpc": "2.0", "method": method, "params": params, "id": name})
        return await self.caller.answer(name)

    async def get(self, method: str, **params: Any) -> Frame:
        answer = await self.ask(method, params)
        assert "result" in answer, answer
        result: Frame = answer["result"]
        return result

    async def turn(self, session_id: str, prompt: str) -> list[Frame]:
        """Prompt, and return the messages up to the end of the turn."""
        self.caller.tell("session/prompt", session_id=session_id, prompt=prompt, attachments=None)
        begin = len(self.caller.updates())
        await self.caller.until(type="turn_complete")
        return self.caller.updates()[begin:]


async def test_a_released_client_starts_chats_and_reconnects(daemon: Running) -> None:
    client = Released(await daemon.stranger())
    hello = await client.get(
        "initialize", protocol_version=1, client_capabilities={"elicitation": None}, env={"A": "b"}, tui_id=None,
        tui_sig=None,
    )  # fmt: skip
    assert (hello["protocol_version"], hello["server_version"]) == (1, __version__)
    costs = await client.get("cost/query", agent=None)
    assert (costs["session_cost_usd"], costs["request_count"]) == (0.0, 0)
    [agent] = (await client.get("agents/status"))["agents"]
    assert (agent["alias"], agent["enabled"], agent["channels"], agent["live_sessions"]) == ("default", True, [], 0)
    assert len((await client.get("tui/list"))["tuis"]) == 1
    assert await client.get("config/sections") == {"sections": []}
    assert await client.get("config/templates") == {"templates": []}
    assert (await client.get("session/list-acp"))["sessions"] == []
    assert await client.get("config/list", prefix="todotracker") == {"entries": []}
    opened = await client.get("session/new", agent_alias="default", session_id=None, cwd=None, chat_mode="acp")
    assert await client.get("logs/subscribe") == {"subscribed": True}
    for unknown in ("logs/query", "quickstart/state"):
        assert (await client.ask(unknown, {}))["error"]["code"] == -32601
    assert (await client.get("status"))["session_ids"] == [opened["session_id"]]
    health = await client.get("health")
    assert (health["components"]["daemon"]["status"], health["process"]["rss_bytes"] > 0) == ("ok", True)
    await client.get("session/git_branch", session_id=opened["session_id"])
    heard = await client.turn(opened["session_id"], "!bash echo hi")
    assert [one["type"] for one in heard if one["type"] != "agent_message_chunk"] == [
        "state", "usage", "tool_call", "tool_result", "usage", "turn_complete",
    ]  # fmt: skip
    [call] = [one for one in heard if one["type"] == "tool_call"]
    assert set(call) == {"session_id", "type", "tool_call_id", "name", "raw_input", "seq"}
    assert (heard[-1]["outcome"], heard[-1]["stop_reason"]) == ("completed", "end_turn")
    await client.caller.close()
    again = Released(await daemon.stranger())
    await again.get("initialize", protocol_version=1, tui_id=hello["tui_id"], tui_sig="x")
    resumed = await again.get("session/new", agent_alias="default", session_id=opened["session_id"])
    assert resumed["message_count"] == 4
    assert (await again.get("session/messages", session_id=opened["session_id"]))["total"] == 4
    assert (await again.turn(opened["session_id"], "!echo hello"))[-1]["content"] == "hello"
    await again.get("session/close", session_id=opened["session_id"])


async def test_lines_typed_by_hand_are_answered(daemon: Running) -> None:
    caller = await daemon.stranger()
    caller.write(
        b'{"jsonrpc":"2.0","method":"status","params":{},"id":0}',
        b'{"jsonrpc":"2.0","method":"initialize","params":{"protocolVersion":1},"id":1}',
        b'{"jsonrpc":"2.0","method":"status","params":{},"id":2}',
    )
    assert (await caller.answer(0))["error"]["code"] == -32010
    hello = (await caller.answer(1))["result"]
    assert (hello["protocolVersion"], hello["serverVersion"]) == (1, __version__)
    status = (await caller.answer(2))["result"]
    assert (status["serverVersion"], status["protocolVersion"]) == (__version__, 1)
    assert (status["activeSessions"], status["sessionIds"]) == (0, [])


async def test_a_client_that_pipes_its_lines_gets_every_answer(daemon: Running) -> None:
    caller = await daemon.stranger()
    caller.write(
        b'{"jsonrpc":"2.0","method":"initialize","id":1}',
        b'{"jsonrpc":"2.0","method":"session/new","params":{"agentAlias":"default","sessionId":"s"},"id":2}',
        b'{"jsonrpc":"2.0","method":"session/prompt","params":{"sessionId":"s","prompt":"!slow 5 0.02"}}',
    )
    caller.writer.write(
        b'{"jsonrpc":"2.0","method":"session/prompt","params":{"sessionId":"s","prompt":"!echo b"},"id":3}'
    )
    caller.writer.write_eof()
    heard = await caller.rest()
    assert [one["id"] for one in heard if "id" in one] == [1, 2, 3]
    assert [one["type"] for one in caller.updates()].count("turn_complete") == 2
    late = await daemon.stranger()
    late.write(
        b'{"jsonrpc":"2.0","method":"initialize","id":1}',
        b'{"jsonrpc":"2.0","method":"session/attach","params":{"sessionId":"s","after":0},"id":2}',
    )
    late.writer.write_eof()
    await late.rest()
    assert late.updates() == caller.updates()


async def test_an_ephemeral_daemon_ends_after_its_last_client_and_not_before_its_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zot.serve.daemon.daemon._EPHEMERAL_S", 0.2)
    (tmp_path / "config.toml").write_text("[daemon]\ngrace_s = 0\n")
    async with running(tmp_path, ephemeral=True) as daemon:
        end = asyncio.create_task(daemon.daemon.stopped())
        loop = asyncio.get_running_loop()
        await asyncio.wait({end}, timeout=0.3)
        assert not end.done()
        first = await daemon.caller()
        await first.get("session/new", agentAlias="default", sessionId="s")
        first.call("session/prompt", sessionId="s", prompt="!stall")
        await first.until(type="state")
        await first.close()
        await asyncio.wait({end}, timeout=0.05)
        second = await daemon.caller()
        await asyncio.wait({end}, timeout=0.3)
        assert not end.done()
        began = loop.time()
        await second.close()
        await asyncio.wait_for(end, PATIENCE_S)
        assert loop.time() - began > 0.19
        await daemon.close()
        assert (await daemon.events("s"))[-1][1]["type"] == "done"


async def test_a_client_that_does_not_read_is_disconnected_and_can_resume(daemon: Running) -> None:
    reader = await daemon.caller()
    await reader.get("session/new", agentAlias="default", sessionId="s")
    deaf = socket.socket(socket.AF_UNIX)
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(deaf, daemon.path)
    lines = (
        b'{"jsonrpc":"2.0","method":"initialize","id":1}\n'
        b'{"jsonrpc":"2.0","method":"session/attach","params":{"sessionId":"s","after":0},"id":2}\n'
    )
    await loop.sock_sendall(deaf, lines)
    await asyncio.wait_for(loop.sock_recv(deaf, 1), PATIENCE_S)
    await reader.get("session/prompt", sessionId="s", prompt="!say 3 abc")
    async with asyncio.timeout(PATIENCE_S):  # Missed updates are replayed at the reader's pace; no client is cut off.
        followers = daemon.daemon.sessions.feed("s")._followers
        while len(followers) < 2 or not all(one.is_live for one in followers):
            await asyncio.sleep(0.01)
    big = "x" * (MAX_UNREAD_BYTES // 10)
    for _ in range(5):
        assert (await reader.get("session/prompt", sessionId="s", prompt=f"!echo {big}"))["content"] == big
        await reader.get("session/clear", sessionId="s")
    async with asyncio.timeout(PATIENCE_S):
        while len(daemon.daemon.connections) > 1:  # It has a moment to take what happened in one.
            await asyncio.sleep(0.01)
    got = bytearray(b"{")
    while data := await asyncio.wait_for(loop.sock_recv(deaf, 1 << 16), PATIENCE_S):
        got += data
    deaf.close()
    whole = [json.loads(line) for line in bytes(got).split(b"\n")[:-1]]
    seen = [frame["params"] for frame in whole if "method" in frame]
    again = await daemon.caller()
    again.call("session/attach", sessionId="s", after=seen[-1]["seq"])
    last = reader.updates()[-1]["seq"]
    await again.until(seq=last)
    assert [*seen, *again.updates()] == reader.updates()


async def test_many_sessions_stream_at_the_same_time_and_lose_nothing(daemon: Running) -> None:
    """The full size of this is in bench/."""
    callers = [await daemon.caller() for _ in range(4)]
    names = [f"s{number}" for number in range(40)]
    for number, name in enumerate(names):
        await callers[number % 4].get("session/new", agentAlias="default", sessionId=name)
    asked = [
        (
            callers[number % 4],
            name,
            callers[number % 4].call("session/prompt", sessionId=name, prompt="!script words 50"),
        )
        for number, name in enumerate(names)
    ]
    for caller in callers:
        mine = {number for one, _, number in asked if one is caller}
        while mine:
            mine.discard((await caller.read()).get("id"))
    for caller, name, _ in asked:
        heard = caller.updates(name)
        assert [one["text"] for one in heard if one["type"] == "agent_message_chunk"] == [f"w{n} " for n in range(50)]
        numbers = [one["seq"] for one in heard]
        assert numbers == sorted(set(numbers))
        assert heard[-1]["type"] == "turn_complete"


async def test_unread_answers_do_not_count_as_a_stalled_client(daemon: Running) -> None:
    busy, late = await daemon.caller(), await daemon.caller()
    for name in ("large", "small"):
        await busy.get("session/new", agentAlias="default", sessionId=name)
    await busy.get("session/prompt", sessionId="large", prompt="!echo " + "x" * (MAX_UNREAD_BYTES // 10))
    await late.get("session/new", agentAlias="default", sessionId="small")
    late.reader._transport.pause_reading()  # type: ignore[attr-defined]  # asyncio has no other way not to read
    answers = {late.call("session/messages", sessionId="large") for _ in range(12)}
    await busy.get("session/prompt", sessionId="small", prompt="!say 3 hi")
    await asyncio.sleep(0.3)  # Longer than the limit for a client that does not read.
    late.reader._transport.resume_reading()  # type: ignore[attr-defined]  # as above
    while answers - {frame.get("id") for frame in late.heard} or "turn_complete" not in order(late.heard):
        await late.read()


async def test_a_client_that_reads_nothing_gets_bounded_answers_and_can_still_cancel(daemon: Running) -> None:
    other, greedy = await daemon.caller(), await daemon.caller()
    await other.get("session/new", agentAlias="default", sessionId="large")
    await other.get("session/prompt", sessionId="large", prompt="!echo " + "x" * 400_000)
    (wire,) = (one.wire for one in daemon.daemon.connections if one.name == greedy.heard[0]["result"]["tuiId"])
    greedy.reader._transport.pause_reading()  # type: ignore[attr-defined]  # asyncio has no other way not to read
    numbers = {greedy.call("session/messages", sessionId="large") for _ in range(100)}
    await other.get("session/attach", sessionId="large")
    other.call("session/prompt", sessionId="large", prompt="!stall")
    await other.until(type="state")
    cancel = greedy.call("session/cancel", sessionId="large")
    assert (await other.until(type="turn_complete"))["outcome"] == "cancelled"
    assert wire.unread < 16 << 20
    greedy.reader._transport.resume_reading()  # type: ignore[attr-defined]  # as above
    while (numbers | {cancel}) - {frame.get("id") for frame in greedy.heard}:
        await greedy.read()
        greedy.heard[-1].pop("result", None)


async def test_a_read_of_a_disconnected_client_is_not_carried_out(
    daemon: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[ClientConnection] = []
    handlers = cast("dict[str, Handler]", daemon.daemon.sessions.handlers)
    look_up = handlers["session/messages"]

    async def counted(connection: ClientConnection, params: Any) -> Any:
        looked_up.append(connection)
        return await look_up(connection, params)

    monkeypatch.setitem(handlers, "session/messages", counted)
    other, greedy = await daemon.caller(), await daemon.caller()
    await other.get("session/new", agentAlias="default", sessionId="large")
    await other.get("session/prompt", sessionId="large", prompt="!echo " + "x" * 400_000)
    greedy.reader._transport.pause_reading()  # type: ignore[attr-defined]  # asyncio has no other way not to read
    for _ in range(100):
        greedy.call("session/messages", sessionId="large")
    await eventually(lambda: looking() > 90)
    await other.get("status")
    assert looking() > 90, "they wait for it to read"
    greedy.writer.transport.abort()
    await eventually(lambda: looking() == 0)
    assert len(looked_up) < 10


def looking() -> int:
    return sum(task.get_name() == "zot session/messages" for task in asyncio.all_tasks())


async def test_long_pending_requests_are_bounded(daemon: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zot.serve.daemon.client_connection._MAX_UNANSWERED_BYTES", 100_000)
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    caller.call("session/prompt", sessionId="s", prompt="!stall")
    first, second = (caller.call("session/prompt", sessionId="s", prompt="!echo " + "x" * 60_000) for _ in range(2))
    assert (await caller.answer(second))["error"]["code"] == -32002
    await caller.get("session/cancel", sessionId="s")
    assert "result" in await caller.answer(first)
    assert await caller.get("session/prompt", sessionId="s", prompt="!echo " + "x" * 60_000)


async def test_errors_name_parameters_as_the_connection_spells_them(daemon: Running) -> None:
    caller = await daemon.caller(protocol_version=1)
    assert await caller.error("session/new") == (-32602, "agent_alias is required")
    for method, params, place in (
        ("session/prompt", {"session_id": "s", "attachments": [{"data_b64": "%"}]}, "attachments[0].data_b64"),
        ("session/state", {"session_id": 1}, "session_id"),
        ("initialize", {"protocol_version": "1"}, "protocol_version"),
    ):
        assert (await caller.error(method, **params))[1].startswith(f"params: {place}")
    assert await (await daemon.caller()).error("session/new") == (-32602, "agentAlias is required")


async def test_an_unwritable_client_is_disconnected_alone_and_sees_no_torn_frame_continued(
    daemon: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a write succeeds, then there is no memory for the rest, as when it cannot be copied."""
    unlucky, other = await daemon.stranger(), await daemon.caller()
    [wire] = [one.wire for one in daemon.daemon.connections if not one.is_initialized]
    assert isinstance(wire, LocalWire)
    transport = wire.transport
    await unlucky.get("initialize", protocolVersion=1)
    write, is_failing = type(transport).write, False

    def failing(self: Any, data: bytes) -> None:
        if self is not transport or not is_failing:
            write(self, data)
        elif not self.is_closing():
            write(self, data[: len(data) // 2])
            raise MemoryError

    await other.get("session/new", agentAlias="default", sessionId="s")
    await unlucky.get("session/attach", sessionId="s", after=0)
    monkeypatch.setattr(type(transport), "write", failing)
    is_failing = True
    answer = await other.get("session/prompt", sessionId="s", prompt="!say 50 hello")
    assert answer["stopReason"] == "end_turn"
    assert [one["outcome"] for one in other.updates() if one["type"] == "turn_complete"] == ["completed"]
    said = await asyncio.wait_for(unlucky.reader.read(), 30)
    *whole, torn = said.split(b"\n")
    for line in whole:
        json.loads(line)
    assert torn, "nothing was torn: the fault was not met"
    assert len(daemon.daemon.connections) == 1
