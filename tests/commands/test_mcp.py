"""`zot mcp` at the shell."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest

from mcp_client.web_server import threaded_web_server
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


def rows(shell: Shell) -> dict[str, tuple[str, int | None]]:
    """Return the state and the number of tools of each server that `zot mcp list` names."""
    said = map(json.loads, shell.run("mcp", "list", "--json").out.splitlines())
    return {one["name"]: (one["state"], one["tools"]) for one in said}


def test_a_program_is_added_used_switched_off_and_removed(shell: Shell) -> None:
    assert shell.run("mcp", "add", "s", f"{sys.executable} {SERVER} good", "--env", "A=${NOT_SET:-b}").code == 0
    assert shell.run("mcp", "add", "s", "other").code == 1
    assert rows(shell) == {"s": ("usable", None)}
    assert "s: 3 tools, protocol 2026-07-28" in shell.run("mcp", "test").out
    assert shell.run("mcp", "disable", "s").out == "disabled s\n"
    assert rows(shell) == {"s": ("disabled", None)}
    assert "s: it is disabled" in shell.run("mcp", "call", "s", "echo").err
    assert shell.run("mcp", "enable", "s").out == "enabled s\n"
    assert rows(shell) == {"s": ("usable", 3)}
    assert len(shell.run("mcp", "tools", "--json").out.splitlines()) == 3
    assert shell.run("mcp", "call", "s", "echo", '{"text": "x"}').out == "echo: x\n"
    assert "starting " in shell.run("mcp", "logs", "s").out
    assert shell.run("mcp", "remove", "s").out == "removed s\n"
    assert "there are no MCP servers" in shell.run("mcp", "list").err
    for words in (("remove", "s"), ("enable", "s"), ("login", "s"), ("logout", "s")):
        assert shell.run("mcp", *words).code == 1


def test_servers_of_another_program_are_imported(shell: Shell) -> None:
    file = shell.user / ".cursor" / "mcp.json"
    file.parent.mkdir()
    servers = {"my files": {"command": sys.executable, "args": [SERVER]}, "web": {"url": "http://127.0.0.1:1/mcp"}}
    file.write_text(json.dumps({"mcpServers": servers}))
    assert "my files, web" in shell.run("mcp", "import").out
    assert "has no server 'nope'" in shell.run("mcp", "import", str(file), "nope").err
    assert shell.run("mcp", "import", str(file), "my files").out == "added my-files\n"
    assert shell.run("mcp", "import", str(file)).out == "added web\n"
    assert rows(shell) == {"my-files": ("usable", None), "web": ("usable", None)}
    assert shell.run("mcp", "test", "my-files").code == 0

    more = {
        "a b": {"command": "x"},
        "a-b": {"command": "y"},
        "port": {"command": "x", "env": {"PORT": 1}},
        "c": {"command": "z"},
    }
    file.write_text(json.dumps({"mcpServers": more}))
    imported = shell.run("mcp", "import", str(file))
    assert (imported.out, imported.code) == ("added a-b\nadded c\n", 0)
    assert "a-b: there is a server 'a-b' already" in imported.err
    assert "port was skipped: env" in imported.err
    file.write_text("{}")
    assert "lists no servers" in shell.run("mcp", "import", str(file)).err


def test_a_failure_is_explained_by_the_list_until_it_is_over(shell: Shell) -> None:
    with threaded_web_server("bad", "redirects") as web:
        shell.run("mcp", "add", "w", web.url)
        assert shell.run("mcp", "test", "w").code == 1
        assert rows(shell) == {"w": ("failed", None)}
        assert "w: redirects elsewhere (HTTP 307)" in shell.run("mcp", "list").err
        assert "redirects elsewhere (HTTP 307)" in shell.run("doctor", "--offline").out
        assert "redirects elsewhere (HTTP 307)" in shell.run("mcp", "logs", "w").out
        web.mode = ("new", "json")
        assert shell.run("mcp", "test", "w").code == 0
        assert rows(shell) == {"w": ("usable", 1)}


def test_a_server_over_http_is_logged_in_to_and_out_of(shell: Shell) -> None:
    with threaded_web_server("new", "json") as web:
        web.token = "nobody has this"
        shell.run("mcp", "add", "w", web.url)
        assert "zot mcp login w" in shell.run("mcp", "test", "w").err
        assert shell.run("mcp", "logout", "w").code == 1
        with shell.start("mcp", "login", "w") as login:
            assert login.stdout is not None
            assert login.stderr is not None
            assert b"open this address to log in" in login.stderr.readline()
            asked = parse_qs(urlsplit(login.stderr.readline().decode().strip()).query)
            with urlopen(f"{asked['redirect_uri'][0]}?code=c&state={asked['state'][0]}") as page:
                assert page.status == 200
            assert login.stdout.read().decode() == f"logged in to {web.url}\n"
        assert login.returncode == 0
        assert (shell.run("mcp", "test", "w").code, rows(shell)) == (0, {"w": ("usable", 1)})
        assert shell.run("mcp", "call", "w", "echo", '{"text": "x"}').out == "you said x\n"
        assert "without a new login" in shell.run("mcp", "login", "w").out
        assert shell.run("mcp", "logout", "w").out == f"deleted the login to {web.url}\n"
        assert "zot mcp login w" in shell.run("mcp", "test", "w").err


def test_a_project_s_server_gets_no_login_before_it_is_trusted(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        servers = {"docs": {"url": url, "headers": {"x": "${HOME}"}}}
        (shell.cwd / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
        said = shell.run("mcp", "login", "docs")
        assert said.code == 1
        assert "zot mcp trust" in said.err
        with pytest.raises(BlockingIOError):  # Nothing has connected.
            listening.accept()


def test_the_question_of_trust_names_what_a_project_s_server_gets(shell: Shell) -> None:
    (shell.cwd / "sub").mkdir()
    servers = {
        "docs": {"url": "https://docs.example/mcp?key=${HOME}", "headers": {"X-Key": "${PATH}"}},
        "local": {"command": "server", "env": {"LEVEL": "${HOME}"}, "cwd": "sub"},
    }
    (shell.cwd / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    assert shell.run("mcp", "trust").out.startswith(
        "docs: https://docs.example/mcp\n    sends the headers x-key\n    reads HOME, PATH\n"
        f"local: server\n    sets LEVEL\n    reads HOME\n    runs in {shell.cwd / 'sub'}\n"
    )
