"""Back to an earlier point: the conversation and the files, or neither."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import zot
from fakes import PATIENCE_S
from grammar import Grammar
from harness import Frame, Zot, environment
from rewind_crash import session_with
from zot import RestoredFile, RewindRefused
from zot.errors import SessionBusy, ToolFailed, UserError
from zot.journal.journal import Journal
from zot.journal.repair import check_contents
from zot.session.transcripts import RewindTarget
from zot.store import FileChanged
from zot.tools.base import CallReporter, ToolContext
from zot.tools.checkpoints import MAX_KEPT_BYTES, Restorer
from zot.tools.file_access import UnrestrictedPaths
from zot.tools.write import Write


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The directory that the session works in."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def runtime(home: Path, work: Path) -> Callable[..., zot.Runtime]:
    def make(**settings: Any) -> zot.Runtime:
        given: dict[str, Any] = {"session": "s", "cwd": str(work), **settings}
        return zot.Runtime(provider="lab", env={"ZOT_HOME": str(home)}, **given)

    return make


@asynccontextmanager
async def talking(runtime: zot.Runtime, *prompts: str) -> AsyncIterator[zot.Runtime]:
    """A runtime with these prompts."""
    async with asyncio.timeout(PATIENCE_S), runtime as open_runtime:
        for prompt in prompts:
            await open_runtime.run(prompt)
        yield open_runtime


def files(directory: Path) -> dict[str, bytes]:
    """Return the files below a directory, with their content."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def changed(*paths: str) -> tuple[RestoredFile, ...]:
    return tuple(RestoredFile(path, "changed") for path in paths)


async def test_files_go_back_with_the_conversation(runtime: Callable[..., zot.Runtime], work: Path) -> None:
    (work / "old.txt").write_bytes(b"mine\r\nand\xff yours")
    steps = ["!write new/a.txt one", "!edit new/a.txt one two", "!edit old.txt mine hers", "!edit new/a.txt two three"]
    async with talking(runtime(), *steps) as open_runtime:
        assert files(work) == {"new/a.txt": b"three", "old.txt": b"hers\r\nand\xff yours"}
        assert (await open_runtime.rewind(messages=12)).files == changed("new/a.txt")
        assert files(work) == {"new/a.txt": b"two", "old.txt": b"hers\r\nand\xff yours"}
        assert len(open_runtime.messages) == 12
        rewound = await open_runtime.rewind(messages=4)
        assert (rewound.messages, rewound.files) == (4, changed("new/a.txt", "old.txt"))
        assert files(work) == {"new/a.txt": b"one", "old.txt": b"mine\r\nand\xff yours"}
        rewound = await open_runtime.rewind(messages=0)
        assert (rewound.messages, rewound.files) == (0, (RestoredFile("new/a.txt", "removed"),))
        assert files(work) == {"old.txt": b"mine\r\nand\xff yours"}
        assert open_runtime.messages == ()


async def test_a_preview_says_what_would_change_and_changes_nothing(
    runtime: Callable[..., zot.Runtime], work: Path
) -> None:
    async with talking(runtime(), "!write a.txt one", "!edit a.txt one two") as open_runtime:
        before = open_runtime.messages
        preview = await open_runtime.rewind(messages=4, preview=True)
        assert (preview.messages, preview.files) == (4, changed("a.txt"))
        assert (open_runtime.messages, files(work)) == (before, {"a.txt": b"two"})
        assert await open_runtime.rewind(messages=4) == preview
        (work / "a.txt").write_text("mine")
        with pytest.raises(RewindRefused, match=r"a\.txt"):
            await open_runtime.rewind(messages=0, preview=True)


async def test_a_rewind_is_undone_by_another_one(runtime: Callable[..., zot.Runtime], work: Path) -> None:
    async with talking(runtime(), "!write a.sh one") as open_runtime:
        (work / "a.sh").chmod(0o751)
        await open_runtime.run("!edit a.sh one two")
        before = open_runtime.messages
        rewound = await open_runtime.rewind(messages=0)
        assert files(work) == {}
        undone = await open_runtime.rewind(at=rewound.undo)
        assert undone.files == (RestoredFile("a.sh", "created"),)
        assert open_runtime.messages == before
        assert files(work) == {"a.sh": b"two"}
        assert stat.S_IMODE((work / "a.sh").stat().st_mode) == 0o751
        assert (await open_runtime.rewind(at=undone.undo)).messages == 0
        assert files(work) == {}


