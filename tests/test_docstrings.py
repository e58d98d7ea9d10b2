"""Names in docstrings and comments: each exists, classes in a package that the module may import."""

from __future__ import annotations

import ast
import asyncio
import builtins
import io
import re
import tokenize
import typing
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

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


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def defined() -> dict[str, set[str]]:
    """Return the names that each package defines or imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        into = found[package(path)]
        for node in ast.walk(tree(path)):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    into.add(name)
                case ast.Name(id=name, ctx=ast.Store()):
                    into.add(name)
                case ast.alias(name=name, asname=other):
                    into.add((other or name).rpartition(".")[2])
                case _:
                    pass
    return found


def words(path: Path) -> set[str]:
    """Return the names in a module's code and the words in its strings."""
    found: set[str] = set()
    for token in tokens(path):
        if token.type == tokenize.NAME:
            found.add(token.string)
        elif token.type == tokenize.STRING and not token.string.startswith('"""'):
            found.update(re.findall(r"\w+", token.string))
    return found


@cache
def tokens(path: Path) -> list[tokenize.TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(path.read_text()).readline))


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and comments of a module, with their lines."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text
    for token in tokens(path):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_docstrings_name_only_classes_that_exist() -> None:
    problems: list[str] = []
    for path in FILES:
        own = package(path)
        seen = {own, *VOCABULARY, *MAY_IMPORT.get(own, ())}
        known = _ANYWHERE.union(*(defined()[name] for name in seen))
        for line, text in comments(path):
            problems += [f"{path.relative_to(SRC)}:{line}: {name}" for name in sorted(names(text) - known)]
    assert problems == []


def test_docstrings_name_only_functions_attributes_and_wire_names_that_exist() -> None:
    known = _ANYWHERE.union({path.stem for path in FILES}, *(words(path) for path in FILES))
    problems = [
        f"{path.relative_to(SRC)}:{line}: {name}"
        for path in FILES
        for line, text in comments(path)
        for name in _LOWER.findall(text)
        if name not in known
    ]
    assert problems == []
