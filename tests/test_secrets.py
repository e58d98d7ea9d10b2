"""Secrets are planted wherever zot may have one, every operation fails, and no output contains any of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import claude
from auth_server import AuthServer, guarding
from harness import PATIENCE_S, Zot, environment
from zot.config.config import SECRET_NAMES
from zot.config.vendors import KEY_NAMES

#: One for each name in the environment, and one for each other place. No two have a piece in common.
PLACES = (*sorted(SECRET_NAMES), "proxy", "address", "stored", "stored for another", "printed", "given")
SECRETS = {place: f"sk-{os.urandom(9).hex()}/+{os.urandom(9).hex()}" for place in PLACES}
#: A model service and a proxy on the way to it, under a name that only the proxy has to know.
BASE_URL = "http://model.invalid"


def forms(secret: str) -> Iterator[bytes]:
    """Yield the forms of a secret: as it is, half of it, percent-encoded, or inside a base64 text."""
    yield from (secret[:20].encode(), secret[-18:].encode(), quote(secret, safe="").encode())
    for shift in range(3):
        yield b64encode(b" " * shift + secret.encode())[4:-4]


def leaks(*texts: bytes) -> list[str]:
    """Return the places whose secrets can leak into output."""
    return [place for place, secret in SECRETS.items() if any(form in text for form in forms(secret) for text in texts)]


class Site:
    """A home and a directory to work in, with a secret in every place that may have one."""

    def __init__(self, path: Path, gate: AuthServer) -> None:
        self.path = path
        self.home = path / "home"
        self.cwd = path / "work"
        self.home.mkdir(mode=0o700)
        self.cwd.mkdir()
        self.gate = gate
        self.store({"key": SECRETS["stored"]})

    def store(self, entry: Mapping[str, str]) -> None:
        file = self.home / "auth.json"
        here = {**entry, "base_url": BASE_URL}
        file.write_text(json.dumps({"anthropic": here, "groq": {"key": SECRETS["stored for another"]}}))
        file.chmod(0o600)

    def env(self, *without: str) -> dict[str, str]:
        """Return an environment with all secrets but these."""
        proxy = f"http://me:{quote(SECRETS['proxy'], safe='')}@127.0.0.1:{self.gate.server_port}"
        planted = {name: SECRETS[name] for name in SECRET_NAMES if name not in without}
        debugging = {"PYTHONASYNCIODEBUG": "1", "PYTHONDEVMODE": "1", "PYTHONWARNINGS": "default"}
        proxies = dict.fromkeys(("http_proxy", "HTTPS_PROXY", "ALL_PROXY"), proxy)
        return {"ZOT_HOME": str(self.home), **proxies, **planted, **debugging}

    def files(self) -> list[bytes]:
        """Return the content of every file but the one that is to have secrets in it."""
        paths = [path for path in self.path.rglob("*") if path.is_file() and path != self.home / "auth.json"]
        return [path.read_bytes() for path in paths]

    def run(self, *argv: str, given: str = "", env: Mapping[str, str] | None = None) -> bytes:
        done = subprocess.run(
            [sys.executable, *argv], cwd=self.cwd, env=environment(self.env() if env is None else env),
            input=given.encode(), capture_output=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        return done.stdout + b"\n" + done.stderr


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with guarding() as gate:
        yield Site(tmp_path, gate)


def test_the_secrets_are_many_and_would_be_found() -> None:
    assert len(SECRETS) >= 20
    assert set(SECRETS) > KEY_NAMES
    for place, secret in SECRETS.items():
        for form in (secret, quote(secret), b64encode(b"me:" + secret.encode()).decode(), f"{{{secret}}}"):
            assert leaks(form.encode()) == [place]


# Sources of the conversation's key: (variables removed from the environment, the entry in auth.json, flags).
ORIGINS: dict[str, tuple[tuple[str, ...], dict[str, str], str]] = {
    "the environment": ((), {"key": SECRETS["stored"]}, "ANTHROPIC_API_KEY"),
    "auth.json": (("ANTHROPIC_API_KEY",), {"key": SECRETS["stored"]}, "stored"),
    # Other users could see the key among the command's arguments, so the command reads a file.
    "a command": (("ANTHROPIC_API_KEY",), {"command": 'cat "$ZOT_HOME/../printed"'}, "printed"),
}

#: A command may see the password of its proxy: this one does without.
LOOK = (
    "unset http_proxy HTTPS_PROXY ALL_PROXY; env; cat /proc/self/environ /proc/$PPID/environ /proc/$PPID/cmdline;"
    " ps axww -o args;"
)


def stream(*parts: Any) -> tuple[int, bytes]:
    return 200, b"".join(claude.reply(*parts))


def faults(key: str) -> list[tuple[int, bytes]]:
    """Return answers that quote the key in every form."""
    said = f"about {key} or {quote(key, safe='')}"
    error = {"type": "error", "error": {"type": key, "message": said}, "request_id": key}
    return [
        (400, json.dumps(error).encode()),
        (403, said.encode()),
        (404, json.dumps({"error": said}).encode()),
        (302, json.dumps({"message": said}).encode()),
        (200, b"event: error\ndata: " + json.dumps(error).encode() + b"\n\n"),
        (200, claude.start() + b"data: {" + key.encode() + b"\n\n"),
        (200, said.encode()),
        (200, ("x" * 180 + said).encode()),
        (500, ("x" * 1990 + said).encode()),
        stream(claude.text("better")),
    ]


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_conversation_with_every_fault_shows_no_secret(origin: str, site: Site, zot: Callable[..., Zot]) -> None:
    without, entry, place = ORIGINS[origin]
    site.store(entry)
    (site.path / "printed").write_text(SECRETS["printed"])
    process = zot("--provider", "anthropic", "--base-url", BASE_URL, cwd=site.cwd, env=site.env(*without))
    process.ask({"type": "hello", "token": SECRETS["ZOTCORE_RPC_TOKEN"], "features": ["retries"]})
    process.send({"type": "prompt", "message": "be refused"})
    assert "http 401: invalid key [key]" in json.dumps(process.until(type="done"))
    site.gate.accepted.add(SECRETS[place])
    site.gate.replies += faults(SECRETS[place])
    while site.gate.replies:
        process.send({"type": "prompt", "message": "fail"})
        process.until(type="done")
    site.gate.replies.append(stream(claude.tool("t1", "bash", json.dumps({"command": LOOK + " env > seen"}))))
    process.send({"type": "prompt", "message": "look around"})
    process.until(type="done")
    process.send({"type": "get_state"}, {"type": "get_messages"}, {"type": "prompt", "message": ""}, b"{")
    process.finish()
    (site.path / "printed").unlink()
    assert set(site.gate.keys) == {SECRETS[place]}
    assert (site.cwd / "seen").exists()
    assert leaks(json.dumps(process.frames).encode(), process.errors().encode(), *site.files()) == []


def test_an_address_with_a_password_is_refused_without_repeating_it(site: Site, zot: Callable[..., Zot]) -> None:
    address = f"http://me:{quote(SECRETS['address'], safe='')}@model.invalid"
    flags = zot("--provider", "anthropic", "--base-url", address, cwd=site.cwd, env=site.env("ZOTCORE_RPC_TOKEN"))
    variable = zot(
        "--provider", "anthropic", cwd=site.cwd, env={**site.env("ZOTCORE_RPC_TOKEN"), "ANTHROPIC_BASE_URL": address}
    )
    for process in (flags, variable):
        process.send({"type": "prompt", "message": "hi"}, {"type": "get_state"})
        process.finish()
        [error] = [frame["message"] for frame in process.frames if frame["type"] == "error"]
        assert "the URL contains a user name or password" in error
        assert leaks(json.dumps(process.frames).encode(), process.errors().encode(), *site.files()) == []


def test_commands_see_the_password_of_their_proxy_and_of_no_service(site: Site, zot: Callable[..., Zot]) -> None:
    env = {**site.env(), "OPENAI_BASE_URL": f"https://{SECRETS['address']}@model.invalid/v1", "NO_PROXY": "a@b"}
    process = zot(cwd=site.cwd, env=env)
    process.ask({"type": "hello", "token": SECRETS["ZOTCORE_RPC_TOKEN"]})
    process.send({"type": "prompt", "message": "!bash env > seen"})
    process.finish()
    seen = (site.cwd / "seen").read_text().splitlines()
    assert {f"http_proxy={env['http_proxy']}", "OPENAI_BASE_URL=https://model.invalid/v1", "NO_PROXY=a@b"} < {*seen}
    assert leaks(json.dumps(process.frames).encode()) == []
    assert leaks(*site.files()) == ["proxy"]


PROGRAM = """
import asyncio, logging, sys, traceback
import zot
from zot.errors import AuthFailed

