"""reference/web.md: its programs run, its configuration works, its statuses and limits are right."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from serve.web.face import PATIENCE_S, faced, until
from zot.commands.daemon import _OWN_FLAGS
from zot.config.file import DaemonSettings
from zot.serve.daemon.metrics import Metrics
from zot.serve.web import Limits
from zot.wire.extension import Hello, decode_from_extension

from .markdown import blocks

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "web.md").read_text()
CLIENT, EMBEDDED = blocks(TEXT, "python")


async def test_the_client_prints_the_answer(tmp_path: Path) -> None:
    async with faced(tmp_path / "home") as face:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT.text, face.url, env={**os.environ, "ZOT_TOKEN": face.token},
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE_S):
            out, _ = await process.communicate()
    assert (out, process.returncode) == (b"Hello from a socket", 0)


async def test_the_request_is_answered(tmp_path: Path) -> None:
    command = next(block.text for block in blocks(TEXT, "sh") if "curl" in block.text)
    [body] = re.findall(r"-d '(.*)'", command)
    headers = dict(re.findall(r"-H ['\"]([\w-]+): ([^'\"]*)['\"]", command))
    async with faced(tmp_path / "home") as face:
        headers["Authorization"] = f"Bearer {face.token}"
        told = await face.ask("POST", "/v1/respond", body=body.encode(), headers=headers)
    assert (told.status, json.loads(told.body)["text"]) == (200, "Hello")


async def test_a_server_of_one_s_own_serves_both(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(EMBEDDED.text, names)
    server = uvicorn.Server(uvicorn.Config(names["app"], port=0, log_config=None))
    task = asyncio.ensure_future(server.serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        for path, expected in (("/", b"my own page"), ("/zot/healthz", b"ok\n")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: agents.example\r\nConnection: close\r\n\r\n".encode())
            assert (await reader.read()).endswith(b"\r\n\r\n" + expected)
            writer.close()
    finally:
        server.should_exit = True
        await task
    assert (tmp_path / "agents" / "data" / "token").stat().st_mode & 0o777 == 0o600


def test_the_frame_of_an_extension_is_valid() -> None:
    [example] = blocks(TEXT, "json")
    assert decode_from_extension(example.text.strip().encode()) == Hello("afar", "1.0.0", ("tools",))


def test_the_configuration_is_valid() -> None:
    [example] = blocks(TEXT, "toml")
    found = msgspec.convert(tomllib.loads(example.text)["daemon"], DaemonSettings)
    assert (found.hosts, found.tls_key) == (("agents.example",), "/etc/zot/key.pem")


def test_every_number_is_described() -> None:
    gauges = dict.fromkeys(("clients", "sessions", "running", "journal_bytes", "rss_bytes", "uptime_seconds"), 0.0)
    names = re.findall(r"^# TYPE (\S+)", Metrics().exposition(gauges), re.MULTILINE)
    assert len(names) == 15
    assert [name for name in names if f"`{name}`" not in TEXT] == []


def test_every_flag_and_every_limit_is_described() -> None:
    flags = [flag.name for flag in _OWN_FLAGS if flag.name.startswith(("--listen", "--tls"))]
    assert [name for name in flags if f"{name} " not in TEXT] == []
    limits = Limits()
    said = (
        f"more than {limits.connections} connections", f"of more than {limits.head >> 10} KiB",
        f"more than {limits.head_s:g} s, a body more than {limits.body_s:g} s", f"of more than {limits.body >> 20} MiB",
        f"of more than {limits.message >> 20} MiB", f"Every {limits.ping_s:g} s", f"after {limits.pong_s:g} s",
    )  # fmt: skip
    assert [words for words in said if words not in TEXT] == []
