"""One API over a transport: retries, deadlines, and released connections."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from apis import APIS

import claude
from fakes import FINE, KEY, PATIENCE_S, Answer, FakeResponse, FakeTransport, Piece, Points, service
from zot.config.vendors import ApiName
from zot.errors import (
    AuthFailed,
    ConnectionFailed,
    ConnectionImpossible,
    Overloaded,
    ProviderError,
    RateLimited,
    ServiceFailed,
    Stalled,
    StreamBroken,
)
from zot.events import TextDelta
from zot.messages import Message, TextBlock
from zot.providers.base import Deadlines, EncodedMessages, HttpRequest, ModelRequest, ReplyStream, StreamEvent
from zot.providers.service import ReadDeadline, Service

REQUEST = ModelRequest(
    model="claude-sonnet-4-5",
    system="",
    messages=(Message("user", (TextBlock("hi"),), "t"),),
    tools=(),
    max_tokens=1000,
    reasoning="off",
    encoded=EncodedMessages(),
)


class Heard:
    """Records the retries that a call reported, and its sleeps."""

    def __init__(self) -> None:
        self.retries: list[tuple[str, int, float]] = []
        self.slept: list[float] = []

    def __call__(self, reason: str, *, attempt: int, delay_s: float) -> None:
        self.retries.append((reason, attempt, delay_s))

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def call(transport: FakeTransport, heard: Heard | None = None, **settings: Any) -> ReplyStream:
    heard = heard or Heard()
    return service(transport, sleep=heard.sleep, **settings).call(REQUEST, heard)


async def everything(stream: ReplyStream, patience_s: float = PATIENCE_S) -> list[StreamEvent]:
    events: list[StreamEvent] = []
    async with asyncio.timeout(patience_s):
        await stream.open()
        while more := await stream.read():
            events += more
    return events


def refused(status: int, code: str = "", **headers: str) -> Answer:
    body = json.dumps({"type": "error", "error": {"type": code or "api_error", "message": "No."}}).encode()
    return Answer([body], status, {name.replace("_", "-"): value for name, value in headers.items()})


async def test_an_answer_is_read_to_its_end() -> None:
    transport = FakeTransport([claude.reply(claude.text("Hel", "lo"))])
    stream = call(transport)
    assert await everything(stream) == [TextDelta("Hel"), TextDelta("lo")]
    assert stream.reply().content == (TextBlock("Hello"),)
    assert await stream.read() == []
    assert transport.responses[0].closed == 0
    stream.close()
    stream.close()
    assert transport.responses[0].closed == 2


async def test_nothing_is_sent_before_open() -> None:
    transport = FakeTransport()
    stream = call(transport)
    await asyncio.sleep(0)
    assert transport.requests == []
    stream.close()


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_a_passing_failure_is_tried_three_times_with_growing_waits(status: int) -> None:
    heard, transport = Heard(), FakeTransport([refused(status) for _ in range(9)])
    with pytest.raises(ProviderError) as caught:
        await everything(call(transport, heard))
    reason = f"anthropic: http {status}: No."
    assert str(caught.value).startswith(f"{reason} (try again")
    assert caught.value.status == status
    assert heard.retries == [(reason, 1, 0.5), (reason, 2, 1.0)]
    assert heard.slept == [0.5, 1.0]
    assert [response.closed for response in transport.responses] == [1, 1, 1]


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 413, 422, 501])
async def test_a_lasting_failure_is_not_retried(status: int) -> None:
    heard, transport = Heard(), FakeTransport([refused(status) for _ in range(9)])
    with pytest.raises(ProviderError):
        await everything(call(transport, heard))
    assert (heard.retries, heard.slept, len(transport.requests)) == ([], [], 1)


async def test_an_answer_after_failures_is_as_good_as_any() -> None:
    heard = Heard()
    transport = FakeTransport([ConnectionFailed("refused"), refused(529, "overloaded_error"), FINE])
    assert await everything(call(transport, heard)) == [TextDelta("fine")]
    assert heard.retries == [("anthropic: refused", 1, 0.5), ("anthropic: http 529: No.", 2, 1.0)]
    assert len({request.body for request in transport.requests}) == 1


async def test_every_retry_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    transport = FakeTransport([ConnectionFailed("refused"), refused(529, "overloaded_error"), FINE])
    await everything(call(transport))
    assert caplog.record_tuples == [
        ("zot", logging.WARNING, "anthropic: refused (attempt 1; the next one in 0.50 s)"),
        ("zot", logging.WARNING, "anthropic: http 529: No. (attempt 2; the next one in 1.00 s)"),
    ]


UNREADABLE = b"data: []\n\n"
LONG_EVENT = itertools.repeat(b"x" * 1_000_000)
LATER = "(try again later, or use another model)"
FAULT = claude.event("error", error={"type": "overloaded_error", "message": "No."})


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (ConnectionImpossible("refused"), "refused"),
        (Stalled("no answer"), "no answer (try again)"),
        (refused(403), "http 403: No. (check ANTHROPIC_API_KEY, or run `zot login anthropic`)"),
        (Answer([StreamBroken("cut")]), "cut (try again)"),
        (Answer([claude.start(), ConnectionFailed("reset")]), "reset"),
        (Answer([claude.start()]), "the answer ended without its final event (try again)"),
        (
            Answer([UNREADABLE]),
            "the service sent an event that cannot be read: it must be an object, not a list (try again)",
        ),
        (Answer(LONG_EVENT), "one event of the stream is longer than 16777216 bytes (try again)"),
        (Answer([claude.start(), FAULT]), f"overloaded_error: No. {LATER}"),
        (Answer([claude.start() + b"".join(claude.text("a")(0)) + FAULT]), f"overloaded_error: No. {LATER}"),
        (claude.reply(ends="refusal"), "the model refused to answer this (rephrase it, or use another model)"),
    ],
)
async def test_every_failure_names_its_provider_once(answer: Answer | list[bytes] | Exception, text: str) -> None:
    stream = call(FakeTransport([answer]))
    with pytest.raises(ProviderError) as caught:
        await everything(stream)
    assert (str(caught.value), caught.value.provider) == (f"anthropic: {text}", "anthropic")


HTML = b"<html>\n\n<title>Welcome, sk-test-1234</title>" + b"x" * 200
WHERE = "(check --base-url and --api)"


@pytest.mark.parametrize(
    ("kind", "pieces", "text"),
    [
        (
            "text/html; charset=utf-8",
            [HTML[:30], HTML[30:]],
            "http 200: not a stream of events but text/html, which begins: <html> <title>Welcome, [key]</title>"
            f"{'x' * 164} {WHERE}",
        ),
        (
            "application/json",
            [b"data: 1\n\n"],
            f"http 200: not a stream of events but application/json, which begins: data: 1 {WHERE}",
        ),
        ("text/html", [], f"http 200: not a stream of events but text/html, which is empty {WHERE}"),
        (
            "application/json",
            [b'{"error":{"message":"no', b' such key","code":"invalid_api_key"}}'],
            "invalid_api_key: no such key (check ANTHROPIC_API_KEY, or run `zot login anthropic`)",
        ),
    ],
)
async def test_a_body_that_is_not_an_answer_is_shown(kind: str, pieces: list[bytes], text: str) -> None:
    transport = FakeTransport([Answer(pieces, headers={"content-type": kind})])
    with pytest.raises(ProviderError) as caught:
        await everything(call(transport))
    assert str(caught.value) == f"anthropic: {text}"
    assert len(transport.requests) == 1


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("page", [b"<h1>Welcome</h1>", b"data: welcome\n\n", b"{}"])
async def test_a_web_page_is_not_an_answer_through_any_api(api: ApiName, page: bytes) -> None:
    transport = FakeTransport([Answer([page], headers={"content-type": "text/html"})])
    stream = Service("test", APIS[api].api(), transport, key=KEY).call(REQUEST, Heard())
    with pytest.raises(StreamBroken, match=r"^test: http 200: not a stream of events but text/html, which begins: "):
        await everything(stream)
    assert len(transport.requests) == 1


async def test_an_error_instead_of_a_stream_is_handled_like_any_other() -> None:
    busy = Answer(
        [b'{"error":{"type":"overloaded_error","message":"m"}}'], headers={"content-type": "application/json"}
    )
    heard, transport = Heard(), FakeTransport([busy, FINE])
    assert await everything(call(transport, heard)) == [TextDelta("fine")]
    assert heard.retries == [("anthropic: overloaded_error: m", 1, 0.5)]


async def test_a_stream_with_a_wrong_content_type_is_read() -> None:
    assert await everything(call(FakeTransport([Answer(FINE, headers={"content-type": "text/plain"})]))) == [
        TextDelta("fine")
    ]


async def test_a_service_that_asks_for_more_patience_than_we_have_is_quoted() -> None:
    heard, transport = Heard(), FakeTransport([Answer([], status=429, headers={"retry-after": "3600"})])
    with pytest.raises(ProviderError, match=r"^anthropic: http 429: no reason was given \(try again in 3600 s\)$"):
        await everything(call(transport, heard))
    assert heard.retries == []


WRONG_KEY = Answer([b'{"code":"invalid-argument","error":"Incorrect API key provided: k."}'], 400)
NO_CREDIT = Answer([b'{"error":{"message":"Your credit balance is too low to access the Anthropic API."}}'], 400)


@pytest.mark.parametrize(
    ("answer", "asked"), [(refused(401), 2), (WRONG_KEY, 2), (refused(400), 1), (refused(403), 1), (NO_CREDIT, 1)]
)
async def test_another_key_is_tried_where_the_key_was_wrong(answer: Answer, asked: int) -> None:
    class Renewed:
        keys = iter(["old", "new"])

        async def read(self) -> str:
            return next(self.keys)

        def renew(self, refused: str) -> bool:
            return True

    transport = FakeTransport([answer, FINE])
    stream = call(transport, key=Renewed())
    if asked == 1:
        with pytest.raises(ProviderError):
            await everything(stream)
    else:
        assert await everything(stream) == [TextDelta("fine")]
    assert [request.headers["x-api-key"] for request in transport.requests] == ["old", "new"][:asked]


async def test_a_failure_raised_again_names_its_provider_once() -> None:
    stream = call(FakeTransport([Answer([claude.start() + b"".join(claude.text("a")(0)) + FAULT])]))
    async with asyncio.timeout(PATIENCE_S):
        await stream.open()
        await stream.read()
        for _ in range(2):
            with pytest.raises(
                Overloaded, match=r"^anthropic: overloaded_error: No\. \(try again later, or use another model\)$"
            ):
                await stream.read()


async def test_a_reply_has_a_limit() -> None:
    ping = claude.event("ping", padding="x" * 1_000_000)
    transport = FakeTransport([Answer(itertools.chain([claude.start()], itertools.repeat(ping)))])
    with pytest.raises(StreamBroken, match=r"^anthropic: the answer is longer than 64 MiB \(try again\)$"):
        await everything(call(transport))
    assert transport.responses[0].reads == 69


async def test_a_long_message_is_shortened() -> None:
    with pytest.raises(ProviderError) as caught:
        await everything(call(FakeTransport([Answer([b"x" * 3000], status=400)])))
    assert str(caught.value) == f"anthropic: http 400: {'x' * 1990} ... (try another model or another --api)"


async def test_a_key_at_the_cut_of_a_shortened_message_is_not_shown_in_part() -> None:
    body = b"x" * 1980 + b"sk-test-1234" + b"x" * 1000
    with pytest.raises(ProviderError) as caught:
        await everything(call(FakeTransport([Answer([body], status=400)])))
    assert "sk-" not in str(caught.value)


async def test_a_key_that_is_quoted_inside_a_stream_is_not_repeated_either() -> None:
    fault = claude.event("error", error={"type": "api_error", "message": "bad sk-test-1234"})
    with pytest.raises(
        ServiceFailed, match=r"^anthropic: api_error: bad \[key\] \(try again later, or use another model\)$"
    ):
        await everything(call(FakeTransport([Answer([claude.start(), fault])])))


@pytest.mark.parametrize("error", [Stalled("no headers in time"), StreamBroken("not HTTP")])
async def test_a_stall_before_the_headers_is_not_retried(error: ProviderError) -> None:
    heard, transport = Heard(), FakeTransport([error])
    with pytest.raises(type(error)):
        await everything(call(transport, heard))
    assert (heard.slept, len(transport.requests)) == ([], 1)


async def test_the_dice_spread_the_waits() -> None:
    heard, dice = Heard(), iter([0.0, 1.0])
    transport = FakeTransport([refused(503), refused(503), FINE])
    await everything(call(transport, heard, jitter=lambda: next(dice)))
    assert heard.slept == [0.25, 1.5]


@pytest.mark.parametrize(
    ("headers", "slept"),
    [
        ({"retry_after": "7"}, [7.0]),
        ({"retry_after_ms": "250"}, [0.25]),
        ({"retry_after": "60"}, [60.0]),
        ({"retry_after": "tomorrow"}, [0.5]),
    ],
)
async def test_we_wait_as_long_as_the_service_asks(headers: dict[str, str], slept: list[float]) -> None:
    heard = Heard()
    await everything(call(FakeTransport([refused(429, **headers), FINE]), heard))
    assert heard.slept == slept


async def test_we_wait_until_the_time_that_the_service_names() -> None:
    heard = Heard()
    transport = FakeTransport([refused(429, retry_after="Thu, 01 Jan 1970 00:02:00 GMT"), FINE])
    await everything(call(transport, heard, now=lambda: 90.0))
    assert heard.slept == [30.0]


async def test_a_service_that_asks_for_more_than_a_minute_is_reported_instead() -> None:
    heard = Heard()
    with pytest.raises(RateLimited) as caught:
        await everything(call(FakeTransport([refused(429, "rate_limit_error", retry_after="61")]), heard))
    assert (caught.value.retry_after_s, heard.slept) == (61.0, [])


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ([], StreamBroken),
        ([claude.start()], StreamBroken),
        ([ConnectionFailed("reset")], ConnectionFailed),
        ([claude.start(), StreamBroken("cut")], StreamBroken),
        ([claude.start(), FAULT], Overloaded),
        ([claude.start() + FAULT], Overloaded),
        ([claude.event("error", error={"type": "authentication_error", "message": "x"})], AuthFailed),
    ],
    ids=["empty", "cut short", "reset", "broken", "an error event", "an error at once", "a final error"],
)
async def test_nothing_is_retried_once_an_answer_began(pieces: list[Piece], kind: type[ProviderError]) -> None:
    heard, transport = Heard(), FakeTransport([Answer(pieces)])
    with pytest.raises(kind):
        await everything(call(transport, heard))
    assert (heard.retries, len(transport.requests)) == ([], 1)


@pytest.mark.parametrize("code", ["overloaded_error", "rate_limit_error", "api_error"])
async def test_an_error_that_comes_instead_of_an_answer_is_retried(code: str) -> None:
    fault = claude.event("ping") + claude.event("error", error={"type": code, "message": "x"})
    heard, transport = Heard(), FakeTransport([Answer([fault]), Answer([fault]), claude.reply(claude.text("a"))])
    stream = call(transport, heard)
    assert await everything(stream) == [TextDelta("a")]
    assert stream.reply().content == (TextBlock("a"),)
    assert heard.slept == [0.5, 1.0]
    assert [response.closed for response in transport.responses[:2]] == [1, 1]


async def test_text_before_an_error_is_emitted_before_it() -> None:
    fault = claude.event("error", error={"type": "overloaded_error", "message": "x"})
    stream = call(FakeTransport([Answer([claude.start() + b"".join(claude.text("a", "b")(0)) + fault, None])]))
    async with asyncio.timeout(PATIENCE_S):
        await stream.open()
        assert await stream.read() == [TextDelta("a"), TextDelta("b")]
        with pytest.raises(Overloaded):
            await stream.read()
    assert stream.reply().content == (TextBlock("ab"),)


# Deadlines, on a clock that a test can move.

AGES_S = 1e6


class Clockwork(asyncio.SelectorEventLoop):
    """An event loop whose time a test can move on."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


