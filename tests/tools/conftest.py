"""A directory to work in, and the promise that no test leaves a process in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from zot.tools.base import ToolContext

from .calls import eventually


@pytest.fixture
def heard() -> list[str]:
    """What tools showed while they ran."""
    return []


@pytest.fixture
def context(tmp_path: Path, heard: list[str]) -> ToolContext:
    return ToolContext(cwd=str(tmp_path), env={"PATH": os.environ["PATH"], "LC_ALL": "C"}, progress=heard.append)


@pytest.fixture(autouse=True)
def nothing_is_left_running(tmp_path: Path) -> Iterator[None]:
    yield
    assert eventually(lambda: _running_in(tmp_path) == []), _running_in(tmp_path)


def _running_in(directory: Path) -> list[int]:
    """The processes whose working directory is in ``directory``; zombies have none."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                where = Path(os.readlink(f"{entry.path}/cwd"))
            except OSError:  # it has ended, or is not ours to look at
                continue
            if where.is_relative_to(directory):
                found.append(int(entry.name))
    return found
