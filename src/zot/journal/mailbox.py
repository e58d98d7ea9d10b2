"""How loops hear what another thread has done: of all that is there at once, however much that is."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

log = logging.getLogger("zot")

T = TypeVar("T")


class Mailboxes:
    """What is to be called in the threads of loops, in order. To wake a loop costs more than most calls, so that is
    done once for all that come before it is awake. Usable from any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._calls: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Callable[[], None]]] = WeakKeyDictionary()

    def post(self, loop: asyncio.AbstractEventLoop, *calls: Callable[[], None]) -> None:
        """Let ``calls`` be called soon, whatever becomes of each; never, if the loop is closed."""
        with self._guard:
            waiting = self._calls.setdefault(loop, [])
            waiting.extend(calls)
            if len(waiting) > len(calls):
                return  # It is being woken.
        try:
            loop.call_soon_threadsafe(self._empty, loop)
        except RuntimeError:
            self._take(loop)
            log.debug("a loop was closed before it could hear what was done")

    def heard(self, source: Future[T]) -> asyncio.Future[T]:
        """Return a future of the running loop that has what ``source`` has. Whoever cancels it does not end that."""
        loop = asyncio.get_running_loop()
        hearing: asyncio.Future[T] = loop.create_future()
        source.add_done_callback(lambda done: self.post(loop, partial(_settle, hearing, done)))
        return hearing

    def _empty(self, loop: asyncio.AbstractEventLoop) -> None:
        for call in self._take(loop):
            try:
                call()
            except Exception:  # What one cannot bear to hear must not keep the others from it.
                log.exception("unexpected error in who hears what was done")

    def _take(self, loop: asyncio.AbstractEventLoop) -> list[Callable[[], None]]:
        with self._guard:
            return self._calls.pop(loop, [])


def _settle(hearing: asyncio.Future[Any], source: Future[Any]) -> None:
    if hearing.done():
        return  # Nobody waits for it any more.
    if source.cancelled():
        hearing.cancel()
    elif (problem := source.exception()) is not None:
        hearing.set_exception(problem)
    else:
        hearing.set_result(source.result())
