"""A hostile repository or model in an editor: the title of an approval shows the command that runs."""

from __future__ import annotations

from typing import Any

import pytest

from zot.wire.acp import ToolCards


@pytest.mark.parametrize("one", ["\x1b", "\x9b", "\u200b", "\u202e", "\u2066", "\u3164", "\u00a0", "\r", "\U000e0041"])
@pytest.mark.parametrize(
    ("tool", "argument"), [("bash", "command"), ("write", "path"), ("skill", "name"), ("of-an-extension", "path")]
)
def test_the_title_of_a_call_shows_every_character(tool: str, argument: str, one: str) -> None:
    args: dict[str, Any] = {argument: f"rm{one}x\nls"}
    card = ToolCards("/w").call("1", tool, args)
    assert one not in card["title"]
    assert f"{ord(one):x}" in card["title"] or "\\r" in card["title"]
    assert card["title"].endswith("x\nls")
    assert card["rawInput"] == args  # Programs get the arguments unchanged.
