"""MCP servers of one session, made from its Config. Imported only for sessions that have some."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from zot.config.config import Config, data_directory, zot_home
from zot.mcp.authorization import ServerTokens
from zot.mcp.listing import ToolCache
from zot.mcp.server_connection import McpLaunch
from zot.mcp.server_settings import McpSource, find_servers
from zot.mcp.servers import McpServers
from zot.text import printable
from zot.tools.command_output import Spills

if TYPE_CHECKING:
    from zot.providers.base import Transport
    from zot.tools.process import Processes
    from zot.tools.sandbox import Sandbox

log = logging.getLogger("zot")


def open_tokens(config: Config) -> ServerTokens:
    """Return the tokens of this user for servers over HTTP."""
    return ServerTokens(zot_home(config.environment))


def open_servers(
    config: Config,
    processes: Processes,
    *,
    cwd: str,
    sandbox: Callable[[McpSource], Sandbox] | None,
    transport: Callable[[], Transport],
    spills: Callable[[], Spills | None],
) -> McpServers:
    """Return the servers of a session. Starts none. Those that cannot run are named in the log."""
    sources, kept = find_servers(config, cwd), data_directory(config)
    for one in sources:
        if one.enabled and one.problem:
            log.warning("mcp server %s was not loaded: %s", printable(one.name), printable(one.problem))
        elif one.enabled and sandbox is not None and not one.sandbox:
            log.warning("mcp server %s is not confined by --lock: its table says sandbox = false", printable(one.name))
    return McpServers(
        sources,
        McpLaunch(
            processes,
            cwd,
            kept,
            sandbox,
            transport=transport,
            tokens=open_tokens(config),
            net=sandbox is None or config.lock_net,
        ),
        ToolCache(None if kept is None else os.path.join(kept, "mcp-cache")),
        spills=spills,
        wanted=config.tools,
        share=config.mcp_share,
    )
