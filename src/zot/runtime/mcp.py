"""MCP servers of one session, made from its Config. Imported only for sessions that have some."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from zot.config.config import Config, data_directory
from zot.mcp.listing import ToolCache
from zot.mcp.server_connection import McpLaunch
from zot.mcp.server_settings import McpSource, find_servers
from zot.mcp.servers import McpServers
from zot.text import printable
from zot.tools.command_output import Spills

if TYPE_CHECKING:
    from zot.tools.process import Processes
    from zot.tools.sandbox import Sandbox

log = logging.getLogger("zot")


def open_servers(
    config: Config,
    processes: Processes,
    *,
    cwd: str,
    sandbox: Callable[[McpSource], Sandbox] | None,
    spills: Callable[[], Spills | None],
) -> McpServers:
    """Return the servers of a session. Starts none. Those that cannot run are named in the log."""
    sources, kept = find_servers(config, cwd), data_directory(config)
    for one in sources:
        if one.enabled and one.problem:
            log.warning("mcp server %s was not loaded: %s", printable(one.name), printable(one.problem))
    return McpServers(
        sources,
        McpLaunch(processes, cwd, kept, sandbox),
        ToolCache(None if kept is None else os.path.join(kept, "mcp-cache")),
        spills=spills,
        wanted=config.tools,
    )
