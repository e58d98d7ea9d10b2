"""A conversation with lab through any API, with every request kept and every error seen."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import Any

import msgspec
from apis import APIS

from fakes import KEY, PATIENCE_S, PNG, FakeTool, at_once, kinds, no_sleep, open_session, talk
from zot.agent.compaction import AutoCompact
from zot.config.vendors import ApiName
from zot.encoding import encode
from zot.errors import ProviderError
from zot.events import AgentEvent, ToolUseEnd
from zot.messages import ImageBlock, TextBlock
from zot.providers.base import (
    Deadlines,
    HttpRequest,
    HttpResponse,
    ModelRequest,
    OnRetry,
    ReplyStream,
    StreamEvent,
    Transport,
)
from zot.providers.lab.script import demo
from zot.providers.lab.transport import LabTransport
from zot.providers.models import Model, Price
from zot.providers.service import Service
from zot.session.session import Session
from zot.tools.base import Output, ToolContext

#: How silent a service may be that is to be found silent: long enough for a busy machine, short enough to wait for.
STALLED_S = 0.4
PRICED = Model("lab-1", "lab", 200_000, 64_000, reasoning=True, price=Price(3.0, 15.0, 0.3, 3.75))


class Conversation:
    """A conversation with lab: its requests, its failures, and the tools that ran."""

    def __init__(
        self,
        api: ApiName,
        transport: Transport | None = None,
        base_url: str = "http://lab.invalid",
        *,
        silence_s: float = PATIENCE_S,
    ) -> None:
        self._spoken = APIS[api]
        self._transport = transport or LabTransport(demo(), sleep=no_sleep)
        self.bodies: list[bytes] = []
        self.errors: list[ProviderError] = []
        self.ran: list[str] = []
        service = _Watched(
            "lab", self._spoken.api(base_url), self, key=KEY, deadlines=Deadlines(silence_s=silence_s),
            retries=at_once(),
        )  # fmt: skip
        service.errors = self.errors
        self.session: Session = open_session(
            service, tools=[self._tool(name) for name in ("bash", "read", "look")],
            models=[PRICED], model="lab-1", reasoning="low", auto_compact=AutoCompact(on=False),
        )  # fmt: skip

    async def say(self, text: str, *images: ImageBlock) -> list[AgentEvent]:
        return await talk(self.session, text, images)

    def check(self) -> None:
        """See that every request was acceptable."""
        assert [self._spoken.problems(body) for body in self.bodies] == [[] for _ in self.bodies]

    async def send(self, request: HttpRequest, deadlines: Deadlines) -> HttpResponse:
        self.bodies.append(request.body)
        return await self._transport.send(request, deadlines)

    async def close(self) -> None:
        await self._transport.close()

    def _tool(self, name: str) -> FakeTool:
        async def run(args: dict[str, Any], context: ToolContext) -> Output:
            self.ran.append(name)
            return (TextBlock(f"did {name}"), PNG) if name == "look" else (TextBlock(f"did {name}"),)

        return FakeTool(name, run)


class _Watched(Service):
    """A service that remembers the errors its calls end in."""

    errors: list[ProviderError]

    def call(self, request: ModelRequest, on_retry: OnRetry) -> ReplyStream:  # type: ignore[override]  # a call, watched
        return _WatchedCall(super().call(request, on_retry), self.errors)


class _WatchedCall:
    def __init__(self, stream: ReplyStream, errors: list[ProviderError]) -> None:
        self._stream = stream
        self._errors = errors
        self.reply = stream.reply
        self.close = stream.close

    async def open(self) -> None:
        try:
            await self._stream.open()
        except ProviderError as error:
            self._errors.append(error)
            raise

    async def read(self) -> list[StreamEvent]:
        try:
            return await self._stream.read()
        except ProviderError as error:
            self._errors.append(error)
            raise


def shape(events: Iterable[AgentEvent]) -> str:
    """Return the kinds of events after the prompt, repeated ones once."""
    return " > ".join(name for name, _ in groupby(kinds(events)) if name != "user_message")


def told(events: Iterable[AgentEvent]) -> list[dict[str, Any]]:
    """What happened, in the words of the wire, without what APIs make up.

    That is the ids of calls, where deltas are cut, whether a call ends before the next or with all others, and the
    status of an overloaded service.
    """
    joined: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, ToolUseEnd):
            continue
        same = re.sub(rb'"(?:toolu|call)_lab_', b'"', encode(event))
        plain = msgspec.json.decode(re.sub(rb"\b(http|status) (?:503|529)\b", rb"\1 overloaded", same))
        last = joined[-1] if joined else {}
        if "delta" in plain and {**last, "delta": ""} == {**plain, "delta": ""}:
            last["delta"] += plain["delta"]
        else:
            joined.append(plain)
    return joined
