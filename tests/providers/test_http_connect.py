"""Connections that need more than TCP: TLS, proxies, and both."""

from __future__ import annotations

import asyncio
import gc
import ssl
import warnings
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from asking import ask, user
from local_server import OK, LocalServer, Peer, fetch, headers_of, networked, post, serving

from fakes import KEY
from zot.errors import ConnectionFailed, ConnectionImpossible
from zot.providers.anthropic import AnthropicMessages
from zot.providers.base import Deadlines
from zot.providers.http import client_context
from zot.providers.service import Service

TLS = Path(__file__).parent / "tls"
TRUSTED = {"SSL_CERT_FILE": str(TLS / "ca.pem")}
TUNNEL_OPEN = b"HTTP/1.1 200 Connection established\r\n\r\n"


def server_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


async def answer_always(peer: Peer) -> None:
    with suppress(asyncio.IncompleteReadError):
        while True:
            await peer.answer(OK)


async def say_nothing(peer: Peer) -> None:
    await peer.gone()


def tunnel_to(server: LocalServer) -> Callable[[Peer], Awaitable[None]]:
    """A proxy that leads every tunnel to one server, for any name."""

    async def play(peer: Peer) -> None:
        await peer.answer(TUNNEL_OPEN)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(pump(peer.reader, writer))
                pumps.create_task(pump(reader, peer.writer))
        finally:
            writer.transport.abort()

    return play


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


