"""Specifications of the built-in tools for the model. Separate from the tools, which load later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zot.messages import ToolSpec

#: Limits of a text shown to the model.
MAX_BYTES = 50 * 1024
MAX_LINES = 2000
BASH_TIMEOUT_S = 120.0
BASH_MIN_TIMEOUT_S = 0.1


def _object(properties: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


READ = ToolSpec(
    name="read",
    description=(
        f"Read a file. Returns at most {MAX_LINES} lines or {MAX_BYTES // 1024} KiB of its text; "
        "notes in square brackets at the end say how to continue and what is unusual about it. "
        "PNG, JPEG, GIF and WebP images are returned as images. For a directory its entries are listed."
    ),
    schema=_object(
        {
            "path": {"type": "string", "description": "File or directory, absolute or relative to the cwd"},
            "offset": {"type": "integer", "minimum": 1, "description": "First line to read, counted from 1"},
            "limit": {"type": "integer", "minimum": 1, "description": f"How many lines, at most {MAX_LINES}"},
        },
        ["path"],
    ),
)

WRITE = ToolSpec(
    name="write",
    description=(
        "Write a whole file in UTF-8, replacing what was in it. Missing directories are created. "
        "To change a part of a file, use edit."
    ),
    schema=_object(
        {
            "path": {"type": "string", "description": "File, absolute or relative to the cwd"},
            "content": {"type": "string", "description": "The complete new content"},
        },
        ["path", "content"],
    ),
)

EDIT = ToolSpec(
    name="edit",
    description=(
        "Replace exact text in a file. Each oldText must occur exactly once in the file as it is now, "
        "and no two may overlap; either all edits are made or none. "
        "The encoding and the line ends of the file are kept. Returns a diff."
    ),
    schema=_object(
        {
            "path": {"type": "string", "description": "File, absolute or relative to the cwd"},
            "edits": {
                "type": "array",
                "minItems": 1,
                "items": _object(
                    {
                        "oldText": {"type": "string", "description": "Text to replace, with its exact whitespace"},
                        "newText": {"type": "string", "description": "What to put in its place"},
                    },
                    ["oldText", "newText"],
                ),
            },
        },
        ["path", "edits"],
    ),
)

SKILL = ToolSpec(
    name="skill",
    description="Load the instructions of a skill. The skills are listed in the system prompt.",
    schema=_object({"name": {"type": "string", "description": "Name of the skill"}}, ["name"]),
)


def bash(*, lock: bool, lock_net: bool = False, timeout_s: float = BASH_TIMEOUT_S) -> ToolSpec:
    """Return the specification of bash, with the sandbox of ``lock``, a network or none, and ``timeout_s``."""
    description = (
        "Run a command with /bin/sh in the cwd and return its output, stdout and stderr together. "
        f"Of long output you see the beginning and the end, {MAX_LINES} lines or {MAX_BYTES // 1024} KiB. "
        "There is no input: a command that asks for some reads end of file. "
        "Use & for what shall continue in the background."
    )
    if lock:
        description += (
            " Of files there are only the cwd and, to read, the installed programs; "
            "/tmp and the home directory are empty again for the next command."
            f"{'' if lock_net else ' There is no network.'}"
        )
    timeout = {
        "type": "number",
        "minimum": BASH_MIN_TIMEOUT_S,
        "description": f"Seconds after which the command is killed, {timeout_s:g} by default",
    }
    command = {"type": "string", "description": "The shell command"}
    return ToolSpec("bash", description, _object({"command": command, "timeout": timeout}, ["command"]))


#: Tools of sessions with MCP servers.
FIND_TOOLS = ToolSpec(
    "find_tools",
    "Find tools of connected servers by what they do. The tools it lists can be called from then on.",
    {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "Words for the task, or the name of a server."}},
        "required": ["query"],
    },
)
READ_RESOURCE = ToolSpec(
    "read_mcp_resource",
    "Read a resource of a connected server. The user mentions resources as @SERVER:URI. Without a uri, list a server's"
    " resources.",
    {
        "type": "object",
        "properties": {"server": {"type": "string"}, "uri": {"type": "string"}},
        "required": ["server"],
    },
)
