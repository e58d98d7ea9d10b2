"""Recorded sessions continue in another process, after any end, with one writer at a time."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import claude
import zot
from fakes import NOON, PATIENCE_S, PNG, FakeTransport, service, talk
from grammar import Grammar
from harness import Zot, environment
from zot.agent.hooks import MessageDecision, NoExtensions
from zot.agent.loop import Agent, AgentSettings
from zot.errors import AgentError, SessionBusy, UserError
from zot.events import Done, Error, TurnEnd, UserMessage
from zot.journal.journal import Journal
from zot.messages import Message, TextBlock
from zot.providers.base import Model
from zot.providers.models import Catalogue, catalogue
from zot.session.session import Session
from zot.session.transcripts import TranscriptPast
from zot.store import MessageAdded

LAB = ("--provider", "lab", "--frozen-time", "2026-01-31T12:00:00Z")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def kept(zot: Callable[..., Zot], home: Path) -> Callable[..., Zot]:
    """Start `zot rpc` on a session of the test's own journal."""

    def start(*flags: str, session: str = "s") -> Zot:
        process = zot(*LAB, "--session", session, *flags, env={"ZOT_HOME": str(home)})
        process.grammar = Grammar(resumed=True)
        return process

    return start


def texts(process: Zot, **view: str) -> list[str]:
    process.send({"type": "get_messages", **view})
    answer = process.until(type="response", command="get_messages")[-1]
    blocks = [block for message in answer["data"]["messages"] for block in message["content"]]
    return [block.get("text", block["type"]) for block in blocks]


def say(process: Zot, text: str) -> list[dict[str, Any]]:
    process.send({"type": "prompt", "message": text})
    return process.until(type="done")


def test_a_conversation_continues_in_another_process(kept: Callable[..., Zot]) -> None:
    first = kept()
    say(first, "!echo one")
    first.finish()
    second = kept()
    say(second, "!echo two")
    assert texts(second) == ["!echo one", "one", "!echo two", "two"]
    state = second.ask({"type": "get_state"})["data"]
    assert (state["message_count"], state["usage"]["input"]) == (4, 200)
    second.finish()


def test_nothing_is_kept_without_a_name_and_sessions_are_apart(
    kept: Callable[..., Zot], zot: Callable[..., Zot]
) -> None:
    first = kept(session="a")
    say(first, "!echo one")
    first.finish()
    assert texts(kept(session="b")) == []
    assert texts(zot(*LAB)) == []


def test_a_session_keeps_its_settings(kept: Callable[..., Zot], home: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    first = kept("--cwd", str(inner), "--reasoning", "low")
    say(first, "!bash pwd")
    first.finish()
    process = subprocess.run(
        [sys.executable, "-m", "zot", "rpc", "--session", "s"],
        input=b'{"type":"hello"}\n{"type":"get_state"}\n',
        env=environment({"ZOT_HOME": str(home)}),
        cwd=tmp_path,
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
    )
    hello, state = (json.loads(line)["data"] for line in process.stdout.split(b"\n")[:2])
    assert (hello["provider"], hello["model"]) == ("lab", "lab-1")
    assert (state["cwd"], state["provider"]) == (str(inner), "lab")


def test_cleared_messages_stay_cleared_and_can_still_be_read(kept: Callable[..., Zot]) -> None:
    first = kept()
    say(first, "!echo one")
    first.send({"type": "clear", "id": 1})
    assert first.read() == {"type": "response", "id": 1, "command": "clear", "success": True}
    say(first, "!echo two")
    first.finish()
    second = kept()
    assert texts(second) == ["!echo two", "two"]
    assert texts(second, view="full") == ["!echo one", "one", "!echo two", "two"]


def test_compacted_messages_can_be_read_and_restored_by_another_process(kept: Callable[..., Zot]) -> None:
    first = kept()
    for word in ("one", "two", "three"):
        say(first, f"!echo {word}")
    whole = texts(first)
    first.send({"type": "compact"})
    [summary] = [frame["summary"] for frame in first.until(type="done") if frame["type"] == "compact_done"]
    say(first, "!echo four")
    first.finish()
    second = kept()
    shown = f"## Context Summary (compacted)\n\n{summary}"
    assert texts(second) == [shown, *whole[2:], "!echo four", "four"]
    assert texts(second, view="full") == [*whole, shown, "!echo four", "four"]
    second.send({"type": "undo_compact", "id": 1}, {"type": "undo_compact", "id": 2})
    assert second.read() == {"type": "response", "id": 1, "command": "undo_compact", "success": True}
    refused = {"type": "response", "id": 2, "command": "undo_compact", "success": False}
    assert second.read() == {**refused, "error": "there is no compaction to undo"}
    assert texts(second) == [*whole, "!echo four", "four"]
    second.finish()
    assert texts(kept()) == [*whole, "!echo four", "four"]


def test_a_fork_is_another_session_from_a_point_on(kept: Callable[..., Zot]) -> None:
    first = kept()
    say(first, "!echo one")
    say(first, "!echo two")
    first.send({"type": "fork", "id": 1, "session": "t", "messages": 2})
    assert first.read() == {"type": "response", "id": 1, "command": "fork", "success": True, "data": {"session": "t"}}
    second = kept(session="t")
    say(second, "!echo three")
    assert texts(second) == ["!echo one", "one", "!echo three", "three"]
    assert texts(first) == ["!echo one", "one", "!echo two", "two"]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ({"messages": 9}, "cannot fork at message 9: the conversation has 4"),
        ({"messages": 2}, "cannot fork at message 2: a tool call waits for its result there"),
        ({"session": "s"}, "there is a session 's' already"),
    ],
)
def test_an_impossible_fork_is_refused(kept: Callable[..., Zot], command: dict[str, Any], reason: str) -> None:
    process = kept()
    say(process, "!bash echo hi")  # user, call, result, answer: after the second a call is open.
    process.send({"type": "fork", **command})
    assert process.read() == {"type": "response", "command": "fork", "success": False, "error": reason}


