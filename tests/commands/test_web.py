"""`zot web`: from the first link to the end of the daemon, as a person uses it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from optional import needs
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


@contextmanager
def opened_terminal() -> Iterator[tuple[int, int]]:
    """Return both ends of a terminal; the second is closed by its user."""
    screen, inside = os.openpty()
    try:
        yield screen, inside
    finally:
        os.close(screen)


def read_all(screen: int) -> str:
    """Return the output on a terminal whose other end is closed."""
    said = b""
    with suppress(OSError):  # Linux reports the end as an error.
        while data := os.read(screen, 65536):
            said += data
    return said.decode()


def scanned(lines: Sequence[str], path: Path, scale: int = 4) -> str:
    """Return the text that a camera reads from lines of half blocks, decoded by an independent program."""
    plain = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines if line.strip()]
    halves = [[cell in half for cell in line] for line in plain for half in ("█▀", "█▄")]
    rows = [bytes(0 if dark else 255 for dark in row for _ in range(scale)) for row in halves for _ in range(scale)]
    path.write_bytes(b"P5 %d %d 255\n" % (len(rows[0]), len(rows)) + b"".join(rows))
    read = subprocess.run(["zbarimg", "-q", "--raw", str(path)], capture_output=True, timeout=30, check=True)
    return read.stdout.decode().strip()


def paired(link: str) -> int:
    found = LINK.fullmatch(link)
    assert found, link
    body = json.dumps({"code": found[2]}).encode()
    headers = {"Content-Type": "application/json", "Origin": found[1], "X-Zot-Page": "1"}
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
    elsewhere = web("pair", "--url", "https://box.example/zot/")
    assert elsewhere.stdout.startswith("https://box.example/zot/web/#pair=")
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


def test_mistakes_are_reported(web: Shell) -> None:
    for words, reason in (
        (("--role", "extend"), "unknown role 'extend'; known: view"),
        (("--port", "x"), "'x' is not a port"),
        (("--name", "a b", "--port", "0"), "is not a name for a token"),
        (("nonsense",), "has no subcommand 'nonsense'"),
        (("pair", "--url", "http://box.example"), "is not an address such as https"),
        (("pair", "--url", "https://box.example/#x"), "is not an address such as https"),
        (("pair", "--url", "https://a@box.example/"), "is not an address such as https"),
        (("pair", "--url", "https://"), "is not an address such as https"),
    ):
        told = web(*words)
        assert told.returncode in (1, 2)
        assert reason in told.stderr


def test_addresses_on_this_machine_come_first() -> None:
    assert _urls(("wss://0.0.0.0:1", "ws://127.0.0.1:2/zot")) == (
        "http://127.0.0.1:2/zot/web/",
        "https://0.0.0.0:1/web/",
    )


def test_a_daemon_that_does_not_start_is_explained_at_once(web: Shell) -> None:
    (web.home / "zot" / "config.toml").write_text("[daemon]\nmax_sessions = 'many'\n")
    told = web("--port", "0")
    assert told.returncode == 1
    assert "the daemon did not start: " in told.stderr
    assert "max_sessions" in told.stderr


@needs("zbarimg")
def test_a_terminal_shows_the_link_as_a_code_that_a_camera_reads(web: Shell, tmp_path: Path) -> None:
    web("--port", "0")
    with opened_terminal() as (screen, inside):
        command = [sys.executable, "-m", "zot", "web", "pair", "--url", "https://box.example"]
        done = subprocess.run(
            command, env=web.env, stdin=inside, stdout=inside, stderr=subprocess.PIPE, timeout=60, check=True
        )
        os.close(inside)
        said = read_all(screen)
    *code, link = said.replace("\r", "").strip().split("\n")
    assert link.startswith("https://box.example/web/#pair=")
    assert b"this machine alone" not in done.stderr
    assert scanned(code, tmp_path / "code.pgm") == link
