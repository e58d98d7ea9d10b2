"""MCP servers of a hostile project: no untrusted program runs, and no key leaks."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit
from urllib.request import urlopen

import pytest

from harness import environment
from zot.commands.mcp import main as mcp
from zot.config.config import Config
from zot.config.trust import TrustStore
from zot.errors import ToolFailed
from zot.mcp.authorization import Authorization, AuthorizationFailed, ServerTokens
from zot.mcp.launch import McpLaunch
from zot.mcp.project_servers import project_file, read_project
from zot.mcp.server_connection import ProcessConnection
from zot.mcp.server_settings import find_servers
from zot.mcp.source import McpSource
from zot.providers.base import Deadlines, HttpRequest
from zot.tools.guardian import open_processes


class Project:
    """A clone with a `.mcp.json`, and the user's home."""

    def __init__(self, top: Path) -> None:
        self.here, self.home = top / "clone", top / "home"
        (self.here / "tools").mkdir(parents=True)
        self.home.mkdir()
        (self.here / "server.py").write_text("print('one')")
        (self.here / "tools" / "run").write_text("#!/bin/sh\nexit 0\n")
        (self.here / "tools" / "run").chmod(0o755)
        self.env = {"ZOT_HOME": str(self.home), "PATH": "/usr/bin:/bin", "OPENAI_API_KEY": "s3cret", "AWS": "theirs"}

    def servers(self, **one: Any) -> None:
        (self.here / ".mcp.json").write_text(json.dumps({"mcpServers": {"evil": one}}))

    def config(self, **settings: Any) -> Config:
        return Config(provider="lab", cwd=str(self.here), env=self.env, **settings)

    def trust(self) -> None:
        found = read_project(self.config(), str(self.here)).fingerprint
        TrustStore(str(self.home)).trust_as(project_file(str(self.here)), found)

    @property
    def found(self) -> McpSource:
        [one] = find_servers(self.config(), str(self.here))
        return one


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


#: Ways to name the code that runs, and the file that a later commit, or a locked run, changes.
NAMED: dict[str, tuple[list[str], str]] = {
    "the program": (["./tools/run"], "tools/run"),
    "the program, absolute": (["{here}/tools/run"], "tools/run"),
    "a script": (["python3", "server.py"], "server.py"),
    "an odd script": (["python3", "tools/../server.py"], "server.py"),
    "a module to preload": (["node", "--require=./tools/preload.js", "x"], "tools/preload.js"),
    "a file that is not there yet": (["python3", "later.py"], "later.py"),
    "a variable": (["python3", "${HERE:-tools}/run"], "tools/run"),
    "a shell script by name": (["sh", "-e", "tools/run"], "tools/run"),
    "a script in a script": (["sh", "-c", "cd . && ./tools/run; exit"], "tools/run"),
    "one of a list": (["node", "--import=a,./tools/preload.js", "x"], "tools/preload.js"),
    "a variable of its environment": (["BASH_ENV=tools/run", "bash", "-c", "true"], "tools/run"),
    "an option in a variable": (["NODE_OPTIONS=--require ./tools/preload.js", "node", "x"], "tools/preload.js"),
}


@pytest.mark.parametrize("way", NAMED)
@pytest.mark.parametrize("change", ["written", "replaced by a link", "removed"])
async def test_a_server_whose_code_has_changed_does_not_start(way: str, change: str, project: Project) -> None:
    words, changed = NAMED[way]
    name, mark, value = words[0].partition("=")
    env = {name: value} if mark else {}
    command, *args = (word.replace("{here}", str(project.here)) for word in words[len(env) :])
    project.servers(command=command, args=args, env=env)
    assert project.found.problem.endswith("is not trusted; look at it, then: zot mcp trust")
    project.trust()
    before = project.found
    assert before.runs
    path = project.here / changed
    was_there = path.exists()
    if change != "written" and was_there:
        path.unlink()
    if change == "written":
        path.write_text("evil")
    elif change == "replaced by a link":
        path.symlink_to("/bin/sh")
    elif not was_there:
        return
    assert "has changed since it was trusted" in project.found.problem
    # A session that found it trusted before does not start it either, nor restart it.
    processes = open_processes()
    try:
        with pytest.raises(ToolFailed, match="has changed since it was trusted"):
            await ProcessConnection.open(before, McpLaunch(processes, str(project.here), None))
    finally:
        await processes.close()


def test_a_program_that_a_path_finds_in_the_project_is_bound_too(project: Project) -> None:
    project.env["PATH"] = f"{project.here}/tools:/usr/bin:/bin"
    project.servers(command="run")
    project.trust()
    assert project.found.runs
    (project.here / "tools" / "run").write_text("#!/bin/sh\nevil\n")
    assert not project.found.runs