def test_an_unrecorded_session_cannot_be_forked(zot: Callable[..., Zot]) -> None:
    answer = zot(*LAB).ask({"type": "fork"})
    assert answer["error"] == "this session is not recorded, so it cannot be forked; start one with a session name"


def test_a_session_running_elsewhere_is_refused_by_name_and_usable_afterwards(kept: Callable[..., Zot]) -> None:
    first, second = kept(), kept()
    first.ask({"type": "ping"})  # By then it is in its directory.
    first.send({"type": "prompt", "message": "!bash read x < fifo; echo $x"})
    os.mkfifo(Path(f"/proc/{first.pid}/cwd") / "fifo")
    first.until(type="turn_end")
    second.send({"type": "prompt", "id": 2, "message": "!echo two"})
    refused = second.read()
    assert not refused["success"]
    assert f"is running in process {first.pid}, since" in refused["error"]
    (Path(f"/proc/{first.pid}/cwd") / "fifo").write_text("go on\n")
    first.until(type="done")
    say(second, "!echo two")
    assert texts(second)[-2:] == ["!echo two", "two"]
    assert len(texts(first)) == 5  # It has not looked since.
    first.grammar = Grammar(resumed=True)
    say(first, "!echo three")
    assert texts(first)[-4:] == ["!echo two", "two", "!echo three", "three"]


def test_a_killed_process_leaves_a_session_that_can_continue(kept: Callable[..., Zot]) -> None:
    first = kept()
    first.send({"type": "prompt", "message": "!bash touch started; sleep 600"})
    first.until(type="turn_end")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    second = kept()
    say(second, "!echo on")
    second.send({"type": "get_messages"})
    messages = second.read()["data"]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user", "assistant"]
    [result] = messages[2]["content"]
    assert (result["is_error"], result["content"][0]["text"]) == (True, "the result was lost: the run was interrupted")


def test_an_abort_right_after_its_prompt_takes_effect(kept: Callable[..., Zot]) -> None:
    process = kept()
    process.send({"type": "prompt", "message": "!stall"}, {"type": "abort"})
    frames = [frame for frame in process.until(type="done") if frame.get("command") != "abort"]
    assert [frame["type"] for frame in frames] == ["response", "user_message", "turn_end", "done"]


def test_one_of_twenty_concurrent_runs_and_nineteen_are_refused(
    kept: Callable[..., Zot], home: Path, tmp_path: Path
) -> None:
    processes = [kept() for _ in range(20)]
    os.mkfifo(tmp_path / "fifo")
    for process in processes:
        process.send({"type": "prompt", "message": "!bash read x < fifo; echo $x"})
    answers = {process: process.read() for process in processes}
    [runs] = [process for process, answer in answers.items() if answer["success"]]
    refusals = [answer["error"] for process, answer in answers.items() if process is not runs]
    assert all(f"is running in process {runs.pid}, since" in refusal for refusal in refusals)
    (tmp_path / "fifo").write_text("go on\n")
    runs.until(type="done")
    for process in processes:
        process.finish()
    assert len(texts(kept())) == 5


# What the provider is asked.


class Rewriting(NoExtensions):
    """Shows other words than the model wrote."""

    holds_messages = True

    async def message_written(self, text: str) -> MessageDecision:
        return MessageDecision(text.upper())


