from __future__ import annotations

import asyncio
import itertools
import json

import pytest

from zot.errors import ConnectionFailed, Stalled, StreamBroken
from zot.providers.base import Deadlines, HttpRequest, Transport
from zot.providers.lab.script import Script, demo
from zot.providers.lab.transport import LabResponse, LabTransport

from .talk import CHAT, GEMINI, RESPONSES, WAIT_S, Clock, body, read_all, said, send, texts


def playing(lines: str, clock: Clock | None = None) -> LabTransport:
    return LabTransport(Script.parse(lines), sleep=clock or Clock())


async def reads(response: LabResponse, most: int = 100) -> list[bytes]:
    """Return the result of each read, until the end or ``most`` of them."""
    found = []
    async with asyncio.timeout(WAIT_S):
        for _ in range(most):
            if not (data := await response.read()):
                break
            found.append(data)
    return found


def test_it_is_a_transport() -> None:
    transport: Transport = playing("say x")
    assert isinstance(transport, LabTransport)


async def test_a_reply_without_waits_arrives_in_one_piece() -> None:
    response = await send(playing('say "a" "b"\ncall bash'), body("hi"))
    assert (response.status, response.headers) == (
        200,
        {
            "request-id": "req_lab_1",
            "x-request-id": "req_lab_1",
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
        },
    )
    [data] = await reads(response)
    assert texts(data) == ["a", "b"]
    assert await response.read() == b""


async def test_a_flood_costs_few_reads() -> None:
    found = await reads(await send(LabTransport(demo()), body("!flood 20000")))
    assert len(texts(b"".join(found))) == 20000
    assert len(found) < 50


async def test_a_flood_lets_others_run() -> None:
    response = await send(LabTransport(demo()), body("!flood 20000"))
    turns = itertools.count()

    async def other() -> None:
        while True:
            next(turns)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(other())
        found = await reads(response)
        task.cancel()
    assert next(turns) >= len(found)


async def test_nothing_is_joined_across_a_wait() -> None:
    clock = Clock()
    response = await send(playing('say "a"\nwait 1s\nsay "b"\npace 20ms\nsay "c" "d"', clock), body("hi"))
    assert [texts(data) for data in await reads(response)] == [["a"], ["b"], ["c"], ["d"]]
    assert clock.slept == [1.0, 0.02, 0.02]


async def test_the_message_begins_before_the_pace_does() -> None:
    clock = Clock()
    response = await send(playing('pace 1s\nsay "a"', clock), body("hi"))
    assert clock.slept == []
    assert b"message_start" in await response.read()


async def test_chunked_bytes_arrive_one_by_one() -> None:
    found = await reads(await send(playing('chunk 1\nsay "é"'), body("hi")), 5000)
    assert {len(data) for data in found} == {1}
    assert texts(b"".join(found)) == ["é"]


async def test_chunks_have_a_size_and_an_end() -> None:
    found = await reads(await send(playing('chunk 100\nsay "a"\nchunk 0\nsay "b"'), body("hi")))
    assert max(len(data) for data in found[:-1]) == 100
    assert texts(found[-1]) == ["b"]


async def test_a_wait_before_the_first_word_delays_the_head() -> None:
    clock = Clock()
    await send(playing("wait 2s\nsay x", clock), body("hi"))
    assert clock.slept == [2.0]


@pytest.mark.parametrize(("lines", "slept"), [("stall", [3.0]), ("wait 1s\nstall", [1.0, 2.0]), ("wait 9s", [3.0])])
async def test_a_stall_before_the_head_ends_at_the_deadline(lines: str, slept: list[float]) -> None:
    clock = Clock()
    with pytest.raises(Stalled):
        await send(playing(lines, clock), body("hi"), deadlines=Deadlines(headers_s=3.0))
    assert clock.slept == slept


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ("refuse", "connection refused"),
        ("cut", "connection closed before an answer"),
        ("wait 1s\ncut", "connection closed before an answer"),
    ],
)
async def test_no_answer_at_all_is_a_failed_connection_with_a_remedy(lines: str, what: str) -> None:
    with pytest.raises(ConnectionFailed, match=f"^{what}, as scripted: try again$"):
        await send(playing(lines), body("hi"))


async def test_a_status_has_headers_and_a_body() -> None:
    transport = playing(
        'status 429 retry-after=1\n---\nstatus 503 content-type=text/html "<p>"\n---\nstatus 418 {"a": 1}'
    )
    answers = []
    for _ in range(3):
        response = await send(transport, body("hi"))
        answers.append((response.status, response.headers, await read_all(response)))
    made = b'{"type":"error","error":{"type":"rate_limit_error","message":"status 429, as scripted"}}'
    assert answers == [
        (429, {**_ids(1), "content-type": "application/json", "x-should-retry": "true", "retry-after": "1"}, made),
        (503, {**_ids(2), "content-type": "text/html", "x-should-retry": "true"}, b"<p>"),
        (418, {**_ids(3), "content-type": "application/json", "x-should-retry": "false"}, b'{"a":1}'),
    ]


def _ids(number: int) -> dict[str, str]:
    return {"request-id": f"req_lab_{number}", "x-request-id": f"req_lab_{number}"}