async def test_a_file_keeps_the_mode_that_it_has_now(runtime: Callable[..., zot.Runtime], work: Path) -> None:
    async with talking(runtime(), "!write a.txt one", "!edit a.txt one two") as open_runtime:
        (work / "a.txt").chmod(0o640)
        await open_runtime.rewind(messages=4)
        assert stat.S_IMODE((work / "a.txt").stat().st_mode) == 0o640
        assert files(work) == {"a.txt": b"one"}


async def test_the_model_may_continue_with_restored_files(runtime: Callable[..., zot.Runtime], work: Path) -> None:
    async with talking(runtime(), "!write a.txt one", "!read a.txt", "!edit a.txt one two") as open_runtime:
        await open_runtime.rewind(messages=8)
        await open_runtime.run("!edit a.txt one three")
        assert files(work) == {"a.txt": b"three"}
        await open_runtime.rewind(messages=0)
        await open_runtime.run("!write a.txt four")
        assert files(work) == {"a.txt": b"four"}


async def test_another_process_can_rewind_the_first_one_s_changes(
    runtime: Callable[..., zot.Runtime], work: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside.txt"
    async with talking(runtime(), "!write a.txt one", f"!write {outside} two"):
        pass
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    async with talking(runtime(cwd=str(tmp_path / "link")), "!write a.txt first", "!write ../link/./a.txt other"):
        pass
    # It works elsewhere now; the files are where they were.
    async with talking(runtime(cwd=str(tmp_path))) as open_runtime:
        rewound = await open_runtime.rewind(messages=0)
        assert [file.path for file in rewound.files] == [f"{work}/a.txt", str(outside), f"{tmp_path}/elsewhere/a.txt"]
        assert files(work) == {}
        assert not outside.exists()
        assert files(tmp_path / "elsewhere") == {}
        await open_runtime.rewind(at=rewound.undo)
        assert files(work) == {"a.txt": b"one"}
        assert files(tmp_path / "elsewhere") == {"a.txt": b"other"}
        assert outside.read_bytes() == b"two"


async def test_foreign_changes_between_two_edits_are_restored(runtime: Callable[..., zot.Runtime], work: Path) -> None:
    async with talking(runtime(), "!write a.txt one") as open_runtime:
        (work / "a.txt").write_text("by hand")
        await open_runtime.run("!read a.txt")
        await open_runtime.run("!edit a.txt hand machine")
        await open_runtime.rewind(messages=8)
        assert files(work) == {"a.txt": b"by hand"}
        await open_runtime.rewind(messages=4)
        # No tool's change has to be undone, so changes by hand stay.
        assert files(work) == {"a.txt": b"by hand"}


# Refusals.


def overwrite(path: Path) -> None:
    path.write_text("by hand")


def as_before(path: Path) -> None:
    path.write_text("one")


def remove(path: Path) -> None:
    path.unlink()


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def grow(path: Path) -> None:
    os.truncate(path, MAX_KEPT_BYTES + 1)


REFUSALS: dict[Callable[[Path], None], str] = {
    overwrite: "another program changed it",
    as_before: "another program changed it",
    remove: "another program changed it",
    make_directory: "cannot write {path}: it is a directory",
    make_link: "a link leads elsewhere now",
    make_pipe: "cannot write {path}: not a regular file",
    grow: "its content was not kept",
}


@pytest.mark.parametrize("meddle", REFUSALS, ids=lambda meddle: meddle.__name__)
async def test_a_foreign_change_is_not_overwritten_and_then_nothing_is(
    runtime: Callable[..., zot.Runtime], work: Path, meddle: Callable[[Path], None]
) -> None:
    (work / "a.txt").write_text("zero")
    steps = ["!write z.txt one", "!write a.txt one", "!edit a.txt one two", "!write b.txt one"]
    async with talking(runtime(), *steps) as open_runtime:
        meddle(work / "a.txt")
        were, said = files(work), open_runtime.messages
        with pytest.raises(RewindRefused) as refused:
            await open_runtime.rewind(messages=0)
        reason = REFUSALS[meddle].format(path=work / "a.txt")
        assert str(refused.value) == f"files cannot be restored, nothing was changed: a.txt: {reason}"
        assert refused.value.files == ("a.txt",)
        assert (files(work), open_runtime.messages) == (were, said)
        assert (await open_runtime.rewind(messages=12)).files == (RestoredFile("b.txt", "removed"),)
        assert (await open_runtime.rewind(messages=0, files=False)).files == ()
        assert open_runtime.messages == ()
        assert files(work) == {path: data for path, data in were.items() if path != "b.txt"}


async def test_a_file_that_already_matches_is_not_written(runtime: Callable[..., zot.Runtime], work: Path) -> None:
    (work / "b.txt").write_text("zero")
    async with talking(runtime(), "!write a.txt one", "!write b.txt one") as open_runtime:
        (work / "a.txt").unlink()
        (work / "b.txt").write_text("zero")
        was = (work / "b.txt").stat()
        assert len((await open_runtime.rewind(messages=0)).files) == 2
        assert files(work) == {"b.txt": b"zero"}
        assert (work / "b.txt").stat().st_ino == was.st_ino


async def test_an_unwritable_file_leaves_the_others_unchanged(runtime: Callable[..., zot.Runtime], work: Path) -> None:
    async with talking(runtime(), "!write a.txt one", "!write new/b.txt one", "!write c.txt one") as open_runtime:
        rewound = await open_runtime.rewind(messages=0)
        (work / "new").rmdir()
        (work / "new").write_text("a file where the directory was")
        with pytest.raises(RewindRefused, match=r"new/b\.txt: cannot read .*: Not a directory"):
            await open_runtime.rewind(at=rewound.undo)
        assert files(work) == {"new": b"a file where the directory was"}


class Meddling(Restorer):
    """Another process changes c.txt after the check, and b.txt after it was restored, if ``twice``."""

    def __init__(self, work: Path, *, twice: bool) -> None:
        super().__init__(UnrestrictedPaths())
        self._work = work
        self._twice = twice

    def restore(
        self, root: str, path: str, data: bytes | None, *, found: Sequence[str | None], then: str | None, mode: int
    ) -> tuple[str | None, int] | None:
        if path == "c.txt":
            (self._work / "c.txt").write_text("by hand")
            if self._twice:
                (self._work / "b.txt").write_text("by hand")
        return super().restore(root, path, data, found=found, then=then, mode=mode)


@pytest.mark.parametrize("twice", [False, True])
async def test_a_change_at_the_last_moment_undoes_the_rewind(
    runtime: Callable[..., zot.Runtime], home: Path, work: Path, twice: bool
) -> None:
    async with talking(runtime(), "!write a.txt one", "!write b.txt one", "!write c.txt one"):
        pass
    session = await session_with(Meddling(work, twice=twice), str(home / "journal.db"), str(work))
    with pytest.raises(RewindRefused) as refused:
        await session.rewind(RewindTarget(messages=0))
    assert refused.value.files == (("c.txt", "b.txt") if twice else ("c.txt",))
    assert files(work) == {"a.txt": b"one", "b.txt": b"by hand" if twice else b"one", "c.txt": b"by hand"}
    assert len(session.history.transcript) == 12
    await session.close()


async def test_oversized_contents_are_neither_kept_nor_restored(
    runtime: Callable[..., zot.Runtime], work: Path
) -> None:
    (work / "large").write_bytes(b"x" * (MAX_KEPT_BYTES + 1))
    (work / "just").write_bytes(b"x" * MAX_KEPT_BYTES)
    async with talking(runtime(), "!write just small") as open_runtime:
        await open_runtime.rewind(messages=0)
        assert (work / "just").stat().st_size == MAX_KEPT_BYTES
        await open_runtime.run("!write large small")
        with pytest.raises(RewindRefused, match="large: its content was not kept"):
            await open_runtime.rewind(messages=0)
        await open_runtime.rewind(messages=0, files=False)
        assert (work / "large").read_bytes() == b"small"


async def test_a_lock_holds_for_a_rewind_too(runtime: Callable[..., zot.Runtime], work: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    async with talking(runtime(), f"!write {outside} one", "!write a.txt one"):
        pass
    async with talking(runtime(lock=True, tools=("write",))) as open_runtime:
        with pytest.raises(RewindRefused, match=f"{outside}: {outside} is outside of {work}"):
            await open_runtime.rewind(messages=0)
        assert outside.read_bytes() == b"one"
        await open_runtime.rewind(messages=4)
        assert files(work) == {}


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ({}, "a rewind needs either messages"),
        ({"messages": 1, "at": 1}, "a rewind needs either messages"),
        ({"messages": 2}, "cannot rewind to message 2: a tool call waits for its result there"),
        ({"messages": 9}, "cannot rewind to message 9: the conversation has"),
        ({"at": 999}, "the session has no row 999 to rewind to"),
    ],
)
async def test_an_unknown_point_is_refused(
    runtime: Callable[..., zot.Runtime], work: Path, wish: dict[str, Any], reason: str
) -> None:
    async with talking(runtime(), "!write a.txt one") as open_runtime:
        with pytest.raises(UserError, match=reason):
            await open_runtime.rewind(**wish)
        assert files(work) == {"a.txt": b"one"}


