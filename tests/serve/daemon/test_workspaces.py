"""Workspaces from a Git repository: checked out by a worker, pushed after each run, continued by the next worker."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from daemons import PATIENCE_S, Caller, running
from zot.config.configured_agents import AgentConfigs
from zot.config.paths import DaemonPaths
from zot.errors import ConfigError
from zot.journal.journal import Journal
from zot.runtime.shared import SharedResources
from zot.serve.daemon.audit import Audit
from zot.serve.daemon.daemon import DaemonParts
from zot.serve.daemon.logs import LogFile
from zot.serve.workspaces import Workspaces, branch_of

from .test_gateway import opened, seen_as, working


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
    answer = await caller.answer(caller.call("session/prompt", sessionId="s", prompt=f"!bash {command}"))
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


@asynccontextmanager
async def checkouts(home: Path) -> AsyncIterator[Workspaces]:
    """Run a worker's checkouts without a worker."""
    journal, resources = await Journal.open(str(home / "journal.db")), SharedResources(serves_many=True)
    audit = Audit(LogFile(str(home / "audit.log")), soon=asyncio.get_running_loop().call_soon)
    place = DaemonPaths("", str(home), str(home), None)
    parts = DaemonParts(
        place, AgentConfigs.load(str(home)), journal=journal, resources=resources, audit=audit, flags={}
    )
    try:
        yield Workspaces(parts, checks_out=True)
    finally:
        await resources.close()
        await journal.close()
        audit.close()


async def prepared(workspaces: Workspaces, session_id: str = "s") -> Path:
    """Return the checkout of a session."""
    place = await workspaces.prepare(session_id, "default")
    assert place is not None
    return Path(place)


def listed(repository: Path, branch: str = "zot/s") -> list[str]:
    """Return the names in a branch, with the mode of each."""
    lines = git("ls-tree", "-r", branch, cwd=repository).splitlines()
    return [f"{line.split()[0]} {line.partition(chr(9))[2]}" for line in lines]


def trapped(tmp_path: Path) -> tuple[str, Path]:
    """Return a program, and the file that it makes when it runs."""
    trap, sprung = tmp_path / "trap", tmp_path / "sprung"
    trap.write_text(f"#!/bin/sh\ntouch {sprung}\ncat\n")
    trap.chmod(0o755)
    return str(trap), sprung


async def test_a_repository_with_an_odd_name_inside_makes_git_run_nothing(tmp_path: Path, repository: Path) -> None:
    # A link to it would make git look for changes in there, with the settings that the model has made.
    trap, sprung = trapped(tmp_path)
    async with checkouts(machine(tmp_path, "one", repository)) as workspaces:
        place = await prepared(workspaces)
        for name in (b"\xff", b"a\tb", b"a\nb", b'"quoted"', b"-c"):
            inner = os.path.join(os.fsencode(place), name)
            os.mkdir(inner)
            git("init", "--quiet", cwd=Path(os.fsdecode(inner)))
            git("commit", "--quiet", "--allow-empty", "-m", "Begin", cwd=Path(os.fsdecode(inner)))
            git("config", "core.fsmonitor", trap, cwd=Path(os.fsdecode(inner)))
        for content in ("one", "two"):
            (place / "made.txt").write_text(content)
            await workspaces.publish("s", "default")
        assert git("show", "zot/s:made.txt", cwd=repository) == "two"
        assert not [entry for entry in listed(repository) if entry.startswith("160000")]
        assert not sprung.exists()


