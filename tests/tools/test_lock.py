from __future__ import annotations

import itertools
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from zot.errors import ToolFailed
from zot.tools.base import Tool, ToolContext
from zot.tools.edit import Edit
from zot.tools.file_access import LockedPaths, LockedPathsForReading, Paths, UnrestrictedPaths
from zot.tools.read import Read
from zot.tools.write import Write

from .calls import PATIENCE_S, answer, refusal

SECRET = "secret\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory to be locked in, beside one to be kept out of."""
    (tmp_path / "root" / "sub").mkdir(parents=True)
    (tmp_path / "root" / "inside.txt").write_text("inside\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text(SECRET)
    return tmp_path / "root"


@pytest.fixture
def here(context: ToolContext, root: Path) -> ToolContext:
    return msgspec.structs.replace(context, cwd=str(root))


def calls(path: str, paths: Paths) -> Iterator[tuple[Tool, dict[str, Any]]]:
    """Every way to touch a path."""
    yield Read(paths), {"path": path}
    yield Write(paths), {"path": path, "content": "overwritten"}
    yield Edit(paths), {"path": path, "edits": [{"oldText": "secret", "newText": "overwritten"}]}


def below(directory: Path) -> dict[str, str]:
    """Return all files of a directory with their content, and links with their targets."""
    return {
        str(path.relative_to(directory)): os.readlink(path) if path.is_symlink() else path.read_text()
        for path in sorted(directory.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


ESCAPES = {
    "..": "../outside/secret.txt",
    ".. behind a directory": "sub/../../outside/secret.txt",
    "an absolute path": "{top}/outside/secret.txt",
    "an absolute path with ..": "{top}/root/../outside/secret.txt",
    "a directory whose name begins alike": "{top}/root-2/secret.txt",
    "a link to a file": "file-link",
    "an absolute link to a file": "absolute-link",
    "a link to a directory": "dir-link/secret.txt",
    "a link to a link": "link-link",
    "a link out and in again": "round-link/inside.txt",
    "a dangling link": "dangling-link",
    "a file that is not there, behind a link": "dir-link/new.txt",
    "a directory that is not there, behind a link": "dir-link/new/new.txt",
    "a file that is not there": "../outside/new.txt",
    "a directory that is not there": "../new/new.txt",
    "the root of the process": "/proc/self/root{top}/outside/secret.txt",
    "a link to the root of the process": "proc-link/etc/hostname",
    "the working directory of the process": "/proc/self/cwd/secret.txt",
    "the parent itself": "..",
    "the root of all": "/",
}


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
async def test_no_path_leads_out(escape: str, here: ToolContext, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = root.parent
    (top / "root-2").mkdir()
    (top / "root-2" / "secret.txt").write_text(SECRET)
    links = {
        "file-link": "../outside/secret.txt",
        "absolute-link": f"{top}/outside/secret.txt",
        "dir-link": "../outside",
        "link-link": "sub/link",
        "sub/link": "../../outside/secret.txt",
        "round-link": "../root",
        "dangling-link": "../outside/new.txt",
        "proc-link": "/proc/self/root",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    monkeypatch.chdir(top / "outside")
    before, path = below(top), escape.format(top=top)
    for tool, args in calls(path, LockedPaths(str(root))):
        assert await refusal(tool, args, here) == (
            f"{path} is outside of {root}; the tools are locked to this directory and what is below it"
        )
    assert below(top) == before


async def test_created_directories_do_not_lead_out(here: ToolContext, root: Path) -> None:
    args = {"path": "new/../../outside/new.txt", "content": "x"}
    assert (await refusal(Write(LockedPaths(str(root))), args, here)).startswith(
        "new/../../outside/new.txt is outside of"
    )
    assert below(root.parent) == {"outside/secret.txt": SECRET, "root/inside.txt": "inside\n"}


async def test_the_same_paths_lead_out_without_a_lock(here: ToolContext, root: Path) -> None:
    for tool, args in calls("../outside/secret.txt", UnrestrictedPaths()):
        args["content"] = args.get("content") and SECRET
        await answer(tool, {name: value for name, value in args.items() if value}, here)
    assert (root.parent / "outside" / "secret.txt").read_text() == "overwritten\n"


async def test_inside_everything_works(here: ToolContext, root: Path) -> None:
    (root / "link").symlink_to("sub/../inside.txt")
    (root / "sub" / "up").symlink_to("..")
    (root / "sub" / "absolute").symlink_to(root / "inside.txt")
    (root / "fresh").symlink_to("made/deep")
    lock = LockedPaths(str(root))
    for path in ("inside.txt", f"{root}/inside.txt", "./sub//../inside.txt", "link", "sub/up/link", "sub/absolute"):
        assert await answer(Read(lock), {"path": path}, here) == "inside\n"
    assert await answer(Read(lock), {"path": "sub"}, here) == f"absolute -> {root}/inside.txt\nup -> ..\n"
    for path in (".", str(root), "sub/.."):
        assert await answer(Read(lock), {"path": path}, here) == (
            "fresh -> made/deep\ninside.txt\nlink -> sub/../inside.txt\nsub/\n"
        )
    await answer(Write(lock), {"path": "a/b/../c/new.txt", "content": "new"}, here)
    await answer(Write(lock), {"path": "fresh/new.txt", "content": "new"}, here)
    await answer(Edit(lock), {"path": "link", "edits": [{"oldText": "inside", "newText": "changed"}]}, here)
    assert below(root) == {
        "a/c/new.txt": "new",
        "fresh": "made/deep",
        "inside.txt": "changed\n",
        "link": "sub/../inside.txt",
        "made/deep/new.txt": "new",
        "sub/absolute": str(root / "inside.txt"),
        "sub/up": "..",
    }


async def test_the_root_may_itself_be_a_link(here: ToolContext, root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to("root")
    lock, there = LockedPaths(str(link)), msgspec.structs.replace(here, cwd=str(link))
    for path in ("inside.txt", f"{link}/inside.txt", f"{root}/inside.txt"):
        assert await answer(Read(lock), {"path": path}, there) == "inside\n"
    assert re.match(r".* is outside of .*/root;", await refusal(Read(lock), {"path": "../outside/secret.txt"}, there))


HIDDEN = (
    "home/config.toml", "home", "home/new/x", "sub/../home/config.toml", "way/config.toml", "away/trust.json",
    "sub/up/home/x",
)  # fmt: skip


@pytest.mark.parametrize("path", HIDDEN)
@pytest.mark.parametrize("exists", [True, False])
async def test_hidden_paths_inside_are_not_touched(path: str, here: ToolContext, root: Path, *, exists: bool) -> None:
    if exists:
        (root / "home").mkdir()
        (root / "home" / "config.toml").write_text(SECRET)
    (root / "way").symlink_to("home")
    (root / "away").symlink_to(root / "home")
    (root / "sub" / "up").symlink_to("..")
    before = below(root)
    for tool, args in calls(path, LockedPaths(str(root), hidden=[str(root / "home"), str(root.parent / "outside")])):
        assert await refusal(tool, args, here) == (
            f"{path} is in {root}/home, where zot keeps its own files; locked tools do not touch it"
        )
    assert (below(root), (root / "home").exists()) == (before, exists)
    assert (
        await answer(Read(LockedPaths(str(root), hidden=[str(root.parent)])), {"path": "inside.txt"}, here)
        == "inside\n"
    )


async def test_extra_readable_paths_can_be_read_and_lead_nowhere_else(here: ToolContext, root: Path) -> None:
    top = root.parent
    (top / "skill").mkdir()
    (top / "skill" / "script.sh").write_text("echo\n")
    (top / "skill" / "out").symlink_to("../outside/secret.txt")
    (top / "skill" / "in").symlink_to(root / "inside.txt")
    (root / "link").symlink_to(top / "skill" / "script.sh")
    paths = LockedPathsForReading(LockedPaths(str(root)), [str(top / "skill"), str(top / "gone")])
    for path in (f"{top}/skill/script.sh", f"{top}/skill/./script.sh"):
        assert await answer(Read(paths), {"path": path}, here) == "echo\n"
    assert await answer(Read(paths), {"path": "inside.txt"}, here) == "inside\n"
    for path in ("skill/out", "skill/in", "skill/../outside/secret.txt", "outside/secret.txt", "skill-2", "root/link"):
        assert " is outside of " in await refusal(Read(paths), {"path": f"{top}/{path}"}, here)


async def test_the_whole_system_may_be_the_root(here: ToolContext, root: Path) -> None:
    assert await answer(Read(LockedPaths("/")), {"path": "inside.txt"}, here) == "inside\n"


async def test_a_root_that_is_gone_is_named(here: ToolContext, root: Path) -> None:
    lock = LockedPaths(str(root))
    root.rename(root.parent / "moved")
    assert await refusal(Read(lock), {"path": "inside.txt"}, here) == f"cannot open {root}: No such file or directory"
    root.symlink_to("outside")
    assert await refusal(Read(lock), {"path": "secret.txt"}, here) == f"cannot open {root}: Not a directory"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("gone", "cannot read gone: No such file or directory"),
        ("gone/x", "cannot read gone/x: No such file or directory"),
        ("inside.txt/x", "cannot read inside.txt/x: Not a directory"),
        ("loop", "cannot read loop: Too many levels of symbolic links"),
        ("n" * 300, f"cannot read {'n' * 300}: File name too long"),
        ("", "path must not be empty"),
    ],
)
async def test_other_failures_are_reported_as_without_a_lock(
    path: str, text: str, here: ToolContext, root: Path
) -> None:
    (root / "loop").symlink_to("loop")
    assert await refusal(Read(LockedPaths(str(root))), {"path": path}, here) == text


def swap_targets(root: Path) -> None:
    """A link leads in, then out, and is there all the time."""
    for target in ("../outside", "sub"):
        os.symlink(target, root / "next")
        os.rename(root / "next", root / "way")


def swap_directories(root: Path) -> None:
    """A directory, then a link that leads out in its place."""
    clear(root / "way")
    os.mkdir(root / "way")
    clear(root / "way")
    os.symlink("../outside", root / "way")


def swap_files(root: Path) -> None:
    """In a directory that stays: a file, then links that lead out."""
    for target in ("../../outside/secret.txt", "../../outside/new.txt"):
        os.symlink(target, root / "next")
        os.rename(root / "next", root / "way" / "secret.txt")
    (root / "way" / "secret.txt").unlink()


def clear(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize("swap", [swap_targets, swap_directories, swap_files])
async def test_no_race_leads_out(swap: Callable[[Path], None], here: ToolContext, root: Path) -> None:
    outside = root.parent / "outside"
    (root / "way").symlink_to("sub")
    lock, outcomes = LockedPaths(str(root)), {True: 0, False: 0}
    with repeating(lambda: swap(root)) as rounds:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and (min(outcomes.values()) < 20 or rounds() < 100):
            for tool, args in calls("way/secret.txt", lock):
                outcomes[await harmless(tool, args, here)] += 1
    assert below(outside) == {"secret.txt": SECRET}
    assert sorted(os.listdir(root.parent)) == ["outside", "root"]
    assert (min(outcomes.values()) >= 20, rounds() >= 100) == (True, True)  # there was a race


async def harmless(tool: Tool, args: dict[str, Any], context: ToolContext) -> bool:
    """True if the call changed the files inside; False if it was refused."""
    try:
        output = await tool.run(args, context)
    except ToolFailed:
        return False
    assert SECRET not in str(output)
    return True


@contextmanager
def repeating(action: Callable[[], None]) -> Iterator[Callable[[], int]]:
    """Do something again and again in another thread; gives how often it was done."""
    rounds, stop = itertools.count(), threading.Event()
    done = [0]

    def work() -> None:
        while not stop.is_set():
            try:
                action()
            except OSError:  # a tool was there first
                continue
            done[0] = next(rounds)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield lambda: done[0]
    finally:
        stop.set()
        thread.join(timeout=10)
        assert not thread.is_alive()
