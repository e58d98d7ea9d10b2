"""The conversations of docs/reference/daemon.md, held with a daemon: its answers equal those of the page."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from daemons import PATIENCE_S, Caller, Running, running

from .markdown import Block, blocks

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "daemon.md").read_text()
BLOCKS = blocks(TEXT, "daemon")
ASKING = '!script call bash {"command":"ls"} id=c1 ;; --- ;; say "It is empty."'

#: Makes what a conversation takes for granted; returns who holds it.
Prepare: TypeAlias = Callable[[Running], Coroutine[Any, Any, Caller]]


async def nothing(daemon: Running) -> Caller:
    return await daemon.stranger()


async def introduced(daemon: Running) -> Caller:
    return await daemon.caller()


async def logged(daemon: Running) -> Caller:
    """Another client reloads the configuration as soon as the log is subscribed to."""
    caller, other = await daemon.caller(), await daemon.caller()
    logging.getLogger("zot").addHandler(daemon.daemon.log_feed)

    async def reload() -> None:
        while not daemon.daemon.log_feed._wires:
            await other.get("status")
        await other.get("config/reload")

    caller.keeps.append(asyncio.create_task(reload()))
    return caller


async def watched(daemon: Running) -> Caller:
    """Another client prompts as soon as the sessions are watched, and its prompt waits for an approval."""
    caller, other = await daemon.caller(), await daemon.caller()
    await other.get("session/new", agentAlias="default", sessionId="s1")

    async def prompt() -> None:
        while not daemon.daemon.sessions.watchers:
            await other.get("status")
        other.call("session/prompt", sessionId="s1", prompt=ASKING)

    caller.keeps.append(asyncio.create_task(prompt()))
    return caller


async def prompted(daemon: Running) -> Caller:
    """Its prompt calls a tool; it has received everything before that."""
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s1")
    caller.call("session/prompt", sessionId="s1", prompt=ASKING)
    await caller.until(type="usage")
    return caller


async def asked(daemon: Running) -> Caller:
    """Another client's prompt waits for an approval."""
    await (await prompted(daemon)).until(type="approval_request")
    return await daemon.caller()


async def speaking(daemon: Running) -> Caller:
    """Another client's prompt has streamed one word."""
    caller = await daemon.caller()
    await caller.get("session/new", agentAlias="default", sessionId="s1")
    caller.call("session/prompt", sessionId="s1", prompt="!script say Hello ;; stall")
    await caller.until(type="agent_message_chunk")
    return await daemon.stranger()


PREPARED: list[Prepare] = [nothing, nothing, introduced, watched, logged, prompted, asked, speaking]


@pytest.mark.parametrize("number", range(len(BLOCKS)))
async def test_a_conversation_runs_as_written(tmp_path: Path, number: int) -> None:
    logger = logging.getLogger("zot")
    before = logger.level
    async with running(tmp_path, policy=("bash=ask",)) as daemon:
        logger.setLevel(logging.INFO)
        try:
            await hold(await PREPARED[number](daemon), BLOCKS[number])
        finally:
            logger.setLevel(before)
            logger.removeHandler(daemon.daemon.log_feed)


async def hold(caller: Caller, block: Block) -> None:
    for line in block.text.strip().split("\n"):
        sign, _, text = line.partition(" ")
        if sign == ">":
            caller.write(text.encode())
        else:
            said = (await asyncio.wait_for(caller.reader.readline(), PATIENCE_S)).decode().rstrip("\n")
            pattern = ".*".join(map(re.escape, text.replace("[...]", "...").split("...")))
            assert re.fullmatch(pattern, said), f"written: {text}\nsaid:    {said}"
