"""Installing, interrupted at any moment, leaves a whole extension or none."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from zot.extensions.install import install
from zot.tools.guardian import open_processes
from zot.tools.process import Processes


async def test_an_install_aborted_at_any_step_leaves_nothing(tmp_path: Path) -> None:
    source, home = tmp_path / "source", tmp_path / "home"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "extension.json").write_text('{"name": "one", "exec": "./run"}')
    for name in ("run", "deep/a", "deep/er/b"):
        (source / name).write_text("#!/bin/sh\n")
    processes, steps = open_processes(), 0
    try:
        while not await is_done(source, home, processes, after=steps):
            assert os.listdir(home / "extensions") == []
            steps += 1
    finally:
        await processes.close()
    assert os.listdir(home / "extensions") == ["one"]
    found = sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())
    assert found == [f"extensions/one/{name}" for name in ("deep/a", "deep/er/b", "extension.json", "run")]
    assert steps > 4, "it can be given up after each file"


async def is_done(source: Path, home: Path, processes: Processes, *, after: int) -> bool:
    """Interrupt after this many steps; True if it was done by then."""
    installing = asyncio.ensure_future(install(str(source), str(home), processes=processes, env={}))
    for _ in range(after + 1):
        await asyncio.sleep(0)
    installing.cancel()
    await asyncio.wait({installing})
    return not installing.cancelled()
