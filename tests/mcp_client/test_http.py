"""Servers over HTTP: both generations, answers in both forms, lost sessions, logins, and the attacks of an address."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from zot.config.flags import McpServer
from zot.mcp.authorization import Authorization, AuthorizationFailed, ServerTokens, StoredToken, challenge_of
from zot.mcp.launch import McpFailed
from zot.mcp.source import McpSource
from zot.mcp.tool_cache import ToolCache
from zot.providers.http import HttpTransport

from .stage import McpStage
from .web_server import WebServer, web_server


def stage(home: Path, web: WebServer, **settings: Any) -> McpStage:
    return McpStage(home, mcp={"s": McpServer(url=web.url, headers={"X-Own": "mine"}, timeout_s=20)}, **settings)


@pytest.mark.parametrize("mode", [("new", "json"), ("new", "sse"), ("old", "json"), ("old", "sse")])
async def test_a_server_over_http_is_called(tmp_path: Path, mode: tuple[str, str]) -> None:
    async with web_server(*mode) as web, stage(tmp_path, web) as session:
        await session.learn()
        assert await session.call("hi é") == ("you said hi é", False)
        _, _, headers, body = next(one for one in web.requests if one[3] and one[3].get("method") == "tools/call")
        assert headers["x-own"] == "mine"
        assert headers["accept"] == "application/json, text/event-stream"
        if "new" in mode:
            assert (headers["mcp-method"], headers["mcp-name"]) == ("tools/call", "echo")
            assert headers["mcp-param-text"] == "=?base64?aGkgw6k=?="
            assert (headers["mcp-protocol-version"], "mcp-session-id" in headers) == ("2026-07-28", False)
            assert "initialize" not in web.methods
        else:
            assert (headers["mcp-protocol-version"], headers["mcp-session-id"]) == ("2025-11-25", "session-1")
            assert "mcp-method" not in headers
        assert body["params"]["arguments"] == {"text": "hi é"}
        await session.session.close()
        assert web.methods[-1] == ("DELETE" if "old" in mode else "tools/call")


async def test_a_forgotten_session_is_begun_again(tmp_path: Path) -> None:
    async with web_server("old", "json") as web, stage(tmp_path, web) as session:
        await session.learn()
        web.sessions += 1
        text, is_error = await session.call("a")
        assert (is_error, "has forgotten the session" in text) == (True, True)
        assert await session.call("b") == ("you said b", False)


async def test_a_failed_request_fails_its_call_alone(tmp_path: Path) -> None:
    async with web_server("new", "dies") as web, stage(tmp_path, web) as session:
        await session.learn()
        assert (await session.call("a"))[1]
        web.mode = ("new", "json")
        assert await session.call("b") == ("you said b", False)
    async with web_server("new", "redirects") as web, stage(tmp_path / "2", web) as session:
        await session.prompt("say hi")
        while session.session.state().mcp[0].state != "failed":
            await asyncio.sleep(0.005)
        assert "redirects elsewhere" in session.session.state().mcp[0].problem


async def test_an_abort_closes_the_request(tmp_path: Path) -> None:
    async with web_server("new", "hangs") as web, stage(tmp_path, web) as session:
        await session.learn()
        session.session.prompt("!script call mcp__s__echo {} ;; --- ;; say done")
        await web.waiting.wait()
        web.gone.clear()
        session.session.abort()
        await session.session.worker.finish()
        await web.gone.wait()


async def test_a_login_is_asked_for_stored_and_refreshed(tmp_path: Path) -> None:
    async with web_server("new", "json") as web:
        web.token = "nobody has this"
        async with stage(tmp_path, web) as session:
            await session.prompt("say hi")
            while session.session.state().mcp[0].state != "login":
                await asyncio.sleep(0.005)
            assert session.session.state().mcp[0].problem == "it requires a login; run: zot mcp login s"
        tokens, transport = ServerTokens(str(tmp_path)), HttpTransport({})
        asked: list[dict[str, list[str]]] = []

        async def browse(url: str) -> None:
            query = parse_qs(urlsplit(url).query)
            asked.append(query)
            back = urlsplit(query["redirect_uri"][0])
            reader, writer = await asyncio.open_connection("127.0.0.1", back.port)
            writer.write(f"GET {back.path}?code=c&state={query['state'][0]} HTTP/1.1\r\n\r\n".encode())
            assert b"200" in await reader.readline()
            writer.close()

        authorization = Authorization(McpSource("s", url=web.url), transport, tokens, browse=browse)
        assert await authorization.challenged("", 401, {"scope": "all"})
        assert await authorization.header() == "Bearer first"
        [query] = asked
        assert (query["scope"], query["resource"], query["code_challenge_method"]) == (["all"], [web.url], ["S256"])
        path = tmp_path / "mcp-auth.json"
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert [*json.loads(path.read_text())] == [web.url]
        async with stage(tmp_path, web) as session:
            await session.learn()
            web.token = "second"  # The first has expired: it is refreshed without a question.
            assert await session.call("x") == ("you said x", False)
            stored = tokens.get(web.url)
            assert stored is not None
            assert (stored.access_token, stored.refresh_token) == ("second", "again")
        assert tokens.get(f"{web.url}/other") is None
        assert tokens.remove(web.url)
        assert not tokens.remove(web.url)
        await transport.close()


LOCAL = [
    "127.0.0.1",
    "localhost",
    "a.localhost.",
    "10.0.0.1",
    "169.254.169.254",
    "127.1",
    "[::1]",
    "[::ffff:127.0.0.1]",
]


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        *(
            (place, "https|unusable")
            for place in ("http://127.0.0.1:1/", "http://169.254.169.254/", "file:///etc/passwd")
        ),
        *((f"https://{host}:1/", "an address of the local network") for host in LOCAL),
    ],
)
async def test_a_login_contacts_no_address_without_https_or_of_the_local_network(place: str, problem: str) -> None:
    transport = HttpTransport({})

    async def browse(url: str) -> None:
        raise AssertionError(url)

    far = Authorization(McpSource("s", url="https://s.example/mcp"), transport, ServerTokens(None), browse=browse)
    with pytest.raises(AuthorizationFailed, match=problem):
        await far.challenged("", 401, {"resource_metadata": place})
    await transport.close()


def test_tokens_are_not_shown() -> None:
    assert "secret" not in repr(StoredToken("secret", "secret", issuer="i"))


def test_a_challenge_is_read() -> None:
    assert challenge_of('Bearer realm="x", scope="a b",error=insufficient_scope') == {
        "realm": "x", "scope": "a b", "error": "insufficient_scope"}  # fmt: skip


#: Bad servers: what they do at the first request, and what `zot mcp list`, the state and the log say.
ZOO = {
    "silent": "was not ready within 0.3 s",
    "endless": "sent 10000 messages in a row that answer nothing",
    "endless-event": "one event of the stream is longer than 16777216 bytes",
    "wrong-ids": "closed the connection without an answer",
    "redirects": "redirects elsewhere (HTTP 307)",
    "insatiable": "answered with HTTP 401",
    "lies": "speaks revision '1999-01-01', which zot does not know",
    "huge-headers": "has too many or too large headers",
}


@pytest.mark.parametrize("mode", ZOO)
async def test_a_bad_server_is_bounded_and_explained(tmp_path: Path, mode: str) -> None:
    async with web_server("old" if mode == "wrong-ids" else "bad", mode) as web, stage(tmp_path, web) as session:
        origin = web.url.removesuffix("/mcp")
        if mode == "insatiable":  # It refuses even tokens that were refreshed just now.
            token = StoredToken("a", refresh_token="r", issuer=origin, token_endpoint=f"{origin}/token")
            ServerTokens(str(tmp_path)).put(web.url, token)
        if mode == "silent":
            session.hurry(start_s=0.3)
        [server] = session.mcp_servers().servers
        async with asyncio.timeout(60):
            with pytest.raises(McpFailed) as failed:
                await server.refresh()
        assert ZOO[mode] in str(failed.value), failed.value
        [state] = session.session.state().mcp
        assert (state.state, state.problem) == ("failed", str(failed.value))
        assert str(failed.value) in session.log_of()
        assert len(web.requests) < 20
        kept = ToolCache(str(tmp_path / "mcp-cache"))
        assert kept.problem(server.source.digest) == str(failed.value)
        web.mode = ("new", "json")
        server._pause_until = 0.0
        await server.refresh()
        assert kept.problem(server.source.digest) == ""


async def test_a_locked_session_uses_no_address(tmp_path: Path) -> None:
    async with web_server("new", "json") as web, stage(tmp_path, web, lock=True) as session:
        await session.prompt("say hi")
        while session.session.state().mcp[0].state != "failed":
            await asyncio.sleep(0.005)
        assert "--lock permits no network" in session.session.state().mcp[0].problem
        assert web.requests == []
