"""Servers in config.toml: added, removed, switched on and off, and imported from other programs."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from zot.config.flags import McpServer
from zot.config.server_tables import add_server, enable_server, remove_server
from zot.errors import UserError
from zot.mcp.listed_server import read_servers

BEFORE = """# mine
[agents.default]
model = "m" # stays

[mcp.a]
command = "x"
[mcp.a.env]
K = "v"

[daemon]
idle_s = 5
"""


def tables(home: Path) -> dict[str, Any]:
    return tomllib.loads((home / "config.toml").read_text())


def test_a_table_is_added_and_removed_and_the_rest_stays(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(BEFORE)
    server = McpServer(command="it's", args=('"q"\n\x7f',), env={"A B": "é"}, timeout_s=7.5)
    add_server(str(tmp_path), "b", server)
    assert tables(tmp_path)["mcp"]["b"] == {
        "command": "it's", "args": ['"q"\n\x7f'], "env": {"A B": "é"}, "timeout_s": 7.5}  # fmt: skip
    with pytest.raises(UserError, match="already"):
        add_server(str(tmp_path), "b", server)
    remove_server(str(tmp_path), "a")
    text = (tmp_path / "config.toml").read_text()
    assert "# mine" in text
    assert 'model = "m" # stays' in text
    assert [*tables(tmp_path)["mcp"]] == ["b"]
    assert tables(tmp_path)["daemon"] == {"idle_s": 5}
    with pytest.raises(UserError, match="no server 'a'"):
        remove_server(str(tmp_path), "a")


def test_a_server_is_switched_off_and_on(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(BEFORE)
    enable_server(str(tmp_path), "a", enabled=False)
    assert tables(tmp_path)["mcp"]["a"] == {"command": "x", "enabled": False, "env": {"K": "v"}}
    enable_server(str(tmp_path), "a", enabled=True)
    assert (tmp_path / "config.toml").read_text().count("enabled") == 1


def test_a_file_that_cannot_be_edited_is_left_alone(tmp_path: Path) -> None:
    inline = 'mcp = { a = { command = "x" } }\n'
    (tmp_path / "config.toml").write_text(inline)
    with pytest.raises(UserError, match="by hand"):
        remove_server(str(tmp_path), "a")
    with pytest.raises(UserError, match="by hand"):
        add_server(str(tmp_path), "b", McpServer(url="u"))
    assert (tmp_path / "config.toml").read_text() == inline


def test_servers_of_other_programs_are_read(tmp_path: Path) -> None:
    both = {"files": {"command": "f", "args": ["."]}, "web": {"type": "http", "url": "https://x"}, "bad": 7, "none": {}}
    (tmp_path / "a.json").write_text(json.dumps({"other": 1, "mcpServers": both}))
    (tmp_path / "b.json").write_text(json.dumps({"servers": both}))
    (tmp_path / "c.toml").write_text('[mcp_servers.files]\ncommand = "f"\nargs = ["."]\n')
    found = read_servers(str(tmp_path / "a.json"))
    assert found == read_servers(str(tmp_path / "b.json"))
    assert [*found.usable] == ["files", "web"]
    assert found.problems == {"bad": "it must be an object, not a whole number", "none": "it has no command and no url"}
    assert found.usable["web"].url == "https://x"
    assert read_servers(str(tmp_path / "c.toml")).usable["files"].args == (".",)
    with pytest.raises(UserError, match="No such file"):
        read_servers(str(tmp_path / "d.json"))


def test_servers_are_read_in_the_words_of_each_program(tmp_path: Path) -> None:
    def read(name: str, text: str) -> dict[str, McpServer]:
        (tmp_path / name).write_text(text)
        found = read_servers(str(tmp_path / name))
        assert not found.problems
        return found.usable

    codex = read(
        "codex.toml",
        '[mcp_servers.off]\ncommand = "f"\nenabled = false\n'
        '[mcp_servers.far]\nurl = "https://x"\nbearer_token_env_var = "TOKEN"\nhttp_headers = { X-Team = "core" }\n',
    )
    assert codex["off"] == McpServer(command="f", enabled=False)
    assert codex["far"].headers == {"X-Team": "core", "Authorization": "Bearer ${TOKEN}"}
    gemini = read("gemini.json", '{"mcpServers": {"far": {"httpUrl": "https://x", "timeout": 5000}}}')
    windsurf = read("windsurf.json", '{"mcpServers": {"far": {"serverUrl": "https://x"}}}')
    assert gemini["far"] == windsurf["far"] == McpServer(url="https://x")
    zed = read("zed.json", '{"context_servers": {"z": {"command": "f", "args": null, "env": null}}}')
    assert zed["z"] == McpServer(command="f")
    vscode = read(
        "vscode.json",
        """{ // Settings of an editor have comments
          "servers": { /* and last commas */
            "web": {"command": "f", "args": ["http://a//b", "/*,]", "a\\\\",], "env": {"HOME": "${env:HOME}"},},
          },
        }""",
    )
    assert vscode["web"] == McpServer(command="f", args=("http://a//b", "/*,]", "a\\"), env={"HOME": "${HOME}"})


def test_a_server_whose_values_an_editor_asks_for_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"servers": {"a": {"command": "f", "env": {"KEY": "${input:key}"}}}}')
    found = read_servers(str(tmp_path / "a.json"))
    assert (found.usable, found.problems) == ({}, {"a": "only its own program can fill in ${input:key}"})
