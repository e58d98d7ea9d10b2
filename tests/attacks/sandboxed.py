"""The bash tool under `--lock`, with programs that attackers compile or script."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness import MARK
from zot.config.private_paths import PrivatePath
from zot.errors import ToolFailed
from zot.messages import TextBlock
from zot.tools.base import ToolContext
from zot.tools.bash import Bash
from zot.tools.guardian import open_processes
from zot.tools.process import Groups, Processes
from zot.tools.sandbox import Sandbox


async def locked(
    command: str,
    cwd: Path | str,
    *,
    env: Mapping[str, str] | None = None,
    hidden: Sequence[PrivatePath] = (),
    net: bool = False,
    protected: Sequence[str] = (),
    groups: bool = False,
) -> str:
    """Run a command under the lock and return all of its output, whether or not it failed."""
    processes: Processes = Groups() if groups else open_processes()
    around = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nowhere", MARK: os.environ.get(MARK, ""), **(env or {})}
    tool = Bash(processes, sandbox=Sandbox(hidden=hidden, net=net, variables=(MARK,), protected=protected))
    try:
        output = await tool.run({"command": command}, ToolContext(str(cwd), around))
        return "".join(block.text for block in output if isinstance(block, TextBlock))
    except ToolFailed as problem:
        return str(problem)
    finally:
        await processes.close()