async def test_an_unrecorded_or_running_session_cannot_be_rewound(
    runtime: Callable[..., zot.Runtime], work: Path
) -> None:
    async with talking(runtime(session=None), "!write a.txt one") as open_runtime:
        with pytest.raises(UserError, match="not recorded, so it cannot be rewound"):
            await open_runtime.rewind(messages=0)
    async with talking(runtime(), "!write a.txt two") as first, talking(runtime()) as second:
        stream = first.prompt("!stall")
        await anext(stream)
        with pytest.raises(zot.RuntimeBusy):
            await first.rewind(messages=0)
        with pytest.raises(SessionBusy):
            await second.rewind(messages=0)
        await stream.aclose()
        assert (await second.rewind(messages=0)).messages == 0
    assert files(work) == {"a.txt": b"one"}


def test_a_program_without_a_loop_can_rewind(home: Path, work: Path) -> None:
    settings: dict[str, Any] = {"provider": "lab", "session": "s", "cwd": str(work), "env": {"ZOT_HOME": str(home)}}
    with zot.BlockingRuntime(**settings) as runtime:
        runtime.run("!write a.txt one")
        assert runtime.rewind(messages=0).files == (RestoredFile("a.txt", "removed"),)
        assert files(work) == {}


@pytest.mark.parametrize("existed", [False, True])
async def test_a_foreign_write_while_a_change_is_recorded_is_not_overwritten(work: Path, existed: bool) -> None:
    if existed:
        (work / "a.txt").write_text("one")
    rows = []

    class Meddling(CallReporter):
        keeps_changes = True

        async def writing(self, change: FileChanged) -> None:
            rows.append((change.path, change.before is None, sorted(change.contents.values())))
            (work / "a.txt").write_text("by hand")

    with pytest.raises(ToolFailed, match="by another program at the same time"):
        await Write().run({"path": "a.txt", "content": "two"}, ToolContext(str(work), {}, reporter=Meddling()))
    assert files(work) == {"a.txt": b"by hand"}
    assert rows == [("a.txt", not existed, [b"one", b"two"] if existed else [b"two"])]


