"""`zot web`: from the first link to the end of the daemon, as a person uses it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from zot.commands.web import _urls

LINK = re.compile(r"(http://127\.0\.0\.1:\d+)/web/#pair=([\w-]{32})\n")


class Shell:
    """Runs `zot web` with a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {"PATH": os.environ["PATH"], "HOME": str(home), "ZOT_HOME": str(home / "zot")}

    def __call__(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "zot", "web", *words]
        return subprocess.run(command, env={**self.env, **env}, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "zot").mkdir()
    (tmp_path / "zot" / "config.toml").write_text('[agents.default]\nprovider = "lab"\n')
    shell = Shell(tmp_path)
    try:
        yield shell
    finally:
        shell("stop")


def paired(link: str) -> int:
    found = LINK.fullmatch(link)
    assert found, link
    body = json.dumps({"code": found[2]}).encode()
    headers = {"Content-Type": "application/json", "Origin": found[1]}
    asked = urllib.request.Request(f"{found[1]}/web/pair", body, headers)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as problem:
        problem.close()
        return problem.code


def test_the_dashboard_is_started_paired_listed_revoked_and_stopped(web: Shell) -> None:
    assert web("status").returncode == 3
    assert "zot web" in web("pair").stderr
    first = web("--port", "0", "--name", "laptop")
    assert (first.returncode, paired(first.stdout), paired(first.stdout)) == (0, 200, 401)
    again = web("--role", "view")  # Finds the daemon that runs.
    assert LINK.fullmatch(again.stdout)[1] == LINK.fullmatch(first.stdout)[1]  # type: ignore[index]  # both are links
    assert "started a daemon" in first.stderr
    assert "started a daemon" not in again.stderr
    phone = web("pair", "--name", "phone", "--role", "view,approve")
    assert paired(phone.stdout) == 200
    known = {one["name"]: one["roles"] for one in json.loads(web("devices", "--json").stdout)}
    assert known == {"laptop": ["view", "prompt", "approve", "self_approve"], "phone": ["view", "approve"]}
    assert "there is a device 'phone' already" in web("pair", "--name", "phone").stderr
    assert web("revoke", "phone").returncode == 0
    assert [line.split()[0] for line in web("devices").stdout.split("\n")[1:-1]] == ["laptop"]
    assert web("revoke", "phone").returncode == 1
    status = json.loads(web("status", "--json").stdout)
    assert status == {"running": True, "urls": [f"{LINK.fullmatch(first.stdout)[1]}/web/"], "devices": 1}  # type: ignore[index]  # it is a link
    assert web("stop").returncode == 0
    assert web("status").returncode == 3


def test_the_browser_gets_the_link_in_a_file_that_is_ours_alone(web: Shell) -> None:
    seen = web.home / "seen"
    opener = web.home / "opener"
    opener.write_text(f'#!/bin/sh\necho "$1" > "{seen}"\n')
    opener.chmod(0o700)
    told = web("--open", "--port", "0", BROWSER=str(opener))
    assert (told.returncode, told.stdout) == (0, "")
    assert "pair=" not in told.stderr
    page = Path(seen.read_text().strip().removeprefix("file://"))
    assert page.stat().st_mode & 0o077 == 0
    found = re.search(r"url=([^\"]+)", page.read_text())
    assert found
    assert paired(f"{found[1]}\n") == 200


def test_mistakes_are_said(web: Shell) -> None:
    for words, reason in (
        (("--role", "extend"), "unknown role 'extend'; known: view"),
        (("--port", "x"), "'x' is not a port"),
        (("--name", "a b", "--port", "0"), "is not a name for a token"),
        (("nonsense",), "has no subcommand 'nonsense'"),
    ):
        told = web(*words)
        assert told.returncode in (1, 2)
        assert reason in told.stderr


def test_addresses_on_this_machine_come_first() -> None:
    assert _urls(("wss://0.0.0.0:1", "ws://127.0.0.1:2/zot")) == (
        "http://127.0.0.1:2/zot/web/",
        "https://0.0.0.0:1/web/",
    )
