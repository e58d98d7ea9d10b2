"""`session/git_branch` equals git's own answer, in every layout of a repository."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemons import Caller, running

WHO = {f"GIT_{role}_{what}": "a@b.example" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


@pytest.fixture
async def caller(tmp_path: Path) -> AsyncIterator[Caller]:
    async with running(tmp_path) as service:
        yield await service.caller()


def git(directory: Path, *words: str) -> str:
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"], **WHO}
    done = subprocess.run(
        ["git", *words], cwd=directory, env=alone, stdout=subprocess.PIPE, text=True, check=True, timeout=30
    )
    return done.stdout.strip()


def repository(path: Path, *, commits: bool = True) -> Path:
    path.mkdir()
    git(path, "init", "-q")
    git(path, "symbolic-ref", "HEAD", "refs/heads/feature/one")
    if commits:
        git(path, "commit", "-q", "--allow-empty", "-m", "first")
    return path


async def told(caller: Caller, directory: Path) -> dict[str, str]:
    opened = await caller.get("session/new", agentAlias="default", cwd=str(directory))
    answer = await caller.get("session/git_branch", sessionId=opened["sessionId"])
    return {key: value for key, value in answer.items() if key != "sessionId"}


async def test_a_branch_and_its_commit(caller: Caller, tmp_path: Path) -> None:
    work = repository(tmp_path / "work")
    expected = {"branch": "feature/one", "hash": git(work, "rev-parse", "HEAD")[:7]}
    assert await told(caller, work) == expected
    (work / "below").mkdir()
    assert await told(caller, work / "below") == expected
    git(work, "pack-refs", "--all")
    assert not (work / ".git" / "refs" / "heads" / "feature").exists()
    assert await told(caller, work) == expected


async def test_a_worktree_has_a_branch_of_its_own(caller: Caller, tmp_path: Path) -> None:
    work = repository(tmp_path / "work")
    git(work, "worktree", "add", "-q", "-b", "two", str(tmp_path / "two"))
    git(tmp_path / "two", "commit", "-q", "--allow-empty", "-m", "second")
    expected = {"branch": "two", "hash": git(tmp_path / "two", "rev-parse", "HEAD")[:7]}
    assert expected["hash"] != git(work, "rev-parse", "HEAD")[:7]
    assert await told(caller, tmp_path / "two") == expected
    git(work, "pack-refs", "--all")
    assert await told(caller, tmp_path / "two") == expected


async def test_a_branch_without_a_commit_and_a_commit_without_a_branch(caller: Caller, tmp_path: Path) -> None:
    assert await told(caller, repository(tmp_path / "new", commits=False)) == {"branch": "feature/one"}
    work = repository(tmp_path / "work")
    git(work, "checkout", "-q", "--detach")
    assert await told(caller, work) == {"hash": git(work, "rev-parse", "HEAD")[:7]}


@pytest.mark.parametrize("head", ["ref: refs/heads/.invalid\n", None], ids=["a table of references", "no HEAD"])
async def test_an_unreadable_repository_yields_no_guess(caller: Caller, tmp_path: Path, head: str | None) -> None:
    (tmp_path / "work" / ".git").mkdir(parents=True)
    if head is not None:
        (tmp_path / "work" / ".git" / "HEAD").write_text(head)
    assert await told(caller, tmp_path / "work") == {}
