"""reference/client.md: its programs and commands work as written, and it describes every member."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import zot
from forked import ForkServer
from harness import PATIENCE_S, environment, eventually
from zot.client.client import Client
from zot.client.session import ClientSession, ClientTurn
from zot.commands import attach, call

from .markdown import Block, blocks

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "client.md").read_text()
#: Members of `Client` that sessions use, and programs do not.
INTERNAL = {"ask", "check", "hear", "leave", "make_room", "peer"}
PROGRAMS = [*zip(blocks(TEXT, "python"), blocks(TEXT, "text"), strict=True)]


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[dict[str, str]]:
    """The environment in which a daemon is found."""
    directory = tmp_path_factory.mktemp("client")
    env = environment({"ZOT_HOME": str(directory / "home")})
    daemon = fork_server.fork(["daemon", "--provider", "lab"], directory, env)
    try:
        assert eventually(lambda: os.path.exists(directory / "home" / "data" / "daemon.sock"))
        yield env
    finally:
        daemon.send_signal(15)
        daemon.communicate()


@pytest.mark.parametrize(("program", "output"), PROGRAMS, ids=lambda block: block.id() if block.text else "")
def test_a_program_prints_the_output_shown_below_it(
    program: Block, output: Block, surroundings: dict[str, str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.text], env=surroundings, capture_output=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip
    assert (done.stdout.decode().strip(), done.stderr.decode(), done.returncode) == (output.text.strip(), "", 0)


def test_the_commands_work_as_written(surroundings: dict[str, str], fork_server: ForkServer, tmp_path: Path) -> None:
    piped, calls = blocks(TEXT, "sh")[1:]
    assert piped.text.strip() == "echo '!echo Hello' | zot attach --new"
    said = fork_server.fork(["attach", "--new"], tmp_path, surroundings).communicate(b"!echo Hello\n")[0]
    assert said == b"> !echo Hello\nHello\n\n"
    for line in calls.text.strip().split("\n"):
        words = re.findall(r"'([^']*)'|(\S+)", line)
        process = fork_server.fork([quoted or plain for quoted, plain in words][1:], tmp_path, surroundings)
        out, err = process.communicate()
        assert (err, process.returncode) == (b"", 0)
    assert out.rstrip().endswith(b"}")
    assert b'"content":"Hello"' in out


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in (Client, ClientSession, ClientTurn)
        for name in dir(kind)
        if not name.startswith("_") and name not in INTERNAL
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_member_is_described(kind: type, name: str) -> None:
    section = TEXT.partition(f"\n### {kind.__name__}\n")[2].partition("\n## ")[0].partition("\n### ")[0]
    assert re.search(rf"^\| .*`(await )?{name}\b", section, re.MULTILINE)


@pytest.mark.parametrize("flag", sorted({flag.name for flag in (*attach.MANUAL.flags, *call.MANUAL.flags)}))
def test_every_flag_is_described(flag: str) -> None:
    assert re.search(rf"^\| .*`{flag}[ `]", TEXT, re.MULTILINE)


@pytest.mark.parametrize("name", ["ConnectionLost", "PromptLost", "EpochChanged", "RpcError"])
def test_every_error_is_mentioned(name: str) -> None:
    assert getattr(zot, name).__name__ in TEXT
