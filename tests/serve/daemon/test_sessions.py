"""The sessions of the daemon: created, listed, read, changed, forked, evicted and loaded again."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from daemons import PATIENCE_S, Caller, Frame, Running, request, running
from zot.runtime.pool import NewSessionSettings, PoolLimits, SessionPool
from zot.version import __version__
from zot.wire.daemon import METHODS, READ_ONLY


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as service:
        yield service


@pytest.fixture
async def caller(daemon: Running) -> Caller:
    return await daemon.caller()


async def talk(caller: Caller, session_id: str, *prompts: str) -> None:
    await caller.get("session/new", agentAlias="default", sessionId=session_id)
    for prompt in prompts:
        await caller.get("session/prompt", sessionId=session_id, prompt=prompt)


async def test_every_message_count_is_that_of_the_conversation(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")

    async def counted() -> list[int]:
        opened = await caller.get("session/new", agentAlias="default", sessionId="s")
        state = await caller.get("session/state", sessionId="s")
        [listed] = (await caller.get("session/list"))["sessions"]
        page = await caller.get("session/messages", sessionId="s", limit=1)
        return [opened["messageCount"], state["messageCount"], listed["messageCount"], page["total"]]

    assert await counted() == [0] * 4
    await caller.get("session/prompt", sessionId="s", prompt="!bash echo hi")
    assert await counted() == [4] * 4
    await caller.get("session/clear", sessionId="s")
    assert await counted() == [0] * 4
    await caller.get("session/prompt", sessionId="s", prompt="!echo hi")
    assert await counted() == [2] * 4
    await caller.get("session/close", sessionId="s")
    assert await counted() == [2] * 4


async def test_sessions_are_listed_and_searched(caller: Caller, tmp_path: Path) -> None:
    await talk(caller, "a", "!echo apples")
    await talk(caller, "b", "!echo pears")
    await talk(caller, "c")
    listed = (await caller.get("session/list"))["sessions"]
    assert {one["sessionId"]: (one["messageCount"], one["state"], one["agentAlias"]) for one in listed} == {
        "a": (2, "idle", "default"),
        "b": (2, "idle", "default"),
        "c": (0, "idle", "default"),
    }
    assert [one["sessionId"] for one in (await caller.get("session/list", query="pears"))["sessions"]] == ["b"]
    assert len((await caller.get("session/list", limit=2))["sessions"]) == 2
    assert (await caller.get("session/list", agentAlias="other"))["sessions"] == []
    assert (await caller.get("session/list", cwd=str(tmp_path / "nowhere")))["sessions"] == []
    assert (await caller.get("session/list-acp")) == (await caller.get("session/list"))


async def test_messages_are_paged_backwards(caller: Caller) -> None:
    await talk(caller, "s", "!echo one", "!echo two", "!echo three")
    page = await caller.get("session/messages", sessionId="s", limit=2)
    assert (page["total"], page["start"]) == (6, 4)
    assert [(one["role"], one["content"]) for one in page["messages"]] == [
        ("user", "!echo three"),
        ("assistant", "three"),
    ]
    before = await caller.get("session/messages", sessionId="s", limit=3, beforeIndex=page["start"])
    assert [one["content"] for one in before["messages"]] == ["one", "!echo two", "two"]
    assert (await caller.get("session/messages", sessionId="s", limit=0))["messages"] == []
    assert (await caller.get("session/messages", sessionId="nobody"))["total"] == 0
    await caller.get("session/compact", sessionId="s")
    full = await caller.get("session/messages", sessionId="s", view="full")
    assert [one["content"] for one in full["messages"]][:2] == ["!echo one", "one"]


async def test_a_long_conversation_is_the_same_in_either_spelling(daemon: Running, caller: Caller) -> None:
    long = "\u00fc" * 200_000
    await talk(caller, "s", f"!echo {long}", "!call bash command=pwd", "!echo end")
    older = await daemon.caller(protocol_version=1)
    camel = await caller.get("session/messages", sessionId="s")
    snake = await older.get("session/messages", session_id="s")
    assert snake == {"session_id": camel.pop("sessionId"), **camel}
    assert [one["content"][-10:] for one in camel["messages"][:2]] == [long[-10:]] * 2


async def test_a_session_reports_its_state(caller: Caller, daemon: Running) -> None:
    await talk(caller, "s", "!echo hi")
    state = await caller.get("session/state", sessionId="s")
    assert (state["state"], state["messageCount"], state["queued"], state["provider"]) == ("idle", 2, 0, "lab")
    assert state["lastSeq"] == caller.updates()[-1]["seq"]
    asked = [caller.call("session/prompt", sessionId="s", prompt="!stall") for _ in range(3)]
    other = await daemon.caller()
    await caller.until(type="state", prompt="!stall")
    state = await other.get("session/state", sessionId="s")
    assert (state["state"], state["queued"]) == ("running", 2)
    for number in asked:
        caller.call("session/cancel", sessionId="s")
        assert (await caller.answer(number))["result"]["stopReason"] == "cancelled"


async def test_a_session_can_be_copied_and_the_copy_is_followed(caller: Caller) -> None:
    await talk(caller, "s", "!echo one", "!echo two")
    copy = await caller.get("session/fork", sessionId="s", newSessionId="t", messages=2)
    assert (copy["sessionId"], copy["messageCount"]) == ("t", 2)
    await caller.get("session/prompt", sessionId="t", prompt="!echo three")
    assert caller.updates("t")[-1]["content"] == "three"
    assert (await caller.get("session/messages", sessionId="s"))["total"] == 4
    assert (await caller.error("session/fork", sessionId="s", newSessionId="t"))[0] == -32602
    assert (await caller.get("session/fork", sessionId="s"))["messageCount"] == 4


async def test_a_session_can_be_renamed_switched_to_another_model_and_cleared(daemon: Running, caller: Caller) -> None:
    await talk(caller, "s", "!echo one")
    assert await caller.get("session/rename", sessionId="s", title="Fruit") == {"sessionId": "s", "title": "Fruit"}
    assert (await caller.get("session/list"))["sessions"][0]["title"] == "Fruit"
    configured = await caller.get("session/configure", sessionId="s", overrides={"reasoning": "high"})
    assert configured["overrides"]["reasoning"] == "high"
    await daemon.daemon.sessions.pool.let_go("s")
    again = await caller.get("session/configure", sessionId="s")
    assert again["overrides"]["reasoning"] == "high"
    assert (await caller.error("session/configure", sessionId="s", overrides={"model": "nobody"}))[0] == -32602
    assert (await caller.error("session/configure", sessionId="s", overrides={"modelProvider": "openai"}))[0] == -32602
    assert await caller.get("session/clear", sessionId="s") == {"sessionId": "s", "cleared": True}
    assert (await caller.get("session/messages", sessionId="s"))["total"] == 0


async def test_another_provider_is_used_between_two_turns_if_possible(
    daemon: Running, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk(caller, "s", "!echo one")
    wanted = {"modelProvider": "deepseek", "model": "deepseek-chat"}
    code, message = await caller.error("session/configure", sessionId="s", overrides=wanted)
    assert (code, "no key for deepseek" in message) == (-32602, True)
    assert (await caller.get("session/state", sessionId="s"))["provider"] == "lab"
    monkeypatch.setenv("DEEPSEEK_API_KEY", "sk-test")
    assert {one["provider"] for one in (await caller.get("session/models", sessionId="s"))["models"]} == {"lab"}
    known = (await caller.get("session/models", sessionId="s", all=True))["models"]
    assert {one["provider"] for one in known} == {"lab", "deepseek"}
    prompted = caller.call("session/prompt", sessionId="s", prompt="!slow 1000 0.02")
    await caller.until(type="agent_message_chunk")
    code, message = await caller.error("session/configure", sessionId="s", overrides=wanted)
    assert (code, message.endswith("; end it first with session/cancel")) == (-32002, True)
    await caller.get("session/cancel", sessionId="s")
    await caller.answer(prompted)
    answer = await caller.get("session/configure", sessionId="s", overrides=wanted)
    assert answer["overrides"] == {**wanted, "reasoning": "off"}
    await daemon.daemon.sessions.pool.let_go("s")
    state = await caller.get("session/state", sessionId="s")
    assert (state["provider"], state["model"], state["messageCount"]) == ("deepseek", "deepseek-chat", 4)
    assert (await caller.error("session/configure", sessionId="s", overrides={"modelProvider": "lab"}))[0] == -32602
    same = {"modelProvider": "deepseek"}
    assert (await caller.get("session/configure", sessionId="s", overrides=same))["overrides"]["model"] == state[
        "model"
    ]
    back = {"modelProvider": "lab", "model": "lab-1"}
    assert (await caller.get("session/configure", sessionId="s", overrides=back))["overrides"]["modelProvider"] == "lab"
    await talk(caller, "s", "!echo two")


async def test_changes_that_need_an_idle_session_are_refused_during_a_turn(caller: Caller) -> None:
    await talk(caller, "s")
    asked = caller.call("session/prompt", sessionId="s", prompt="!stall")
    await caller.until(type="state")
    code, message = await caller.error("session/clear", sessionId="s")
    assert (code, message.endswith("; end it first with session/cancel")) == (-32002, True)
    await caller.get("session/close", sessionId="s")
    assert (caller.heard[-2]["id"], caller.heard[-2]["result"]["stopReason"]) == (asked, "cancelled")


@pytest.mark.parametrize("method", ["session/close", "session/kill", "session/delete"])
async def test_ending_a_session_ends_its_turns_and_notifies_all(daemon: Running, caller: Caller, method: str) -> None:
    other = await daemon.caller()
    await talk(caller, "s")
    asked = [caller.call("session/prompt", sessionId="s", prompt="!stall") for _ in range(2)]
    await caller.until(type="state")
    await other.get("session/attach", sessionId="s")
    await other.get(method, sessionId="s")
    answers = [(await caller.answer(number))["result"]["stopReason"] for number in asked]
    assert answers == ["cancelled", "cancelled"]
    ends = [one["outcome"] for one in caller.updates() if one["type"] == "turn_complete"]
    assert ends == ["cancelled", "cancelled"]
    assert (await caller.get("status"))["sessionIds"] == []


@pytest.mark.parametrize("method", ["session/close", "session/kill", "session/delete"])
async def test_a_turn_that_waits_for_an_approval_ends_before_later_ones(tmp_path: Path, method: str) -> None:
    async with running(tmp_path, policy=("bash=ask",)) as daemon:
        caller, other = await daemon.caller(), await daemon.caller()
        await caller.get("session/new", agentAlias="default", sessionId="s")
        asked = [caller.call("session/prompt", sessionId="s", prompt=said) for said in ("!bash true", "!echo hi")]
        await caller.until(type="approval_request")
        await other.get(method, sessionId="s")
        for number in asked:
            await caller.answer(number)
    assert [frame["id"] for frame in caller.heard if frame.get("id") in asked] == asked
    told = [frame["params"]["type"] for frame in caller.heard if "method" in frame]
    assert told[told.index("tool_result") :] == ["tool_result", "turn_complete", "turn_complete"]


@pytest.mark.parametrize("method", ["session/close", "session/kill", "session/delete"])
async def test_a_turn_that_never_began_ends_before_later_ones(caller: Caller, method: str) -> None:
    await talk(caller, "s")
    before = len(caller.heard)
    prompts = [request("session/prompt", name, {"sessionId": "s", "prompt": "!stall"}) for name in ("one", "two")]
    caller.write(*prompts, request(method, "end", {"sessionId": "s"}))
    await caller.answer("end")
    for name in {"one", "two"} - {frame.get("id") for frame in caller.heard[before:]}:
        await caller.answer(name)
    heard = [frame.get("id") or frame["params"]["type"] for frame in caller.heard[before:]]
    ends = [one for one in heard if one in ("turn_complete", "one", "two")]
    assert ends == ["turn_complete", "one", "turn_complete", "two"]
    if "state" in heard:
        assert heard.index("state") < heard.index("turn_complete")


#: What uses or changes a session, with parameters that would do.
USES: dict[str, dict[str, Any]] = {
    "session/prompt": {"prompt": "!echo hi"}, "session/steer": {"prompt": "!echo hi"},
    "session/aside": {"question": "!echo hi"}, "session/take_back": {"promptId": "p"}, "session/cancel": {},
    "session/approve": {"requestId": "r", "decision": "reject"}, "session/detach": {}, "session/close": {},
    "session/answer": {"requestId": "r", "action": "decline"},
    "session/kill": {}, "session/fork": {}, "session/configure": {"overrides": {"reasoning": "low"}},
    "session/compact": {}, "session/clear": {}, "session/undo_compact": {}, "session/rewind": {"messages": 0},
    "session/rename": {"title": "t"}, "session/forget": {"tool": "bash"},
    "session/dismiss": {"name": "afar"}, "session/lock": {"locked": True}, "session/reload": {},
    "session/run_command": {"name": "x"}, "session/panel_key": {"panelId": "p", "key": "enter"},
    "session/panel_close": {"panelId": "p"},
}  # fmt: skip


def test_every_method_is_classified_as_using_or_reading_a_session() -> None:
    others = {"session/new", "session/attach", "session/delete"}
    of_sessions = {method.name for method in METHODS.values() if method.name.startswith("session/")}
    assert of_sessions - READ_ONLY - others == USES.keys()


@pytest.mark.parametrize("method", ["session/close", "session/kill"])
async def test_a_closed_session_can_be_read_and_not_used_until_it_is_resumed(
    daemon: Running, caller: Caller, method: str
) -> None:
    other = await daemon.caller()
    await talk(caller, "s", "!echo one")
    await caller.get(method, sessionId="s")
    for who in (caller, other):
        for using, more in USES.items():
            refused = await who.error(using, sessionId="s", **more)
            assert refused == (-32000, "session 's' is closed; session/new resumes it"), using
    assert (await caller.error("session/image", sessionId="s", callId="none"))[0] == -32602
    for reading in sorted(name for name in READ_ONLY - {"session/image"} if name.startswith("session/")):
        assert "result" in await caller.ask(reading, sessionId="s"), reading
        assert (await caller.get("status"))["sessionIds"] == [], reading
    state = await caller.get("session/state", sessionId="s")
    assert (state["messageCount"], state["state"], state["closed"]) == (2, "idle", True)
    assert [one["closed"] for one in (await caller.get("session/list"))["sessions"]] == [True]
    assert (await other.get("session/attach", sessionId="s"))["state"] == "idle"
    assert (await other.get("status"))["activeSessions"] == 0
    assert (await other.error("session/prompt", sessionId="s", prompt="!echo two"))[0] == -32000
    assert (await other.get("session/detach", sessionId="s"))["detached"] is True
    await talk(other, "s", "!echo two")
    assert (await caller.get("status"))["sessionIds"] == ["s"]
    assert (await caller.get("session/prompt", sessionId="s", prompt="!echo three"))["content"] == "three"
    assert (await caller.get("session/state", sessionId="s"))["closed"] is False
    assert [one["closed"] for one in (await caller.get("session/list"))["sessions"]] == [False]


async def test_a_closed_session_stays_closed_when_the_daemon_restarts_until_it_is_resumed(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        await talk(caller, "closed", "!echo one")
        await talk(caller, "open", "!echo one")
        await caller.get("session/close", sessionId="closed")
    for _ in range(2):  # Reading it does not resume it.
        async with running(tmp_path) as daemon:
            caller = await daemon.caller()
            for using, more in USES.items():
                assert (await caller.error(using, sessionId="closed", **more))[0] == -32000, using
            assert (await caller.get("session/state", sessionId="closed"))["closed"] is True
            assert (await caller.get("session/messages", sessionId="closed"))["total"] == 2
            assert (await caller.get("session/prompt", sessionId="open", prompt="!echo two"))["content"] == "two"
    async with running(tmp_path) as daemon:
        await talk(await daemon.caller(), "closed")
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        assert (await caller.get("session/prompt", sessionId="closed", prompt="!echo two"))["content"] == "two"
        assert (await caller.get("session/state", sessionId="closed"))["closed"] is False


async def test_a_closed_session_can_be_deleted_and_made_anew(caller: Caller) -> None:
    await talk(caller, "s", "!echo one")
    await caller.get("session/close", sessionId="s")
    await caller.get("session/delete", sessionId="s")
    assert (await caller.error("session/prompt", sessionId="s", prompt="!echo hi"))[0] == -32000
    await talk(caller, "s", "!echo two")
    assert (await caller.get("session/state", sessionId="s"))["messageCount"] == 2


async def test_a_failed_close_leaves_the_session_open(caller: Caller) -> None:
    assert (await caller.error("session/close", sessionId="s"))[0] == -32000
    await talk(caller, "other")
    await caller.get("session/fork", sessionId="other", newSessionId="s")
    assert (await caller.get("session/prompt", sessionId="s", prompt="!echo hi"))["content"] == "hi"


async def test_unknown_sessions_are_not_found(caller: Caller) -> None:
    lenient = {"session/messages", "session/delete", "session/detach"}
    for method, more in {
        "session/prompt": {"prompt": "hi"}, "session/steer": {"prompt": "hi"}, "session/cancel": {},
        "session/take_back": {"promptId": "p"},
        "session/approve": {"requestId": "r", "decision": "reject"}, "session/attach": {}, "session/close": {},
        "session/kill": {}, "session/state": {}, "session/fork": {}, "session/configure": {}, "session/compact": {},
        "session/clear": {}, "session/rename": {"title": "t"}, "session/commands": {},
        "session/run_command": {"name": "x"}, "session/panel_key": {"panelId": "p", "key": "enter"},
        "session/panel_close": {"panelId": "p"}, "session/git_branch": {}, "session/models": {}, "session/allowed": {},
        "session/forget": {"tool": "bash"}, "session/dismiss": {"name": "afar"},
    }.items():  # fmt: skip
        assert (await caller.error(method, sessionId="nobody", **more))[0] == -32000, method
    for method in lenient:
        await caller.get(method, sessionId="nobody")
    assert (await caller.get("session/list"))["sessions"] == []


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 300, "host:1"])
async def test_a_session_needs_a_valid_name(caller: Caller, name: str) -> None:
    answer = await caller.ask("session/new", agentAlias="default", sessionId=name)
    assert answer.get("error", {}).get("code", -32602) == -32602


async def test_the_name_of_a_new_session_has_a_limit(daemon: Running, caller: Caller) -> None:
    fits, long = "x" * 1024, "x" * 1025
    limit = (-32602, "the id of a new session may have 1024 characters, not 1025")
    assert await caller.error("session/new", agentAlias="default", sessionId=long) == limit
    assert (await caller.get("session/new", agentAlias="default", sessionId=fits))["sessionId"] == fits
    assert await caller.error("session/fork", sessionId=fits, newSessionId=long) == limit
    async with daemon.daemon.sessions.pool.use(long, NewSessionSettings()):  # As a host may have called it.
        pass
    assert (await caller.get("session/new", agentAlias="default", sessionId=long))["sessionId"] == long


async def test_an_unknown_agent_and_an_agent_of_another_session_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[agents.tester]\nprovider = "lab"\n')
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        assert (await caller.error("session/new", agentAlias="nobody"))[0] == -32602
        opened = await caller.get("session/new", agentAlias="tester", sessionId="s")
        assert opened["agentAlias"] == "tester"
        assert (await caller.error("session/new", agentAlias="default", sessionId="s"))[0] == -32602
        await daemon.daemon.sessions.pool.let_go("s")
        assert (await caller.error("session/new", agentAlias="default", sessionId="s"))[0] == -32602
        assert (await caller.get("session/new", agentAlias="tester", sessionId="s"))["agentAlias"] == "tester"
        agents = (await caller.get("agents/list"))["agents"]
        assert [(one["alias"], one["liveSessions"], one["persistedSessions"]) for one in agents] == [
            ("default", 0, 0),
            ("tester", 1, 1),
        ]


async def test_concurrent_creations_of_one_session_get_the_same_one(daemon: Running) -> None:
    callers = [await daemon.caller() for _ in range(10)]
    for caller in callers:
        caller.call("session/new", agentAlias="default", sessionId="s")
    opened = [(await caller.answer(2))["result"] for caller in callers]
    assert all(one == opened[0] for one in opened)
    assert len((await callers[0].get("session/list"))["sessions"]) == 1


async def test_idle_sessions_are_unloaded_and_keep_their_subscribers(daemon: Running) -> None:
    pool: SessionPool = daemon.daemon.sessions.pool
    pool.limits = PoolLimits(resting=2)
    caller = await daemon.caller()
    for number in range(6):
        await talk(caller, f"s{number}", "!echo hi")
    assert len(pool.ids) <= 3
    for number in range(6):
        await caller.get("session/prompt", sessionId=f"s{number}", prompt="!echo again")
        ends = [one["content"] for one in caller.updates(f"s{number}") if one["type"] == "turn_complete"]
        assert ends == ["hi", "again"]


async def test_unused_sessions_are_unloaded_and_running_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zot.runtime.pool._LOOK_S", 0.01)
    (tmp_path / "config.toml").write_text("[daemon]\nidle_s = 0.02\n")
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        await talk(caller, "rests", "!echo before")
        await caller.get("session/new", agentAlias="default", sessionId="runs")
        runs = caller.call("session/prompt", sessionId="runs", prompt="!stall")
        await caller.until(sessionId="runs", type="state")
        async with asyncio.timeout(PATIENCE_S):
            while daemon.daemon.sessions.pool.ids != ("runs",):
                await asyncio.sleep(0.01)
        other = await daemon.caller()
        await other.get("session/prompt", sessionId="rests", prompt="!echo after")
        await caller.until(sessionId="rests", type="turn_complete", content="after")
        await caller.get("session/cancel", sessionId="runs")
        assert (await caller.answer(runs))["result"]["stopReason"] == "cancelled"


async def test_the_session_limit_counts_active_sessions_only(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[daemon]\nmax_sessions = 2\n")
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        for name in "ab":
            await talk(caller, name)
            caller.call("session/prompt", sessionId=name, prompt="!stall")
            await caller.until(type="state")
        assert (await caller.error("session/new", agentAlias="default", sessionId="c"))[0] == -32001
        forked = await caller.get("session/fork", sessionId="a", newSessionId="copy")
        assert forked["sessionId"] == "copy"
        await caller.get("session/cancel", sessionId="a")
        await caller.until(type="turn_complete", sessionId="a")
        await caller.get("session/new", agentAlias="default", sessionId="c")
        assert "b" in (await caller.get("status"))["sessionIds"]


async def test_the_session_limit_loses_no_concurrent_client(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[daemon]\nmax_sessions = 1\n")
    async with running(tmp_path) as daemon:
        callers = [await daemon.caller() for _ in range(5)]
        answers = await asyncio.gather(
            *(one.ask("session/new", agentAlias="default", sessionId=f"s{n}") for n, one in enumerate(callers))
        )
        assert {one["error"]["code"] for one in answers if "error" in one} <= {-32001}
        assert any("result" in one for one in answers)


async def test_the_directory_of_a_session(caller: Caller, tmp_path: Path) -> None:
    (tmp_path / "work" / ".git" / "refs" / "heads").mkdir(parents=True)
    (tmp_path / "work" / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "work" / ".git" / "refs" / "heads" / "main").write_text("0123456789abcdef" * 2 + "01234567\n")
    opened = await caller.get("session/new", agentAlias="default", sessionId="s", cwd=str(tmp_path / "work"))
    assert opened["workspaceDir"] == str(tmp_path / "work")
    branch = await caller.get("session/git_branch", sessionId="s")
    assert branch == {"sessionId": "s", "branch": "main", "hash": "0123456"}
    assert (await caller.error("session/new", agentAlias="default", cwd="work"))[0] == -32602


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_an_existing_session_stays_in_its_directory_until_it_is_gone(
    daemon: Running, caller: Caller, tmp_path: Path, is_loaded: bool
) -> None:
    asked, [here, there] = {"agentAlias": "default", "sessionId": "s"}, [tmp_path / "here", tmp_path / "there"]
    for place in (here, there):
        place.mkdir()
    await caller.get("session/new", **asked, cwd=str(here))

    async def again(**more: str) -> Frame:
        if not is_loaded:
            await daemon.daemon.sessions.pool.let_go("s")
        return await caller.ask("session/new", **asked, **more)

    assert (await again(cwd=str(there)))["result"]["workspaceDir"] == str(here)
    assert (await again(cwd=str(tmp_path / "none")))["error"]["code"] == -32602
    here.rmdir()
    assert (await again(cwd=str(there)))["result"]["workspaceDir"] == str(there)
    await caller.get("session/prompt", sessionId="s", prompt="!bash pwd")
    [result] = [one["rawOutput"] for one in caller.updates("s") if one["type"] == "tool_result"]
    assert f"\n{there}\n" in result
    assert (await again())["result"]["workspaceDir"] == str(there)


async def test_a_session_whose_directory_is_gone_suggests_a_remedy(
    daemon: Running, caller: Caller, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    await caller.get("session/new", agentAlias="default", sessionId="s", cwd=str(tmp_path / "gone"))
    await caller.get("session/close", sessionId="s")
    (tmp_path / "gone").rmdir()
    code, told = await caller.error("session/new", agentAlias="default", sessionId="s")
    assert (code, told) == (
        -32602,
        f"{tmp_path}/gone, where this session works, is gone; session/new with its id and a cwd, or"
        " zot attach SESSION --cwd DIR, names another place",
    )


async def test_attachments_are_for_the_model_to_read(caller: Caller, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("buy milk")
    await talk(caller, "s")
    await caller.get(
        "session/prompt", sessionId="s", prompt="!echo seen",
        attachments=[{"path": str(tmp_path / "note.txt")}, {"dataB64": "aGVsbG8=", "filename": "hello.txt"}],
    )  # fmt: skip
    [asked, _] = (await caller.get("session/messages", sessionId="s"))["messages"]
    assert asked["content"] == (
        "!echo seen\n\n[Document: note.txt]\nbuy milk\n[End of note.txt]\n\n"
        "[Document: hello.txt]\nhello\n[End of hello.txt]"
    )
    missing = [{"path": str(tmp_path / "none.txt")}]
    assert (await caller.error("session/prompt", sessionId="s", prompt="x", attachments=missing))[0] == -32602


async def test_a_running_turn_keeps_its_settings_when_the_configuration_is_reloaded(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[agents.one]\nprovider = "lab"\npolicy = ["bash=allow"]\n')
    prompt = '!script wait 30ms ;; call bash {"command":"echo ran"}'
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        await caller.get("session/new", agentAlias="one", sessionId="s")
        number = caller.call("session/prompt", sessionId="s", prompt=prompt)
        await caller.until(type="state")
        (tmp_path / "config.toml").write_text('[agents.one]\nprovider = "lab"\npolicy = ["*=deny"]\n')
        await caller.get("config/reload")
        await caller.answer(number)
        await caller.get("session/close", sessionId="s")
        await caller.get("session/new", agentAlias="one", sessionId="s")
        await caller.ask("session/prompt", sessionId="s", prompt=prompt)
        assert [one["isError"] for one in caller.updates("s") if one["type"] == "tool_result"] == [False, True]


async def test_a_reloaded_policy_holds_in_loaded_idle_sessions(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[agents.one]\nprovider = "lab"\npolicy = ["bash=allow"]\n')
    async with running(tmp_path) as daemon:
        caller, other = await daemon.caller(), await daemon.caller()
        for name in ("rests", "runs", "leaves"):
            await caller.get("session/new", agentAlias="one", sessionId=name)
            await other.get("session/attach", sessionId=name)
        left = "(sleep 60 >/dev/null 2>&1 &) ; echo left"
        await caller.get("session/prompt", sessionId="leaves", prompt=f"!bash {left}")
        running_turn = caller.call("session/prompt", sessionId="runs", prompt="!stall")
        await caller.until(sessionId="runs", type="state")
        (tmp_path / "config.toml").write_text('[agents.one]\nprovider = "lab"\npolicy = ["*=deny"]\n')
        await caller.get("config/reload")
        assert set((await caller.get("status"))["sessionIds"]) == {"runs", "leaves"}
        await caller.get("session/cancel", sessionId="runs")
        await caller.answer(running_turn)
        for name in ("rests", "runs", "leaves"):
            await caller.get("session/prompt", sessionId=name, prompt="!bash echo hi")
        heard = [(one["sessionId"], one["isError"]) for one in caller.updates() if one["type"] == "tool_result"]
        assert heard == [("leaves", False), ("rests", True), ("runs", True), ("leaves", False)]
        await caller.get("session/close", sessionId="leaves")
        await caller.get("session/new", agentAlias="one", sessionId="leaves")
        await caller.get("session/prompt", sessionId="leaves", prompt="!bash echo hi")
        await other.until(sessionId="leaves", type="tool_result", isError=True)
        assert [one for one in other.updates() if one["type"] == "tool_result"] == [
            one for one in caller.updates() if one["type"] == "tool_result"
        ], "who follows a session still does"


async def test_reloaded_settings_apply_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        for name in ("one", "two"):
            await caller.get("session/new", agentAlias="default", sessionId=name)
            caller.call("session/prompt", sessionId=name, prompt="!stall")
            await caller.until(sessionId=name, type="state")
        (tmp_path / "config.toml").write_text('[daemon]\nmax_sessions = 2\nserver_version = "7.7"\ngrace_s = 0\n')
        await caller.get("config/reload")
        assert (await caller.error("session/new", agentAlias="default", sessionId="three"))[0] == -32001
        assert (await caller.get("status"))["serverVersion"] == "7.7"
        assert daemon.daemon.grace_s == 0
        (tmp_path / "config.toml").write_text("")
        await caller.get("config/reload")
        await caller.get("session/new", agentAlias="default", sessionId="three")
        assert (await caller.get("status"))["serverVersion"] == __version__


async def test_the_memory_of_a_closed_session_is_reclaimed_without_waiting_for_the_collector(
    daemon: Running, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zot.runtime.pool._RECLAIM_S", 0.01)
    monkeypatch.setattr(daemon.daemon.sessions.pool, "_own_process", True)  # As that of `zot daemon` has.
    await talk(caller, "s", "!echo hi")
    loaded = daemon.daemon.sessions.pool.session("s")
    assert loaded is not None
    session = weakref.ref(loaded)
    del loaded
    gc.disable()
    try:
        await daemon.daemon.sessions.pool.let_go("s")
        async with asyncio.timeout(PATIENCE_S):
            while session() is not None:
                await asyncio.sleep(0.01)
    finally:
        gc.enable()


async def test_an_unloaded_session_leaves_memory_although_a_client_follows_it(daemon: Running) -> None:
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s")
    session = daemon.daemon.sessions.pool.session("s")
    assert session is not None
    history = weakref.ref(session.history)
    del session
    await daemon.daemon.sessions.pool.let_go("s")
    gc.collect()
    assert history() is None
