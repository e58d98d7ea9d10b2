"""Strangers at the daemon's address, and repositories that it looks into: none makes it wait, or misleads it."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from serve.web.face import PATIENCE_S, Face, faced
from zot.serve.daemon.catalog import CheckedOut, checked_out
from zot.serve.web import Limits

from .privilege import thorough

COMMIT = "0123456789abcdef0123456789abcdef01234567"
#: No test may end because a deadline for a head or a body has passed.
PATIENT = Limits(connections=32, idle=8, head_s=600, body_s=600)


@pytest.mark.parametrize(
    "target",
    ["http://evil.example/healthz", "http://evil.example", "//evil.example/healthz", "HTTP://evil.example:80/healthz",
     "https://127.0.0.1@evil.example/healthz", "ftp://127.0.0.1/healthz", "evil.example:443"],
)  # fmt: skip
@pytest.mark.parametrize("upgrades", [False, True])
async def test_a_target_with_a_foreign_host_is_refused(target: str, upgrades: bool, tmp_path: Path) -> None:
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
               "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="} if upgrades else {}  # fmt: skip
    async with faced(tmp_path / "home", limits=PATIENT) as face:
        told = await face.ask(path=target, headers={**face.bearer, **headers})
        assert told.status in (421, 400)
        assert b"ok" not in told.body


async def test_a_target_with_our_own_host_is_served(tmp_path: Path) -> None:
    async with faced(tmp_path / "home", limits=PATIENT) as face:
        host = f"127.0.0.1:{face.port}"
        assert (await face.ask(path=f"http://{host}/healthz")).status == 200
        assert (await face.ask(path="http://evil.example/healthz", host="evil.example")).status == 421


@pytest.mark.parametrize("length", [1 << 20 | 1, 10**12, 2**63 - 1])
async def test_a_length_beyond_the_limit_is_refused_at_once(length: int, tmp_path: Path) -> None:
    async with faced(tmp_path / "home", limits=PATIENT) as face:
        lines = ["POST /v1/respond HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json",
                 f"Authorization: Bearer {face.token}", f"Content-Length: {length}", "", ""]  # fmt: skip
        assert (await face.send("\r\n".join(lines).encode())).status == 413


async def silent(face: Face, held: ExitStack, number: int, said: bytes) -> list[socket.socket]:
    """Open connections that never complete a request."""
    opened = []
    for _ in range(number):
        one = held.enter_context(socket.create_connection(("127.0.0.1", face.port), timeout=PATIENCE_S))
        one.sendall(said)
        opened.append(one)
        await asyncio.sleep(0)  # Otherwise the backlog would be full before the first is accepted.
    return opened


@pytest.mark.parametrize(
    "said", [b"", b"GET / HT", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"], ids=["nothing", "half", "idle"]
)
async def test_connections_without_a_request_delay_no_client(said: bytes, tmp_path: Path) -> None:
    async with faced(tmp_path / "home", limits=PATIENT) as face:
        with ExitStack() as held:
            opened = await silent(face, held, 5 * PATIENT.connections, said)
            async with face.connected() as client:
                assert "result" in await client.call("initialize")
            assert (await face.ask(path="/healthz")).status == 200
            answered = await asyncio.to_thread(opened[0].recv, 1 << 16)
            assert answered.startswith((b"HTTP/1.1 408", b"HTTP/1.1 200"))


@thorough
@pytest.mark.parametrize("said", [b"", b"GET / HT"], ids=["nothing", "half"])
async def test_seven_hundred_half_open_connections_delay_no_other_client(said: bytes, tmp_path: Path) -> None:
    """With the usual limits, but short deadlines, so that no test waits for one."""
    async with faced(tmp_path / "home", limits=Limits(head_s=600, body_s=600)) as face:
        with ExitStack() as held:
            await silent(face, held, 700, said)
            async with face.connected() as client:
                assert "result" in await client.call("initialize")
            assert (await face.ask(path="/healthz")).status == 200


@pytest.mark.parametrize(
    "limits", [Limits(connections=600, idle=4, head_s=600), Limits(connections=8, idle=600, head_s=600)]
)
async def test_each_peer_and_all_peers_together_are_bounded(limits: Limits, tmp_path: Path) -> None:
    async with faced(tmp_path / "home", limits=limits) as face:
        with ExitStack() as held:
            opened = await silent(face, held, 12, b"")
            assert (await face.ask(path="/healthz")).status == 200
            answered = await asyncio.to_thread(opened[0].recv, 1 << 16)
            assert answered.startswith(b"HTTP/1.1 408")


async def test_silent_connections_do_not_evict_a_connected_client(tmp_path: Path) -> None:
    async with faced(tmp_path / "home", limits=PATIENT) as face, face.connected() as client:
        await client.call("initialize")
        with ExitStack() as held:
            await silent(face, held, 5 * PATIENT.connections, b"")
            assert "result" in await client.call("status")


@pytest.fixture
def git(tmp_path: Path) -> Path:
    git = tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "refs" / "heads" / "main").write_text(f"{COMMIT}\n")
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    return git


@pytest.mark.parametrize("name", ["HEAD", "commondir", "packed-refs", "refs/heads/main"])
async def test_a_pipe_or_a_device_in_a_repository_does_not_block(name: str, git: Path) -> None:
    assert checked_out(str(git.parent)) == CheckedOut("main", COMMIT[:7])
    (git / name).unlink(missing_ok=True)
    if name == "packed-refs":
        (git / "refs" / "heads" / "main").unlink()
    os.mkfifo(git / name)
    async with asyncio.timeout(PATIENCE_S):
        found = await asyncio.to_thread(checked_out, str(git.parent))
    assert found in (CheckedOut(), CheckedOut("main"), CheckedOut("main", COMMIT[:7]))
    (git / name).unlink()
    os.symlink("/dev/zero", git / name)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.to_thread(checked_out, str(git.parent))


@pytest.mark.parametrize(
    "head",
    ["ref: ../../secret", "ref: /etc/passwd", "ref: refs/../../../secret", "ref: refs/heads/../../../secret",
     "ref: secret", "ref: refs", "ref: refs//x", "ref: refs/heads/\x1b]0;x", "ref: refs/heads/\u202ex", "root:x:0:0",
     "secret words", "../secret", "ref: refs/heads/.git", "ref: refs/heads/secret"],
)  # fmt: skip
def test_an_unusual_reference_resolves_to_nothing(head: str, git: Path) -> None:
    (git.parent.parent / "secret").write_text("hunter2\n")
    (git.parent / "secret").write_text("hunter2\n")
    os.symlink(git.parent / "secret", git / "refs" / "heads" / "secret")
    (git / "HEAD").write_text(f"{head}\n")
    found = checked_out(str(git.parent))
    assert found in (CheckedOut(), CheckedOut("secret"))
