"""Everything lab can do to a client, through each API: the same conversation comes to the same end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import gemini_validator
import msgspec
import pytest
import validator

from fakes import FakeTool, open_session, talk
from zot.events import (
    AgentEvent,
    Error,
    Retry,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolResult,
    ToolUseArgs,
    ToolUseEnd,
    ToolUseStart,
    TurnEnd,
    TurnStart,
    Usage,
)
from zot.messages import TextBlock
from zot.providers.anthropic import AnthropicMessages
from zot.providers.base import Api, Deadlines, HttpRequest, Transport
from zot.providers.gemini import GeminiGenerateContent
from zot.providers.http import HttpTransport
from zot.providers.lab.script import demo
from zot.providers.lab.transport import LabResponse, LabTransport
from zot.providers.models import catalogue
from zot.providers.service import Service
from zot.session import Session
from zot.tools.base import Output, ToolContext

from .talk import Clock, serving

WHERE = "http://lab.invalid"
APIS: dict[str, tuple[Callable[[str], Api], Callable[[bytes], list[str]]]] = {
    "anthropic": (lambda where: AnthropicMessages(base_url=where, origin="lab"), validator.problems),
    "gemini": (lambda where: GeminiGenerateContent(base_url=where, origin="lab"), gemini_validator.problems),
}

HALF = ["turn 1", "text half an", "end error", "error"]
FAILED = ["turn 1", "end error", "error"]
TRIED = ["turn 1", "retry 1", "retry 2", "end error", "error"]
STORIES: dict[str, list[str]] = {
    "!say 3 Hello": ["turn 1", "text Hello", "end end_turn"],
    "!bytes né": ["turn 1", "text né", "end end_turn"],
    "!flood 50": ["turn 1", "text " + "." * 50, "end end_turn"],
    "!slow 2 0.01": ["turn 1", "text w0 w1 ", "end end_turn"],
    "!think": ["turn 1", "thinking Let me think about this.", "text answer", "end end_turn"],
    "!bash ls": ["turn 1", "text Running it.", 'call bash {"command":"ls"}', "did bash", "turn 2",
                 "text finished.", "end end_turn"],
    "!tools": ["turn 1", "text Several at once.",
               'call bash {"command":"echo one"}', 'call bash {"command":"echo two"}',
               'call no_such_tool {"x":1}', 'call read {"path":"no-such-file.txt"}',
               "did bash", "did bash", "failed", "did read", "turn 2",
               "text All four have answered.", "end end_turn"],
    "!bad-args": ["turn 1", "call bash null", "failed", "turn 2", "text That call was malformed.", "end end_turn"],
    '!script redacted "x" ;; think "hm" ;; call bash {} ;; --- ;; redacted "y" ;; say ok': [
        "turn 1", "thinking hm", "call bash {}", "did bash", "turn 2", "text ok", "end end_turn"],
    "!script call-raw bash '[1]' ;; --- ;; say ok": [
        "turn 1", "call bash null", "failed", "turn 2", "text ok", "end end_turn"],
    "!script say a ;; ping 3 ;; say b": ["turn 1", "text ab", "end end_turn"],
    "!usage 1 2 3 0": ["turn 1", "text counted", "end end_turn"],
    "!usage-twice": ["turn 1", "text counted twice", "end end_turn"],
    "!length": ["turn 1", "text This goes on and", "end length"],
    "!refusal": ["turn 1", "text I cannot", "end error", "error"],
    "!status 400": FAILED,
    "!status 401": FAILED,
    "!status 404": FAILED,
    "!status 429": TRIED,
    "!status 500": TRIED,
    "!status 529": TRIED,
    "!retry 2": ["turn 1", "retry 1", "retry 2", "text Answered after 2 failures.", "end end_turn"],
    "!limit 1": ["turn 1", "retry 1", "text Answered after the limit.", "end end_turn"],
    "!refuse": TRIED,
    "!stall": FAILED,
    "!stall-mid": HALF,
    "!pings": HALF,
    "!cut": HALF,
    "!cut-utf8": HALF,
    "!cut-json": HALF,
    "!no-end": HALF,
    "!error": ["turn 1", "text ab", "end error", "error"],
}  # fmt: skip


class Watched(LabTransport):
    """lab, with every request kept, in a world where waiting takes no time."""

    def __init__(self) -> None:
        super().__init__(demo(), sleep=Clock())
        self.bodies: list[bytes] = []

    async def send(self, request: HttpRequest, deadlines: Deadlines) -> LabResponse:
        self.bodies.append(request.body)
        return await super().send(request, deadlines)


async def no_key() -> str:
    return ""


def tool(name: str) -> FakeTool:
    async def run(args: dict[str, Any], context: ToolContext) -> Output:
        return (TextBlock(f"did {name}"),)

    return FakeTool(name, run)


async def played(api: str, *prompts: str) -> tuple[list[AgentEvent], list[bytes]]:
    """What happens when these things are said, and what was sent."""
    transport = Watched()
    make, problems = APIS[api]
    session = asking(make(WHERE), transport)
    events = [event for prompt in prompts for event in await talk(session, prompt)]
    assert [problems(body) for body in transport.bodies] == [[] for _ in transport.bodies]
    return events, transport.bodies


def asking(api: Api, transport: Transport) -> Session:
    deadlines = Deadlines(silence_s=0.05)
    service = Service("lab", api, transport, key=no_key, deadlines=deadlines, sleep=Clock(), jitter=lambda: 0.5)
    tools = [tool(name) for name in ("bash", "read", "write", "edit")]
    return open_session(service, tools=tools, models=catalogue("lab").models, model="lab-1", reasoning="low")


def story(events: Iterable[AgentEvent]) -> list[str]:
    """What happened, without what differs between APIs: ids, how text is cut, and the words of errors."""
    told: list[str] = []
    for event in events:
        line = _line(event)
        kind = line.partition(" ")[0]
        if kind in ("text", "thinking") and told and told[-1].startswith(f"{kind} "):
            told[-1] += line.removeprefix(f"{kind} ")
        elif line:
            told.append(line)
    return told


def _line(event: AgentEvent) -> str:
    match event:
        case TurnStart(step=step):
            return f"turn {step}"
        case TextDelta(delta=delta):
            return f"text {delta}"
        case ThinkingDelta(delta=delta):
            return f"thinking {delta}"
        case ToolCall(name=name, args=args):
            return f"call {name} {msgspec.json.encode(args).decode()}"
        case ToolResult(is_error=is_error, content=content):
            return "failed" if is_error else str(getattr(content[0], "text", ""))
        case Retry(attempt=attempt):
            return f"retry {attempt}"
        case Error():
            return "error"
        case TurnEnd(stop=stop):
            return f"end {stop}" if stop != "tool_use" else ""
        case _:
            return ""


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("prompt", STORIES)
async def test_the_same_happens_through_every_api(api: str, prompt: str) -> None:
    begun = time.monotonic()
    events, _ = await played(api, prompt)
    assert story(events) == STORIES[prompt]
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("api", APIS)
async def test_the_same_happens_over_a_socket(api: str) -> None:
    prompts = ["!think", "!tools", "!bad-args", "!cut-utf8", "!no-end", "!retry 2", "!refuse", "!stall-mid"]
    async with serving() as (host, port):
        transport = HttpTransport({})
        session = asking(APIS[api][0](f"http://{host}:{port}"), transport)
        told = [story(await talk(session, prompt)) for prompt in prompts]
        await transport.close()
    assert told == [STORIES[prompt] for prompt in prompts]


def test_every_fault_of_the_built_in_script_is_told() -> None:
    told = {prompt.split()[0] for prompt in STORIES}
    untold = {"!help", "!echo", "!read", "!write", "!edit", "!loop"}
    assert {scene.word for scene in demo().scenes if scene.word} == told | untold


@pytest.mark.parametrize("api", APIS)
async def test_a_conversation_goes_on_after_every_fault(api: str) -> None:
    prompts = ["!think", "!bash ls", "!bad-args", "!tools", "!cut", "!error", "!refusal", "!no-end", "!status 401"]
    events, _ = await played(api, *prompts, "!say 1 still here")
    assert story(events)[-2:] == ["text still here", "end end_turn"]


@pytest.mark.parametrize("api", APIS)
async def test_what_was_counted_is_the_same_through_every_api(api: str) -> None:
    events, _ = await played(api, "!usage 1 2 3 0")
    [usage] = [event for event in events if isinstance(event, Usage)]
    assert (usage.input, usage.output, usage.cache_read, usage.cache_write) == (1, 2, 3, 0)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("tool", ["bash", "no_such_tool"])
async def test_a_call_that_cannot_be_read_is_never_run_and_the_model_sees_what_it_sent(api: str, tool: str) -> None:
    events, bodies = await played(api, f"""!script call-raw {tool} '{{"command": "echo hi' ;; --- ;; say ok""")
    [result] = [event for event in events if isinstance(event, ToolResult)]
    assert result.is_error
    assert '{"command": "echo hi' in str(getattr(result.content[0], "text", ""))
    assert rb"echo hi" in bodies[1]


@pytest.mark.parametrize("api", APIS)
async def test_a_call_has_one_beginning_one_end_and_an_id_of_its_own(api: str) -> None:
    events, _ = await played(api, "!tools", "!bad-args", "!bash ls")
    begun = [event.id for event in events if isinstance(event, ToolUseStart)]
    assert begun == [event.id for event in events if isinstance(event, ToolUseEnd)]
    assert begun == [event.id for event in events if isinstance(event, ToolCall)]
    assert begun == [*dict.fromkeys(event.id for event in events if isinstance(event, ToolUseArgs))]
    assert len({*begun}) == len(begun) == 6


#: The other services never leave an id out.
@pytest.mark.parametrize("api", ["gemini"])
async def test_calls_without_an_id_get_one_that_is_new_to_the_conversation(api: str) -> None:
    twice = 'call bash {} id="" ;; call bash {} id="" ;; --- ;; call bash {} id="" ;; --- ;; say ok'
    events, _ = await played(api, f"!script {twice}", f"!script {twice}")
    ids = [event.id for event in events if isinstance(event, ToolCall)]
    assert ids == [f"call_{number}" for number in range(1, 7)]
