"""The skill tool: the instructions of one skill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from zot.config.skills import SkillFile
from zot.errors import ToolFailed
from zot.messages import TextBlock
from zot.tools.base import Output, ToolContext, decode_args
from zot.tools.specs import SKILL


class SkillArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class Skill:
    """Returns the skills listed in the system prompt."""

    spec = SKILL
    read_only = True

    def __init__(self, skills: Sequence[SkillFile]) -> None:
        self._skills = {skill.name: skill for skill in skills}

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Return the skill. Raise ToolFailed that lists the known ones if it does not exist."""
        wanted = decode_args(args, SkillArgs)
        skill = self._skills.get(wanted.name)
        if skill is None:
            known = ", ".join(self._skills) or "none"
            raise ToolFailed(f"there is no skill named {wanted.name!r}; there are: {known}")
        return (TextBlock(_text(skill)),)


def _text(skill: SkillFile) -> str:
    about = [skill.description]
    if skill.allowed_tools:
        about.append(f"Tools for this: {', '.join(skill.allowed_tools)}")
    if skill.directory is not None:
        about.append(f"Paths in it are relative to {skill.directory}")
    return "\n\n".join([f"# Skill: {skill.name}", *about, "---", f"{skill.body}\n"])
