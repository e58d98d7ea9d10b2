"""MCP servers as other programs list them in their files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import msgspec

from zot.config.flags import McpServer
from zot.encoding import UNREADABLE, decoder, explain
from zot.errors import UserError
from zot.files import read_chunks

#: Other programs keep much else in the same file.
MAX_OTHER_BYTES = 64 * 1024 * 1024

#: Fields for which Gemini CLI, Windsurf and Codex have names of their own.
_LISTED_NAMES = {"gemini_url": "httpUrl", "windsurf_url": "serverUrl", "codex_headers": "http_headers"}


class ListedServer(msgspec.Struct, frozen=True, rename=_LISTED_NAMES):
    """An entry of the project's file, as other programs write it."""

    command: str = ""
    args: tuple[str, ...] | None = ()
    env: Mapping[str, str] | None = {}
    cwd: str | None = None
    url: str = ""
    gemini_url: str = ""
    windsurf_url: str = ""
    headers: Mapping[str, str] | None = {}
    codex_headers: Mapping[str, str] = {}
    bearer_token_env_var: str = ""
    enabled: bool = True
    disabled: bool = False

    def settings(self) -> McpServer:
        """Return the same as zot's own settings."""
        enabled = self.enabled and not self.disabled
        url = self.gemini_url or self.windsurf_url or self.url
        if url and not self.command:
            headers = {**(self.headers or {}), **self.codex_headers}
            if self.bearer_token_env_var:
                headers["Authorization"] = f"Bearer ${{{self.bearer_token_env_var}}}"
            return McpServer(url=url, headers=headers, enabled=enabled)
        return McpServer(command=self.command, args=self.args or (), env=self.env or {}, cwd=self.cwd, enabled=enabled)


#: Files in which other programs keep their servers, in the home directory and in a project.
_HOME_FILES = (
    ".claude.json",
    ".config/Claude/claude_desktop_config.json",
    "Library/Application Support/Claude/claude_desktop_config.json",
    ".cursor/mcp.json",
    ".gemini/settings.json",
    ".codeium/windsurf/mcp_config.json",
    ".codex/config.toml",
    ".config/Code/User/mcp.json",
    "Library/Application Support/Code/User/mcp.json",
    ".config/zed/settings.json",
)
_PROJECT_FILES = (".cursor/mcp.json", ".vscode/mcp.json", ".gemini/settings.json")


def other_files(home: str, cwd: str) -> list[str]:
    """Return the files in which other programs may keep servers."""
    return [os.path.join(home, one) for one in _HOME_FILES] + [os.path.join(cwd, one) for one in _PROJECT_FILES]


_OTHER_NAMES = {"servers": "mcpServers", "vscode": "servers", "codex": "mcp_servers", "zed": "context_servers"}


class _OtherFile(msgspec.Struct, frozen=True, rename=_OTHER_NAMES):
    servers: dict[str, msgspec.Raw] = {}
    vscode: dict[str, msgspec.Raw] = {}
    codex: dict[str, msgspec.Raw] = {}
    zed: dict[str, msgspec.Raw] = {}


class OtherServers(msgspec.Struct, frozen=True):
    """The servers that a file of another program lists, and why others of it cannot be used."""

    usable: dict[str, McpServer]
    problems: dict[str, str]


def read_servers(path: str) -> OtherServers:
    """Return the servers that a file of another program lists. Raise UserError."""
    try:
        data = b"".join(read_chunks(path, max_bytes=MAX_OTHER_BYTES))
        if path.endswith(".toml"):
            data = msgspec.json.encode(msgspec.toml.decode(data))
        found = decoder(_OtherFile).decode(_plain_json(_ENV_VARIABLE.sub(rb"${\1}", data)))
    except OSError as problem:
        raise UserError(f"{path}: {problem.strerror or problem}") from None
    except UNREADABLE as problem:
        raise UserError(f"{path} has no servers that can be read: {explain(problem)}") from None
    servers = OtherServers({}, {})
    for name, raw in {**found.zed, **found.codex, **found.vscode, **found.servers}.items():
        try:
            server = decoder(ListedServer).decode(raw).settings()
        except UNREADABLE as problem:
            servers.problems[name] = explain(problem)
            continue
        if unknown := _INPUT.search(raw):
            servers.problems[name] = f"only its own program can fill in {unknown[0].decode()}"
        elif server.command or server.url:
            servers.usable[name] = server
        else:
            servers.problems[name] = "it has no command and no url"
    return servers


#: Variables as editors write them: of the environment, and those for which the editor asks the user.
_ENV_VARIABLE = re.compile(rb"\$\{env:(\w+)\}")
_INPUT = re.compile(rb"\$\{input:[^}\"]*\}")
_COMMENT = re.compile(rb'("(?:[^"\\]|\\.)*+")|//[^\n]*+|/\*(?s:.*?)\*/')
_LAST_COMMA = re.compile(rb'("(?:[^"\\]|\\.)*+")|,(?=\s*+[}\]])')


def _plain_json(data: bytes) -> bytes:
    """Return the JSON of an editor's settings without comments and commas before a closing bracket."""
    for extra in (_COMMENT, _LAST_COMMA):
        data = extra.sub(lambda found: found[1] or b"", data)
    return data
