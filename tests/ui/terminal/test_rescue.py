"""When a model fails: the same prompt for another one, or once more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ui.terminal.stage import PATIENCE_S, stage
from zot.commands.terminal import logs_as_notes
from zot.ui.conversation import ModelInfo
from zot.ui.local import LocalConversation

TWO_MODELS = '{"providers": {"lab": {"models": [{"id": "lab-2", "contextWindow": 100000}]}}}'


async def test_the_same_prompt_can_be_sent_to_another_model(tmp_path: Path) -> None:
    script = tmp_path / "fails.lab"
    script.write_text('status 400\n---\nsay "second try"\n')
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "models.json").write_text(TWO_MODELS)
    async with stage(tmp_path, script=str(script)) as person:
        await person.sees("ready")
        await person.says("a prompt")
        await person.decides("The model call failed. Ask again?", "down")
        await person.pilot.press("enter")
        await person.sees("asking lab/lab-2")
        await person.sees("second try")
        await person.idle()
        assert "lab-2 · 0% of 100k" in person.screen
        said = await person.app.live.conversation.messages()
        assert [one.role for one in said] == ["user", "assistant"]


async def test_a_failure_can_be_dismissed(tmp_path: Path) -> None:
    script = tmp_path / "fails.lab"
    script.write_text('status 400\n---\nsay "second try"\n')
    async with stage(tmp_path, script=str(script)) as person:
        await person.sees("ready")
        await person.says("a prompt")
        await person.decides("The model call failed. Ask again?", "escape")
        await person.misses("Ask again?")
        assert person.app.focused is person.app.editor
        await person.idle()


async def test_a_failure_is_forgotten_when_another_prompt_succeeds(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        for text in ("one", "two", "three"):
            await person.says(f"!echo {text}")
            await person.sees(f"   {text}")
            await person.idle()
        await person.says("!script status 400")
        await person.decides("The model call failed. Ask again?", "escape")
        await person.misses("Ask again?")
        await person.says("/compact")
        await person.sees("the conversation was summarised")
        await person.idle()
        async with asyncio.timeout(PATIENCE_S):  # A question would be waited for.
            await person.app.workers.wait_for_complete()
        assert "Ask again?" not in person.screen


async def test_keys_typed_while_a_model_fails_are_not_taken_for_a_choice(tmp_path: Path) -> None:
    script = tmp_path / "fails.lab"
    script.write_text('status 400\n---\nsay "second try"\n')
    # The pause before a question takes keys is the one that people have.
    async with stage(tmp_path, script=str(script), clock=time.perf_counter) as person:
        await person.sees("ready")
        await person.says("a prompt")
        await person.sees("The model call failed. Ask again?")
        assert "stop typing to answer" in person.screen
        await person.pilot.press("o", "h")
        assert person.app.editor.text == "oh"
        await person.decides("lab/lab-1, once more", "enter")
        await person.sees("second try")
        assert person.app.editor.text == "oh"


async def test_a_question_about_a_failure_does_not_follow_to_another_session(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says("!echo of the first")
        await person.idle()
        first = (await person.app.live.conversation.state()).session
        await person.says("/session new")
        await person.until(lambda: "of the first" not in person.screen, "another session")
        await person.says("!script status 400")
        await person.sees("The model call failed. Ask again?")
        await person.app.terminal.switch(first)
        await person.sees("   of the first")
        await person.misses("Ask again?")
        assert [one.role for one in await person.app.live.conversation.messages()] == ["user", "assistant"]


async def test_switching_sessions_before_a_question_drops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, known = asyncio.Event(), asyncio.Event()
    models = LocalConversation.models

    async def slow(conversation: LocalConversation) -> Sequence[ModelInfo]:
        asked.set()
        await known.wait()
        return await models(conversation)

    async with stage(tmp_path) as person:
        await person.sees("ready")
        monkeypatch.setattr(LocalConversation, "models", slow)
        await person.says("!script status 400")
        async with asyncio.timeout(PATIENCE_S):
            await asked.wait()
        await person.app.terminal.switch(None)
        known.set()
        async with asyncio.timeout(PATIENCE_S):
            await person.app.workers.wait_for_complete()
        assert "Ask again?" not in person.screen


async def test_a_retry_is_shown_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        with logs_as_notes(person.app.terminal.note):
            await person.says("!retry 2")
            await person.sees("retrying in")
            assert person.screen.count("status 529") == person.screen.count("retrying in") == 1
            await person.idle()
        assert "status 529" not in person.screen
