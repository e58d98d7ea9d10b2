"""Calling a tool as the agent does, and inspecting the files and processes it left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from zot.errors import ToolFailed
from zot.messages import TextBlock
from zot.tools.base import Tool, ToolContext

PATIENCE_S = 60.0


async def answer(tool: Tool, args: dict[str, Any], context: ToolContext) -> str:
    """The text of a call that works."""
    async with asyncio.timeout(PATIENCE_S):
        [block] = await tool.run(args, context)
    assert isinstance(block, TextBlock)
    return block.text


async def refusal(tool: Tool, args: dict[str, Any], context: ToolContext) -> str:
    """The text of a call that fails."""
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(ToolFailed) as failed:
            await tool.run(args, context)
    return str(failed.value)


def eventually(holds: Callable[[], bool]) -> bool:
    """True once ``holds`` is: for effects of other processes."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
