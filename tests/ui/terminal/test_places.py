"""The terminal in every environment: small and large, dark and light, with and without colours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ui.terminal.stage import stage
from zot.commands.terminal import can_show_screen
from zot.ui.terminal.styles import Look, look_for

SCRIPT = r"""
think "Look first."
say "# Title\n\nSome **bold** text, `code` and 你好.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nx = 1\n```\n"
call write {"path": "x.py", "content": "a = 1\n"}
call read {"path": "nowhere.txt"}
---
say "All of it is done."
"""


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (300, 100)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_everything_fits_a_screen_of_any_size(tmp_path: Path, size: tuple[int, int]) -> None:
    script = tmp_path / "all.lab"
    script.write_text(SCRIPT)
    async with stage(tmp_path, size=size, script=str(script)) as person:
        await person.sees("ready")
        await person.says("go")
        await person.sees("All of it is done.")
        await person.idle()
        rows = person.screen.split("\n")
        assert len(rows) == size[1]
        assert rows[-1].lstrip().startswith("ready")
        assert "lab-1" in rows[-1]
        assert rows[-2].strip() == "Ask anything. /help, @file"
        assert rows[-3] == "─" * size[0]
        await person.pilot.press("ctrl+home")
        await person.sees("❯ go")
        assert "▸ thought, 2 words" in person.screen
        assert person.app.transcript.virtual_size.height < 40


async def test_colours_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "all.lab"
    script.write_text(SCRIPT)
    monkeypatch.setenv("NO_COLOR", "1")
    async with stage(tmp_path, script=str(script)) as person:
        await person.sees("ready")
        await person.says("go")
        await person.sees("All of it is done.")
        await person.idle()
        parts = [part for strip in person.app.screen._compositor.render_strips() for part in strip]
        colours = {part.style.color for part in parts if part.style} | {
            part.style.bgcolor for part in parts if part.style
        }
        assert {colour.name for colour in colours if colour is not None} <= {"default"}
        assert "✗ read  nowhere.txt" in person.screen


async def test_the_name_of_the_directory_or_of_the_model_cannot_control_the_terminal(tmp_path: Path) -> None:
    place = tmp_path / "ev\x1b]0;PWNED\x07\nil\u202ex"
    place.mkdir()
    async with stage(tmp_path, size=(300, 20), cwd=str(place)) as person:
        await person.sees(r"ev\x1b]0;PWNED\x07\nil\u202ex")
        now = await person.app.live.conversation.state()
        person.app.status.show(msgspec.structs.replace(now, model="lab-\x1b[2J\u202e"))
        await person.sees(r"lab-\x1b[2J\u202e ·")
        assert person.screen.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("colours", "theme"), [("", "ansi_dark"), ("15;0", "ansi_dark"), ("0;default;15", "ansi_light")]
)
def test_code_is_readable_on_dark_and_on_light(colours: str, theme: str) -> None:
    assert look_for({"COLORFGBG": colours}, "utf-8").code_theme == theme


@pytest.mark.parametrize(("code", "theme"), [("ansi_dark", "ansi-dark"), ("ansi_light", "ansi-light")])
async def test_the_theme_fits_the_background(tmp_path: Path, code: str, theme: str) -> None:
    async with stage(tmp_path, look=Look(code_theme=code)) as person:
        await person.sees("ready")
        assert person.app.theme == theme


@pytest.mark.parametrize(
    ("lang", "shown"),
    [
        ("xx_XX.ISO-8859-1", "iso8859-1"),
        ("xx_XX.ISO-8859-15@euro", "iso8859-15"),
        ("xx_XX.KLINGON-1", "ascii"),
        ("xx_XX.UTF-8", "utf-8"),
        ("C", "utf-8"),
    ],
)
def test_a_missing_locale_still_determines_the_character_set(lang: str, shown: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))}
    asked = [sys.executable, "-c", "from zot.ui.terminal.styles import charset; print(charset())"]
    said = subprocess.run(asked, env={**env, "LANG": lang}, capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.strip() == shown
    whole = subprocess.run(asked, env={**env, "LANG": lang, "LC_ALL": "C"}, capture_output=True, text=True, check=True)
    assert whole.stdout.strip() == "ascii"


@pytest.mark.parametrize(("encoding", "unicode"), [("utf-8", True), ("ascii", False), ("iso8859-1", False)])
def test_characters_a_locale_cannot_show_are_not_drawn(encoding: str, *, unicode: bool) -> None:
    assert look_for({}, encoding).unicode is unicode


@pytest.mark.parametrize(("name", "screen"), [("xterm-256color", True), ("dumb", False), ("", False)])
def test_a_line_terminal_gets_no_full_screen(name: str, *, screen: bool) -> None:
    assert can_show_screen({"TERM": name}) is screen
