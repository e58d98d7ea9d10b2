"""Conversations as text for people: names, times, sizes, tool calls. Does no I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from zot.errors import UserError
from zot.messages import CallBlock, ImageBlock, Message, ResultBlock, Stop, TextBlock, ThinkingBlock, TranscriptBlock
from zot.run_summary import CUT_SHORT
from zot.text import escape_of, escaped

_MAX_ARGS = 160
_MAX_RESULT_LINES = 8
_MAX_RESULT_CHARS = 800

#: White space other than one space between other characters.
_UNUSUAL_SPACE = re.compile(r"[^\S ]|(?<= ) | \Z|\A ")

#: Sessions listed if the beginning of an id is ambiguous.
_NAMED = 5


def one_line(text: str, limit: int = 0) -> str:
    """Return ``text`` in one line, cut off at ``limit`` characters if given."""
    line = " ".join(text[: 8 * limit or None].split())
    return escaped(line if not limit or len(line) <= limit else f"{line[: limit - 1]}…")


def escaped_id(text: str, limit: int = 0) -> str:
    """Return an id in one line, with unusual white space escaped, cut off like `one_line`."""
    line = _UNUSUAL_SPACE.sub(lambda found: escape_of(found[0]) if found[0] != " " else "\\x20", text)
    return escaped(line if not limit or len(line) <= limit else f"{line[: limit - 1]}…")


def format_time(time: str) -> str:
    """Format a timestamp, to the second."""
    return one_line(time[:19].replace("T", " "))


def format_duration(milliseconds: int) -> str:
    """Format a duration in seconds, with a decimal below ten seconds."""
    return f"{milliseconds / 1000:.{0 if milliseconds >= 10_000 else 1}f} s"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_size(count: int) -> str:
    """Format a number of bytes."""
    if count < 1000:
        return counted(count, "byte")
    value, units = float(count), iter(("kB", "MB", "GB"))
    unit = ""
    while value >= 1000 and (following := next(units, "")):
        value, unit = value / 1000, following
    return f"{value:.1f} {unit}"


def stop_note(stop: Stop, error: str | None) -> str:
    """Return the note about a run that failed, was cut short, or whose message was blocked; "" for any other."""
    match stop:
        case "error":
            return error or "the model call failed"
        case "aborted":
            return "aborted"
        case "length":
            return CUT_SHORT
        case _:
            return error or ""


def message_lines(message: Message, names: Mapping[str, str], *, full: bool) -> Iterator[str]:
    """Yield the lines of a message. ``names`` maps call ids to tool names.

    ``full`` omits and cuts nothing but the data of images.
    """
    yield f"{message.role}  {format_time(message.time)}"
    said = message.shown_text
    if said is not None and not full:
        yield from _indented(said)
    for block in message.content:
        if not isinstance(block, TextBlock) or said is None or full:
            yield from _block(block, names, full=full)


def tool_names(message: Message) -> dict[str, str]:
    """Return the names of the tools that a message calls, by call id."""
    return {block.id: block.name for block in message.content if isinstance(block, CallBlock)}


def _block(block: TranscriptBlock, names: Mapping[str, str], *, full: bool) -> Iterator[str]:
    match block:
        case TextBlock(text=text):
            yield from _indented(text)
        case ImageBlock(mime_type=mime_type, data=data):
            yield f"  [{one_line(mime_type, 40)}, {format_size(len(data))}]"
        case ThinkingBlock(text=text, redacted=redacted):
            if full:
                yield "  thinking" if not redacted else "  thinking, sealed"
                yield from _indented(text)
        case CallBlock(name=name, args=args, malformed=malformed):
            written = malformed if args is None else msgspec.json.encode(args).decode()
            yield f"  -> {one_line(name, 80)} {one_line(written, 0 if full else _MAX_ARGS)}"
        case ResultBlock(call_id=call_id, is_error=is_error, content=content):
            name = one_line(names.get(call_id, call_id), 80)
            yield f"  <- {name}{', an error' if is_error else ''}"
            yield from _result(content, full=full)


def _result(content: Iterable[TextBlock | ImageBlock], *, full: bool) -> Iterator[str]:
    for block in content:
        if isinstance(block, ImageBlock) or full:
            yield from _block(block, {}, full=full)
            continue
        lines = block.text[:_MAX_RESULT_CHARS].rstrip("\n").split("\n")
        yield from _indented("\n".join(lines[:_MAX_RESULT_LINES]))
        left = len(block.text.rstrip("\n")) - len("\n".join(lines[:_MAX_RESULT_LINES]))
        if left > 0:
            yield f"  … {left} more characters; --full shows them"


def _indented(text: str) -> Iterator[str]:
    for line in escaped(text).rstrip("\n").split("\n") if text else ():
        yield f"    {line}" if line else ""


def summary(args: dict[str, Any]) -> str:
    """Return the main argument of a tool call."""
    match args:
        case {"command": str(command)}:
            return command.strip()
        case {"path": str(path), "edits": list(edits)}:
            return f"{path} ({counted(len(edits), 'change')})"
        case {"path": str(path), "content": str(content)}:
            return f"{path} ({counted(_lines(content), 'line')})"
        case {"path": str(path)}:
            return path
        case {"name": str(name), **rest} if not rest:
            return name
        case {}:
            return msgspec.json.encode(args).decode() if args else ""


def diff_lines(args: dict[str, Any], clean: Callable[[str], str]) -> Iterator[str]:
    """Yield the changes that a call makes to a file as rows of a diff. ``clean`` makes text safe to show."""
    match args:
        case {"path": str(), "edits": list(edits)}:
            for edit in edits:
                match edit:
                    case {"oldText": str(old), "newText": str(new)}:
                        yield from _diff(clean(old), clean(new))
                    case _:
                        continue
        case {"path": str(), "content": str(content)}:
            yield from (f"+{line}" for line in clean(content).rstrip("\n").split("\n"))
        case _:
            return


def _lines(content: str) -> int:
    return content.count("\n") + (not content.endswith("\n") if content else 0)


def _diff(old: str, new: str) -> Iterator[str]:
    from difflib import unified_diff  # Imported lazily: only comparisons need it.

    rows = unified_diff(old.split("\n"), new.split("\n"), lineterm="", n=2)
    yield from (row for number, row in enumerate(rows) if number > 2)  # Skip the file names and the first position.


def match_session_id(name: str, known: Sequence[str]) -> str | None:
    """Return the session with id ``name``, or the only one whose id starts with it; None if there is none.

    Raise UserError if several ids start with it.
    """
    fits = [name] if name in known else [one for one in known if name and one.startswith(name)]
    if len(fits) > 1:
        more = f" and {len(fits) - _NAMED} more" if len(fits) > _NAMED else ""
        names = ", ".join(one_line(one, 80) for one in fits[:_NAMED])
        raise UserError(f"{name!r} is the beginning of several sessions: {names}{more}")
    return fits[0] if fits else None
