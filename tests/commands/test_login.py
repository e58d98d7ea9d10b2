"""`zot login` and `zot logout`: keys are read without echo, tried once, stored privately, and never shown."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import forked
from auth_server import AuthServer, guarding
from harness import PATIENCE_S, environment, eventually, read_some

ZOT = [sys.executable, "-m", "zot"]


@pytest.fixture
def gate() -> Iterator[AuthServer]:
    with guarding("sk-right") as server:
        yield server


class Home:
    """A home of zot, and the commands that are run with it."""

    def __init__(self, path: Path, url: str) -> None:
        self.path = path
        self.env = environment({"ZOT_HOME": str(path), "ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": url})

    @property
    def stored(self) -> dict[str, dict[str, str]] | None:
        path = self.path / "auth.json"
        if not path.exists():
            return None
        found: dict[str, dict[str, str]] = json.loads(path.read_text())
        # For which server it is has a test of its own.
        return {name: {key: entry[key] for key in entry if key != "base_url"} for name, entry in found.items()}

    def run(self, *words: str, given: str = "", **env: str) -> tuple[int, str, str]:
        done = forked.run(words, env={**self.env, **env}, given=given.encode())
        return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture
def home(tmp_path: Path, gate: AuthServer) -> Home:
    return Home(tmp_path / "home", gate.url)


def test_a_key_from_a_pipe_is_tried_once_and_stored(home: Home, gate: AuthServer) -> None:
    file = home.path / "auth.json"
    assert home.run("login", "anthropic", given="  sk-right\r\nmore\n") == (
        0,
        f"ok: anthropic: it accepts the key\nstored for anthropic at {gate.url} in {file}\n",
        "",
    )
    assert home.stored == {"anthropic": {"key": "sk-right"}}
    assert (home.path.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    assert gate.asked == ["GET /v1/models?limit=1"]


def test_a_key_is_stored_for_the_server_that_was_asked(home: Home, gate: AuthServer) -> None:
    file = home.path / "auth.json"
    assert home.run("login", "groq", "--base-url", gate.url, given="sk-right") == (
        0,
        f"ok: groq: it accepts the key\nstored for groq at {gate.url} in {file}\n",
        "",
    )
    home.run("login", "anthropic", given="sk-right")
    home.run("login", "mistral", "--no-probe", "--base-url", "https://api.mistral.ai/v1", given="k")
    assert json.loads(file.read_text()) == {
        "groq": {"key": "sk-right", "base_url": gate.url},
        "anthropic": {"key": "sk-right", "base_url": gate.url},
        "mistral": {"key": "k"},
    }
    code, _, errors = home.run("login", "xai", "--base-url", "https://me:pw@x.example", given="k")
    assert (code, "pw" in errors) == (1, False)


def test_a_key_that_is_refused_is_not_stored(home: Home) -> None:
    said = "zot: refused: anthropic: it refuses the key (http 401); nothing was stored\n"
    assert home.run("login", "anthropic", given="sk-wrong\n") == (1, "", said)
    assert home.stored is None


def test_without_a_probe_no_service_is_asked(home: Home, gate: AuthServer) -> None:
    code, _, errors = home.run("login", "anthropic", "--no-probe", given="sk-wrong")
    assert (code, errors, home.stored, gate.asked) == (0, "", {"anthropic": {"key": "sk-wrong"}}, [])


def test_an_unreachable_service_does_not_prevent_storing(home: Home) -> None:
    code, said, errors = home.run("login", "anthropic", given="sk-right", ANTHROPIC_BASE_URL="http://127.0.0.1:9")
    assert (code, said) == (0, f"stored for anthropic at http://127.0.0.1:9 in {home.path / 'auth.json'}\n")
    assert errors.startswith("zot: unreachable: anthropic: the connection to 127.0.0.1:9 was refused")
    assert errors.endswith("; stored without a check\n")
    assert home.stored == {"anthropic": {"key": "sk-right"}}


def test_each_api_is_asked_in_its_own_way(home: Home, gate: AuthServer) -> None:
    assert home.run("login", "openai", given="sk-right")[0] == 0
    assert home.run("login", "gemini", given="sk-right", GEMINI_BASE_URL=gate.url)[0] == 0
    assert gate.asked == ["GET /v1/models", "GET /v1beta/models?pageSize=1"]
    assert gate.keys == ["sk-right", "sk-right"]


def test_a_command_is_run_for_the_probe_and_stored_verbatim(home: Home, gate: AuthServer) -> None:
    assert home.run("login", "anthropic", "--command", "echo sk-right")[0] == 0
    assert (home.stored, gate.keys) == ({"anthropic": {"command": "echo sk-right"}}, ["sk-right"])


def test_a_command_that_fails_is_not_stored(home: Home) -> None:
    code, said, errors = home.run("login", "anthropic", "--command", "echo locked >&2; exit 4")
    assert (code, said, home.stored) == (1, "", None)
    assert errors == ("zot: the command that prints the key for anthropic failed with exit status 4: locked\n")


def test_without_a_probe_the_command_is_not_run(home: Home, tmp_path: Path) -> None:
    assert home.run("login", "anthropic", "--no-probe", "--command", f"touch {tmp_path}/ran")[0] == 0
    assert not (tmp_path / "ran").exists()


def test_a_new_key_replaces_the_old_one_and_no_other(home: Home) -> None:
    home.run("login", "openai", "--no-probe", given="k1")
    home.run("login", "anthropic", "--no-probe", "--command", "echo k2")
    home.run("login", "anthropic", "--no-probe", given="k3")
    assert home.stored == {"openai": {"key": "k1"}, "anthropic": {"key": "k3"}}


def test_logins_at_the_same_time_do_not_lose_each_other(home: Home) -> None:
    names = ["anthropic", "openai", "gemini", "groq", "mistral", "xai", "kimi", "deepseek"]
    running = [
        subprocess.Popen(
            [*ZOT, "login", name, "--no-probe"], env=home.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for name in names
    ]
    for name, process in zip(names, running, strict=True):
        process.communicate(f"k-{name}".encode(), timeout=PATIENCE_S)
    assert [process.returncode for process in running] == [0] * len(names)
    assert home.stored == {name: {"key": f"k-{name}"} for name in names}


def test_logout_removes_one_provider(home: Home) -> None:
    home.run("login", "openai", "--no-probe", given="k1")
    home.run("login", "anthropic", "--no-probe", given="k2")
    file = home.path / "auth.json"
    assert home.run("logout", "openai") == (0, f"removed for openai from {file}\n", "")
    assert home.stored == {"anthropic": {"key": "k2"}}
    assert home.run("logout", "openai") == (1, "", f"zot: nothing is stored for openai in {file}\n")


def test_a_variable_that_wins_is_pointed_out(home: Home) -> None:
    env = {"ANTHROPIC_API_KEY": "sk-other"}
    _, _, errors = home.run("login", "anthropic", "--no-probe", given="k", **env)
    assert errors == "zot: ANTHROPIC_API_KEY is set and overrides the stored key\n"
    assert home.run("logout", "anthropic", **env)[2] == "zot: ANTHROPIC_API_KEY is still set, and zot uses its key\n"


@pytest.mark.parametrize("words", [[], ["a", "b"], ["acme"], ["lab"], ["sk-right"], ["anthropic", "--frobnicate"]])
@pytest.mark.parametrize("command", ["login", "logout"])
def test_wrong_usage_is_exit_code_two(home: Home, command: str, words: list[str]) -> None:
    code, said, errors = home.run(command, *words, given="k")
    assert (code, said, errors.count("\n"), home.stored) == (2, "", 1, None)
    assert "sk-right" not in errors


@pytest.mark.parametrize("given", ["", "\n", "  \n", "sk-\u00f6\n", "sk 1\x00\n", "x" * 20_000])
def test_an_invalid_key_is_not_stored(home: Home, given: str) -> None:
    code, said, errors = home.run("login", "anthropic", "--no-probe", given=given)
    assert (code, said, errors.count("\n"), home.stored) == (1, "", 1, None)


@pytest.mark.parametrize("command", ["login", "logout"])
def test_without_a_home_there_is_nowhere_to_store(command: str) -> None:
    done = subprocess.run(
        [*ZOT, command, "anthropic"],
        env=environment({}),
        input=b"k",
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, b"zot: no directory to store it in: set ZOT_HOME or HOME\n")


@pytest.mark.parametrize("command", ["login", "logout", "doctor"])
def test_help_is_given(home: Home, command: str) -> None:
    code, said, errors = home.run(command, "--help")
    assert (code, said.startswith(f"Usage: zot {command}"), errors) == (0, True, "")


# At a terminal.


class Terminal:
    """`zot login` at a terminal of its own."""

    def __init__(self, home: Home, *words: str) -> None:
        self.ours, theirs = pty.openpty()
        self.before = termios.tcgetattr(theirs)
        self.process = subprocess.Popen(
            [*ZOT, *words], env=home.env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        self.theirs = theirs
        self.shown = b""

    def until(self, text: bytes) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            self.shown += read_some(self.ours, deadline)

    @property
    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.theirs)[3] & termios.ECHO)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def terminal(home: Home) -> Iterator[Terminal]:
    started = Terminal(home, "login", "anthropic")
    yield started
    started.close()


def test_a_typed_key_is_not_echoed_and_the_terminal_is_restored(home: Home, terminal: Terminal) -> None:
    terminal.until(b"key for anthropic (it is not shown): ")
    assert not terminal.echoes
    os.write(terminal.ours, b"sk-right\n")
    terminal.until(b"auth.json")
    assert terminal.process.wait(PATIENCE_S) == 0
    assert home.stored == {"anthropic": {"key": "sk-right"}}
    assert b"sk-right" not in terminal.shown
    assert termios.tcgetattr(terminal.theirs) == terminal.before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT], ids=lambda n: n.name)
def test_an_interrupt_restores_the_terminal(home: Home, terminal: Terminal, number: signal.Signals) -> None:
    terminal.until(b"shown): ")
    os.write(terminal.ours, b"sk-ri")
    terminal.process.send_signal(number)
    assert terminal.process.wait(PATIENCE_S) == 1
    terminal.until(b"zot: interrupted; nothing was stored")
    assert b"sk-ri" not in terminal.shown
    assert b"Traceback" not in terminal.shown
    assert termios.tcgetattr(terminal.theirs) == terminal.before
    assert home.stored is None


def test_an_interrupted_probe_stores_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path / "home", "http://127.0.0.1:9")
    started = Terminal(home, "login", "anthropic", "--command", f"touch {tmp_path}/runs; sleep 60")
    try:
        assert eventually((tmp_path / "runs").exists)
        started.process.send_signal(signal.SIGINT)
        assert started.process.wait(PATIENCE_S) == 1
        started.until(b"zot: interrupted; nothing was stored")
        assert b"Traceback" not in started.shown
        assert home.stored is None
    finally:
        started.close()
