"""Approvals: the policy decides which calls need one, and the run carries out the user's decision."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import claude
from fakes import (
    Doorman,
    FakeTool,
    FakeTransport,
    Guard,
    Listener,
    ListStore,
    finish,
    kinds,
    listen,
    open_session,
    talk,
)
from zot.agent.approvals import Approvals
from zot.agent.hooks import ApprovalQuestion, CallDecision
from zot.config.policy import Policy
from zot.errors import StoreFailed, UserError
from zot.events import AgentEvent, ApprovalAnswer, ApprovalRequest, ToolResult
from zot.messages import CallBlock, TextBlock
from zot.session.session import Session
from zot.tools.base import Output, ToolContext


class House:
    """A session with a tool `bash` that only returns its arguments, and a policy."""

    def __init__(
        self, *commands: str, rules: str = "bash=ask", timeout_s: float = 20, guard: Guard | None = None
    ) -> None:
        self.ran: list[str] = []
        calls = [
            claude.tool(f"c{number}", "bash", f'{{"command":"{command}"}}') for number, command in enumerate(commands)
        ]
        self.session: Session = open_session(
            FakeTransport([claude.reply(*calls, ends="tool_use")] * 2),
            tools=[FakeTool("bash", self._run)],
            approver=Approvals(Policy.parse(rules.split(",")), cwd="/w", timeout_s=timeout_s),
            extensions=guard,
        )
        self.listener: Listener = listen(self.session)
        self.listener.can_approve = True

    async def _run(self, args: dict[str, Any], context: ToolContext) -> Output:
        self.ran.append(args["command"])
        return (TextBlock("ran"),)

    def on_request(self, *decisions: str) -> list[ApprovalRequest]:
        """Answer the requests that come with these decisions, in order; return the list they gather in."""
        left = list(decisions)
        requests: list[ApprovalRequest] = []

        def answer(event: AgentEvent) -> None:
            if isinstance(event, ApprovalRequest):
                requests.append(event)
                if left:
                    self.session.approvals.answer(event.id, left.pop(0))

        self.listener.on_event = answer
        return requests

    def leave(self) -> None:
        """No remaining subscriber can answer."""
        self.listener.can_approve = False
        self.session.worker.approver_left()

    async def results(self) -> list[str]:
        self.session.prompt("go")
        await finish(self.session)
        return [
            event.content[0].text
            for event in self.listener.events
            if isinstance(event, ToolResult) and isinstance(event.content[0], TextBlock)
        ]


async def test_allow_once_runs_the_call_and_asks_again_next_time() -> None:
    house = House("make")
    requests = house.on_request("allow_once", "reject")
    assert await house.results() == ["ran", "not run: the user refused this call"]
    assert (house.ran, [request.id for request in requests]) == (["make"], ["approval_1_1", "approval_1_2"])


async def test_a_request_shows_what_would_run_and_its_deadline() -> None:
    house = House("make  test")
    requests = house.on_request("reject", "reject")
    await house.results()
    request = requests[0]
    assert (request.tool, request.args, request.summary) == ("bash", {"command": "make  test"}, "bash: make  test")
    assert request.deadline.endswith("Z")


async def test_allow_always_covers_the_exact_command_only() -> None:
    house = House("make", "make install")
    requests = house.on_request("allow_always", "reject", "reject")
    refused = "not run: the user refused this call"
    assert await house.results() == ["ran", refused, "ran", refused]
    assert [request.args["command"] for request in requests] == ["make", "make install", "make install"]


@pytest.mark.parametrize(
    ("tool", "first", "same", "others"),
    [
        ("bash", {"command": "make"}, {"command": "make", "timeout": 9}, [{"command": "make install"}]),
        (
            "deploy",
            {"command": "push", "target": "test"},
            {"target": "test", "command": "push"},
            [
                {"command": "push", "target": "live"},
                {"command": "push"},
                {"command": '{"command": "push", "target": "test"}'},
            ],
        ),
        ("patch", {"path": "a", "by": 1}, {"path": "./a", "by": 2}, [{"path": "b", "by": 1}]),
        ("fetch", {"url": "a"}, {"url": "b"}, []),
    ],
)
def test_the_scope_of_allow_always_depends_on_the_arguments(
    tool: str, first: dict[str, Any], same: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    approvals = Approvals(Policy.parse(["*=ask"]), cwd="/somewhere")
    question = approvals.judge(CallBlock("1", tool, first), first)
    assert isinstance(question, ApprovalQuestion)
    kept = approvals.remember(question)
    assert kept is not None
    later = Approvals(Policy.parse(["*=ask"]), cwd="/somewhere")
    later.recall(kept)
    for judge in (approvals, later):
        assert judge.judge(CallBlock("2", tool, same), same) is None
        for other in others:
            assert isinstance(judge.judge(CallBlock("3", tool, other), other), ApprovalQuestion)


async def test_calls_that_need_no_approval_run_before_the_question_and_after_the_answer() -> None:
    house = House("ls", "make", "ls lib", rules="bash:ls=allow,bash:ls *=allow,bash=ask")
    requests = house.on_request("allow_once", "allow_once")
    assert await house.results() == ["ran"] * 6
    assert (house.ran, len(requests)) == (["ls", "make", "ls lib"] * 2, 2)


async def test_without_an_approver_the_call_is_refused_at_once() -> None:
    house = House("make")
    house.listener.can_approve = False
    reason = "not run: the policy of this session requires a person's approval, and no person can be asked"
    assert await house.results() == [reason, reason]
    assert house.ran == []
    assert "approval_request" not in kinds(house.listener.events)


async def test_no_answer_in_time_is_a_refusal_that_says_so() -> None:
    house = House("make", timeout_s=0.01)
    house.on_request()
    reason = "not run: no person approved it within 0.01 s"
    assert await house.results() == [reason, reason]


async def test_a_denied_call_raises_no_question() -> None:
    house = House("make", rules="bash=deny")
    requests = house.on_request()
    reason = "not run: the policy of this session denies bash here"
    assert (await house.results(), requests, house.ran) == ([reason, reason], [], [])


async def test_the_first_answer_counts_and_a_stale_one_is_an_error() -> None:
    house = House("make")
    requests = house.on_request("allow_once", "allow_once")
    await house.results()
    for request_id in (requests[0].id, "approval_99", ""):
        with pytest.raises(UserError, match="is waiting"):
            house.session.approvals.answer(request_id, "reject")
    with pytest.raises(UserError, match="is not a decision"):
        house.session.approvals.answer("approval_1_1", "yes")


async def test_an_abort_ends_the_wait_and_the_call_does_not_run() -> None:
    house = House("make", "true")
    house.listener.on_event = lambda event: house.session.abort() if isinstance(event, ApprovalRequest) else None
    assert await house.results() == ["aborted before it finished"] * 2
    assert (house.ran, kinds(house.listener.events)[-2:]) == ([], ["turn_end aborted", "done"])
    with pytest.raises(UserError):
        house.session.approvals.answer("approval_1_1", "allow_once")


async def test_the_approver_sees_the_call_as_the_extension_changed_it_and_that_runs() -> None:
    guard = Guard()
    guard.on_call = lambda call, args: CallDecision({"command": "echo safe"}, note="changed")
    house = House("rm -rf x", guard=guard)
    requests = house.on_request("allow_once", "allow_once")
    await house.results()
    assert {request.args["command"] for request in requests} == {"echo safe"}
    assert house.ran == ["echo safe", "echo safe"]
    assert [asked[0] for asked in guard.asked] == ["guard", "guard"]


async def test_reading_calls_run_side_by_side_and_answer_in_order() -> None:
    barrier = asyncio.Barrier(3)
    log: list[str] = []

    async def look(args: dict[str, Any], context: ToolContext) -> Output:
        async with asyncio.timeout(5):
            await barrier.wait()
        await context.reporter.progress("looking")
        log.append("look")
        return (TextBlock(args["at"]),)

    async def change(args: dict[str, Any], context: ToolContext) -> Output:
        log.append("change")
        return (TextBlock("changed"),)

    reader, writer = FakeTool("look", look), FakeTool("change", change)
    reader.read_only = True
    calls = [claude.tool(f"r{at}", "look", f'{{"at":"{at}"}}') for at in range(3)]
    reply = claude.reply(*calls, claude.tool("w", "change"), claude.tool("x", "nosuch"), ends="tool_use")
    session = open_session(FakeTransport([reply]), tools=[reader, writer])
    events = await talk(session)
    results = [event for event in events if isinstance(event, ToolResult)]
    assert [result.id for result in results] == ["r0", "r1", "r2", "w", "x"]
    assert log == ["look", "look", "look", "change"]
    assert "tool_progress" not in kinds(events)


async def test_an_unforeseen_error_in_one_of_several_calls_ends_the_run_under_its_own_name() -> None:
    async def fail(args: dict[str, Any], context: ToolContext) -> Output:
        raise ZeroDivisionError

    tool = FakeTool("look", fail)
    tool.read_only = True
    reply = claude.reply(claude.tool("a", "look"), claude.tool("b", "look"), ends="tool_use")
    session = open_session(FakeTransport([reply]), tools=[tool])
    listener = listen(session)
    job = session.prompt("go")
    await finish(session)
    assert "ZeroDivisionError" in str(job.error)
    assert [event.is_error for event in listener.events if isinstance(event, ToolResult)] == [True, True]


async def test_a_tool_failing_with_an_os_error_is_answered_with_a_result() -> None:
    async def fail(args: dict[str, Any], context: ToolContext) -> Output:
        raise PermissionError(13, "Permission denied", "x")

    reply = claude.reply(claude.tool("a", "look"), ends="tool_use")
    events = await talk(open_session(FakeTransport([reply]), tools=[FakeTool("look", fail)]))
    (result,) = [event for event in events if isinstance(event, ToolResult)]
    assert (result.is_error, result.content) == (True, (TextBlock("failed: x: Permission denied"),))
    assert kinds(events)[-2:] == ["turn_end end_turn", "done"]


async def writing(path: str, approver: Approvals, on_request: str, between: Callable[[], None]) -> tuple[str, str, int]:
    """Call `write` twice on ``path``, approved as ``on_request``; return both results and how often was asked.

    ``between`` happens after the first question and before its answer.
    """
    calls = [claude.reply(claude.tool("w", "write", json.dumps({"path": path})), ends="tool_use")] * 2
    session = open_session(FakeTransport(calls), tools=[FakeTool("write", _wrote)], approver=approver)
    listener = listen(session)
    listener.can_approve = True
    asked: list[str] = []

    def answer(event: AgentEvent) -> None:
        if isinstance(event, ApprovalRequest):
            if not asked:
                between()
            asked.append(event.id)
            session.approvals.answer(event.id, on_request)

    listener.on_event = answer
    session.prompt("go")
    await finish(session)
    results = [event.content[0] for event in listener.events if isinstance(event, ToolResult)]
    first, second = (block.text for block in results if isinstance(block, TextBlock))
    return first, second, len(asked)


async def _wrote(args: dict[str, Any], context: ToolContext) -> Output:
    return (TextBlock("wrote"),)


@pytest.mark.parametrize("decision", ["allow_once", "allow_always"])
async def test_a_path_that_resolves_elsewhere_since_it_was_shown_is_not_approved(tmp_path: Path, decision: str) -> None:
    (tmp_path / "shown").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("shown")

    def swap() -> None:
        (tmp_path / "link").unlink()
        (tmp_path / "link").symlink_to("other")

    approver = Approvals(Policy.parse(["write=ask"]), cwd=str(tmp_path))
    first, second, asked = await writing("link/x", approver, decision, swap)
    assert first == "not run: the path resolves to another file than when it was approved"
    assert (second, asked) == ("wrote", 2)


async def test_allow_always_covers_the_resolved_path_under_any_name(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to("d")
    approver = Approvals(Policy.parse(["write=ask"]), cwd=str(tmp_path))
    assert await writing("link/x", approver, "allow_always", lambda: None) == ("wrote", "wrote", 1)
    assert await writing("d/../d/x", approver, "reject", lambda: None) == ("wrote", "wrote", 0)


@pytest.mark.parametrize("rules", [[], ["write:secret/*=allow"]])
async def test_an_impossible_path_is_left_to_the_tool(rules: list[str]) -> None:
    approver = Approvals(Policy.parse(rules), cwd="/w")
    assert await writing("a\0b", approver, "reject", lambda: None) == ("wrote", "wrote", 0)


async def test_a_question_that_cannot_be_asked_ends_its_run_and_not_the_session() -> None:
    house = House("make", timeout_s=float("inf"))
    job = house.session.prompt("go")
    await finish(house.session)
    assert "internal error (OverflowError)" in str(job.error)
    assert kinds(house.listener.events)[-2:] == ["error", "done"]
    house.listener.can_approve = False
    assert (await house.results())[-1].endswith("no person can be asked")


async def test_a_question_ends_when_the_last_possible_approver_leaves() -> None:
    house = House("make")

    def leave(event: AgentEvent) -> None:
        if isinstance(event, ApprovalRequest):
            house.session.worker.approver_left()
            house.leave()

    house.listener.on_event = leave
    reason = "not run: the policy of this session requires a person's approval, and no person can be asked"
    assert await house.results() == [reason, reason]
    assert kinds(house.listener.events).count("approval_request") == 1


async def test_every_subscriber_gets_the_question_before_the_first_answer() -> None:
    house = House("make")
    house.on_request("allow_once", "reject")
    other = listen(house.session)
    await house.results()
    assert kinds(other.events) == kinds(house.listener.events)
    answers = [event for event in other.events if isinstance(event, ApprovalAnswer)]
    assert answers == [ApprovalAnswer("approval_1_1", "allow_once"), ApprovalAnswer("approval_1_2", "reject")]


@pytest.mark.parametrize(
    ("ends", "decision", "told"),
    [
        (lambda house: house.session.abort(), "aborted", "its run was aborted"),
        (lambda house: house.leave(), "unanswerable", "no client was left that could answer it"),
        (lambda house: None, "expired", "it was not answered in time"),
    ],
)
async def test_an_expired_question_is_recorded_and_late_answers_are_refused(
    ends: Callable[[House], None], decision: str, told: str
) -> None:
    house = House("make", timeout_s=0.01 if decision == "expired" else 20)
    house.listener.on_event = lambda event: ends(house) if isinstance(event, ApprovalRequest) else None
    await house.results()
    first = next(event for event in house.listener.events if isinstance(event, ApprovalAnswer))
    assert (first.id, first.decision, first.by) == ("approval_1_1", decision, "")
    with pytest.raises(UserError, match=rf"'approval_1_1' is waiting: {told}$"):
        house.session.approvals.answer("approval_1_1", "allow_once")


async def test_an_answer_that_cannot_be_recorded_does_not_count() -> None:
    ran: list[str] = []

    async def work(args: dict[str, Any], context: ToolContext) -> Output:
        ran.append("work")
        return (TextBlock("worked"),)

    refused: list[StoreFailed] = []
    appends = 0
    for fails_at in (0, 1):
        store = ListStore(fails_at=fails_at and appends + 1, error=StoreFailed("the disk is full"))
        transport = FakeTransport([claude.reply(claude.tool("c1", "work"), ends="tool_use")])
        session = open_session(transport, tools=[FakeTool("work", work)], store=store, approver=Doorman(asks=True))
        listener = listen(session)
        listener.can_approve = True
        session.prompt("go")
        async with asyncio.timeout(20):
            while session.approvals.pending is None:
                await asyncio.sleep(0)
        appends = store.appends
        if fails_at:
            with pytest.raises(StoreFailed) as problem:
                session.approvals.answer("approval_1_1", "allow_once")
            refused.append(problem.value)
            assert (session.approvals.pending is not None, ran) == (True, ["work"])
            session.approvals.answer("approval_1_1", "reject")
        else:
            session.approvals.answer("approval_1_1", "allow_once")
        await finish(session)
    assert (ran, len(refused)) == (["work"], 1)
