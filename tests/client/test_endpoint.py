"""Connecting to a daemon: a client waits for one that is starting, and for no other."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from harness import PATIENCE_S
from zot.client import client, endpoint
from zot.client import endpoint as dialling
from zot.client.endpoint import Patience, dial, reach

Reach = Callable[[str], Awaitable[object]]


async def by_a_thread(path: str) -> None:
    (await asyncio.to_thread(reach, path, 1.0, Patience(path))).close()


async def by_a_loop(path: str) -> None:
    (await client.LocalLine.open(path, 1.0)).close()


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every attempt, by its path."""
    attempts: list[str] = []

    def count(path: str, within_s: float) -> socket.socket:
        attempts.append(path)
        return dial(path, within_s)

    monkeypatch.setattr(dialling, "dial", count)
    monkeypatch.setattr(client, "dial", count)
    return attempts


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[str]:
    """A daemon that owns its endpoint and does not listen there yet."""
    path = str(tmp_path / "d.sock")
    lock = endpoint.take(path)
    yield path
    os.close(lock)


def listening(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    return listener


@pytest.mark.parametrize("reached", [by_a_thread, by_a_loop])
async def test_the_client_waits_for_a_starting_daemon(starting: str, tried: list[str], reached: Reach) -> None:
    async with asyncio.timeout(PATIENCE_S):
        reaching = asyncio.ensure_future(reached(starting))
        while len(tried) < 3:
            await asyncio.sleep(0.01)
        with listening(starting):
            await reaching


@pytest.mark.parametrize("reached", [by_a_thread, by_a_loop])
async def test_the_client_does_not_wait_for_a_daemon_that_dies_while_starting(
    starting: str, tried: list[str], reached: Reach
) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(starting)
        async with asyncio.timeout(PATIENCE_S):
            reaching = asyncio.ensure_future(reached(starting))
            while len(tried) < 3:
                await asyncio.sleep(0.01)
            os.rename(f"{starting}.lock", f"{starting}.gone")  # No process owns it any more.
            with pytest.raises(ConnectionRefusedError):
                await reaching


@pytest.mark.parametrize("reached", [by_a_thread, by_a_loop])
async def test_without_a_starting_daemon_the_client_fails_at_once(
    tmp_path: Path, tried: list[str], reached: Reach
) -> None:
    path = str(tmp_path / "d.sock")
    (tmp_path / "d.sock.lock").write_text("1\n")  # As the last one left it, which was killed.
    with pytest.raises(FileNotFoundError):
        await reached(path)
    assert tried == [path]


def test_the_wait_for_a_daemon_has_a_deadline(starting: str) -> None:
    assert not Patience(starting).is_over
    assert Patience(starting, starting_s=0.0).is_over
    assert not Patience(f"{starting}.other", wait_s=60.0).is_over
    assert Patience(f"{starting}.other").is_over
