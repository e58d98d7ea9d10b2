"""A locked run that plants code for later: in git, editors, shells and agents."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from extensions.stage import Extension, Stage
from optional import needs
from zot.config.config import Config, resolve
from zot.config.protected_paths import PROTECTED, protected_paths, protection_of
from zot.errors import ToolFailed
from zot.runtime.shared import SharedResources
from zot.runtime.toolbox import Toolbox
from zot.tools.base import ToolContext
from zot.tools.bash import Bash
from zot.tools.file_access import LockedPaths
from zot.tools.process import Child, Groups, Program
from zot.tools.sandbox import Sandbox

from .sandboxed import locked

ALL = [path for paths in PROTECTED.values() for path in paths]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with every protected path in it; each is a directory with a file, or a file."""
    work = tmp_path / "work"
    for name in ALL:
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if "." in path.name[1:] or path.name in ("config", "commondir"):
            path.write_text("theirs")
        else:
            path.mkdir(exist_ok=True)
            (path / "file").write_text("theirs")
    return work


def _contents(top: Path) -> dict[str, str]:
    return {str(path.relative_to(top)): path.read_text() for path in sorted(top.rglob("*")) if path.is_file()}


@needs("bwrap")
async def test_existing_protected_files_stay_unchanged(clone: Path) -> None:
    before = _contents(clone)
    ways = (
        "echo evil > {0}", "echo evil > {0}/file", "echo evil > {0}/new", "rm -rf {0}", "mv {0} {0}.old",
        "chmod 777 {0}", "ln -f other {0}", "mount --bind . {0}",
    )  # fmt: skip
    more = "mv .git .git2; mkdir -p .git/hooks; mv .config .config2; mv .local .local2; echo work > .git/index"
    lines = [way.format(path) for path in ALL for way in ways]
    (clone / "attack.sh").write_text("\n".join([*lines, more, "echo done"]))
    text = await locked("sh attack.sh 2>&1 | tail -1", clone)
    assert "\ndone\n" in text
    after = {name: content for name, content in _contents(clone).items() if name != "attack.sh"}
    assert after == {**before, ".git/index": "work\n"}


@needs("bwrap")
async def test_new_protected_files_are_moved_away(tmp_path: Path) -> None:
    (tmp_path / ".config").mkdir()
    commands = [f"mkdir -p $(dirname {path}); echo evil > {path}" for path in [*ALL, "HEAD"]]
    text = await locked("; ".join(commands), tmp_path)
    left = [path for path in [*ALL, "HEAD"] if os.path.lexists(tmp_path / path)]
    assert left == []
    assert "[moved away, because --lock protects it: " in text
    assert (tmp_path / "HEAD.zot-quarantine").read_text() == "evil\n"


@needs("bwrap")
async def test_a_link_can_neither_plant_a_protected_file_nor_move_an_outside_one(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "fish").mkdir(parents=True)
    work = tmp_path / "work"
    work.mkdir()
    command = f"ln -s {outside} .config; mkdir e; echo x > e/x; ln -s e .zot; ln -s e .vscode"
    await locked(command, work)
    assert (outside / "fish").is_dir()
    assert sorted(path.name for path in work.iterdir()) == [
        ".config.zot-quarantine", ".vscode.zot-quarantine", ".zot.zot-quarantine", "e",
    ]  # fmt: skip


