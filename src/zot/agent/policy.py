"""What tools may do: rules by tool and pattern, the first that matches decides."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import msgspec

from zot.errors import ConfigError

Action: TypeAlias = Literal["allow", "deny", "ask"]

#: A command with one of these may do more than its beginning says, so no pattern can allow it.
_SHELL_MAGIC: Final = frozenset(";&|<>$()`\n")


class Rule(msgspec.Struct, frozen=True):
    """One rule. ``tool`` is a name or ``*``; ``pattern`` is a glob over a command or a path, "" for any."""

    tool: str
    pattern: str
    action: Action

    @staticmethod
    def parse(text: str) -> Rule:
        """Read ``TOOL[:PATTERN]=ACTION``. Raise ConfigError."""
        subject, _, action = text.rpartition("=")
        tool, _, pattern = subject.partition(":")
        if not tool or action not in get_args(Action):
            raise ConfigError(f"{text!r} is not a rule; write TOOL[:PATTERN]=allow, =deny or =ask, such as 'bash=ask'")
        return Rule(tool, pattern, cast(Action, action))

    def matches(self, tool: str, subject: Subject) -> bool:
        """True if the rule is about this call."""
        if self.tool not in ("*", tool):
            return False
        return not self.pattern or subject.matches(self.pattern, loosely=self.action != "allow")


class Subject(msgspec.Struct, frozen=True):
    """What a call is about: a command, a path (absolute, links resolved), or nothing that a pattern could match."""

    command: str = ""
    path: str = ""
    cwd: str = ""

    @staticmethod
    def of(args: dict[str, Any], cwd: str) -> Subject:
        """Return what a call with ``args`` is about."""
        command, path = args.get("command"), args.get("path")
        if isinstance(command, str):
            return Subject(command=command)
        if isinstance(path, str):
            return Subject(path=os.path.realpath(os.path.join(cwd, path)), cwd=cwd)
        return Subject()

    def matches(self, pattern: str, *, loosely: bool) -> bool:
        """True if ``pattern`` describes it. A command that could do more than it shows matches only ``loosely``."""
        if self.command:
            return fnmatchcase(self.command, pattern) and (loosely or not _SHELL_MAGIC & set(self.command))
        if self.path:
            return fnmatchcase(self.path, os.path.join(os.path.realpath(self.cwd), pattern))
        return False

    def exactly(self) -> str:
        """Return what "always" remembers: the command or the path, as it is."""
        return self.command or self.path


class Policy(msgspec.Struct, frozen=True):
    """Rules in order; what none of them is about gets ``otherwise``."""

    rules: tuple[Rule, ...] = ()
    otherwise: Action = "allow"

    @staticmethod
    def parse(texts: Sequence[str]) -> Policy:
        """Read a list of rules. Raise ConfigError."""
        return Policy(tuple(Rule.parse(text) for text in texts))

    def action(self, tool: str, subject: Subject) -> Action:
        """Return what is to happen with a call."""
        return next((rule.action for rule in self.rules if rule.matches(tool, subject)), self.otherwise)
