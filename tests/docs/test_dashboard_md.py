"""how-to/dashboard.md: its command lines are those of `zot web`, its keys and words those of the page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from zot.commands.daemon import MANUAL
from zot.commands.subcommands import CommandRequest
from zot.commands.web import DEFAULT_PORT, GROUP, _roles
from zot.config import flags
from zot.config.pairing import CODE_S, DEVICE_S

from .markdown import blocks

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "how-to" / "dashboard.md").read_text()
ASSETS = ROOT / "src" / "zot" / "serve" / "web" / "assets"


def test_every_command_line_is_understood() -> None:
    lines = [line for block in blocks(TEXT, "sh") for line in block.text.strip().split("\n")]
    seen = set()
    for _, command, *words in (shlex.split(line, comments=True) for line in lines if line.startswith("zot ")):
        if command == "daemon":
            assert flags.parse(words, MANUAL.flags)[1] == []
            continue
        name, rest = ("start", words) if words[0].startswith("-") else (words[0], words[1:])
        found = GROUP.subcommands[name]
        settings, left = flags.parse(rest, GROUP.manual(found).flags)
        assert found.words[0] <= len(left) <= found.words[1]
        assert _roles(CommandRequest(left, settings))
        seen.add(name)
    assert seen == {"start", "pair", "devices", "revoke", "status"}


def test_its_figures_and_names_are_right() -> None:
    script = (ASSETS / "main.js").read_text()
    assert f"ws://127.0.0.1:{DEFAULT_PORT}" in TEXT
    assert (CODE_S, DEVICE_S) == (5 * 60, 30 * 86400)
    assert "within five minutes" in TEXT
    assert "after 30 days" in TEXT
    for word in ("Live", "Catching up", "Connection lost", "Not paired"):
        assert f"`{word}`" in TEXT
        assert f'"{word}' in script


def test_the_keys_of_the_table_are_those_of_the_page() -> None:
    script = (ASSETS / "main.js").read_text()
    table = TEXT.partition("| Key | Does |")[2].partition("\n\n")[0]
    keys = {
        key for row in table.split("\n") for key in re.findall(r"`([^`]+)`", row.split("|")[1] if "|" in row else "")
    }
    listed = script.partition("const KEYS = [")[2].partition("];")[0]
    shown = {key for keys in re.findall(r'\["([^"]+)", ', listed) for key in keys.split(" ")}
    assert keys == shown - {"Shift+Enter"}
    bound = {*re.findall(r'press\.key === "([\w/?]+)"', script), *re.findall(r'(\w): "#/', script)}
    assert {"s", "o", "i", "n", "j", "k", "/", "?", "p"} <= bound
