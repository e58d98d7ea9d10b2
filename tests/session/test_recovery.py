"""After a crash at any moment a session has a transcript that a provider accepts, and its run has an end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

import claude
from fakes import NOON, PATIENCE_S, Doorman, FakeTool, FakeTransport, ListStore, finish, kinds, listen, open_session
from grammar import Grammar
from zot.agent.approvals import WaitingForApproval
from zot.agent.transcript import LOST_RESULT, Transcript, repaired
from zot.encoding import encode
from zot.events import (
    ApprovalRequest,
    AssistantStart,
    Done,
    ExtNotify,
    TextDelta,
    ToolProgress,
    ToolResult,
    TurnEnd,
)
from zot.messages import CallBlock, Message, ResultBlock, TextBlock
from zot.session.recovery import Clean, Findings, Interrupted, inspect
from zot.store import MessageAdded, MessagesReplaced, Row, SettingsChanged
from zot.tools.base import Output, ToolContext

USER = Message("user", (TextBlock("hi"),), NOON)
CALLING = Message("assistant", (CallBlock("c1", "bash", {}), CallBlock("c2", "bash", {})), NOON)
ASKED = ApprovalRequest("approval_1", "bash", {}, "bash: ls", "2026-01-01T12:02:00.000Z")


def transcript_of(rows: Sequence[Row]) -> Transcript:
    transcript = Transcript()
    for row in rows:
        if isinstance(row, MessageAdded | MessagesReplaced | SettingsChanged):
            transcript.apply(row)
    return transcript


def found(rows: Sequence[Row]) -> Findings:
    return inspect(transcript_of(rows), rows, now=lambda: NOON)


def ending(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows that end the run; none for a clean session."""
    match found(rows):
        case Interrupted(ending=rows):
            return rows
        case Clean():
            return ()
        case WaitingForApproval():
            pytest.fail("the run waits for an approval")


class Moments(ListStore):
    """A store that records its number of rows after each append: a process can die only there."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    def append(self, rows: Sequence[Row], *, run: int, ends: bool = False) -> int:
        first = super().append(rows, run=run, ends=ends)
        self.lengths.append(len(self.rows))
        return first


async def one_run() -> Moments:
    """Return the rows of a run with two calls and an answer in pieces."""

    async def work(args: dict[str, Any], context: ToolContext) -> Output:
        await context.reporter.progress("working")
        return (TextBlock("worked"),)

    calls = claude.reply(
        claude.text("Let me ", "see"), claude.tool("c1", "work"), claude.tool("c2", "work"), ends="tool_use"
    )
    transport = FakeTransport([calls, claude.reply(claude.text("All ", "is ", "well"))])
    store = Moments()
    session = open_session(transport, tools=[FakeTool("work", work)], store=store)
    session.prompt("go")
    async with asyncio.timeout(PATIENCE_S):
        await finish(session)
    return store


async def test_any_prefix_of_a_run_is_recovered_to_an_end_that_a_provider_accepts() -> None:
    rows = (await one_run()).rows
    assert len(rows) > 25
    for length in range(1, len(rows) + 1):
        prefix = rows[:length]
        whole = [*prefix, *ending(prefix)]
        messages = transcript_of(whole).messages
        assert repaired(messages) == list(messages)
        if any(not isinstance(row, MessageAdded) for row in prefix):
            assert whole[-1] == Done()
            assert whole.count(Done()) == 1
        # Repaired once is repaired for good.
        assert found(whole) == Clean()


async def test_clients_see_an_interrupted_run_as_aborted() -> None:
    store = await one_run()
    rows = store.rows
    for length in store.lengths:
        grammar = Grammar()
        grammar.take({"type": "response", "command": "prompt", "success": True, "data": {"started": True}})
        for row in [*rows[:length], *ending(rows[:length])]:
            if not isinstance(row, MessageAdded | MessagesReplaced | SettingsChanged):
                grammar.take(msgspec.json.decode(encode(row)))
        grammar.finish()


async def test_partial_model_output_is_kept() -> None:
    rows = (await one_run()).rows
    at = max(index for index, row in enumerate(rows) if isinstance(row, TextDelta))
    prefix = rows[:at]
    said = transcript_of([*prefix, *ending(prefix)]).messages[-1]
    assert said == Message("assistant", (TextBlock("All is "),), NOON)


def test_open_calls_get_a_result_each_in_order() -> None:
    answered = MessageAdded(Message("tool", (ResultBlock("c1", False, (TextBlock("ok"),)),), NOON))
    rows: list[Row] = [
        MessageAdded(USER), AssistantStart(), MessageAdded(CALLING), TurnEnd("tool_use"), answered,
        ToolResult("c1", False, ()),
    ]  # fmt: skip
    lost = (TextBlock(LOST_RESULT),)
    assert ending(rows) == [
        MessageAdded(Message("tool", (ResultBlock("c2", True, lost),), NOON)),
        ToolResult("c2", True, lost),
        TurnEnd("aborted"),
        Done(),
    ]


@pytest.mark.parametrize(
    "rows", [[], [MessageAdded(USER)], [TurnEnd("end_turn"), Done()], [Done(), MessagesReplaced(0, 0, (USER,))]]
)
def test_a_finished_run_needs_no_recovery(rows: list[Row]) -> None:
    assert found(rows) == Clean()


def test_a_run_that_waits_for_an_answer_is_parked() -> None:
    rows: list[Row] = [MessageAdded(USER), MessageAdded(CALLING), TurnEnd("tool_use"), ASKED]
    for later in ([], [ExtNotify("x", "info", "still there")]):
        waiting = found([*rows, *later])
        assert isinstance(waiting, WaitingForApproval)
        assert (waiting.request, waiting.answer, waiting.call.id) == (ASKED, None, "c1")


def test_a_run_whose_question_was_answered_is_not_parked() -> None:
    rows: list[Row] = [
        MessageAdded(USER),
        MessageAdded(CALLING),
        TurnEnd("tool_use"),
        ASKED,
        ToolProgress("c1", "working"),
    ]
    assert ending(rows)[-2:] == [TurnEnd("aborted"), Done()]


def test_a_transcript_that_lost_messages_is_repaired() -> None:
    orphan = Message("tool", (ResultBlock("gone", False, (TextBlock("ok"),)),), NOON)
    rows: list[Row] = [MessageAdded(USER), MessageAdded(orphan), MessageAdded(CALLING), MessageAdded(USER), Done()]
    messages = transcript_of([*rows, *ending(rows)]).messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "user"]
    assert repaired(messages) == list(messages)


async def test_a_real_session_s_question_is_parked_at_the_moment_it_is_asked() -> None:
    async def work(args: dict[str, Any], context: ToolContext) -> Output:
        return (TextBlock("worked"),)

    store = ListStore()
    transport = FakeTransport([claude.reply(claude.tool("c1", "work"), ends="tool_use")])
    session = open_session(transport, tools=[FakeTool("work", work)], store=store, approver=Doorman(asks=True))
    listener = listen(session)
    listener.can_approve = True
    session.prompt("go")
    async with asyncio.timeout(PATIENCE_S):
        while not isinstance(store.rows[-1], ApprovalRequest):
            await asyncio.sleep(0)
        waiting = found(store.rows)
        assert isinstance(waiting, WaitingForApproval)
        assert waiting.request == store.rows[-1]
        session.approvals.answer("approval_1_1", "allow_once")
        await finish(session)
    assert kinds(listener.events)[-1] == "done"
