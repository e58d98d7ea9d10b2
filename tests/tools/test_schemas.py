"""The description of each tool for the model, word for word: it is the interface that the model programs against."""

from __future__ import annotations

import msgspec
from inline_snapshot import snapshot

from zot.tools.bash import Bash
from zot.tools.edit import Edit
from zot.tools.read import Read
from zot.tools.skill import Skill
from zot.tools.write import Write


def test_read() -> None:
    assert msgspec.to_builtins(Read().spec) == snapshot(
        {
            "name": "read",
            "description": (
                "Read a file. Returns at most 2000 lines or 50 KiB of its text; notes in square brackets at the end "
                "say how to continue and what is unusual about it. PNG, JPEG, GIF and WebP images are returned as "
                "images. For a directory its entries are listed."
            ),
            "schema": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "File or directory, absolute or relative to the cwd"},
                    "offset": {"type": "integer", "minimum": 1, "description": "First line to read, counted from 1"},
                    "limit": {"type": "integer", "minimum": 1, "description": "How many lines, at most 2000"},
                },
                "required": ["path"],
                "additionalProperties": False,
            },
        }
    )


def test_write() -> None:
    assert msgspec.to_builtins(Write().spec) == snapshot(
        {
            "name": "write",
            "description": (
                "Write a whole file in UTF-8, replacing what was in it. Missing directories are created. "
                "To change a part of a file, use edit."
            ),
            "schema": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "File, absolute or relative to the cwd"},
                    "content": {"type": "string", "description": "The complete new content"},
                },
                "required": ["path", "content"],
                "additionalProperties": False,
            },
        }
    )


def test_edit() -> None:
    assert msgspec.to_builtins(Edit().spec) == snapshot(
        {
            "name": "edit",
            "description": (
                "Replace exact text in a file. Each oldText must occur exactly once in the file as it is now, "
                "and no two may overlap; either all edits are made or none. "
                "The encoding and the line ends of the file are kept. Returns a diff."
            ),
            "schema": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "File, absolute or relative to the cwd"},
                    "edits": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "object",
                            "properties": {
                                "oldText": {
                                    "type": "string",
                                    "description": "Text to replace, with its exact whitespace",
                                },
                                "newText": {"type": "string", "description": "What to put in its place"},
                            },
                            "required": ["oldText", "newText"],
                            "additionalProperties": False,
                        },
                    },
                },
                "required": ["path", "edits"],
                "additionalProperties": False,
            },
        }
    )


def test_bash() -> None:
    assert msgspec.to_builtins(Bash().spec) == snapshot(
        {
            "name": "bash",
            "description": (
                "Run a command with /bin/sh in the cwd and return its output, stdout and stderr together. "
                "Of long output you see the beginning and the end, 2000 lines or 50 KiB. "
                "There is no input: a command that asks for some reads end of file. "
                "Use & for what shall continue in the background."
            ),
            "schema": {
                "type": "object",
                "properties": {
                    "command": {"type": "string", "description": "The shell command"},
                    "timeout": {
                        "type": "number",
                        "minimum": 0.1,
                        "description": "Seconds after which the command is killed, 120 by default",
                    },
                },
                "required": ["command"],
                "additionalProperties": False,
            },
        }
    )


def test_skill() -> None:
    assert msgspec.to_builtins(Skill([]).spec) == snapshot(
        {
            "name": "skill",
            "description": "Load the instructions of a skill. The skills are listed in the system prompt.",
            "schema": {
                "type": "object",
                "properties": {"name": {"type": "string", "description": "Name of the skill"}},
                "required": ["name"],
                "additionalProperties": False,
            },
        }
    )


def test_only_read_only_tools_may_run_in_parallel() -> None:
    tools = (Read(), Write(), Edit(), Skill([]))
    assert {tool.spec.name for tool in tools if tool.read_only} == {"read", "skill"}
