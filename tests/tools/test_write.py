from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zot.tools.base import ToolContext
from zot.tools.write import Write

from .calls import answer, refusal


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
    assert await write("a.txt", "new\r\n", context) == "replaced a.txt: 5 bytes, 1 lines"
    assert (tmp_path / "a.txt").read_bytes() == b"new\r\n"
    assert os.listdir(tmp_path) == ["a.txt"]


async def test_missing_directories_are_created(context: ToolContext, tmp_path: Path) -> None:
    assert await write("a/b/c.txt", "deep\n", context) == "created a/b/c.txt: 5 bytes, 1 lines"
    assert (tmp_path / "a" / "b" / "c.txt").read_text() == "deep\n"


@pytest.mark.parametrize("mode", [0o755, 0o600, 0o444])
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
    assert await write("link.txt", "new", context) == "replaced link.txt: 3 bytes, 1 lines"
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


async def test_through_a_dangling_link_its_target_is_created(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "link.txt").symlink_to("sub/real.txt")
    assert await write("link.txt", "new", context) == "created link.txt: 3 bytes, 1 lines"
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "sub" / "real.txt").read_text() == "new"


async def test_a_reader_of_the_old_file_goes_on_reading_it(context: ToolContext, tmp_path: Path) -> None:
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
        context = ToolContext(cwd=sys.argv[1], env={}, progress=asyncio.sleep)
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


async def test_what_is_not_a_file_is_not_replaced(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, text in {"dir": "it is a directory", "pipe": "not a regular file"}.items():
        assert await refusal(Write(), {"path": name, "content": "x"}, context) == f"cannot write {name}: {text}"
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == ["dir", "pipe"]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"path": "file/below", "content": "x"}, "cannot write file/below: Not a directory"),
        ({"path": "file/far/below", "content": "x"}, "cannot write file/far/below: Not a directory"),
        ({"path": "n" * 300, "content": "x"}, f"cannot write {'n' * 300}: File name too long"),
        ({"path": "a"}, "invalid arguments: Object missing required field `content`"),
        ({"path": "a", "content": None}, "invalid arguments: Expected `str`, got `null` - at `$.content`"),
        ({"path": "a", "content": "x\udc80"}, "invalid arguments: content has a lone surrogate at character 1"),
    ],
)
async def test_what_cannot_be_done_is_explained(
    args: dict[str, Any], text: str, context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("kept")
    assert await refusal(Write(), args, context) == text
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "kept"
