"""Bad MCP servers: each call ends in time, is explained, and no process is left."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from timing import slowness
from zot.extensions import log
from zot.extensions.log import MAX_BYTES

from .stage import McpStage

#: What a server does when it is called, how long a call may be silent, and what the model reads of it.
ZOO = {
    "never-answers": (0.5, "did not answer tools/call within 0.5 s"),
    "dies": (20.0, "exited with 3"),
    "floods": (20.0, "sent 10000 messages in a row that answer nothing"),
    "floods-with-nonsense": (20.0, "sent 10000 messages in a row that answer nothing"),
    "endless-line": (20.0, "sent a line of more than 33554432 bytes"),
    "wrong-result": (20.0, "the result is invalid"),
}


@pytest.mark.parametrize("mode", ZOO)
async def test_a_bad_server_fails_its_own_calls_only(tmp_path: Path, mode: str) -> None:
    timeout_s, explained = ZOO[mode]
    async with McpStage(tmp_path, mode, timeout_s=timeout_s) as stage:
        await stage.learn()
        begun = time.monotonic()
        text, failed = await stage.call()
        assert failed
        assert text.startswith("the MCP server s failed: ")
        assert explained in text
        assert time.monotonic() - begun < 10 * slowness()
        assert (await stage.prompt("say still here"))[-1]["type"] == "done"
    await stage.until_left(0)


async def test_a_server_that_sends_unsolicited_messages_is_still_understood(tmp_path: Path) -> None:
    async with McpStage(tmp_path, "wrong-ids") as stage:
        await stage.learn()
        text, failed = await stage.call()
        assert not failed
        assert text.startswith("for ")
        assert "answered a request that" in stage.log_of()


async def test_children_of_a_server_end_with_it(tmp_path: Path) -> None:
    async with McpStage(tmp_path, "leaves-children") as stage:
        await stage.learn()
        assert await stage.call() == ("done", False)
        await stage.until_left(0)


@pytest.mark.parametrize(
    ("mode", "explained"),
    [
        ("lies", "speaks revision '1999-01-01', which zot does not know"),
        ("exits", "exited with 1: no such thing"),
        ("floods-its-log", "wrote more than 1 bytes to standard error within"),
        ("endless-at-start", "sent a line of more than 33554432 bytes"),
        ("never-starts", "was not ready within 0.3 s"),
    ],
)
async def test_a_server_that_cannot_be_used_is_explained(
    tmp_path: Path, mode: str, explained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("MAX_BYTES", "_MAX_FLOOD_BYTES"):  # How fast a server writes depends on the machine.
        monkeypatch.setattr(log, limit, 1 if mode == "floods-its-log" else MAX_BYTES)
    async with McpStage(tmp_path, mode) as stage:
        [server] = stage.mcp_servers().servers
        if mode == "never-starts":
            stage.hurry(start_s=0.3)
        with pytest.raises(Exception, match=explained):
            await server.refresh()
        assert explained.partition(":")[0] in stage.log_of()
        await stage.until_left(0)


async def test_a_silent_discovery_is_followed_by_a_handshake(tmp_path: Path) -> None:
    async with McpStage(tmp_path, "silent-at-discover") as stage:
        stage.hurry(discover_s=0.1)
        [server] = stage.mcp_servers().servers
        await server.refresh()
        assert server.revision == "2025-11-25"


async def test_a_crashing_server_is_restarted_with_growing_delays(tmp_path: Path) -> None:
    async with McpStage(tmp_path, "dies") as stage:
        await stage.learn()
        said = [(await stage.call())[0] for _ in range(4)]
        assert ["in a row" in text for text in said][:2] == [False, False]
        assert "failures in a row it is started again in" in said[-1]
        assert stage.log_of().count("starting ") < 4
        assert "out of cheese" in stage.log_of()


async def test_a_program_that_does_not_exist_is_explained(tmp_path: Path) -> None:
    async with McpStage(tmp_path) as stage:
        servers = {"s": type(stage.server("good"))(command="/nonexistent/server")}
        async with McpStage(tmp_path, mcp=servers) as other:
            with pytest.raises(Exception, match=r"could not be started: .*No such file"):
                await other.mcp_servers().servers[0].refresh()


async def test_closing_a_session_ends_a_server_that_is_starting(tmp_path: Path) -> None:
    async with McpStage(tmp_path, "never-starts") as stage:
        await stage.prompt("say hi")
        await stage.until_left(1)
    await stage.until_left(0)


async def test_twenty_five_sleeping_servers_do_not_delay_the_first_request(tmp_path: Path) -> None:
    """The answer comes while every server still sleeps; none is waited for."""
    async with McpStage(tmp_path) as stage:
        servers = {f"s{number}": stage.server("never-starts") for number in range(25)}
        async with McpStage(tmp_path, mcp=servers) as many:
            events = await many.prompt("say hi")
            assert events[-1]["type"] == "done"
            assert many.offered() == []
            await asyncio.sleep(0)
    await stage.until_left(0)
