"""Files that an editor has open: whose text the tools read, and where they write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zot.errors import ToolFailed
from zot.messages import TextBlock
from zot.tools.base import ReadState, Tool, ToolContext
from zot.tools.documents import OpenDocuments
from zot.tools.edit import Edit
from zot.tools.read import Read
from zot.tools.write import Write


class Buffers(OpenDocuments):
    """An editor with buffers by path. It saves each write, unless it ``refuses``."""

    can_write = True

    def __init__(self, **texts: str) -> None:
        super().__init__()
        self.texts = texts
        self.typed: dict[str, list[str]] = {}
        self.refuses = False
        self.wrote: list[str] = []

    async def read(self, path: str) -> str | None:
        if later := self.typed.get(path):
            self.texts[path] = later.pop(0)
        return self.texts.get(path)

    async def write(self, path: str, text: str) -> None:
        if self.refuses:
            raise ToolFailed("no")
        self.wrote.append(text)
        self.texts[path] = text
        Path(path).write_text(text, newline="")


class Stage:
    """The three tools on one directory and one editor."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "a.txt"
        self.editor = Buffers()
        seen = ReadState()
        self._tools: dict[str, Tool] = {
            "read": Read(None, seen, self.editor),
            "write": Write(None, seen, self.editor),
            "edit": Edit(None, seen, self.editor),
        }
        self._context = ToolContext(str(directory), {})

    async def call(self, tool: str, **args: Any) -> str:
        output = await self._tools[tool].run({"path": "a.txt", **args}, self._context)
        return "".join(block.text for block in output if isinstance(block, TextBlock))

    async def edit(self, old: str, new: str) -> str:
        return await self.call("edit", edits=[{"oldText": old, "newText": new}])

    def types(self, text: str) -> None:
        self.editor.texts[str(self.path)] = text


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


async def test_an_edit_keeps_the_form_that_the_editor_uses(stage: Stage) -> None:
    stage.path.write_bytes(b"one\r\ntwo\r\n")
    stage.types("one\ntwo")  # Without CR, and without the last line end.
    assert await stage.call("read") == "one\ntwo\n"
    await stage.edit("two", "three")
    assert stage.editor.wrote == ["one\nthree"]


async def test_text_typed_while_the_tool_runs_is_not_lost(stage: Stage) -> None:
    stage.path.write_text("one\n")
    stage.types("one\n")
    await stage.call("read")
    stage.editor.typed[str(stage.path)] = ["one\n", "typed meanwhile\n"]
    with pytest.raises(ToolFailed, match="changed in the editor at the same time"):
        await stage.edit("one", "two")
    assert stage.path.read_text() == "one\n"
    assert stage.editor.wrote == []


async def test_a_file_only_in_the_editor_is_read_there(stage: Stage) -> None:
    with pytest.raises(ToolFailed, match="No such file"):
        await stage.call("read")
    stage.types("unsaved\n")
    assert await stage.call("read") == "unsaved\n"


async def test_the_disk_counts_only_until_the_editor_has_changed_too(stage: Stage) -> None:
    stage.path.write_text("one\n")
    stage.types("one\n")
    await stage.call("read")
    stage.path.write_text("two\n")
    assert await stage.call("read") == "two\n"
    stage.types("typed\n")
    assert await stage.call("read") == "typed\n"


async def test_a_new_file_is_made_by_zot_where_the_editor_refuses_and_an_existing_one_is_not(stage: Stage) -> None:
    stage.editor.refuses = True
    assert "created" in await stage.call("write", content="one")
    assert stage.path.read_text() == "one"
    stage.types("one")
    with pytest.raises(ToolFailed, match="no"):
        await stage.call("write", content="two")
    assert stage.path.read_text() == "one"


async def test_files_that_are_no_utf_8_are_left_to_the_disk(stage: Stage) -> None:
    stage.path.write_bytes("caf\xe9\n".encode("latin-1"))
    stage.types("caf?\n")
    assert "caf\xe9" in await stage.call("read")
    await stage.edit("caf", "Caf")
    assert stage.path.read_bytes() == "Caf\xe9\n".encode("latin-1")
    assert stage.editor.wrote == []
