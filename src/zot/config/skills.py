"""Skills: SKILL.md files, discovered, parsed and listed for the model."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from zot.errors import ConfigError
from zot.files import open_beneath
from zot.text import shell_word

FILE_NAME = "SKILL.md"
MAX_SKILL_BYTES = 256 * 1024
MAX_DESCRIPTION_CHARACTERS = 1024

_BUILT_IN = os.path.join(os.path.dirname(__file__), "builtin_skills")
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_KEY = r"([A-Za-z][\w-]*)\s*:(?:\s+(.*))?"
# Strings, compiled on first use: built-in skills do not need them. Start-up budget.
#: A tool's name, with an optional pattern in parentheses.
_TOOL = r"[^\s,()\[\]]+(?:\([^)]*\))?"
#: YAML's mark of a literal or folded block.
_BLOCK = r"[|>](?:[+-]?[1-9]?|[1-9][+-])"
#: A value, quoted or not, and the comment after it.
_COMMENT = r"""^("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^"'].*?)\s+#.*"""
_ESCAPES = {"n": "\n", "t": "\t"}


#: Decides about a directory and the content of the skill's file in it.
IsTrusted: TypeAlias = Callable[[str, bytes], bool]


class SkillFile(msgspec.Struct, frozen=True):
    """One skill. ``directory`` has the files it refers to; None for a built-in one."""

    name: str
    description: str
    body: str
    directory: str | None = None
    allowed_tools: tuple[str, ...] = ()


class Found(msgspec.Struct, frozen=True):
    """Discovered skills, highest precedence first; untrusted directories; and one line for each broken skill."""

    skills: tuple[SkillFile, ...]
    untrusted: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def discover(*, cwd: str, home: str | None, explicit: Sequence[str] = (), is_trusted: IsTrusted) -> Found:
    """Find skills: those the user named, then the project's in ``cwd``, then those of ``home``, then built-in ones.

    The first of a name wins. A project's skill is used only if ``is_trusted`` accepts its directory and the content
    of its file, which is read once: the bytes that are verified are those that are used. Raise ConfigError if a skill
    the user named is broken; other broken ones are only reported.
    """
    found = [load(directory) for directory in explicit]
    untrusted: list[str] = []
    problems: list[str] = []
    project = _directories(os.path.join(cwd, ".zot", "skills"), problems)
    of_home = _directories(os.path.join(home, "skills"), problems) if home else []
    for directory in [*project, *of_home]:
        try:
            content = read(directory)
            if directory in of_home or is_trusted(directory, content):
                found.append(_skill(content, directory))
            else:
                untrusted.append(directory)
        except ConfigError as problem:
            problems.append(str(problem))
    found += [
        msgspec.structs.replace(load(directory), directory=None) for directory in _directories(_BUILT_IN, problems)
    ]
    return Found(tuple(_first_of_each_name(found)), tuple(untrusted), tuple(problems))


def load(directory: str) -> SkillFile:
    """Return the skill in ``directory``. Raise ConfigError that names the file and line."""
    return _skill(read(directory), directory)


def read(directory: str) -> bytes:
    """Return the content of the skill's file in ``directory``. Raise ConfigError."""
    path = os.path.join(os.path.abspath(directory), FILE_NAME)
    try:
        # A skill of a clone may be a link to a key: those that lead out of its directory are not followed.
        with open(open_beneath(os.path.dirname(path), FILE_NAME), "rb") as file:
            data = file.read(MAX_SKILL_BYTES + 1)
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None
    if len(data) > MAX_SKILL_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_SKILL_BYTES} bytes")
    return data


def _skill(data: bytes, directory: str) -> SkillFile:
    path = os.path.join(os.path.abspath(directory), FILE_NAME)
    try:
        text = data.decode()
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8") from None
    return msgspec.structs.replace(parse(text, path), directory=os.path.dirname(path))


