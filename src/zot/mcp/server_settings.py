"""MCP servers of a session: those of the user's settings and those of the project."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase

import msgspec

from zot.config.config import MCP_FILE, Config, may_exist
from zot.mcp.source import McpSource, make_source


def find_servers(config: Config, cwd: str) -> list[McpSource]:
    """Return the servers of a session in ``cwd``, by name. The user's settings win over the project's file."""
    found = dict[str, McpSource]()
    if may_exist(os.path.join(cwd, MCP_FILE)):
        from zot.mcp.project_servers import trusted_servers  # Imported lazily: few projects have servers.

        found = {one.name: one for one in trusted_servers(config, cwd)}
    env = dict(config.environment)  # `os.environ` decodes each variable at every access.
    for name, server in config.mcp.items():
        found[name] = make_source(name, server, env, cwd, "")
    return [_of_agent(found[name], config) for name in sorted(found)]


def _of_agent(source: McpSource, config: Config) -> McpSource:
    """Return a server as the agent of ``config`` has it: switched off if none of its patterns names it."""
    if any(fnmatchcase(source.name, pattern) for pattern in config.mcp_servers):
        return source
    return msgspec.structs.replace(source, enabled=False)
