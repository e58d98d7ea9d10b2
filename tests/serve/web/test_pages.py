"""Plain HTTP: requests of the host protocol, metrics, and health."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from zot.client.client import Client
from zot.errors import ConfigError, ConnectionLost
from zot.serve.web import Limits, Tls, app_for, listen, open_daemon

from .face import PATIENCE_S, Face, faced, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

CERTIFICATES = Path(__file__).parents[2] / "providers" / "tls"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def face(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Face]:
    async with faced(tmp_path_factory.mktemp("paged") / "home") as face:
        yield face


def request(prompt: str, session: str = "s", **more: Any) -> dict[str, Any]:
    return {"request_id": "r", "session_id": session, "prompt": prompt, **more}


# /v1/respond


async def test_a_request_is_answered_as_zot_host_answers_it(face: Face) -> None:
    told = await face.respond(request("!echo hello"))
    assert (told.status, told.headers["content-type"]) == (200, "application/json")
    assert json.loads(told.body) == {
        "ok": True, "request_id": "r", "session_id": "s", "text": "hello", "error_code": None, "error_message": None,
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }  # fmt: skip


async def test_the_deadline_of_a_request_is_kept(face: Face) -> None:
    told = await face.respond(request("!stall", "slow", timeout_ms=50))
    assert (told.status, json.loads(told.body)["error_code"]) == (200, "TIMEOUT")


@pytest.mark.parametrize(("key", "status", "soon"), [("k", 503, "1"), (None, 500, None)])
async def test_a_request_is_answered_when_the_daemon_stops(
    tmp_path: Path, key: str | None, status: int, soon: str | None
) -> None:
    """With a key it can be sent again: then the next daemon continues it."""
    async with faced(tmp_path / "home") as face:
        waiting = asyncio.ensure_future(face.respond(request("!stall", idempotency_key=key)))
        await until(lambda: any(task.get_name() == "zot run" for task in asyncio.all_tasks()))
        face.daemon.stop(grace_s=0)
        async with asyncio.timeout(PATIENCE_S):
            await face.daemon.close()
            told = await waiting
    answer = json.loads(told.body)
    assert (told.status, told.headers.get("retry-after")) == (status, soon)
    assert (answer["ok"], answer["request_id"], answer["error_code"]) == (False, "r", "INTERNAL")
    assert answer["error_message"].startswith("the daemon is stopping")


async def test_the_same_key_is_answered_once(face: Face) -> None:
    first, second = [await face.respond(request("!echo once", "keyed", idempotency_key="k")) for _ in range(2)]
    assert json.loads(second.body) == {**json.loads(first.body), "replayed": True}


async def test_an_abandoned_answer_is_kept(face: Face) -> None:
    asked = request("!script wait 100ms ;; say late", "left", idempotency_key="k")
    answered = face.daemon.metrics.responses
    body = json.dumps(asked).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", face.port)
    head = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": len(body), **face.bearer}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    writer.write(f"POST /v1/respond HTTP/1.1\r\n{lines}\r\n".encode() + body)
    await writer.drain()
    writer.close()
    del reader
    await until(lambda: face.daemon.metrics.responses > answered)
    told = json.loads((await face.respond(asked)).body)
    assert (told["text"], told["replayed"]) == ("late", True)


BAD = {
    "no JSON": (b"{", "unknown"),
    "nothing": (b"", "unknown"),
    "no prompt": (b'{"request_id":"r","session_id":"s"}', "r"),
    "another type": (b'{"request_id":"r","type":"ping"}', "r"),
    "another version": (b'{"request_id":"r","session_id":"s","prompt":"x","protocol_version":2}', "r"),
}


@pytest.mark.parametrize("name", BAD)
async def test_an_invalid_request_is_answered_in_the_same_form(face: Face, name: str) -> None:
    body, request_id = BAD[name]
    headers = {"Content-Type": "application/json; charset=utf-8", **face.bearer}
    told = await face.ask("POST", "/v1/respond", body=body, headers=headers)
    answer = json.loads(told.body)
    assert (told.status, answer["error_code"], answer["request_id"]) == (400, "INVALID_REQUEST", request_id)


async def test_our_page_and_a_configured_one_may_call(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text('[daemon]\nhosts = ["zot.example"]\norigins = ["https://my.example"]\n')
    async with faced(home) as face:
        for host, origin in (
            (None, f"http://127.0.0.1:{face.port}"),
            ("localhost:9", "http://localhost:9"),
            ("ZOT.example", "https://my.example"),
            ("[::1]:80", "http://[::1]:80"),
        ):
            told = await face.ask(path="/healthz", host=host, headers={"Origin": origin})
            assert (told.status, told.body) == (200, b"ok\n")


# Metrics.


async def test_metrics_count_events(tmp_path: Path) -> None:
    async with faced(tmp_path / "home") as face:
        async with face.connected() as client:
            session = await client.begin()
            await client.prompt(session, "!echo hello")
            await client.call("session/prompt", {"sessionId": "nobody's", "prompt": "x"})
            await face.respond(request("!echo hello"))
            await face.ask(path="/metrics")
            told = await face.ask(path="/metrics", headers=face.bearer)
        sizes = sum(len(json.dumps(one, separators=(",", ":"))) for one in client.updates)
    assert told.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = {name: float(value) for name, value in re.findall(r"^(zot_\w+) (\S+)$", told.body.decode(), re.MULTILINE)}
    exact = {name: value for name, value in found.items() if not name.endswith(("bytes", "seconds", "bytes_total"))}
    assert exact == {
        "zot_connections_total": 1, "zot_calls_total": 4, "zot_errors_total": 1, "zot_runs_total": 1,
        "zot_responses_total": 1, "zot_updates_total": len(client.updates), "zot_cut_off_total": 0,
        "zot_refused_total": 1, "zot_clients": 1, "zot_sessions": 1, "zot_running": 0,
    }  # fmt: skip
    assert found["zot_update_bytes_total"] > sizes
    assert found["zot_journal_bytes"] > 4096
    assert found["zot_rss_bytes"] > 1 << 20
    names = re.findall(r"^# TYPE (\S+)", told.body.decode(), re.MULTILINE)
    assert names == re.findall(r"^# HELP (\S+)", told.body.decode(), re.MULTILINE) == [*found]


# Where it can be.


async def test_an_address_may_have_a_path_before_ours(tmp_path: Path) -> None:
    async with faced(tmp_path / "home", path="/agents") as face:
        assert face.url.endswith("/agents")
        assert (await face.ask(path="/agents/healthz")).status == 200
        assert (await face.ask(path="/healthz")).status == 404
        for path in ("", "/", "/ws"):
            async with face.connected(path) as client:
                assert "result" in await client.call("initialize")
        async with Client.connect(url=face.url, token=face.token) as ours:
            assert (await ours.status()).listens == (face.url,)


async def test_our_client_reports_a_wrong_path(tmp_path: Path) -> None:
    async with faced(tmp_path / "home", path="/agents") as face:
        for url in (f"{face.url}s", f"{face.url}/wss"):
            with pytest.raises(ConnectionLost, match="404: there is nothing at this path"):
                async with Client.connect(url=url, token=face.token):
                    pass
        assert face.refusals() == [(None, "404")] * 2


async def test_it_can_be_mounted_in_a_foreign_application_and_server(tmp_path: Path) -> None:
    def theirs(_: Request) -> PlainTextResponse:
        return PlainTextResponse("theirs")

    async with open_daemon(tmp_path, provider="lab") as daemon:
        app = Starlette(routes=[Route("/", theirs), Mount("/zot", app_for(daemon))])
        async with served_by_others(app) as port:
            face = Face(daemon, f"ws://127.0.0.1:{port}/zot", tmp_path)
            assert (await face.ask(path="/")).body == b"theirs"
            assert (await face.ask(path="/zot/healthz")).body == b"ok\n"
            assert (await face.ask(path="/zot/metrics")).status == 401
            assert (await face.ask(path="/zot/metrics", host="evil.example", headers=face.bearer)).status == 421
            with pytest.raises(ConnectionLost, match=r"403: no daemon answers at this path.* ends with a slash"):
                async with Client.connect(url=face.url, token=face.token):
                    pass
            async with face.connected("/") as client, face.connected("/ws") as slow:
                session = await client.begin()
                told = await client.prompt(session, "!echo hello")
                assert told["result"]["content"] == "hello"
                await slow.call("initialize")
                for connection in daemon.connections:
                    connection.wire.cut("somebody does not read")
                for one in (client, slow):
                    async with asyncio.timeout(PATIENCE_S):
                        await one.socket.wait_closed()
            await until(lambda: daemon.connections == ())


@asynccontextmanager
async def served_by_others(app: Starlette) -> AsyncIterator[int]:
    """Serve an application with the usual server; return the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="websockets-sansio"))
    task = asyncio.ensure_future(server.serve([listener]))
    await until(lambda: server.started)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def test_with_a_certificate_the_traffic_is_encrypted(tmp_path: Path) -> None:
    import ssl

    tls = Tls(str(CERTIFICATES / "server.pem"), str(CERTIFICATES / "server.key"))
    trusting = ssl.create_default_context(cafile=str(CERTIFICATES / "ca.pem"))
    async with open_daemon(tmp_path, provider="lab") as daemon:
        listening = await listen(daemon, "wss://127.0.0.1:0", tls=tls, limits=Limits(head_s=0.2))
        face = Face(daemon, listening.url, tmp_path)
        async with face.connected(ssl=trusting, server_hostname="localhost") as client:
            assert "result" in await client.call("initialize")
        assert (await face.send(b"")).status == 0  # Who does not begin to encrypt is hung up on.
        listening.stop()
        await listening.close()