@pytest.mark.parametrize(
    ("lines", "end"),
    [
        ('say "a"\ncut', b'"text":"a"}}\n\n'),
        ('say "a"\ncut utf8', b'"text":"c\xc3'),
        ("cut utf8", b'"text":"c\xc3'),
        ('say "a"\ncut json', b'"text":"c\xc3\xbbt"}'),
        ('raw ""\ncut', b""),
        ('raw "event: x\\n"\ncut', b"event: x\n"),
    ],
)
async def test_a_cut_breaks_the_stream_after_what_was_sent(lines: str, end: bytes) -> None:
    response = await send(playing(lines), body("hi"))
    data = b""
    while not (more := await _until_broken(response)).endswith(b"<broken>"):
        data += more
    assert data.endswith(end)


async def test_a_missing_end_is_a_proper_end_of_the_body() -> None:
    data = await read_all(await send(playing('say "a"\nno-end'), body("hi")))
    assert data.endswith(b'"text":"a"}}\n\n')


async def test_an_error_event_ends_the_stream() -> None:
    data = await read_all(await send(playing('say "a"\nerror overloaded_error "Overloaded"'), body("hi")))
    assert data.endswith(
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
    )


async def test_pings_flow_during_silence() -> None:
    clock = Clock()
    response = await send(playing('say "a"\nstall pings every=5s', clock), body("hi"))
    found = await reads(response, 4)
    assert found[1:] == [b'event: ping\ndata: {"type":"ping"}\n\n'] * 3
    assert clock.slept == [5.0] * 3


@pytest.mark.parametrize("lines", ['say "a"\nstall', 'say "a"\nwait 1m', 'say "a"\nstall pings'])
async def test_a_stalled_read_ends_with_close(lines: str) -> None:
    response = await send(LabTransport(Script.parse(lines)), body("hi"))
    await response.read()
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        task = group.create_task(_until_broken(response))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        response.close()
        response.close()
    assert task.result() == b"<broken>"


async def _until_broken(response: LabResponse) -> bytes:
    try:
        async with asyncio.timeout(WAIT_S):
            return await response.read()
    except StreamBroken:
        return b"<broken>"


async def test_a_stalled_read_can_be_cancelled() -> None:
    response = await send(LabTransport(Script.parse('say "a"\nstall')), body("hi"))
    await response.read()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await response.read()
    response.close()


async def test_nothing_is_read_after_close() -> None:
    response = await send(playing('say "a"'), body("hi"))
    response.close()
    with pytest.raises(StreamBroken):
        await response.read()


async def test_the_same_script_gives_the_same_bytes() -> None:
    async def play() -> list[bytes]:
        transport = LabTransport(demo(), sleep=Clock())
        prompts = ["hello", "!tools", "!think", "!say 3 hello", "!status 500", "!help", "!usage 1 2 3 4"]
        return [await read_all(await send(transport, body(prompt))) for prompt in prompts]

    assert await play() == await play()


async def test_transports_play_at_the_same_time_without_disturbing_each_other() -> None:
    async def conversation(name: str) -> list[str]:
        first = body(f"I am {name}", {"role": "assistant", "content": "Hello."}, "!retry 2")
        return [await said(transport, first) for _ in range(3)]

    transport = LabTransport(demo(), sleep=Clock())
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(conversation(name)) for name in ("a", "b", "c", "d")]
    assert [task.result() for task in tasks] == [["status 529", "status 529", "Answered after 2 failures."]] * 4


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"model": "x"}', b"\xff", b'{"model":1,"messages":[]}', b"[" * 100000]
)
async def test_an_invalid_request_is_answered_with_an_error(data: bytes) -> None:
    response = await send(playing("say x"), data)
    assert response.status == 400
    assert json.loads(await read_all(response))["error"]["message"].startswith("not a request: ")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models", 200),
        ("GET", "/v1/messages", 404),
        ("POST", "/v1/nope", 404),
        ("POST", "/v1/messages?beta=true", 200),
        ("GET", "/v1beta/models?pageSize=50", 200),
        ("GET", "/v1beta/models/lab-1", 200),
        ("GET", "/v1/models/vendor/name", 200),
        ("POST", "/v1/models", 404),
        ("POST", "/v1/messages/count_tokens", 200),
        ("GET", "/v1/messages/count_tokens", 404),
        ("POST", "/v1/responses/input_tokens", 200),
        ("POST", "/v1beta/models/lab-1:countTokens", 200),
        ("POST", "/v1beta/models/lab-1:embedContent", 404),
    ],
)
async def test_paths_lead_to_apis(method: str, path: str, status: int) -> None:
    request = HttpRequest(f"http://lab{path}", {}, body("hi"), method)
    response = await playing("say x").send(request, Deadlines())
    assert response.status == status


async def test_the_other_apis_can_be_reached_in_process_too() -> None:
    chat = await send(playing("say x"), body("hi"), target=CHAT)
    responses = await send(playing("say x"), b'{"model":"lab","input":"hi","stream":true}', target=RESPONSES)
    assert (await read_all(chat)).endswith(b"data: [DONE]\n\n")
    assert b"event: response.completed" in await read_all(responses)
    gemini = await send(playing("say x"), b'{"contents":[{"parts":[{"text":"hi"}]}]}', target=GEMINI)
    assert b'"finishReason":"STOP"' in await read_all(gemini)
