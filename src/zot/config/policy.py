"""Policy rules: allow, deny or ask by tool and pattern; the first match decides."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile
from types import ModuleType
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import msgspec

from zot.errors import ConfigError

Action: TypeAlias = Literal["allow", "deny", "ask"]

#: How a pattern names a set of vetted commands.
_SET: Final = "@"
#: Most paths of one call; a call with more is not judged path by path.
_MAX_PATHS: Final = 1000
_MAX_PATH: Final = 4096
_MAX_NAME: Final = 255
#: Most strings of one call that are judged as possible names, and what no name has.
_MAX_NAMES: Final = 2000
_NO_NAME: Final = frozenset("/\0")
#: Words in the name of an argument that make it a path.
_PATH_WORDS: Final = frozenset(
    {
        *("path", "paths", "file", "files", "filename", "filenames", "filepath", "filepaths"),
        *("dir", "dirs", "directory", "directories", "folder", "folders", "cwd"),
    }
)
#: Arguments of built-in tools that are texts, whatever they look like.
_TEXTS: Final = {"write": ("content",), "edit": ("oldText", "newText")}
_TOOL: Final = r"\*|[\w.-]+"
_GLOB_MAGIC: Final = r"[*?\[]"
#: An escaped wildcard in a pattern: in brackets.
_ESCAPED: Final = r"\[([*?\[])\]"


class CommandSubject(msgspec.Struct, frozen=True):
    """A call that runs a shell command in ``cwd``."""

    text: str
    cwd: str = ""

    def matches(self, pattern: str, *, loosely: bool) -> bool:
        """True if ``pattern`` matches the words of the command; ``loosely`` also if it matches its text.

        A command that may do more than it shows matches only ``loosely``. A pattern such as ``@search`` names a set.
        """
        shell = _shell_commands()
        words = shell.plain_words(self.text)
        if pattern.startswith(_SET):
            return words is not None and shell.in_command_set(pattern.removeprefix(_SET), words, self.cwd)
        if loosely:
            spelled = self.text if words is None else " ".join(words)
            return _fits(self.text, pattern) or _fits(spelled, pattern)
        return words is not None and shell.matches_words(pattern, words)


def _fits(text: str, pattern: str) -> bool:
    """True if a glob ``pattern`` matches all of ``text``."""
    from fnmatch import fnmatchcase  # Imported lazily: most runs have no rule.

    return fnmatchcase(text, pattern)


def _shell_commands() -> ModuleType:
    """Return the parser of shell commands, imported with the first rule about one."""
    from zot.config import shell_commands

    return shell_commands


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
            return _fits(self.real, _absolute(pattern, here))
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


class SeveralSubjects(msgspec.Struct, frozen=True):
    """A call on several files, or on files and with a command."""

    parts: tuple[CommandSubject | PathSubject | Nowhere, ...]

    def matches(self, pattern: str, *, loosely: bool) -> bool:
        """True if ``pattern`` matches every part; ``loosely`` if it matches any."""
        return (any if loosely else all)(part.matches(pattern, loosely=loosely) for part in self.parts)


Subject: TypeAlias = CommandSubject | PathSubject | Nowhere | NoSubject | SeveralSubjects


def subject_of(args: dict[str, Any], cwd: str, tool: str = "") -> Subject:
    """Return the subject of a call with ``args``, with links resolved now.

    The argument `command`, if it is a string, is a shell command. Another string at any depth is a path if its name
    says so, if it looks like one, or if such a file exists.
    """
    parts: list[CommandSubject | PathSubject | Nowhere] = []
    if isinstance(command := args.get("command"), str):
        parts.append(CommandSubject(command, cwd))
    rest = {name: value for name, value in args.items() if name != "command" or not isinstance(value, str)}
    paths = dict.fromkeys(islice(_paths_in(rest, cwd, _TEXTS.get(tool, ())), _MAX_PATHS + 1))
    parts += [Nowhere("too many paths")] if len(paths) > _MAX_PATHS else [_path_subject(path, cwd) for path in paths]
    match parts:
        case []:
            return NoSubject()
        case [only]:
            return only
        case _:
            return SeveralSubjects(tuple(parts))


def possible_names(args: dict[str, Any], cwd: str, tool: str = "") -> Sequence[PathSubject | Nowhere]:
    """Return the files that a call would create in ``cwd`` if it took its other strings for names.

    They are judged by rules that deny or ask, and count for none that allows: most are words of another kind.
    """
    if tool in _TEXTS or tool == "bash":
        return ()
    real = os.path.realpath(cwd)
    found = dict.fromkeys(islice(_strings_in(args), _MAX_NAMES + 1))
    if len(found) > _MAX_NAMES:
        return [Nowhere("too many names")]
    return [
        PathSubject(os.path.join(real, text), os.path.join(cwd, text), cwd)
        for text, name in found
        if text and len(text.encode("utf-8", "surrogatepass")) <= _MAX_NAME and not _NO_NAME.intersection(text)
        if not _is_path(text, name, cwd)
    ]


def _strings_in(args: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the strings among the arguments of a call, at any depth, with the name of each."""
    waiting: list[tuple[Any, str]] = [*((value, name) for name, value in args.items()), *((name, "") for name in args)]
    while waiting:
        value, name = waiting.pop()
        match value:
            case dict():
                waiting += [*((one, str(inner)) for inner, one in value.items()), *((inner, name) for inner in value)]
            case list() | tuple():
                waiting += [(one, name) for one in value]
            case str():
                yield value, name
            case _:
                pass


