from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from zot.tools.base import ReadState, ToolContext
from zot.tools.edit import Edit
from zot.tools.file_access import LockedPaths, UnrestrictedPaths
from zot.tools.read import Read
from zot.tools.write import Write

from .calls import answer, refusal
from .meddled import Meddled

NOBODY = 65534


async def write(path: str, content: str, context: ToolContext) -> str:
    return await answer(Write(), {"path": path, "content": content}, context)


@pytest.mark.parametrize(
    ("content", "size"),
    [("one\ntwo\n", "8 bytes, 2 lines"), ("one\ntwö", "8 bytes, 2 lines"), ("", "0 bytes, 0 lines")],
)
async def test_a_new_file_is_summed_up(content: str, size: str, context: ToolContext, tmp_path: Path) -> None:
    assert await write("a.txt", content, context) == f"created a.txt: {size}"
    assert (tmp_path / "a.txt").read_bytes() == content.encode()


async def test_an_existing_file_is_replaced(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a much longer old content\n")
    assert await write("a.txt", "new\r\n", context) == "replaced a.txt: 5 bytes, 1 line"
    assert (tmp_path / "a.txt").read_bytes() == b"new\r\n"
    assert os.listdir(tmp_path) == ["a.txt"]


async def test_missing_directories_are_created(context: ToolContext, tmp_path: Path) -> None:
    assert await write("a/b/c.txt", "deep\n", context) == "created a/b/c.txt: 5 bytes, 1 line"
    assert (tmp_path / "a" / "b" / "c.txt").read_text() == "deep\n"


@pytest.mark.parametrize("mode", [0o755, 0o600, 0o444, 0o4755])
async def test_an_existing_file_keeps_its_mode(mode: int, context: ToolContext, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.touch()
    path.chmod(mode)
    await write("run.sh", "true\n", context)
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
async def test_a_new_file_honours_the_umask(umask: int, mode: int, context: ToolContext, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        await write("a.txt", "x", context)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == mode


async def test_through_a_link_its_target_is_written(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    assert await write("link.txt", "new", context) == "replaced link.txt: 3 bytes, 1 line"
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


async def test_through_a_dangling_link_its_target_is_created(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "link.txt").symlink_to("sub/real.txt")
    assert await write("link.txt", "new", context) == "created link.txt: 3 bytes, 1 line"
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "sub" / "real.txt").read_text() == "new"


async def test_a_directory_that_was_removed_is_not_made_anew(context: ToolContext, tmp_path: Path) -> None:
    gone = msgspec.structs.replace(context, cwd=str(tmp_path / "gone"))
    for path in ("a.txt", "b/a.txt", str(tmp_path / "gone" / "a.txt")):
        refused = await refusal(Write(), {"path": path, "content": "x"}, gone)
        assert refused == f"cannot write {path}: the cwd {tmp_path / 'gone'} no longer exists"
    assert not (tmp_path / "gone").exists()
    assert "created" in await write(str(tmp_path / "new" / "a.txt"), "x", gone)


async def test_below_a_dangling_link_its_target_is_made_a_directory(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real/deep")
    for paths in (UnrestrictedPaths(), LockedPaths(str(tmp_path))):
        await answer(Write(paths), {"path": "link/a.txt", "content": "new"}, context)
        assert (tmp_path / "real" / "deep" / "a.txt").read_text() == "new"
        shutil.rmtree(tmp_path / "real")


async def test_lost_attributes_are_reported(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    os.link(tmp_path / "a.txt", tmp_path / "other.txt")
    assert await write("a.txt", "new", context) == (
        "replaced a.txt: 3 bytes, 1 line\n[it had 1 other hard links, which keep the old content]"
    )
    assert (tmp_path / "other.txt").read_text() == "old"


@pytest.mark.parametrize(
    ("old", "new", "notes"),
    [
        (b"\xff\xfeo\0\n\0", "new\n", "\n[it was UTF-16 LE with BOM and is now UTF-8]"),
        (b"caf\xe9\r\n", "new\n", "\n[it was Latin-1 and is now UTF-8]\n[its lines ended in CRLF and now end in LF]"),
        (b"old\r\n", "new\r\n", ""),
        (b"old\r\n", "new", ""),
        (b"old\n", "new\r\n", ""),
        (b"", "new\n", ""),
    ],
)
async def test_the_form_of_a_file_that_was_read_is_not_lost_silently(
    old: bytes, new: str, notes: str, context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_bytes(old)
    seen = ReadState()
    await answer(Read(seen=seen), {"path": "a.txt"}, context)
    text = await answer(Write(seen=seen), {"path": "a.txt", "content": new}, context)
    assert text.partition("\n")[1:] == (notes[:1], notes[1:])


STALE = "a.txt has changed since you last saw it; read it again before you replace it"


async def test_a_file_that_changed_since_it_was_seen_is_not_replaced(context: ToolContext, tmp_path: Path) -> None:
    seen = ReadState()
    tool, path = Write(seen=seen), tmp_path / "a.txt"
    await answer(tool, {"path": "a.txt", "content": "mine"}, context)
    await answer(tool, {"path": "a.txt", "content": "mine, too"}, context)
    path.write_text("theirs")
    assert await refusal(tool, {"path": "a.txt", "content": "mine again"}, context) == STALE
    assert path.read_text() == "theirs"
    await answer(Read(seen=seen), {"path": "a.txt"}, context)
    await answer(tool, {"path": "a.txt", "content": "mine again"}, context)
    assert path.read_text() == "mine again"


async def test_a_change_between_the_look_and_the_writing_is_not_lost(context: ToolContext, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    for meddle, left in ((lambda: file.write_text("theirs\n"), ["a.txt"]), (file.unlink, [])):
        seen = ReadState()
        file.write_text("old\n")
        await answer(Read(UnrestrictedPaths(), seen), {"path": "a.txt"}, context)
        assert await refusal(Write(Meddled(meddle), seen), {"path": "a.txt", "content": "ours\n"}, context) == (
            "a.txt was changed by another program at the same time; read it again"
        )
        assert os.listdir(tmp_path) == left


async def test_a_file_that_is_gone_is_created_again(context: ToolContext, tmp_path: Path) -> None:
    tool = Write()
    await answer(tool, {"path": "a.txt", "content": "mine"}, context)
    (tmp_path / "a.txt").unlink()
    assert await answer(tool, {"path": "a.txt", "content": "x"}, context) == "created a.txt: 1 bytes, 1 line"


async def test_a_binary_file_of_ours_has_no_form_to_lose(context: ToolContext) -> None:
    tool = Write()
    await answer(tool, {"path": "a.bin", "content": "\0\x01\x02"}, context)
    assert await answer(tool, {"path": "a.bin", "content": "x"}, context) == "replaced a.bin: 1 bytes, 1 line"


async def test_a_file_that_may_not_be_read_is_replaced(
    context: ToolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "a.txt":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, flags, mode, dir_fd=dir_fd)

    (tmp_path / "a.txt").touch(0o200)
    real = os.open
    monkeypatch.setattr(os, "open", open_)
    assert await write("a.txt", "new", context) == "replaced a.txt: 3 bytes, 1 line"
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o200


async def test_a_file_never_seen_is_replaced(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("theirs")
    assert await write("a.txt", "mine", context) == "replaced a.txt: 4 bytes, 1 line"


async def test_a_reader_of_the_old_file_keeps_reading_it(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old content")
    with (tmp_path / "a.txt").open() as reader:
        await write("a.txt", "new", context)
        assert reader.read() == "old content"


def test_a_write_that_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("precious\n")
    program = """if True:
        import asyncio, resource, signal, sys
        from zot.errors import ToolFailed
        from zot.tools.base import ToolContext
        from zot.tools.write import Write
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        context = ToolContext(cwd=sys.argv[1], env={})
        try:
            asyncio.run(Write().run({"path": "a.txt", "content": "x" * 5000}, context))
        except ToolFailed as exc:
            print(exc)
    """
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=10, check=True
    )
    assert done.stdout == "cannot write a.txt: File too large\n"
    assert (tmp_path / "a.txt").read_text() == "precious\n"
    assert os.listdir(tmp_path) == ["a.txt"]


async def test_a_path_that_is_not_a_file_is_not_replaced(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, text in {"dir": "it is a directory", "pipe": "not a regular file"}.items():
        assert await refusal(Write(), {"path": name, "content": "x"}, context) == f"cannot write {name}: {text}"
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == ["dir", "pipe"]


@pytest.fixture
def somebody(context: ToolContext) -> Iterator[ToolContext]:
    """A directory of an unprivileged user, with that user active."""
    hashlib.sha256()  # loaded on first use, from files that this user may not read
    with tempfile.TemporaryDirectory() as directory:
        if was_root := os.geteuid() == 0:
            os.chown(directory, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        try:
            yield msgspec.structs.replace(context, cwd=directory)
        finally:
            if was_root:
                os.seteuid(0)


async def test_a_file_that_may_not_be_written_is_not_replaced(somebody: ToolContext) -> None:
    path = Path(somebody.cwd) / "a.txt"
    path.write_text("old\n")
    path.chmod(0o444)
    reason = "cannot write a.txt: it is read-only; if it is to change, make it writable first"
    edit = {"path": "a.txt", "edits": [{"oldText": "old", "newText": "new"}]}
    assert await refusal(Write(), {"path": "a.txt", "content": "new"}, somebody) == reason
    assert await refusal(Edit(), edit, somebody) == reason
    assert (path.read_text(), os.listdir(somebody.cwd)) == ("old\n", ["a.txt"])


async def test_a_directory_where_nothing_can_be_created_is_named(somebody: ToolContext) -> None:
    (Path(somebody.cwd) / "a.txt").write_text("old\n")
    os.chmod(somebody.cwd, 0o555)
    assert await refusal(Write(), {"path": "a.txt", "content": "new"}, somebody) == (
        "cannot write a.txt: Permission denied for new files in its directory, which every change needs"
    )
    os.chmod(somebody.cwd, 0o755)


async def test_a_file_that_is_a_mount_point_is_left_to_bash(
    context: ToolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    (tmp_path / "a.txt").write_text("old\n")
    monkeypatch.setattr(os, "replace", replace)
    assert await refusal(Write(), {"path": "a.txt", "content": "new"}, context) == (
        "cannot write a.txt: it is a mount point and cannot be replaced; write it with bash"
    )
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("paths", [UnrestrictedPaths, LockedPaths])
async def test_a_path_through_missing_directories_and_back_creates_none_of_them(
    paths: type[UnrestrictedPaths] | type[LockedPaths], context: ToolContext, tmp_path: Path
) -> None:
    tool = Write(LockedPaths(str(tmp_path)) if paths is LockedPaths else UnrestrictedPaths())
    for path in ("n/../a.txt", "n/m/../../b.txt", "n/m/o/../../../d/c.txt"):
        await answer(tool, {"path": path, "content": "x"}, context)
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.txt", "d"]
    await answer(tool, {"path": "x/y/../z/a.txt", "content": "x"}, context)
    assert os.listdir(tmp_path / "x") == ["z"]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"path": "file/below", "content": "x"}, "cannot write file/below: Not a directory"),
        ({"path": "file/far/below", "content": "x"}, "cannot write file/far/below: Not a directory"),
        ({"path": "new/", "content": "x"}, "cannot write new/: that names a directory"),
        ({"path": "n" * 300, "content": "x"}, f"cannot write {'n' * 300}: File name too long"),
        ({"path": "a"}, "invalid arguments: content is missing"),
        ({"path": "a", "content": None}, "invalid arguments: content must be a string, not null"),
        ({"path": "a", "content": "x\udc80"}, "invalid arguments: content has a lone surrogate at character 1"),
    ],
)
async def test_errors_are_explained(args: dict[str, Any], text: str, context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    assert await refusal(Write(), args, context) == text
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "kept"
