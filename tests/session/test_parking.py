"""A run that waits for an approval outlives its process: another one resumes it at that call, in this journal only."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import claude
from fakes import NOON, PATIENCE_S, FakeTool, FakeTransport, Guard, Listener, finish, kinds, listen, service
from harness import Zot
from zot.agent.approvals import Approvals
from zot.agent.hooks import CallDecision
from zot.agent.loop import Agent, AgentSettings
from zot.agent.transcript import repaired
from zot.config.config import Config, ConfigOverrides
from zot.config.policy import Policy
from zot.errors import SessionBusy, UserError
from zot.events import ApprovalAnswer, ApprovalRequest, Done, ToolResult, TurnEnd, TurnStart
from zot.journal.journal import Journal
from zot.messages import CallBlock, TextBlock
from zot.providers.models import catalogue
from zot.runtime.open import OpenRequest, open_session
from zot.runtime.shared import SharedResources
from zot.session.recovery import WaitingRuns
from zot.session.session import Session
from zot.session.transcripts import TranscriptPast
from zot.store import CallStarted, Change, LockChanged, Row
from zot.tools.base import Output, ToolContext

CALLS = (
    claude.text("Let me see"),
    claude.tool("c1", "note", '{"path":"a"}'),
    claude.tool("c2", "bash", '{"command":"make"}'),
    claude.tool("c3", "note", '{"path":"b"}'),
)
LOST = "the result was lost: the run was interrupted"


class House:
    """One journal, and several sessions on it, one after the other. Records the tools' effects over all of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ran: list[str] = []
        self.guard = Guard()
        self.rules = ["bash=ask"]
        self.listener = Listener()

    async def live(
        self,
        *replies: Sequence[bytes],
        session_id: str = "s",
        parks: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> Session:
        """Open a session, as a process would that has just begun."""
        journal = await Journal.open(self.path / "journal.db")
        record, past = await journal.resume(session_id)
        agent = Agent(
            service(FakeTransport([list(reply) for reply in replies])),
            catalogue("anthropic"),
            AgentSettings(system="You are a test.", cwd="/", env={}),
            tools=[FakeTool("bash", self._run), FakeTool("note", self._run)],
            extensions=self.guard,
            approver=Approvals(Policy.parse(self.rules), cwd="/", timeout_s=600),
        )
        session = Session(
            agent, record, now=lambda: NOON, past=TranscriptPast(past.changes, past.rows, record.totals, journal.close)
        )
        self.listener = listen(session)
        await session.worker.recover(WaitingRuns.RESUME if parks else WaitingRuns.LEAVE, clock=clock)
        return session

    async def die_with(self, rows: Sequence[Row], session_id: str) -> None:
        """Leave a session as a process does that dies when it has recorded ``rows``."""
        journal = await Journal.open(self.path / "journal.db")
        record = await journal.record(session_id)
        await record.begin()
        if rows:
            record.append(rows, run=1)
            await record.settled()
        record.end(parked=True)
        await journal.close()

    async def rows(self, session_id: str = "s") -> list[Row]:
        journal = await Journal.open(self.path / "journal.db")
        record = await journal.record(session_id)
        rows = [row for _, row in await record.read(0, 1000)]
        await journal.close()
        return rows

    async def _run(self, args: dict[str, Any], context: ToolContext) -> Output:
        self.ran.append(args.get("command") or args["path"])
        await context.reporter.progress("working")
        return (TextBlock(f"did {self.ran[-1]}"),)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def changing(command: str) -> Callable[[CallBlock, dict[str, Any]], CallDecision]:
    """Return the source of an extension that replaces the ``command``."""
    return lambda call, args: CallDecision({"command": command} if "command" in args else args)


async def asked(session: Session) -> ApprovalRequest:
    """Wait for the question, and return it."""
    async with asyncio.timeout(PATIENCE_S):
        while session.approvals.pending is None:
            await asyncio.sleep(0)
        return session.approvals.pending


def parted(rows: Sequence[Row]) -> tuple[list[Row], ApprovalRequest]:
    """Return the rows recorded before the question, and the question."""
    at, request = next((at, row) for at, row in enumerate(rows) if isinstance(row, ApprovalRequest))
    return list(rows[:at]), request


def results(rows: Sequence[Row]) -> list[tuple[str, str]]:
    found = []
    for row in rows:
        if isinstance(row, ToolResult):
            (block,) = row.content
            assert isinstance(block, TextBlock)
            found.append((row.id, block.text))
    return found


ANSWERED = claude.reply(claude.text("All is well"))
ASKING = claude.reply(*CALLS, ends="tool_use")


async def whole_run(house: House) -> list[Row]:
    """Return the rows of an uninterrupted run, with a call before the question and one after it."""
    session = await house.live(ASKING, ANSWERED)
    session.prompt("go")
    request = await asked(session)
    session.approvals.answer(request.id, "allow_once", by="alice")
    await finish(session)
    await session.close()
    house.ran.clear()
    return await house.rows()


async def test_a_run_that_dies_at_any_row_is_continued_or_ended_and_nothing_is_done_twice(house: House) -> None:
    journal = await Journal.open(house.path / "journal.db")  # so that no life has to open the file
    whole = await whole_run(house)
    question = len(parted(whole)[0])
    assert whole[question + 1 : question + 3] == [
        ApprovalAnswer("approval_1_1", "allow_once", "alice"),
        CallStarted("c2"),
    ]
    for length in range(1, len(whole) + 1):
        prefix, name = whole[:length], f"prefix {length}"
        await house.die_with(prefix, name)
        session = await house.live(ANSWERED, ANSWERED, session_id=name)
        waits, goes_on = length == question + 1, length in (question + 1, question + 2)
        assert (session.approvals.pending == prefix[-1], session.worker.busy) == (waits, goes_on), length
        if waits:
            session.approvals.answer("approval_1_1", "allow_once", by="alice")
        await finish(session)
        after = await house.rows(name)
        assert after[:length] == prefix
        assert house.ran == (["make", "b"] if goes_on else []), length
        if goes_on:
            assert after == whole, length
        messages = list(session.history.transcript.messages)
        assert repaired(messages) == messages
        if any(not isinstance(row, Change) for row in prefix):
            assert (after[-1], after.count(Done())) == (Done(), 1)
        session.prompt("and now?")
        await finish(session)
        assert kinds(house.listener.events)[-2:] == ["turn_end end_turn", "done"]
        await session.close()
        house.ran.clear()
    assert await journal.left_behind() == []
    await journal.close()


async def test_a_resumed_session_waits_with_the_same_question_until_the_same_deadline(house: House) -> None:
    session = await house.live(ASKING)
    session.prompt("go")
    request = await asked(session)
    await session.close(parks=True)
    assert house.ran == ["a"]
    again = await house.live(ANSWERED)
    state = again.state()
    assert (again.approvals.pending, state.state, state.pending, again.worker.busy) == (
        request,
        "waiting_approval",
        request,
        True,
    )
    await again.close(parks=True)
    third = await house.live(ANSWERED)
    assert third.approvals.pending == request
    third.approvals.answer(request.id, "reject", by="bob")
    assert third.state().state == "running"
    await finish(third)
    assert third.state().state == "idle"
    assert kinds(house.listener.events) == [
        "approval_answer",
        *("tool_result", "tool_progress", "tool_result"),
        *("turn_start", "assistant_start", "text_delta", "usage", "assistant_message", "turn_end end_turn", "done"),
    ]
    refused = "not run: the user refused this call"
    rows = await house.rows()
    assert results(rows) == [("c1", "did a"), ("c2", refused), ("c3", "did b")]
    assert [row.step for row in rows if isinstance(row, TurnStart)] == [1, 2]
    with pytest.raises(UserError, match=r"'approval_1_1' is waiting: the answer was reject, by bob$"):
        third.approvals.answer(request.id, "allow_once")
    await third.close()


async def test_steps_are_counted_across_a_restart_of_the_machine(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await house.live(ASKING, ASKING)
    session.prompt("go")
    session.approvals.answer((await asked(session)).id, "allow_once")
    request = await asked(session)
    assert request.id == "approval_1_2"
    await session.close(parks=True)
    monkeypatch.setattr("zot.journal.record.boot_id", lambda: "another")
    again = await house.live(ANSWERED)
    assert again.approvals.pending == request
    again.approvals.answer(request.id, "allow_once")
    await finish(again)
    await again.close()
    assert [row.step for row in await house.rows() if isinstance(row, TurnStart)] == [1, 2, 3]
    journal = await Journal.open(house.path / "journal.db")
    assert (await journal.find("s")).epoch == 1
    await journal.close()


async def test_a_waiting_run_keeps_other_processes_from_running_the_session(house: House) -> None:
    session = await house.live(ASKING)
    session.prompt("go")
    await asked(session)
    await session.close(parks=True)
    journal = await Journal.open(house.path / "journal.db")
    assert await journal.left_behind() == ["s"]
    again = await house.live(ANSWERED)
    assert await journal.left_behind() == []
    with pytest.raises(SessionBusy):
        await (await journal.record("s")).begin()
    behind = again.prompt("and then?")
    again.abort()
    await finish(again)
    assert behind.error is None
    assert await journal.left_behind() == []
    rows = await house.rows()
    assert results(rows)[1:] == [("c2", "aborted before it finished"), ("c3", "aborted before it finished")]
    assert [row.decision for row in rows if isinstance(row, ApprovalAnswer)] == ["aborted"]
    await again.close()
    await journal.close()


async def test_a_deadline_that_passes_after_a_resume_is_a_refusal_and_the_run_continues(house: House) -> None:
    before, request = parted(await whole_run(house))
    await house.die_with([*before, request], "late")
    almost = datetime.fromisoformat(request.deadline).timestamp() - 0.01
    session = await house.live(ANSWERED, session_id="late", clock=lambda: almost)
    assert session.approvals.pending == request
    await finish(session)
    after = await house.rows("late")
    late = f"not run: no person approved it by {request.deadline}"
    assert results(after)[1:] == [("c2", late), ("c3", "did b")]
    assert after[len(before) + 1] == ApprovalAnswer("approval_1_1", "expired")
    assert after[-1] == Done()
    await session.close()


async def test_a_deadline_that_passed_before_the_resume_ends_the_run(house: House) -> None:
    before, request = parted(await whole_run(house))
    await house.die_with([*before, request], "late")
    deadline = datetime.fromisoformat(request.deadline).timestamp()
    session = await house.live(session_id="late", clock=lambda: deadline)
    assert (session.approvals.pending, session.worker.busy, house.ran) == (None, False, [])
    after = await house.rows("late")
    too_late = f"not run: no person approved it by {request.deadline}"
    assert results(after) == [("c1", "did a"), ("c2", too_late), ("c3", LOST)]
    assert after[-2:] == [TurnEnd("aborted"), Done()]
    await session.close()


async def test_allow_always_survives_a_restart_and_not_a_fork(house: House) -> None:
    session = await house.live(ASKING)
    session.prompt("go")
    request = await asked(session)
    await session.close(parks=True)
    again = await house.live(ANSWERED)
    again.approvals.answer(request.id, "allow_always")
    await finish(again)
    fork = await again.fork("t")
    await again.close()
    third = await house.live(ASKING, ANSWERED)
    third.prompt("once more")
    await finish(third)
    await third.close()
    assert house.ran == ["a", "make", "b", "a", "make", "b"]
    other = await house.live(ASKING, ANSWERED, session_id=fork)
    other.prompt("once more")
    assert (await asked(other)).id == "approval_2_1"
    await other.close()


async def test_a_call_that_an_extension_now_changes_differently_is_asked_about_again(house: House) -> None:
    house.guard.on_call = changing("make safe")
    session = await house.live(ASKING)
    session.prompt("go")
    request = await asked(session)
    assert request.args == {"command": "make safe"}
    await session.close(parks=True)
    same = await house.live(ANSWERED)
    await same.close(parks=True)
    house.guard.on_call = changing("make odd")
    other = await house.live(ANSWERED)
    assert other.approvals.pending == request
    other.approvals.answer(request.id, "allow_always")
    second = await asked(other)
    assert (second.id, second.args) == ("approval_1_2", {"command": "make odd"})
    other.approvals.answer(second.id, "allow_once")
    await finish(other)
    assert house.ran == ["a", "make odd", "b"]
    await other.close()


async def test_a_call_that_an_extension_changes_in_the_same_way_runs_without_another_question(house: House) -> None:
    house.guard.on_call = changing("make safe")
    session = await house.live(ASKING)
    session.prompt("go")
    request = await asked(session)
    await session.close(parks=True)
    again = await house.live(ANSWERED)
    again.approvals.answer(request.id, "allow_once")
    await finish(again)
    assert house.ran == ["a", "make safe", "b"]
    assert kinds(house.listener.events).count("approval_request") == 0
    await again.close()


async def test_a_path_that_now_resolves_elsewhere_is_asked_about_again(house: House) -> None:
    house.rules = ["note=ask"]
    (house.path / "link").symlink_to("shown")
    calling = claude.reply(claude.tool("c1", "note", json.dumps({"path": f"{house.path}/link/x"})), ends="tool_use")
    session = await house.live(calling)
    session.prompt("go")
    request = await asked(session)
    await session.close(parks=True)
    (house.path / "link").unlink()
    (house.path / "link").symlink_to("other")
    again = await house.live(ANSWERED)
    again.approvals.answer(request.id, "allow_always")
    second = await asked(again)
    place = str(house.path).removeprefix("/")
    assert (request.summary, second.summary) == (f"note: {place}/shown/x", f"note: {place}/other/x")
    again.approvals.answer(second.id, "reject")
    await finish(again)
    assert house.ran == []
    await again.close()


@pytest.mark.parametrize(
    ("rule", "decision", "ran"),
    [("bash=allow", "reject", []), ("bash=allow", "allow_once", ["make"]), ("bash=deny", "allow_always", [])],
)
async def test_changed_rules_hold_but_never_against_a_refusal(
    house: House, rule: str, decision: str, ran: list[str]
) -> None:
    before, request = parted(await whole_run(house))
    await house.die_with([*before, request], "t")
    house.rules = [rule]
    session = await house.live(ANSWERED, session_id="t")
    assert (session.approvals.pending, house.ran) == (request, [])
    session.approvals.answer(request.id, decision)
    await finish(session)
    assert house.ran == [*ran, "b"]
    await session.close()


async def test_a_surface_that_does_not_park_leaves_the_question_until_its_next_prompt_ends_the_run(
    house: House,
) -> None:
    session = await house.live(ASKING)
    session.prompt("go")
    await asked(session)
    await session.close(parks=True)
    other = await house.live(ANSWERED, parks=False)
    assert (other.approvals.pending, other.worker.busy) == (None, False)
    assert isinstance((await house.rows())[-1], ApprovalRequest)
    other.prompt("never mind")
    await finish(other)
    assert results(await house.rows()) == [("c1", "did a"), ("c2", LOST), ("c3", LOST)]
    assert kinds(house.listener.events)[-2:] == ["turn_end end_turn", "done"]
    await other.close()


async def test_an_answered_call_is_not_run_by_a_surface_that_does_not_park(house: House) -> None:
    rows = await whole_run(house)
    answer = next(at for at, row in enumerate(rows) if isinstance(row, ApprovalAnswer))
    await house.die_with(rows[: answer + 1], "answered")
    session = await house.live(session_id="answered", parks=False)
    assert (results(await house.rows("answered"))[1:], house.ran) == ([("c2", LOST), ("c3", LOST)], [])
    await session.close()


async def test_a_session_not_begun_here_has_nothing_to_resume(house: House) -> None:
    """A fork, or an imported file, may claim that a person allowed a call: that does not count here."""
    rows = await whole_run(house)
    answer = next(at for at, row in enumerate(rows) if isinstance(row, ApprovalAnswer))
    journal = await Journal.open(house.path / "journal.db")
    for name, at in (("asked", answer), ("answered", answer + 1)):
        await journal.fork("s", name, at=at)
        session = await house.live(session_id=name)
        assert (session.approvals.pending, session.worker.busy, house.ran) == (None, False, [])
        assert (await house.rows(name))[-1] == Done()
        await session.close()
    await journal.close()


async def test_a_graceful_stop_aborts_runs_that_wait_for_no_approval(house: House) -> None:
    session = await house.live(claude.reply(claude.tool("c1", "note", '{"path":"a"}'), ends="tool_use"), ANSWERED)
    began = asyncio.Event()

    def begin(call: CallBlock, args: dict[str, Any]) -> CallDecision:
        began.set()
        return CallDecision(args)

    house.guard.on_call = begin
    session.prompt("go")
    async with asyncio.timeout(PATIENCE_S):
        await began.wait()
    await session.close(parks=True)
    assert (await house.rows())[-2:] == [TurnEnd("aborted"), Done()]
    journal = await Journal.open(house.path / "journal.db")
    assert await journal.left_behind() == []
    await journal.close()


async def test_a_question_waits_even_while_no_approver_listens(house: House) -> None:
    session = await house.live(ASKING, ANSWERED)
    session.prompt("go")
    request = await asked(session)
    session.worker.approver_left()
    assert session.approvals.pending == request
    session.approvals.answer(request.id, "allow_once")
    with pytest.raises(UserError, match=r"is waiting: the answer was allow_once$"):
        session.approvals.answer(request.id, "reject")
    await finish(session)
    assert results(await house.rows())[1] == ("c2", "did make")
    await session.close()


async def test_a_run_killed_while_waiting_is_continued_by_another_process(
    zot: Callable[..., Zot], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    first = zot("--provider", "lab", "--policy", "bash=ask", "--session", "s", env={"ZOT_HOME": str(home)})
    first.send({"type": "hello", "features": ["approvals"]}, {"type": "prompt", "message": "!bash echo hi >> made"})
    request = first.until(type="approval_request")[-1]
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    journal = await Journal.open(home / "journal.db")
    assert await journal.left_behind() == ["s"]
    settings: dict[str, Any] = {"provider": "lab", "policy": ("bash=ask",), "session": "s"}
    resources = SharedResources()
    config, overrides = Config(**settings, env={"ZOT_HOME": str(home)}), ConfigOverrides(frozenset(settings))
    session = await open_session(
        OpenRequest(config=config, overrides=overrides, unfinished=WaitingRuns.RESUME), resources
    )
    listener = listen(session)
    assert session.approvals.pending is not None
    assert session.approvals.pending.id == request["id"]
    session.approvals.answer(request["id"], "allow_once")
    await finish(session)
    assert [path.read_text() for path in tmp_path.rglob("made")] == ["hi\n"]
    assert kinds(listener.events)[0] == "approval_answer"
    assert kinds(listener.events)[-2:] == ["turn_end end_turn", "done"]
    assert await journal.left_behind() == []
    await session.close()
    await resources.close()
    await journal.close()


async def test_a_setting_that_another_process_records_leaves_a_waiting_run_to_be_resumed(house: House) -> None:
    first = await house.live(ASKING)
    first.prompt("go")
    request = await asked(first)
    await first.close(parks=True)
    other = await house.live(parks=False)
    await other.worker.record(LockChanged(True))
    await other.close()
    later = await house.live()
    assert later.approvals.pending == request
    await later.close(parks=True)