@pytest.mark.parametrize("trust", [TRUSTED, {"SSL_CERT_DIR": str(TLS / "hashed")}], ids=["file", "directory"])
async def test_https_works_with_a_private_authority_and_keeps_the_connection(trust: dict[str, str]) -> None:
    async with serving(answer_always, tls=server_tls()) as server, networked(trust) as transport:
        for _ in range(2):
            assert await fetch(transport, server.url(scheme="https", host="localhost")) == b"ok"
        assert len(server.peers) == 1
        session = server.peers[0].writer.get_extra_info("ssl_object")
        assert (session.version(), session.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")


async def test_a_large_body_over_tls_arrives_whole() -> None:
    size = 8 * 1024 * 1024
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size

    async def play(peer: Peer) -> None:
        await peer.answer(answer)
        await peer.gone()

    async with serving(play, tls=server_tls()) as server, networked(TRUSTED) as transport:
        response = await post(transport, server.url(scheme="https"), bytes(size))
        sizes = []
        while data := await response.read():
            sizes.append(len(data))
            await asyncio.sleep(0)
        assert sum(sizes) == size
        assert [len(body) for body in server.peers[0].bodies] == [size]


async def test_a_cut_over_tls_is_noticed() -> None:
    async def play(peer: Peer) -> None:
        await peer.answer(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")

    async with serving(play, tls=server_tls()) as server, networked(TRUSTED) as transport:
        response = await post(transport, server.url(scheme="https"))
        assert await response.read() == b"half"
        with pytest.raises(Exception, match="cut short"):
            await response.read()
        response.close()


async def test_an_untrusted_certificate_is_refused_with_advice() -> None:
    async with serving(answer_always, tls=server_tls()) as server, networked() as transport:
        with pytest.raises(ConnectionFailed, match=rf"localhost:{server.port} is not trusted .* SSL_CERT_FILE"):
            await post(transport, server.url(scheme="https", host="localhost"))


async def test_a_certificate_for_another_host_is_refused() -> None:
    async with serving(answer_always, tls=server_tls()) as server, serving(tunnel_to(server)) as proxy:
        env = {**TRUSTED, "HTTPS_PROXY": proxy.url()}
        async with networked(env) as transport:
            with pytest.raises(ConnectionFailed, match="Hostname mismatch"):
                await post(transport, "https://other.example/")


async def test_a_server_without_tls_is_reported_as_such() -> None:
    async def play(peer: Peer) -> None:
        await peer.reader.read(1)
        await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.gone()

    async with serving(play) as server, networked(TRUSTED) as transport:
        with pytest.raises(ConnectionImpossible, match=r"speaks https; .* begins with http://"):
            await post(transport, server.url(scheme="https"))


async def test_a_server_that_hangs_up_in_the_handshake_is_reported_as_such() -> None:
    async def play(peer: Peer) -> None:
        await peer.reader.read(1)

    async with serving(play) as server, networked(TRUSTED) as transport:
        with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{server.port} closed .* during the TLS handshake"):
            await post(transport, server.url(scheme="https"))


async def test_an_unanswered_handshake_is_reported_as_such_and_not_retried() -> None:
    """A server that speaks plain http often waits for the end of a line, which never comes."""
    async with serving(say_nothing) as server, networked(TRUSTED) as transport:
        api = AnthropicMessages(base_url=server.url(scheme="https").rstrip("/"), origin="anthropic")
        asked = Service("anthropic", api, transport, key=KEY, deadlines=Deadlines(connect_s=0.3))
        call = asked.call(ask(user("hi")), Mock(side_effect=AssertionError("it was tried again")))
        with pytest.raises(ConnectionImpossible) as problem:
            await asyncio.wait_for(call.open(), 30)
        assert (
            f"127.0.0.1:{server.port} accepts connections, but did not answer the TLS handshake within 0.3 s:"
            " check that it speaks https"
        ) in str(problem.value)
        assert len(server.peers) == 1


async def test_a_server_that_hangs_up_after_the_handshake_is_noticed_at_once() -> None:
    async def play(peer: Peer) -> None:
        peer.writer.close()

    async with serving(play, tls=server_tls()) as server, networked(TRUSTED) as transport:
        with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{server.port}"):
            await post(transport, server.url(scheme="https"))


async def test_a_missing_certificate_file_is_reported_before_anything_is_sent() -> None:
    env = {"SSL_CERT_FILE": "/nowhere/ca.pem"}
    async with serving(say_nothing) as server, networked(env) as transport:
        with pytest.raises(ConnectionFailed, match="SSL_CERT_FILE"):
            await post(transport, server.url(scheme="https"))
        assert server.peers == []


def test_a_context_always_verifies_and_refuses_old_tls() -> None:
    for env in ({}, TRUSTED):
        context = client_context(env)
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("through", ["tls", "proxy"])
async def test_a_silent_peer_ends_with_the_connect_deadline(through: str) -> None:
    async with serving(say_nothing) as server:
        env = {**TRUSTED, "HTTPS_PROXY": server.url()} if through == "proxy" else TRUSTED
        async with networked(env) as transport:
            with pytest.raises(ConnectionFailed, match=rf"127.0.0.1:{server.port}.* within 0.3 s"):
                await post(transport, server.url(scheme="https"), deadlines=Deadlines(connect_s=0.3))
            await (await server.peer()).gone()


@pytest.mark.parametrize("through", ["tls", "proxy"])
async def test_cancelling_while_connecting_closes_the_connection(through: str) -> None:
    reached = asyncio.Event()

    async def play(peer: Peer) -> None:
        await peer.reader.read(1)
        reached.set()
        await peer.gone()

    async with serving(play) as server:
        env = {**TRUSTED, "HTTPS_PROXY": server.url()} if through == "proxy" else TRUSTED
        async with networked(env) as transport:
            sending = asyncio.create_task(post(transport, server.url(scheme="https")))
            await reached.wait()
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await (await server.peer()).gone()


async def test_cancelling_at_any_moment_of_a_connect_leaves_no_socket() -> None:
    moments, is_over = 0, False
    # What earlier tests left open is not ours to find, and looking through it takes its time on a busy machine.
    gc.collect()
    gc.freeze()
    async with serving(answer_always) as server, networked() as transport:
        while not is_over:
            sending = asyncio.create_task(post(transport, server.url()))
            for _ in range(moments):
                await asyncio.sleep(0)
            is_over = sending.done()
            sending.cancel()
            await asyncio.wait([sending])
            if is_over:
                sending.result().close()
            del sending
            await asyncio.sleep(0)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                gc.collect()
            assert [str(one.message) for one in told] == [], moments
            moments += 1 + moments // 8  # every one of the first; there are the more, the slower the machine
    assert moments > 5


async def test_a_connection_that_is_ready_after_the_transport_was_closed_is_not_used() -> None:
    asked, released = asyncio.Event(), asyncio.Event()

    async def hold(peer: Peer) -> None:
        asked.set()
        await released.wait()
        await tunnel_to(server)(peer)

    async with serving(answer_always, tls=server_tls()) as server, serving(hold) as proxy:
        async with networked({**TRUSTED, "HTTPS_PROXY": proxy.url()}) as transport:
            sending = asyncio.create_task(post(transport, "https://localhost/"))
            await asked.wait()
            await transport.close()
            released.set()
            with pytest.raises(ConnectionFailed, match="has been closed"):
                await sending
            await proxy.peers[0].over.wait()
        assert [peer.heads for peer in server.peers if peer.heads] == []


@pytest.mark.parametrize("host", ["localhost", "localhost."])
async def test_https_goes_through_a_tunnel_with_the_proxys_credentials(host: str) -> None:
    async with serving(answer_always, tls=server_tls()) as server, serving(tunnel_to(server)) as proxy:
        env = {**TRUSTED, "HTTPS_PROXY": f"http://user:p%40ss@127.0.0.1:{proxy.port}"}
        async with networked(env) as transport:
            for _ in range(2):
                assert await fetch(transport, f"https://{host}:1234/v1?key=secret") == b"ok"
        [to_proxy], to_server = proxy.peers[0].heads, server.peers[0].heads
        assert to_proxy.split("\r\n")[0] == f"CONNECT {host}:1234 HTTP/1.1"
        assert headers_of(to_proxy) == {"host": f"{host}:1234", "proxy-authorization": "Basic dXNlcjpwQHNz"}
        assert [head.split("\r\n")[0] for head in to_server] == ["POST /v1?key=secret HTTP/1.1"] * 2
        assert "proxy-authorization" not in headers_of(to_server[0])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 407 Auth\r\ncontent-length: 4\r\n\r\nwhat", "refused .*HTTP 407.*password"),
        (b"HTTP/1.1 403 No\r\n\r\n", "refused .*HTTP 403.*NO_PROXY"),
        (b"", "before an answer"),
        (b"SSH-2.0\r\n", "not valid HTTP"),
        (TUNNEL_OPEN, "closed the connection during the TLS handshake"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"a" * 70_000, "too large headers"),
    ],
)
async def test_a_proxy_that_opens_no_tunnel_is_a_failed_connection(answer: bytes, message: str) -> None:
    async def play(peer: Peer) -> None:
        await peer.answer(answer)

    async with serving(play) as proxy:
        env = {**TRUSTED, "HTTPS_PROXY": f"http://user:secret@127.0.0.1:{proxy.port}"}
        async with networked(env) as transport:
            with pytest.raises(ConnectionFailed, match=message) as refused:
                await post(transport, "https://api.example.com/?key=secret")
    assert f"127.0.0.1:{proxy.port}" in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(("status", "lasting"), [(302, False), (403, True), (407, True), (502, False), (503, False)])