logging.basicConfig(level=logging.DEBUG)

async def main():
    config = zot.Config(provider="anthropic", api_key=sys.stdin.read(), base_url=sys.argv[1])
    print(config, repr(config), f"{config!r}")
    async with zot.Runtime(config) as runtime:
        print(runtime, vars(runtime), runtime.state)
        for text in ("be refused", "again"):
            try:
                await runtime.run(text)
            except AuthFailed as error:
                traceback.print_exc()
                print(repr(error), vars(error))
        try:
            async with runtime.prompt("crash") as events:
                async for event in events:
                    raise ZeroDivisionError(event)
        except ZeroDivisionError:
            traceback.print_exc()
    await runtime.run("too late")

asyncio.run(main(), debug=True)
"""


def test_a_program_that_logs_everything_and_crashes_shows_no_secret(site: Site) -> None:
    said = site.run("-X", "dev", "-c", PROGRAM, BASE_URL, given=SECRETS["given"])
    assert set(site.gate.keys) == {SECRETS["given"]}
    assert said.count(b"AuthFailed") >= 4
    assert b"RuntimeClosed" in said
    assert b"DEBUG:asyncio" in said
    assert leaks(said, *site.files()) == []


@pytest.mark.parametrize(
    "entry", [{"key": SECRETS["stored"]}, {"command": 'cat "$ZOT_HOME/../printed"'}], ids=["key", "command"]
)
def test_doctor_login_and_logout_show_no_secret(entry: dict[str, str], site: Site) -> None:
    site.store(entry)
    printed = site.path / "printed"
    printed.write_text(SECRETS["printed"])
    plain = site.env("ANTHROPIC_API_KEY")
    address = f"http://me:{SECRETS['address']}@model.invalid"
    said = [
        site.run("-m", "zot", "doctor", env={**plain, "ANTHROPIC_BASE_URL": BASE_URL}),
        site.run("-m", "zot", "doctor", "--json", "--base-url", address),
        site.run(
            "-m", "zot", "login", "anthropic", given=SECRETS["given"], env={**plain, "ANTHROPIC_BASE_URL": BASE_URL}
        ),
        site.run(
            "-m", "zot", "login", "anthropic", given=SECRETS["given"], env={**plain, "ANTHROPIC_BASE_URL": address}
        ),
        site.run("-m", "zot", "login", SECRETS["given"]),
        site.run("-m", "zot", "login", "xai", "--no-probe", "--command", 'cat "$ZOT_HOME/../printed"'),
        site.run("-m", "zot", "logout", "anthropic"),
        site.run("-m", "zot", "doctor", "--frobnicate", SECRETS["given"]),
    ]
    printed.unlink()
    assert b"it refuses the key" in said[0]
    assert b"refused: anthropic" in said[2]
    assert SECRETS["given"] in site.gate.keys
    assert leaks(*said, *site.files()) == []


def test_a_damaged_file_shows_no_secret(site: Site) -> None:
    (site.home / "auth.json").write_text(f'{{"anthropic": {{"key": "{SECRETS["stored"]}" {SECRETS["given"]}')
    said = site.run("-m", "zot", "rpc", "--provider", "anthropic", env=site.env("ANTHROPIC_API_KEY"))
    assert b"auth.json is damaged" in said
    assert leaks(said) == []
