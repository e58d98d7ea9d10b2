"""A gateway and a worker behind PgBouncer in transaction mode: no LISTEN, another connection for each transaction."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from daemons import PATIENCE_S, running
from optional import needs
from postgres import Pooler

from .test_gateway import opened, seen_as, working


@pytest.fixture
async def pooled(database: str) -> AsyncIterator[str]:
    """The address of an empty database behind a pooler."""
    known = psycopg.conninfo.conninfo_to_dict(database)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pooler = Pooler(known["host"], port=port)
    address = f"{pooler.address(known['dbname'])}?connect_timeout=10"
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await (await psycopg.AsyncConnection.connect(address)).close()
                    break
                except psycopg.OperationalError:
                    await asyncio.sleep(0.02)
        yield address
    finally:
        pooler.close()


@needs("pgbouncer")
async def test_a_fleet_works_with_a_pooler_in_transaction_mode(tmp_path: Path, pooled: str) -> None:
    for name in ("one", "two", "work"):
        (tmp_path / name).mkdir()
    async with (
        running(tmp_path / "one", store=seen_as(pooled, "one")) as one,
        running(tmp_path / "two", store=seen_as(pooled, "two")) as two,
        working(tmp_path, pooled, "worker", policy=("bash=ask",)),
    ):
        mine, theirs = await one.caller(), await two.caller()
        await opened(mine, "s", tmp_path / "work")
        await theirs.get("session/attach", sessionId="s")
        answer = await mine.get("session/prompt", sessionId="s", prompt="!say 40 hello over there")
        assert answer["content"] == "hello over there"
        await theirs.until(type="turn_complete")
        number = mine.call("session/prompt", sessionId="s", prompt="!bash echo yes > done; sleep 600")
        request = await theirs.until(type="approval_request")
        await theirs.get("session/approve", sessionId="s", requestId=request["requestId"], decision="allow_once")
        async with asyncio.timeout(PATIENCE_S):
            while not (tmp_path / "work" / "done").exists():
                await asyncio.sleep(0.02)
        await theirs.get("session/cancel", sessionId="s")
        assert (await mine.answer(number))["result"]["stopReason"] == "cancelled"
        await theirs.until(type="turn_complete")
        sent = [[update["seq"] for update in caller.updates("s") if update.get("seq")] for caller in (mine, theirs)]
        assert sent[0] == sent[1] == sorted({*sent[0]})
