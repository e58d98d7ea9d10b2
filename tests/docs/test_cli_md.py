"""reference/cli.md and the manual pages equal the output of scripts/manual.py for the commands' tables."""

from __future__ import annotations

import re
import runpy
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from optional import needs
from zot.cli import _COMMANDS, _USAGE
from zot.commands.completion import COMMANDS
from zot.commands.subcommands import CommandGroup
from zot.config.flags import Flag, Manual

ROOT = Path(__file__).parents[2]
MADE = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "manual.py")))
MANUALS: dict[str, Manual | CommandGroup] = dict(MADE.manuals())
ALONE = {name: manual for name, manual in MANUALS.items() if isinstance(manual, Manual)} | {
    f"{group.command} {one.name}": group.manual(one)
    for group in MANUALS.values()
    if isinstance(group, CommandGroup)
    for one in group.subcommands.values()
}


def test_the_page_is_current() -> None:
    assert MADE.PAGE.read_text() == MADE.page(), "run: python scripts/manual.py"


def test_the_manual_pages_are_current() -> None:
    kept = {path.name: path.read_text() for path in MADE.MAN.glob("*.1")}
    assert kept == MADE.man_pages(), "run: python scripts/manual.py"


@needs("groff")
@pytest.mark.parametrize("name", sorted(path.name for path in MADE.MAN.glob("*.1")))
def test_a_manual_page_is_formatted_without_a_warning(name: str) -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z", str(MADE.MAN / name)], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_every_command_has_a_manual_and_is_in_the_help_of_zot() -> None:
    commands = {name for name in _COMMANDS if not name.startswith("-")}
    assert commands == {*COMMANDS}
    for name in commands:
        assert re.search(rf"\bzot {name}\b", _USAGE), name


@pytest.mark.parametrize("name", ALONE)
def test_help_speaks_in_imperative_sentences(name: str) -> None:
    """Each text begins with a capital and ends with a period; with examples of its own commands and with exit codes."""
    manual = ALONE[name]
    assert_sentences([flag.help for flag in manual.flags])
    assert_sentences([*manual.exits.values(), *(purpose for _, purpose in manual.examples)])
    assert manual.exits
    assert manual.examples or " " in name.removeprefix("zot ")
    for line, _ in manual.examples:
        assert manual.command in line or "zot" in line


def assert_sentences(texts: Sequence[str]) -> None:
    assert [text for text in texts if not re.fullmatch(r"(?:[A-Z]|zot |`).*\.", text)] == []


@pytest.mark.parametrize("name", ALONE)
def test_no_two_flags_of_a_command_have_one_name(name: str) -> None:
    names = [word for flag in ALONE[name].flags for word in (flag.name, flag.short) if word]
    assert len(names) == len(set(names))


def default_of(flag: Flag) -> str | None:
    found = re.search(r"\(default: ([^);]+)", flag.help)
    return found[1] if found else None


def test_defaults_in_the_help_are_those_of_the_settings() -> None:
    from zot.config.config import AGENT_FLAGS, Config

    shown = {flag.key: default_of(flag) for flag in AGENT_FLAGS if (default_of(flag) or " ").split(".")[0].isalnum()}
    config = Config(provider="lab")
    assert {
        key: f"{getattr(config, key):g}" if key.endswith("_s") else str(getattr(config, key)) for key in shown
    } == shown
    assert len(shown) >= 4
