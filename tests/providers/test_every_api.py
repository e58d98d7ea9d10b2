"""The same conversation through each API: the same events, the same cost, the same errors within their deadlines."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import zot
from fakes import PATIENCE_S, FakeTool, finish, listen, no_sleep, open_session, read_key, talk
from zot.events import AgentEvent, Done, TextDelta, ThinkingDelta, ToolUseEnd, TurnEnd, TurnStart, encode
from zot.providers.anthropic import AnthropicMessages
from zot.providers.base import Api, Deadlines
from zot.providers.lab.script import demo
from zot.providers.lab.transport import LabTransport
from zot.providers.openai_responses import OpenAIResponses
from zot.providers.service import Service
from zot.providers.vendors import ApiName
from zot.session import Session
from zot.tools.base import Output, ToolContext

MODEL: dict[str, Any] = {"base_url": "http://lab.invalid", "origin": "lab"}
#: Anthropic Messages is what the others are compared with.
FIRST = AnthropicMessages(**MODEL)
OTHERS: dict[ApiName, Api] = {"responses": OpenAIResponses(**MODEL)}

SCENES = [
    "!say 3 hello", "!bytes né 😀", "!flood 50", "!think", "!bash echo hi", "!tools", "!bad-args", "!usage 1 2 3 4",
    "!usage-twice", "!length", "!retry 2", "!limit 0", "hello",
    '!script redacted sealed ;; call bash {"command": "x"} chunks=3 ;; --- ;; think a b ;; say c',
    '!script raw ": note\\n\\n" ;; say a ;; ping 3 ;; say b',
]  # fmt: skip
FAULTS = [
    "!refusal", "!refuse", "!stall", "!stall-mid", "!script say half ;; stall pings every=10ms", "!cut", "!cut-utf8",
    "!cut-json", "!no-end", "!error", '!script call-raw bash "{" ;; cut', "!script think a ;; no-end",
    *(f"!status {status}" for status in (300, 400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 502, 503, 504, 529)),
]  # fmt: skip


def open_with(api: Api, patience_s: float = PATIENCE_S) -> Session:
    async def run(args: dict[str, Any], context: ToolContext) -> Output:
        return ()

    deadlines = Deadlines(connect_s=patience_s, headers_s=patience_s, silence_s=patience_s)
    transport = LabTransport(demo())
    service = Service("lab", api, transport, key=read_key, deadlines=deadlines, sleep=no_sleep, jitter=lambda: 0.5)
    return open_session(service, tools=[FakeTool("bash", run)], reasoning="low")


async def told(api: Api, prompt: str, patience_s: float = PATIENCE_S) -> list[Any]:
    """What happens, in the words of the wire; the ids of calls are made up by each API in its own way."""
    async with asyncio.timeout(PATIENCE_S):
        events = await talk(open_with(api, patience_s), prompt)
    return [msgspec.json.decode(re.sub(rb'"(toolu|call)_lab_', b'"', encode(event))) for event in events]


@pytest.mark.parametrize("prompt", SCENES)
@pytest.mark.parametrize("api", OTHERS)
async def test_a_conversation_is_the_same_through_every_api(api: ApiName, prompt: str) -> None:
    events = await told(OTHERS[api], prompt)
    assert events == await told(FIRST, prompt)
    assert events[-1] == {"type": "done"}


@pytest.mark.parametrize("prompt", FAULTS)
@pytest.mark.parametrize("api", OTHERS)
async def test_a_fault_is_the_same_through_every_api(api: ApiName, prompt: str) -> None:
    """Except for what had been counted until then: some APIs count at the beginning, others at the end."""
    ours, theirs = await told(OTHERS[api], prompt, 0.3), await told(FIRST, prompt, 0.3)
    ours, theirs = ([event for event in told_ if event["type"] != "usage"] for told_ in (ours, theirs))
    assert ours == theirs
    assert [event["type"] for event in ours[-3:]] == ["turn_end", "error", "done"]


@pytest.mark.parametrize("api", OTHERS)
@pytest.mark.parametrize(
    ("prompt", "moment"),
    [
        ("!stall", TurnStart),
        ("!stall-mid", TextDelta),
        ("!script think a ;; stall", ThinkingDelta),
        ("!script call-raw bash '{' ;; stall", ToolUseEnd),
    ],
)
async def test_an_abort_ends_what_hangs_and_the_conversation_goes_on(
    api: ApiName, prompt: str, moment: type[AgentEvent]
) -> None:
    session = open_with(OTHERS[api])
    listener = listen(session)
    listener.on_event = lambda event: session.abort() if isinstance(event, moment) else None
    session.prompt(prompt)
    await finish(session)
    assert listener.events[-2:] == [TurnEnd("aborted"), Done()]
    listener.on_event = lambda event: None
    assert (await talk(session, "!usage 1 1 1 1"))[-2:] == [TurnEnd("end_turn"), Done()]


@pytest.mark.parametrize("api", OTHERS)
async def test_the_api_is_chosen_by_name(api: ApiName, tmp_path: Path) -> None:
    async def demonstration(**settings: Any) -> list[AgentEvent]:
        async with asyncio.timeout(PATIENCE_S), zot.Runtime(provider="lab", cwd=str(tmp_path), **settings) as runtime:
            return [event async for event in runtime.prompt("!tools")]

    ours, theirs = await demonstration(api=api), await demonstration()
    assert [type(event) for event in ours] == [type(event) for event in theirs]
    assert b"call_lab_1" in b"".join(map(encode, ours))
    assert b"toolu_lab_1" in b"".join(map(encode, theirs))
