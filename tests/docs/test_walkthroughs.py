"""The tutorials and how-tos work as written, and every block is tested."""

from __future__ import annotations

import subprocess
import tempfile
import tomllib
from pathlib import Path

import msgspec
import pytest

from optional import available
from zot.providers.lab.script import Script

from .markdown import Block, all_blocks
from .walkthrough import ROOT, Reader, file_name, follow, typed

#: What the commands of a page need besides zot.
PROGRAMS = {"client.md": ("node", "go", "socat", "jq")}
PAGES = [
    page
    for folder in ("tutorials", "how-to")
    for page in sorted((ROOT / "docs" / folder).glob("*.md"))
    if False not in {available(program, f"the page {page.name}") for program in PROGRAMS.get(page.name, ())}
]
BLOCKS = [(page, block) for page in PAGES for block in all_blocks(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_works_as_written(page: Path) -> None:
    # Not tmp_path: the path of a daemon's socket must be short.
    with tempfile.TemporaryDirectory() as directory, Reader(Path(directory)) as reader:
        follow(page, reader)


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[f"{page.name}: {block.id()}" for page, block in BLOCKS])
def test_a_block_is_run_or_can_be_read(page: Path, block: Block) -> None:
    name = file_name(block)
    if name is not None:
        after = [other for other in all_blocks(page.read_text()) if other.line > block.line]
        assert any(name in step.command for other in after if other.language == "console" for step in typed(other))
        return
    match block.language:
        case "console":
            assert typed(block)
        case "sh":
            subprocess.run(["bash", "-n"], input=block.text.encode(), check=True)
        case "json":
            msgspec.json.decode(block.text)
        case "toml":
            tomllib.loads(block.text)
        case "lab":
            Script.parse(block.text)
        case "ini" | "dockerfile":  # a part of an example, which has tests of its own
            assert any(
                block.text in file.read_text() for file in (ROOT / "examples" / "service").rglob("*") if file.is_file()
            )
        case "lua" | "elisp":  # test_editors_md.py reads them and starts their command
            assert page.name == "editors.md"
        case "sql":  # test_postgres.py creates the role with it
            assert page.name == "fleet.md"
        case _:
            pytest.fail(f"no test runs or reads a block in {block.language!r}")