# Kept checkpoints.


async def test_contents_are_stored_once_while_referenced(
    runtime: Callable[..., zot.Runtime], home: Path, work: Path
) -> None:
    async with talking(runtime(), "!write a.txt one", "!write b.txt one", "!edit a.txt one two") as open_runtime:
        await open_runtime.rewind(messages=8)
    journal = await Journal.open(home / "journal.db")
    try:
        assert (await journal.reading(check_contents)).problems == ()
        assert await journal.reading(lambda it: it.execute("SELECT count(*) FROM blobs").fetchone()) == (2,)
        await journal.fork("s", "t", at=(await journal.record("s")).last_seq)
        await journal.delete("s")
        assert await journal.collect() == 0
        record = await journal.record("t")
        wrote = [row for _, row in await record.changes() if isinstance(row, FileChanged)]
        assert [(row.path, row.before is None, row.contents) for row in wrote] == [
            ("a.txt", True, {}), ("b.txt", True, {}), ("a.txt", False, {}), ("a.txt", False, {}),
        ]  # fmt: skip
        assert await record.content(wrote[2].before or "") == b"one"
        assert await record.content(wrote[2].after or "") == b"two"
        await journal.delete("t")
        assert await journal.reading(lambda it: it.execute("SELECT count(*) FROM blobs").fetchone()) == (0,)
    finally:
        await journal.close()


async def test_a_lost_content_is_refused_and_noticed(
    runtime: Callable[..., zot.Runtime], home: Path, work: Path
) -> None:
    async with talking(runtime(), "!write a.txt one", "!edit a.txt one two") as open_runtime:
        journal = await Journal.open(home / "journal.db")
        await journal.writing(lambda it: it.execute("DELETE FROM blobs WHERE data = ?", (b"one",)))
        assert "an image or file near row" in (await journal.reading(check_contents)).problems[0]
        await journal.close()
        with pytest.raises(RewindRefused, match=r"a\.txt: its earlier content is lost"):
            await open_runtime.rewind(messages=4)
        assert files(work) == {"a.txt": b"two"}


