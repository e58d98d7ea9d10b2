"""A daemon in another program's process, which has one place for all that it keeps."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from zot.runtime.pool import NewSessionSettings
from zot.serve.web import open_daemon

from .face import PATIENCE_S

LOUD = """\
#!/bin/sh
echo "I was here" >&2
echo '{"type":"hello","name":"loud","version":"1","capabilities":[]}'
echo '{"type":"ready"}'
exec cat >/dev/null
"""


async def test_logs_of_extensions_and_spilled_output_are_in_its_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, user, loud = tmp_path / "place", tmp_path / "user", tmp_path / "loud"
    for directory in (place, user, loud):
        directory.mkdir()
    monkeypatch.setenv("ZOT_HOME", str(user))
    (loud / "extension.json").write_text(json.dumps({"name": "loud", "version": "1", "exec": "./run"}))
    (loud / "run").write_text(LOUD)
    (loud / "run").chmod(0o755)
    async with open_daemon(place, provider="lab", ext=(str(loud),), cwd=str(tmp_path)) as daemon:
        async with daemon.sessions.pool.use("s", NewSessionSettings("default")) as session, asyncio.timeout(PATIENCE_S):
            session.prompt("!bash seq 100000")
            await session.worker.finish()
            spilled = {path.parts[0] for path in (one.relative_to(place / "data") for one in place.rglob("bash-*.txt"))}
        await daemon.close()
    assert "I was here" in (place / "data" / "logs" / "ext-loud.log").read_text()
    assert spilled == {"spill"}
    assert [*user.rglob("*")] == []
