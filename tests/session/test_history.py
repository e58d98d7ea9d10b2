"""No event is shown before it is stored, whatever the disk does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import claude
from fakes import FakeTool, FakeTransport, Listener, Reports, SlowStore, finish, kinds, listen, open_session
from zot.errors import AuthFailed, StoreFailed
from zot.events import Done, Error
from zot.messages import TextBlock
from zot.session.session import Session
from zot.tools.base import Output, Tool, ToolContext

PATIENCE_S = 60


async def until_quiet() -> None:
    """Let every callback run that needs no disk."""
    for _ in range(50):
        await asyncio.sleep(0)


def slow_session(
    transport: FakeTransport | None = None, tools: Sequence[Tool] = ()
) -> tuple[Session, SlowStore, Listener]:
    store = SlowStore()
    session = open_session(transport or FakeTransport(), tools=tools, store=store)
    return session, store, listen(session)


async def test_nothing_is_shown_until_it_is_committed() -> None:
    session, store, listener = slow_session()
    session.prompt("hi")
    await until_quiet()
    assert listener.events == []
    store.commit()
    await until_quiet()
    assert kinds(listener.events)[-1] == "done"
    store.commit()
    await finish(session)


async def test_committed_rows_are_shown_in_order_and_no_others() -> None:
    session, store, listener = slow_session()
    session.prompt("hi")
    await until_quiet()
    seen: list[int] = []
    for seq in range(1, store.last_seq + 1):
        store.commit(seq)
        seen.append(len(listener.events))
    assert seen == sorted(seen)
    assert (seen[0], kinds(listener.events)[0], kinds(listener.events)[-1]) == (0, "user_message", "done")
    await finish(session)


async def test_rows_committed_together_are_shown_together_and_nothing_after_the_end_of_a_run() -> None:
    session, store, listener = slow_session(
        FakeTransport([claude.reply(claude.text("one")), claude.reply(claude.text("two"))])
    )
    session.prompt("first")
    session.prompt("second")
    await until_quiet()
    store.commit()
    await until_quiet()
    store.commit()
    await finish(session)
    ends = [at for at, batch in enumerate(listener.batches) if isinstance(batch.events[-1], Done)]
    assert len(ends) == 2
    assert not any(isinstance(event, Done) for batch in listener.batches for event in batch.events[:-1])
    # The prompt; the words of the answer; its message and its end.
    assert [kinds(batch.events) for batch in listener.batches[: ends[0] + 1]] == [
        ["user_message", "turn_start", "assistant_start", "text_delta"],
        ["usage", "assistant_message", "turn_end end_turn", "done"],
    ]
    numbers = [seq for batch in listener.batches for seq in range(batch.seq, batch.last + 1)]
    assert numbers == sorted({*numbers})
    assert len(numbers) == len(listener.events)


async def test_a_run_is_not_over_before_its_end_is_committed() -> None:
    session, store, listener = slow_session(
        FakeTransport([claude.reply(claude.text("a")), claude.reply(claude.text("b"))])
    )
    started: list[str] = []
    session.prompt("one", observer=Reports(started=lambda: started.append("one")))
    session.prompt("two", observer=Reports(started=lambda: started.append("two")))
    await until_quiet()
    assert (started, session.worker.busy) == (["one"], True)
    store.commit()
    await until_quiet()
    assert started == ["one", "two"]
    assert kinds(listener.events).count("done") == 1
    store.commit()
    await finish(session)
    assert (kinds(listener.events).count("done"), session.worker.busy) == (2, False)
    assert sorted(set(store.runs)) == [1, 2]


async def test_a_tool_has_no_effect_before_its_call_is_committed() -> None:
    ran: list[str] = []

    async def mark(args: dict[str, Any], context: ToolContext) -> Output:
        ran.append("tool")
        return (TextBlock("marked"),)

    reply = claude.reply(claude.tool("c1", "mark"), ends="tool_use")
    session, store, _ = slow_session(FakeTransport([reply]), tools=[FakeTool("mark", mark)])
    session.prompt("hi")
    await until_quiet()
    assert ran == []
    store.commit()
    await until_quiet()
    assert ran == ["tool"]
    store.commit()
    await until_quiet()
    store.commit()
    await finish(session)


@pytest.mark.parametrize("moment", ["while it runs", "at its end"])
async def test_rows_lost_by_the_disk_are_not_shown_and_end_the_run(moment: str) -> None:
    transport = FakeTransport() if moment == "at its end" else FakeTransport([None])
    session, store, listener = slow_session(transport)
    job = session.prompt("hi")
    await until_quiet()
    store.lose(StoreFailed("the disk is gone"))
    async with asyncio.timeout(PATIENCE_S):
        await finish(session)
    assert listener.events == [Error("the disk is gone"), Done()]
    assert isinstance(job.error, StoreFailed)
    assert not session.worker.busy


@pytest.mark.parametrize("answer", [claude.reply(claude.text("a", "b")), AuthFailed("no")], ids=["said", "refused"])
async def test_every_turn_seen_to_begin_ends_once_whatever_the_disk_loses(
    answer: list[bytes] | Exception,
) -> None:
    async def shown(safe: int | None) -> tuple[list[str], int]:
        """Lose all rows after ``safe``; return the rows seen, and how many there were."""
        session, store, listener = slow_session(FakeTransport([answer]))
        session.prompt("hi")
        await until_quiet()
        rows = store.last_seq
        store.commit(rows if safe is None else safe)
        store.lose(StoreFailed("the disk is gone"))
        async with asyncio.timeout(PATIENCE_S):
            await finish(session)
        return [kind.partition(" ")[0] for kind in kinds(listener.events)], rows

    _, rows = await shown(None)
    for safe in range(rows):
        seen, _ = await shown(safe)
        assert seen[-2:] == ["error", "done"]
        bounds = [kind for kind in seen if kind.startswith("turn_")]
        assert bounds == (["turn_start", "turn_end"] if "turn_start" in seen else [])
        assert seen.count("done") == 1


async def test_an_abort_works_while_the_disk_sleeps() -> None:
    session, store, listener = slow_session(FakeTransport([None]))
    session.prompt("hi")
    await until_quiet()
    session.abort()
    await until_quiet()
    store.commit()
    async with asyncio.timeout(PATIENCE_S):
        await finish(session)
    assert kinds(listener.events)[-2:] == ["turn_end aborted", "done"]
