"""Connections to an address of the daemon: they wait if there is no room, and are encrypted where required."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import zot
from harness import limited
from zot.config.file import Tls
from zot.serve.web import Limits, listen, open_daemon

from .face import PATIENCE_S, Face, faced, until

CERTIFICATES = Path(__file__).parents[2] / "providers" / "tls"


@asynccontextmanager
async def encrypted(home: Path, limits: Limits) -> AsyncIterator[Face]:
    """Open a daemon in ``home`` and let it encrypt."""
    tls = Tls(str(CERTIFICATES / "server.pem"), str(CERTIFICATES / "server.key"))
    async with open_daemon(home, provider="lab") as daemon:
        listening = await listen(daemon, "wss://localhost:0", tls=tls, limits=limits)
        try:
            yield Face(daemon, listening.url, home)
        finally:
            listening.stop()
            await daemon.close()
            await listening.close()


async def test_without_descriptors_connections_wait_and_the_log_has_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with faced(tmp_path) as face:
        come = [socket.create_connection(("127.0.0.1", face.port)) for _ in range(5)]
        lowest = os.dup(0)
        os.close(lowest)
        with caplog.at_level(logging.WARNING), limited(lowest):
            for one in come:
                one.setblocking(False)
                one.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.25):  # Long enough to try twice.
                    await asyncio.get_running_loop().sock_recv(come[0], 100)
        assert caplog.messages == ["connections cannot be accepted for now: Too many open files"]
        async with asyncio.timeout(PATIENCE_S):
            for one in come:
                assert (await asyncio.get_running_loop().sock_recv(one, 100)).startswith(b"HTTP/1.1 200 OK")
                one.close()


async def test_a_stalled_handshake_blocks_no_other_for_long(tmp_path: Path) -> None:
    async with encrypted(tmp_path, Limits(connections=2, head_s=0.3)) as face:
        slow = [socket.create_connection(("127.0.0.1", face.port)) for _ in range(3)]
        await until(lambda: len(face.refusals()) == 3)  # One too many, and two that were too late.
        assert face.refusals() == [(None, "tls")] * 3
        trusting = ssl.create_default_context(cafile=str(CERTIFICATES / "ca.pem"))
        async with face.connected(ssl=trusting) as client:
            assert "result" in await client.call("initialize")
        for one in slow:
            one.close()


async def test_an_unfinished_handshake_is_refused_when_the_daemon_ends(tmp_path: Path) -> None:
    trusting = ssl.create_default_context(cafile=str(CERTIFICATES / "ca.pem"))
    with socket.socket() as late:
        async with encrypted(tmp_path, Limits()) as face:
            late.connect(("127.0.0.1", face.port))
            async with face.connected(ssl=trusting) as client:  # It came later, so the other was accepted, too.
                assert "result" in await client.call("initialize")
        assert face.refusals() == [(None, "tls")]
        late.settimeout(PATIENCE_S)
        with pytest.raises((ConnectionError, ssl.SSLEOFError)):
            await asyncio.to_thread(trusting.wrap_socket, late, server_hostname="localhost")


async def test_our_client_connects_to_a_daemon_with_tls_and_to_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with encrypted(tmp_path, Limits()) as face:
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "ca.pem"))
        async with zot.Client.connect(url=face.url, token=face.token) as client:
            session = await client.session("s")
            assert (await session.prompt("!echo secret").result()).content == "secret"
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(zot.ConnectionLost, match="certificate verify failed"):
            async with zot.Client.connect(url=face.url, token=face.token):
                pass
