"""A lab script: scenes, each a sequence of replies. See docs/lab.md for the format."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Literal

import msgspec

from zot.errors import ConfigError
from zot.files import content
from zot.providers.lab import directives as d
from zot.providers.lab.api import Tool
from zot.providers.lab.forms import build
from zot.providers.lab.line import BadLine, Line, Word, parse_line
from zot.providers.lab.shell import offers, shell_of

#: Stands for any placeholder when a line is checked before it plays: it reads as text, number, duration and status.
_ANY = "400"
_PLACEHOLDERS = {**{str(group): _ANY for group in range(1, 10)}, "chars": _ANY, "model": _ANY, "shell": _ANY}
_PIPE_SILENCE_S = 5.0
#: A text that no expression names: one that matches it, such as '(.*)', matches everything.
_ARBITRARY = "\ue000"
_CONTENT = {"say", "split", "words", "flood", "help", "think", "redacted", "call", "call-raw", "shell"}


class Reply(msgspec.Struct, frozen=True):
    """What answers one request. ``fails`` when a client has to ask again to get an answer."""

    script: str
    lines: tuple[Line, ...]
    fails: bool

    def directives(self, values: Mapping[str, str]) -> list[d.Directive]:
        """Return what to do, with the placeholders filled in. Raise ConfigError if that makes no sense."""
        return [_built(self.script, line.filled(values)) for line in self.lines]

    def times(self, values: Mapping[str, str]) -> int | None:
        """Return how often it is played in a row; None for ever."""
        for line in self.lines:
            if line.word == "repeat":
                part = _built(self.script, line.filled(values))
                return part.times if isinstance(part, d.Repeat) else 1
        return 1


class Scene(msgspec.Struct, frozen=True):
    """Replies for the prompts that match: by first word, by regular expression, by the tools of the request.

    ``number`` is the line it begins on.
    """

    replies: tuple[Reply, ...]
    number: int = 0
    word: str | None = None
    pattern: str | None = None
    tools: Literal["any", "none", "offered"] = "any"
    help: str = ""

    @property
    def title(self) -> str:
        """The word or expression that it is chosen by; "any prompt" for a catch-all without one."""
        return self.word or self.pattern or "any prompt"

    @property
    def specific(self) -> bool:
        """False for a catch-all: a scene without a word whose expression, if it has one, matches any text."""
        if self.word is not None:
            return True
        return self.pattern is not None and re.search(self.pattern, _ARBITRARY, re.DOTALL) is None

    def match(self, prompt: str, *, tools: Sequence[Tool]) -> dict[str, str] | None:
        """Return the values of the placeholders if this scene answers ``prompt``, else None."""
        if (self.tools == "none" and tools) or (self.tools == "offered" and not self._offered(tools)):
            return None
        found = self._groups(prompt)
        if found is None:
            return None
        return {str(number): group or "" for number, group in enumerate(found, 1)}

    def _offered(self, tools: Sequence[Tool]) -> bool:
        """True if the request offers every tool that this scene calls, with the arguments that it gives."""
        lines = [line for reply in self.replies for line in reply.lines]
        calls = [line for line in lines if line.word in ("call", "call-raw")]
        if any(line.word == "shell" for line in lines) and shell_of(tools) is None:
            return False
        return all(offers(tools, str(line.args[0]), _names(line.args[1:])) for line in calls)

    def _groups(self, prompt: str) -> tuple[str | None, ...] | None:
        if self.word is None:
            found = re.search(self.pattern or "", prompt, re.DOTALL)
        else:
            # Compared before any expression is compiled: a script of many scenes costs only the one that plays.
            first, *rest = prompt.split(None, 1) or [""]
            if first != self.word:
                return None
            found = re.fullmatch(self.pattern if self.pattern is not None else ".*", "".join(rest), re.DOTALL)
        return None if found is None else found.groups()


class Script(msgspec.Struct, frozen=True):
    """Scenes in the order in which they are tried. A ``linear`` script has one, which is not chosen but played on."""

    name: str
    scenes: tuple[Scene, ...]
    linear: bool

    @staticmethod
    def parse(text: str, name: str = "script") -> Script:
        """Read a script. Raise ConfigError with name, line number and what was expected."""
        script = _parse(text, name)
        _check(script)
        return script

    @staticmethod
    def load(path: str) -> Script:
        """Read a script from a file. Raise ConfigError."""
        return Script.parse(_text_of(path), os.path.basename(path))

    def help(self) -> str:
        """Return the help of its scenes, a line each."""
        return "\n".join(scene.help for scene in self.scenes if scene.help)


@cache
def demo() -> Script:
    """Return the built-in script: a demonstration that uses the tools, and scenes that begin with ``!``."""
    # Not checked line by line: it is ours, a test does that, and a session may be waiting for its first word.
    return _parse(_text_of(os.path.join(os.path.dirname(__file__), "demo.lab")), "demo.lab")


def _text_of(path: str) -> str:
    try:
        # It may be made by a program, as in `--script <(make-script)`.
        return content(path, pipe_silence_s=_PIPE_SILENCE_S).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read the lab script {path}: {exc}") from exc


def _parse(text: str, name: str) -> Script:
    """Cut the lines into scenes at ``scene`` and the scenes into replies at ``---``."""
    sections: list[tuple[Line | None, list[list[Line]]]] = [(None, [[]])]
    for line in _lines(text, name):
        if line.word == "scene":
            sections.append((line, [[]]))
        elif line.word != "---":
            sections[-1][1][-1].append(line)
        elif line.args or line.options:
            raise _error(name, line, "--- stands alone on its line")
        else:
            sections[-1][1].append([])
    stray = [line for lines in sections[0][1] for line in lines]
    linear = len(sections) == 1
    if stray and not linear:
        raise _error(name, stray[0], f"{stray[0].word} before the first scene")
    return Script(name, tuple(_scene(name, *section) for section in sections[0 if linear else 1 :]), linear)


def _lines(text: str, name: str) -> Iterator[Line]:
    for number, source in enumerate(text.split("\n"), 1):
        try:
            line = parse_line(number, source)
        except BadLine as exc:
            raise ConfigError(f"{name}:{number}: {exc}") from exc
        if line is not None:
            yield line


def _scene(name: str, head: Line | None, replies: list[list[Line]]) -> Scene:
    played = tuple(Reply(name, tuple(lines), _fails(lines)) for lines in replies if lines)
    if not played:
        raise (
            ConfigError(f"{name}: there is no reply in it") if head is None else _error(name, head, "no reply follows")
        )
    if head is None:
        return Scene(played)
    try:
        return _titled(head, played)
    except BadLine as exc:
        form = "scene [WORD] ['regular expression'] [tools=none|offered] [help=\"text\"]"
        raise _error(name, head, f"found {exc}; expected: {form}") from exc


def _titled(head: Line, replies: tuple[Reply, ...]) -> Scene:
    head.allow("tools", "help")
    match head.args:
        case ():
            word, pattern = None, None
        case (Word() as first,):
            word, pattern = str(first), None
        case (str(expression),):
            word, pattern = None, expression
        case (Word() as first, str(expression)) if not isinstance(expression, Word):
            word, pattern = str(first), expression
        case _:
            raise BadLine("arguments in another order")
    match head.option_text("tools", "any"):
        case "any" | "none" | "offered" as tools:
            return Scene(replies, head.number, word, pattern, tools, head.option_text("help", ""))
        case other:
            raise BadLine(f"tools={other}")


def _names(arguments: Sequence[object]) -> list[str]:
    return [name for values in arguments if isinstance(values, dict) for name in values]


def _fails(lines: list[Line]) -> bool:
    """True if no client can take the reply for an answer, so that the next one answers the same request."""
    words = {line.word for line in lines}
    if words & {"status", "refuse", "stall", "cut", "error"}:
        return True
    return bool(words & {"raw", "no-end"}) and not words & _CONTENT


def _check(script: Script) -> None:
    """Raise ConfigError where something could go wrong only when it is played."""
    for scene in script.scenes:
        try:
            groups = re.compile(scene.pattern or "").groups
        except re.error as exc:
            message = f"{scene.pattern!r} is not a regular expression: {exc}"
            raise ConfigError(f"{script.name}:{scene.number}: {message}") from exc
        lines = [line for reply in scene.replies for line in reply.lines]
        for line in lines:
            if line.word == "script" and (script.linear or len(lines) > 1):
                raise _error(script.name, line, "script can only be a scene's only line")
            if not script.linear:
                _check_groups(script.name, line, groups)
        for reply in scene.replies:
            _check_reply(reply, last=reply is scene.replies[-1])


def _check_groups(name: str, line: Line, groups: int) -> None:
    for number in sorted(filter(str.isdigit, line.placeholders())):
        if int(number) > groups:
            raise _error(name, line, f"${number} stands for a group that the expression of this scene does not have")


def _check_reply(reply: Reply, *, last: bool) -> None:
    ended = ""
    for line, part in zip(reply.lines, reply.directives(_PLACEHOLDERS), strict=True):
        if ended and not isinstance(part, d.Remark):
            raise _error(reply.script, line, f"{line.word} cannot follow {ended}, which ends the reply")
        if isinstance(part, d.Ending):
            ended = line.word
        if isinstance(part, d.Repeat) and part.times is None and not last:
            raise _error(reply.script, line, "repeat needs a number: only the last reply can be played for ever")
        # Only as a number in the script: a prompt may well ask for no failures.
        if isinstance(part, d.Repeat) and part.times == 0:
            raise _error(reply.script, line, "repeat 0: the reply would never be played")


def _built(name: str, line: Line) -> d.Directive:
    try:
        return build(line)
    except BadLine as exc:
        raise _error(name, line, str(exc)) from exc


def _error(name: str, line: Line, message: str) -> ConfigError:
    return ConfigError(f"{name}:{line.number}: {message}")