REPLIES = [
    claude.reply(
        claude.thinking("hm", signature="c2ln"), claude.text("I will"), claude.tool("c1", "look"), ends="tool_use"
    ),
    claude.reply(claude.text("Seen.")),
    claude.reply(claude.text("Again.")),
]


async def kept_session(home: Path, transport: FakeTransport, models: Catalogue | None = None) -> Session:
    journal = await Journal.open(home / "journal.db")
    record, past = await journal.resume("s")
    agent = Agent(
        service(transport),
        models or catalogue("anthropic"),
        AgentSettings(system="You are a test.", cwd="/", env={}, reasoning="low"),
        extensions=Rewriting(),
    )
    return Session(
        agent, record, now=lambda: NOON, past=TranscriptPast(past.changes, past.rows, record.totals, journal.close)
    )


@pytest.mark.parametrize("interrupted", [False, True])
async def test_the_next_request_is_the_one_that_an_uninterrupted_process_would_send(
    tmp_path: Path, interrupted: bool
) -> None:
    """Images, signed thinking, and texts that an extension changed: the provider gets the original ones."""
    tmp_path.joinpath("home").mkdir()
    transport = FakeTransport(list(REPLIES))
    session = await kept_session(tmp_path / "home", transport)
    await talk(session, "look", [PNG])
    if interrupted:
        await session.close()
        session = await kept_session(tmp_path / "home", transport)
    await talk(session, "and again")
    await session.close()
    [expected] = BODIES.setdefault("expected", [transport.bodies[-1]])
    assert transport.bodies[-1] == expected
    assert b"I will" in expected
    assert b"c2ln" in expected
    assert b"image/png" in expected


BODIES: dict[str, list[bytes]] = {}


async def test_an_unfinished_run_of_another_process_is_ended_although_rows_followed_it(
    tmp_path: Path,
) -> None:
    session = await kept_session(tmp_path, FakeTransport([claude.reply(claude.text("Well."))]))
    await session.worker.recover()
    journal = await Journal.open(tmp_path / "journal.db")
    other = await journal.record("s")
    await other.begin()
    other.append(
        [MessageAdded(Message("user", (TextBlock("hi"),), NOON)), UserMessage((TextBlock("hi"),), NOON)], run=1
    )
    await other.settled()
    other.end()
    await session.establish()
    await talk(session, "go on")
    rows = [row for _, row in await other.read(0, 100) if isinstance(row, UserMessage | TurnEnd | Done)]
    ends = [TurnEnd("aborted"), Done(), UserMessage((TextBlock("go on"),), NOON), TurnEnd("end_turn"), Done()]
    assert rows == [UserMessage((TextBlock("hi"),), NOON), *ends]
    await journal.close()
    await session.close()


def counted(tokens: int) -> list[bytes]:
    """Return a reply to a request that took this many tokens by the service's count."""
    return [claude.start(input_tokens=tokens), *claude.text("Well.")(0), *claude.stop("end_turn", output_tokens=10)]


async def test_compaction_happens_when_an_uninterrupted_process_would_compact(tmp_path: Path) -> None:
    """By the service's count, which is more than an estimate; and not again after a compaction by hand."""
    window = Catalogue("anthropic", (Model("small", "anthropic", 10_000, 1_000, reasoning=False),))
    replies = [counted(1500), counted(2600), counted(6000), counted(900), counted(3000), counted(900), counted(800)]
    sent = {}
    for interrupted in (False, True):
        home, transport = tmp_path / str(interrupted), FakeTransport(list(replies))
        home.mkdir()
        session = await kept_session(home, transport, window)
        for text in ("one", "two", "three", "four", "", "five"):
            if interrupted:
                await session.close()
                session = await kept_session(home, transport, window)
            if text:
                await talk(session, f"{text} ".ljust(4000, "."))
            else:
                session.compact()
                await session.worker.finish()
        await session.close()
        sent[interrupted] = transport.bodies
    summaries = [b"hand-over notes" in body for body in sent[False]]
    assert (sent[True], summaries) == (sent[False], [False, False, False, True, False, True, False])


# In process.


@pytest.fixture
def runtime(home: Path, tmp_path: Path) -> Callable[..., zot.Runtime]:
    return lambda **settings: zot.Runtime(
        provider="lab", session="s", cwd=str(tmp_path), env={"ZOT_HOME": str(home)}, **settings
    )


