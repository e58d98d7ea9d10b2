"""The manifest in docs/reference/extension-permissions.md is one, and every scope is described there."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from zot.extensions.manifest import parse
from zot.extensions.permissions import Permissions

from .markdown import blocks

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "extension-permissions.md").read_text()
[EXAMPLE] = blocks(TEXT, "json")


def test_the_example_grants_what_the_page_says() -> None:
    assert parse(EXAMPLE.text.encode(), "extension.json").permissions == Permissions(
        fs_read=("~/.config/weather", "$CWD"), net=True, env=("WEATHER_KEY",), tools=("weather",)
    )


@pytest.mark.parametrize("field", msgspec.structs.fields(Permissions), ids=lambda field: field.encode_name)
def test_every_scope_is_described(field: msgspec.structs.FieldInfo) -> None:
    assert f"\n| `{field.encode_name}` | " in TEXT
