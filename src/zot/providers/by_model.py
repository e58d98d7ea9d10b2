"""One provider whose models are not all served at the same address."""

from __future__ import annotations

from collections.abc import Mapping

from zot.providers.base import OnRetry, Provider, ReplyStream, Request


class ByModel:
    """A `Provider` that asks ``elsewhere`` for the models named there, and ``usual`` for all others."""

    def __init__(self, usual: Provider, elsewhere: Mapping[str, Provider]) -> None:
        self._usual = usual
        self._elsewhere = elsewhere

    @property
    def name(self) -> str:
        """The name of the usual one: to a conversation they are the same."""
        return self._usual.name

    def call(self, request: Request, on_retry: OnRetry) -> ReplyStream:
        """Prepare one model call where its model is served."""
        return self._elsewhere.get(request.model, self._usual).call(request, on_retry)

    async def close(self) -> None:
        """Close idle connections."""
        for provider in (self._usual, *self._elsewhere.values()):
            await provider.close()
