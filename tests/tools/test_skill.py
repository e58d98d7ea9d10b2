from __future__ import annotations

from zot.config.skills import SkillFile
from zot.tools.base import ToolContext
from zot.tools.skill import Skill

from .calls import answer, refusal

BREW = SkillFile("brew", "How to brew.", "1. Boil.\n2. Wait.", "/skills/brew", ("bash", "read"))
OWN = SkillFile("own", "Ours.", "Body.")


async def test_a_skill_is_its_description_and_its_body(context: ToolContext) -> None:
    assert await answer(Skill([OWN, BREW]), {"name": "own"}, context) == "# Skill: own\n\nOurs.\n\n---\n\nBody.\n"


async def test_a_skill_says_what_it_needs_and_where_its_files_are(context: ToolContext) -> None:
    assert await answer(Skill([OWN, BREW]), {"name": "brew"}, context) == (
        "# Skill: brew\n\nHow to brew.\n\nTools for this: bash, read\n\nPaths in it are relative to /skills/brew\n\n"
        "---\n\n1. Boil.\n2. Wait.\n"
    )


async def test_an_unknown_skill_is_answered_with_the_known_ones(context: ToolContext) -> None:
    assert await refusal(Skill([OWN, BREW]), {"name": "nope"}, context) == (
        "there is no skill named 'nope'; there are: own, brew"
    )
    assert await refusal(Skill([]), {"name": "nope"}, context) == "there is no skill named 'nope'; there are: none"


async def test_errors_are_explained(context: ToolContext) -> None:
    assert await refusal(Skill([OWN]), {}, context) == "invalid arguments: name is missing"