@needs("bwrap", "git")
async def test_git_still_works_and_runs_nothing_that_was_planted(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    work = tmp_path / "work"
    work.mkdir()

    def git(*words: str) -> str:
        command = ["git", "-C", str(work), "-c", "user.name=x", "-c", "user.email=x@x", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False).stdout

    git("init", "-q")
    evil = f"touch {tmp_path}/ran"
    attack = (
        "echo 1 > f; git add f; git -c user.name=x -c user.email=x@x commit -qm one && echo committed;"
        f"git config core.fsmonitor '{evil}'; printf '#!/bin/sh\\n{evil}\\n' > .git/hooks/post-checkout;"
        "chmod +x .git/hooks/post-checkout; mkdir -p evil/objects evil/refs; cp .git/config evil/config;"
        f"git config -f evil/config core.fsmonitor '{evil}'; echo ../evil > .git/commondir; echo over"
    )
    text = await locked(attack, work, env={"PATH": os.environ["PATH"]})
    assert "\ncommitted\n" in text
    assert "\nover\n" in text
    assert git("log", "--format=%s") == "one\n"
    git("status")
    git("checkout", "-q", "-b", "b")
    assert not (tmp_path / "ran").exists()


@needs("bwrap", "git")
async def test_git_runs_nothing_from_a_repository_below(tmp_path: Path) -> None:
    """git enters it from above if the index has it as a submodule. One existed before, one is planted."""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    work, who = tmp_path / "work", "-c user.name=x -c user.email=x@x"
    evil = f"touch {tmp_path}/ran"
    commit = f"git init -q . && echo 1 > f && git add f && git {who} commit -qm one"
    submodule = "git update-index --add --cacheinfo 160000,$(git -C {0} rev-parse HEAD),{0}"
    (work / "lib").mkdir(parents=True)
    for place in (work, work / "lib"):
        subprocess.run(commit, shell=True, cwd=place, env=env, check=True, timeout=60)
    subprocess.run(submodule.format("lib"), shell=True, cwd=work, env=env, check=True, timeout=60)
    attack = (
        f"git -C lib config core.fsmonitor '{evil}'; mv lib/.git lib/x; mv lib l;"
        f"mkdir -p a/b && cd a/b && {commit} && git config core.fsmonitor '{evil}' && cd ../..;"
        f"{submodule.format('a/b')}; git status --short; echo over"
    )
    assert "\nover\n" in await locked(attack, work, env={"PATH": os.environ["PATH"]})
    (tmp_path / "ran").unlink(missing_ok=True)
    for command in ("git status", "git diff", "git add -A"):
        subprocess.run(command, shell=True, cwd=work, env=env, check=False, capture_output=True, timeout=60)
    assert not (tmp_path / "ran").exists()
    assert (work / "a" / "b" / ".git.zot-quarantine").is_dir()
    assert (work / "lib" / ".git" / "HEAD").exists()


@needs("bwrap")
async def test_protected_files_planted_by_an_aborted_command_are_moved_away(tmp_path: Path) -> None:
    async with asyncio.timeout(60):
        running = asyncio.create_task(locked("echo evil > .envrc; : > done; sleep 60", tmp_path))
        await _until(tmp_path / "done")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert not (tmp_path / ".envrc").exists()


class LateStart(Groups):
    """Never reports an evil command as started: when that is cancelled, the command has done its work."""

    async def spawn(self, command: Program) -> Child:
        child = await super().spawn(command)
        if not any(b"evil" in os.fsencode(word) for word in command.argv):  # The sandbox tries what this machine has.
            return child
        try:
            await asyncio.Event().wait()
        finally:
            await child.end(grace_s=0)
            child.close()
        raise AssertionError("unreachable")


@needs("bwrap")
async def test_protected_files_planted_before_an_aborted_start_are_moved_away(tmp_path: Path) -> None:
    tool = Bash(LateStart(), sandbox=Sandbox())
    context = ToolContext(str(tmp_path), {"PATH": os.environ["PATH"]})
    async with asyncio.timeout(60):
        running = asyncio.create_task(tool.run({"command": "echo evil > .envrc; : > done; sleep 60"}, context))
        await _until(tmp_path / "done")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert not (tmp_path / ".envrc").exists()


@needs("bwrap")
async def test_the_file_that_points_to_a_repository_stays_unchanged(tmp_path: Path) -> None:
    """As a worktree and a submodule have one."""
    (tmp_path / ".git").write_text("gitdir: /elsewhere\n")
    text = await locked("echo 'gitdir: evil' > .git; rm -f .git; mkdir .git; mv .git x; echo over", tmp_path)
    assert "\nover\n" in text
    assert (tmp_path / ".git").read_text() == "gitdir: /elsewhere\n"
    (tmp_path / ".git").unlink()
    await locked("echo 'gitdir: evil' > .git", tmp_path)
    assert not (tmp_path / ".git").exists()


@needs("bwrap")
async def test_files_that_zot_would_run_at_the_next_start_stay_unchanged(tmp_path: Path) -> None:
    work = tmp_path / "work"
    for name in ("tools/ext", "settings"):
        (work / name).mkdir(parents=True)
    (work / "tools" / "ext" / "run.py").write_text("theirs")
    (work / "settings" / "config.toml").write_text("[agents.default]\n")
    before = _contents(work)
    env = {"PATH": os.environ["PATH"], "ZOT_HOME": str(tmp_path / "home")}
    settings = {"lock": True, "cwd": str(work), "config_dir": str(work / "settings"), "tools": ("bash", "write"),
                "ext": (str(work / "tools" / "ext"),)}  # fmt: skip
    config = resolve({"provider": "lab", **settings}, env)
    resources = SharedResources()
    toolbox = Toolbox(config, resources, cwd=str(work), key="k")
    context = ToolContext(str(work), env)
    bash, write = toolbox.tools
    attack = "for f in tools/ext/run.py settings/config.toml; do echo evil > $f; done; mv tools t; true"
    await bash.run({"command": attack}, context)
    for name in before:
        with pytest.raises(ToolFailed):
            await write.run({"path": name, "content": "evil"}, context)
    await toolbox.close()
    await resources.close()
    assert _contents(work) == before


@needs("bwrap")
async def test_a_job_in_the_background_plants_nothing_that_outlives_the_session(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "ZOT_HOME": str(tmp_path / "home")}
    work = tmp_path / "work"
    work.mkdir()
    config = Config(provider="lab", lock=True, cwd=str(work), env=env, tools=("bash",))
    resources = SharedResources()
    toolbox = Toolbox(config, resources, cwd=str(work), key="k")
    command = "(while [ ! -e go ]; do sleep 0.01; done; echo evil > .envrc; : > done; "
    command += "while [ ! -e more ]; do sleep 0.01; done; echo evil > .profile; : > done2; sleep 60) & echo up"
    await toolbox.tools[0].run({"command": command}, ToolContext(str(work), env))
    (work / "go").touch()
    await _until(work / "done")
    await toolbox.tools[0].run({"command": "true"}, ToolContext(str(work), env))
    assert not (work / ".envrc").exists(), "the next command does not take it for what was there before"
    (work / "more").touch()
    await _until(work / "done2")
    await toolbox.close()
    await resources.close()
    assert not (work / ".profile").exists()
    assert (work / ".envrc.zot-quarantine").exists()


#: Ways in which a protected path leads to another one in the directory, and the paths to which it leads.
LEADS = {
    "a link to a directory": ("ln -s conf .vscode", ["conf/tasks.json"]),
    "a link to a file": ("echo theirs > rc; ln -s rc .bashrc", ["rc"]),
    "a link on the way": ("mkdir -p conf/fish; ln -s conf .config", ["conf/fish/config.fish"]),
    "git's directory behind a link": (
        "mv .git real; ln -s real .git",
        ["real/config", "real/hooks/x", "real/commondir"],
    ),
    "git's directory elsewhere": ("mv .git real; echo gitdir: real > .git", ["real/config", "real/hooks/x"]),
    "hooks": ("git config core.hooksPath .githooks", [".githooks/pre-commit"]),
    "hooks in quotes": ("printf '[core] HooksPath = \"my hooks\"' >> .git/config", ["my hooks/pre-commit"]),
    "configuration": ("git config include.path ../shared", ["shared"]),
    "hooks in quotes in part": ("git config core.hooksPath 'my#\"hooks'", ['my#"hooks/pre-commit']),
    "hooks on two lines": ("printf '[core]hooksPath=.git\\\\\nhooks' >> .git/config", [".githooks/pre-commit"]),
    "configuration of a worktree": ("git config -f .git/config.worktree core.hooksPath h", ["h/pre-commit"]),
    "an include of an include": (
        "git config include.path ../a; git config -f a includeIf.gitdir:x.path b; git config -f b core.hooksPath h",
        ["b", "h/pre-commit"],
    ),
    "a command": ("git config diff.x.textconv 'sh tools/x --text'", ["tools/x"]),
    "a command of an alias": ("git config alias.up '!cd . && ./up/all'", ["up/all"]),
}


@needs("bwrap")
@pytest.mark.parametrize("name", LEADS)
@pytest.mark.parametrize("exists", [True, False], ids=["there", "missing"])
async def test_targets_of_protected_paths_are_protected(name: str, exists: bool, tmp_path: Path) -> None:
    setup, led = LEADS[name]
    for command in ("git init -q", "mkdir conf", setup):
        subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True, timeout=60)
    for path in led if exists else ():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        with open(tmp_path / path, "a") as file:
            file.write("theirs")
    before = _contents(tmp_path)
    ways = [
        f"mkdir -p \"$(dirname '{path}')\"; echo evil >> '{path}'; mv '{path}' x; echo evil > '{path}'" for path in led
    ]
    await locked("; ".join(ways), tmp_path)
    kept = [path for path in led if (tmp_path / path).exists()]
    assert {path: (tmp_path / path).read_text() for path in kept} == {
        path: before[path] for path in led if path in before
    }
    paths = LockedPaths(str(tmp_path), protected=())
    for path in led:
        with pytest.raises(ToolFailed, match="is protected"):
            paths.find(path, str(tmp_path), make_parents=True)