def test_a_link_that_leads_out_is_bound_to_where_it_leads(project: Project) -> None:
    (project.here / "start").symlink_to("/bin/true")
    project.servers(command="./start")
    project.trust()
    assert project.found.runs
    (project.here / "start").unlink()
    (project.here / "start").symlink_to("/bin/sh")
    assert not project.found.runs


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.symlink_to("/proc/self/environ"),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.mkdir(),
        os.mkfifo,
        lambda path: path.write_bytes(b"[" * 100_000),
        lambda path: path.write_bytes(b"{}" + b" " * (2 << 20)),
    ],
    ids=["the environment", "a device", "a directory", "a pipe", "deep", "large"],
)
def test_a_file_that_is_no_list_is_an_error_without_its_content(
    damage: Callable[[Path], object], project: Project
) -> None:
    damage(project.here / ".mcp.json")
    for one in find_servers(project.config(trust_project=True), str(project.here)):
        assert one.problem
        assert "s3cret" not in one.problem


def test_no_key_of_zot_gets_into_a_projects_server(project: Project) -> None:
    project.servers(command="x", args=["${OPENAI_API_KEY:-none}"], env={"A": "${OPENAI_API_KEY:-none}", "B": "${AWS}"})
    [one] = find_servers(project.config(trust_project=True), str(project.here))
    assert "s3cret" not in str(one)
    assert (one.argv, one.env["A"], one.env["B"]) == (("x", "none"), "none", "theirs")


def test_trust_shows_what_it_covers_and_nothing_is_obeyed(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project.servers(command="./tools/run", args=["\x1b]0;x\x07", "a\u202eb\u200bc", "x" * 500, "two words"])
    for name, value in environment(project.env).items():
        monkeypatch.setenv(name, value)
    assert mcp(["trust", "--cwd", str(project.here)]) == 0
    said = capsys.readouterr().out
    assert not {"\x1b", "\u202e", "\u200b"} & {*said}
    assert "x" * 500 in said
    assert "'two words'" in said
    assert "    with tools/run\n" in said
    assert project.found.runs


class Issuers:
    """A server that names ``issuer`` as its authorization server, and all issuers; records the requests to each."""

    def __init__(self) -> None:
        self.issuer = "http://127.0.0.1:1001"
        self.sent: list[tuple[str, str]] = []

    async def send(self, request: HttpRequest, deadlines: Deadlines) -> _Said:
        place = urlsplit(request.url)
        origin = f"{place.scheme}://{place.netloc}"
        self.sent.append((origin, f"{request.headers} {request.body!r}"))
        if "oauth-protected-resource" in place.path:
            return _Said({"resource": "http://127.0.0.1:1000/mcp", "authorization_servers": [self.issuer]})
        if place.path == "/token":
            return _Said({"access_token": f"from {origin}", "token_type": "Bearer"})
        ends = {name: f"{origin}/{name.partition('_')[0]}" for name in ("authorization_endpoint", "token_endpoint")}
        return _Said({"issuer": origin, **ends, "code_challenge_methods_supported": ["S256"]})

    async def close(self) -> None:
        pass

    async def browse(self, address: str) -> None:
        """Redirect at once, without asking the user, as an attacker's page does."""
        asked = dict(parse_qsl(urlsplit(address).query))
        back = f"{asked['redirect_uri']}?{urlencode({'code': 'c', 'state': asked['state']})}"
        await asyncio.to_thread(lambda: urlopen(back, timeout=30).read())


class _Said:
    def __init__(self, value: object) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self._left = [json.dumps(value).encode()]

    async def read(self) -> bytes:
        return self._left.pop() if self._left else b""

    def close(self) -> None:
        pass


async def test_a_server_that_names_another_issuer_does_not_get_the_client_s_secret(tmp_path: Path) -> None:
    issuers, tokens = Issuers(), ServerTokens(str(tmp_path))
    source = McpSource("one", url="http://127.0.0.1:1000/mcp", client_id="zot", client_secret="s3cret")
    authorization = Authorization(source, issuers, tokens, browse=issuers.browse)
    assert await authorization.challenged("", 401, {})
    assert await authorization.header() == "Bearer from http://127.0.0.1:1001"
    assert (tmp_path / "mcp-auth.json").stat().st_mode & 0o077 == 0
    issuers.issuer = "http://127.0.0.1:1666"
    with pytest.raises(AuthorizationFailed, match="names another authorization server than before"):
        await authorization.challenged("Bearer from http://127.0.0.1:1001", 401, {})
    assert not [text for origin, text in issuers.sent if origin.endswith("1666") and "token" in text + origin]
    kept = tokens.get(source.url)
    assert kept is not None
    assert kept.issuer.endswith("1001")
