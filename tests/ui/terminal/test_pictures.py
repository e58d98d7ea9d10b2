"""Images: in the terminal itself where it can show them, else as their type and size."""

from __future__ import annotations

import re
import struct
import threading
import zlib
from base64 import b64decode
from pathlib import Path

import pytest
from textual.events import Key

from ui.terminal.stage import PATIENCE_S, stage
from ui.terminal.test_order import press_at_once
from zot.messages import ImageBlock, text_of
from zot.ui.terminal import mentions
from zot.ui.terminal.app import ZotApp
from zot.ui.terminal.markdown import console
from zot.ui.terminal.pictures import Picture, picture, shows_images, transmission

CELL = "\U0010eeee"
HELD = """!script call bash {"command": "while ! [ -e go ]; do sleep 0.02; done"} ;; --- ;; say "released" """


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress((b"\0" + b"\xff\0\0" * width) * height)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The bytes that the terminal receives besides the drawing."""
    found: list[str] = []
    monkeypatch.setattr(ZotApp, "send", lambda _, text: found.append(text))
    for name in ("TMUX", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.mark.parametrize(
    ("env", "shows"),
    [
        ({"TERM": "xterm-kitty"}, True),
        ({"TERM": "xterm-ghostty"}, True),
        ({"TERM": "xterm-256color"}, False),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/tmux"}, False),
        ({"TERM": "xterm-kitty", "NO_COLOR": "1"}, False),
        ({}, False),
    ],
)
def test_image_support_is_detected_by_terminal(env: dict[str, str], *, shows: bool) -> None:
    assert shows_images(env) is shows


async def test_images_are_shown_where_supported_and_again_when_the_session_is_reopened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm-kitty")
    (tmp_path / "dot.png").write_bytes(png(32, 32))
    (tmp_path / "bar.png").write_bytes(png(64, 16))
    script = tmp_path / "looks.lab"
    script.write_text('call read {"path": "bar.png"}\n---\nsay "Seen."\n')
    async with stage(tmp_path, script=str(script)) as person:
        await person.sees("ready")
        session = (await person.app.live.conversation.state()).session
        await person.says("look at @dot.png ")
        await person.sees("Seen.")
        await person.until(lambda: person.screen.count(CELL) == 4 * 2 + 8 * 1, "both images")
        assert "[image/png, " in person.screen
        assert [_numbers(one) for one in sent] == [(16, 4, 2), (17, 8, 1)]
    sent.clear()
    async with stage(tmp_path, session=session) as person:
        await person.until(lambda: person.screen.count(CELL) == 4 * 2 + 8 * 1, "both images")
        assert len(sent) == 2


async def test_elsewhere_an_image_is_shown_as_type_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    (tmp_path / "dot.png").write_bytes(png(32, 32))
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says("look at @dot.png ")
        await person.sees("[image/png, ")
        await person.idle()
        assert CELL not in person.screen
    assert sent == []


async def test_a_named_image_is_sent_to_the_running_prompt_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    (tmp_path / "dot.png").write_bytes(png(32, 32))
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says(HELD)
        await person.sees("running bash")
        await person.says("!echo first @dot.png", "ctrl+s")
        await person.says("!echo second", "ctrl+s")
        await person.says("!echo never @dot.png", "ctrl+s")
        await person.sees("steering: !echo never")
        await person.pilot.press("ctrl+r")
        await person.misses("steering: !echo never")
        (tmp_path / "go").touch()
        await person.sees("❯ !echo second")
        await person.idle()
        said = [one.content for one in await person.app.live.conversation.messages() if one.role == "user"]
        assert [(text_of(content), len(content)) for content in said] == [
            (HELD, 1),
            ("!echo first @dot.png", 2),
            ("!echo second", 1),
        ]
        assert "[image/png, " in person.screen


@pytest.mark.parametrize("key", ["ctrl+r", "escape"])
async def test_a_prompt_withdrawn_while_its_images_load_is_never_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    (tmp_path / "dot.png").write_bytes(png(32, 32))
    begun, may_go_on, read = threading.Event(), threading.Event(), mentions.images_in

    def slow(text: str, cwd: str) -> list[ImageBlock]:
        begun.set()
        assert may_go_on.wait(PATIENCE_S)
        return read(text, cwd)

    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says(HELD)
        await person.sees("running bash")
        monkeypatch.setattr(mentions, "images_in", slow)
        await person.says("!echo never @dot.png", "ctrl+s")
        await person.until(begun.is_set, "that its image is read")
        person.app.post_message(Key(key, None))
        await person.until(lambda: person.app.message_queue_size == 0, "that the key is heard")
        may_go_on.set()
        await person.misses("steering: !echo never")
        (tmp_path / "go").touch()
        await person.until(lambda: not person.app.speech.runs, "the end")
        await person.idle()
        said = [text_of(one.content) for one in await person.app.live.conversation.messages() if one.role == "user"]
        assert said == [HELD]


async def test_a_simultaneous_abort_keeps_a_steering_image_from_being_sent(tmp_path: Path) -> None:
    (tmp_path / "dot.png").write_bytes(png(32, 32))
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says("!slow 1000 0.02")
        await person.sees("answering")
        person.app.editor.insert("!echo never @dot.png")
        press_at_once(person, "ctrl+s", "escape")
        await person.sees("aborted")
        await person.idle()
        assert person.app.editor.text == "!echo never @dot.png"
        assert len([one for one in await person.app.live.conversation.messages() if one.role == "user"]) == 1


async def test_an_image_that_cannot_be_sent_returns_to_the_editor_with_its_steering_message(tmp_path: Path) -> None:
    with (tmp_path / "huge.png").open("wb") as file:
        file.truncate(21 << 20)
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says("!slow 1000 0.02")
        await person.sees("answering")
        await person.says("!echo never @huge.png ", "ctrl+s")
        await person.sees("huge.png has more than 20 MiB")
        assert person.app.editor.text == "!echo never @huge.png "
        assert "steering:" not in person.screen
        await person.pilot.press("escape")
        await person.sees("aborted")


def test_each_cell_says_which_part_of_which_image_it_is() -> None:
    first, second = Picture(20, 3, 2).lines()
    assert first.text == f"  {CELL}\u0305\u0305{CELL}\u0305\u030d{CELL}\u0305\u030e"
    assert second.text == f"  {CELL}\u030d\u0305{CELL}\u030d\u030d{CELL}\u030d\u030e"
    assert (first.cell_length, first.render(console())) == (5, f"  \x1b[38;5;20m{first.text[2:]}\x1b[0m")


@pytest.mark.parametrize(
    ("size", "cells"),
    [((8, 16), (1, 1)), ((1, 1), (1, 1)), ((320, 320), (32, 16)), ((3000, 1500), (40, 10)), ((100, 9000), (1, 16))],
)
def test_an_image_fits(size: tuple[int, int], cells: tuple[int, int]) -> None:
    shown = picture(16, png(*size)[:40])
    assert shown is not None
    assert (shown.columns, shown.rows) == cells


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff\xe0 a photo", b"\x89PNG\r\n\x1a\n", png(1, 1)[:16] + bytes(8)])
def test_formats_these_terminals_cannot_show_are_not_sent(data: bytes) -> None:
    assert picture(16, data) is None


def test_an_image_is_sent_in_pieces_that_every_terminal_takes() -> None:
    data = png(300, 300) + bytes(9000)
    shown = picture(16, data)
    assert shown is not None
    pieces = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", transmission(shown, data))
    assert b64decode("".join(text for _, text in pieces)) == data
    assert all(len(text) <= 4096 for _, text in pieces)
    assert [head[-3:] for head, _ in pieces] == [*["m=1"] * (len(pieces) - 1), "m=0"]


def _numbers(text: str) -> tuple[int, ...]:
    found = re.search(r"i=(\d+),c=(\d+),r=(\d+)", text)
    assert found is not None
    return tuple(map(int, found.groups()))
