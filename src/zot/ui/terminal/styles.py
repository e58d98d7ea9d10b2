"""Colours, marks and safe text for terminals; tool calls as text, with full arguments and diffs."""

from __future__ import annotations

import codecs
import locale
import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import msgspec

from zot.events import ApprovalAnswer, ApprovalRequest, Done, ToolProgress, ToolResult, TurnEnd, TurnStart
from zot.text import escaped, printable, visible
from zot.ui import readable

#: Escape sequences of terminal programs: colours, cursor movements, titles.
_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_LIGHT_BACKGROUNDS = ("7", "15")

#: Styles of a diff's lines.
_STYLES = {"+": "green", "-": "red"}
#: A colour of their own for arguments: a command or a diff could contain the same text.
_ARGUMENT = "yellow"

Level: TypeAlias = Literal["info", "success", "warn", "error"]
#: Events that show that an approval was decided: here, in another client, or by its deadline.
Decided: TypeAlias = ApprovalAnswer | ToolProgress | ToolResult | TurnStart | TurnEnd | Done
#: A line about a call, and its style.
Line: TypeAlias = tuple[str, str]


class Look(msgspec.Struct, frozen=True):
    """The marks that a terminal can show, and the theme for code on its background."""

    user: str = "❯"
    call: str = "●"
    failed: str = "✗"
    folded: str = "▸"
    unfolded: str = "▾"
    bar: str = "│"
    more: str = "…"
    spinner: str = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
    dot: str = "·"
    code_theme: str = "ansi_dark"
    unicode: bool = True


#: For terminals without Unicode.
ASCII = Look(
    user=">",
    call="*",
    failed="!",
    folded="+",
    unfolded="-",
    bar="|",
    more="...",
    spinner="|/-\\",
    dot="-",
    unicode=False,
)


def charset(env: Mapping[str, str] = os.environ) -> str:
    """Return the locale's encoding; ASCII if Python does not know it."""
    try:
        return codecs.lookup(_replaced(env) or locale.getencoding()).name
    except LookupError:
        return "ascii"


def _replaced(env: Mapping[str, str]) -> str:
    """Return LANG's encoding where Python has replaced the locale by C.UTF-8; "" if it has not.

    Python does so if this machine lacks the locale; the terminal still uses its encoding.
    """
    is_replaced = not env.get("LC_ALL") and env.get("LC_CTYPE") in ("C.UTF-8", "C.utf8", "UTF-8")
    return env.get("LANG", "").partition(".")[2].partition("@")[0] if is_replaced else ""


def look_for(env: Mapping[str, str] = os.environ, encoding: str | None = None) -> Look:
    """Return the look for a terminal with this environment and encoding."""
    look = Look() if (encoding or charset()).startswith("utf") else ASCII
    is_light = env.get("COLORFGBG", "").rpartition(";")[2] in _LIGHT_BACKGROUNDS
    return msgspec.structs.replace(look, code_theme="ansi_light") if is_light else look


def safe(text: str) -> str:
    """Return foreign text safe for a terminal: no escape sequences, LF line ends."""
    if "\x1b" in text:
        text = _SEQUENCES.sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return escaped(text).expandtabs(4)


def program_output(text: str) -> str:
    """Return a program's output as `safe` text, with the last state of lines that it overwrote."""
    if "\r" in text:
        lines = text.replace("\r\n", "\n").split("\n")
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
    return safe(text)


def unabridged(text: str) -> str:
    """Return a call's text unabridged: every invisible character but LF and TAB written as its escape."""
    return visible(text.expandtabs(4))


def tokens(count: int) -> str:
    """Format a number of tokens."""
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 100_000 else f"{count // 1000}k"


def shortened(path: str, home: str) -> str:
    """Return a path with ``~`` for the user's home."""
    return "~" + path[len(home) :] if home and (path == home or path.startswith(home + "/")) else path


def changes(args: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lines of the diff that a call makes, each with its style."""
    return ((row, _STYLES.get(row[:1], "dim")) for row in readable.diff_lines(args, unabridged))


def in_full(request: ApprovalRequest) -> list[Line]:
    """Return a call's command or diff, and all of its other arguments."""
    args = request.args
    match args:
        case {"command": str(command)}:
            said = [(line, "") for line in unabridged(command).rstrip("\n").split("\n")]
            return [*said, *_others(args, {"command"})]
        case {"path": str()} if diff := [*changes(args)]:
            return [*diff, *_others(args, _shown_by_diff(args))]
        case _:
            written = msgspec.json.format(msgspec.json.encode(args), indent=2).decode()
            return [(line, "") for line in unabridged(written).split("\n")]


def until(request: ApprovalRequest) -> str:
    """Return the deadline in local time, with the date unless it is today."""
    over = datetime.fromisoformat(request.deadline).astimezone()
    return over.strftime("%H:%M:%S" if over.date() == datetime.now(UTC).astimezone().date() else "%Y-%m-%d %H:%M:%S")


def called_with(args: dict[str, Any], *, is_named: bool) -> Iterator[Line]:
    """Yield a call's arguments; ``is_named`` if the heading already shows its summary in full."""
    diff = [*changes(args)]
    match args:
        case {"command": str(command)}:
            if not is_named:
                yield from ((f"$ {line}", "cyan") for line in unabridged(command).strip("\n").split("\n"))
            yield from _others(args, {"command"})
        case {"path": str()}:
            told = _shown_by_diff(args) if diff else {"path"}
            yield from _others(args, told if is_named else told - {"path"})
            yield from diff
        case _ if not is_named:
            written = msgspec.json.format(msgspec.json.encode(args), indent=2).decode()
            yield from ((line, _ARGUMENT) for line in unabridged(written).split("\n"))
        case _:
            return


def beyond_summary(request: ApprovalRequest) -> list[str]:
    """Return the lines of `in_full`, or none if the request's summary already shows everything."""
    match request.args:
        case {"command": str(one), **rest} | {"path": str(one), **rest} if not rest:
            if request.summary == f"{request.tool}: {one}":
                return []
        case _:
            pass
    return [line for line, _ in in_full(request)]


def _shown_by_diff(args: dict[str, Any]) -> set[str]:
    """Return the names of the arguments that the diff shows in full."""
    match args:
        case {"edits": list(edits)}:
            return {"path", "edits"} if all(map(_is_shown, edits)) else {"path"}
        case _:
            return {"path", "content"}


def _is_shown(edit: object) -> bool:
    match edit:
        case {"oldText": str(old), "newText": str(new), **rest}:
            return not rest and unabridged(old) != unabridged(new)
        case _:
            return False


def _others(args: dict[str, Any], told: set[str]) -> Iterator[Line]:
    for name, value in args.items():
        if name not in told:
            yield f"{printable(name)}: {printable(msgspec.json.encode(value).decode())}", _ARGUMENT