async def test_a_runtime_with_a_session_continues_it(runtime: Callable[..., zot.Runtime]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        async with runtime() as first:
            assert (await first.run("!echo one")).text == "one"
            first.set_messages([Message("user", (TextBlock("mine"),), NOON)])
            await first.run("!echo two")
        async with runtime() as second:
            said = ["".join(block.text for block in m.content if isinstance(block, TextBlock)) for m in second.messages]
            assert said == ["mine", "!echo two", "two"]
            assert second.state.usage.input == 200


async def test_a_runtime_with_a_session_must_be_opened(runtime: Callable[..., zot.Runtime]) -> None:
    with pytest.raises(UserError, match="async with"):
        runtime().prompt("hi")


async def test_two_runtimes_on_one_session_do_not_run_at_once(runtime: Callable[..., zot.Runtime]) -> None:
    async with asyncio.timeout(PATIENCE_S), runtime() as first, runtime() as second:
        stream = first.prompt("!stall")
        await anext(stream)
        with pytest.raises(SessionBusy):
            await second.run("!echo two")
        await stream.aclose()
        assert (await second.run("!echo two")).text == "two"


async def test_a_prompt_that_cannot_run_reports_the_reason_and_done(runtime: Callable[..., zot.Runtime]) -> None:
    async with asyncio.timeout(PATIENCE_S), runtime() as first, runtime() as second:
        stream = first.prompt("!stall")
        await anext(stream)
        refused = second.prompt("!echo two")
        heard = [event async for event in refused]
        assert isinstance(refused.error, SessionBusy)
        assert heard == [Error(str(refused.error)), Done()]
        second.set_messages([])
        with pytest.raises(AgentError, match=r"^the conversation could not be replaced: session 's' is running"):
            await looking(second)
        assert second.messages == ()
        await stream.aclose()


def test_answers_keep_their_order_although_some_are_slow(kept: Callable[..., Zot]) -> None:
    process = kept()
    say(process, "!echo one")
    asked = [
        {"type": "clear", "id": 1},
        {"type": "get_state", "id": 2},
        {"type": "fork", "id": 3},
        {"type": "get_messages", "id": 4, "view": "full"},
        {"type": "prompt", "id": 5, "message": "!echo two"},
        {"type": "abort", "id": 6},
        {"type": "get_messages", "id": 7},
        {"type": "ping", "id": 8},
    ]
    process.send(*asked)
    answers = [process.until(type="response")[-1] for _ in asked]
    assert [(answer["id"], answer["success"]) for answer in answers] == [(number, True) for number in range(1, 9)]
    assert answers[1]["data"]["message_count"] == 0
    assert len(answers[3]["data"]["messages"]) == 2


def test_every_request_before_the_end_of_the_input_is_answered(kept: Callable[..., Zot]) -> None:
    process = kept()
    process.send({"type": "prompt", "message": "!echo one"}, {"type": "clear"}, {"type": "fork"}, {"type": "ping"})
    frames = process.finish()
    answers = [(frame["command"], frame["success"]) for frame in frames if frame["type"] == "response"]
    assert answers == [("prompt", True), ("clear", False), ("fork", True), ("ping", True)]
    assert {"type": "done"} in frames


def test_a_killed_process_s_session_is_recovered_as_soon_as_it_is_opened(kept: Callable[..., Zot]) -> None:
    first = kept()
    first.send({"type": "prompt", "message": '!script say "half" ;; stall'})
    first.until(type="text_delta")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert texts(kept()) == ['!script say "half" ;; stall', "half"]


async def looking(runtime: zot.Runtime) -> None:
    while True:
        await asyncio.sleep(0)
        _ = runtime.messages


async def test_a_journal_that_is_removed_while_it_is_used_is_an_error_and_not_a_loss(
    runtime: Callable[..., zot.Runtime], home: Path
) -> None:
    async with asyncio.timeout(PATIENCE_S), runtime() as kept:
        await kept.run("!echo one")
        shutil.rmtree(home)
        for _ in range(3):
            with pytest.raises(AgentError, match="was removed or replaced while it was in use"):
                await kept.run("!echo two")
        mine = os.open(os.devnull, os.O_RDONLY)
    os.close(mine)  # It is still ours: nothing of the journal's was closed twice.


def test_a_refused_prompt_ends_the_events_too(kept: Callable[..., Zot], home: Path, tmp_path: Path) -> None:
    first = kept()
    first.send({"type": "prompt", "message": "!stall"})
    first.until(type="turn_start")
    done = subprocess.run(
        [sys.executable, "-m", "zot", "--json", "!echo two", *LAB, "--session", "s"],
        cwd=tmp_path,
        env=environment({"ZOT_HOME": str(home)}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    error, end = (json.loads(line) for line in done.stdout.split(b"\n")[:-1])
    assert (error["type"], end, done.returncode) == ("error", {"type": "done"}, 1)
    assert "is running in process" in error["message"]
