"""Lab scripts: the grammar of scenes, replies and directives."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal

import msgspec

from zot.encoding import UNREADABLE, explain
from zot.errors import ConfigError
from zot.files import FileCache, read_content
from zot.providers.lab import directives as d
from zot.providers.lab.api import LabTool, offers, shell_of
from zot.text import did_you_mean

_TOKEN = re.compile(r"(?:([A-Za-z][\w-]*)=)?(?:('[^']*')|(\"(?:[^\"\\]|\\.)*\")|([\[{])|([^\s'\"]\S*)|(?=\s|$))")
_NESTING = re.compile(r"\"(?:[^\"\\]|\\.)*\"|[\[\]{}]")
_PLACEHOLDER = re.compile(r"\$(?:[1-9]|[a-z]+)")
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|m|)")
_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0}

LiteralText = str | dict[str, Any] | list[Any]

#: Replaces placeholders when a line is checked in advance: valid as text, number, duration and status.
_ANY = "400"
_PLACEHOLDERS = {**{str(group): _ANY for group in range(1, 10)}, "chars": _ANY, "model": _ANY, "shell": _ANY}
_PIPE_SILENCE_S = 5.0
#: A text that no expression names: one that matches it, such as '(.*)', matches everything.
_ARBITRARY = "\ue000"
_CONTENT = {"say", "split", "words", "flood", "help", "think", "redacted", "call", "call-raw", "shell"}


class Word(str):
    """An argument written without quotes."""

    __slots__ = ()


class BadLine(Exception):
    """A line cannot be parsed; the text says why."""


class ScriptLine(msgspec.Struct, frozen=True):
    """A parsed line. Its methods raise BadLine if an argument has the wrong type."""

    number: int
    word: str
    args: tuple[LiteralText, ...] = ()
    options: Mapping[str, LiteralText] = {}

    def filled(self, values: Mapping[str, str]) -> ScriptLine:
        """Return this line with the placeholders in ``values`` replaced; others stay."""
        options = {name: _fill(value, values) for name, value in self.options.items()}
        return ScriptLine(self.number, self.word, tuple(_fill(arg, values) for arg in self.args), options)

    def placeholders(self) -> set[str]:
        """Return the names of its placeholders, without the ``$``."""
        values = [*self.args, *self.options.values()]
        return {name[1:] for value in values for text in _texts_in(value) for name in _PLACEHOLDER.findall(text)}

    def count(self, least: int, most: int) -> None:
        """Check the number of arguments."""
        if not least <= len(self.args) <= most:
            raise BadLine(f"{len(self.args)} arguments")

    def allow(self, *names: str) -> None:
        """Check that no other option is given."""
        for name in self.options:
            if name not in names:
                raise BadLine(f"option {name!r}")

    def text(self, index: int) -> str:
        """Return a text argument, quoted or not."""
        return _text(self.args[index])

    def texts(self) -> tuple[str, ...]:
        """Return all arguments as text; at least one."""
        self.count(1, 1_000_000)
        return tuple(_text(arg) for arg in self.args)

    def integer(self, index: int) -> int:
        """Return a whole-number argument."""
        return _integer(self.args[index])

    def positive(self, index: int) -> int:
        """Return a whole-number argument of at least 1."""
        return _positive(self.args[index])

    def seconds(self, index: int) -> float:
        """Return a duration argument: 20ms, 1.5s, 2m, or a number of seconds."""
        return _seconds(self.args[index])

    def option_integer(self, name: str, default: int) -> int:
        return _integer(self.options[name]) if name in self.options else default

    def option_positive(self, name: str, default: int) -> int:
        return _positive(self.options[name]) if name in self.options else default

    def option_text(self, name: str, default: str) -> str:
        return _text(self.options[name]) if name in self.options else default

    def option_seconds(self, name: str, default: float) -> float:
        return _seconds(self.options[name]) if name in self.options else default


def parse_line(number: int, source: str) -> ScriptLine | None:
    """Parse one line; None if it is blank or a comment. Raise BadLine."""
    tokens: list[LiteralText] = []
    options: dict[str, LiteralText] = {}
    at = _skip_space(source, 0)
    while at < len(source) and source[at] != "#":
        name, value, at = _token(source, at)
        if name is not None and tokens:
            options[name] = value
        else:
            tokens.append(value)
        at = _skip_space(source, at)
    if not tokens:
        return None
    word, *args = tokens
    if not isinstance(word, Word):
        raise BadLine(f"{_shown(word)} where a directive should be")
    return ScriptLine(number, word, tuple(args), options)


def _skip_space(source: str, at: int) -> int:
    while at < len(source) and source[at].isspace():
        at += 1
    return at


def _token(source: str, at: int) -> tuple[str | None, LiteralText, int]:
    """Return the option's name, the value and the end of the token at ``at``."""
    match = _TOKEN.match(source, at)
    if match is None or (match[5] and match[5][0] in "]}"):
        raise BadLine(f"{source[at:]!r}: a string or bracket that does not close or open")
    name, raw, quoted, bracket, bare = match.groups()
    end = match.end()
    if raw is not None:
        value: LiteralText = raw[1:-1]
    elif quoted is not None:
        value = _decode(quoted)
    elif bracket is not None:
        end = _closing(source, match.start(4))
        value = _decode(source[match.start(4) : end])
    elif bare is None:
        value = ""
    else:
        value = Word(bare)
    if end < len(source) and not source[end].isspace():
        raise BadLine(f"{source[end:]!r} right after a value: a space is missing")
    return name, value, end


