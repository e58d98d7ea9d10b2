from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from zot.errors import ConfigError
from zot.providers.lab.http_server import MAX_BODY_BYTES, serve
from zot.providers.lab.script import Script, demo
from zot.providers.lab.stage import LabService

from .talk import CHAT, WAIT_S, Clock, body, serving, texts


def http(data: bytes, *, path: str = "/v1/messages", more: str = "", version: str = "1.1") -> bytes:
    return f"POST {path} HTTP/{version}\r\nhost: lab\r\n{more}content-length: {len(data)}\r\n\r\n".encode() + data


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def head(self) -> tuple[int, dict[str, str]]:
        raw = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in raw[1:-2])
        return int(raw[0].split()[1]), headers

    async def chunks(self) -> list[bytes]:
        """The chunks of a body, until its proper end."""
        found = []
        while size := int(await self.reader.readline(), 16):
            found.append(await self.reader.readexactly(size))
            assert await self.reader.readline() == b"\r\n"
        assert await self.reader.readline() == b"\r\n"
        return found

    async def ask(self, data: bytes) -> tuple[int, bytes]:
        self.writer.write(data)
        status, _ = await self.head()
        return status, b"".join(await self.chunks())

    def close(self) -> None:
        self.writer.close()


async def connect(address: tuple[str, int]) -> Client:
    return Client(*await asyncio.open_connection(*address))


async def test_a_reply_is_streamed_one_event_a_chunk() -> None:
    async with serving() as address:
        client = await connect(address)
        client.writer.write(http(body("!say 3 Hello")))
        status, headers = await client.head()
        chunks = await client.chunks()
        client.close()
    assert status == 200
    assert headers == {
        "request-id": "req_lab_1",
        "x-request-id": "req_lab_1",
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "transfer-encoding": "chunked",
        "connection": "keep-alive",
    }
    assert [chunk.count(b"event: ") for chunk in chunks] == [1] * 8
    assert texts(b"".join(chunks)) == ["He", "ll", "o"]


async def test_requests_arrive_byte_by_byte_and_the_connection_is_kept() -> None:
    async with serving() as address:
        client = await connect(address)
        for byte in http(body("!echo a")):
            client.writer.write(bytes([byte]))
            await client.writer.drain()
        assert (await client.head())[0] == 200
        assert texts(b"".join(await client.chunks())) == ["a"]
        assert texts((await client.ask(http(body("!echo b"))))[1]) == ["b"]
        client.close()


async def test_requests_sent_together_are_answered_in_order() -> None:
    async with serving() as address:
        client = await connect(address)
        client.writer.write(b"".join(http(body(f"!echo {number}")) for number in range(40)))
        heard = []
        for _ in range(40):
            await client.head()
            heard += texts(b"".join(await client.chunks()))
        client.close()
    assert heard == [str(number) for number in range(40)]


async def test_a_request_body_may_be_chunked() -> None:
    data = body("!echo a")
    async with serving() as address:
        client = await connect(address)
        client.writer.write(b"POST /v1/messages HTTP/1.1\r\nhost: lab\r\ntransfer-encoding: chunked\r\n\r\n")
        for part in (data[:10], data[10:]):
            client.writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        assert texts((await client.ask(b"0\r\n\r\n"))[1]) == ["a"]
        client.close()


async def test_a_client_that_expects_100_continue_gets_it() -> None:
    data = body("!echo a")
    async with serving() as address:
        client = await connect(address)
        head, _, rest = http(data, more="expect: 100-continue\r\n").partition(b"\r\n\r\n")
        client.writer.write(head + b"\r\n\r\n")
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert texts((await client.ask(rest))[1]) == ["a"]
        client.close()


@pytest.mark.parametrize("more", ["connection: close\r\n", ""])
async def test_a_connection_that_asks_for_close_is_closed(more: str) -> None:
    async with serving() as address:
        client = await connect(address)
        client.writer.write(http(body("!echo a"), more=more, version="1.1" if more else "1.0"))
        answer = await client.reader.read()
        client.close()
    assert b"connection: close" in answer
    assert (b"transfer-encoding" in answer) is bool(more)
    assert b'"text":"a"' in answer


async def test_a_client_that_stops_writing_is_still_answered() -> None:
    async with serving() as address:
        client = await connect(address)
        client.writer.write(http(body("!echo a")))
        client.writer.write_eof()
        assert b'"text":"a"' in await client.reader.read()
        client.close()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"GET / HTTP/1.1\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 100_000, 431),
        (b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), 413),
    ],
)
async def test_an_invalid_request_is_refused_and_the_connection_closed(data: bytes, status: int) -> None:
    async with serving() as address:
        client = await connect(address)
        client.writer.write(data)
        assert (await client.head())[0] == status
        assert json.loads(b"".join(await client.chunks()))["type"] == "error"
        assert await client.reader.read() == b""
        client.close()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /nope HTTP/1.1\r\n\r\n", 404),
        (b"GET /v1/models HTTP/1.1\r\n\r\n", 200),
        (http(b"{"), 400),
        (http(body("!echo x", stream=False)), 200),
        (http(body("!status 418")), 418),
        (http(body("!echo x"), path=CHAT), 200),
    ],
)
async def test_an_answer_leaves_the_connection_usable(data: bytes, status: int) -> None:
    async with serving() as address:
        client = await connect(address)
        assert (await client.ask(data))[0] == status
        assert (await client.ask(http(body("!echo b"))))[0] == 200
        client.close()


