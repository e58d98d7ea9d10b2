"""Write sdk/typescript/protocol.d.ts: the frames of the extension protocol as TypeScript, made from their JSON Schema.

python scripts/typescript.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SCHEMA = ROOT / "docs" / "schema" / "extension.json"
PATH = ROOT / "sdk" / "typescript" / "protocol.d.ts"
_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def render() -> str:
    """Return the text of the file."""
    definitions = json.loads(SCHEMA.read_text())["$defs"]
    head = "// The frames of the zot extension protocol, version 1. Made by scripts/typescript.py: do not edit.\n"
    return head + "".join("\n" + _declaration(name, node) for name, node in definitions.items())


def _declaration(name: str, node: dict[str, Any]) -> str:
    comment = _comment(node.get("description", ""))
    if "properties" not in node:
        return f"{comment}export type {name} = {_type(node)};\n"
    required = node.get("required", [])
    fields = (
        f"  {key}{'' if key in required else '?'}: {_type(value)};\n" for key, value in node["properties"].items()
    )
    return f"{comment}export interface {name} {{\n{''.join(fields)}}}\n"


def _type(node: dict[str, Any]) -> str:
    """Return a schema as a TypeScript type."""
    match node:
        case {"$ref": ref}:
            return str(ref).rpartition("/")[2]
        case {"enum": values}:
            return " | ".join(map(json.dumps, values))
        case {"anyOf": nodes}:
            return " | ".join(map(_type, nodes))
        case {"type": "array", "items": items}:
            return f"readonly {_type(items)}[]" if "anyOf" not in items else f"readonly ({_type(items)})[]"
        case {"type": "object"}:
            return "Record<string, unknown>"
        case {"type": kind}:
            return _PLAIN[kind]
        case _:
            return "unknown"


def _comment(text: str) -> str:
    lines = text.replace("``", "`").split("\n")
    if not text:
        return ""
    if len(lines) == 1:
        return f"/** {text.replace('``', '`')} */\n"
    return "".join(("/**\n", *(f" * {line.strip()}".rstrip() + "\n" for line in lines), " */\n"))


if __name__ == "__main__":
    PATH.write_text(render())
