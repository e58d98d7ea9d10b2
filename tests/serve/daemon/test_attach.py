"""Coming back to a session of the daemon: from any number, in any dialect, also in the middle of a turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from daemons import Caller, Frame, Running, order, request, running
from zot.session.transcripts import RewindTarget

CAMEL: Frame = {"protocolVersion": 1}
SNAKE: Frame = {"protocol_version": 1}
EVENTS: Frame = {"features": ["events"]}
DIALECTS = [CAMEL, SNAKE, EVENTS]
#: What has everything in it: thinking, calls, a failure, a cancelled turn.
PROMPTS = ("!think", "!bash echo hi", "!tools", "!status 400", "!length")


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as service:
        yield service


async def followers(daemon: Running, session_id: str, **asked: Any) -> list[Caller]:
    """Return one client of each dialect that follows a session."""
    callers = [await daemon.caller(**dialect) for dialect in DIALECTS]
    for caller in callers:
        await caller.get("session/attach", sessionId=session_id, **asked)
    return callers


async def lived(daemon: Running) -> list[list[Frame]]:
    """Give a session a past; return the events that each dialect received."""
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    callers = await followers(daemon, "s")
    for prompt in PROMPTS:
        await caller.ask("session/prompt", sessionId="s", prompt=prompt)
    asked = caller.call("session/prompt", sessionId="s", prompt='!script say "half" ;; stall')
    await caller.until(type="agent_message_chunk", text="half")
    await caller.get("session/cancel", sessionId="s")
    await caller.answer(asked)
    last = (await daemon.events("s"))[-1][0]
    for one in callers:
        await one.until(seq=last)
    return [one.updates() for one in callers]


async def test_a_client_can_resume_from_every_sequence_number(daemon: Running) -> None:
    heard = await lived(daemon)
    events = await daemon.events("s")
    assert [(one["seq"], one["event"]) for one in heard[2]] == events
    callers = [await daemon.caller(**dialect) for dialect in DIALECTS]
    for after in range(events[-1][0]):
        for caller, whole in zip(callers, heard, strict=True):
            caller.heard.clear()
            answer = await caller.get("session/attach", sessionId="s", after=after)
            assert events[-1][0] in (answer.get("lastSeq"), answer.get("last_seq"))
            await caller.until(seq=events[-1][0])
            assert caller.updates() == [one for one in whole if one["seq"] > after]


async def test_an_unloaded_session_is_replayed(daemon: Running) -> None:
    heard = await lived(daemon)
    await daemon.daemon.sessions.pool.let_go("s")
    again = await followers(daemon, "s", after=0)
    for caller, whole in zip(again, heard, strict=True):
        await caller.until(seq=whole[-1]["seq"])
        assert caller.updates() == whole
    await again[0].get("session/prompt", sessionId="s", prompt="!echo more")
    for caller in again[1:]:
        await caller.until(seq=again[0].updates()[-1]["seq"])
    assert again[0].updates()[-1]["content"] == again[1].updates()[-1]["content"] == "more"


async def test_a_client_that_attaches_at_any_moment_gets_each_update_once(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    whole = [await daemon.caller(**dialect) for dialect in DIALECTS]
    for one in whole:
        await one.get("session/attach", sessionId="s", after=0)
    late: list[tuple[int, int, Caller]] = []
    asked = caller.call(
        "session/prompt", sessionId="s", prompt="!script pace 2ms ;; say a b c ;; call bash {} ;; --- ;; say d e f"
    )
    while "id" not in (frame := await caller.read()):
        for number, dialect in enumerate(DIALECTS):
            late.append((frame["params"]["seq"], number, comer := await daemon.caller(**dialect)))
            comer.call("session/attach", sessionId="s", after=frame["params"]["seq"])
    assert frame["id"] == asked
    last = caller.updates()[-1]["seq"]
    for one in whole:
        await one.until(seq=last)
    for after, number, comer in late[: -len(DIALECTS)]:
        await comer.until(seq=last)
        assert comer.updates() == [one for one in whole[number].updates() if one["seq"] > after]


async def test_the_answer_follows_the_end_of_the_turn_even_for_a_replaying_client(daemon: Running) -> None:
    first = await daemon.caller()
    await first.get("session/new", agentAlias="default", sessionId="s")
    await first.get("session/prompt", sessionId="s", prompt="!flood 3000")
    caller = await daemon.caller()
    caller.write(
        request("session/attach", "at", {"sessionId": "s", "after": 0}),
        *(request("session/prompt", name, {"sessionId": "s", "prompt": f"!echo {name}"}) for name in "abc"),
    )
    await caller.answer("c")
    heard = [one for one in order(caller.heard) if one not in ("agent_message_chunk", "state", "usage")]
    assert heard == [1, "at", "turn_complete", "turn_complete", "a", "turn_complete", "b", "turn_complete", "c"]
    numbers = [one["seq"] for one in caller.updates()]
    assert numbers == sorted(set(numbers))


async def test_a_client_that_reattaches_during_its_turn_is_answered_after_its_end(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    asked = caller.call("session/prompt", sessionId="s", prompt="!slow 20 0.01")
    await caller.until(type="agent_message_chunk")
    caller.call("session/attach", sessionId="s", after=0)
    caller.call("session/attach", sessionId="s", after=2)
    await caller.answer(asked)
    assert order(caller.heard)[-2:] == ["turn_complete", asked]
    assert caller.heard[-2]["params"]["content"] == caller.heard[-1]["result"]["content"]


async def test_without_a_cursor_only_live_updates_are_sent(daemon: Running) -> None:
    first, second = await daemon.caller(), await daemon.caller()
    await first.get("session/new", agentAlias="default", sessionId="s")
    await first.get("session/prompt", sessionId="s", prompt="!echo before")
    attached = await second.get("session/attach", sessionId="s")
    assert (attached["state"], attached["lastSeq"]) == ("idle", first.updates()[-1]["seq"])
    await first.get("session/prompt", sessionId="s", prompt="!echo after")
    assert (await second.until(type="turn_complete"))["content"] == "after"
    assert second.updates()[0]["prompt"] == "!echo after"


async def test_a_cursor_beyond_the_end_is_the_end(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    await caller.get("session/attach", sessionId="s", after=10**9)
    await caller.get("session/prompt", sessionId="s", prompt="!echo hello")
    assert caller.updates()[-1]["type"] == "turn_complete"


async def test_rows_of_another_process_are_sent_before_the_next_turn(daemon: Running, tmp_path: Path) -> None:
    caller, other = await daemon.caller(), await daemon.caller(**EVENTS)
    await caller.get("session/new", agentAlias="default", sessionId="s")
    await other.get("session/attach", sessionId="s", after=0)
    await caller.get("session/prompt", sessionId="s", prompt="!echo one")
    async with running_beside(tmp_path) as beside:
        stranger = await beside.caller()
        await stranger.get("session/prompt", sessionId="s", prompt="!echo two")
    await caller.get("session/prompt", sessionId="s", prompt="!echo three")
    ends = [one["content"] for one in caller.updates() if one["type"] == "turn_complete"]
    assert ends == ["one", "two", "three"]
    events = await daemon.events("s")
    await other.until(seq=events[-1][0])
    assert [(one["seq"], one["event"]) for one in other.updates()] == events
    messages = await caller.get("session/messages", sessionId="s")
    assert [one["content"] for one in messages["messages"]][1::2] == ["one", "two", "three"]


def running_beside(home: Path) -> Any:
    """Return another daemon, which keeps its sessions in the same journal."""
    (home / "beside").mkdir()
    return running(home / "beside", journal_at=home)


async def test_a_deleted_session_can_be_recreated_and_is_sent_from_its_beginning(daemon: Running) -> None:
    first, second = await daemon.caller(), await daemon.caller()
    before = await first.get("session/new", agentAlias="default", sessionId="s")
    await second.get("session/attach", sessionId="s")
    await first.get("session/prompt", sessionId="s", prompt="!say 5 before")
    assert await first.get("session/delete", sessionId="s") == {"sessionId": "s", "deleted": True}
    assert (await second.error("session/attach", sessionId="s"))[0] == -32000
    opened = await first.get("session/new", agentAlias="default", sessionId="s")
    assert (opened["messageCount"], opened["lastSeq"] < 3) == (0, True)
    assert opened["epoch"] != before["epoch"]
    second.heard.clear()
    first.heard.clear()
    await first.get("session/prompt", sessionId="s", prompt="!echo after")
    await second.until(type="turn_complete")
    assert second.updates() == first.updates()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_client_replaying_a_deleted_session_gets_the_next_one_from_its_beginning(
    daemon: Running, dialect: Frame
) -> None:
    first, late = await daemon.caller(), await daemon.stranger(limit=1 << 14)
    await first.get("session/new", agentAlias="default", sessionId="s")
    await first.get("session/prompt", sessionId="s", prompt="!say 9000 " + 9000 * "x")
    await late.get("initialize", **dialect)
    await late.get("session/attach", sessionId="s", after=0)
    await late.until(seq=100)
    await first.get("session/delete", sessionId="s")
    await first.get("session/new", agentAlias="default", sessionId="s")
    await first.get("session/prompt", sessionId="s", prompt="!echo after")
    numbers = [seq for seq, _ in await daemon.events("s")]
    while (heard := [(await late.read())["params"]])[0].get("seq", 0) > 100:
        pass  # Updates that were on their way to it.
    assert len(late.heard) < 9000
    while heard[-1].get("seq") != numbers[-1]:
        heard.append((await late.read())["params"])
    if dialect == EVENTS:
        assert heard.pop(0) == {"sessionId": "s", "type": "restarted"}
        assert [one["seq"] for one in heard] == numbers
    assert (heard[0]["seq"], heard[-1]["type"] in ("turn_complete", "event")) == (numbers[0], True)


async def test_many_reconnecting_clients_lose_nothing(daemon: Running) -> None:
    """Each client disconnects after every update, and resumes at its cursor."""
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")

    async def come_and_go(dialect: Frame) -> list[Frame]:
        heard: list[Frame] = []
        while not heard or "end" not in (heard[-1].get("content"), heard[-1].get("event", {}).get("type")):
            async with await daemon.caller(**dialect) as client:
                client.call("session/attach", sessionId="s", after=heard[-1]["seq"] if heard else 0)
                while not client.updates():
                    await client.read()
                heard += client.updates()
                if heard[-1].get("event", {}).get("type") == "done":
                    return heard
        return heard

    going = [asyncio.create_task(come_and_go(dialect)) for dialect in DIALECTS]
    await caller.get(
        "session/prompt",
        sessionId="s",
        prompt="!script pace 1ms ;; split 12 abcdefghijkl ;; call bash {} ;; --- ;; say end",
    )
    heard = await asyncio.wait_for(asyncio.gather(*going), 20)
    assert heard[0] == caller.updates("s")
    assert [(one["seq"], one["event"]) for one in heard[2]] == await daemon.events("s")
    assert [one["type"] for one in heard[1]] == [one["type"] for one in heard[0]]


async def test_a_clear_is_sent_in_place_live_and_on_replay(daemon: Running) -> None:
    caller, live = await daemon.caller(), await daemon.caller(**EVENTS)
    await caller.get("session/new", agentAlias="default", sessionId="s")
    await live.get("session/attach", sessionId="s")
    await caller.get("session/prompt", sessionId="s", prompt="!echo before")
    await caller.get("session/clear", sessionId="s")
    await caller.get("session/prompt", sessionId="s", prompt="!echo behind")
    last = (await daemon.events("s"))[-1][0]
    await live.until(seq=last)
    heard = live.updates()
    told = [one["event"]["type"] for one in heard]
    at = told.index("conversation_replaced")
    assert (told[at - 1], heard[at]["event"], told[at + 1]) == (
        "done",
        {"type": "conversation_replaced", "messages": 0},
        "user_message",
    )
    assert "conversation_replaced" not in str(caller.updates())
    for after in (0, heard[at]["seq"] - 1, heard[at]["seq"]):
        later = await daemon.caller(**EVENTS)
        await later.get("session/attach", sessionId="s", after=after)
        await later.until(seq=last)
        assert later.updates() == [one for one in heard if one["seq"] > after]


async def test_a_replaced_conversation_is_sent_live_and_on_replay(daemon: Running) -> None:
    caller, live = await daemon.caller(), await daemon.caller(**EVENTS)
    await caller.get("session/new", agentAlias="default", sessionId="s")
    await live.get("session/attach", sessionId="s")
    for prompt in ("!echo one", "!write a.txt two", "!echo three"):
        await caller.get("session/prompt", sessionId="s", prompt=prompt)
    session = daemon.daemon.sessions.pool.session("s")
    assert session is not None
    messages = list(session.history.transcript.messages)
    assert len((await session.rewind(RewindTarget(messages=2))).files) == 1
    await caller.get("session/prompt", sessionId="s", prompt="!echo four")
    session.replace_messages(messages[:3])
    await session.worker.finish()
    await caller.get("session/prompt", sessionId="s", prompt="!echo behind")
    last = (await daemon.events("s"))[-1][0]
    await live.until(seq=last)
    heard = live.updates()
    told = [one for one in heard if one["event"]["type"] == "conversation_replaced"]
    assert [one["event"]["messages"] for one in told] == [2, 3]
    for after in (0, *(one["seq"] - back for one in told for back in (1, 0))):
        later = await daemon.caller(**EVENTS)
        await later.get("session/attach", sessionId="s", after=after)
        await later.until(seq=last)
        assert later.updates() == [one for one in heard if one["seq"] > after]


async def test_a_rollback_or_compaction_in_a_turn_replaces_no_conversation(daemon: Running) -> None:
    caller = await daemon.caller()
    too_long = {"request_id": "r", "session_id": "chat", "prompt": "!status 413"}
    assert not (await caller.get("host/respond", **too_long))["response"]["ok"]
    await caller.get("session/new", agentAlias="default", sessionId="s")
    for number in range(4):
        await caller.get("session/prompt", sessionId="s", prompt=f"!echo {number}")
    await caller.get("session/compact", sessionId="s")
    for session_id in ("host:chat", "s"):
        later = await daemon.caller(**EVENTS)
        await later.get("session/attach", sessionId=session_id, after=0)
        events = await daemon.events(session_id)
        await later.until(seq=events[-1][0])
        assert [(one["seq"], one["event"]) for one in later.updates()] == events


async def test_history_ends_before_the_running_turn_and_updates_carry_the_rest(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    await caller.get("session/prompt", sessionId="s", prompt="!echo before")
    asked = caller.call("session/prompt", sessionId="s", prompt='!script say "half" ;; stall')
    await caller.until(type="agent_message_chunk", text="half")
    past = await caller.get("session/messages", sessionId="s", view="past")
    assert [one["content"] for one in past["messages"]] == ["!echo before", "before"]
    late = await daemon.caller(**EVENTS)
    await late.get("session/attach", sessionId="s", after=past["lastSeq"])
    await late.until(event={"type": "text_delta", "delta": "half"})
    assert [one["event"]["type"] for one in late.updates()] == [
        "user_message",
        "turn_start",
        "assistant_start",
        "text_delta",
    ]
    await caller.get("session/cancel", sessionId="s")
    await caller.answer(asked)
    past = await caller.get("session/messages", sessionId="s", view="past")
    assert [one["content"] for one in past["messages"]] == [
        "!echo before",
        "before",
        '!script say "half" ;; stall',
        "half",
    ]
    assert past["lastSeq"] == (await daemon.events("s"))[-1][0]
    assert "lastSeq" not in await caller.get("session/messages", sessionId="s")


async def test_history_marks_turns_that_failed(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    asked = caller.call("session/prompt", sessionId="s", prompt='!script say "half" ;; stall')
    await caller.until(type="agent_message_chunk", text="half")
    await caller.get("session/cancel", sessionId="s")
    await caller.answer(asked)
    await caller.error("session/prompt", sessionId="s", prompt="!status 401")
    for prompt in ("!length", "!echo all of it"):
        await caller.get("session/prompt", sessionId="s", prompt=prompt)
    past = await caller.get("session/messages", sessionId="s", view="past")
    ends = [(one["content"], one.get("stopReason"), "error" in one) for one in past["messages"]]
    assert ends == [
        ('!script say "half" ;; stall', None, False),
        ("half", "cancelled", False),
        ("!status 401", "error", True),
        ("!length", None, False),
        ("This goes on and", "length", False),
        ("!echo all of it", None, False),
        ("all of it", None, False),
    ]
    shown = await caller.get("session/messages", sessionId="s")
    assert not any("stopReason" in one for one in shown["messages"])


async def test_a_client_ahead_of_the_journal_is_notified_at_once(tmp_path: Path) -> None:
    journal, kept = tmp_path / "journal.db", tmp_path / "kept.db"
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        await caller.get("session/new", agentAlias="default", sessionId="s")
        await caller.get("session/prompt", sessionId="s", prompt="!echo one")
    kept.write_bytes(journal.read_bytes())
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        await caller.get("session/prompt", sessionId="s", prompt="!say 20 " + 20 * "x")
        before = await caller.get("session/attach", sessionId="s")
    journal.write_bytes(kept.read_bytes())
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        attached = await caller.get("session/attach", sessionId="s", after=before["lastSeq"])
        assert (attached["lastSeq"] < before["lastSeq"], attached["epoch"] > before["epoch"]) == (True, True)
        await caller.get("session/prompt", sessionId="s", prompt="!echo again")
        assert (await caller.get("session/attach", sessionId="s"))["epoch"] == attached["epoch"]


async def test_a_second_initialize_changes_the_spelling_from_then_on(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    prompted = caller.call("session/prompt", sessionId="s", prompt="!stall-mid")
    await caller.until(type="agent_message_chunk")
    await caller.get("initialize", **SNAKE)
    before = len(caller.heard)
    await caller.get("session/cancel", session_id="s")
    assert (await caller.answer(prompted))["result"]["stop_reason"] == "cancelled"
    later = [one["params"] for one in caller.heard[before:] if "params" in one]
    assert [one["session_id"] for one in later] == ["s"] * len(later) != []
    numbers = [one["seq"] for one in caller.updates()]
    assert numbers == sorted(set(numbers))
    assert [one["type"] for one in caller.updates()].count("turn_complete") == 1
