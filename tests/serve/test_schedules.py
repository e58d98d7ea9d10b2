"""Random schedules of a client: every prompt is answered, every run ends once, and frames keep their order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from grammar import At, Grammar
from harness import PATIENCE_S, Frame
from zot.config.config import Config
from zot.config.vendors import ApiName
from zot.messages import CallBlock, Message, ResultBlock
from zot.runtime.open import OpenRequest, open_unrecorded
from zot.runtime.shared import SharedResources
from zot.serve.rpc import RpcServer
from zot.session.session import Session
from zot.wire.rpc_greeting import Greeting

#: A command to send, or how often to let everything else run first.
Step: TypeAlias = Frame | int

SCENES = st.sampled_from(
    [
        "!say 3 Hello", "!think", "!read nowhere", "!script call read {} ;; call nosuch {} ;; --- ;; say ok",
        "!bad-args", "!error", "!cut", "!no-end", "!length", "!refusal", "!status 401", "!stall", "!stall-mid",
        "!retry 1", "!flood 50", "!loop x", "!usage 1 2 3 4",
    ]
)  # fmt: skip
COMMANDS = st.one_of(
    st.builds(lambda message: {"type": "prompt", "message": message}, SCENES),
    st.builds(lambda message: {"type": "prompt", "message": message}, SCENES),
    st.builds(lambda message: {"type": "steer", "message": message}, SCENES),
    st.just({"type": "compact"}),
    st.just({"type": "abort"}),
    st.just({"type": "abort"}),
    st.just({"type": "abort", "queue": True}),
    st.just({"type": "set_model", "model": "lab-1"}),
    st.just({"type": "clear"}),
    st.just({"type": "get_state"}),
    st.just({"type": "get_messages"}),
)
STEPS: st.SearchStrategy[list[Step]] = st.lists(COMMANDS | st.integers(1, 30), min_size=1, max_size=25)
APIS: st.SearchStrategy[ApiName] = st.sampled_from(["anthropic", "chat", "gemini", "responses"])
FEATURES = st.sets(st.sampled_from(["seq", "thinking", "retries", "prices"]))


class Reader:
    """A client's end of the wire: checks every frame as it comes. Now and then it has no room."""

    def __init__(self, stops: Sequence[int]) -> None:
        self.grammar = Grammar()
        self.frames: list[Frame] = []
        self._stops = set(stops)

    def write(self, data: bytes) -> None:
        for line in data.splitlines():
            self.frames.append(json.loads(line))
            self.grammar.take(self.frames[-1])

    @property
    def full(self) -> bool:
        return len(self.frames) in self._stops

    async def room(self) -> None:
        self._stops.discard(len(self.frames))
        await asyncio.sleep(0)


async def hold(
    steps: Sequence[Step], features: set[str], stops: Sequence[int], api: ApiName = "anthropic"
) -> tuple[Session, Reader]:
    """Send everything on schedule, then abort until the session is idle."""
    config = Config(provider="lab", api=api, tools=("read",), max_steps=4, env={})
    session = open_unrecorded(OpenRequest(config=config), SharedResources())
    reader = Reader(stops)
    server = RpcServer(session, Greeting(version="0", provider="lab", model=lambda: "lab-1"), reader)
    server.take(json.dumps({"type": "hello", "features": sorted(features)}).encode())
    for number, step in enumerate(steps):
        if isinstance(step, int):
            for _ in range(step):
                await asyncio.sleep(0)
        else:
            server.take(json.dumps({"id": number, **step}).encode())
            assert (reader.grammar.at is not At.IDLE) == session.worker.busy
    async with asyncio.timeout(PATIENCE_S):
        while session.worker.busy:
            # A stalled run must be ended; any other gets time to finish.
            for _ in range(50):
                await asyncio.sleep(0)
            session.abort()
    await session.close()
    return session, reader


@given(steps=STEPS, features=FEATURES, stops=st.lists(st.integers(1, 60), max_size=5), api=APIS)
@settings(max_examples=300)
def test_any_schedule_is_served_in_order_and_comes_to_its_end(
    steps: list[Step], features: set[str], stops: list[int], api: ApiName
) -> None:
    session, reader = asyncio.run(hold(steps, features, stops, api))
    reader.grammar.finish()
    sent = [number for number, step in enumerate(steps) if not isinstance(step, int)]
    answers = [frame["id"] for frame in reader.frames if frame["type"] == "response" and "id" in frame]
    assert sorted(answers) == sent, "each command has one answer"
    started = sum(bool(frame.get("data") == {"started": True}) for frame in reader.frames)
    steered = sum(frame.get("command") == "steer" for frame in reader.frames)
    assert started - steered <= reader.grammar.runs <= started, "each run that began has ended"
    assert_every_call_has_its_result(session.history.transcript.messages)
    assert session.state().busy is False


def assert_every_call_has_its_result(messages: Sequence[Message]) -> None:
    """Providers refuse a conversation in which a call is not followed by its result."""
    for message, after in pairwise([*messages, Message("user", (), "")]):
        calls = [block.id for block in message.content if isinstance(block, CallBlock)]
        results = [block.call_id for block in after.content if isinstance(block, ResultBlock)]
        assert results == calls


@given(prompts=st.lists(SCENES, min_size=2, max_size=6), at=st.integers(0, 80), api=APIS)
@settings(max_examples=100)
def test_an_abort_at_any_moment_ends_one_run_and_no_other(prompts: list[str], at: int, api: ApiName) -> None:
    steps: list[Step] = [{"type": "prompt", "message": message} for message in prompts]
    session, reader = asyncio.run(hold([*steps, at, {"type": "abort"}], set(), (), api))
    reader.grammar.finish()
    assert reader.grammar.runs == len(prompts)
    assert session.state().message_count >= len(prompts)