def crash(home: Path, work: Path, when: str) -> None:
    """Kill a process in the middle of a rewind."""
    script = Path(__file__).parents[1] / "rewind_crash.py"
    killed = subprocess.run(
        [sys.executable, str(script), str(home / "journal.db"), str(work), when],
        env=environment({}),
        timeout=PATIENCE_S,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL


@pytest.mark.parametrize("when", ["unwritten", "written"])
async def test_an_interrupted_change_can_be_rewound_whether_it_was_made_or_not(
    runtime: Callable[..., zot.Runtime], home: Path, work: Path, when: str
) -> None:
    async with talking(runtime(), "!write a.txt one"):
        pass
    crash(home, work, when)
    assert files(work) == {"a.txt": b"two" if when == "written" else b"one"}
    async with talking(runtime()) as open_runtime:
        rewound = await open_runtime.rewind(messages=4)
        assert (rewound.messages, rewound.files) == (4, changed("a.txt"))
        assert files(work) == {"a.txt": b"one"}
        (work / "a.txt").write_text("by hand")
        with pytest.raises(RewindRefused):
            await open_runtime.rewind(messages=0)


@pytest.mark.parametrize("after", range(4))
async def test_a_killed_rewind_is_finished_by_repeating_it(
    runtime: Callable[..., zot.Runtime], home: Path, work: Path, after: int
) -> None:
    (work / "b.txt").write_text("old")
    async with talking(runtime(), "!write a.txt one", "!write b.txt one", "!write c.txt one"):
        pass
    crash(home, work, str(after))
    left = [{"a.txt", "b.txt", "c.txt"}, {"b.txt", "c.txt"}, {"b.txt", "c.txt"}, {"b.txt"}]
    assert {*files(work)} == left[after]
    async with talking(runtime()) as open_runtime:
        assert len(open_runtime.messages) == 12
        rewound = await open_runtime.rewind(messages=0)
        assert (rewound.messages, len(rewound.files)) == (0, 3)
        assert files(work) == {"b.txt": b"old"}
        await open_runtime.rewind(at=rewound.undo)
        assert files(work) == {"a.txt": b"one", "b.txt": b"one", "c.txt": b"one"}


# Over RPC.


@pytest.fixture
def kept(zot: Callable[..., Zot], home: Path, work: Path) -> Callable[..., Zot]:
    def start(*flags: str) -> Zot:
        process = zot("--provider", "lab", "--session", "s", *flags, cwd=work, env={"ZOT_HOME": str(home)})
        process.grammar = Grammar(resumed=True)
        return process

    return start


def say(process: Zot, text: str) -> list[Frame]:
    process.send({"type": "prompt", "message": text})
    return process.until(type="done")


def test_a_client_rewinds_and_the_next_prompt_waits(kept: Callable[..., Zot], work: Path) -> None:
    process = kept()
    say(process, "!write a.txt one")
    say(process, "!edit a.txt one two")
    process.send({"type": "rewind", "id": 1, "messages": 4}, {"type": "prompt", "message": "!edit a.txt one three"})
    answer = process.read()
    undo = answer["data"].pop("undo")
    expected = {"messages": 4, "files": [{"path": "a.txt", "change": "changed"}]}
    assert answer == {"type": "response", "id": 1, "command": "rewind", "success": True, "data": expected}
    process.until(type="done")
    assert files(work) == {"a.txt": b"three"}
    process.send({"type": "rewind", "at": undo})
    assert process.read()["data"]["messages"] == 8
    assert files(work) == {"a.txt": b"two"}
    (work / "a.txt").write_text("by hand")
    assert process.ask({"type": "rewind", "messages": 0}) == {
        "type": "response", "command": "rewind", "success": False,
        "error": "files cannot be restored, nothing was changed: a.txt: another program changed it",
    }  # fmt: skip
    assert process.ask({"type": "rewind", "messages": 0, "files": False})["data"]["files"] == []
    assert files(work) == {"a.txt": b"by hand"}
    process.finish()
    later = kept()
    assert later.ask({"type": "get_state"})["data"]["message_count"] == 0


def test_a_client_gets_the_reason_it_cannot_rewind(zot: Callable[..., Zot]) -> None:
    process = zot("--provider", "lab")
    assert process.ask({"type": "rewind", "messages": 0})["error"] == (
        "this session is not recorded, so it cannot be rewound; start one with a session name"
    )
    assert "messages" in process.ask({"type": "rewind", "messages": -1})["error"]
