"""The daemon's socket answers any input, serves the next line, and logs no error."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from child_process import NOBODY, Child
from daemons import PATIENCE_S, Caller, Frame, Running, running
from zot.client.client import LocalLine
from zot.client.endpoint import PeerCredentials
from zot.commands.attach import main as attach
from zot.commands.call import main as call
from zot.commands.daemon_manage import read_status
from zot.config.paths import locate
from zot.errors import UserError
from zot.wire.daemon import METHODS
from zot.wire.lines import MAX_LINE_BYTES

HELLO = b'{"jsonrpc":"2.0","method":"initialize","params":{"protocolVersion":1},"id":"hello"}'
STATUS = b'{"jsonrpc":"2.0","method":"status","id":"status"}'
#: What would end the daemon, or never be answered, if it were understood.
FATAL = {"daemon/stop"}


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as service:
        yield service


async def is_well(caller: Caller) -> None:
    """Check that the connection lives: both are answered."""
    caller.write(HELLO, STATUS)
    assert "result" in await caller.answer("hello")
    assert "result" in await caller.answer("status")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"hello", -32700),
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b"[" * 100_000, -32700),
        (b"\xef\xbb\xbf{}", -32700),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, -32700),
        (b"[]", -32600),
        (b"[" + STATUS + b"]", -32600),
        (b"7", -32600),
        (b'{"jsonrpc":"1.0","method":"status","id":1}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","method":7,"id":1}', -32600),
        (b'{"jsonrpc":"2.0","method":"status","params":[1],"id":1}', -32600),
        (b'{"jsonrpc":"2.0","method":"status","id":{}}', -32600),
        (b'{"jsonrpc":"2.0","method":"nothing","id":1}', -32601),
        (b'{"jsonrpc":"2.0","method":"session/new","params":{},"id":1}', -32602),
    ],
)
async def test_an_invalid_request_is_answered_with_the_reason(daemon: Running, line: bytes, code: int) -> None:
    caller = await daemon.caller()
    caller.write(line)
    answer = await caller.read()
    assert answer["error"]["code"] in (code, -32602 if code == -32600 else code)
    await is_well(caller)


async def test_a_line_without_end_is_refused_and_the_next_one_served(daemon: Running) -> None:
    caller = await daemon.caller()
    for _ in range(17):
        caller.writer.write(b"x" * (1 << 20))
        await caller.writer.drain()
    caller.write(b"")
    answer = await caller.read()
    assert answer["error"]["code"] == -32600
    assert answer["error"]["data"] == {"reason": "frame_too_large", "limitBytes": MAX_LINE_BYTES}
    await is_well(caller)


async def test_bytes_sent_one_at_a_time_give_the_same_answers(daemon: Running) -> None:
    caller = await daemon.stranger()
    for byte in HELLO + b"\r\n\n" + STATUS + b"\n":
        caller.writer.write(bytes([byte]))
        await caller.writer.drain()
        await asyncio.sleep(0)
    assert "result" in await caller.answer("hello")
    assert "result" in await caller.answer("status")


WRONG: list[Any] = [None, 7, -1, 1.5, True, "x", "", [], [1], {}, {"a": 1}, "s", "\u0000", 10**30]


@pytest.mark.parametrize("name", sorted(set(METHODS) - FATAL))
async def test_wrong_parameters_are_always_answered(tmp_path: Path, name: str) -> None:
    fields = [field.encode_name for field in msgspec.structs.fields(METHODS[name].params)]
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        numbers = [caller.call(name, **dict.fromkeys(fields, wrong)) for wrong in WRONG]
        for field in fields:
            rest = {other: "s" for other in fields if other != field}
            numbers += [caller.call(name, **rest, **{field: wrong}) for wrong in WRONG]
        await answered(caller, set(numbers))


async def answered(caller: Caller, numbers: set[int]) -> None:
    """Read until all are answered: with a result, or an error of ours."""
    while numbers:
        frame = await caller.read()
        if "id" in frame and "method" not in frame:
            numbers.discard(frame["id"])
            problem = frame.get("error", {"code": 0, "message": ""})
            assert "internal error" not in problem["message"], frame


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(sorted(set(METHODS) - FATAL)) | st.text(max_size=6)
REQUESTS = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0"), "method": NAMES, "id": st.integers() | st.text(max_size=5) | st.none()},
    optional={"params": JSON},
).map(lambda request: json.dumps(request).encode())
LINES = st.lists(
    REQUESTS | st.binary(max_size=40).filter(lambda line: b"\n" not in line) | JSON.map(json.dumps).map(str.encode),
    max_size=6,
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES, cut=st.integers(1, 50))
def test_garbage_never_ends_a_connection(tmp_path: Path, lines: list[bytes], cut: int) -> None:
    home = tmp_path / os.urandom(8).hex()
    home.mkdir()

    async def converse() -> None:
        async with running(home) as daemon:
            caller = await daemon.caller()
            data = b"".join(line + b"\n" for line in lines)
            for at in range(0, len(data), cut):
                caller.writer.write(data[at : at + cut])
                await caller.writer.drain()
            await is_well(caller)
            assert all("internal error" not in message(frame) for frame in caller.heard)

    asyncio.run(converse())


def message(frame: Frame) -> str:
    return str(frame.get("error", {}).get("message", ""))


async def test_a_flood_of_requests_is_answered_in_full(daemon: Running) -> None:
    caller = await daemon.caller()
    numbers = {caller.call("session/list", query="x") for _ in range(300)} | {caller.call("health") for _ in range(300)}
    await answered(caller, numbers)


async def test_excess_clients_are_refused_and_connected_ones_served(
    daemon: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zot.serve.daemon.daemon.MAX_CLIENTS", 3)
    callers = [await daemon.caller() for _ in range(3)]
    stranger = await daemon.stranger()
    error = {"code": -32004, "message": "there are too many clients; try again later"}
    assert await stranger.rest() == [{"jsonrpc": "2.0", "error": error, "id": None}]
    await callers[0].close()
    for caller in callers[1:]:
        await is_well(caller)
    await is_well(await daemon.stranger())


async def test_a_crowd_is_refused_and_leaves_little_memory(
    daemon: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("zot.serve.daemon.daemon.MAX_CLIENTS", 20)
    caller = await daemon.caller()
    before = len(os.listdir("/proc/self/fd"))
    crowd = [await daemon.stranger() for _ in range(300)]
    turned_away = [one for one in crowd[19:] if (await one.read())["error"]["code"] == -32004]
    assert len(turned_away) == 281
    assert len(caplog.messages) == 100
    await is_well(caller)
    for one in crowd:
        await one.close()
    async with asyncio.timeout(PATIENCE_S):
        while len(daemon.daemon.connections) > 1 or len(os.listdir("/proc/self/fd")) > before:
            await asyncio.sleep(0.01)
    await is_well(await daemon.stranger())


async def test_another_user_is_disconnected_and_that_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    us, hello = os.geteuid(), b'{"jsonrpc":"2.0","method":"initialize","id":1}\n'
    with tempfile.TemporaryDirectory() as directory:
        async with running(Path(directory)) as daemon:
            Path(directory).chmod(0o755)  # As a careless user would, so that only who they are keeps others out.
            Path(daemon.path).chmod(0o666)

            def visit(_: Callable[[], None]) -> str:
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(daemon.path)
                    with suppress(OSError):
                        client.sendall(hello)
                        return repr(client.recv(100))
                return repr(b"")

            if us != 0:  # Only root can become another user; so we are the other one.
                monkeypatch.setattr(os, "geteuid", lambda: us + 1)
            with Child(visit, uid=NOBODY if us == 0 else None) as child:
                assert await asyncio.to_thread(child.report) == repr(b"")
                pid, uid = child.pid, NOBODY if us == 0 else us
            monkeypatch.undo()
            await is_well(await daemon.caller())
            daemon.daemon.parts.audit.flush()
            logs = [(Path(directory) / name).read_text() for name in ("audit.log", "access.log")]
            lines = [json.loads(line) for log in logs for line in log.splitlines()]
    refused = [(one["uid"], one["pid"], one["outcome"]) for one in lines if one["event"] == "refused"]
    assert refused == [(uid, pid, "uid")]
    assert f"refused a connection of unix:pid={pid},uid={uid}: this daemon serves uid" in caplog.text
    assert {one["uid"] for one in lines if one["event"] in ("connected", "call")} == {us}


async def test_the_log_names_the_daemon_s_owner_even_if_the_hang_up_is_noticed_while_sending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
        path = f"{directory}/d.sock"
        listener.bind(path)
        listener.listen()
        line = await LocalLine.open(path, PATIENCE_S)
        listener.accept()[0].close()
        owner = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)

        async def send_much() -> None:
            for _ in range(1000):
                await line.send(b"{}\n" * 1000)
                await asyncio.sleep(0)

        with pytest.raises(ConnectionResetError, match=f"uid {owner}\\) and serves no other user$"):
            await send_much()
        line.close()


async def test_commands_name_the_owner_of_a_daemon_that_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    us = os.geteuid()
    with tempfile.TemporaryDirectory() as directory:
        async with running(Path(directory)) as daemon:
            Path(directory).chmod(0o755)
            Path(daemon.path).chmod(0o666)

            def tried(_: Callable[[], None]) -> str:
                """Return the output of the commands, one per line."""
                monkeypatch.setattr(sys, "stderr", said := StringIO())
                monkeypatch.setattr("zot.client.endpoint.identify", lambda _: PeerCredentials(uid=0, pid=1))
                if us != 0:  # Only root can become another user; so we are the other one.
                    monkeypatch.setattr(os, "geteuid", lambda: us + 1)
                codes = [call(["status", "--socket", daemon.path]), attach(["--new", "--socket", daemon.path])]
                try:
                    problem = read_status(locate(os.environ, socket=daemon.path)).problem
                except UserError as refused:
                    problem = str(refused).removeprefix(f"{daemon.path}: ")
                return f"{codes} {said.getvalue()}{problem}"

            if us != 0:
                monkeypatch.setattr("zot.serve.daemon.daemon.admits", lambda _: False)
            await asyncio.to_thread(os.getpid)  # Load it now: another user may not be able to read Python's files.
            with Child(tried, uid=NOBODY if us == 0 else None) as child:
                told = await asyncio.to_thread(child.report)
    whose = f"it belongs to {pwd.getpwuid(us).pw_name} (uid {us}) and serves no other user"
    assert told.splitlines() == [
        f"[1, 3] zot: the daemon at {daemon.path} does not answer: {whose}",
        f"zot: the daemon did not answer initialize: {whose}",
        whose,
    ]


async def test_a_silent_connection_is_evicted_for_a_new_one(daemon: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zot.serve.daemon.daemon.MAX_CLIENTS", 3)
    caller = await daemon.caller()
    silent, silent_too = await daemon.stranger(), await daemon.stranger()
    await is_well(caller)
    assert (await (await daemon.stranger()).read())["error"]["code"] == -32004, "they have only just come"
    monkeypatch.setattr("zot.serve.daemon.daemon._SILENT_S", 0.0)
    another = await daemon.caller()
    assert await silent.rest() == []
    for one in (caller, another, silent_too):
        await is_well(one)
    assert (await (await daemon.stranger()).read())["error"]["code"] == -32004, "all have said something"
