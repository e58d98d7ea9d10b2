"""A working directory, a recorder of output, and the owner of processes."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from zot.tools.base import ToolContext
from zot.tools.guardian import Guardian
from zot.tools.process import Groups, Processes

from .shells import ProgressTo, Shell, left


@pytest.fixture
def heard() -> list[str]:
    """The output that tools showed while they ran."""
    return []


@pytest.fixture
def context(tmp_path: Path, heard: list[str]) -> ToolContext:
    async def progress(text: str) -> None:
        heard.append(text)

    return ToolContext(
        cwd=str(tmp_path), env={"PATH": os.environ["PATH"], "LC_ALL": "C"}, reporter=ProgressTo(progress)
    )


@pytest.fixture
async def guardian() -> AsyncIterator[Guardian]:
    guardian = Guardian()
    yield guardian
    await guardian.close()


@pytest.fixture(params=[Guardian, Groups])
async def processes(request: pytest.FixtureRequest) -> AsyncIterator[Processes]:
    """Each way to keep processes in turn."""
    processes: Processes = request.param()
    yield processes
    await processes.close()


@pytest.fixture
async def shell(processes: Processes, context: ToolContext) -> AsyncIterator[Shell]:
    """The bash tool, kept in either way. Nothing it started is left when its processes are closed."""
    mark = uuid.uuid4().hex
    yield Shell(processes, context, mark)
    await processes.close()
    assert left(mark) == []


@pytest.fixture
async def kept(guardian: Guardian, context: ToolContext) -> AsyncIterator[Shell]:
    """The bash tool with a guardian. Nothing it started is left when that is closed."""
    mark = uuid.uuid4().hex
    yield Shell(guardian, context, mark)
    await guardian.close()
    assert left(mark) == []
