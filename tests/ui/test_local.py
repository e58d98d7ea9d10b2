"""A conversation in this process, as faces see it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from extensions.stage import Extension
from fakes import PATIENCE_S, Listener
from zot.config.config import Config, ConfigOverrides, resolve
from zot.errors import ConfigError, NoSuchSession, RuntimeBusy, UserError
from zot.events import Done, ExtNotify, ToolResult
from zot.messages import ShownResult, text_of
from zot.ui.conversation import ModelInfo
from zot.ui.local import LocalConversation, LocalHome

KEEPS = pytest.mark.parametrize("keep", [True, False], ids=["kept", "not kept"])


@asynccontextmanager
async def opened(
    directory: Path, *, keep: bool = True, env: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator[tuple[LocalHome, LocalConversation]]:
    variables = {"PATH": os.environ["PATH"], "ZOT_HOME": str(directory / "home"), **(env or {})}
    given = {"provider": "lab", "cwd": str(directory), **settings}
    home = LocalHome(Config(**given, env=variables), ConfigOverrides(frozenset(given)), keep=keep)
    conversation = await home.open()
    try:
        yield home, conversation
    finally:
        await conversation.close()
        await home.close()


async def talk(conversation: LocalConversation, text: str) -> Listener:
    listener = Listener()
    stop = conversation.follow(listener)
    await conversation.prompt(text)
    async with asyncio.timeout(PATIENCE_S):
        # The last event comes shortly before the session is idle.
        while not any(isinstance(event, Done) for event in listener.events) or conversation._session.worker.busy:
            await asyncio.sleep(0.01)
    stop()
    return listener


async def said(conversation: LocalConversation) -> list[str]:
    return [text_of(message.content) for message in await conversation.messages()]


@KEEPS
async def test_another_provider_continues_the_same_conversation_for_its_subscribers(
    tmp_path: Path, *, keep: bool
) -> None:
    env = {"DEEPSEEK_API_KEY": "sk-test"}
    async with opened(tmp_path, keep=keep, env=env) as (_, conversation):
        await talk(conversation, "!echo one")
        assert {model.provider for model in await conversation.models()} == {"lab", "deepseek"}
        other = next(model for model in await conversation.models() if model.provider == "deepseek")
        listener = Listener()
        conversation.follow(listener)
        await conversation.use_model(other)
        now = await conversation.state()
        assert (now.provider, now.model, now.usage.input) == ("deepseek", other.id, 100)
        assert await said(conversation) == ["!echo one", "one"]
        await conversation.use_model(ModelInfo("lab", "lab-1"))
        await conversation.prompt("!echo two")
        async with asyncio.timeout(PATIENCE_S):
            while not any(isinstance(event, Done) for event in listener.events):
                await asyncio.sleep(0.01)
        assert await said(conversation) == ["!echo one", "one", "!echo two", "two"]


@asynccontextmanager
async def refusing() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that refuses every request, and records them."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", asked


@KEEPS
async def test_switching_back_to_a_provider_restores_its_address_and_key(tmp_path: Path, *, keep: bool) -> None:
    env = {"DEEPSEEK_API_KEY": "sk-other"}
    async with refusing() as (address, asked):
        own = {"provider": "openai", "model": "mine", "base_url": address, "api_key": "sk-own"}
        async with opened(tmp_path, keep=keep, env=env, **own) as (_, conversation):
            await talk(conversation, "one")
            await conversation.use_model(ModelInfo("deepseek", "deepseek-chat"))
            back = next(model for model in await conversation.models() if model.provider == "openai")
            assert back.id == "mine"
            await conversation.use_model(back)
            await talk(conversation, "two")
            now = await conversation.state()
            assert (now.provider, now.model) == ("openai", "mine")
            await conversation.use_model(ModelInfo("deepseek", "deepseek-chat"))
            assert (await conversation.state()).provider == "deepseek"
    assert len(asked) == 2
    assert all(b"authorization: bearer sk-own" in one.lower() for one in asked)


async def test_a_script_continues_after_another_provider_was_used(tmp_path: Path) -> None:
    (tmp_path / "one.lab").write_text("say scripted\n")
    env = {"DEEPSEEK_API_KEY": "sk-test"}
    async with opened(tmp_path, env=env, script=str(tmp_path / "one.lab")) as (_, conversation):
        await conversation.use_model(ModelInfo("deepseek", "deepseek-chat"))
        assert "lab" in {model.provider for model in await conversation.models()}
        await conversation.use_model(ModelInfo("lab", "lab-1"))
        await talk(conversation, "go")
        assert await said(conversation) == ["go", "scripted"]


async def test_a_provider_without_a_key_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, conversation):
        with pytest.raises(ConfigError, match="no key for deepseek"):
            await conversation.use_model(ModelInfo("deepseek", "deepseek-chat"))
        await talk(conversation, "!echo still here")
        assert await said(conversation) == ["!echo still here", "still here"]


async def test_a_model_can_be_chosen_between_two_prompts_of_a_kept_session(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, conversation):
        await talk(conversation, "!echo one")
        await conversation.use_model(ModelInfo("lab", "lab-1"))
        await talk(conversation, "!echo two")
        assert await said(conversation) == ["!echo one", "one", "!echo two", "two"]


@KEEPS
async def test_clearing_waits_until_it_is_done_and_a_side_question_leaves_no_trace(
    tmp_path: Path, *, keep: bool
) -> None:
    async with opened(tmp_path, keep=keep) as (home, conversation):
        await talk(conversation, "!echo one")
        aside = await conversation.aside("!echo beside it")
        assert (aside.text, aside.usage.input) == ("beside it", 100)
        assert await said(conversation) == ["!echo one", "one"]
        assert (await conversation.state()).usage.input == 200
        if keep:
            again = await home.open((await conversation.state()).session)
            assert (await again.state()).usage.input == 200
            await again.close()
        await conversation.clear()
        assert await said(conversation) == []


async def test_the_lock_is_changed_permanently_without_losing_anything(tmp_path: Path) -> None:
    async with opened(tmp_path) as (home, conversation):
        await talk(conversation, "!echo one")
        await conversation.lock(locked=True)
        assert (await conversation.state()).locked
        await talk(conversation, "!read /etc/hostname")
        assert "outside" in " ".join(await results(conversation))
        session = (await conversation.state()).session
        again = await home.open(session)
        assert (await again.state()).locked
        await again.close()
        await conversation.lock(locked=False)
        assert (await said(conversation))[:2] == ["!echo one", "one"]
        again = await home.open(session)
        assert not (await again.state()).locked
        await again.close()


async def test_an_explicit_lock_wins_over_the_recorded_one(tmp_path: Path) -> None:
    async with opened(tmp_path, lock=True) as (home, conversation):
        await conversation.lock(locked=False)
        await talk(conversation, "!echo one")
        again = await home.open((await conversation.state()).session)
        assert (await again.state()).locked
        await again.close()


async def results(conversation: LocalConversation) -> list[str]:
    blocks = [block for message in await conversation.messages() if message.role == "tool" for block in message.content]
    return [text_of(block.content) for block in blocks if isinstance(block, ShownResult)]


async def test_sessions_are_found_by_the_beginning_of_their_id(tmp_path: Path) -> None:
    async with opened(tmp_path) as (home, conversation):
        await talk(conversation, "!echo one")
        session = (await conversation.state()).session
        forked = await conversation.fork()
        assert {one.id: one.parent for one in await home.sessions()} == {session: "", forked: session}
        again = await home.open(session[:-1])
        assert await said(again) == ["!echo one", "one"]
        await again.close()
        with pytest.raises(NoSuchSession):
            await home.open("nonsense")
        with pytest.raises(UserError, match="is the beginning of several sessions"):
            await home.open("2")


#: Lets nothing be said that has a secret in it. It is slow to start as long as it is told to, and says that it starts.
GUARD = """
hello("events", "intercept")
say("subscribe", events=[], intercept=["assistant_message", "turn_start"])
say("notify", level="info", message="on guard")
while os.path.exists("data/wait"):
    time.sleep(0.02)