def with_a_clock(main: Callable[[Clockwork], Awaitable[None]]) -> None:
    loops: list[Clockwork] = []

    def make() -> Clockwork:
        loops.append(Clockwork())
        return loops[0]

    async def run() -> None:
        async with asyncio.timeout(AGES_S):
            await main(loops[0])

    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(run())


def later(loop: Clockwork, seconds: float, data: bytes) -> Callable[[], bytes]:
    """A piece that takes its time."""

    def piece() -> bytes:
        loop.ahead_s += seconds
        return data

    return piece


def test_silence_ends_a_call_even_while_pings_flow() -> None:
    async def main(loop: Clockwork) -> None:
        pings = itertools.repeat(later(loop, 50, claude.event("ping")))
        stream = call(FakeTransport([Answer(itertools.chain([claude.start()], pings))]))
        with pytest.raises(
            Stalled, match=r"^anthropic: the answer stalled: nothing new for 120 s \(try again\)$"
        ) as caught:
            await everything(stream, AGES_S)
        assert caught.value.provider == "anthropic"
        assert 120 <= loop.ahead_s <= 200

    with_a_clock(main)


def test_a_slow_answer_is_not_silence() -> None:
    async def main(loop: Clockwork) -> None:
        pieces = (later(loop, 100, piece) for piece in claude.reply(claude.thinking("a", signature="s")))
        assert len(await everything(call(FakeTransport([Answer(pieces)])), AGES_S)) == 1
        assert loop.ahead_s == 700

    with_a_clock(main)


