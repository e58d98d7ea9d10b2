"""Command lines of the reference that no other test runs work as written, and no page has a block of another kind."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harness import PATIENCE_S, environment
from zot.config.file import checked_listen_address
from zot.serve.web.gate import _TOKEN_SUBPROTOCOL, SUBPROTOCOL
from zot.wire import daemon
from zot.wire.jsonrpc import NO_PARAMS

from .markdown import blocks

DOCS = Path(__file__).parents[2] / "docs" / "reference"
#: The languages of the blocks of each page, each of which a test runs or parses: here, or in the page's own file.
LANGUAGES = {
    "rpc": {"sh", "rpc", "grammar", "json"},
    "policy": {"policy"},
    "daemon": {"sh", "daemon"},
    "web": {"sh", "toml", "python", "js", "json"},
    "host": {"sh", "json", "text"},
    "client": {"sh", "python", "text"},
    "sdk": {"python", "text"},
    "sdk-api": set(),
    "once": {"sh"},
    "errors": set(),
    "environment": set(),
}
REQUEST = '{"request_id":"1","session_id":"qq:private:42","prompt":"!bash touch made"}\n'


class Shell:
    """A shell in a repository, for a user whose provider is lab."""

    def __init__(self, directory: Path) -> None:
        self.cwd = directory
        (directory / "home").mkdir()
        (directory / "home" / "config.toml").write_text('[agents.default]\nprovider = "lab"\n')
        program = directory / "zot"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m zot "$@"\n')
        program.chmod(0o755)
        path = f"{directory}:{os.environ['PATH']}"
        self.env = environment({"HOME": str(directory), "ZOT_HOME": str(directory / "home"), "PATH": path})

    def run(self, line: str, given: str = "", *, expected: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a line; it must end with the expected exit code."""
        done = subprocess.run(
            ["sh", "-c", line], cwd=self.cwd, env=self.env, input=given, text=True, capture_output=True,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == expected, (line, done)
        return done


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def lines(name: str, number: int) -> list[str]:
    """Return the lines of a page's block of shell commands."""
    return blocks(page(name), "sh")[number].text.strip().splitlines()


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_page_has_only_blocks_that_are_tested(name: str) -> None:
    assert {*re.findall(r"^```(.*)\n(?:.*\n)*?```$", page(name), re.MULTILINE)} == LANGUAGES[name]


def test_one_prompt_in_a_shell(shell: Shell) -> None:
    subprocess.run(["git", "init", "-q", str(shell.cwd)], check=True, timeout=PATIENCE_S)
    (shell.cwd / "question.txt").write_text("What is this?")
    for line in lines("once", 0):
        assert shell.run(line).stdout
    assert (shell.cwd / "run.jsonl").read_text().endswith('{"type":"done"}\n')


def test_an_answer_in_a_given_form(shell: Shell) -> None:
    (shell.cwd / "count.json").write_text('{"type":"object","properties":{"count":{"type":"integer"}}}')
    (shell.cwd / "answer.lab").write_text('scene\nsay "{\\"count\\": 128}"\n')
    [line] = lines("once", 1)
    command, _, answer = line.partition("#")
    assert shell.run(f"{command} --script answer.lab").stdout.strip() == answer.strip()


def test_a_denial_of_a_stranger_is_reported_and_can_be_allowed(shell: Shell) -> None:
    [denial] = blocks(page("host"), "text")
    assert shell.run("zot host", REQUEST).stderr.strip().removeprefix("zot: ") == denial.text.strip()
    read_only, everything = lines("host", 2)
    shell.run(read_only, REQUEST)
    assert not (shell.cwd / "made").exists()
    shell.run(everything, REQUEST)
    assert (shell.cwd / "made").exists()


def test_a_conversation_of_a_bridge_can_be_cleared(shell: Shell) -> None:
    shell.run("zot host", REQUEST.replace("!bash touch made", "!echo Hello"))
    [line] = lines("host", 1)
    assert json.loads(shell.run(line).stdout)["success"]
    assert '"messages":[]' in shell.run("zot rpc --session host:qq:private:42", '{"type":"get_messages"}').stdout


def test_tokens_with_roles_are_made_and_revoked(shell: Shell) -> None:
    told = [shell.run(line).stdout for line in lines("web", 1)]
    assert re.fullmatch(r"[\w-]{32,}", told[0].split()[-1])
    assert "ci" in told[2]
    assert "phone" in told[2]


def test_the_addresses_and_calls_of_the_web_page_are_right() -> None:
    install, listen = lines("web", 0)
    assert install.startswith("pip install '.[web]'")
    assert checked_listen_address(shlex.split(listen)[-1], None).port == 7777
    [_, _, method, params] = shlex.split(lines("web", 2)[0])
    assert method in daemon.METHODS
    read = daemon.read_params(daemon.METHODS[method], type(NO_PARAMS)(params.encode()))
    assert (read.session_id, read.name) == ("s1", "afar")
    [script] = blocks(page("web"), "js")
    assert re.findall(r'"(zot\..*?)"', script.text) == [SUBPROTOCOL, _TOKEN_SUBPROTOCOL]


def test_the_command_lines_of_attach_are_understood(shell: Shell) -> None:
    for line in lines("client", 0):
        no_daemon = 3  # Wrong usage is 2.
        shell.run(line, expected=no_daemon)