def _is_refused(path: str, work: Path) -> bool:
    try:
        LockedPaths(str(work), protected=()).find(path, str(work), make_parents=True)
    except ToolFailed as problem:
        return "is protected" in str(problem)
    return False


@needs("bwrap", "git")
@pytest.mark.parametrize("place", ["tree", "main/sub", "below", "user"])
async def test_hooks_named_in_another_place_are_protected(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the repository of a worktree, in the one above, in one below, and in the user's own configuration."""
    setup = (
        "git init -q main; cd main; git -c user.name=x -c user.email=x@x commit -q --allow-empty -m x;"
        "git config core.hooksPath hooks; git worktree add -q ../tree; mkdir sub; cd ..; git init -q user;"
        "git config -f rc core.hooksPath hooks; git init -q below/lib; git -C below/lib config core.hooksPath ../hooks"
    )
    subprocess.run(["sh", "-ec", setup], cwd=tmp_path, check=True, timeout=60)
    if place == "main/sub":
        subprocess.run(["git", "config", "core.hooksPath", "sub/hooks"], cwd=tmp_path / "main", check=True, timeout=60)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "rc") if place == "user" else "/dev/null")
    work = tmp_path / place
    await locked("mkdir hooks; echo evil > hooks/pre-commit", work)
    assert not (work / "hooks").exists()
    if place != "below":  # File tools look at the repositories on the way.
        assert _is_refused("hooks/pre-commit", work)