WRONG = {
    "elsewhere, for all to read": ("ws://192.0.2.1:1", None, r"ws://192\.0\.2\.1:1: .*others could read.*wss://"),
    "everywhere, for all to read": ("ws://0.0.0.0:0", None, r"others could read"),
    "a name, for all to read": ("ws://example.test:1", None, r"others could read"),
    "no certificate": ("wss://127.0.0.1:0", None, r"needs a certificate: --tls-cert FILE"),
    "a certificate that is not there": ("wss://127.0.0.1:0", Tls("nowhere.pem"), r"nowhere\.pem: .*No such file"),
    "no address": ("http://127.0.0.1:0", None, r"expected addresses such as ws://"),
    "an address that is not ours": ("wss://192.0.2.1:1", "right", r"cannot listen at wss://192\.0\.2\.1:1: "),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_forbidden_listen_address_is_reported(face: Face, name: str) -> None:
    url, tls, reason = WRONG[name]
    if tls == "right":
        tls = Tls(str(CERTIFICATES / "server.pem"), str(CERTIFICATES / "server.key"))
    assert tls is None or isinstance(tls, Tls)
    with pytest.raises(ConfigError, match=reason):
        await listen(face.daemon, url, tls=tls)


async def test_an_address_in_use_is_reported(face: Face) -> None:
    with pytest.raises(ConfigError, match=rf"^cannot listen at {face.url}: Address already in use"):
        await listen(face.daemon, face.url)
    async with asyncio.timeout(PATIENCE_S):
        assert (await face.ask(path="/healthz")).status == 200
