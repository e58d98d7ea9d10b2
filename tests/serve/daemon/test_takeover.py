"""Takeover of a run whose worker is gone: calls with effects never run twice, and the run continues elsewhere."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from daemon_process import Daemons, eventually
from daemons import PATIENCE_S, Caller, running
from forked import Forked, ForkServer
from zot.agent.loop import UNCERTAIN_RESULT
from zot.agent.transcript import LOST_RESULT
from zot.events import AssistantStart, ToolCall, TurnEnd, TurnStart, UserMessage
from zot.fleet.pools import place
from zot.fleet.worker_requests import AbortRun, Outcome, TakenRequest, conclude, make
from zot.journal.connection import Connection
from zot.journal.opening import open_journal
from zot.journal.postgres.journal import PostgresJournal
from zot.messages import CallBlock, Message, TextBlock
from zot.store import CallStarted, MessageAdded, Row

from .test_gateway import opened, seen_as, working

_TIME = "2026-01-01T12:00:00.000Z"


@pytest.fixture
async def daemons(tmp_path: Path, fork_server: ForkServer) -> AsyncIterator[Daemons]:
    """Workers, killed at the end."""
    started = Daemons(tmp_path, fork_server)
    yield started
    await started.close()


def worker(daemons: Daemons, store: str, name: str) -> Forked:
    """Start a process `zot worker`."""
    one = daemons.fork("worker", "--provider", "lab", "--store", seen_as(store, name))
    daemons.hears(one, "working for")
    return one


async def results(caller: Caller, number: int) -> tuple[dict[str, Any], list[str]]:
    """Return the answer to a prompt, and the output of its tool calls."""
    answer = (await caller.answer(number))["result"]
    return answer, [update["rawOutput"] for update in caller.updates("s") if update["type"] == "tool_result"]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def begun(file: Path) -> int:
    """Return the pid that a command has written to a file."""
    await eventually(lambda: file.exists() and file.read_text().endswith("\n"))
    return int(file.read_text())


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_command_of_a_lost_worker_does_not_run_again_and_the_run_continues(
    tmp_path: Path, database: str, daemons: Daemons, harm: signal.Signals
) -> None:
    work = tmp_path / "work"
    for place_ in (tmp_path / "one", work):
        place_.mkdir()
    async with running(tmp_path / "one", store=seen_as(database, "one")) as one:
        caller = await one.caller()
        await opened(caller, "s", work)
        first = worker(daemons, database, "first")
        number = caller.call("session/prompt", sessionId="s", prompt="!bash echo x >> runs; echo $$ > pid; sleep 600")
        pid = await begun(work / "pid")
        first.send_signal(harm)
        worker(daemons, database, "second")
        answer, outputs = await results(caller, number)
        assert (answer["stopReason"], outputs) == ("end_turn", [UNCERTAIN_RESULT])
        if harm == signal.SIGSTOP:
            assert not is_gone(pid)
            first.send_signal(signal.SIGCONT)  # It finds that it was replaced, and ends its tools.
        await eventually(lambda: is_gone(pid))
        assert (work / "runs").read_text() == "x\n"
        again = await caller.get("session/prompt", sessionId="s", prompt="!echo still here")
        assert again["content"] == "still here"
        kinds = [event["type"] for _, event in await one.events("s")]
        assert kinds.count("done") == 2


class Left:
    """A session "s" with a run that a worker left among its tool calls."""

    def __init__(self, database: str, cwd: Path, *calls: CallBlock) -> None:
        self.database, self.cwd, self.calls = database, cwd, calls

    async def write(self, *after: Row, also: Callable[[Connection, int], object] | None = None) -> None:
        """Record the run up to its calls and the rows ``after``; then its lease expires."""
        journal = await open_journal(seen_as(self.database, "lost"))
        assert isinstance(journal, PostgresJournal)
        record = await journal.record("s", create=False)
        await record.begin()
        prompt = TextBlock("!bash true")  # The next reply of this scene is an answer.
        said = Message("assistant", tuple(self.calls), _TIME)
        rows: Sequence[Row] = [
            MessageAdded(Message("user", (prompt,), _TIME)),
            UserMessage((prompt,), _TIME, "p"),
            TurnStart(1),
            AssistantStart(),
            MessageAdded(said),
            *(ToolCall(one.id, one.name, one.args) for one in self.calls),
            TurnEnd("tool_use"),
            *after,
        ]
        record.append(rows, run=1)
        await record.settled()
        journal.leases.drop(record)
        await journal.writing(place, record.number, "default")
        if also is not None:
            await journal.writing(also, record.number)
        await journal.writing(lambda connection: connection.execute("UPDATE leases SET until = now()"))
        await journal.close()


async def taken_over(tmp_path: Path, database: str, left: Left, *after: Row, **options: Any) -> list[dict[str, Any]]:
    """Return the events that a worker adds to the run."""
    async with running(tmp_path / "one", store=seen_as(database, "one")) as one:
        caller = await one.caller()
        await opened(caller, "s", left.cwd)
        await left.write(*after, **options)
        async with working(tmp_path, database, "second"), asyncio.timeout(PATIENCE_S):
            while not (events := [event for _, event in await one.events("s")]) or events[-1]["type"] != "done":
                await asyncio.sleep(0.02)
    return events


READ = CallBlock("toolu_1", "read", {"path": "note.txt"})
WRITE = CallBlock("toolu_2", "bash", {"command": "echo x >> runs"})


@pytest.fixture
def left(tmp_path: Path, database: str) -> Left:
    """A run with a call of `read` and one of `bash`."""
    (tmp_path / "one").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "note.txt").write_text("remember\n")
    return Left(database, tmp_path / "work", READ, WRITE)


def outputs_of(events: Sequence[dict[str, Any]]) -> list[str]:
    """Return the texts of all results."""
    return ["".join(part["text"] for part in event["content"]) for event in events if event["type"] == "tool_result"]


async def test_a_read_only_call_runs_again_and_a_call_that_had_not_begun_runs(
    tmp_path: Path, database: str, left: Left
) -> None:
    events = await taken_over(tmp_path, database, left, CallStarted(READ.id))
    first, second = outputs_of(events)
    assert "remember" in first
    assert UNCERTAIN_RESULT not in second
    assert (left.cwd / "runs").read_text() == "x\n"
    ends = [event["stop"] for event in events if event["type"] == "turn_end"]
    assert ends == ["tool_use", "end_turn"]


async def test_a_call_with_effects_that_had_begun_ends_in_an_error(tmp_path: Path, database: str, left: Left) -> None:
    events = await taken_over(tmp_path, database, left, CallStarted(READ.id), CallStarted(WRITE.id))
    first, second = outputs_of(events)
    assert ("remember" in first, second) == (True, UNCERTAIN_RESULT)
    assert not (left.cwd / "runs").exists()


async def test_a_read_only_call_whose_workers_keep_dying_is_given_up(tmp_path: Path, database: str, left: Left) -> None:
    events = await taken_over(tmp_path, database, left, *3 * [CallStarted(READ.id)])
    first, _ = outputs_of(events)
    assert first == UNCERTAIN_RESULT
    assert events[-2]["stop"] == "end_turn"


async def test_an_aborted_run_does_not_continue(tmp_path: Path, database: str, left: Left) -> None:
    def abort(connection: Connection, number: int) -> None:
        request = make(connection, number, AbortRun())
        connection.execute("UPDATE requests SET is_taken = true")
        conclude(connection, TakenRequest(request, number, AbortRun()), Outcome(), 1)

    events = await taken_over(tmp_path, database, left, CallStarted(READ.id), also=abort)
    assert outputs_of(events) == [LOST_RESULT, LOST_RESULT]
    assert events[-2]["stop"] == "aborted"
    assert not (left.cwd / "runs").exists()


async def test_a_run_of_no_pool_ends_as_on_one_machine(tmp_path: Path, database: str, left: Left) -> None:
    events = await taken_over(
        tmp_path, database, left, also=lambda connection, number: connection.execute("UPDATE sessions SET pool = ''")
    )
    assert outputs_of(events) == [LOST_RESULT, LOST_RESULT]
    assert not (left.cwd / "runs").exists()


async def test_a_drained_worker_hands_back_a_run_that_takes_too_long(
    tmp_path: Path, database: str, daemons: Daemons
) -> None:
    work = tmp_path / "work"
    (tmp_path / "one").mkdir()
    work.mkdir()
    (daemons.home / "config.toml").write_text("[daemon]\ngrace_s = 0\n")
    async with running(tmp_path / "one", store=seen_as(database, "one")) as one:
        caller = await one.caller()
        await opened(caller, "s", work)
        first = worker(daemons, database, "first")
        number = caller.call("session/prompt", sessionId="s", prompt="!bash echo $$ > pid; sleep 600")
        pid = await begun(work / "pid")
        assert await daemons.end(first) == 0
        assert is_gone(pid)
        worker(daemons, database, "second")
        answer, outputs = await results(caller, number)
        assert (answer["stopReason"], outputs) == ("end_turn", [UNCERTAIN_RESULT])
