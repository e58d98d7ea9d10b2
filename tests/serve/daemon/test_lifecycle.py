"""Background tasks of a daemon: they end with it, and failures are logged."""

from __future__ import annotations

import asyncio

import pytest

from daemons import PATIENCE_S
from zot.serve.daemon.lifecycle import BackgroundTasks


async def test_leaving_the_block_ends_every_task() -> None:
    begun, told = asyncio.Event(), list[str]()

    async def watch() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            told.append("wound down")

    async with asyncio.timeout(PATIENCE_S):
        async with BackgroundTasks() as chores:
            chores.start(watch(), "watching")
            await begun.wait()
        assert told == ["wound down"]
        await chores.end()


async def test_a_failing_task_is_reported_at_once_and_ends_no_other(caplog: pytest.LogCaptureFixture) -> None:
    done = asyncio.Event()

    async def fail() -> None:
        raise ZeroDivisionError("a bug")

    async def work() -> None:
        done.set()

    async with asyncio.timeout(PATIENCE_S), BackgroundTasks() as chores:
        chores.start(fail(), "mending")
        chores.start(work(), "watching")
        await done.wait()
        await asyncio.sleep(0)
        assert caplog.messages == ["zot mending has failed"]
        assert "a bug" in caplog.text


async def test_a_task_that_does_not_end_is_given_up_at_the_deadline(caplog: pytest.LogCaptureFixture) -> None:
    let_go, begun = asyncio.Event(), asyncio.Event()

    async def cling() -> None:
        while not let_go.is_set():
            try:
                begun.set()
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    async with asyncio.timeout(PATIENCE_S):
        async with BackgroundTasks(within_s=0.01) as chores:
            chores.start(cling(), "clinging")
            await begun.wait()
        assert caplog.messages == ["zot clinging has not ended within 0.01 s"]
        let_go.set()
        await asyncio.sleep(0)
