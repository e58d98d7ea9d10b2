"""A client of a real daemon: no event is lost or repeated, however the connection fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

import zot
import zot.errors
from daemon_fake import FakeDaemon
from forked import Forked, ForkServer
from harness import PATIENCE_S, environment, read_some
from restarting import Restarting
from zot.client.session import ClientSession
from zot.events import AgentEvent, ApprovalAnswer, ApprovalRequest, Done, TextDelta, ToolResult, UserMessage, text
from zot.messages import text_of
from zot.serve.daemon.client_connection import ClientConnection
from zot.wire.jsonrpc import RpcError


def held(conversation: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(conversation, PATIENCE_S))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text('[agents.careful]\nprovider = "lab"\npolicy = ["bash=ask"]\n')
    return home


async def until_done(session: ClientSession, after: int = 0) -> list[tuple[int, AgentEvent]]:
    """Return the events of a session, from a number to the first end of a turn."""
    heard = []
    async with aclosing(session.follow(after)) as events:
        async for seq, event in events:
            heard.append((seq, event))
            if isinstance(event, Done):
                break
    return heard


def test_a_turn_yields_its_events_and_its_outcome(home: Path) -> None:
    async def conversation() -> None:
        async with Restarting(home) as daemon, daemon.client() as client:
            session = await client.session("s", cwd=str(home))
            turn = session.prompt("!echo Hello")
            heard = [event async for event in turn]
            assert heard == [event for _, event in await daemon.recorded("s")]
            assert turn.outcome is not None
            assert (turn.outcome.outcome, turn.outcome.stop_reason, turn.outcome.content) == (
                "completed", "end_turn", "Hello",
            )  # fmt: skip
            assert [entry.session_id for entry in await client.sessions()] == ["s"]
            assert [entry.alias for entry in await client.agents()] == ["default", "careful"]
            assert (await client.status()).session_ids == ("s",)
            assert (await client.call("session/state", {"sessionId": "s"}))["cwd"] == str(home)
            assert [entry.content for entry in await session.messages()] == ["!echo Hello", "Hello"]

    held(conversation())


def test_a_connection_that_breaks_at_every_event_loses_and_repeats_nothing(home: Path) -> None:
    async def conversation() -> None:
        async with Restarting(home) as daemon, daemon.client() as client, daemon.client() as other:
            session = await client.session("s")
            spectator = asyncio.create_task(until_done(await other.session("s")))
            turn, heard = session.prompt("!slow 15 0.01"), []
            async for event in turn:
                heard.append(event)
                daemon.cut()
            recorded = await daemon.recorded("s")
            assert heard == [event for _, event in recorded]
            assert await spectator == recorded
            assert turn.outcome is not None
            assert text(heard) == turn.outcome.content
            assert len([event for event in heard if isinstance(event, TextDelta)]) == 15

    held(conversation())


def test_a_prompt_whose_answer_was_lost_is_not_sent_again(home: Path) -> None:
    async def conversation() -> None:
        async with Restarting(home) as daemon, daemon.client(settle_s=0.05) as client:
            session = await client.session("s")
            sessions = daemon.running.daemon.sessions
            run = sessions.handlers["session/prompt"]

            async def run_and_break(connection: ClientConnection, asked: Any) -> Any:
                deferred = await run(connection, asked)
                daemon.cut()
                return deferred

            daemon.running.daemon.sessions.handlers = {
                **daemon.running.daemon.sessions.handlers,
                "session/prompt": run_and_break,
            }
            assert (await session.prompt("!echo once").result()).content == "once"
            assert [entry.content for entry in await session.messages()] == ["!echo once", "once"]

    held(conversation())


def test_a_prompt_that_never_arrived_is_reported_as_lost(home: Path) -> None:
    async def conversation() -> None:
        async with Restarting(home) as daemon, daemon.client(settle_s=0.05) as client:
            session = await client.session("s")

            async def lose(connection: ClientConnection, asked: Any) -> None:
                daemon.cut()

            usual = daemon.running.daemon.sessions.handlers
            daemon.running.daemon.sessions.handlers = {**usual, "session/prompt": lose}
            with pytest.raises(zot.PromptLost) as lost:
                await session.prompt("!echo lost").result()
            assert lost.value.was_sent
            daemon.running.daemon.sessions.handlers = usual
            assert (await session.prompt("!echo found").result()).content == "found"

    held(conversation())


def test_the_client_waits_for_a_daemon_that_ends_in_mid_turn(home: Path) -> None:
    async def conversation() -> None:
        daemon = Restarting(home)
        await daemon.start()
        async with daemon.client(settle_s=0.05) as client:
            session = await client.session("s")
            turn, heard = session.prompt("!slow 1000 0.01"), []
            async for event in turn:
                heard.append(event)
                if len(heard) == 10:
                    await daemon.stop()
                    await daemon.start()
            assert turn.outcome is not None
            assert turn.outcome.outcome == "cancelled"
            assert heard == [event for _, event in await daemon.recorded("s")]
            assert (await session.prompt("!echo again").result()).content == "again"
        await daemon.stop()

    held(conversation())


def test_prompts_that_a_daemon_has_not_begun_are_run_once_by_the_next_one(home: Path) -> None:
    async def conversation() -> None:
        daemon = Restarting(home)
        await daemon.start()
        async with daemon.client() as client:
            session = await client.session("s")
            running, *waiting = [session.prompt(words) for words in ("!stall", "!echo one", "!echo two")]
            assert isinstance(await anext(running), UserMessage)
            await daemon.stop()
            await daemon.start()
            with pytest.raises(zot.RunCancelled):
                await running.result()
            assert [(await turn.result()).content for turn in waiting] == ["one", "two"]
            said = [event.content for _, event in await daemon.recorded("s") if isinstance(event, UserMessage)]
            assert [text_of(content) for content in said] == ["!stall", "!echo one", "!echo two"]
        await daemon.stop()

    held(conversation())


def test_a_prompt_that_is_too_long_is_refused_at_once_and_the_next_one_runs(home: Path) -> None:
    async def conversation() -> None:
        async with Restarting(home) as daemon, daemon.client() as client:
            session = await client.session("s")
            with pytest.raises(RpcError, match="longer than 16777216 bytes"):
                await session.prompt("x" * (17 << 20)).result()
            with pytest.raises(RpcError, match="longer than 16777216 bytes"):
                await client.call("session/state", {"sessionId": "x" * (17 << 20)})
            assert (await session.prompt("!echo Hello").result()).content == "Hello"

    held(conversation())


def test_equal_prompts_of_two_clients_at_once_are_not_mixed_up(home: Path) -> None:
    async def conversation() -> None:
        async with Restarting(home) as daemon, daemon.client() as one, daemon.client() as two:
            sessions = [await one.session("s"), await two.session("s"), await one.session("s")]
            turns = [session.prompt("!echo same") for session in sessions for _ in range(3)]
            heard = [[event async for event in turn] for turn in turns]
            ids = [event.prompt_id for events in heard for event in events if isinstance(event, UserMessage)]
            recorded = [event.prompt_id for _, event in await daemon.recorded("s") if isinstance(event, UserMessage)]
            assert (len(set(ids)), sorted(ids)) == (9, sorted(recorded))
            assert {turn.outcome.content for turn in turns if turn.outcome is not None} == {"same"}

    held(conversation())


def test_the_client_gives_up_on_a_daemon_that_does_not_return(home: Path) -> None:
    async def conversation() -> None:
        daemon = Restarting(home)
        await daemon.start()
        async with daemon.client(reconnect_s=0.1) as client:
            session = await client.session("s")
            turn = session.prompt("!stall")
            assert isinstance(await anext(turn), UserMessage)
            await daemon.stop()
            with pytest.raises(zot.RunCancelled):  # It says so before it goes.
                await turn.result()
            with pytest.raises(zot.ConnectionLost):
                await until_done(session, after=1000)
            with pytest.raises(zot.ConnectionLost):
                await client.status()

    held(conversation())


def test_without_a_daemon_no_client_can_connect(tmp_path: Path) -> None:
    async def conversation() -> None:
        with pytest.raises(zot.ConnectionLost, match=r"No daemon is running at .*none\.sock\. Start one with"):
            async with zot.Client.connect(socket=str(tmp_path / "none.sock")):
                pass

    held(conversation())


@pytest.mark.parametrize(("answer", "error"), [({}, zot.errors.InternalError), (-32011, zot.RpcError)])
def test_the_client_gives_up_on_a_foreign_daemon(tmp_path: Path, answer: Any, error: type[Exception]) -> None:
    async def conversation() -> None:
        with pytest.raises(error):
            async with zot.Client.connect(socket=str(tmp_path / "d.sock")):
                pass

    with FakeDaemon(str(tmp_path / "d.sock"), {"initialize": answer}):
        held(conversation())


def test_two_clients_take_turns_in_one_session_and_get_the_same_updates(home: Path) -> None:
    async def conversation() -> None:
        async with Restarting(home) as daemon, daemon.client() as one, daemon.client() as two:
            first, second = await one.session("s"), await two.session("s")
            first.prompt("!say 5 one").close()
            turns = [first.prompt("!say 5 one"), first.prompt("!say 5 one"), second.prompt("!say 5 two")]
            heard = await asyncio.gather(*(collected(turn) for turn in turns))
            recorded = [event for _, event in await daemon.recorded("s")]
            begun = [at for at, event in enumerate(recorded) if isinstance(event, UserMessage)]
            runs = [recorded[at:end] for at, end in zip(begun, [*begun[1:], None], strict=True)]
            same = [run for run in runs if run[0] != heard[2][0]]
            assert (len(runs), same[1:]) == (4, heard[:2])
            assert heard[2] in runs

    async def collected(turn: zot.ClientTurn) -> list[AgentEvent]:
        return [event async for event in turn]

    held(conversation())


def test_a_second_client_answers_the_first_client_s_approval(home: Path) -> None:
    async def conversation() -> None:
        async with Restarting(home) as daemon, daemon.client() as one, daemon.client() as two:
            turn = (await one.session("s", agent="careful")).prompt("!bash echo yes")
            [request] = [event async for event in up_to_question(turn) if isinstance(event, ApprovalRequest)]
            helper = await two.attach("s")
            assert helper.opened.state == "waiting_approval"
            daemon.cut()
            shown = [event async for event in up_to_question(replayed(helper)) if isinstance(event, ApprovalRequest)]
            assert shown == [request]
            await helper.approve(request, "allow_once")
            with pytest.raises(RpcError):
                await helper.approve(request.id, "reject")
            rest = [event async for event in turn]
            assert [event.decision for event in rest if isinstance(event, ApprovalAnswer)] == ["allow_once"]
            assert [event.is_error for event in rest if isinstance(event, ToolResult)] == [False]

    async def replayed(session: ClientSession) -> AsyncIterator[AgentEvent]:
        async for _, event in session.follow(0):
            yield event

    async def up_to_question(events: AsyncIterator[AgentEvent]) -> AsyncIterator[AgentEvent]:
        async for event in events:
            yield event
            if isinstance(event, ApprovalRequest):
                return

    held(conversation())


def test_a_session_offers_its_other_methods(home: Path) -> None:
    async def conversation() -> None:
        async with Restarting(home) as daemon, daemon.client() as client:
            session = await client.session()
            turn = session.prompt("!stall")
            assert isinstance(await anext(turn), UserMessage)
            await session.cancel()
            with pytest.raises(zot.RunCancelled):
                await turn.result()
            with pytest.raises(RpcError) as refused:
                await session.cancel()
            assert refused.value.code == -32000
            with pytest.raises(zot.AgentError):
                await session.prompt("!status 400").result()
            with pytest.raises(RpcError, match="prompt"):
                await session.prompt("").result()
            fork = await session.fork("copy", messages=1)
            assert [entry.role for entry in await fork.messages()] == ["user"]
            await fork.steer("!echo steered")
            assert await session.commands() == ()
            with pytest.raises(RpcError):
                await session.run_command("none")
            with pytest.raises(RpcError):
                await session.send_key("none", "enter")
            with pytest.raises(RpcError):
                await session.close_panel("none")
            with pytest.raises(zot.AgentError):
                await (await client.session("empty")).compact()
            await session.clear()
            assert await session.messages() == ()
            with pytest.raises(RpcError):
                await client.attach("nowhere")

    held(conversation())


def test_a_slow_consumer_gets_every_event(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zot.client.client._MAX_UNREAD", 50)

    async def conversation() -> None:
        async with Restarting(home) as daemon, daemon.client() as client, daemon.client() as other:
            turn = (await client.session("s")).prompt("!flood 3000")
            assert isinstance(await anext(turn), UserMessage)
            await until_done(await other.session("s"))
            heard = [event async for event in turn]
            assert heard == [event for _, event in await daemon.recorded("s")][1:]

    held(conversation())


def test_the_client_connects_over_a_websocket(home: Path) -> None:
    async def conversation() -> None:
        async with Restarting(home) as daemon:

            async def relay(web: ServerConnection) -> None:
                assert web.request is not None
                if web.request.headers.get("Authorization") != "Bearer secret":
                    return
                reader, writer = await asyncio.open_unix_connection(daemon.running.path)

                async def back() -> None:
                    while line := await reader.readline():
                        await web.send(line.decode().removesuffix("\n"))
                    await web.close()

                async with asyncio.TaskGroup() as group:
                    group.create_task(back())
                    async for message in web:
                        assert isinstance(message, str)
                        assert "\n" not in message
                        writer.write(message.encode() + b"\n")
                    writer.close()
                await writer.wait_closed()

            async with serve(relay, "127.0.0.1", 0) as server:
                port = next(iter(server.sockets)).getsockname()[1]
                url = f"ws://127.0.0.1:{port}/"
                async with zot.Client.connect(url=url, token="secret") as client:
                    session = await client.session("s")
                    turn, heard = session.prompt("!say 6 word"), []
                    async for event in turn:
                        heard.append(event)
                        daemon.cut()
                    assert heard == [event for _, event in await daemon.recorded("s")]
                with pytest.raises(zot.ConnectionLost):
                    async with zot.Client.connect(url=url, token="wrong"):
                        pass

    held(conversation())


def test_a_daemon_killed_in_mid_turn_leaves_a_turn_that_ends(home: Path, fork_server: ForkServer) -> None:
    def start() -> Forked:
        env = environment({"ZOT_HOME": str(home)})
        return fork_server.fork(["daemon", "--provider", "lab"], home, env)

    socket = home / "data" / "daemon.sock"
    daemon = start()
    assert b"listens at" in read_some(daemon.stderr.fileno(), time.monotonic() + PATIENCE_S)

    async def conversation() -> None:
        nonlocal daemon
        async with zot.Client.connect(socket=str(socket), settle_s=0.05) as client:
            session = await client.session("s")
            turn, heard = session.prompt("!slow 1000 0.01"), []
            async for event in turn:
                heard.append(event)
                if len(heard) == 10:
                    daemon.kill()
                    daemon.communicate()
                    daemon = start()
            assert turn.outcome is not None
            assert turn.outcome.outcome == "cancelled"
            assert heard == [event for _, event in await until_done(session)]

    try:
        held(conversation())
    finally:
        daemon.send_signal(15)
        daemon.communicate()
