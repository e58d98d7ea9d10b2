"""How each directive is written, and what reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from zot.providers.lab import directives as d
from zot.providers.lab.line import BadLine, Line


def build(line: Line) -> d.Directive:
    """Return the directive that a line spells. Raise BadLine, saying how it is written."""
    known = FORMS.get(line.word)
    if known is None:
        raise BadLine(f"there is no directive {line.word!r}; there are: {', '.join(sorted([*FORMS, 'scene']))}, ---")
    form, builder = known
    try:
        return builder(line)
    except BadLine as exc:
        raise BadLine(f"found {exc}; expected: {form}") from exc


def _plain(kind: Callable[[], d.Directive]) -> Callable[[Line], d.Directive]:
    """Return the builder of a directive that takes no arguments."""

    def builder(line: Line) -> d.Directive:
        line.count(0, 0)
        line.allow()
        return kind()

    return builder


def _texts(kind: Callable[[tuple[str, ...]], d.Directive]) -> Callable[[Line], d.Directive]:
    def builder(line: Line) -> d.Directive:
        line.allow()
        return kind(line.texts())

    return builder


def _one(kind: Callable[[Any], d.Directive], read: Callable[[Line, int], object]) -> Callable[[Line], d.Directive]:
    def builder(line: Line) -> d.Directive:
        line.count(1, 1)
        line.allow()
        return kind(read(line, 0))

    return builder


def _split(line: Line) -> d.Split:
    line.count(2, 2)
    line.allow()
    return d.Split(line.positive(0), line.text(1))


def _call(line: Line) -> d.Call:
    line.count(1, 2)
    arguments = line.args[1] if len(line.args) == 2 else {}
    if isinstance(arguments, str):
        raise BadLine(f"{arguments!r} where a JSON object should be")
    return _called(line, msgspec.json.encode(arguments).decode())


def _call_raw(line: Line) -> d.Call:
    line.count(2, 2)
    return _called(line, line.text(1))


def _called(line: Line, arguments: str) -> d.Call:
    return d.Call(line.text(0), arguments, *_manner(line))


def _shell(line: Line) -> d.Shell:
    line.count(1, 1)
    return d.Shell(line.text(0), *_manner(line))


def _manner(line: Line) -> tuple[str | None, int]:
    """Return the id of a call, and in how many deltas its arguments travel."""
    line.allow("id", "chunks")
    id_ = line.option_text("id", "") if "id" in line.options else None
    return id_, line.option_positive("chunks", 1)


def _usage(line: Line) -> d.Usage:
    line.count(0, 0)
    names = ("input", "output", "cache_read", "cache_write")
    line.allow(*names)
    return d.Usage(**{name: line.option_integer(name, 0) for name in names if name in line.options})


def _ping(line: Line) -> d.Ping:
    line.count(0, 1)
    line.allow()
    return d.Ping(line.positive(0) if line.args else 1)


def _repeat(line: Line) -> d.Repeat:
    line.count(0, 1)
    line.allow()
    return d.Repeat(line.integer(0) if line.args else None)


def _status(line: Line) -> d.Status:
    line.count(1, 2)
    code = None if line.args[0] == "overloaded" else line.integer(0)
    if code is not None and not 300 <= code <= 599:
        raise BadLine(f"status {code}, which is no failure")
    headers = {name.lower(): line.option_text(name, "") for name in line.options}
    if len(line.args) == 1:
        return d.Status(code, headers)
    body = line.args[1]
    return d.Status(code, headers, body if isinstance(body, str) else msgspec.json.encode(body).decode())


def _stall(line: Line) -> d.Stall:
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


def _cut(line: Line) -> d.Cut:
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


def _error(line: Line) -> d.Error:
    line.count(1, 2)
    line.allow()
    return d.Error(line.text(0), line.text(1) if len(line.args) == 2 else "The script says so.")


#: word -> how it is written, and what builds it
FORMS: Mapping[str, tuple[str, Callable[[Line], d.Directive]]] = {
    "say": ('say "text" ...', _texts(d.Say)),
    "split": ('split COUNT "text"', _split),
    "words": ("words COUNT", _one(d.Words, Line.integer)),
    "flood": ("flood COUNT", _one(d.Flood, Line.integer)),
    "help": ("help", _plain(d.Help)),
    "think": ('think "text" ...', _texts(d.Think)),
    "redacted": ('redacted "sealed"', _one(d.Redacted, Line.text)),
    "call": ('call TOOL {"argument": "value"} [id=ID] [chunks=COUNT]', _call),
    "call-raw": ('call-raw TOOL "text" [id=ID] [chunks=COUNT]', _call_raw),
    "shell": ('shell "command" [id=ID] [chunks=COUNT]', _shell),
    "usage": ("usage [input=N] [output=N] [cache_read=N] [cache_write=N]", _usage),
    "usage-twice": ("usage-twice", _plain(d.UsageTwice)),
    "stop": ("stop end_turn|tool_use|length|refusal|pause_turn", _one(d.Stop, Line.text)),
    "pace": ("pace DURATION", _one(d.Pace, Line.seconds)),
    "wait": ("wait DURATION", _one(d.Wait, Line.seconds)),
    "chunk": ("chunk BYTES", _one(d.Chunk, Line.integer)),
    "ping": ("ping [COUNT]", _ping),
    "raw": ('raw "bytes"', _one(d.Raw, Line.text)),
    "repeat": ("repeat [TIMES]", _repeat),
    "status": ("status 300..599|overloaded [header=value ...] [BODY]", _status),
    "refuse": ("refuse", _plain(d.Refuse)),
    "stall": ("stall [pings [every=DURATION]]", _stall),
    "cut": ("cut [utf8|json]", _cut),
    "no-end": ("no-end", _plain(d.NoEnd)),
    "error": ('error CODE ["message"]', _error),
    "script": ('script "lines"', _one(d.Play, Line.text)),
}
