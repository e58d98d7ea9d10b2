"""What all tests share: the process under test, a model service on a socket, and that nothing is left running."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import MARK, PATIENCE_S, Zot, children, eventually, living

from zot.providers.lab.script import demo
from zot.providers.lab.server import serve


@pytest.fixture(scope="session", autouse=True)
def nothing_outlives_the_tests() -> Iterator[None]:
    """Fail the run if a process that it started, or that was started by one, is still there at its end."""
    os.environ[MARK] = mark = uuid.uuid4().hex
    yield
    del os.environ[MARK]

    def left() -> list[int]:
        return sorted({*living(mark), *children(os.getpid())} - {os.getpid()})

    assert eventually(lambda: left() == [], within_s=2.0), f"still running: {left()}"


@pytest.fixture
def zot(tmp_path: Path) -> Iterator[Callable[..., Zot]]:
    """Start `zot rpc` in an empty directory, as often as a test likes."""
    started: list[Zot] = []

    def start(*flags: str, **popen: Any) -> Zot:
        started.append(Zot(*flags, **{"cwd": tmp_path, **popen}))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture(scope="session")
def lab_url() -> Iterator[str]:
    """The address of a lab server that plays the built-in scenes."""
    urls: list[str] = []
    ready = threading.Event()
    stop: Callable[[], object] = lambda: None  # noqa: E731

    def run() -> None:
        asyncio.run(main())

    async def main() -> None:
        nonlocal stop
        loop = asyncio.get_running_loop()
        task = loop.create_task(serve(demo(), host="127.0.0.1", port=0, ready=found))
        stop = lambda: loop.call_soon_threadsafe(task.cancel)  # noqa: E731
        await asyncio.wait({task})

    def found(url: str) -> None:
        urls.append(url)
        ready.set()

    thread = threading.Thread(target=run, name="lab server")
    thread.start()
    assert ready.wait(PATIENCE_S)
    yield urls[0]
    stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
