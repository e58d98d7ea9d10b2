"""A directory to work in, and who listens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zot.tools.base import ToolContext


@pytest.fixture
def heard() -> list[str]:
    """What tools showed while they ran."""
    return []


@pytest.fixture
def context(tmp_path: Path, heard: list[str]) -> ToolContext:
    async def progress(text: str) -> None:
        heard.append(text)

    return ToolContext(cwd=str(tmp_path), env={"PATH": os.environ["PATH"], "LC_ALL": "C"}, progress=progress)
