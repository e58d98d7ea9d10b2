"""Every fault of a service, through every API: the same events, in bounded time, and a conversation that goes on."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import pytest
from apis import APIS

from fakes import PNG, FakeTool, kinds, no_sleep, open_session, read_key, talk
from zot.errors import (
    AuthFailed,
    BadRequest,
    ConnectionFailed,
    ContentRefused,
    NotFound,
    Overloaded,
    ProviderError,
    RateLimited,
    ServiceFailed,
    Stalled,
    StreamBroken,
)
from zot.events import AgentEvent, Error, TextDelta, ThinkingDelta, ToolResult, Usage, text
from zot.messages import ImageBlock, TextBlock
from zot.providers.base import Deadlines, HttpRequest, OnRetry, ReplyStream, Request, StreamEvent
from zot.providers.lab.script import Script, demo
from zot.providers.lab.transport import LabResponse, LabTransport
from zot.providers.models import catalogue
from zot.providers.service import Service
from zot.session import Session
from zot.tools.base import Output, ToolContext

#: Long enough for a machine that has other things to do, short enough to be waited for.
SILENCE_S = 0.1


class Line(LabTransport):
    """A line to lab that remembers what was asked."""

    def __init__(self, script: Script) -> None:
        super().__init__(script, sleep=no_sleep)
        self.bodies: list[bytes] = []

    async def send(self, request: HttpRequest, deadlines: Deadlines) -> LabResponse:
        self.bodies.append(request.body)
        return await super().send(request, deadlines)


class Watched(Service):
    """A service that remembers the errors its calls end in."""

    errors: list[ProviderError]

    def call(self, request: Request, on_retry: OnRetry) -> ReplyStream:  # type: ignore[override]  # a call, watched
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


class Talk:
    """A conversation with lab through one API."""

    def __init__(self, api: str, script: Script | None = None) -> None:
        self.spoken = APIS[api]
        self.line = Line(script or demo())
        self.service = Watched(
            "lab",
            self.spoken.api(),
            self.line,
            key=read_key,
            deadlines=Deadlines(silence_s=SILENCE_S),
            sleep=no_sleep,
            jitter=lambda: 0.5,
        )
        self.service.errors = []
        self.ran = 0
        self.session: Session = open_session(
            self.service, tools=[FakeTool("bash", self._run), FakeTool("look", self._look)],
            models=catalogue("lab").models, model="lab-1", reasoning="low",
        )  # fmt: skip

    async def say(self, text_: str, *images: ImageBlock) -> list[AgentEvent]:
        return await talk(self.session, text_, images)

    def check(self) -> None:
        """See that every request was acceptable."""
        assert [self.spoken.problems(body) for body in self.line.bodies] == [[] for _ in self.line.bodies]

    async def _run(self, args: object, context: ToolContext) -> Output:
        self.ran += 1
        return (TextBlock("ran"),)

    async def _look(self, args: object, context: ToolContext) -> Output:
        return (TextBlock("seen"), PNG)


def shape(events: Iterable[AgentEvent]) -> str:
    """What happened after the prompt, several of a kind as one."""
    return " > ".join(name for name, _ in groupby(kinds(events)) if name != "user_message")


ANSWERED = "usage > assistant_message > turn_end end_turn > done"
BROKEN = "usage > assistant_message > turn_end error > error > done"
SPOKE = f"turn_start > assistant_start > text_delta > {ANSWERED}"
HALF = f"turn_start > assistant_start > text_delta > {BROKEN}"
REFUSED = "turn_start > turn_end error > error > done"
TRIED = "turn_start > retry > turn_end error > error > done"
TRIED_WELL = f"turn_start > retry > assistant_start > text_delta > {ANSWERED}"
CALLED = (
    "turn_start > assistant_start > tool_use_start > tool_use_args > tool_use_end > usage > assistant_message > "
    f"tool_call > turn_end tool_use > tool_result > {SPOKE}"
)

#: What each scene of lab comes to, the error behind it, and how often the service was asked.
FAULTS: dict[str, tuple[str, type[ProviderError] | None, int]] = {
    "!say 3 Hello": (SPOKE, None, 1),
    "!bytes héllo": (SPOKE, None, 1),
    "!slow 3 30": (SPOKE, None, 1),
    "!flood 1000": (SPOKE, None, 1),
    "!usage-twice": (SPOKE, None, 1),
    "!think": (f"turn_start > assistant_start > thinking_delta > text_delta > {ANSWERED}", None, 1),
    "!length": (SPOKE.replace("end_turn", "length"), None, 1),
    "!refusal": (HALF, ContentRefused, 1),
    "!bad-args": (CALLED, None, 2),
    "!status 400": (REFUSED, BadRequest, 1),
    "!status 401": (REFUSED, AuthFailed, 1),
    "!status 402": (REFUSED, AuthFailed, 1),
    "!status 404": (REFUSED, NotFound, 1),
    "!status 429": (TRIED, RateLimited, 3),
    "!status 500": (TRIED, ServiceFailed, 3),
    "!status 503": (TRIED, Overloaded, 3),
    "!status 529": (TRIED, Overloaded, 3),
    "!retry 2": (TRIED_WELL, None, 3),
    "!limit 7": (TRIED_WELL, None, 2),
    "!refuse": (TRIED, ConnectionFailed, 3),
    "!stall": (REFUSED, Stalled, 1),
    "!stall-mid": (HALF, Stalled, 1),
    "!pings": (HALF, Stalled, 1),
    "!cut": (HALF, StreamBroken, 1),
    "!cut-utf8": (HALF, StreamBroken, 1),
    "!cut-json": (HALF, StreamBroken, 1),
    "!no-end": (HALF, StreamBroken, 1),
    "!error": (HALF, Overloaded, 1),
    "!script say a ;; error rate_limit_exceeded slowly": (HALF, RateLimited, 1),
    "!script error server_error ouch": (
        "turn_start > assistant_start > usage > turn_end error > error > done",
        ServiceFailed,
        1,
    ),
    "!script call-raw bash '{\"a' ;; cut": (
        "turn_start > assistant_start > tool_use_start > tool_use_args > usage > turn_end error > error > done",
        StreamBroken,
        1,
    ),
    '!script call bash {"a": 1} ;; no-end': (
        "turn_start > assistant_start > tool_use_start > tool_use_args > usage > turn_end error > error > done",
        StreamBroken,
        1,
    ),
    '!script status 503 content-type=text/html "<h1>Bad day</h1>" ;; repeat': (TRIED, Overloaded, 3),
}


def ended_by(api: str, scene: str, expected: str) -> str:
    """Anthropic ends each block as it goes, so a whole call has ended when the end of the reply is missing."""
    if api == "anthropic" and scene.startswith("!script call"):
        return expected.replace("tool_use_args > usage", "tool_use_args > tool_use_end > usage")
    return expected


@pytest.mark.parametrize("scene", FAULTS)
@pytest.mark.parametrize("api", APIS)
async def test_a_fault_ends_as_it_is_written_down_and_the_conversation_goes_on(api: str, scene: str) -> None:
    expected, kind, asked = FAULTS[scene]
    conversation = Talk(api)
    events = await conversation.say(scene)
    assert shape(events) == ended_by(api, scene, expected)
    assert [type(error) for error in conversation.service.errors] == [kind] * (kind is not None)
    assert [event.message for event in events if isinstance(event, Error)] == [
        str(error) for error in conversation.service.errors
    ]
    assert (len(conversation.line.bodies), conversation.ran) == (asked, 0)
    assert text(await conversation.say("!echo still here")) == "still here"
    conversation.check()


@pytest.mark.parametrize("api", APIS)
async def test_malformed_arguments_are_shown_to_the_model_and_never_run(api: str) -> None:
    conversation = Talk(api)
    events = await conversation.say("!bad-args")
    (result,) = [event for event in events if isinstance(event, ToolResult)]
    (told,) = [block.text for block in result.content if isinstance(block, TextBlock)]
    assert (result.is_error, told.endswith('What was sent: {"command": "echo hi'), conversation.ran) == (True, True, 0)


@pytest.mark.parametrize("api", APIS)
async def test_one_object_in_an_array_is_run_as_the_object(api: str) -> None:
    conversation = Talk(api)
    events = await conversation.say('!script call bash [{"command": "ls"}] id="" ;; --- ;; say ok')
    assert [event.is_error for event in events if isinstance(event, ToolResult)] == [False]
    assert conversation.ran == 1
    conversation.check()


@pytest.mark.parametrize("api", APIS)
async def test_the_same_conversation_costs_the_same(api: str) -> None:
    conversation = Talk(api)
    events = await conversation.say("!usage 1234 567 8901 234")
    (usage,) = [event for event in events if isinstance(event, Usage)]
    assert (usage.input, usage.output, usage.cache_read, usage.cache_write) == (1234, 567, 8901, 234)


@pytest.mark.parametrize("api", APIS)
async def test_a_long_conversation_with_everything_in_it_is_accepted_at_every_step(api: str) -> None:
    conversation = Talk(
        api,
        Script.parse(
            """
            think Hm ", so."
            say "I will look."
            call look {}
            call bash {"command": "ls"}
            ---
            call look {} id="functions.look:1"
            ---
            say "Nice."
            ---
            call bash {} id=c9
            stop length
            ---
            status 400
            ---
            say "And that."
            """
        ),
    )
    first = await conversation.say("look", PNG, ImageBlock("image/tiff", b"II*"))
    assert [event.delta for event in first if isinstance(event, ThinkingDelta | TextDelta)] == [
        "Hm", ", so.", "I will look.", "Nice.",
    ]  # fmt: skip
    assert shape(await conversation.say("again")).startswith("turn_start > assistant_start > tool_use_start")
    assert shape(await conversation.say("once more")) == REFUSED
    assert text(await conversation.say("and now?", PNG)) == "And that."
    assert len(conversation.line.bodies) == 6
    conversation.check()
