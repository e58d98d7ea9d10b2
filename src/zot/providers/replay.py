"""A transport that answers from a recording, and can tell whether it is still asked the same."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

import msgspec

from zot.errors import BadRequest, ConnectionFailed, ConnectionImpossible, ProviderError, Stalled, StreamBroken
from zot.providers.base import Deadlines, HttpRequest
from zot.providers.recording_part import Asked, Chunk, Exchange, Recording

#: Differences beyond these are only counted.
_MAX_SHOWN = 5
_MAX_VALUE = 60
_VARYING = r"(?<=\[still running: )\d+|(?<=/spill/)[0-9a-f]{12}/[^/\s]*?[0-9a-f]{16}(?=\.txt)"


class ReplayTransport:
    """Answers the requests in the order in which they were recorded.

    ``paced`` waits as long as the service did. ``checked`` refuses a request that is not the recorded one, and says
    where they differ.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        paced: bool = False,
        checked: bool = False,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._left = list(reversed(recording.exchanges))
        self._count = len(recording.exchanges)
        self._paced = paced
        self._checked = checked
        self._sleep = sleep

    async def send(self, request: HttpRequest, deadlines: Deadlines) -> ReplayedResponse:
        """Return the recorded answer. Raise what was raised then, or BadRequest if there is no such answer."""
        if not self._left:
            raise BadRequest(f"the recording ends after {self._count} requests; this one was never recorded")
        exchange = self._left.pop()
        if self._checked and (found := difference(exchange.asked, request)):
            raise BadRequest(f"request {exchange.asked.exchange} is not the recorded one: {found}")
        if exchange.answered is None:
            await self._pace(exchange.ended.at_ms if exchange.ended else 0)
            raise _failure(exchange)
        await self._pace(exchange.answered.at_ms)
        return ReplayedResponse(exchange, exchange.answered.status, exchange.answered.headers, self._pace)

    async def close(self) -> None:
        """There is no connection to close."""

    async def _pace(self, milliseconds: float) -> None:
        # Also at full pace: whoever reads must not shut out the rest of the program.
        await self._sleep(milliseconds / 1000 if self._paced else 0)


class ReplayedResponse:
    """A recorded answer."""

    def __init__(
        self,
        exchange: Exchange,
        status: int,
        headers: Mapping[str, str],
        pace: Callable[[float], Awaitable[None]],
    ) -> None:
        self.status = status
        self.headers = headers
        self._exchange = exchange
        self._chunks: Iterator[Chunk] = iter(exchange.chunks)
        self._pace = pace
        self._told_ms = exchange.answered.at_ms if exchange.answered else 0.0
        self._closed = False

    async def read(self) -> bytes:
        """Return the next bytes as they were recorded. Raise what was raised then."""
        if self._closed:
            raise StreamBroken("the response was closed")
        chunk = next(self._chunks, None)
        ended = self._exchange.ended
        at_ms = chunk.at_ms if chunk is not None else ended.at_ms if ended is not None else self._told_ms
        await self._pace(max(0.0, at_ms - self._told_ms))
        self._told_ms = at_ms
        if chunk is not None:
            return chunk.data
        if ended is not None and not ended.error:
            return b""
        raise _failure(self._exchange)

    def close(self) -> None:
        """Stop."""
        self._closed = True


def difference(asked: Asked, request: HttpRequest) -> str:
    """Return where a request differs from the recorded one; "" if it does not. Where it goes does not matter."""
    body = request.body.decode("utf-8", "replace")
    if asked.body == body:
        return ""
    try:
        found = list(_differences(msgspec.json.decode(asked.body), msgspec.json.decode(body), "body"))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return "one of the two bodies is not JSON"
    more = f"; and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
    return "; ".join(found[:_MAX_SHOWN]) + more


def _differences(then: Any, now: Any, place: str) -> Iterator[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        for name in [*then, *(name for name in now if name not in then)]:
            yield from _differences(then.get(name, ...), now.get(name, ...), f"{place}.{name}")
    elif isinstance(then, list) and isinstance(now, list):
        for index, (old, new) in enumerate(zip_longest(then, now, fillvalue=...)):
            yield from _differences(old, new, f"{place}[{index}]")
    elif _settled(then) != _settled(now):
        yield f"{place} was {_short(then)}, is {_short(now)}"


def _settled(value: Any) -> Any:
    """Return a value without what differs in every run: the numbers of processes, and the names of spill files."""
    return re.sub(_VARYING, "", value) if isinstance(value, str) else value


def _short(value: Any) -> str:
    if value is ...:
        return "not there"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]} ... ({len(text)} characters)"


def _failure(exchange: Exchange) -> ProviderError:
    """Return the error that ended the exchange when it was recorded."""
    ended = exchange.ended
    if ended is None or ended.error == "closed":
        return StreamBroken("the recording ends here: it was not read any further when it was made", code="recording")
    return _KINDS.get(ended.error, StreamBroken)(ended.message)


#: What a transport may raise, by the name under which it is recorded.
_KINDS: Mapping[str, type[ProviderError]] = {
    kind.__name__: kind for kind in (ConnectionFailed, ConnectionImpossible, Stalled, StreamBroken)
}