async def test_attributes_run_no_filter_of_the_operator_and_change_no_file(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap, sprung = trapped(tmp_path)
    settings = tmp_path / "operator.gitconfig"
    settings.write_text(f'[filter "x"]\nclean = {trap}\nsmudge = {trap}\nprocess = {trap}\nrequired = true\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    one, two = machine(tmp_path, "one", repository), machine(tmp_path, "two", repository)
    async with checkouts(one) as workspaces:
        place = await prepared(workspaces)
        (place / ".gitattributes").write_text("* filter=x text eol=crlf ident working-tree-encoding=UTF-16\n")
        (place / "made.txt").write_bytes(b"$Id$\r\n\xff")
        await workspaces.publish("s", "default")
    async with checkouts(two) as workspaces:
        assert (await prepared(workspaces) / "made.txt").read_bytes() == b"$Id$\r\n\xff"
    assert not sprung.exists()


async def test_files_that_cannot_be_pushed_keep_no_other_from_it(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("zot.serve.workspaces._MAX_FILE_BYTES", 1 << 20)
    async with checkouts(machine(tmp_path, "one", repository)) as workspaces:
        place = await prepared(workspaces)
        with (place / "huge").open("wb") as file:
            file.truncate(2 << 20)
        os.mkfifo(place / "pipe")
        (place / "kept.txt").unlink()
        os.mkfifo(place / "kept.txt")
        (place / "made.txt").write_text("made")
        (place / "link").symlink_to("/etc")
        await workspaces.publish("s", "default")
        assert listed(repository) == [
            "100644 .gitignore",
            "100644 AGENTS.md",
            "100644 kept.txt",
            "120000 link",
            "100644 made.txt",
        ]
        assert "2 files are too large, special or unreadable" in caplog.text


async def test_directories_files_and_links_replace_each_other(tmp_path: Path, repository: Path) -> None:
    async with checkouts(machine(tmp_path, "one", repository)) as workspaces:
        place = await prepared(workspaces)
        (place / "deep" / "er").mkdir(parents=True)
        (place / "deep" / "er" / "file").write_text("1")
        (place / "other").mkdir()
        (place / "other" / "file").write_text("2")
        await workspaces.publish("s", "default")
        assert [entry for entry in listed(repository) if "/" in entry] == ["100644 deep/er/file", "100644 other/file"]
        (place / "deep" / "er" / "file").unlink()
        (place / "deep" / "er").rmdir()
        (place / "deep" / "er").symlink_to(place / "other")
        (place / "kept.txt").unlink()
        (place / "kept.txt").mkdir()
        (place / "kept.txt" / "now").write_text("3")
        (place / "other" / "file").unlink()
        (place / "other").rmdir()
        (place / "other").write_text("4")
        await workspaces.publish("s", "default")
        assert listed(repository)[2:] == ["120000 deep/er", "100644 kept.txt/now", "100644 other"]


async def test_submodules_stay_at_their_commit_unless_files_replace_them(tmp_path: Path, repository: Path) -> None:
    source = tmp_path / "source"
    commit = git("rev-parse", "HEAD", cwd=source)
    for name in ("sub", "gone"):
        git("update-index", "--add", "--cacheinfo", f"160000,{commit},{name}", cwd=source)
    git("commit", "--quiet", "-m", "Link", cwd=source)
    git("push", "--quiet", str(repository), "HEAD:main", cwd=source)
    async with checkouts(machine(tmp_path, "one", repository)) as workspaces:
        place = await prepared(workspaces)
        (place / "gone").mkdir(exist_ok=True)
        (place / "gone" / "file").write_text("1")
        await workspaces.publish("s", "default")
        assert [entry for entry in listed(repository) if "sub" in entry or "gone" in entry] == [
            "100644 gone/file",
            "160000 sub",
        ]


async def test_commits_of_others_are_never_overwritten(tmp_path: Path, repository: Path) -> None:
    one, two = machine(tmp_path, "one", repository), machine(tmp_path, "two", repository)
    async with checkouts(one) as first, checkouts(two) as second:
        mine, theirs = await prepared(first), await prepared(second)
        (mine / "made.txt").write_text("mine")
        (theirs / "made.txt").write_text("theirs")
        await second.publish("s", "default")
        await first.publish("s", "default")
        assert git("show", "zot/s:made.txt", cwd=repository) == "theirs"
        aside = git("for-each-ref", "--format=%(refname)", "refs/heads/zot/s-*", cwd=repository)
        assert git("show", f"{aside}:made.txt", cwd=repository) == "mine"
        assert (await prepared(first) / "made.txt").read_text() == "theirs"


async def test_files_that_could_not_be_pushed_are_pushed_before_the_checkout_is_replaced(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zot.serve.workspaces._PAUSES_S", ())
    one, two = machine(tmp_path, "one", repository), machine(tmp_path, "two", repository)
    async with checkouts(one) as first, checkouts(two) as second:
        mine, theirs = await prepared(first), await prepared(second)
        (mine / "made.txt").write_text("mine")
        repository.rename(tmp_path / "away")
        await first.publish("s", "default")
        (tmp_path / "away").rename(repository)
        (theirs / "made.txt").write_text("theirs")
        await second.publish("s", "default")
        assert (await prepared(first) / "made.txt").read_text() == "theirs"
        aside = git("for-each-ref", "--format=%(refname)", "refs/heads/zot/s-*", cwd=repository)
        assert git("show", f"{aside}:made.txt", cwd=repository) == "mine"


async def test_sessions_begin_at_the_same_time(tmp_path: Path, repository: Path) -> None:
    async with checkouts(machine(tmp_path, "one", repository)) as workspaces, asyncio.TaskGroup() as group:
        opening = [group.create_task(prepared(workspaces, name)) for name in "abcd"]
    assert [(one.result() / "kept.txt").read_text() for one in opening] == ["kept\n"] * 4


def test_no_session_can_be_named_like_the_branch_of_another() -> None:
    branch = branch_of("an odd name")
    assert branch_of(branch.removeprefix("zot/")) != branch
    assert branch_of("plain-1") == "zot/plain-1"


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
