"""The log of an extension, which it writes itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zot.errors import AgentError

from .stage import Extension, Stage


async def test_a_log_stays_short_while_its_extension_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zot.extensions.log.MAX_BYTES", 100_000)
    monkeypatch.setattr("zot.extensions.log._MIN_PAUSE_S", 0.01)
    chatty = """
hello("commands"); say("register_command", name="talk"); say("ready")
for frame in frames():
    if frame["type"] == "command_invoked":
        os.write(2, b"x" * 300_000)
        while os.fstat(2).st_size > 100_000:
            time.sleep(0.01)
        os.write(2, b"the end")
        say("command_response", id=frame["id"], action="noop")
    elif frame["type"] == "shutdown":
        break
"""
    async with Stage(tmp_path, Extension(tmp_path, "chatty", chatty)) as stage:
        await stage.session.run_command("talk", "")
    assert "the end" in stage.log("chatty")
    aside = tmp_path / "logs" / "ext-chatty.log.1"
    assert (aside.read_bytes(), os.stat(aside).st_mode & 0o777) == (b"x" * 100_000, 0o600)


async def test_an_extension_that_floods_its_log_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MAX_BYTES", "_MAX_FLOOD_BYTES"):  # How fast it writes depends on the machine.
        monkeypatch.setattr(f"zot.extensions.log.{limit}", 100_000)
    flooding = """
hello("commands"); say("register_command", name="talk"); say("ready")
for frame in frames():
    if frame["type"] == "command_invoked":
        while True:
            os.write(2, b"x" * 60_000 + b"\\n")
    elif frame["type"] == "shutdown":
        break
"""
    async with Stage(tmp_path, Extension(tmp_path, "flooding", flooding)) as stage:
        with pytest.raises(AgentError, match="wrote more than 100000 bytes to standard error"):
            await stage.session.run_command("talk", "")
