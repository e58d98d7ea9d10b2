"""docs/glossary.md: the wire names in its tables exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PROTOCOLS = {"rpc": "rpc", "daemon": "daemon", "host": "host", "ext": "extension"}


def entries() -> list[tuple[str, str]]:
    """Return the word and the wire column of every row."""
    rows = re.findall(
        r"^\| (?!Word|We say|---|\*\*)(.*?) \| .* \| (.*?) \|$", (DOCS / "glossary.md").read_text(), re.MULTILINE
    )
    return [(word, wire) for word, wire in rows if wire != "-"]


@pytest.mark.parametrize(("word", "wire"), entries(), ids=lambda value: value)
def test_every_wire_name_is_in_the_schema_of_its_protocol(word: str, wire: str) -> None:
    """A group such as "rpc, ext: `a`, `b`" claims that each name is part of each protocol's schema."""
    for group in wire.split(";"):
        protocols, _, names = group.partition(":")
        for protocol in protocols.split(","):
            schema = (DOCS / "schema" / f"{PROTOCOLS[protocol.strip()]}.json").read_text()
            for name in re.findall(r"`([^`]+)`", names):
                assert re.search(rf'["`]{re.escape(name)}["`]', schema), f"{word}: {protocol.strip()} has no {name}"


def confused() -> list[tuple[str, str, str]]:
    """Return the word, the protocol and the cell, for every cell of the table of names that are confused."""
    table = (DOCS / "glossary.md").read_text().partition("\n## Most often confused\n")[2].partition("\n## ")[0]
    head, _, *rows = [line.strip("| ").split(" | ") for line in table.strip().split("\n")]
    return [(word, protocol, cell) for word, *cells in rows for protocol, cell in zip(head[1:], cells, strict=True)]


@pytest.mark.parametrize(("word", "protocol", "cell"), confused())
def test_every_confused_name_is_in_the_schema_of_its_protocol(word: str, protocol: str, cell: str) -> None:
    schema = (DOCS / "schema" / f"{PROTOCOLS[protocol]}.json").read_text()
    for name in re.findall(r"`([^`]+)`", cell):
        assert re.search(rf'["`]{re.escape(name)}["`]', schema), f"{word}: {protocol} has no {name}"


def test_no_word_is_explained_twice() -> None:
    words = re.findall(r"^\| (?!Word|We say|---|\*\*)(.*?) \|", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert len(words) > 50
    assert len(words) == len({*words})
