"""lab in process: a transport with scripted responses and realistic faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TypeAlias

from zot.errors import ConnectionFailed, Stalled, StreamBroken
from zot.providers.base import Deadlines, HttpRequest
from zot.providers.lab.performance import Broken, Pause, Piece, Plan, Silence, Step
from zot.providers.lab.script import Script
from zot.providers.lab.stage import LabService

Sleep: TypeAlias = Callable[[float], Awaitable[object]]

_BATCH_BYTES = 64 * 1024


class LabTransport:
    """Sends requests to a script. Each transport plays its script from the beginning."""

    def __init__(self, script: Script, *, sleep: Sleep = asyncio.sleep) -> None:
        self._service = LabService(script)
        self._sleep = sleep

    async def send(self, request: HttpRequest, deadlines: Deadlines) -> LabResponse:
        """Return when the script sends its head. Raise ConnectionFailed or Stalled as the network would."""
        target = "/" + request.url.partition("://")[2].partition("/")[2]
        plan = self._service.answer(request.method, target, request.headers, request.body)
        first = await self._head(plan.steps, deadlines.headers_s)
        return LabResponse(plan, first, self._sleep)

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    async def _head(self, steps: Iterator[Step], left_s: float) -> bytes | Piece:
        """Wait for the first bytes and return them; b"" for an empty body. Time is the script's."""
        for step in steps:
            match step:
                case Pause(seconds=seconds) if seconds < left_s:
                    left_s -= seconds
                    await self._sleep(seconds)
                case Pause() | Silence():
                    await self._sleep(left_s)
                    raise Stalled("the service did not answer in time")
                case Broken(how="refused"):
                    raise ConnectionFailed("connection refused, as scripted: try again")
                case Broken():
                    raise ConnectionFailed("connection closed before an answer, as scripted: try again")
                case bytes() | Piece():
                    return step
        return b""


class LabResponse:
    """A response being played."""

    def __init__(self, plan: Plan, first: bytes | Piece, sleep: Sleep) -> None:
        self.status = plan.status
        self.headers: Mapping[str, str] = plan.headers
        self._steps = plan.steps
        self._held: Step | None = first
        self._sleep = sleep
        self._timeout: asyncio.Timeout | None = None
        self._closed = False

    async def read(self) -> bytes:
        """Return the bytes that are ready; wait where the script waits. Raise StreamBroken at a cut or after close."""
        # Yield once: reading ready bytes never waits otherwise, and would starve other tasks.
        await asyncio.sleep(0)
        batch = bytearray()
        while (step := self._next()) is not None:
            match step:
                case bytes():
                    batch += step
                    if len(batch) >= _BATCH_BYTES:
                        break
                case _ if batch:
                    self._held = step
                    break
                case Piece(data=data):
                    return data
                case Pause(seconds=seconds):
                    await self._pause(seconds)
                case Silence(ping=None):
                    await self._pause(None)
                case Silence(ping=ping, every_s=every_s):
                    self._held = step
                    await self._pause(every_s)
                    return ping or b""
                case Broken():
                    raise StreamBroken("the connection was cut")
        return bytes(batch)

    def close(self) -> None:
        """Stop at once; a waiting read fails."""
        self._closed = True
        if self._timeout is not None:
            self._timeout.reschedule(0)

    def _next(self) -> Step | None:
        if self._closed:
            raise StreamBroken("the response was closed")
        held, self._held = self._held, None
        return held if held is not None else next(self._steps, None)

    async def _pause(self, seconds: float | None) -> None:
        """Wait ``seconds``, or forever if None. Raise StreamBroken if closed meanwhile."""
        try:
            async with asyncio.timeout(None) as self._timeout:
                if seconds is None:
                    await asyncio.get_running_loop().create_future()
                else:
                    await self._sleep(seconds)
        except TimeoutError as exc:
            raise StreamBroken("the response was closed") from exc
        finally:
            self._timeout = None