def parse(text: str, path: str) -> SkillFile:
    """Parse a skill. Raise ConfigError that names ``path`` and the line."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != "---":
        raise ConfigError(f"{path}:1: a skill begins with a line of three dashes")
    end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        raise ConfigError(f"{path}:{len(lines)}: the line of three dashes that ends the head is missing")
    fields = _fields(lines[1:end], path)
    name, description = (_required(fields, key, path) for key in ("name", "description"))
    if not re.fullmatch(_NAME, name):
        raise ConfigError(f"{path}:{fields['name'].line}: {name!r} is not a name of letters, digits, '.', '_' and '-'")
    tools = fields["allowed-tools"].items() if "allowed-tools" in fields else ()
    return SkillFile(name, description, "\n".join(lines[end + 1 :]).strip("\n"), allowed_tools=tuple(tools))


def manifest(skills: Sequence[SkillFile]) -> str:
    """Return the list of ``skills`` for the system prompt; "" if there are none."""
    if not skills:
        return ""
    head = "Skills are instructions for special tasks. Load the right one with the skill tool before you begin."
    return "\n".join([head, *(_manifest_line(skill) for skill in skills)])


def trust_hint(directory: str) -> str:
    """Return the command that trusts a skill, or advice if its name is not safe to copy."""
    if not directory.isprintable():
        return "its name has characters that cannot be seen; rename it before you trust it"
    return f"to use it: zot skills trust {shell_word(directory)}"


def _manifest_line(skill: SkillFile) -> str:
    description = " ".join(skill.description.split())
    if len(description) > MAX_DESCRIPTION_CHARACTERS:
        description = f"{description[:MAX_DESCRIPTION_CHARACTERS]}..."
    return f"- {skill.name} [{skill.directory or 'builtin'}]: {description}"


def _directories(parent: str, problems: list[str]) -> list[str]:
    """Return the directories in ``parent`` that contain a skill, sorted. Add an unreadable parent to ``problems``."""
    try:
        names = sorted(os.listdir(parent))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as problem:
        problems.append(f"{parent}: {problem.strerror}")
        return []
    return [path for name in names if os.path.isfile(os.path.join(path := os.path.join(parent, name), FILE_NAME))]


def _first_of_each_name(skills: Iterable[SkillFile]) -> Iterator[SkillFile]:
    names = set()
    for skill in skills:
        if skill.name not in names:
            names.add(skill.name)
            yield skill


class _Field(msgspec.Struct):
    """The value of one key: the rest of its line, and the indented lines below."""

    line: int
    value: str
    more: list[str]

    @property
    def is_block(self) -> bool:
        """Return the value as text: plain, quoted, or folded over several lines."""
        return self.value.startswith(("|", ">")) and re.fullmatch(_BLOCK, self.value) is not None

    def text(self) -> str:
        """Return a text: plain, quoted, or folded over several lines."""
        if self.is_block:
            return ("\n" if self.value.startswith("|") else " ").join(self.more)
        return " ".join(part for part in (_unquoted(self.value), *self.more) if part)

    def items(self) -> list[str]:
        """Return the value as a list: ``[a, b]``, separated by commas or blanks, or one item a line; quoted or not."""
        found = re.findall(_TOOL, " ".join([self.value, *(part.removeprefix("- ") for part in self.more)]))
        return [item for item in (one.strip("\"'") for one in found) if item]


def _fields(lines: Sequence[str], path: str) -> dict[str, _Field]:
    """Parse lines of ``key: value``; an indented line, or one with a dash, belongs to the key above it."""
    fields: dict[str, _Field] = {}
    last = None
    for number, line in enumerate(lines, 2):
        is_text = last is not None and last.is_block and line.startswith((" ", "\t"))
        if not line.strip() or (line.lstrip().startswith("#") and not is_text):
            continue
        if line.startswith((" ", "\t", "- ")) and last is not None:
            last.more.append(line.strip())
            continue
        match = re.fullmatch(_KEY, line.rstrip())
        if match is None:
            raise ConfigError(f"{path}:{number}: expected `key: value`, not {line.strip()[:80]!r}")
        if match[1] in fields:
            raise ConfigError(f"{path}:{number}: {match[1]!r} stands here a second time")
        last = fields[match[1]] = _Field(number, _uncommented(match[2] or ""), [])
    return fields


def _uncommented(value: str) -> str:
    return re.sub(_COMMENT, r"\1", value) if "#" in value else value


def _required(fields: dict[str, _Field], key: str, path: str) -> str:
    text = fields[key].text() if key in fields else ""
    if not text:
        raise ConfigError(f"{path}:{fields[key].line if key in fields else 1}: {key!r} is missing")
    return text


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'")
    if len(value) > 1 and value[0] == value[-1] == '"':
        return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), value[1:-1])
    return value