def test_the_reader_s_time_does_not_count_as_silence() -> None:
    async def main(loop: Clockwork) -> None:
        stream = call(FakeTransport([claude.reply(claude.text("a", "b", "c"))]))
        await stream.open()
        loop.ahead_s += 1000
        while await stream.read():
            loop.ahead_s += 1000
        assert stream.reply().content == (TextBlock("abc"),)

    with_a_clock(main)


def test_an_endless_refusal_is_not_read_to_its_end() -> None:
    async def main(loop: Clockwork) -> None:
        slow = Answer(itertools.repeat(later(loop, 4, b"sorry ")), status=401)
        with pytest.raises(AuthFailed, match=r"^anthropic: http 401: sorry sorry"):
            await everything(call(FakeTransport([slow])), AGES_S)
        assert 10 <= loop.ahead_s <= 20

    with_a_clock(main)


async def test_given_deadlines_are_used() -> None:
    stream = call(FakeTransport([Answer([claude.start(), None])]), deadlines=Deadlines(silence_s=0.001))
    with pytest.raises(Stalled, match=r"nothing new for 0.001 s"):
        await everything(stream)


async def test_a_stall_leaves_no_request_for_cancellation() -> None:
    stream = call(FakeTransport([Answer([claude.start(), None])]), deadlines=Deadlines(silence_s=0.001))
    with pytest.raises(Stalled):
        await everything(stream)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


