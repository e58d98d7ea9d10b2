"""Callbacks from another thread to a loop: all of them, in order, with one wake-up per batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from fakes import PATIENCE_S
from zot.journal.writer_thread import LoopCallbacks


class Loop(asyncio.SelectorEventLoop):
    """Counts how often it is woken."""

    def __init__(self) -> None:
        super().__init__()
        self.woken = 0

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object, **more: object) -> asyncio.Handle:
        self.woken += 1
        return super().call_soon_threadsafe(callback, *args, **more)  # type: ignore[arg-type]


def test_a_loop_is_woken_once_for_a_batch_of_callbacks_and_runs_them_in_order() -> None:
    loop, mail, heard = Loop(), LoopCallbacks(), list[int]()
    for number in range(100):
        mail.post(loop, lambda number=number: heard.append(number))  # type: ignore[misc]
    assert (loop.woken, heard) == (1, [])
    loop.run_until_complete(asyncio.sleep(0))
    mail.post(loop, lambda: heard.append(100))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert (loop.woken, heard) == (2, list(range(101)))


def test_a_callback_that_raises_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    loop, mail, heard = Loop(), LoopCallbacks(), list[str]()
    mail.post(loop, lambda: heard.append(str(1 // 0)), lambda: heard.append("one of the same time"))
    mail.post(loop, lambda: heard.append("the other"))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert (loop.woken, heard) == (1, ["one of the same time", "the other"])
    assert "ZeroDivisionError" in caplog.text


def test_a_closed_loop_gets_no_callback() -> None:
    loop, mail, heard = Loop(), LoopCallbacks(), list[str]()
    loop.close()
    for _ in range(2):
        mail.post(loop, lambda: heard.append("too late"))
    assert heard == []


async def test_cancelling_the_wait_does_not_cancel_the_work() -> None:
    mail, done, failed, dropped, left = LoopCallbacks(), Future[str](), Future[str](), Future[str](), Future[str]()
    hearing = [mail.mirror(one) for one in (done, failed, dropped, left)]
    hearing[3].cancel()
    assert not left.cancelled()
    for one in (done, left):
        await asyncio.to_thread(one.set_result, "done")
    failed.set_exception(ValueError("no"))
    dropped.cancel()
    async with asyncio.timeout(PATIENCE_S):
        outcomes = await asyncio.gather(*hearing, return_exceptions=True)
    assert [str(one) or type(one).__name__ for one in outcomes] == ["done", "no", "CancelledError", "CancelledError"]
