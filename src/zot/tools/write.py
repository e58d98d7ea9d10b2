"""The write tool: a whole file, new or replaced."""

from __future__ import annotations

from typing import Any

import msgspec

from zot.messages import TextBlock, ToolSpec
from zot.tools.arguments import decode_args, to_utf8
from zot.tools.base import Output, ToolContext
from zot.tools.files import make_parents, replace, resolve


class WriteArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    content: str


class Write:
    """Writes whole files for the model."""

    spec = ToolSpec(
        name="write",
        description=(
            "Write a whole file, replacing what was in it. Missing directories are created. "
            "To change a part of a file, use edit."
        ),
        schema={
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "File, absolute or relative to the cwd"},
                "content": {"type": "string", "description": "The complete new content"},
            },
            "required": ["path", "content"],
            "additionalProperties": False,
        },
    )
    read_only = False

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Write the file and say how large it is. Raise ToolFailed, and then the file is as it was."""
        wanted = decode_args(args, WriteArgs)
        data = to_utf8(wanted.content, "content")
        path = resolve(wanted.path, context.cwd)
        make_parents(path, wanted.path)
        created = replace(path, data, wanted.path)
        lines = data.count(b"\n") + (not data.endswith(b"\n") and data != b"")
        verb = "created" if created else "replaced"
        return (TextBlock(f"{verb} {wanted.path}: {len(data)} bytes, {lines} lines"),)