class Aborted(FakeTransport):
    """Its answers are aborted, too, while their silence is being ended."""

    async def send(self, request: HttpRequest, deadlines: Deadlines) -> FakeResponse:
        response = await super().send(request, deadlines)
        read, running = response.read, asyncio.current_task()

        async def aborted() -> bytes:
            try:
                return await read()
            finally:
                if running is not None and response.reads > 1:
                    running.cancel()

        response.read = aborted  # type: ignore[method-assign]
        return response


async def test_an_abort_at_the_moment_of_a_stall_is_an_abort() -> None:
    stream = call(Aborted([Answer([claude.start(), None])]), deadlines=Deadlines(silence_s=0.001))
    task = asyncio.create_task(everything(stream))
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait({task})
    assert task.cancelled()


async def test_a_refusal_is_read_up_to_a_limit() -> None:
    transport = FakeTransport([Answer(itertools.repeat(b"x" * 10_000), status=400)])
    with pytest.raises(ProviderError, match="http 400: xxx"):
        await everything(call(transport))
    assert (transport.responses[0].reads, transport.responses[0].closed) == (7, 1)


@pytest.mark.parametrize("trouble", [StreamBroken("cut"), ConnectionFailed("reset")])
async def test_a_refusal_that_breaks_off_is_still_a_refusal(trouble: ProviderError) -> None:
    with pytest.raises(AuthFailed, match=r"^anthropic: http 401: you are \(check ANTHROPIC_API_KEY"):
        await everything(call(FakeTransport([Answer([b"you are", trouble], status=401)])))


