"""docs/troubleshooting.md quotes messages that zot has: each occurs in the source, and commands print some of them."""

from __future__ import annotations

import ast
import re
from functools import partial
from pathlib import Path

import pytest

from shell import Shell

from .markdown import blocks

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "troubleshooting.md").read_text()
MESSAGES = blocks(TEXT, "text")
#: How much of a message must be text of the source; the rest are names and numbers.
SHARE = 0.35
#: Shorter texts match by accident.
MIN_CHARACTERS = 12


def literals() -> tuple[tuple[str, ...], ...]:
    """Return the constant parts of every string in the source; an f-string or a format has several."""
    found = set()
    for path in (ROOT / "src" / "zot").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = "\0".join(str(part.value) if isinstance(part, ast.Constant) else "" for part in node.values)
                found.add(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return tuple(tuple(filter(None, re.split(r"\0|%[srdg]", text.lower()))) for text in found if " " in text)


def covered(parts: tuple[str, ...], message: str) -> int:
    """Return how many characters of ``message`` the parts fill, in their order, up to the first that is missing."""
    filled = at = 0
    for part in parts:
        if (at := message.find(part, at)) < 0:
            break
        at += len(part)
        filled += len(part)
    return filled if filled >= MIN_CHARACTERS else 0


def test_every_message_is_one_of_the_source() -> None:
    """One test for all messages: each worker that ran one of many would read the whole source."""
    known = literals()
    for block in MESSAGES:
        [message] = block.text.strip().lower().split("\n")
        nearest = max(known, key=partial(covered, message=message))
        filled = covered(nearest, message)
        assert filled >= SHARE * len(message.replace("...", "")), f"nearest to {message!r} is {nearest}"


def test_no_message_is_explained_twice_and_each_has_an_explanation() -> None:
    texts = [block.text for block in MESSAGES]
    assert len(texts) >= 60
    assert len({*texts}) == len(texts)
    for block in MESSAGES:
        after = TEXT.partition(f"```text\n{block.text}```\n\n")[2]
        assert after
        assert not after.startswith(("```", "#"))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["rpc"], "no key for anthropic: set"),
        (["-p", "hi", "--provder", "lab"], "unknown flag --provder"),
        (["rpc", "--provider", "lab", "--policy", "bash"], "'bash' is not a rule"),
        (["rpc", "--provider", "lab", "--policy", "bsh=ask"], "policy: no tool is named 'bsh'"),
        (["rpc", "--provider", "lab", "--tools", "grep"], "unknown tool 'grep'"),
        (
            ["rpc", "--provider", "openai", "--api", "gemini", "--api-key", "k"],
            "openai does not speak the API 'gemini'",
        ),
        (["rpc", "--config-dir", "/etc/zot"], "--config-dir /etc/zot: no such directory"),
        (["daemon", "--listen", "ws://0.0.0.0:7777"], "ws://0.0.0.0:7777: "),
        (["attach"], "No daemon is running at "),
        (["sessions", "show", "x"], "no session matches 'x': "),
        (["mcp", "test", "files"], "no MCP server is named 'files'; list them with: zot mcp list"),
        (["worker"], "a worker needs a database: add --store postgresql://…, or set ZOT_STORE"),
        (["host"], "there is no request: the input is empty"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_command_prints_the_message_of_the_page(command: list[str], message: str, shell: Shell) -> None:
    said = shell.run(*command)
    [_] = [block for block in MESSAGES if block.text.startswith(message)]
    assert message.lower() in (said.err + said.out).lower()
    assert said.code != 0
