"""An editor that never answers: each request of zot has a deadline, and is withdrawn after it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zot.config.config import ConfigOverrides, resolve
from zot.errors import ToolFailed
from zot.runtime.shared import SharedResources
from zot.serve.acp.editor_documents import EditorDocuments
from zot.serve.acp.own_sessions import OwnSessions
from zot.serve.acp.server import AcpServer
from zot.serve.streams import StreamWriter
from zot.wire.acp_greeting import AcpGreeting
from zot.wire.jsonrpc import RpcError


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


async def test_files_of_a_silent_editor_are_left_to_the_disk_and_writing_fails(
    pipe: tuple[int, int], tmp_path: Path
) -> None:
    reading, writing = pipe
    config, output, resources = resolve({"provider": "lab"}), StreamWriter(writing), SharedResources()
    server = AcpServer(config, AcpGreeting(), output, OwnSessions(config, ConfigOverrides(), resources))
    documents = EditorDocuments(server, "s", str(tmp_path), read_s=0.01, write_s=0.01)
    path = str(tmp_path / "a.txt")
    assert await documents.read(path) is None
    with pytest.raises(ToolFailed, match="it may do so later"):
        await documents.write(path, "text")
    await output.drained()
    assert [kind(line) for line in os.read(reading, 65536).splitlines()] == [
        ("fs/read_text_file", 1),
        ("$/cancel_request", 1),
        ("fs/write_text_file", 2),
        ("$/cancel_request", 2),
    ]
    server.take(b'{"jsonrpc":"2.0","id":1,"result":{"content":"late"}}')  # Ignored.
    server.end_input()
    with pytest.raises(RpcError):
        await server.ask("fs/read_text_file", {}, within_s=10)
    output.close()
    await resources.close()


def kind(line: bytes) -> tuple[str, Any]:
    """Return the method of a frame, and the request that it is or withdraws."""
    frame = json.loads(line)
    return frame["method"], frame.get("id", frame["params"].get("requestId"))
