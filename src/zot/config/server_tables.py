"""Changes of the `[mcp.NAME]` tables of config.toml: a table is added, removed, or switched on and off.

The rest of the file stays as it was written: the text is edited, and the result is decoded and checked.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from zot.config.file import FILE_NAME
from zot.config.flags import MCP_NAME_RULE, McpServer, is_mcp_name
from zot.errors import UserError
from zot.files import directory_lock, make_directory, replace_file

_HEADER = re.compile(r"^\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(#.*)?$")
_ENABLED = re.compile(r"^\s*enabled\s*=")


def add_server(directory: str, name: str, server: McpServer) -> None:
    """Add a table. Raise UserError if there is one, ConfigError, OSError."""
    if not is_mcp_name(name):
        raise UserError(f"{name!r} is not a valid server name: {MCP_NAME_RULE}")
    usual = McpServer()
    values = {key: value for key in server.__struct_fields__ if (value := getattr(server, key)) != getattr(usual, key)}

    def edit(text: str, tables: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if name in tables:
            raise UserError(f"there is a server {name!r} already; remove it with: zot mcp remove {name}")
        lines = [f"{key} = {_written(value)}" for key, value in values.items()]
        gap = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
        return f"{text}{gap}[mcp.{name}]\n" + "".join(f"{line}\n" for line in lines), {
            **tables,
            name: msgspec.json.decode(msgspec.json.encode(values)),
        }

    _change(directory, edit)


def remove_server(directory: str, name: str) -> None:
    """Remove a table with its subtables. Raise UserError if there is none, ConfigError, OSError."""

    def edit(text: str, tables: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        lines, block = _block(text, tables, name)
        kept = [line for number, line in enumerate(lines) if number not in block]
        return "".join(kept), {other: table for other, table in tables.items() if other != name}

    _change(directory, edit)


def enable_server(directory: str, name: str, *, enabled: bool) -> None:
    """Switch a server on or off. Raise UserError if there is none, ConfigError, OSError."""

    def edit(text: str, tables: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        lines, block = _block(text, tables, name)
        line = f"enabled = {_written(enabled)}\n"
        known = next((number for number in block if _ENABLED.match(lines[number])), None)
        if known is None:
            lines.insert(block[0] + 1, line)
        else:
            lines[known] = line
        return "".join(lines), {**tables, name: {**tables[name], "enabled": enabled}}

    _change(directory, edit)


def _change(directory: str, edit: Callable[[str, dict[str, Any]], tuple[str, dict[str, Any]]]) -> None:
    """Store the edited file if it means what ``edit`` says."""
    make_directory(directory)
    path = os.path.join(directory, FILE_NAME)
    with directory_lock(directory):
        try:
            with open(path, encoding="utf-8", newline="") as file:
                text = file.read()
            before = tomllib.loads(text)
        except FileNotFoundError:
            text, before = "", {}
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
            raise UserError(f"{path} cannot be read: {problem}") from None
        made, tables = edit(text, dict(before.get("mcp", {})))
        wanted = {**before, "mcp": tables}
        try:
            after = tomllib.loads(made)
        except tomllib.TOMLDecodeError:
            after = {}
        if {**after, "mcp": after.get("mcp", {})} != wanted:
            raise UserError(f"{path} is written in a way that zot cannot edit; please change it by hand")
        replace_file(path, made.encode())


def _block(text: str, tables: Mapping[str, Any], name: str) -> tuple[list[str], list[int]]:
    """Return the lines of a file, and the numbers of those that are a server's table."""
    if name not in tables:
        raise UserError(f"config.toml has no server {name!r}; list the servers with: zot mcp list")
    lines, block, is_inside = re.split(r"(?<=\n)", text), [], False
    for number, line in enumerate(lines):
        if (header := _HEADER.match(line)) is not None:
            words = [word.strip().strip("\"'") for word in header[1].split(".")]
            is_inside = words[:2] == ["mcp", name]
        if is_inside:
            block.append(number)
    if not block:
        raise UserError(f"config.toml has no table [mcp.{name}]; please change it by hand")
    return lines, block


def _written(value: Any) -> str:
    """Return a value in TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case Mapping():
            return "{ " + ", ".join(f"{_text(key)} = {_written(inner)}" for key, inner in value.items()) + " }"
        case str():
            return _text(value)
        case list() | tuple():
            return "[" + ", ".join(map(_written, value)) + "]"
        case _:
            return str(value)


def _text(text: str) -> str:
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007F")