say("ready")
for frame in frames():
    if frame["type"] == "event_intercept":
        at = frame.get("text", "")
        if "secret" in at:
            answer(frame, block=True, reason="that is a secret")
        elif os.path.exists("data/closed") and frame["event"] == "turn_start":
            answer(frame, block=True, reason="not at this time")
        else:
            answer(frame, **({"replace_text": at.replace("blue", "green")} if at else {}))
"""


async def test_an_unreadable_guard_stays_when_extensions_are_reloaded(tmp_path: Path) -> None:
    guard = Extension(tmp_path / "home" / "extensions", "guard", GUARD)
    manifest = guard.directory / "extension.json"
    async with opened(tmp_path) as (_, conversation):
        await talk(conversation, "!echo a secret")
        good = manifest.read_text()
        manifest.write_text("{")
        with pytest.raises(UserError, match="extensions were not reloaded: guard: "):
            await conversation.reload_extensions()
        await talk(conversation, "!echo another secret")
        assert "another secret" not in await said(conversation)
        manifest.write_text(good.replace("}", ', "enabled": false}'))
        assert await conversation.reload_extensions() == []


async def test_extensions_are_not_replaced_during_a_prompt_and_report_while_they_start(
    tmp_path: Path,
) -> None:
    guard = Extension(tmp_path, "guard", GUARD)
    async with opened(tmp_path, ext=(str(guard.directory),)) as (_, conversation):
        await conversation.commands()
        listener = Listener()
        conversation.follow(listener)
        (guard.directory / "data" / "wait").touch()
        reloading = asyncio.create_task(conversation.reload_extensions())
        async with asyncio.timeout(PATIENCE_S):
            while ExtNotify("guard", "info", "on guard") not in listener.events:
                await asyncio.sleep(0.01)
            await conversation.prompt("!slow 1000 0.02")
            (guard.directory / "data" / "wait").unlink()
            with pytest.raises(RuntimeBusy, match="cannot be reloaded while a prompt"):
                await reloading
            await conversation.abort()
            while not any(isinstance(event, Done) for event in listener.events):
                await asyncio.sleep(0.01)
        await talk(conversation, "!echo blue")
        assert (await said(conversation))[-1] == "green"


async def test_a_side_question_is_guarded_as_the_conversation_is(tmp_path: Path) -> None:
    guard = Extension(tmp_path, "guard", GUARD)
    async with opened(tmp_path, ext=(str(guard.directory),)) as (_, conversation):
        with pytest.raises(UserError, match="held back: that is a secret"):
            await conversation.aside("!echo the secret")
        assert (await conversation.aside("!echo blue")).text == "green"
        (guard.directory / "data" / "closed").touch()
        with pytest.raises(UserError, match="not asked: not at this time"):
            await conversation.aside("!echo blue")


async def test_a_resumed_session_keeps_the_policy_of_its_agent_even_when_a_setting_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text('[agents.careful]\nprovider = "lab"\npolicy = ["bash=deny"]\n')

    async def denials(conversation: LocalConversation) -> list[str]:
        heard = await talk(conversation, "!bash echo hi")
        return [text_of(one.content) for one in heard.events if isinstance(one, ToolResult)]

    careful = {"agent": "careful"}
    home = LocalHome(resolve(careful), ConfigOverrides.of_flags(careful))
    conversation = await home.open()
    session = (await conversation.state()).session
    denied = await denials(conversation)
    await conversation.close()
    flags = {"provider": "lab"}
    home = LocalHome(resolve(flags), ConfigOverrides.of_flags(flags))
    conversation = await home.open(session)
    assert await denials(conversation) == denied == ["not run: the policy of this session denies bash here"]
    await conversation.lock(locked=True)
    assert await denials(conversation) == denied
    await conversation.close()
    await home.close()