def test_a_file_tool_does_not_write_hooks_of_a_repository_below(tmp_path: Path) -> None:
    (tmp_path / "lib" / ".git").mkdir(parents=True)
    (tmp_path / "lib" / ".git" / "config").write_text("[core]\n\thooksPath = .githooks\n")
    assert _is_refused("lib/.githooks/pre-commit", tmp_path)
    assert not _is_refused("lib/hooks/pre-commit", tmp_path)


def test_a_file_tool_does_not_write_through_a_protected_link(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / ".vscode").symlink_to("conf")
    for path in (".vscode/tasks.json", "conf/tasks.json"):
        with pytest.raises(ToolFailed, match="is protected"):
            LockedPaths(str(tmp_path), protected=()).find(path, str(tmp_path), make_parents=True)


@needs("bwrap")
async def test_a_new_bare_repository_below_is_disarmed(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    subprocess.run(["git", "init", "-q", "--bare"], cwd=tmp_path / "old", check=True, timeout=60)
    before = (tmp_path / "old" / "config").read_text()
    made = "mkdir -p a/b/x/objects a/b/x/refs; echo ref: refs/heads/main > a/b/HEAD; echo x > a/b/commondir"
    await locked(f"{made}; git init -q --bare c; echo evil >> old/config; echo evil > old/hooks/x", tmp_path)
    assert not (tmp_path / "a" / "b" / "HEAD").exists()
    assert not (tmp_path / "c" / "HEAD").exists()
    assert (tmp_path / "old" / "config").read_text() == before
    assert (tmp_path / "old" / "HEAD").exists()
    assert not (tmp_path / "old" / "hooks" / "x").exists()


@needs("bwrap")
async def test_a_directory_made_read_only_hides_no_planted_file(tmp_path: Path) -> None:
    command = "mkdir -p .vscode .config/fish; echo evil | tee .vscode/tasks.json .config/fish/x; chmod 555 .config ."
    await locked(command, tmp_path)
    assert not (tmp_path / ".vscode").exists()
    assert not (tmp_path / ".config" / "fish").exists()
    tmp_path.chmod(0o700)


@needs("bwrap")
async def test_a_directory_that_a_command_made_unreadable_hides_no_repository(tmp_path: Path) -> None:
    await locked("mkdir -p a/b; git init -q a/b/c; chmod 111 a/b a", tmp_path)
    assert not (tmp_path / "a" / "b" / "c" / ".git").exists()


@needs("bwrap", "git")
async def test_the_next_step_of_a_rebase_runs_nothing_that_was_planted(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1", "GIT_EDITOR": "true"}
    work = tmp_path / "work"
    work.mkdir()

    def git(*words: str) -> str:
        command = ["git", "-C", str(work), "-c", "user.name=x", "-c", "user.email=x@x", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False).stdout

    git("init", "-q", "-b", "main")
    for branch, text in (("main", "0"), ("side", "1"), ("main", "2")):
        git("checkout", "-q", "-B" if branch == "side" else "-q", branch)
        (work / "f").write_text(text)
        git("add", "f")
        git("commit", "-qm", text)
    git("rebase", "side", "--exec", "touch ../mine")
    todo = work / ".git" / "rebase-merge" / "git-rebase-todo"
    assert "exec touch ../mine" in todo.read_text()
    await locked("echo 3 > f; git add f", work)
    assert todo.exists()
    text = await locked(f"echo ' x touch {tmp_path}/ran' >> .git/rebase-merge/git-rebase-todo", work)
    assert "moved away, because --lock protects it: .git/rebase-merge/git-rebase-todo" in text
    git("rebase", "--continue")
    assert not (tmp_path / "ran").exists()


@needs("bwrap")
async def test_a_rebase_in_a_repository_kept_elsewhere_runs_nothing_that_was_planted(tmp_path: Path) -> None:
    (tmp_path / "real" / "rebase-merge").mkdir(parents=True)
    (tmp_path / ".git").write_text("gitdir: real\n")
    todo = tmp_path / "real" / "rebase-merge" / "git-rebase-todo"
    todo.write_text("pick 1\n")
    await locked("echo 'exec evil' >> real/rebase-merge/git-rebase-todo", tmp_path)
    assert not todo.exists()


BELOW = [path for path in ALL if not path.startswith(".git/")]


@needs("bwrap")
async def test_protected_files_in_a_subdirectory_stay_unchanged(clone: Path) -> None:
    before = _contents(clone)
    ways = ("echo evil > {0}", "echo evil > {0}/file", "echo evil > {0}/new", "rm -rf {0}", "mv {0} {0}.old")
    lines = [way.format(f"work/{path}") for path in BELOW for way in ways]
    (clone.parent / "attack.sh").write_text("\n".join([*lines, "echo done"]))
    text = await locked("sh attack.sh 2>&1 | tail -1", clone.parent)
    assert "\ndone\n" in text
    assert {name: content for name, content in _contents(clone).items() if "zot-quarantine" not in name} == before


@needs("bwrap")
async def test_new_protected_files_in_a_subdirectory_are_moved_away(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    places = [f"{place}/{path}" for place in ("old", "new/deep") for path in [*BELOW, ".VSCode"]]
    commands = [f"mkdir -p $(dirname {path}); echo evil > {path}" for path in places]
    (tmp_path / "attack.sh").write_text("\n".join(commands))
    text = await locked(
        "sh attack.sh; mkdir -p src/git src/fish; echo good | tee src/git/a src/fish/b src/head", tmp_path
    )
    assert [path for path in places if os.path.lexists(tmp_path / path)] == []
    assert "new/deep/.npmrc" in text
    kept = {name for name, content in _contents(tmp_path).items() if content == "good\n"}
    assert kept == {"src/git/a", "src/fish/b", "src/head"}


@needs("bwrap")
async def test_packages_bring_such_files_along_and_can_be_removed(tmp_path: Path) -> None:
    for package in ("node_modules/a", "sub/node_modules/a", ".venv/lib/site-packages/a"):
        (tmp_path / package / ".vscode").mkdir(parents=True)
    text = await locked("rm -rf node_modules sub .venv; mkdir -p node_modules/b; touch node_modules/b/.npmrc", tmp_path)
    assert "[exit 0]" in text
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == [
        "node_modules/b/.npmrc"
    ]


@needs("bwrap")
async def test_a_directory_is_not_replaced_by_one_with_other_protected_files(tmp_path: Path) -> None:
    for path in ("sub/.vscode", "sub/.git/hooks", "sub/.git/objects", "sub/.git/refs", ".config/git"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "sub" / ".npmrc").write_text("mine")
    paths = ("sub/.vscode/tasks.json", "sub/.git/hooks/post-checkout", "sub/.git/config", "sub/.npmrc", ".config/git/x")
    made = "; ".join(f"mkdir -p $(dirname {path}); echo evil > {path}" for path in paths)
    await locked(f"mv sub sub2; mv .config config2; {made}", tmp_path)
    assert [path for path in paths if (tmp_path / path).exists() and (tmp_path / path).read_text() == "evil\n"] == []


@needs("bwrap")
async def test_a_protected_link_below_has_no_writable_target(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / ".vscode").symlink_to("../conf")
    await locked("echo evil > conf/tasks.json; echo evil > sub/.vscode/tasks.json", tmp_path)
    assert [*(tmp_path / "conf").iterdir()] == []


@needs("bwrap")
@pytest.mark.parametrize("other", ["notes.txt", "deep/down/notes", ".git/COMMIT_EDITMSG"])
@pytest.mark.parametrize("path", [".git/config", ".git/hooks/post-checkout", ".vscode/tasks.json", "sub/.npmrc"])
async def test_a_hard_link_to_a_protected_file_is_protected_too(path: str, other: str, tmp_path: Path) -> None:
    """An archive can bring hard links along."""
    for one in (path, other):
        (tmp_path / one).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("mine\n")
    (tmp_path / other).hardlink_to(tmp_path / path)
    text = await locked(f"echo evil >> {other}; ln {path} again; echo evil >> again", tmp_path)
    assert "Read-only file system" in text
    assert (tmp_path / path).read_text() == "mine\n"


async def _until(path: Path) -> None:
    async with asyncio.timeout(30):
        while not path.exists():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("path", [*ALL, ".git/HEAD", "HEAD", "mine/keep"])
def test_no_file_tool_writes_a_protected_path(path: str, tmp_path: Path) -> None:
    paths = LockedPaths(str(tmp_path), protected=("mine/keep",))
    (tmp_path / "d").mkdir()
    spellings = [path, f"{path}/x", f"./d/../{path}", path.upper(), f"{path[:2]}\u200c{path[2:]}"]
    if path not in ("HEAD", "mine/keep"):
        spellings += [f"d/{path}", f"d/{path}/x"]
    for spelling in spellings:
        with pytest.raises(ToolFailed, match="is protected"):
            paths.find(spelling, str(tmp_path), make_parents=True)
    assert not os.path.lexists(tmp_path / path)


def test_a_link_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "harmless").symlink_to(".git")
    with pytest.raises(ToolFailed, match="is protected"):
        LockedPaths(str(tmp_path), protected=()).find("harmless/hooks/x", str(tmp_path), make_parents=True)


def test_paths_that_only_look_protected_are_not() -> None:
    for path in ("src/head.py", "HEAD.md", ".github/workflows/ci.yml", "git/hooks", ".gitignore", "a/HEAD", ".zotty"):
        assert protection_of(path) == ""
    assert "mine/keep" in protected_paths(("/mine/keep/",))


#: Writes to each path that it is told, and creates the directories on the way.
WRITER = """
hello("tools")
say("register_tool", name="write_all", schema={"type": "object"})
say("ready")
for frame in frames():
    if frame["type"] == "tool_call":
        written = []
        for path in frame["args"]["paths"]:
            try:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                open(path, "a").write("evil")
                written.append(path)
            except OSError:
                pass
        say("tool_result", id=frame["id"], content=[{"type": "text", "text": json.dumps(written)}])
    elif frame["type"] == "shutdown":
        say("shutdown_ack")
        break
"""


@needs("bwrap")
async def test_an_extension_that_may_write_the_directory_plants_nothing_there(tmp_path: Path) -> None:
    """Neither where programs look for code, nor where zot would find its own files."""
    user = tmp_path / "user"
    for repository in (user, user / "vendor" / "other"):
        (repository / ".git" / "hooks").mkdir(parents=True)
        (repository / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (user / ".zot").mkdir()
    (user / "package" / ".vscode").mkdir(parents=True)
    env = {"PATH": os.environ["PATH"], "ZOT_HOME": str(tmp_path / "home"), "HOME": str(user)}
    writer = Extension(tmp_path / "ext", "writer", WRITER, permissions={"tools": True, "fs.write": ["$CWD"]})
    below = ["vendor/other/.git/hooks/post-checkout", "package/.vscode/tasks.json"]
    tried = [".git/hooks/post-checkout", ".zot/extensions/x/run.py", ".zeroclaw/data/token", *below, "allowed"]
    async with Stage(tmp_path / "home", writer, cwd=str(user), env=env) as stage:
        asked = json.dumps({"paths": [str(user / path) for path in tried]})
        await stage.prompt(f"call write_all {asked} ;; --- ;; say done")
    assert [path for path in tried if (user / path).exists()] == ["allowed"]
