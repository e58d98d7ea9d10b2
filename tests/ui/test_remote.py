"""A front end on a session of the daemon: it gets events, requests and refusals in its own terms."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from harness import PATIENCE_S
from restarting import Restarting
from ui.terminal.stage import Stage
from zot.errors import EpochChanged, UserError
from zot.events import AgentEvent, ApprovalRequest, Done, Error, TextDelta
from zot.session.history import Batch, Subscriber
from zot.ui.conversation import AllowedCall, Home, ModelInfo, OpenedConversation, Untrusted
from zot.ui.remote import ClientHome
from zot.ui.terminal.app import ZotApp
from zot.wire.jsonrpc import RpcError


class Face(Subscriber):
    """A follower that waits for an event."""

    can_approve = True

    def __init__(self) -> None:
        self.heard: list[AgentEvent] = []
        #: What was heard and forgotten last.
        self.before: list[AgentEvent] = []
        self._came = asyncio.Event()

    def deliver(self, batch: Batch) -> None:
        self.heard += batch.events
        self._came.set()

    async def until(self, kind: type[AgentEvent]) -> AgentEvent:
        """Return the newest event when it is of this kind, and drop it and the earlier ones."""
        while not self.heard or not isinstance(self.heard[-1], kind):
            self._came.clear()
            await self._came.wait()
        self.before, self.heard = self.heard, []
        return self.before[-1]


def held(conversation: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(conversation, PATIENCE_S))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text('[agents.careful]\nprovider = "lab"\npolicy = ["bash=ask"]\n')
    return tmp_path


def test_a_conversation_talks_to_a_session_of_the_daemon(home: Path) -> None:
    async def conversation() -> None:
        async with Restarting(home) as daemon, daemon.client() as client:
            there: Home = ClientHome(client, cwd=str(home))
            talk, face = await there.open(), Face()
            stop = talk.follow(face)
            await talk.prompt("!echo Hello")
            await face.until(Done)
            assert [message.role for message in await talk.messages()] == ["user", "assistant"]
            state = await talk.state()
            assert (state.provider, state.model, state.cwd, state.busy, state.message_count, state.usage.input) == (
                "lab", "lab-1", str(home), False, 2, 100,
            )  # fmt: skip
            await talk.prompt("")
            await face.until(Done)  # It was refused.
            await talk.compact()
            await face.until(Done)
            await talk.abort()
            assert await talk.models() == [ModelInfo("lab", "lab-1", "lab-1", 200_000)]
            await talk.use_model(ModelInfo("lab", "lab-1"))
            copy = await there.open(await talk.fork(1))
            assert len(await copy.messages()) == 1
            await copy.steer("!echo steered")
            with pytest.raises(UserError, match="there is no compaction to undo"):
                await talk.undo_compact()
            assert (await talk.rewind(1, preview=True)).messages == 1
            assert len(await talk.messages()) == 2
            assert (await talk.rewind(1)).messages == 1
            assert len(await talk.messages()) == 1
            await talk.clear()
            assert await talk.messages() == []
            assert await talk.commands() == []
            assert {one.cwd for one in await there.sessions()} == {str(home)}
            stop()
            await talk.close()
            await copy.close()

    held(conversation())


def test_a_waiting_question_is_shown_to_a_new_conversation(home: Path) -> None:
    async def conversation() -> None:
        async with Restarting(home) as daemon, daemon.client() as client:
            first, face = await ClientHome(client, cwd=str(home), agent="careful").open(), Face()
            first.follow(face)
            await first.prompt("!bash echo yes")
            request = await face.until(ApprovalRequest)
            async with daemon.client() as other:
                late, second = await ClientHome(other, cwd=str(home)).open((await first.state()).session), Face()
                late.follow(second)
                assert await second.until(ApprovalRequest) == request
                assert isinstance(request, ApprovalRequest)
                await late.approve(request.id, "reject")
                await second.until(Done)
                await late.close()
            await face.until(Done)
            await first.close()

    held(conversation())


def test_a_waiting_question_is_shown_even_if_settings_changed_after_it(home: Path) -> None:
    async def conversation() -> None:
        async with Restarting(home) as daemon:
            async with daemon.client() as client:
                talk, face = await ClientHome(client, cwd=str(home), agent="careful").open(), Face()
                talk.follow(face)
                await talk.prompt("!bash echo yes")
                request, session_id = await face.until(ApprovalRequest), (await talk.state()).session
                configured = {"sessionId": session_id, "overrides": {"reasoning": "high"}}
                await client.call("session/configure", configured)
                assert (await talk.aside("!echo by the way")).text == "by the way"
                await talk.close()
            assert await asked_again(daemon, session_id) == [request, request]
            await daemon.stop()
            (home / "config.toml").write_text((home / "config.toml").read_text() + 'reasoning = "low"\n')
            await daemon.start()
            assert await asked_again(daemon, session_id) == [request, request]

    async def asked_again(daemon: Restarting, session_id: str) -> list[AgentEvent]:
        """Return a client's first events, and a front end."""
        async with daemon.client() as client:
            session = await client.attach(session_id)
            async with aclosing(session.follow(session.opened_at)) as events:
                first = (await anext(events))[1]
        async with daemon.client() as client:
            talk, face = await ClientHome(client, cwd=str(home)).open(session_id), Face()
            talk.follow(face)
            shown = [first, await face.until(ApprovalRequest)]
            await talk.close()
            return shown

    held(conversation())


