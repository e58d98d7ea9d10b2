"""MCP servers of one session, made from its Config. Imported only for sessions that have some."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from zot.config.config import Config, data_directory, zot_home
from zot.mcp.launch import McpLaunch
from zot.mcp.server_settings import find_servers
from zot.mcp.servers import McpServers
from zot.mcp.tool_cache import ToolCache
from zot.text import printable

if TYPE_CHECKING:
    from zot.runtime.toolbox import Toolbox
    from zot.tools.process import Processes

log = logging.getLogger("zot")


def open_servers(
    config: Config,
    toolbox: Toolbox,
    processes: Processes,
) -> McpServers:
    """Return the servers of a session. Starts none. Those that cannot run are named in the log."""
    sources, kept = find_servers(config, toolbox.cwd), data_directory(config)
    sandbox = toolbox.server_sandbox if config.lock else None
    for one in sources:
        if one.enabled and one.problem:
            log.warning("mcp server %s was not loaded: %s", printable(one.name), printable(one.problem))
        elif one.enabled and sandbox is not None and not one.sandbox:
            log.warning("mcp server %s is not confined by --lock: its table says sandbox = false", printable(one.name))
    return McpServers(
        sources,
        McpLaunch(
            processes,
            toolbox.cwd,
            kept,
            sandbox,
            transport=partial(toolbox.resources.transport, config.environment),
            home=zot_home(config.environment),
            net=sandbox is None or config.lock_net,
        ),
        ToolCache.of(config),
        spills=toolbox.spills,
        wanted=config.tools,
        share=config.mcp_share,
    )