@pytest.mark.parametrize(
    "data", [b"HEAD / HTTP/1.1\r\n\r\n", b"HEAD /v1/models HTTP/1.1\r\n\r\n", http(body("!status 304"))]
)
async def test_some_answers_have_no_body(data: bytes) -> None:
    async with serving() as address:
        client = await connect(address)
        client.writer.write(data)
        assert "transfer-encoding" not in (await client.head())[1]
        assert (await client.ask(http(body("!echo b"))))[0] == 200
        client.close()


async def test_a_refused_connection_is_reset() -> None:
    async with serving() as address:
        client = await connect(address)
        client.writer.write(http(body("!refuse")))
        with pytest.raises(ConnectionResetError):
            await client.reader.read()
        client.close()


@pytest.mark.parametrize(
    ("prompt", "end"),
    [("!cut", b'"half an"}}\n\n\r\n'), ("!cut-utf8", b'"text":"c\xc3\r\n'), ("!cut-json", b'"text":"c\xc3\xbbt"}\r\n')],
)
async def test_a_cut_ends_the_connection_without_the_last_chunk(prompt: str, end: bytes) -> None:
    async with serving() as address:
        client = await connect(address)
        client.writer.write(http(body(prompt)))
        assert (await client.reader.read()).endswith(end)
        client.close()


async def test_a_missing_end_is_a_proper_last_chunk() -> None:
    async with serving() as address:
        client = await connect(address)
        assert (await client.ask(http(body("!no-end"))))[1].endswith(b'"half an"}}\n\n')
        client.close()


async def test_a_stall_lasts_until_the_client_disconnects() -> None:
    async with serving() as address:
        for prompt in ("!stall", "!stall-mid"):
            client = await connect(address)
            client.writer.write(http(body(prompt)))
            if prompt == "!stall-mid":
                assert (await client.head())[0] == 200
            client.close()
        other = await connect(address)
        assert (await other.ask(http(body("!echo b"))))[0] == 200
        other.close()


async def test_pings_flow_until_the_client_disconnects() -> None:
    clock = Clock()
    async with serving(clock=clock) as address:
        client = await connect(address)
        client.writer.write(http(body("!pings")))
        for _ in range(5):
            await client.reader.readuntil(b'{"type":"ping"}\n\n')
        client.close()
    assert set(clock.slept) == {1.0}


async def test_bytes_travel_one_by_one() -> None:
    async with serving() as address:
        client = await connect(address)
        client.writer.write(http(body("!bytes é")))
        await client.head()
        chunks = await client.chunks()
        client.close()
    assert {len(chunk) for chunk in chunks} == {1}
    assert texts(b"".join(chunks)) == ["é"]


async def test_retries_work_across_connections() -> None:
    heard = []
    async with serving() as address:
        for _ in range(3):
            client = await connect(address)
            heard.append((await client.ask(http(body("!retry 2"))))[0])
            client.close()
    assert heard == [529, 529, 200]


async def test_many_clients_are_served_at_once() -> None:
    async def one(address: tuple[str, int], number: int) -> list[str]:
        client = await connect(address)
        _, data = await client.ask(http(body(f"!say 2 client {number}")))
        client.close()
        return texts(data)

    async with serving() as address, asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(address, number)) for number in range(20)]
    assert ["".join(task.result()) for task in tasks] == [f"client {number}" for number in range(20)]


async def test_a_flood_waits_for_a_slow_reader() -> None:
    async with serving() as address:
        client = await connect(address)
        client.writer.write(http(body("!flood 30000")))
        await client.head()
        assert len(await client.chunks()) == 30005
        client.close()


async def test_the_server_ends_when_cancelled_whatever_is_in_progress() -> None:
    async with serving() as address:
        client = await connect(address)
        client.writer.write(http(body("!stall-mid")))
        await client.head()
    assert await asyncio.wait_for(_read_quietly(client), WAIT_S)
    client.close()


async def _read_quietly(client: Client) -> bool:
    with contextlib.suppress(ConnectionResetError):
        await client.reader.read()
    return True


async def test_the_models_can_be_asked_for_without_a_body() -> None:
    async with serving() as address:
        client = await connect(address)
        client.writer.write(b"HEAD /v1/models HTTP/1.1\r\n\r\n")
        assert (await client.reader.readline()).startswith(b"HTTP/1.1 200 ")
        client.close()


async def test_a_port_that_is_taken_is_a_config_error() -> None:
    said: list[str] = []
    async with serving() as (host, port):
        with pytest.raises(ConfigError, match=f"^cannot listen on {host}:{port}: Address already in use$"):
            await serve(LabService(demo()), host=host, port=port, ready=said.append)


async def test_a_script_file_is_served() -> None:
    async with serving(Script.parse('say "mine"')) as address:
        client = await connect(address)
        assert texts((await client.ask(http(body("hi"))))[1]) == ["mine"]
        client.close()
