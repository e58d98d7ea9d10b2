"""Policy rules: allow, deny or ask by tool and pattern; the first match decides."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import msgspec

from zot.errors import ConfigError

Action: TypeAlias = Literal["allow", "deny", "ask"]

#: A command with one of these may do more than its beginning shows, so no pattern can allow it.
_SHELL_MAGIC: Final = frozenset(";&|<>$()`\n")
_TOOL: Final = r"\*|[\w.-]+"
_GLOB_MAGIC: Final = r"[*?\[]"
#: An escaped wildcard in a pattern: in brackets.
_ESCAPED: Final = r"\[([*?\[])\]"


class CommandSubject(msgspec.Struct, frozen=True):
    """A call that runs a shell command."""

    text: str

    def matches(self, pattern: str, *, loosely: bool) -> bool:
        """True if ``pattern`` matches. A command that may do more than it shows matches only ``loosely``."""
        return fnmatchcase(self.text, pattern) and (loosely or not _SHELL_MAGIC & set(self.text))


class PathSubject(msgspec.Struct, frozen=True):
    """A call on a file: ``real`` is ``written`` with all links resolved. Both are absolute."""

    real: str
    written: str
    cwd: str

    def matches(self, pattern: str, *, loosely: bool) -> bool:
        """True if ``pattern`` matches the real path; ``loosely`` also if it may have been meant to.

        Loose matching follows links in either, expands ``~``, lets ``**/`` match nothing and ``[`` match itself.
        """
        here = os.path.realpath(self.cwd)
        if not loosely:
            return fnmatchcase(self.real, _absolute(pattern, here))
        named = {pattern, os.path.expanduser(pattern)}
        spellings = named | {one.replace("**/", "") for one in named} | {one.replace("[", "[[]") for one in named}
        patterns = [_absolute(one, base) for one in spellings for base in (here, self.cwd)]
        patterns += [_resolved(one, self.cwd) for one in spellings]
        return any(_covers(one, path) for one in patterns for path in (self.real, self.written))


class Nowhere(msgspec.Struct, frozen=True):
    """A call on a path that no file can have, so no rule can be chosen for it."""

    written: str

    def matches(self, pattern: str, *, loosely: bool) -> bool:
        """True ``loosely``: a possible denial applies."""
        return loosely


class NoSubject(msgspec.Struct, frozen=True):
    """A call without a command or path."""

    def matches(self, pattern: str, *, loosely: bool) -> bool:
        """Return False: there is nothing to match."""
        return False


Subject: TypeAlias = CommandSubject | PathSubject | Nowhere | NoSubject


def subject_of(args: dict[str, Any], cwd: str) -> Subject:
    """Return the subject of a call with ``args``, with links resolved now."""
    match args:
        case {"command": str(command)}:
            return CommandSubject(command)
        case {"path": str(path)}:
            written = os.path.join(cwd, path)
            try:
                return PathSubject(os.path.realpath(written), os.path.normpath(written), cwd)
            except ValueError:  # a NUL, or a lone surrogate
                return Nowhere(path)
        case _:
            return NoSubject()


class Rule(msgspec.Struct, frozen=True):
    """One rule. ``tool`` is a name or ``*``; ``pattern`` is a glob over a command or a path, "" for any."""

    tool: str
    pattern: str
    action: Action

    @staticmethod
    def parse(text: str) -> Rule:
        """Parse ``TOOL[:PATTERN]=ACTION``. Raise ConfigError."""
        about, _, action = (part.strip() for part in text.rpartition("="))
        tool, colon, pattern = (part.strip() for part in about.partition(":"))
        has_sense = re.fullmatch(_TOOL, tool) and action in get_args(Action) and bool(colon) == bool(pattern)
        if not has_sense or "\0" in pattern:
            raise ConfigError(f"{text!r} is not a rule; write TOOL[:PATTERN]=allow, =deny or =ask, such as 'bash=ask'")
        return Rule(tool, pattern, cast(Action, action))

    def matches(self, tool: str, subject: Subject) -> bool:
        """True if the rule applies to this call."""
        if self.tool not in ("*", tool):
            return False
        return not self.pattern or subject.matches(self.pattern, loosely=self.action != "allow")


class Private(msgspec.Struct, frozen=True):
    """Directories denied to all calls with a path, whatever the rules say; ``readable`` places in them may be read."""

    directories: tuple[str, ...]
    readable: tuple[str, ...] = ()

    def covers(self, tool: str, subject: Subject) -> bool:
        """True if a call would reach a private path, or its path cannot be resolved."""
        match subject:
            case PathSubject(real=real, written=written):
                if tool == "read" and any(_is_below(real, os.path.realpath(place)) for place in self.readable):
                    return False
                return any(_is_in(path, place) for path in (real, written) for place in self.directories)
            case Nowhere():
                return True
            case _:
                return False


class Policy(msgspec.Struct, frozen=True):
    """Rules in order; ``otherwise`` applies if none matches. ``private`` is denied before all rules."""

    rules: tuple[Rule, ...] = ()
    otherwise: Action = "allow"
    private: Private | None = None

    @staticmethod
    def parse(texts: Sequence[str]) -> Policy:
        """Parse a list of rules. Raise ConfigError."""
        return Policy(tuple(Rule.parse(text) for text in texts))

    def action(self, tool: str, subject: Subject) -> Action:
        """Return the action for a call."""
        if self.is_private(tool, subject):
            return "deny"
        return next((rule.action for rule in self.rules if rule.matches(tool, subject)), self.otherwise)

    def is_private(self, tool: str, subject: Subject) -> bool:
        """True if no rule could allow a call."""
        return self.private is not None and self.private.covers(tool, subject)

    @property
    def allows_all(self) -> bool:
        """True if no call needs a check."""
        return not self.rules and self.otherwise == "allow" and self.private is None


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(os.path.join(directory, ""))


def _is_in(path: str, directory: str) -> bool:
    """True if ``path`` is ``directory`` or below it, also on case-insensitive file systems and bind mounts."""
    real = os.path.realpath(directory)
    if path == real or _is_below(path, real):
        return True
    try:
        wanted = os.stat(directory)
    except OSError:
        return False  # It does not exist, so nothing can be in it.
    return any(_is_same(above, wanted) for above in _up_from(path))


def _up_from(path: str) -> Iterator[str]:
    """Yield ``path`` and its parents."""
    while path != os.path.dirname(path):
        yield path
        path = os.path.dirname(path)


def _is_same(path: str, wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), wanted)
    except OSError:
        return False


def _covers(pattern: str, path: str) -> bool:
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern.rstrip('/')}/*")


def _absolute(pattern: str, base: str) -> str:
    """Return ``pattern`` as a normalised absolute one. Wildcards in ``base`` are literal."""
    path = os.path.normpath(os.path.join(_escaped(base), pattern))
    return f"/{path.lstrip('/')}"  # normpath keeps two leading slashes


def _resolved(pattern: str, base: str) -> str:
    """Return ``pattern`` with links resolved up to its first wildcard."""
    names = pattern.split("/")
    literal = list(takewhile(lambda name: not re.search(_GLOB_MAGIC, re.sub(_ESCAPED, "", name)), names))
    start = re.sub(_ESCAPED, r"\1", "/".join(literal)) or ("/" if pattern.startswith("/") else "")
    return _absolute("/".join(names[len(literal) :]), os.path.realpath(os.path.join(base, start)))


def _escaped(path: str) -> str:
    return re.sub(_GLOB_MAGIC, r"[\g<0>]", path)
