"""Launcher of a session's MCP servers, with the errors of a failed start."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from zot.errors import ToolFailed
from zot.mcp.source import McpSource

if TYPE_CHECKING:
    from zot.mcp.authorization import Browse
    from zot.providers.base import Transport
    from zot.tools.process import Processes
    from zot.tools.sandbox import Sandbox


class McpFailed(ToolFailed):
    """A server could not be started, or did not answer as it should."""


class McpLoginNeeded(McpFailed):
    """A server answers nothing before a person has logged in."""


class McpExited(McpFailed):
    """A server exited before it was ready."""


class McpDeadlines(msgspec.Struct, frozen=True):
    """Times that a server has to become ready, and until `initialize` follows an unanswered `server/discover`."""

    start_s: float = 30.0
    discover_s: float = 5.0


class McpLaunch(msgspec.Struct, frozen=True):
    """Surroundings of the servers of a session. ``sandbox`` makes the sandbox of one; None without a lock."""

    processes: Processes
    cwd: str
    logs: str | None
    sandbox: Callable[[McpSource], Sandbox] | None = None
    deadlines: McpDeadlines = McpDeadlines()
    #: For servers over HTTP: the transport, made when it is needed, the directory of the user's tokens, and whether a
    #: lock permits such servers. Without a directory, tokens last as long as a connection.
    transport: Callable[[], Transport] | None = None
    home: str | None = None
    net: bool = True
    #: Shows the user the address of a login; None if no user can log in now. Then greetings have more time.
    browse: Browse | None = None
    patient: McpDeadlines = McpDeadlines(start_s=360.0, discover_s=360.0)
