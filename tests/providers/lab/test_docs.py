"""docs/reference/lab.md is played, so that it stays true."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

import pytest

from zot.providers.lab.anthropic import AnthropicApi
from zot.providers.lab.api import LabRequest, UserText
from zot.providers.lab.directives import UsageDirective
from zot.providers.lab.performance import Performance
from zot.providers.lab.script import FORMS, Script, ScriptedReply, demo
from zot.providers.lab.transport import LabTransport

from .talk import Clock, body, called, said

PAGE = (Path(__file__).parents[3] / "docs/reference/lab.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```lab\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
_UNSPOKEN = ("status", "script")
VALUES = {"1": "say x", "2": "", "chars": "3", "model": "lab"}


def play(reply: ScriptedReply) -> int:
    """Return the number of steps of a reply, up to a hundred."""
    voice = AnthropicApi().voice(LabRequest("lab", True, (UserText("", 0),), (), 1), 1, UsageDirective())
    return len(list(islice(Performance(reply.directives(VALUES), voice, 1, demo()).steps(), 100)))


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_can_be_played(example: str) -> None:
    script = Script.parse(example, "docs/reference/lab.md")
    spoken = [reply for scene in script.scenes for reply in scene.replies if reply.lines[0].word not in _UNSPOKEN]
    assert [reply for reply in spoken if not play(reply)] == []


def test_every_directive_is_documented_as_it_is_written() -> None:
    rows = {row.replace("\\|", "|") for row in re.findall(r"^\| `(.+?)` \|", PAGE, re.MULTILINE)}
    documented = {form for form, _ in FORMS.values()} - {'script "lines"'}
    assert documented <= rows
    assert '`script "lines"`' in PAGE


def test_every_scene_of_the_built_in_script_is_documented() -> None:
    rows = re.findall(r"^\| `(![\w-]+)", PAGE, re.MULTILINE)
    assert rows == [scene.word for scene in demo().scenes if scene.word]


async def test_the_example_of_retries_does_what_the_page_says() -> None:
    [example] = [example for example in EXAMPLES if "It builds." in example]
    transport = LabTransport(Script.parse(example), sleep=Clock())
    assert await said(transport, body("go")) == ""
    second = body("go", *called("toolu_lab_1"))
    assert [await said(transport, second) for _ in range(4)] == ["status 529"] * 3 + ["It builds."]