def _closing(source: str, start: int) -> int:
    """Return the end of the JSON object or array at ``start``."""
    depth = 0
    for match in _NESTING.finditer(source, start):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    raise BadLine(f"{source[start:]!r}: a bracket that does not close")


def _decode(text: str) -> LiteralText:
    try:
        value: LiteralText = msgspec.json.decode(text)
    except UNREADABLE as exc:
        raise BadLine(f"{text}: not JSON: {explain(exc)}") from exc
    return value


def _fill(value: Any, values: Mapping[str, str]) -> Any:
    match value:
        case str():
            kind: Callable[[str], str] = type(value)
            return kind(_PLACEHOLDER.sub(lambda found: values.get(found[0][1:], found[0]), value))
        case list():
            return [_fill(item, values) for item in value]
        case dict():
            return {_fill(name, values): _fill(item, values) for name, item in value.items()}
        case _:
            return value


def _texts_in(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _texts_in(item)
        case dict():
            yield from value
            for item in value.values():
                yield from _texts_in(item)
        case _:
            pass


def _text(value: LiteralText) -> str:
    if not isinstance(value, str):
        raise BadLine(f"{_shown(value)} where text should be")
    return str(value)


def _integer(value: LiteralText) -> int:
    if not (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10):
        raise BadLine(f"{_shown(value)} where a number should be")
    return int(value)


def _positive(value: LiteralText) -> int:
    number = _integer(value)
    if number < 1:
        raise BadLine(f"{number} where a number of at least 1 should be")
    return number


def _seconds(value: LiteralText) -> float:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise BadLine(f"{_shown(value)} where a duration such as 20ms or 1.5s should be")
    return float(match[1]) * _SECONDS[match[2]]


def _shown(value: LiteralText) -> str:
    return msgspec.json.encode(str(value) if isinstance(value, str) else value).decode()


def build(line: ScriptLine) -> d.Directive:
    """Return the directive of a line. Raise BadLine with the correct form."""
    known = FORMS.get(line.word)
    if known is None:
        names = sorted([*FORMS, "scene"])
        near = did_you_mean(line.word, names)
        raise BadLine(f"unknown directive {line.word!r}; known: {', '.join(names)}, ---{near}")
    form, builder = known
    try:
        return builder(line)
    except BadLine as exc:
        raise BadLine(f"found {exc}; expected: {form}") from exc


def _plain(kind: Callable[[], d.Directive]) -> Callable[[ScriptLine], d.Directive]:
    """Return the builder of a directive without arguments."""

    def builder(line: ScriptLine) -> d.Directive:
        line.count(0, 0)
        line.allow()
        return kind()

    return builder


def _texts(kind: Callable[[tuple[str, ...]], d.Directive]) -> Callable[[ScriptLine], d.Directive]:
    def builder(line: ScriptLine) -> d.Directive:
        line.allow()
        return kind(line.texts())

    return builder


def _one(
    kind: Callable[[Any], d.Directive], read: Callable[[ScriptLine, int], object]
) -> Callable[[ScriptLine], d.Directive]:
    def builder(line: ScriptLine) -> d.Directive:
        line.count(1, 1)
        line.allow()
        return kind(read(line, 0))

    return builder


def _split(line: ScriptLine) -> d.Split:
    line.count(2, 2)
    line.allow()
    return d.Split(line.positive(0), line.text(1))


def _call(line: ScriptLine) -> d.CallDirective:
    line.count(1, 2)
    arguments = line.args[1] if len(line.args) == 2 else {}
    if isinstance(arguments, str):
        raise BadLine(f"{arguments!r} where a JSON object should be")
    return _called(line, msgspec.json.encode(arguments).decode())


def _call_raw(line: ScriptLine) -> d.CallDirective:
    line.count(2, 2)
    return _called(line, line.text(1))


def _called(line: ScriptLine, arguments: str) -> d.CallDirective:
    return d.CallDirective(line.text(0), arguments, *_manner(line))


def _shell(line: ScriptLine) -> d.Shell:
    line.count(1, 1)
    return d.Shell(line.text(0), *_manner(line))


def _manner(line: ScriptLine) -> tuple[str | None, int]:
    """Return a call's id, and the number of deltas for its arguments."""
    line.allow("id", "chunks")
    id_ = line.option_text("id", "") if "id" in line.options else None
    return id_, line.option_positive("chunks", 1)


def _usage(line: ScriptLine) -> d.UsageDirective:
    line.count(0, 0)
    names = ("input", "output", "cache_read", "cache_write")
    line.allow(*names)
    return d.UsageDirective(**{name: line.option_integer(name, 0) for name in names if name in line.options})


def _ping(line: ScriptLine) -> d.PingDirective:
    line.count(0, 1)
    line.allow()
    return d.PingDirective(line.positive(0) if line.args else 1)


def _repeat(line: ScriptLine) -> d.Repeat:
    line.count(0, 1)
    line.allow()
    return d.Repeat(line.integer(0) if line.args else None)


def _status(line: ScriptLine) -> d.StatusDirective:
    line.count(1, 2)
    code = None if line.args[0] == "overloaded" else line.integer(0)
    if code is not None and not 300 <= code <= 599:
        raise BadLine(f"status {code}, which is not a failure")
    headers = {name.lower(): line.option_text(name, "") for name in line.options}
    if len(line.args) == 1:
        return d.StatusDirective(code, headers)
    body = line.args[1]
    return d.StatusDirective(code, headers, body if isinstance(body, str) else msgspec.json.encode(body).decode())


def _stall(line: ScriptLine) -> d.Stall:
    line.count(0, 1)
    if not line.args:
        line.allow()
        return d.Stall()
    line.allow("every")
    if line.args[0] != "pings":
        raise BadLine(f"{line.args[0]!r}")
    every_s = line.option_seconds("every", 1.0)
    if not every_s:
        raise BadLine("every=0, which leaves no time for anything else")
    return d.Stall(every_s)


def _cut(line: ScriptLine) -> d.Cut:
    line.count(0, 1)
    line.allow()
    match line.args:
        case ():
            return d.Cut()
        case ("utf8",):
            return d.Cut("utf8")
        case ("json",):
            return d.Cut("json")
        case _:
            raise BadLine(f"{line.args[0]!r}")


def _error(line: ScriptLine) -> d.ErrorDirective:
    line.count(1, 2)
    line.allow()
    return d.ErrorDirective(line.text(0), line.text(1) if len(line.args) == 2 else "The script says so.")


#: Word to its form and its builder.
FORMS: Mapping[str, tuple[str, Callable[[ScriptLine], d.Directive]]] = {
    "say": ('say "text" ...', _texts(d.Say)),
    "split": ('split COUNT "text"', _split),
    "words": ("words COUNT", _one(d.Words, ScriptLine.integer)),
    "flood": ("flood COUNT", _one(d.Flood, ScriptLine.integer)),
    "help": ("help", _plain(d.Help)),
    "think": ('think "text" ...', _texts(d.Think)),
    "redacted": ('redacted "sealed"', _one(d.Redacted, ScriptLine.text)),
    "call": ('call TOOL {"argument": "value"} [id=ID] [chunks=COUNT]', _call),
    "call-raw": ('call-raw TOOL "text" [id=ID] [chunks=COUNT]', _call_raw),
    "shell": ('shell "command" [id=ID] [chunks=COUNT]', _shell),
    "usage": ("usage [input=N] [output=N] [cache_read=N] [cache_write=N]", _usage),
    "usage-twice": ("usage-twice", _plain(d.UsageTwice)),
    "stop": ("stop end_turn|tool_use|length|refusal|pause_turn", _one(d.StopDirective, ScriptLine.text)),
    "pace": ("pace DURATION", _one(d.PaceDirective, ScriptLine.seconds)),
    "wait": ("wait DURATION", _one(d.Wait, ScriptLine.seconds)),
    "chunk": ("chunk BYTES", _one(d.ChunkDirective, ScriptLine.integer)),
    "ping": ("ping [COUNT]", _ping),
    "raw": ('raw "bytes"', _one(d.Raw, ScriptLine.text)),
    "repeat": ("repeat [TIMES]", _repeat),
    "status": ("status 300..599|overloaded [header=value ...] [BODY]", _status),
    "refuse": ("refuse", _plain(d.Refuse)),
    "stall": ("stall [pings [every=DURATION]]", _stall),
    "cut": ("cut [utf8|json]", _cut),
    "no-end": ("no-end", _plain(d.NoEnd)),
    "error": ('error CODE ["message"]', _error),
    "script": ('script "lines"', _one(d.Play, ScriptLine.text)),
}


class ScriptedReply(msgspec.Struct, frozen=True):
    """The reply to one request. ``fails``: a client has to retry to get an answer."""

    script: str
    lines: tuple[ScriptLine, ...]
    fails: bool

    def directives(self, values: Mapping[str, str]) -> list[d.Directive]:
        """Return the directives with placeholders filled in. Raise ConfigError if one is invalid."""
        return [_built(self.script, line.filled(values)) for line in self.lines]

    def times(self, values: Mapping[str, str]) -> int | None:
        """Return how often it is played in a row; None for forever."""
        for line in self.lines:
            if line.word == "repeat":
                part = _built(self.script, line.filled(values))
                return part.times if isinstance(part, d.Repeat) else 1
        return 1


class Scene(msgspec.Struct, frozen=True):
    """Replies for matching prompts: by first word, by regular expression, by the tools of the request.

    ``number`` is its first line.
    """

    replies: tuple[ScriptedReply, ...]
    number: int = 0
    word: str | None = None
    pattern: str | None = None
    tools: Literal["any", "none", "offered"] = "any"
    help: str = ""

    @property
    def title(self) -> str:
        """The word or expression that selects it; "any prompt" for a catch-all without one."""
        return self.word or self.pattern or "any prompt"

    @property
    def specific(self) -> bool:
        """False for a catch-all: a scene without a word whose expression, if any, matches any text."""
        if self.word is not None:
            return True
        return self.pattern is not None and re.search(self.pattern, _ARBITRARY, re.DOTALL) is None

    def match(self, prompt: str, *, tools: Sequence[LabTool]) -> dict[str, str] | None:
        """Return the values of the placeholders if this scene answers ``prompt``, else None."""
        if (self.tools == "none" and tools) or (self.tools == "offered" and not self._offered(tools)):
            return None
        found = self._groups(prompt)
        if found is None:
            return None
        return {str(number): group or "" for number, group in enumerate(found, 1)}

    def _offered(self, tools: Sequence[LabTool]) -> bool:
        """True if the request offers every tool that this scene calls, with its arguments."""
        lines = [line for reply in self.replies for line in reply.lines]
        calls = [line for line in lines if line.word in ("call", "call-raw")]
        if any(line.word == "shell" for line in lines) and shell_of(tools) is None:
            return False
        return all(offers(tools, str(line.args[0]), _names(line.args[1:])) for line in calls)

    def _groups(self, prompt: str) -> tuple[str | None, ...] | None:
        if self.word is None:
            found = re.search(self.pattern or "", prompt, re.DOTALL)
        else:
            # The word first: only the selected scene's expression is compiled.
            first, *rest = prompt.split(None, 1) or [""]
            if first != self.word:
                return None
            found = re.fullmatch(self.pattern if self.pattern is not None else ".*", "".join(rest), re.DOTALL)
        return None if found is None else found.groups()


class Script(msgspec.Struct, frozen=True):
    """Scenes in the order of matching. A ``linear`` script has one, played in sequence without matching."""

    name: str
    scenes: tuple[Scene, ...]
    linear: bool

    @staticmethod
    def parse(text: str, name: str = "script") -> Script:
        """Parse a script. Raise ConfigError with name, line number and the correct form."""
        script = _parse(text, name)
        _check(script)
        return script

    @staticmethod
    def load(path: str) -> Script:
        """Read a script from a file, again only if that has changed. Raise ConfigError."""
        # A pipe can be read only once.
        return _cache.read(path) if os.path.isfile(path) else _load(path)

    def help(self) -> str:
        """Return the help of its scenes, one line each."""
        return "\n".join(scene.help for scene in self.scenes if scene.help)


def _load(path: str) -> Script:
    return Script.parse(_text_of(path), os.path.basename(path))


_cache = FileCache(_load)


@cache
def demo() -> Script:
    """Return the built-in script: a demonstration that uses the tools, and scenes that begin with ``!``."""
    # Not checked at run time: a test does that. Start-up budget.
    return _parse(_text_of(os.path.join(os.path.dirname(__file__), "demo.lab")), "demo.lab")


def _text_of(path: str) -> str:
    try:
        # It may be a pipe, as in `--script <(make-script)`.
        return read_content(path, pipe_silence_s=_PIPE_SILENCE_S).decode("utf-8-sig")
    except OSError as problem:
        raise ConfigError(f"cannot read the lab script {path}: {problem.strerror or problem}") from problem
    except UnicodeDecodeError as problem:
        raise ConfigError(f"cannot read the lab script {path}: not UTF-8, at byte {problem.start}") from problem


def _parse(text: str, name: str) -> Script:
    """Split the lines into scenes at ``scene`` and the scenes into replies at ``---``."""
    sections: list[tuple[ScriptLine | None, list[list[ScriptLine]]]] = [(None, [[]])]
    for line in _lines(text, name):
        if line.word == "scene":
            sections.append((line, [[]]))
        elif line.word != "---":
            sections[-1][1][-1].append(line)
        elif line.args or line.options:
            raise _script_error(name, line, "--- stands alone on its line")
        else:
            sections[-1][1].append([])
    stray = [line for lines in sections[0][1] for line in lines]
    linear = len(sections) == 1
    if stray and not linear:
        raise _script_error(name, stray[0], f"{stray[0].word} before the first scene")
    return Script(name, tuple(_scene(name, *section) for section in sections[0 if linear else 1 :]), linear)


def _lines(text: str, name: str) -> Iterator[ScriptLine]:
    for number, source in enumerate(text.split("\n"), 1):
        try:
            line = parse_line(number, source)
        except BadLine as exc:
            raise ConfigError(f"{name}:{number}: {exc}") from exc
        if line is not None:
            yield line


def _scene(name: str, head: ScriptLine | None, replies: list[list[ScriptLine]]) -> Scene:
    played = tuple(ScriptedReply(name, tuple(lines), _fails(lines)) for lines in replies if lines)
    if not played:
        raise (
            ConfigError(f"{name}: there is no reply in it")
            if head is None
            else _script_error(name, head, "no reply follows")
        )
    if head is None:
        return Scene(played)
    try:
        return _titled(head, played)
    except BadLine as exc:
        form = "scene [WORD] ['regular expression'] [tools=none|offered] [help=\"text\"]"
        raise _script_error(name, head, f"found {exc}; expected: {form}") from exc


def _titled(head: ScriptLine, replies: tuple[ScriptedReply, ...]) -> Scene:
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


def _fails(lines: list[ScriptLine]) -> bool:
    """True if no client accepts the reply as an answer, so the next one answers the same request."""
    words = {line.word for line in lines}
    if words & {"status", "refuse", "stall", "cut", "error"}:
        return True
    return bool(words & {"raw", "no-end"}) and not words & _CONTENT


def _check(script: Script) -> None:
    """Raise ConfigError for errors that would otherwise show only during play."""
    for scene in script.scenes:
        try:
            groups = re.compile(scene.pattern or "").groups
        except re.error as exc:
            message = f"{scene.pattern!r} is not a regular expression: {exc}"
            raise ConfigError(f"{script.name}:{scene.number}: {message}") from exc
        lines = [line for reply in scene.replies for line in reply.lines]
        for line in lines:
            if line.word == "script" and (script.linear or len(lines) > 1):
                raise _script_error(script.name, line, "script can only be a scene's only line")
            if not script.linear:
                _check_groups(script.name, line, groups)
        for reply in scene.replies:
            _check_reply(reply, last=reply is scene.replies[-1])


def _check_groups(name: str, line: ScriptLine, groups: int) -> None:
    for number in sorted(filter(str.isdigit, line.placeholders())):
        if int(number) > groups:
            raise _script_error(
                name, line, f"${number} stands for a group that the expression of this scene does not have"
            )


def _check_reply(reply: ScriptedReply, *, last: bool) -> None:
    ended = ""
    for line, part in zip(reply.lines, reply.directives(_PLACEHOLDERS), strict=True):
        if ended and not isinstance(part, d.Remark):
            raise _script_error(reply.script, line, f"{line.word} cannot follow {ended}, which ends the reply")
        if isinstance(part, d.Ending):
            ended = line.word
        if isinstance(part, d.Repeat) and part.times is None and not last:
            raise _script_error(reply.script, line, "repeat needs a number: only the last reply can be played for ever")
        # Only as a literal in the script: a prompt may ask for no failures.
        if isinstance(part, d.Repeat) and part.times == 0:
            raise _script_error(reply.script, line, "repeat 0: the reply would never be played")


def _built(name: str, line: ScriptLine) -> d.Directive:
    try:
        return build(line)
    except BadLine as exc:
        raise _script_error(name, line, str(exc)) from exc


def _script_error(name: str, line: ScriptLine, message: str) -> ConfigError:
    return ConfigError(f"{name}:{line.number}: {message}")
