"""Keys that a command prints: when it runs, its failures, and that none of its processes stays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from auth_server import guarding
from harness import PATIENCE_S, Zot, eventually, living, text_of
from zot.errors import AuthFailed
from zot.runtime.key_command import KeyCommand

WHO = "the command that prints the key for anthropic"
ENV = {"PATH": os.environ["PATH"]}


def command(line: str, *, deadline_s: float = PATIENCE_S, **env: str) -> KeyCommand:
    return KeyCommand("anthropic", line, {**ENV, **env}, deadline_s=deadline_s)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("echo sk-1", "sk-1"),
        ("printf sk-1", "sk-1"),
        ("printf '  sk-1 \\r\\n'", "sk-1"),
        ("printf 'sk-1\\nlogin: me\\nurl: x\\n'", "sk-1"),
        ("echo noise >&2; echo sk-1", "sk-1"),
        ("cat; echo sk-1", "sk-1"),
        ("sleep 60 & echo sk-1", "sk-1"),
        ("head -c 1000000 /dev/zero >&2; echo sk-1", "sk-1"),
    ],
)
async def test_the_first_line_is_the_key(line: str, key: str) -> None:
    mark = os.urandom(8).hex()
    assert await command(line, MARK=mark).read() == key
    assert eventually(lambda: living(mark) == [])


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("exit 3", "failed with exit status 3"),
        ("echo 'no such entry' >&2; exit 1", "failed with exit status 1: no such entry"),
        ("echo sk-1234; echo 'is it sk-1234?' >&2; exit 1", "failed with exit status 1: is it [key]?"),
        ("kill -9 $$", "was ended by signal 9"),
        (":", "printed nothing"),
        ("echo; echo locked >&2", "printed nothing: locked"),
        ("yes", "printed more than a key can be"),
    ],
)
async def test_a_failing_command_is_reported_with_its_error_output(line: str, problem: str) -> None:
    with pytest.raises(AuthFailed) as caught:
        await command(line).read()
    assert str(caught.value) == f"{WHO} {problem}"


async def test_an_impossible_command_is_an_ordinary_error() -> None:
    for line in ("if", "no-such-program", "a\0b"):
        with pytest.raises(AuthFailed, match=f"^{WHO} "):
            await command(line).read()


async def test_a_key_that_no_header_can_hold_is_not_repeated() -> None:
    with pytest.raises(AuthFailed) as caught:
        await command("printf 'sk-\\303\\266'").read()
    assert str(caught.value) == (
        "the key for anthropic has invalid characters; copy the whole key again (a command printed it)"
    )


@pytest.mark.parametrize("line", ["sleep 60", "sleep 60 | cat", "(trap '' TERM; sleep 60) & wait", "yes >&2"])
async def test_a_late_command_is_killed_with_its_process_group(line: str) -> None:
    mark = os.urandom(8).hex()
    with pytest.raises(AuthFailed, match=rf"^{WHO} did not end within 0\.2 s"):
        await command(line, deadline_s=0.2, MARK=mark).read()
    assert eventually(lambda: living(mark) == [])


async def test_a_command_without_a_waiter_is_killed() -> None:
    mark = os.urandom(8).hex()
    reading = asyncio.create_task(command("sleep 60 | cat", MARK=mark).read())
    async with asyncio.timeout(PATIENCE_S):
        while len(living(mark)) < 3:
            await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert eventually(lambda: living(mark) == [])


async def test_the_event_loop_runs_while_the_command_does() -> None:
    reading = asyncio.create_task(command("sleep 0.3; echo sk-slow").read())
    turns = 0
    while not reading.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert await reading == "sk-slow"
    assert turns > 10  # If it were waited for, there would be one or two.


async def test_a_command_runs_once_until_its_key_is_refused(tmp_path: Path) -> None:
    line = f"echo x >> {tmp_path}/runs; echo sk-$(wc -l < {tmp_path}/runs)"
    first, second = command(line), command(line)
    assert [await first.read(), await first.read(), await second.read()] == ["sk-1", "sk-1", "sk-1"]
    assert first.renew("sk-1")
    assert [await second.read(), await first.read()] == ["sk-2", "sk-2"]
    assert second.renew("sk-1")  # which is not the one that is known now
    assert await second.read() == "sk-2"


# In conversation.


def home_with(tmp_path: Path, line: str) -> str:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "auth.json").write_text(json.dumps({"anthropic": {"command": line}}))
    (home / "auth.json").chmod(0o600)
    return str(home)


def talk(zot: Callable[..., Zot], home: str, url: str, **env: str) -> Zot:
    file = Path(home, "auth.json")
    file.write_text(json.dumps({"anthropic": {**json.loads(file.read_text())["anthropic"], "base_url": url}}))
    # A process that is searched by its mark must be started with it.
    return zot("--provider", "anthropic", "--base-url", url, env={"ZOT_HOME": home, **env}, fresh="MARK" in env)


def test_a_command_runs_at_the_first_model_call_and_sees_no_keys(zot: Callable[..., Zot], tmp_path: Path) -> None:
    home = home_with(tmp_path, f"env > {tmp_path}/seen; echo sk-made")
    with guarding("sk-made") as gate:
        process = talk(zot, home, gate.url, OPENAI_API_KEY="sk-openai", ZOTCORE_RPC_TOKEN="token", HARMLESS="seen")
        process.ask({"type": "hello", "token": "token"})
        process.ask({"type": "get_state"})
        assert not (tmp_path / "seen").exists()
        for _ in range(2):
            process.send({"type": "prompt", "message": "hi"})
            assert text_of(process.until(type="done")) == "Hello"
        process.finish()
    assert gate.keys == ["sk-made", "sk-made"]
    seen = (tmp_path / "seen").read_text().splitlines()
    assert "HARMLESS=seen" in seen
    assert not {line for line in seen if "sk-" in line or "token" in line}


def test_an_expired_key_is_fetched_once_more(zot: Callable[..., Zot], tmp_path: Path) -> None:
    home = home_with(tmp_path, f"echo x >> {tmp_path}/runs; echo sk-made-$(wc -l < {tmp_path}/runs)")
    with guarding("sk-made-2") as gate:
        process = talk(zot, home, gate.url)
        process.send({"type": "prompt", "message": "hi"})
        assert text_of(process.until(type="done")) == "Hello"
        assert gate.keys == ["sk-made-1", "sk-made-2"]
        gate.accepted.clear()
        process.send({"type": "prompt", "message": "hi"})
        frames = process.until(type="done")
        assert gate.keys[2:] == ["sk-made-2", "sk-made-3"]
        [error] = [frame["message"] for frame in frames if frame["type"] == "error"]
        assert "http 401: invalid key [key]" in error
        assert "sk-made" not in json.dumps(frames)
        process.finish()
        assert "sk-made" not in process.errors()


def test_an_unchanged_key_is_not_retried(zot: Callable[..., Zot], tmp_path: Path) -> None:
    home = home_with(tmp_path, "echo sk-made")
    with guarding() as gate:
        process = talk(zot, home, gate.url)
        process.send({"type": "prompt", "message": "hi"})
        process.until(type="error")
        process.finish()
    assert gate.keys == ["sk-made"]


def test_a_failing_command_ends_the_prompt_and_not_the_program(zot: Callable[..., Zot], tmp_path: Path) -> None:
    home = home_with(tmp_path, f"test -e {tmp_path}/unlocked && echo sk-made || {{ echo 'it is locked' >&2; exit 7; }}")
    with guarding("sk-made") as gate:
        process = talk(zot, home, gate.url)
        process.send({"type": "prompt", "message": "hi"})
        [*_, error, done] = process.until(type="done")
        assert error["message"] == f"anthropic: {WHO} failed with exit status 7: it is locked"
        assert done == {"type": "done"}
        (tmp_path / "unlocked").touch()
        process.send({"type": "prompt", "message": "hi"})
        assert text_of(process.until(type="done")) == "Hello"
        process.finish()


@pytest.mark.parametrize("end", ["abort", "hang up and kill"])
def test_no_process_outlives_the_key_command(zot: Callable[..., Zot], tmp_path: Path, end: str) -> None:
    mark = os.urandom(8).hex()
    process = talk(zot, home_with(tmp_path, "sleep 60 | cat"), "http://127.0.0.1:9", MARK=mark)
    process.send({"type": "prompt", "message": "hi"})
    assert eventually(lambda: len(living(mark)) >= 4)
    if end == "abort":
        process.send({"type": "abort"})
        assert process.until(type="done")[-2] == {"type": "turn_end", "stop": "aborted"}
        # A killed process exists until the kernel ends it.
        assert eventually(lambda: living(mark) == [process.pid])
    else:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert eventually(lambda: living(mark) == [])