def _paths_in(args: dict[str, Any], cwd: str, texts: Sequence[str]) -> Iterator[str]:
    """Yield the paths among the arguments of a call, at any depth; names of fields may be paths, too."""
    for value, name in _strings_in(args):
        if name in texts:
            continue
        path = _file_url(value)
        if name == "path" or (path and _is_path(path, name, cwd)):
            yield path
            if path.startswith("~"):  # Built-in tools take it literally, others may not.
                yield os.path.expanduser(path)


def _is_path(text: str, name: str, cwd: str) -> bool:
    # Before all that a text could be: a tool may normalise a long path, and a directory's name may have a line feed.
    if _PATH_WORDS.intersection(re.findall(r"[a-z]+", re.sub(r"([A-Z])", r" \1", name).lower())):
        return True
    is_prose = len(text) > _MAX_PATH or "\n" in text or "://" in text
    if not is_prose and ("/" in text or text in (".", "..") or text.startswith("~")):
        return True
    return _leads_to_file(text, cwd)


def _leads_to_file(text: str, cwd: str) -> bool:
    """True if ``text``, taken as a path, names a file or, with a slash, a new one in a directory that exists.

    A tool may give it to the kernel as it is, or normalise it first.
    """
    written = os.path.join(cwd, text)
    if "\0" in text or "/" not in text:
        return len(text) <= _MAX_NAME and os.path.lexists(written)
    ways = (written, os.path.normpath(written))
    return any(os.path.lexists(path) or os.path.isdir(os.path.dirname(path)) for path in ways)


def _file_url(text: str) -> str:
    """Return the path in a file URL; any other text as it is."""
    if text[:5].lower() != "file:":
        return text
    from urllib.parse import unquote, urlsplit  # Imported lazily: few paths are URLs.

    try:
        return unquote(urlsplit(text).path)
    except ValueError:
        return text


def _path_subject(path: str, cwd: str) -> PathSubject | Nowhere:
    written = os.path.join(cwd, path)
    try:
        return PathSubject(os.path.realpath(written), os.path.normpath(written), cwd)
    except (ValueError, OSError):  # a NUL, or a lone surrogate
        return Nowhere(path)


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
        if tool == "bash" and pattern.startswith(_SET):
            sets = _shell_commands().COMMAND_SETS
            if pattern.removeprefix(_SET) not in sets:
                known = ", ".join(f"{_SET}{name}" for name in sets)
                raise ConfigError(f"{text!r}: {pattern} is not a set of commands; there are {known}")
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
            case SeveralSubjects(parts=parts):
                return any(self.covers(tool, part) for part in parts)
            case PathSubject(real=real, written=written):
                if tool == "read" and any(_is_below(real, os.path.realpath(place)) for place in self.readable):
                    return False
                return any(_is_in(path, place) for path in (real, written) for place in self.directories)
            case Nowhere():
                return True
            case CommandSubject(text=text, cwd=cwd) if tool != "bash":  # Another tool may take a path by this name.
                named = _path_subject(text, cwd)
                return isinstance(named, PathSubject) and self.covers(tool, named)
            case _:
                return False

    def is_within(self, directory: str) -> bool:
        """True if a private directory is in ``directory``, or the other way round."""
        real = os.path.realpath(directory)
        return any(_is_in(os.path.realpath(one), real) or _is_in(real, one) for one in self.directories)


class Policy(msgspec.Struct, frozen=True):
    """Rules in order; ``otherwise`` applies if none matches. ``private`` returns the paths denied before all rules."""

    rules: tuple[Rule, ...] = ()
    otherwise: Action = "allow"
    private: Callable[[], Private] | None = None

    @staticmethod
    def parse(texts: Sequence[str]) -> Policy:
        """Parse a list of rules. Raise ConfigError."""
        return Policy(tuple(Rule.parse(text) for text in texts))

    def action(self, tool: str, subject: Subject, names: Sequence[PathSubject | Nowhere] = ()) -> Action:
        """Return the action for a call. ``names`` are files that it may create (`possible_names`)."""
        if any(self.is_private(tool, one) for one in (subject, *names)):
            return "deny"
        rule = next((rule for rule in self.rules if self._applies(rule, tool, subject, names)), None)
        action = self.otherwise if rule is None else rule.action
        is_named = rule is not None and ".git" in rule.pattern
        return "ask" if action == "allow" and not is_named and self._changes_git(tool, subject) else action

    def _applies(self, rule: Rule, tool: str, subject: Subject, names: Sequence[PathSubject | Nowhere]) -> bool:
        if not rule.matches(tool, subject):
            return rule.action != "allow" and any(rule.matches(tool, one) for one in names)
        # A vetted command reads whatever is in its directory, so none may see private files there.
        if rule.action == "allow" and rule.pattern.startswith(_SET) and isinstance(subject, CommandSubject):
            return self.private is None or not self.private().is_within(subject.cwd)
        return True

    def _changes_git(self, tool: str, subject: Subject) -> bool:
        """True if a call that may write is on a repository's own files, on which `@git-read` relies."""
        if tool == "read" or not any(rule.pattern == f"{_SET}git-read" for rule in self.rules):
            return False
        parts = subject.parts if isinstance(subject, SeveralSubjects) else (subject,)
        paths = [part.real for part in parts if isinstance(part, PathSubject)]
        return any(".git" in path.lower().split("/") for path in paths)

    def is_private(self, tool: str, subject: Subject) -> bool:
        """True if no rule could allow a call."""
        return self.private is not None and self.private().covers(tool, subject)

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
    return _fits(path, pattern) or _fits(path, f"{pattern.rstrip('/')}/*")


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
