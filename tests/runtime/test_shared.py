"""Many sessions in one process share resources, and none of them ends those for the others."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from fakes import PATIENCE_S, listen, talk
from harness import eventually, living
from zot.config.config import Config, ConfigOverrides
from zot.errors import AuthFailed, ConnectionFailed
from zot.events import AgentEvent, TextDelta, ToolResult, text
from zot.messages import TextBlock
from zot.providers.base import Deadlines, HttpRequest
from zot.runtime.open import OpenRequest, open_session
from zot.runtime.shared import SharedResources
from zot.session.recovery import WaitingRuns
from zot.session.session import Session
from zot.store import SettingsChanged
from zot.tools.process import Program

PATH = {"PATH": os.environ["PATH"]}


class House:
    """A directory with a journal, and the sessions in it."""

    def __init__(self, top: Path) -> None:
        self.resources = SharedResources(serves_many=True)
        self.directory = top
        self.env = {**PATH, "ZOT_HOME": str(top / "home")}
        self.resumed: list[SettingsChanged] = []
        self._open: list[Session] = []

    def config(self, session: str, **settings: object) -> Config:
        always = {"provider": "lab", "cwd": str(self.directory), "env": self.env, "frozen_time": "2026-01-31T12:00:00Z"}
        return Config(**{**always, "session": session, **settings})  # type: ignore[arg-type]  # Each setting has a type of its own.

    async def open(self, session: str = "s", *, agent: str = "", guarded: bool = False, **settings: object) -> Session:
        request = OpenRequest(
            config=self.config(session, **settings), agent=agent, guarded=guarded, unfinished=WaitingRuns.RESUME
        )

        def adapt(recorded: SettingsChanged) -> OpenRequest:
            self.resumed.append(recorded)
            return request

        opened = await open_session(msgspec.structs.replace(request, adapt=adapt), self.resources)
        self._open.append(opened)
        return opened

    async def close(self) -> None:
        for session in self._open:
            await session.close()
        await self.resources.close()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House(tmp_path)
    yield house
    await house.close()


def said(events: list[AgentEvent]) -> str:
    return text(event for event in events if isinstance(event, TextDelta))


def results(events: list[AgentEvent]) -> list[str]:
    blocks = [block for event in events if isinstance(event, ToolResult) for block in event.content]
    return [block.text for block in blocks if isinstance(block, TextBlock)]


# Processes.


async def test_closing_a_session_ends_its_own_commands_only(house: House) -> None:
    first, second = await house.open("a"), await house.open("b")
    ours, theirs = os.urandom(8).hex(), os.urandom(8).hex()
    await talk(first, f"!bash MARK={ours} sleep 60 >/dev/null &")
    await talk(second, f"!bash MARK={theirs} sleep 60 >/dev/null &")
    await first.close()
    assert living(ours) == []
    assert len(living(theirs)) == 1
    assert results(await talk(second, "!bash echo still here")) == [
        "$ echo still here\n\nstill here\n\n[exit 0]  Took 0.0s"
    ]
    second.tools.kill()
    assert eventually(lambda: living(theirs) == [])
    assert "no process can be started" in results(await talk(second, "!bash true"))[0]


async def test_the_processes_of_all_sessions_end_with_the_resources(house: House) -> None:
    session, mark = await house.open(), os.urandom(8).hex()
    await talk(session, f"!bash MARK={mark} sleep 60 >/dev/null &")
    await house.resources.close()
    assert living(mark) == []
    with pytest.raises(ChildProcessError, match="no process can be started"):
        await house.resources.processes("late").spawn(Program(["true"], "/", {}))


async def test_nothing_can_be_started_after_the_end() -> None:
    resources = SharedResources()
    resources.kill()
    with pytest.raises(ChildProcessError, match="no process can be started"):
        await resources.processes("late").spawn(Program(["true"], "/", {}))
    await resources.close()


async def test_a_session_is_idle_when_none_of_its_commands_runs(house: House) -> None:
    session = await house.open()
    heard = listen(session)
    assert [session.is_resting] == [True]
    session.prompt("!bash sleep 60 >/dev/null & echo $!")
    assert [session.is_resting] == [False]
    await session.worker.finish()
    assert (session.worker.busy, session.is_resting) == (False, False)
    [pid] = [int(line) for line in results(heard.events)[0].split("\n") if line.isdigit()]
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        while not session.is_resting:
            await asyncio.sleep(0.01)


# Connections.

NOWHERE = HttpRequest("http://127.0.0.1:1/", {}, b"")


async def test_sessions_with_the_same_proxies_share_connections_and_none_closes_them() -> None:
    resources = SharedResources()
    one = resources.transport({"https_proxy": "http://a", "HOME": "/a"})
    other = resources.transport({"https_proxy": "http://a", "HOME": "/b"})
    assert one is other
    assert resources.transport({}) is not one
    await one.close()
    with pytest.raises(ConnectionFailed) as refused:
        await other.send(NOWHERE, Deadlines())
    assert "closed" not in str(refused.value)
    await resources.close()
    with pytest.raises(ConnectionFailed, match="this transport has been closed"):
        await other.send(NOWHERE, Deadlines())


# Keys.


async def test_a_key_command_runs_once_for_all_waiters(tmp_path: Path) -> None:
    resources, line = SharedResources(), f"echo ran >> {tmp_path}/log; sleep 0.2; echo sk-{os.urandom(4).hex()}"
    readings = [asyncio.create_task(resources.key_command("acme", line, PATH).read()) for _ in range(20)]
    await asyncio.sleep(0)
    readings[0].cancel()
    async with asyncio.timeout(PATIENCE_S):
        cancelled, *keys = await asyncio.gather(*readings, return_exceptions=True)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert len(set(keys)) == 1
    assert (tmp_path / "log").read_text() == "ran\n"


async def test_its_failure_reaches_every_waiter_and_it_can_be_retried(tmp_path: Path) -> None:
    resources, line = SharedResources(), f"echo ran >> {tmp_path}/log; exit 1"
    for runs in (1, 2):
        readings = [resources.key_command("acme", line, PATH).read() for _ in range(3)]
        problems = await asyncio.gather(*readings, return_exceptions=True)
        assert [type(problem) for problem in problems] == [AuthFailed] * 3
        assert len({id(problem) for problem in problems}) == 3
        assert (tmp_path / "log").read_text() == "ran\n" * runs


# Files.


async def test_a_script_is_read_once_and_each_session_plays_it_from_the_beginning(house: House) -> None:
    script = house.directory / "play.lab"
    script.write_text("say one\n---\nsay two\n")
    first, second = await house.open("a", script=str(script)), await house.open("b", script=str(script))
    assert [said(await talk(session)) for session in (first, second, first)] == ["one", "one", "two"]
    script.write_text("say three\n")
    assert said(await talk(await house.open("c", script=str(script)))) == "three"
    assert said(await talk(second)) == "two"


async def test_equal_prompts_and_environments_are_held_once(house: House) -> None:
    (house.directory / "AGENTS.md").write_text("Be brief.")
    first, second = await house.open("a"), await house.open("b")
    assert first.agent.system is second.agent.system
    assert "Be brief." in first.agent.system
    await first.establish()
    again = await house.open("a")
    assert again.agent.system is second.agent.system


# What a session is opened with.


async def test_a_session_is_found_again_with_its_agent_before_its_first_prompt(house: House) -> None:
    first = await house.open(agent="helper", guarded=True)
    await first.establish()
    await first.establish()
    await first.close()
    again = await house.open(agent="helper", guarded=True)
    expected = SettingsChanged("lab", "lab-1", first.agent.system, "off", str(house.directory), "helper", guarded=True)
    assert house.resumed == [expected]
    assert again.agent.configured() == expected
    assert said(await talk(again, "!echo hi")) == "hi"


async def test_a_guarded_session_may_do_only_what_its_policy_allows(house: House) -> None:
    (house.directory / "home").mkdir()
    (house.directory / "home" / "secret").write_text("a key")
    (house.directory / "open").write_text("for all")
    session = await house.open(guarded=True, policy=("bash:echo *=allow",))
    assert results(await talk(session, "!bash echo hi")) == ["$ echo hi\n\nhi\n\n[exit 0]  Took 0.0s"]
    refused = ["not run: the policy of this session denies bash here"]
    assert results(await talk(session, "!bash touch made")) == refused
    assert "for all" in results(await talk(session, "!read open"))[0]
    assert "a key" not in results(await talk(session, f"!read {house.directory}/home/secret"))[0]


async def test_a_session_stays_guarded_and_keeps_its_agent_for_every_later_process(house: House) -> None:
    first = await house.open(agent="helper", guarded=True)
    await first.establish()
    await first.close()
    request = OpenRequest(config=house.config("s"), overrides=ConfigOverrides(frozenset({"policy"})))
    second = await open_session(request, house.resources)
    assert results(await talk(second, "!bash true")) == ["not run: the policy of this session denies bash here"]
    await second.close()
    await house.open()
    assert house.resumed == [first.agent.configured()]


async def test_a_session_that_may_not_be_resumed_is_not_left_open(house: House) -> None:
    def refuse(recorded: SettingsChanged) -> OpenRequest:
        raise KeyError(recorded.agent)

    await (await house.open("s", agent="helper")).establish()
    with pytest.raises(KeyError, match="helper"):
        await open_session(OpenRequest(config=house.config("s"), adapt=refuse), house.resources)
    assert said(await talk(await house.open("s"), "!echo hi")) == "hi"


async def test_sessions_are_kept_in_the_configured_journal(house: House) -> None:
    journal = house.directory / "elsewhere" / "sessions.db"
    request = OpenRequest(config=house.config("s", journal=str(journal)))
    session = await open_session(request, house.resources)
    await talk(session, "!echo hi")
    await session.close()
    assert journal.exists()
    assert not (house.directory / "home" / "journal.db").exists()


async def test_a_session_used_by_others_meanwhile_is_established_after_them(house: House) -> None:
    first, second = await house.open(agent="a"), await house.open(agent="b")
    await talk(first, "!echo one")
    await second.establish()
    assert len(second.history.transcript) == 2
    assert house.resumed == []
    await house.open(agent="c")
    assert [recorded.agent for recorded in house.resumed] == ["b"]
