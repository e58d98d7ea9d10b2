"""Every fenced block of the documentation has a language that the tests know, and is valid in it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import PATIENCE_S

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Conversations and other texts: the tests of their pages run, hold or match them. Without a language: an illustration.
ELSEWHERE = {
    "",
    "console",
    "text",
    "rpc",
    "daemon",
    "extension",
    "lab",
    "markdown",
    "js",
    "ini",
    "dockerfile",
    "grammar",
    "policy",
    "lua",
    "elisp",
}


def check_python(text: str) -> None:
    compile(text, "block", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def check_shell(text: str) -> None:
    subprocess.run(["sh", "-n"], input=text.encode(), check=True, timeout=PATIENCE_S)


def check_sql(text: str) -> None:
    """Check that only whole statements are shown; test_postgres.py runs them."""
    assert all(line.endswith(";") for line in text.rstrip("\n").split("\n"))


CHECKS: dict[str, Callable[[str], object]] = {
    "python": check_python,
    "sh": check_shell,
    "json": json.loads,
    "toml": tomllib.loads,
    "sql": check_sql,
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_is_valid(page: Path) -> None:
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        if language not in ELSEWHERE:
            CHECKS[language](text)
