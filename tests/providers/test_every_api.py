"""The same conversation through each API: the same events, cost and faults, and it always continues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from apis import APIS
from conversation import STALLED_S, Conversation, shape, told

import zot
from fakes import PATIENCE_S, PNG, finish, listen, no_sleep, talk
from zot.config.vendors import ApiName
from zot.errors import (
    AuthFailed,
    BadRequest,
    ConnectionFailed,
    ContentRefused,
    ContextTooLong,
    NoCredit,
    NotFound,
    Overloaded,
    ProviderError,
    RateLimited,
    ServiceFailed,
    Stalled,
    StreamBroken,
)
from zot.events import (
    AgentEvent,
    Done,
    Error,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolResult,
    ToolUseEnd,
    ToolUseStart,
    TurnEnd,
    TurnStart,
    Usage,
    text,
)
from zot.messages import ImageBlock, TextBlock
from zot.providers.http import HttpTransport
from zot.providers.lab.script import Script, demo
from zot.providers.lab.transport import LabTransport

#: What the others are compared with.
FIRST: ApiName = "anthropic"
OTHERS = [api for api in APIS if api != FIRST]

# What a conversation comes to, kind by kind.
ANSWERED = "usage > assistant_message > turn_end end_turn > done"
BROKEN = "usage > assistant_message > turn_end error > error > done"
SPOKE = f"turn_start > assistant_start > text_delta > {ANSWERED}"
HALF = f"turn_start > assistant_start > text_delta > {BROKEN}"
REFUSED = "turn_start > turn_end error > error > done"
TRIED = "turn_start > retry > turn_end error > error > done"
TRIED_WELL = f"turn_start > retry > assistant_start > text_delta > {ANSWERED}"
WROTE = "tool_use_start > tool_use_args > tool_use_end > usage > assistant_message > tool_call > turn_end tool_use"
CALLED = f"turn_start > assistant_start > {WROTE} > tool_result > {SPOKE}"
SAID_AND_CALLED = f"turn_start > assistant_start > text_delta > {WROTE} > tool_result > {SPOKE}"

#: Scenes in which nothing goes wrong, or nothing that ends them.
SCENES: dict[str, str] = {
    "!say 3 Hello": SPOKE,
    "!bytes né 😀": SPOKE,
    "!slow 3 30": SPOKE,
    "!flood 1000": SPOKE,
    "!usage 1234 567 8901 0": SPOKE,
    "!usage-twice": SPOKE,
    "!script say a ;; ping 3 ;; say b": SPOKE,
    '!script raw ": note\\n\\n" ;; say a': SPOKE,
    "!think": f"turn_start > assistant_start > thinking_delta > text_delta > {ANSWERED}",
    "!length": SPOKE.replace("end_turn", "length"),
    "!retry 2": TRIED_WELL,
    "!limit 7": TRIED_WELL,
    "!script error overloaded_error busy ;; --- ;; say ok": TRIED_WELL,
    "!bash ls": SAID_AND_CALLED,
    "!bad-args": CALLED,
    "!script call-raw bash '[1]' ;; --- ;; say ok": CALLED,
    '!script redacted "c2VhbGVk" ;; call bash {"command": "x"} chunks=3 ;; --- ;; say ok': CALLED,
}
#: Scenes that end in an error: what happens, which error it is, and how often the service was asked.
FAULTS: dict[str, tuple[str, type[ProviderError], int]] = {
    "!refusal": (HALF, ContentRefused, 1),
    "!status 300": (REFUSED, NotFound, 1),
    "!status 400": (REFUSED, BadRequest, 1),
    "!status 401": (REFUSED, AuthFailed, 1),
    "!status 402": (REFUSED, NoCredit, 1),
    "!status 403": (REFUSED, AuthFailed, 1),
    "!status 404": (REFUSED, NotFound, 1),
    "!status 408": (TRIED, BadRequest, 3),
    "!status 409": (TRIED, BadRequest, 3),
    "!status 413": (REFUSED, ContextTooLong, 1),
    "!status 422": (REFUSED, BadRequest, 1),
    "!status 429": (TRIED, RateLimited, 3),
    "!status 500": (TRIED, ServiceFailed, 3),
    "!status 502": (TRIED, ServiceFailed, 3),
    "!status 503": (TRIED, Overloaded, 3),
    "!status 504": (TRIED, ServiceFailed, 3),
    "!status 529": (TRIED, Overloaded, 3),
    '!script status 503 content-type=text/html "<h1>Bad day</h1>" ;; repeat': (TRIED, Overloaded, 3),
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
    "!script error overloaded_error busy ;; repeat": (TRIED, Overloaded, 3),
    "!script error permission_error no ;; repeat": (
        "turn_start > assistant_start > usage > turn_end error > error > done", AuthFailed, 1),
}  # fmt: skip


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("api", APIS)
async def test_a_scene_is_played_as_recorded(api: ApiName, scene: str) -> None:
    conversation = Conversation(api)
    events = await conversation.say(scene)
    assert shape(events) == SCENES[scene]
    assert text(await conversation.say("!echo still here")) == "still here"
    conversation.check()


@pytest.mark.parametrize("scene", FAULTS)
@pytest.mark.parametrize("api", APIS)
async def test_a_fault_ends_as_recorded_and_the_conversation_continues(api: ApiName, scene: str) -> None:
    expected, kind, asked = FAULTS[scene]
    conversation = Conversation(api, silence_s=STALLED_S if kind is Stalled else PATIENCE_S)
    events = await conversation.say(scene)
    assert shape(events) == expected
    assert [type(error) for error in conversation.errors] == [kind]
    assert [event.message for event in events if isinstance(event, Error)] == [str(conversation.errors[0])]
    assert (len(conversation.bodies), conversation.ran) == (asked, [])
    assert text(await conversation.say("!echo still here")) == "still here"
    conversation.check()


def test_every_scene_of_the_built_in_script_is_recorded() -> None:
    said = {prompt.split()[0] for prompt in (*SCENES, *FAULTS)}
    told_elsewhere = {"!help", "!echo", "!read", "!write", "!edit", "!loop", "!tools"}
    assert {scene.word for scene in demo().scenes if scene.word} == said | told_elsewhere


#: Gemini has errors of its own names, and calls that it cannot read have no ids.
SAME = ["!tools", *(scene for scene in SCENES if not any(word in scene for word in ("error", "call-raw", "!bad-args")))]


@pytest.mark.parametrize("prompt", SAME)
@pytest.mark.parametrize("api", OTHERS)
async def test_a_conversation_is_the_same_and_costs_the_same(api: ApiName, prompt: str) -> None:
    """To the cent: usage and cost are part of the events."""
    ours, theirs = Conversation(api), Conversation(FIRST)
    for said in (prompt, "!usage 1200 34 560 0"):
        assert told(await ours.say(said)) == told(await theirs.say(said))
    assert ours.ran == theirs.ran


@pytest.mark.parametrize("api", APIS)
async def test_reported_usage_is_charged(api: ApiName) -> None:
    """Gemini does not report tokens written to its cache: they count as input, and so do their prices."""
    events = await Conversation(api).say("!usage 1000000 100000 2000000 1000000")
    [usage] = [event for event in events if isinstance(event, Usage)]
    written = 0 if api == "gemini" else 1_000_000
    counted = (usage.input, usage.output, usage.cache_read, usage.cache_write)
    assert counted == (2_000_000 - written, 100_000, 2_000_000, written)
    assert usage.cost_usd == pytest.approx(3.0 + 1.5 + 0.6 + (3.75 if written else 3.0))


@asynccontextmanager
async def over_http(api: ApiName, silence_s: float) -> AsyncIterator[Conversation]:
    from lab.talk import serving

    transport = HttpTransport({})
    async with serving() as (host, port):
        yield Conversation(api, transport, f"http://{host}:{port}", silence_s=silence_s)
        await transport.close()


@pytest.mark.parametrize(
    ("prompts", "silence_s"),
    [
        (["!think", "!tools", "!cut-utf8", "!no-end", "!retry 2", "!usage 1 2 3 0", "!error"], PATIENCE_S),
        (["!stall-mid"], STALLED_S),
    ],
)
@pytest.mark.parametrize("api", APIS)
async def test_over_a_socket_it_is_the_same(api: ApiName, prompts: list[str], silence_s: float) -> None:
    inside = Conversation(api, silence_s=silence_s)
    async with over_http(api, silence_s) as outside:
        for prompt in prompts:
            ours, theirs = told(await outside.say(prompt)), told(await inside.say(prompt))
            for event in (*ours, *theirs):
                # How a line is cut, each kind of line says in its own words.
                event.update({key: "" for key in ("error", "message") if "cut" in str(event.get(key))})
            assert ours == theirs
        outside.check()


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("prompt", "moment"),
    [
        ("!stall", TurnStart),
        ("!stall-mid", TextDelta),
        ("!script think a ;; stall", ThinkingDelta),
        ("!script call bash {} ;; stall", ToolUseStart),
    ],
)
async def test_an_abort_ends_a_hanging_call_and_the_conversation_continues(
    api: ApiName, prompt: str, moment: type[AgentEvent]
) -> None:
    conversation = Conversation(api)
    session = conversation.session
    listener = listen(session)
    listener.on_event = lambda event: session.abort() if isinstance(event, moment) else None
    session.prompt(prompt)
    await finish(session)
    assert listener.events[-2:] == [TurnEnd("aborted"), Done()]
    listener.on_event = lambda event: None
    assert (await talk(session, "!echo on"))[-2:] == [TurnEnd("end_turn"), Done()]
    conversation.check()


@pytest.mark.parametrize("tool", ["bash", "no_such_tool", "no.such tool"])
@pytest.mark.parametrize("api", APIS)
async def test_a_call_that_cannot_be_read_is_never_run_and_the_model_sees_what_it_sent(api: ApiName, tool: str) -> None:
    conversation = Conversation(api)
    events = await conversation.say(f"""!script call-raw "{tool}" '{{"command": "echo hi' ;; --- ;; say ok""")
    [result] = [event for event in events if isinstance(event, ToolResult)]
    [told_] = [block.text for block in result.content if isinstance(block, TextBlock)]
    assert (result.is_error, '{"command": "echo hi' in told_, conversation.ran) == (True, True, [])
    assert b"echo hi" in conversation.bodies[1]
    conversation.check()


@pytest.mark.parametrize("call", ['call bash [{"command": "ls"}] id=""', "call bash {}", "call bash"])
@pytest.mark.parametrize("api", [api for api in APIS if api != "gemini"])
async def test_arguments_are_understood_however_they_are_written(api: ApiName, call: str) -> None:
    conversation = Conversation(api)
    events = await conversation.say(f"!script {call} ;; --- ;; say ok")
    assert [event.is_error for event in events if isinstance(event, ToolResult)] == [False]
    assert conversation.ran == ["bash"]
    conversation.check()


@pytest.mark.parametrize("given", ["id=call_1", 'id=""', 'id="functions.bash:0"'])
@pytest.mark.parametrize("api", APIS)
async def test_calls_with_repeated_ids_are_distinguished(api: ApiName, given: str) -> None:
    conversation = Conversation(api)
    script = (
        f"!script call bash {{}} {given} ;; call read {{}} {given} ;; --- ;; call look {{}} {given} ;; --- ;; say ok"
    )
    events = [*await conversation.say(script), *await conversation.say(script)]
    ids = [event.id for event in events if isinstance(event, ToolCall)]
    assert len({*ids}) == len(ids) == 6
    assert ids == [event.id for event in events if isinstance(event, ToolUseStart)]
    assert ids == [event.id for event in events if isinstance(event, ToolUseEnd)]
    assert conversation.ran == ["bash", "read", "look"] * 2
    conversation.check()


@pytest.mark.parametrize("api", APIS)
async def test_a_long_conversation_with_everything_in_it_is_accepted_at_every_step(api: ApiName) -> None:
    script = Script.parse(
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
    )
    conversation = Conversation(api, LabTransport(script, sleep=no_sleep))
    first = await conversation.say("look", PNG, ImageBlock("image/tiff", b"II*"))
    assert [event.delta for event in first if isinstance(event, ThinkingDelta | TextDelta)] == [
        "Hm", ", so.", "I will look.", "Nice.",
    ]  # fmt: skip
    assert shape(await conversation.say("again")).startswith("turn_start > assistant_start > tool_use_start")
    assert shape(await conversation.say("once more")) == REFUSED
    assert text(await conversation.say("and now?", PNG)) == "And that."
    assert len(conversation.bodies) == 6
    conversation.check()


@pytest.mark.parametrize("api", APIS)
async def test_a_conversation_continues_however_many_images_it_has(api: ApiName) -> None:
    conversation = Conversation(api)
    marks = {"anthropic": b'"image/png"', "gemini": b'"image/png"'}
    for _ in range(6):
        await conversation.say("!echo seen", *[PNG] * 100)
    sent = [body.count(marks.get(api, b"data:image/png")) for body in conversation.bodies]
    most = {"anthropic": 100, "chat": 100, "responses": 250, "gemini": 500}[api]
    assert max(sent) <= most
    assert min(sent[-3:]) >= most // 2
    conversation.check()


@pytest.mark.parametrize("api", OTHERS)
async def test_the_api_is_chosen_by_name(api: ApiName, tmp_path: Path) -> None:
    async def demonstration(**settings: Any) -> list[AgentEvent]:
        async with asyncio.timeout(PATIENCE_S), zot.Runtime(provider="lab", cwd=str(tmp_path), **settings) as runtime:
            return [event async for event in runtime.prompt("!tools")]

    assert "call_lab_1" in [event.id for event in await demonstration(api=api) if isinstance(event, ToolCall)]
    assert "toolu_lab_1" in [event.id for event in await demonstration() if isinstance(event, ToolCall)]
