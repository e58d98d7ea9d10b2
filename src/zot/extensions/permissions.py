"""Permissions of an extension: the scopes in its manifest, and enforcement of those about the protocol. Does no I/O.

A sandbox enforces the others, see `confinement`: files, network, programs and variables.
"""

from __future__ import annotations

import os
import re
from typing import TypeAlias

import msgspec

from zot.errors import ProtocolError
from zot.text import printable
from zot.wire import extension as wire

#: Stands for the session's working directory at the start of a path.
CWD = "$CWD"
#: Hint if a confined extension sends nothing; begins with a separator.
LACKING = "; its permissions show it no programs but those in exec, and no files but those in fs.read"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Names: TypeAlias = bool | tuple[str, ...]


class Permissions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Permitted scopes; all else is forbidden. For scopes with names, True means all and False none.

    A path is absolute, or begins with ``~/`` or ``$CWD``, or is relative to the extension's directory.
    """

    fs_read: tuple[str, ...] = msgspec.field(default=(), name="fs.read")
    fs_write: tuple[str, ...] = msgspec.field(default=(), name="fs.write")
    net: bool = False
    exec: Names = False
    env: Names = False
    tools: bool | tuple[wire.ToolName, ...] = False
    events: bool | tuple[wire.EventName, ...] = False
    intercept: bool | tuple[wire.Intercepted, ...] = False
    ui: bool = False
    #: Change the arguments and texts that it is asked about; without it, it can only block.
    modify: bool = False

    def __post_init__(self) -> None:
        for scope, paths in (("fs.read", self.fs_read), ("fs.write", self.fs_write)):
            for path in paths:
                if problem := _path_problem(path):
                    raise ValueError(f"{scope}: {path!r} {problem}")
        for path in self.fs_write:
            if os.path.normpath(path) == ".":
                raise ValueError(f"fs.write: {path!r} is its own directory, of which only its data can be written")
        for name in _listed(self.exec):
            if not name or "\0" in name or ("/" in name and not os.path.isabs(name)):
                raise ValueError(f"exec: {name!r} is neither the name of a program nor an absolute path")
        for name in _listed(self.env):
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"env: {name!r} is not the name of a variable")


def allows(scope: bool | tuple[str, ...], name: str) -> bool:
    """Return whether a scope includes ``name``."""
    return name in scope if isinstance(scope, tuple) else scope


def admit(frame: wire.AnyFromExtension, permissions: Permissions | None) -> tuple[wire.AnyFromExtension, str]:
    """Return the permitted part of a frame, and a complaint about the rest, "" if there is none.

    None as permissions permits everything. Raise ProtocolError if no part is permitted.
    """
    if permissions is None:
        return frame, ""
    match frame:
        case wire.RegisterTool(name=name) if not allows(permissions.tools, name):
            raise ProtocolError(f"register_tool: its permissions do not include the tool {name}")
        case wire.Notify() | wire.PanelRender() if not permissions.ui:
            raise ProtocolError(f"{wire.name_of(frame)}: its permissions do not include ui")
        case wire.CommandResponse(id=call_id, action="open_panel") if not permissions.ui:
            problem = "its permissions do not include ui, so it cannot open a panel"
            return wire.CommandResponse(call_id, error=problem), f"command_response: {problem}"
        case wire.EventInterceptResponse(block=False) if not permissions.modify and _changes(frame):
            # It did not allow the event unchanged, so the event must not take place either.
            problem = "its permissions do not include modify, so it cannot change what it is asked about"
            return wire.EventInterceptResponse(frame.id, block=True, reason=problem), problem
        case wire.Subscribe():
            return _subscription(frame, permissions)
        case _:
            return frame, ""


def _subscription(wanted: wire.Subscribe, permissions: Permissions) -> tuple[wire.Subscribe, str]:
    """Return the permitted part of a subscription. Events that it may not decide about do not block when it fails."""
    events = tuple(name for name in wanted.events if allows(permissions.events, name))
    intercept = tuple(name for name in wanted.intercept if allows(permissions.intercept, name))
    refused = [
        f"{scope} ({', '.join(map(printable, names))})"
        for scope, names in (
            ("events", sorted({*wanted.events}.difference(events))),
            ("intercept", sorted({*wanted.intercept}.difference(intercept))),
        )
        if names
    ]
    problem = f"subscribe: its permissions do not include {' and '.join(refused)}" if refused else ""
    return msgspec.structs.replace(wanted, events=events, intercept=intercept), problem


def _changes(answer: wire.EventInterceptResponse) -> bool:
    return answer.modified_args is not None or bool(answer.replace_text)


def _listed(scope: Names) -> tuple[str, ...]:
    return scope if isinstance(scope, tuple) else ()


def _path_problem(path: str) -> str:
    if not path or "\0" in path:
        return "is not a path"
    first = path.split("/", 1)[0]
    if first.startswith("~") and first != "~":
        return "is in another user's home; give its full path"
    if first.startswith("$") and first != CWD:
        return f"begins with a variable; there is only {CWD}"
    if os.path.normpath(path).strip("/") == "":
        return "is everything; name what is needed"
    return ""