def test_a_session_deleted_by_another_client_is_reported_and_the_next_of_its_name_followed(
    home: Path,
) -> None:
    async def conversation() -> None:
        async with Restarting(home) as daemon, daemon.client() as client, daemon.client() as other:
            talk, face = await ClientHome(client, cwd=str(home)).open(), Face()
            here = {"sessionId": (await talk.state()).session}
            talk.follow(face)
            await talk.prompt("!echo before")
            await face.until(Done)
            await other.call("session/delete", here)
            await face.until(Done)
            assert [type(event) for event in face.before] == [Error, Done]
            await other.session(here["sessionId"])
            await talk.prompt("!echo mine")
            await face.until(Done)
            assert TextDelta("mine") in face.before
            await talk.close()

    held(conversation())


def test_a_subscriber_is_notified_if_the_session_is_another_one_after_a_reconnect(home: Path) -> None:
    async def conversation() -> None:
        async with Restarting(home) as daemon, daemon.client() as client:
            session = await client.session("s")
            await session.prompt("!say 99 " + 99 * "x").result()
            hearing = asyncio.create_task(anext(session.follow()))
            await daemon.stop()
            await daemon.start()
            async with daemon.client() as other:
                await other.call("session/delete", {"sessionId": "s"})
                await (await other.session("s")).prompt("!echo another").result()
            with pytest.raises((EpochChanged, RpcError)):
                await hearing

    held(conversation())


def test_allow_always_can_be_revoked_permanently(home: Path) -> None:
    async def conversation() -> None:
        async with Restarting(home) as daemon, daemon.client() as client:
            talk, face = await ClientHome(client, cwd=str(home), agent="careful").open(), Face()
            talk.follow(face)
            here = {"sessionId": (await talk.state()).session}
            await talk.prompt("!bash echo yes")
            request = await face.until(ApprovalRequest)
            assert isinstance(request, ApprovalRequest)
            await talk.approve(request.id, "allow_always")
            await face.until(Done)
            await client.call("session/close", here)
            assert await talk.remembered() == [AllowedCall("bash", "echo yes")]
            await client.call("session/new", {"agentAlias": "careful", **here})
            await talk.forget(AllowedCall("bash", "echo yes"))
            await client.call("session/close", here)
            assert await talk.remembered() == []
            await client.call("session/new", {"agentAlias": "careful", **here})
            await talk.prompt("!bash echo yes")
            assert await face.until(ApprovalRequest) != request
            await talk.abort()
            await face.until(Done)
            await talk.close()

    held(conversation())


