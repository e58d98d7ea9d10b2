"""A program that does something for us and ends, such as git or a compiler."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from zot.errors import UserError
from zot.tools.process import Processes

_GRACE_S = 0.5
_MAX_TOLD_BYTES = 16 * 1024


async def run_errand(
    argv: Sequence[str], *, cwd: str, env: Mapping[str, str], processes: Processes, within_s: float
) -> tuple[int, str]:
    """Run a program to its end; return its exit status and the end of what it said. Raise UserError if it cannot be.

    It has no input and no terminal. When late or cancelled, nothing of it runs on.
    """
    try:
        child = await processes.spawn(argv, cwd=cwd, env=env)
    except (OSError, ValueError) as problem:
        raise UserError(f"{argv[0]} could not be started: {problem}") from None
    said = b""
    try:
        async with asyncio.timeout(within_s):
            while data := await child.read():
                said = (said + data)[-_MAX_TOLD_BYTES:]
    except TimeoutError:
        raise UserError(f"{argv[0]} was not done within {within_s:g} s") from None
    finally:
        await child.end(grace_s=_GRACE_S)
        child.close()
    return child.status(), said.decode("utf-8", "replace")
