"""Workspaces from a Git repository: checked out by a worker, pushed after each run, continued by the next worker."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from daemons import PATIENCE_S, Caller, running
from zot.config.configured_agents import AgentConfigs
from zot.errors import ConfigError

from .test_gateway import answered, opened, seen_as, working


def git(*words: str, cwd: Path) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, *words], cwd=cwd, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A bare repository whose branch `main` has a file and instructions."""
    source, bare = tmp_path / "source", tmp_path / "project.git"
    source.mkdir()
    git("init", "--quiet", cwd=source)
    (source / "kept.txt").write_text("kept\n")
    (source / "AGENTS.md").write_text("Speak of pelicans.\n")
    (source / ".gitignore").write_text("*.o\n")
    git("add", ".", cwd=source)
    git("commit", "--quiet", "-m", "Begin", cwd=source)
    git("clone", "--quiet", "--bare", str(source), str(bare), cwd=tmp_path)
    return bare


def machine(tmp_path: Path, name: str, repository: Path) -> Path:
    """Return the home of a worker or gateway, with its configuration."""
    home = tmp_path / name
    home.mkdir()
    (home / "config.toml").write_text(f"[agents.default]\nmodel = 'lab'\nworkspace = '{repository}'\nbranch = 'main'\n")
    return home


async def ran(caller: Caller, command: str) -> str:
    answer = await answered(caller, caller.call("session/prompt", sessionId="s", prompt=f"!bash {command}"))
    assert answer["result"]["stopReason"] == "end_turn", answer
    return str(answer["result"]["content"])


async def pushed(repository: Path, commits: int) -> None:
    """Wait until the session's branch has this many commits."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            heads = git("for-each-ref", "--format=%(refname)", "refs/heads/zot/s", cwd=repository)
            if heads and int(git("rev-list", "--count", "zot/s", cwd=repository)) == commits:
                return
            await asyncio.sleep(0.05)


async def test_the_next_worker_continues_from_the_branch_of_the_session(
    tmp_path: Path, database: str, repository: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    one, two = machine(tmp_path, "one", repository), machine(tmp_path, "two", repository)
    async with running(machine(tmp_path, "gate", repository), store=seen_as(database, "gate")) as gate:
        caller = await gate.caller()
        await opened(caller, "s", tmp_path / "elsewhere")
        async with working(one, database, "first"):
            await ran(caller, "cat kept.txt > made.txt; touch built.o; git remote")
            await pushed(repository, 2)
            assert git("show", "zot/s:made.txt", cwd=repository) == "kept"
            # Nothing changes: nothing is pushed. The next run has more.
            await ran(caller, "true")
            await ran(caller, "echo more >> made.txt; rm kept.txt")
            await pushed(repository, 3)
        assert git("ls-tree", "--name-only", "zot/s", cwd=repository).split() == [".gitignore", "AGENTS.md", "made.txt"]
        assert git("show", "main:kept.txt", cwd=repository) == "kept"
        async with working(two, database, "second"):
            await ran(caller, "cp made.txt copy.txt; ls > listed.txt")
            await pushed(repository, 4)
        assert git("show", "zot/s:copy.txt", cwd=repository) == "kept\nmore"
        # Ignored files stay where they were made.
        assert git("show", "zot/s:listed.txt", cwd=repository).split() == [
            "AGENTS.md",
            "copy.txt",
            "listed.txt",
            "made.txt",
        ]
        state = await caller.get("session/state", sessionId="s")
        assert str(tmp_path / "elsewhere") not in str(state)


async def test_nothing_in_the_checkout_makes_git_run_a_program(tmp_path: Path, database: str, repository: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    trap, sprung = tmp_path / "trap", tmp_path / "sprung"
    trap.write_text(f"#!/bin/sh\ntouch {sprung}\ncat\n")
    trap.chmod(0o755)
    async with (
        running(machine(tmp_path, "gate", repository), store=seen_as(database, "gate")) as gate,
        working(machine(tmp_path, "one", repository), database, "first"),
    ):
        caller = await gate.caller()
        await opened(caller, "s", tmp_path / "elsewhere")
        settings = [
            f"core.fsmonitor {trap}",
            f"filter.x.clean {trap}",
            f"core.sshCommand {trap}",
            f"core.hooksPath {tmp_path}",
        ]
        for place in (".", "inner"):
            made = "; ".join([f"git init -q {place}", *(f"git -C {place} config {one}" for one in settings)])
            await ran(caller, f"{made}; echo '* filter=x' > {place}/.gitattributes; echo a > {place}/a.txt")
        await ran(
            caller, f"cd inner; git add a.txt; rm -f {sprung}; cd ..; cp {trap} .git/hooks/pre-push; echo b > b.txt"
        )
        await pushed(repository, 3)
        assert not sprung.exists()
        # A repository inside is not pushed, and no link to it.
        assert "inner" not in git("ls-tree", "-r", "--name-only", "zot/s", cwd=repository)


async def test_a_repository_that_cannot_be_reached_ends_the_prompt(
    tmp_path: Path, database: str, repository: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    async with (
        running(machine(tmp_path, "gate", repository), store=seen_as(database, "gate")) as gate,
        working(machine(tmp_path, "one", tmp_path / "gone.git"), database, "first"),
    ):
        caller = await gate.caller()
        await opened(caller, "s", tmp_path / "elsewhere")
        _, why = await caller.error("session/prompt", sessionId="s", prompt="!echo one")
        assert "git ls-remote: " in why


@pytest.mark.parametrize(
    "setting",
    [
        "workspace = 'ext::sh -c true'",
        "workspace = 'git+https://user:secret@example.org/x.git'",
        "workspace = 'ssh://-oProxyCommand=true/x.git'",
        "workspace = '--upload-pack=true'",
        "workspace = 'relative/x.git'",
        "branch = '--force'",
        "branch = 'a..b'",
        "pool = 'a b'",
    ],
)
def test_a_dangerous_setting_is_refused_without_its_value(tmp_path: Path, setting: str) -> None:
    (tmp_path / "config.toml").write_text(f"[agents.default]\n{setting}\n")
    with pytest.raises(ConfigError, match=r"\[agents\.default\].*expected") as refused:
        AgentConfigs.load(str(tmp_path))
    assert "secret" not in str(refused.value)