def test_methods_the_daemon_lacks_are_refused(home: Path) -> None:
    async def conversation() -> None:
        async with Restarting(home) as daemon, daemon.client() as client:
            there = ClientHome(client, cwd=str(home))
            talk = await there.open()
            refused: list[Awaitable[object]] = [
                talk.retry(), talk.forget(AllowedCall("bash", "ls")), talk.withdraw("none"),
                talk.run_command("none", ""), talk.send_key("none", "enter"),
                talk.close_panel("none"), talk.approve("none", "reject"), there.export("s", "f"), there.import_("f"),
                there.trust(Untrusted("skill", "s", "d")), there.login("lab", "key"), there.logout("lab"),
                there.skills(),
            ]  # fmt: skip
            for one in refused:
                with pytest.raises(UserError):
                    await one
            with pytest.raises(UserError, match="has its own keys; on its machine, run: zot login"):
                await there.providers()
            assert await there.untrusted() == ()
            await talk.close()

    held(conversation())


def test_a_conversation_is_notified_that_the_daemon_is_gone(home: Path) -> None:
    async def conversation() -> None:
        daemon = Restarting(home)
        await daemon.start()
        async with daemon.client(reconnect_s=0.05) as client:
            talk, face = await ClientHome(client, cwd=str(home)).open(), Face()
            talk.follow(face)
            await talk.prompt("!echo Hello")
            await face.until(Done)
            await daemon.stop()
            await face.until(Done)
            await talk.close()

    held(conversation())


def test_the_terminal_shows_a_session_of_the_daemon(home: Path) -> None:
    async def conversation() -> None:
        async with Restarting(home) as daemon, daemon.client() as client:
            there = ClientHome(client, cwd=str(home))
            talk = await there.open()
            app = ZotApp(OpenedConversation(there, talk))
            async with app.run_test(size=(80, 24)) as pilot:
                stage = Stage(app, pilot, there)  # type: ignore[arg-type]  # It only keeps it.
                await stage.sees("lab-1")
                await stage.says("!echo shown in the terminal")
                await stage.until(lambda: stage.screen.count("shown in the terminal") == 2, "the answer")
                await stage.idle()
                await stage.says("!slow 1000 0.02")
                await stage.sees("answering")
                await stage.says("never said", "ctrl+s")
                await stage.sees("steering: never said")
                await stage.pilot.press("escape")
                await stage.sees("aborted")
                await stage.idle()
                assert app.editor.text == "never said"
                assert [message.role for message in await talk.messages()] == ["user", "assistant"] * 2
            await app.close()

    held(conversation())


def test_the_terminal_shows_a_lost_connection_keeps_typed_text_and_resumes(
    home: Path,
) -> None:
    async def conversation() -> None:
        daemon = Restarting(home)
        await daemon.start()
        async with daemon.client(reconnect_s=math.inf) as client:
            there = ClientHome(client, cwd=str(home))
            talk = await there.open()
            app = ZotApp(OpenedConversation(there, talk))
            async with app.run_test(size=(80, 24)) as pilot:
                stage = Stage(app, pilot, there)  # type: ignore[arg-type]  # It only keeps it.
                await stage.sees("ready")
                await stage.says("!echo one")
                await stage.until(lambda: stage.screen.count("one") == 2, "the answer")
                await stage.idle()
                await daemon.stop()
                await stage.sees("no connection to the daemon, trying again")
                assert "ready" not in stage.screen
                await stage.says("!echo two")
                await stage.sees("there is no connection to the daemon")
                assert app.editor.text == "!echo two"
                await daemon.start()
                await stage.sees("ready")
                await pilot.press("enter")
                await stage.until(lambda: stage.screen.count("two") == 2, "the answer")
            await app.close()
        await daemon.stop()

    held(conversation())