async def test_a_key_that_the_service_quotes_is_not_repeated() -> None:
    body = b'{"error":{"type":"authentication_error","message":"bad key sk-test-1234 (sk-test-1234)"}}'
    with pytest.raises(AuthFailed, match=r"^anthropic: http 401: bad key \[key\] \(\[key\]\) \(check "):
        await everything(call(FakeTransport([Answer([body], status=401)])))


async def test_a_retry_does_not_repeat_the_key_either() -> None:
    heard = Heard()
    await everything(call(FakeTransport([Answer([b"slow down, sk-test-1234"], status=429), FINE]), heard))
    assert heard.retries == [("anthropic: http 429: slow down, [key]", 1, 0.5)]


# Being cut off.


@pytest.mark.parametrize(
    "script",
    [
        [None],
        [Answer([None], status=500)],
        [Answer([None])],
        [Answer([claude.start(), *claude.text("a")(0), None])],
    ],
    ids=["before the headers", "in a refusal", "before the first event", "in the middle"],
)
async def test_a_cancelled_call_releases_its_connection_at_every_stage(script: list[Answer | None]) -> None:
    transport = FakeTransport(script)
    stream = call(transport)
    task = asyncio.get_running_loop().create_task(everything(stream))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait({task})
    assert task.cancelled()
    stream.close()
    assert all(response.closed for response in transport.responses)
    assert len(transport.requests) == 1


