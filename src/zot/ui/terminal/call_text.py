"""A tool call as text: full arguments and the diff it would make."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from zot.events import ApprovalAnswer, ApprovalRequest, Done, ToolProgress, ToolResult, TurnEnd, TurnStart
from zot.text import printable
from zot.ui import readable
from zot.ui.terminal.looks import unabridged

_STYLES = {"+": "green", "-": "red"}

#: Events that show that an approval was decided: here, in another client, or by its deadline.
Decided: TypeAlias = ApprovalAnswer | ToolProgress | ToolResult | TurnStart | TurnEnd | Done
#: A line about a call, and its style.
Line: TypeAlias = tuple[str, str]

#: A colour of their own: a command or a diff could contain the same text.
_ARGUMENT = "yellow"


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
