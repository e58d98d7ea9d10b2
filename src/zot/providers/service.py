"""One API of one vendor over a transport: retries, deadlines and decoding, the same for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from zot.errors import ProviderError, Stalled
from zot.providers.base import (
    Api,
    Deadlines,
    HttpRequest,
    HttpResponse,
    OnRetry,
    Reply,
    Request,
    StreamEvent,
    Transport,
)
from zot.providers.failures import refusal
from zot.providers.retry import retry_delay

_MAX_ERROR_BODY = 64 * 1024


class Service:
    """A model service. ``key`` is only known here so that it can be kept out of error messages."""

    def __init__(
        self,
        name: str,
        api: Api,
        transport: Transport,
        *,
        deadlines: Deadlines | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] | None = None,
    ) -> None:
        self.name = name
        self._api = api
        self._transport = transport
        self._deadlines = deadlines or Deadlines()
        self._sleep = sleep
        self._jitter = jitter or _random

    def call(self, request: Request, on_retry: OnRetry) -> _Call:
        """Prepare one model call; nothing happens before `open`."""
        return _Call(
            self.name,
            self._api,
            request,
            transport=self._transport,
            deadlines=self._deadlines,
            sleep=self._sleep,
            jitter=self._jitter,
            on_retry=on_retry,
        )

    async def close(self) -> None:
        """Close idle connections."""
        await self._transport.close()


class _Call:
    """One model call while it runs; a `ReplyStream`."""

    def __init__(
        self,
        name: str,
        api: Api,
        request: Request,
        *,
        transport: Transport,
        deadlines: Deadlines,
        sleep: Callable[[float], Awaitable[None]],
        jitter: Callable[[], float],
        on_retry: OnRetry,
    ) -> None:
        self._name = name
        self._api = api
        self._request = request
        self._transport = transport
        self._deadlines = deadlines
        self._sleep = sleep
        self._jitter = jitter
        self._on_retry = on_retry
        self._response: HttpResponse | None = None
        self._decoder = api.decoder()
        self._ended = False
        self._quiet_since = 0.0

    async def open(self) -> None:
        """Send the request, again where that is safe, until an answer begins. Raise ProviderError."""
        http = self._api.request(self._request)
        attempt = 1
        while True:
            try:
                self._response = await self._attempt(http)
            except ProviderError as error:
                delay_s = retry_delay(error, attempt=attempt, jitter=self._jitter())
                if delay_s is None:
                    raise
                self._on_retry(str(error), attempt=attempt, delay_s=delay_s)
                await self._sleep(delay_s)
                attempt += 1
            else:
                return

    async def read(self) -> list[StreamEvent]:
        """Return the next events; an empty list at the end. Raise ProviderError."""
        assert self._response is not None, "read before open"
        if self._decoder.failure is not None:
            raise self._decoder.failure
        # From here, not from the last event: how long we were busy with that is no silence of the service.
        self._quiet_since = asyncio.get_running_loop().time()
        while not self._ended:
            seen = self._decoder.progress
            data = await self._next_bytes(self._response)
            if data:
                events = self._decoder.feed(data)
            else:
                self._ended = True
                events = self._decoder.finish()
            if self._decoder.progress != seen:
                self._quiet_since = asyncio.get_running_loop().time()
            if events:
                return events
        return []

    def reply(self) -> Reply:
        """Return what has been received."""
        return self._decoder.reply()

    def close(self) -> None:
        """Let go of the connection; it dies unless the answer was read to its end."""
        if self._response is not None:
            self._response.close()

    async def _attempt(self, http: HttpRequest) -> HttpResponse:
        try:
            response = await self._transport.send(http, self._deadlines)
        except ProviderError as error:
            error.provider = error.provider or self._name
            raise
        if response.status == 200:
            return response
        try:
            body = await self._error_body(response)
        finally:
            response.close()
        raise _without_secrets(http, refusal(self._name, response.status, response.headers, body))

    async def _next_bytes(self, response: HttpResponse) -> bytes:
        try:
            async with asyncio.timeout_at(self._quiet_since + self._deadlines.silence_s):
                return await response.read()
        except TimeoutError:
            seconds = self._deadlines.silence_s
            raise Stalled(
                f"{self._name}: the answer stalled: nothing new for {seconds:g} s", provider=self._name
            ) from None

    async def _error_body(self, response: HttpResponse) -> bytes:
        """Read the body of a refusal: bounded, and whatever came of it is good enough."""
        body = b""
        try:
            async with asyncio.timeout(self._deadlines.connect_s):
                while len(body) < _MAX_ERROR_BODY and (data := await response.read()):
                    body += data
        except (TimeoutError, ProviderError):
            pass  # The status says enough; a missing explanation must not hide it.
        return body[:_MAX_ERROR_BODY]


def _without_secrets(http: HttpRequest, error: ProviderError) -> ProviderError:
    """Services like to quote the key they refuse; nobody else needs to see it."""
    text = str(error)
    for name in http.secret_headers:
        secret = http.headers.get(name, "").removeprefix("Bearer ")
        if len(secret) >= 4:
            text = text.replace(secret, "[key]")
    error.args = (text,)
    return error


def _random() -> float:
    from random import random

    return random()