async def test_a_call_cancelled_between_attempts_is_not_retried() -> None:
    asleep = asyncio.Event()

    async def sleep(seconds: float) -> None:
        asleep.set()
        await asyncio.get_running_loop().create_future()

    transport = FakeTransport([refused(529), FINE])
    stream = service(transport, sleep=sleep).call(REQUEST, Heard())
    task = asyncio.get_running_loop().create_task(everything(stream))
    async with asyncio.timeout(PATIENCE_S):
        await asleep.wait()
        task.cancel()
        await asyncio.wait({task})
    stream.close()
    assert task.cancelled()
    assert (len(transport.requests), transport.responses[0].closed) == (1, 1)


async def test_closing_a_service_closes_its_transport() -> None:
    transport = FakeTransport()
    await service(transport).close()
    assert transport.closed


@pytest.mark.parametrize("at", range(1, 12))
async def test_a_failed_call_closes_its_connection_whatever_the_cause(at: int) -> None:
    def break_it() -> None:
        raise ServiceFailed("broken here")

    transport = FakeTransport([FINE], Points(at, break_it))
    stream = call(transport)
    try:
        await everything(stream)
    except ServiceFailed:
        pass
    finally:
        stream.close()
    assert all(response.closed for response in transport.responses)


#: Those whose streams have a last event; Gemini's only end with the body.
ENDED = [api for api in APIS if api != "gemini"]


@pytest.mark.parametrize("api", ENDED)
@pytest.mark.parametrize("fault", [StreamBroken("the answer was cut short"), None], ids=["cut", "silent"])
async def test_an_answer_is_complete_with_its_last_event_whatever_happens_to_the_connection(
    api: ApiName, fault: Exception | None
) -> None:
    words = APIS[api].words
    transport = FakeTransport([Answer([*words.reply(words.text("Hel", "lo")), fault])])
    stream = Service("test", APIS[api].api(), transport, key=KEY).call(REQUEST, Heard())
    assert await everything(stream, patience_s=30) == [TextDelta("Hel"), TextDelta("lo")]
    assert stream.reply().content == (TextBlock("Hello"),)
    stream.close()
    assert transport.responses[0].closed == 1


@pytest.mark.parametrize("api", APIS)
async def test_an_answer_cut_before_its_last_event_is_not_a_success(api: ApiName) -> None:
    words = APIS[api].words
    pieces: list[Piece] = [*words.reply(words.text("Hel", "lo"))]
    last = max(at for at, piece in enumerate(pieces) if isinstance(piece, bytes) and piece.strip())
    transport = FakeTransport([Answer([*pieces[:last], StreamBroken("the answer was cut short")])])
    stream = Service("test", APIS[api].api(), transport, key=KEY).call(REQUEST, Heard())
    with pytest.raises(StreamBroken, match="cut short"):
        await everything(stream)


# The deadline of reads.


class SlowResponse:
    """An `HttpResponse` whose next bytes arrive when the test sends them."""

    status = 200
    headers: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.arrived: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def read(self) -> bytes:
        return await self.arrived

    def close(self) -> None:
        self.arrived.cancel()


async def test_each_read_has_its_own_deadline() -> None:
    deadline, loop = ReadDeadline(), asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE_S):
        for at_once in (SlowResponse(), SlowResponse()):
            at_once.arrived.set_result(b"first")
            assert await deadline.read(at_once, loop.time() + 0.02) == b"first"
        later = SlowResponse()
        loop.call_later(0.06, later.arrived.set_result, b"later")  # The timer of the first fires meanwhile.
        assert await deadline.read(later, loop.time() + 600) == b"later"
        began = loop.time()
        with pytest.raises(TimeoutError):
            await deadline.read(SlowResponse(), began + 0.02)
        assert loop.time() - began >= 0.019
        again = SlowResponse()
        again.arrived.set_result(b"again")
        assert await deadline.read(again, loop.time() + 600) == b"again"
    deadline.close()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_cancelled_read_is_not_a_stall() -> None:
    deadline, loop = ReadDeadline(), asyncio.get_running_loop()
    reading = loop.create_task(deadline.read(SlowResponse(), loop.time() + 600))
    await asyncio.sleep(0)
    reading.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([reading])
    assert reading.cancelled()
    deadline.close()