async def test_only_a_decision_of_the_proxy_is_not_retried(status: int, lasting: bool) -> None:
    async def play(peer: Peer) -> None:
        await peer.answer(b"HTTP/1.1 %d No\r\n\r\n" % status)

    async with serving(play) as proxy:
        async with networked({**TRUSTED, "HTTPS_PROXY": proxy.url()}) as transport:
            with pytest.raises(ConnectionFailed) as refused:
                await post(transport, "https://api.example.com/")
    assert isinstance(refused.value, ConnectionImpossible) is lasting


async def test_plain_http_goes_through_a_proxy_with_the_whole_url() -> None:
    async with serving(answer_always) as proxy:
        env = {"HTTP_PROXY": f"http://user:pass@127.0.0.1:{proxy.port}"}
        async with networked(env) as transport:
            for _ in range(2):
                assert await fetch(transport, "http://api.example.com/v1?a=b") == b"ok"
        assert [head.split("\r\n")[0] for head in proxy.peers[0].heads] == [
            "POST http://api.example.com/v1?a=b HTTP/1.1"
        ] * 2
        sent = headers_of(proxy.peers[0].heads[0])
        assert (sent["host"], sent["proxy-authorization"]) == ("api.example.com", "Basic dXNlcjpwYXNz")


async def test_no_proxy_bypasses_the_proxy() -> None:
    async with serving(say_nothing) as proxy, serving(answer_always) as server:
        async with networked({"ALL_PROXY": proxy.url(), "NO_PROXY": "127.0.0.0/8"}) as transport:
            assert await fetch(transport, server.url()) == b"ok"
        assert proxy.peers == []
