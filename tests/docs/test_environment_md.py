"""docs/reference/environment.md has a row for every environment variable that the source reads, and for no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from zot.config.config import PROXY_NAMES, SECRET_NAMES
from zot.config.vendors import VENDORS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reference" / "environment.md").read_text()
MODULES = sorted(path for path in (ROOT / "src" / "zot").rglob("*.py") if "templates" not in path.parts)
VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]+")
#: Prefixes of our own variables: a string that begins so is one, however it is read.
OURS = re.compile(r"(ZOT|ZOTCORE|ZEROCLAW)_[A-Z_]+")
#: Read on Windows, by clients of other daemons.
# GIT_CONFIG_COUNT is git's own: bash adds one entry to those that a user gave.
ELSEWHERE = {"USERPROFILE", "GIT_CONFIG_COUNT"}


def is_environment(node: ast.expr) -> bool:
    """True of an expression such as ``env``, ``os.environ`` or ``config.environment``."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.lstrip("_") in ("env", "environ", "environment")


def texts(node: ast.AST, constants: dict[str, str]) -> Iterator[str]:
    """Yield the strings in an expression: literals, and constants of the module."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str | bytes):
            yield part.value if isinstance(part.value, str) else part.value.decode("latin-1")
        elif isinstance(part, ast.Name) and part.id in constants:
            yield constants[part.id]


def names_read(tree: ast.Module) -> Iterator[str]:
    """Yield the variables that a module reads by name."""
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=mapping, attr="get" | "pop"), args=[name, *_]) if is_environment(
                mapping
            ):
                yield from texts(name, constants)
            case ast.Subscript(value=mapping, slice=name) if is_environment(mapping):
                yield from texts(name, constants)
            case ast.Compare(left=name, ops=[ast.In()], comparators=[mapping]) if is_environment(mapping):
                yield from texts(name, constants)
            case ast.Call(args=[mapping, ast.Constant(value=str(text)), *_]) if is_environment(mapping):
                yield text
            case ast.Constant(value=str(text)) if OURS.fullmatch(text):
                yield text


@cache
def read_by_source() -> set[str]:
    # Parsing is slow: most modules cannot read a variable.
    sources = [text for path in MODULES if "env" in (text := path.read_text()) or OURS.search(text)]
    found = {name for text in sources for name in names_read(ast.parse(text))}
    tables = {name for vendor in VENDORS.values() for name in (*vendor.key_names, *vendor.base_url_names)}
    return {name for name in found if VARIABLE.fullmatch(name)} | tables | {*PROXY_NAMES} | SECRET_NAMES


def described() -> list[str]:
    rows = re.findall(r"^\| (`[A-Za-z_`, ]+`) \| [^|]*\| [^|]*\|$", TEXT, re.MULTILINE)
    return [name for row in rows for name in re.findall("`(.*?)`", row)]


def test_every_variable_that_is_read_has_a_row() -> None:
    assert read_by_source() - ELSEWHERE - {*described()} == set()


#: Read in a comprehension, which the search does not see.
UNSEEN = {"LD_LIBRARY_PATH"}


def test_no_row_is_about_a_variable_that_is_not_read() -> None:
    assert {*described()} - read_by_source() - UNSEEN == set()
    known = {"ZOT_HOME", "ZEROCLAW_DATA_DIR", "ZOTCORE_RPC_TOKEN", "ZOT_HOST_VIA_DAEMON", "LISTEN_FDS", "TERM"}
    assert known <= read_by_source()
