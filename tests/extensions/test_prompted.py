"""A single prompt that begins with a slash: an extension's command, or else plain text."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from grammar import Grammar
from zot.errors import AgentError
from zot.extensions.supervisor import SupervisedExtension as Joined
from zot.runtime.extensions import manager_of
from zot.serve.once import EventLines, FinalText, OneRun, OutputFormat
from zot.serve.streams import StreamWriter

from .remote import Remote
from .stage import WATCHER, Extension, Stage, is_wait

ANSWERS: dict[str, dict[str, Any]] = {
    "ask": {"action": "prompt", "prompt": "!echo asked"},
    "put": {"action": "insert", "insert": "text"},
    "tell": {"action": "display", "display": "note"},
    "open": {"action": "open_panel", "open_panel": {"id": "p"}},
    "nothing": {},
    "fail": {"error": "cannot"},
}


HELD = {"type": "event_intercept_response", "block": True, "reason": "not for you"}


class Asked:
    """A session with an extension that has commands, each prompt of which is the last one."""

    def __init__(self, tmp_path: Path, face: Callable[[StreamWriter], OutputFormat]) -> None:
        self._face = face
        self._stage = Stage(tmp_path, Extension(tmp_path, "watcher", WATCHER))
        self.remote = Remote(
            command_invoked=lambda frame: {"type": "command_response", "id": frame["id"], **ANSWERS[frame["name"]]}
        )

    async def __aenter__(self) -> Asked:
        await self._stage.__aenter__()
        manager_of(self._stage.session.agent.extensions).join("afar", self.remote.link)
        commands = [{"type": "register_command", "name": name} for name in ANSWERS]
        await self.remote.says({"type": "hello", "name": "afar"}, *commands, {"type": "ready"})
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self._output = StreamWriter(self._write)
        self._once = OneRun(self._stage.session, self._output, self._face(self._output))
        return self

    async def __aexit__(self, *problem: Any) -> None:
        await self._stage.__aexit__(*problem)
        self._output.close()
        os.close(self._write)
        os.close(self._read)

    def join(self, name: str, remote: Remote) -> Joined:
        """Let another extension take part."""
        return manager_of(self._stage.session.agent.extensions).join(name, remote.link)

    async def run(self, prompt: str) -> str:
        """Return the output for a prompt, errors included."""
        problem = ""
        try:
            await self._once.run(prompt)
        except AgentError as refusal:
            problem = f"! {refusal}"
        await self._output.drained()
        with suppress(BlockingIOError):
            return os.read(self._read, 65536).decode() + problem
        return problem


async def test_a_prompt_that_is_a_command_runs_it(tmp_path: Path) -> None:
    async with Asked(tmp_path, FinalText) as asked:
        assert await asked.run("/tell  Ada and\nBob ") == "note\n"
        assert await asked.run("/put") == "text\n"
        assert await asked.run("/ask") == "asked\n"
        assert await asked.run("/nothing") == ""
        assert await asked.run("/fail") == "! cannot"
        assert (
            await asked.run("/open")
            == "! /open opens a panel, which needs a terminal: start zot without -p, then type /open"
        )
        told = [frame for frame in asked.remote.heard if frame["type"] in ("command_invoked", "panel_close")]
    assert (told[0]["name"], told[0]["args"]) == ("tell", "Ada and\nBob")
    assert told[-1] == {"type": "panel_close", "panel_id": "p"}


@pytest.mark.parametrize("face", [FinalText, lambda output: EventLines(output, frozenset({"extensions"}))])
async def test_a_blocked_answer_is_a_success_and_a_notice_gives_the_reason(
    tmp_path: Path, face: Callable[[StreamWriter], OutputFormat], capfd: pytest.CaptureFixture[str]
) -> None:
    async with Asked(tmp_path, face) as asked:
        guard = Remote(event_intercept=lambda frame: {**HELD, "id": frame["id"]})
        extension = asked.join("guard", guard)
        await guard.says(
            {"type": "hello", "name": "guard"},
            {"type": "subscribe", "intercept": ["assistant_message"]}, {"type": "ready"},
        )  # fmt: skip
        await extension.settled()
        written = await asked.run("!echo secret")
    assert "[guard] warn: not for you\n" in capfd.readouterr().err
    if face is FinalText:
        assert written == ""
    else:
        told = [frame for frame in frames(written) if not is_wait(frame)]
        assert [frame["type"] for frame in told[-4:]] == ["usage", "ext_notify", "turn_end", "done"]
        assert told[-3] == {
            "type": "ext_notify", "extension": "guard", "level": "warn", "message": "not for you",
            "blocked": "assistant_message",
        }  # fmt: skip


async def test_other_prompts_go_to_the_model(tmp_path: Path) -> None:
    async with Asked(tmp_path, FinalText) as asked:
        for prompt in ("/usr/bin/env", "/", "/ tell", "//tell", " /tell"):
            assert await asked.run(prompt) != ""
        assert [frame for frame in asked.remote.heard if frame["type"] == "command_invoked"] == []


async def test_with_events_a_command_is_answered_as_over_rpc(tmp_path: Path) -> None:
    async def ask(command: str) -> str:
        place = tmp_path / command[1:4]
        place.mkdir()
        async with Asked(place, lambda output: EventLines(output, frozenset())) as asked:
            return await asked.run(command)

    display, prompt, failed, opened = [await ask(command) for command in ("/tell Ada", "/ask", "/fail", "/open")]
    data = {"extension": "afar", "action": "display", "display": "note"}
    response = {"type": "response", "command": "run_command", "success": True}
    assert frames(display) == [{**response, "data": data}, {"type": "done"}]
    first, *rest = frames(prompt)
    assert first == {**response, "data": {"extension": "afar", "action": "prompt", "prompt": "!echo asked"}}
    grammar = Grammar()
    for frame in ({"type": "response", "command": "prompt", "success": True}, *rest):
        grammar.take(frame)
    grammar.finish()
    panel = "/open opens a panel, which needs a terminal: start zot without -p, then type /open"
    for written, reason in ((failed, "cannot"), (opened, panel)):
        lines, _, told = written.rpartition("! ")
        assert told == reason
        assert frames(lines) == [
            {**response, "success": False, "error": reason}, {"type": "error", "message": reason}, {"type": "done"},
        ]  # fmt: skip


def frames(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.split("\n")[:-1]]
