"""Names in docstrings and comments: each exists, classes in a package that the module may import."""

from __future__ import annotations

import ast
import asyncio
import builtins
import re
import typing
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

from test_architecture import FILES, MAY_IMPORT, SRC, VOCABULARY

#: `Name`, `Name.method` and `Name(...)` between single backticks; `module.Name`, too.
_QUOTED = re.compile(r"(?<!`)`(?:[a-z]\w*\.)*([A-Z]\w*[a-z]\w*)(?:\.\w+)*(?:\([^`]*\))?`(?!`)")
#: The names after "Raise" or "Raises".
_RAISED = re.compile(r"\bRaises?\s+(?:an? )?((?:[A-Z]\w+(?:, or |, | or |)\s*)+)")
#: A name of several capitalized words, quoted or not, such as ToolFailed.
_COMPOUND = re.compile(r"(?<![\w/.])([A-Z][a-z]+(?:[A-Z][a-z]+)+)(?![\w/])")
#: A function or attribute between single backticks, such as `read_chunks` or `Store.synced`.
_LOWER = re.compile(r"(?<!`)`(?:\w+\.)*([a-z_]\w*)(?:\(\))?`(?!`)")
#: Names that are not of classes.
_FOREIGN = {"DeepSeek", "OpenRouter", "PageDown", "PageUp", "SipHash", "WebSocket"}
_ANYWHERE = set(dir(builtins)) | set(dir(asyncio)) | set(dir(typing)) | _FOREIGN


def names(text: str) -> set[str]:
    """Return the class names that a docstring or comment mentions."""
    raised = {name for listed in _RAISED.findall(text) for name in re.findall(r"[A-Z]\w+", listed)}
    return {*_QUOTED.findall(text), *raised, *_COMPOUND.findall(text)}


def package(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


class Module(NamedTuple):
    """The names that a module defines or imports, its code, and its docstrings and comments with their lines."""

    names: frozenset[str]
    code: str
    texts: tuple[tuple[int, str], ...]


@cache
def module(path: Path) -> Module:
    """Return a module without its tree: tests that look for garbage would have to visit a million nodes."""
    lines = path.read_text().splitlines()
    found: set[str] = set()
    texts: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not isinstance(node, ast.Module):
                found.add(node.name)
            text = ast.get_docstring(node)
            if text is not None:
                first, last = node.body[0].lineno, node.body[0].end_lineno
                texts.append((first, text))
                lines[first - 1 : last] = [""] * len(lines[first - 1 : last])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).rpartition(".")[2])
    for number, line in enumerate(lines, 1):
        code, mark, comment = line.partition("#")
        if mark and (not code.strip() or code.endswith("  ")):
            texts.append((number, comment))
            lines[number - 1] = code
    return Module(frozenset(found), "\n".join(lines), tuple(texts))


@cache
def defined() -> dict[str, set[str]]:
    """Return the names that each package defines or imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        found[package(path)] |= module(path).names
    return found


def test_docstrings_name_only_classes_that_exist() -> None:
    problems: list[str] = []
    for path in FILES:
        own = package(path)
        seen = {own, *VOCABULARY, *MAY_IMPORT.get(own, ())}
        known = _ANYWHERE.union(*(defined()[name] for name in seen))
        for line, text in module(path).texts:
            problems += [f"{path.relative_to(SRC)}:{line}: {name}" for name in sorted(names(text) - known)]
    assert problems == []


def test_docstrings_name_only_functions_attributes_and_wire_names_that_exist() -> None:
    known = _ANYWHERE.union({path.stem for path in FILES}, *(re.findall(r"\w+", module(path).code) for path in FILES))
    problems = [
        f"{path.relative_to(SRC)}:{line}: {name}"
        for path in FILES
        for line, text in module(path).texts
        for name in _LOWER.findall(text)
        if name not in known
    ]
    assert problems == []
