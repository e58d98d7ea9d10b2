"""`zot mcp` at the shell."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from shell import Shell

SERVER = str(Path(__file__).parents[1] / "mcp_client" / "server.py")


def server(mode: str = "good") -> str:
    return f"s={sys.executable} {SERVER} {mode}"


def test_a_server_is_listed_tested_and_called(shell: Shell) -> None:
    flag = ("--mcp", server())
    assert json.loads(shell.run("mcp", "list", "--json", *flag).out)["tools"] is None
    tested = json.loads(shell.run("mcp", "test", "--json", *flag).out)
    assert (tested["ok"], tested["revision"], len(tested["tools"])) == (True, "2026-07-28", 3)
    assert json.loads(shell.run("mcp", "list", "--json", *flag).out)["tools"] == 3
    assert "mcp__s__echo\n    Say it[31m again.\n" in shell.run("mcp", "tools", "s", *flag).out
    said = shell.run("mcp", "call", "s", "echo", '{"text": "hello"}', *flag)
    assert (said.out, said.code) == ("echo: hello\n", 0)
    assert shell.run("mcp", "call", "s", "echo", '{"text": "fail"}', *flag).code == 1
    assert "starting " in shell.run("mcp", "logs", "s", *flag).out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("test", "nope"), "no MCP server is named 'nope'"),
        (("call", "s", "nope"), "s has no tool 'nope'"),
        (("call", "s", "echo", "7"), "the arguments are not a JSON object"),
        (("logs", "s"), "it has not been started yet"),
        (("trust",), "no such file"),
    ],
)
def test_mistakes_are_explained(shell: Shell, words: tuple[str, ...], problem: str) -> None:
    said = shell.run("mcp", *words, "--mcp", server())
    assert said.code == 1
    assert problem in said.err


def test_a_server_that_fails_its_test_is_explained(shell: Shell) -> None:
    said = shell.run("mcp", "test", "--mcp", server("exits"))
    assert said.code == 1
    assert "s: exited with 1: no such thing; its log: zot mcp logs s" in said.err


def test_a_projects_servers_are_trusted_by_content(shell: Shell) -> None:
    file = shell.cwd / ".mcp.json"
    file.write_text(json.dumps({"mcpServers": {"p": {"command": sys.executable, "args": [SERVER]}}}))
    assert "is not trusted" in shell.run("mcp", "list").err
    assert shell.run("mcp", "test", "p").code == 1
    assert f"p: {sys.executable} {SERVER}\n" in shell.run("mcp", "trust").out
    assert shell.run("mcp", "test", "p").code == 0
    file.write_text(file.read_text() + "\n")
    assert shell.run("mcp", "test", "p").code == 1
    assert shell.run("mcp", "untrust").code == 0
    assert shell.run("mcp", "untrust").code == 1


def test_secrets_of_servers_are_not_shown_by_zot_config(shell: Shell) -> None:
    shell.home.mkdir()
    (shell.home / "config.toml").write_text('[mcp.a]\ncommand = "x"\nenv = { TOKEN = "hunter2" }\n')
    for words in (("config",), ("config", "--json")):
        said = shell.run(*words)
        assert "hunter2" not in said.out
        assert '["a"]' in said.out
    assert "hunter2" not in shell.run("mcp", "list", "--json").out


def test_a_prompt_calls_a_tool_that_is_known_from_a_test(shell: Shell) -> None:
    flag = ("--mcp", server())
    shell.run("mcp", "test", *flag)
    script = '!script call mcp__s__echo {"text": "hello"} ;; --- ;; say done'
    said = shell.run("--json", script, "--provider", "lab", *flag)
    results = [one for one in map(json.loads, said.out.splitlines()) if one["type"] == "tool_result"]
    assert [one["content"][0]["text"] for one in results] == ["echo: hello"]
