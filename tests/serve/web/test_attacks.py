"""Attacks by strangers over HTTP: each is refused, logged, and has no effect; no token is ever logged."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from websockets.exceptions import ConnectionClosed, InvalidStatus

from zot.serve.web import Limits, listen

from .face import PATIENCE_S, Face, faced, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: As small as can be told apart from what is right.
LIMITS = Limits(connections=24, head=4096, head_s=0.3, body=2048, body_s=0.3, message=4096, fragments=8)
RUN = b'{"request_id":"r","session_id":"stranger","prompt":"hi"}'
JSON = {"Content-Type": "application/json"}
UPGRADE = {
    "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}  # fmt: skip

MANY = {f"X{number}": "y" for number in range(140)}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def face(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Face]:
    async with faced(tmp_path_factory.mktemp("attacked") / "home", limits=LIMITS) as face:
        yield face


async def refused(face: Face, count: int) -> list[tuple[str | None, str]]:
    """Return the recent refusals, and check that no request had an effect."""
    assert face.daemon.sessions.pool.ids == ()
    assert [one for one in face.audited() if one["event"] in ("call", "connected")] == []
    return face.refusals()[count:]


#: What is wanted, with what; and what comes of it: the status, and the line in the audit log.
Attack = tuple[dict[str, Any], dict[str, str], int, tuple[str | None, str]]
POST: dict[str, Any] = {"method": "POST", "path": "/v1/respond", "body": RUN}
ATTACKS: Mapping[str, Attack] = {
    "a page elsewhere": (POST, {**JSON, "Origin": "https://evil.example"}, 403, (None, "403 origin")),
    "a page from nowhere": (POST, {**JSON, "Origin": "null"}, 403, (None, "403 origin")),
    "a page on another port": (POST, {**JSON, "Origin": "http://127.0.0.1:1"}, 403, (None, "403 origin")),
    "a page elsewhere that looks": ({"path": "/metrics"}, {"Origin": "http://evil.example"}, 403, (None, "403 origin")),
    "a name that leads here": ({**POST, "host": "evil.example"}, JSON, 421, (None, "421 host")),
    "a name that leads here, with the port": ({**POST, "host": "evil.example:80"}, JSON, 421, (None, "421 host")),
    "a name that begins like ours": ({**POST, "host": "127.0.0.1.evil.example"}, JSON, 421, (None, "421 host")),
    "a user before a name": ({**POST, "host": "127.0.0.1@evil.example"}, JSON, 421, (None, "421 host")),
    "the health, by another name": ({"path": "/healthz", "host": "evil.example"}, {}, 421, (None, "421 host")),
    "two names": ({"path": "/healthz"}, {"host": "evil.example"}, 421, (None, "421 host")),
    "a form": (POST, {"Content-Type": "text/plain"}, 415, ("/v1/respond", "415")),
    "a form of parts": (POST, {"Content-Type": "multipart/form-data; boundary=x"}, 415, ("/v1/respond", "415")),
    "no type": (POST, {}, 415, ("/v1/respond", "415")),
    "two types": (POST, {**JSON, "content-type": "text/plain"}, 415, ("/v1/respond", "415")),
    "much": ({**POST, "body": b" " * 2049}, JSON, 413, ("/v1/respond", "413")),
    "another verb": ({"method": "GET", "path": "/v1/respond"}, {}, 405, (None, "405")),
    "PUT": ({**POST, "method": "PUT"}, JSON, 405, (None, "405")),
    "DELETE": ({"method": "DELETE", "path": "/metrics"}, {}, 405, (None, "405")),
    "OPTIONS": ({"method": "OPTIONS", "path": "/v1/respond"}, {}, 405, (None, "405")),
    "TRACE": ({"method": "TRACE", "path": "/healthz"}, {}, 405, (None, "405")),
    "POST to what is looked at": ({**POST, "path": "/healthz"}, JSON, 405, (None, "405")),
    "a path upwards": ({"path": "/../../etc/passwd"}, {}, 404, (None, "404")),
    "a path upwards, in disguise": ({"path": "/healthz/%2e%2e/%2e%2e/etc/passwd"}, {}, 404, (None, "404")),
    "a path with a zero": ({"path": "/%00"}, {}, 404, (None, "404")),
    "the file of tokens": ({"path": "/token"}, {}, 404, (None, "404")),
    "a WebSocket elsewhere": ({"path": "/nowhere"}, UPGRADE, 404, (None, "404")),
    "a WebSocket of a page elsewhere": ({}, {**UPGRADE, "Origin": "https://evil.example"}, 403, (None, "403 origin")),
    "a WebSocket of a page from nowhere": ({}, {**UPGRADE, "Origin": "null"}, 403, (None, "403 origin")),
    "a WebSocket by another name": ({"host": "evil.example"}, UPGRADE, 421, (None, "421 host")),
    "a WebSocket of another version": ({}, {**UPGRADE, "Sec-WebSocket-Version": "12"}, 400, (None, "400 handshake")),
    "a WebSocket without a key": ({}, {**UPGRADE, "Sec-WebSocket-Key": "x"}, 400, (None, "400 handshake")),
    "a WebSocket with a body": (POST | {"path": "/"}, UPGRADE, 400, (None, "400 handshake")),
    "a WebSocket with many headers": ({}, UPGRADE | MANY, 400, (None, "400 handshake")),
    "a head that is none": ({"method": "GET\x01"}, {}, 400, (None, "400 http")),
    "a long head": ({"path": "/healthz"}, {"X": "x" * 70_000}, 431, (None, "431 head")),
    "a long address": ({"path": "/" + "x" * 70_000}, {}, 431, (None, "431 head")),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
async def test_a_request_from_a_foreign_place_is_refused_whatever_its_token(face: Face, name: str) -> None:
    asked, headers, status, noted = ATTACKS[name]
    before = len(face.refusals())
    told = await face.ask(**asked, headers={**face.bearer, **headers})
    assert (told.status, await refused(face, before)) == (status, [noted])


def _wrong(token: str) -> dict[str, dict[str, str]]:
    return {
        "none": {},
        "empty": {"Authorization": "Bearer "},
        "a wrong one": {"Authorization": f"Bearer {'A' * len(token)}"},
        "one letter less": {"Authorization": f"Bearer {token[:-1]}"},
        "one letter more": {"Authorization": f"Bearer {token}A"},
        "the beginning": {"Authorization": f"Bearer {token[:8]}"},
        "another case": {"Authorization": f"Bearer {token.swapcase()}"},
        "another scheme": {"Authorization": f"Basic {token}"},
        "no scheme": {"Authorization": token},
        "two": {"Authorization": f"Bearer {token}", "authorization": f"Bearer {token}"},
        "strange letters": {"Authorization": "Bearer \u00ff\u00fe"},
        "a cookie": {"Cookie": f"token={token}"},
    }


@pytest.mark.parametrize("name", _wrong(""))
async def test_a_request_without_a_token_gets_nothing(face: Face, name: str) -> None:
    headers = _wrong(face.token)[name]
    before = len(face.refusals())
    page = await face.ask(path="/metrics", headers=headers)
    post = await face.ask("POST", "/v1/respond", body=RUN, headers={**JSON, **headers})
    talk = await face.ask(headers={**UPGRADE, **headers})
    assert [one.status for one in (page, post, talk)] == [401, 401, 401]
    assert [one.headers["www-authenticate"] for one in (page, post, talk)] == ["Bearer"] * 3
    needed = b"a token is needed, as Authorization: Bearer or as a subprotocol\n"
    assert [one.body for one in (page, post, talk)] == [needed] * 3
    assert await refused(face, before) == [("/metrics", "401"), ("/v1/respond", "401"), ("/", "401")]


@pytest.mark.parametrize("query", ["token={}", "x=1&access_token={}", "%74oken={}", "TOKEN={}"])
async def test_a_token_in_an_address_is_refused_even_if_it_is_right(face: Face, query: str) -> None:
    before = len(face.refusals())
    path = f"/metrics?{query.format(face.token)}"
    page, talk = await face.ask(path=path), await face.ask(path=path.replace("/metrics", "/"), headers=UPGRADE)
    assert (page.status, talk.status) == (400, 400)
    assert await refused(face, before) == [(None, "400 token_in_url")] * 2


@pytest.mark.parametrize(
    "names", ["zot.v1, zot.token.wrong", "zot.v1", "zot.token.", "zot.v1, zot.token.{0}, zot.token.{0}"]
)
async def test_a_subprotocol_without_the_token_is_refused(face: Face, names: str) -> None:
    before = len(face.refusals())
    told = await face.ask(headers={**UPGRADE, "Sec-WebSocket-Protocol": names.format(face.token)})
    assert (told.status, await refused(face, before)) == (401, [("/", "401")])


@pytest.mark.parametrize("begun", [b"", b"GET /hea", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-"])
async def test_a_connection_that_does_not_finish_the_head_is_closed(face: Face, begun: bytes) -> None:
    before = len(face.refusals())
    told = await face.send(begun)
    assert (told.status, await refused(face, before)) == (408, [(None, "408 head")])


async def test_a_second_request_on_a_connection_has_the_same_deadline_as_the_first(face: Face) -> None:
    before = len(face.refusals())
    head = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{face.port}\r\n".encode()
    told = await face.send(head + b"\r\n" + head)
    assert told.status == 200
    assert b"HTTP/1.1 408 " in told.body
    assert await refused(face, before) == [(None, "408 head")]


async def test_a_connection_that_does_not_finish_the_body_is_closed(face: Face) -> None:
    before = len(face.refusals())
    head = "\r\n".join(f"{name}: {value}" for name, value in {**JSON, **face.bearer}.items())
    said = f"POST /v1/respond HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}\r\nContent-Length: 100\r\n\r\n{{"
    told = await face.send(said.encode())
    assert (told.status, await refused(face, before)) == (408, [("/v1/respond", "408")])


async def test_excess_connections_are_refused_and_the_others_served(face: Face) -> None:
    before = len(face.refusals())
    async with contextlib.AsyncExitStack() as held:
        for _ in range(LIMITS.connections):
            await held.enter_async_context(face.connected())
        told = await face.ask(path="/healthz")
        assert told.status == 503
    async with asyncio.timeout(PATIENCE_S):
        while (await face.ask(path="/healthz")).status != 200:
            pass
    assert set(face.refusals()[before:]) == {(None, "503 connections")}


FRAMES: Mapping[str, tuple[Any, int]] = {
    "bytes": (b"{}", 1003),
    "a long message": ("x" * 4097, 1009),
    "a long message in pieces": (["x" * 2000] * 3, 1009),
    "many pieces": (["x"] * 12, 1009),
}


@pytest.mark.parametrize("name", FRAMES)
async def test_an_invalid_message_ends_the_connection(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    frame, code = FRAMES[name]
    async with faced(tmp_path_factory.mktemp("frames") / "home", limits=LIMITS) as face:
        async with face.connected() as client:
            await client.socket.send(frame)
            with pytest.raises(ConnectionClosed) as ended:
                await client.read()
        assert ended.value.rcvd is not None
        assert (ended.value.rcvd.code, face.refusals()) == (code, [("frame", str(code))])
        await until(lambda: face.daemon.connections == ())


async def test_the_longest_line_of_the_daemon_is_the_longest_message(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with faced(tmp_path_factory.mktemp("lines") / "home") as face:
        face.daemon.max_line_bytes = 1000
        listening = await listen(face.daemon, "ws://127.0.0.1:0")
        try:
            async with Face(face.daemon, listening.url, face.home).connected() as client:
                assert (await client.call("initialize"))["result"]["maxLineBytes"] == 1000
                await client.socket.send("x" * 1001)
                with pytest.raises(ConnectionClosed) as ended:
                    await client.read()
            assert ended.value.rcvd is not None
            assert ended.value.rcvd.code == 1009
        finally:
            listening.stop()
            await listening.close()


async def test_no_log_and_no_answer_has_a_token_in_it(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.INFO, "websockets.client")  # The client's own log may have the token.
    home = tmp_path_factory.mktemp("planted") / "home"
    (home / "data").mkdir(parents=True, mode=0o700)
    planted = "planted-0123456789-planted-0123456789"
    (home / "data" / "token").touch(mode=0o600)
    (home / "data" / "token").write_text(f"phone:{planted}\n")
    said = b""
    async with faced(home, limits=LIMITS) as face:
        face.token = planted
        for path in ("/metrics", f"/metrics?token={planted}", f"/{planted}", f"/?{planted}"):
            for headers in (face.bearer, {**UPGRADE, "Sec-WebSocket-Protocol": f"zot.v1, zot.token.{planted}x"}):
                said += repr(await face.ask(path=path, headers=headers)).encode()
        said += repr(await face.ask(method=planted)).encode()
        said += repr(await face.ask("POST", "/v1/respond", body=planted.encode(), headers=face.bearer)).encode()
        with pytest.raises(InvalidStatus):
            async with face.connected(subprotocols=["zot.v1", f"zot.token.{planted}"]):
                pass  # Two tokens are too many.
        async with face.connected(additional_headers={}, subprotocols=["zot.v1", f"zot.token.{planted}"]) as client:
            assert client.socket.subprotocol == "zot.v1"
            said += repr(await client.call("initialize")).encode()
            said += repr(await client.call("status")).encode()
        assert [one["token"] for one in face.audited() if one["event"] == "connected"] == ["phone"]
    written = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file() and path.name != "token")
    shown = capfd.readouterr()
    told = (written, said, caplog.text.encode(), (shown.out + shown.err).encode())
    assert [text.count(planted.encode()) for text in told] == [0, 0, 0, 0]
