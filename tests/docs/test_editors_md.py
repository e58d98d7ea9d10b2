"""The settings for editors start a `zot acp` that answers."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from forked import ForkServer
from harness import environment
from zot.runtime.modes import MODES
from zot.version import __version__

from .markdown import blocks

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "how-to" / "editors.md").read_text()
_PAIRS = {")": "(", "]": "[", "}": "{"}
_INITIALIZE = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n'


def answer(tmp_path: Path, fork_server: ForkServer, command: list[str]) -> Any:
    """Return a command's answer to initialize, started as by an editor."""
    assert command[0] == "zot"
    process = fork_server.fork(command[1:], tmp_path, environment({"ZOT_HOME": str(tmp_path)}))
    output, errors = process.communicate(_INITIALIZE)
    assert process.returncode == 0, errors
    return json.loads(output)


@pytest.mark.parametrize("block", blocks(TEXT, "json"), ids=lambda block: block.id())
def test_settings_in_json_name_a_command_that_answers(block: Any, tmp_path: Path, fork_server: ForkServer) -> None:
    server = json.loads(block.text)["agent_servers"]["zot"]
    assert answer(tmp_path, fork_server, [server["command"], *server["args"]])["result"]["protocolVersion"] == 1


@pytest.mark.parametrize("block", [*blocks(TEXT, "lua"), *blocks(TEXT, "elisp")], ids=lambda block: block.id())
def test_settings_in_other_languages_are_balanced_and_name_the_command(
    block: Any, tmp_path: Path, fork_server: ForkServer
) -> None:
    code = re.sub(r'"[^"\n]*"', '""', block.text)
    assert code.count('"') % 2 == 0
    open_brackets: list[str] = []
    for letter in re.findall(r"[()\[\]{}]", code):
        if letter in _PAIRS:
            assert open_brackets.pop() == _PAIRS[letter]
        else:
            open_brackets.append(letter)
    assert open_brackets == []
    assert len(re.findall(r"\b(function|do|then)\b", code)) == len(re.findall(r"\bend\b", code))
    assert re.search(r'"zot"\W+(args\W+|:command-params\W+)?"acp"', block.text)
    assert answer(tmp_path, fork_server, ["zot", "acp"])["result"]["protocolVersion"] == 1


def test_the_command_to_try_by_hand_is_that_of_an_editor() -> None:
    [block] = [block for block in blocks(TEXT, "sh") if block.text.startswith("echo ")]
    assert block.text.strip() == f"echo '{_INITIALIZE.decode().strip()}' | zot acp"


def test_every_mode_is_in_the_table() -> None:
    assert re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE) == [mode.id for mode in MODES]


def test_the_entry_of_the_registry_names_this_version() -> None:
    entry = json.loads((ROOT / "docs" / "acp-registry" / "agent.json").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name = project["name"]
    assert entry["version"] == __version__
    # A client runs the command of the package's name: the registry's schema has no other one.
    assert entry["distribution"] == {"uvx": {"package": f"{name}@{__version__}", "args": ["acp"]}}
    assert project["scripts"][name] == project["scripts"]["zot"]


def test_the_entry_of_the_registry_has_what_its_schema_demands() -> None:
    entry = json.loads((ROOT / "docs" / "acp-registry" / "agent.json").read_text())
    assert {"id", "name", "version", "description", "authors", "license", "distribution"} == entry.keys()
    assert re.fullmatch(r"[a-z][a-z0-9-]*", entry["id"])
    icon = (ROOT / "docs" / "acp-registry" / "icon.svg").read_text()
    assert 'width="16" height="16" viewBox="0 0 16 16"' in icon
    assert set(re.findall(r'(?:fill|stroke)="([^"]*)"', icon)) <= {"none", "currentColor"}
