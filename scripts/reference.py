"""Write docs/reference/sdk-api.md, and the table of exceptions in errors.md, from signatures and docstrings.

python scripts/reference.py
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import zot
from zot import errors, events
from zot.events import SessionState
from zot.messages import Counters, ShownMessage
from zot.panels import CommandAnswer, CommandInfo
from zot.providers.base import Model
from zot.serve.daemon.client_connection import as_rpc_error
from zot.wire.host import code_of
from zot.wire.updates import TurnSummary

DOCS = Path(__file__).parents[1] / "docs" / "reference"
API_PATH = DOCS / "sdk-api.md"
ERRORS_PATH = DOCS / "errors.md"
_BEGIN, _END = "<!-- generated: python scripts/reference.py -->\n", "<!-- end of the generated part -->\n"

#: The sections of the page: what `zot` exports, by purpose, and the types of results.
SECTIONS: dict[str, tuple[Any, ...]] = {
    "In process": (zot.Runtime, zot.BlockingRuntime, zot.Events, zot.run),
    "Settings": (zot.Config,),
    "Client of the daemon": (zot.Client, zot.ClientSession, zot.ClientTurn),
    "Messages": (zot.Message, zot.TextBlock, zot.ImageBlock, zot.show, ShownMessage),
    "Results": (
        zot.Answer, SessionState, Counters, Model, CommandInfo, CommandAnswer, zot.Rewound, zot.RestoredFile,
        TurnSummary,
    ),
    "Encoding": (zot.encode, zot.decode),
}  # fmt: skip
#: Exported, and in no section. Exceptions have a table of their own.
ELSEWHERE = frozenset({"AgentEvent", "__version__"})
#: Classes that only zot instantiates.
_MADE_BY_ZOT = (zot.Events, zot.Client, zot.ClientSession, zot.ClientTurn)
#: Members that are public for other modules of zot only.
_INTERNAL = {zot.Client: ("ask", "check", "hear", "leave", "make_room", "peer")}

#: Exceptions that no client gets as an error code: raised in the caller's process, or turned into a result.
_NOT_SENT = (
    zot.RpcError, zot.ConnectionLost, zot.EpochChanged, zot.RunCancelled, errors.UsageError, errors.DaemonRunning,
    errors.ProtocolError, errors.ToolFailed,
)  # fmt: skip

_HEAD = """\
# SDK: classes and functions

Signatures and docstrings of what `zot` exports, generated from the source. [SDK](sdk.md) shows how to use it,
[settings](sdk.md#settings) explains the fields of `Config`, and [errors](errors.md#exceptions) lists the exceptions.
"""


def api() -> str:
    """Return the text of sdk-api.md."""
    parts = [_HEAD]
    for title, values in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [_described(value) for value in values]
    parts.append(
        "## Event classes\n\nThe classes of `zot.events`; `zot.AgentEvent` is their union."
        " In [zot RPC](rpc.md#events) each is a frame with the same fields.\n"
    )
    parts.append("| Class | Fields | Meaning |\n| --- | --- | --- |")
    parts += [_event_row(event) for event in typing.get_args(events.AgentEvent)]
    return "\n".join(parts) + "\n"


def errors_page(page: str) -> str:
    """Return errors.md with its generated part renewed."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{exceptions()}\n{_END}{after}"


def exceptions() -> str:
    """Return the table of exceptions."""
    kinds = [zot.RpcError, *(kind for kind in vars(errors).values() if isinstance(kind, type))]
    rows = [_exception_row(kind) for kind in _by_tree(errors.AgentError, kinds)]
    return "\n".join(["| Exception | Attributes | Meaning | Daemon | Host |", "| --- | --- | --- | --- | --- |", *rows])


def _by_tree(kind: type, kinds: list[type]) -> Iterator[type]:
    """Yield a class, then those derived from it, each followed by its own."""
    yield kind
    for derived in kinds:
        if derived.__bases__ == (kind,):
            yield from _by_tree(derived, kinds)


def _exception_row(kind: type) -> str:
    depth = len(kind.__mro__) - len(errors.AgentError.__mro__)
    name = f"zot.{kind.__name__}" if kind.__name__ in zot.__all__ else kind.__name__
    own = [] if "__init__" not in vars(kind) else [*inspect.signature(kind).parameters]
    fields = ", ".join(f"`{name}`" for name in own if name not in ("message", "remedy"))
    codes = ("", "") if issubclass(kind, _NOT_SENT) else _codes(kind)
    return f"| {'· ' * depth}`{name}` | {fields} | {_line(kind)} | {codes[0]} | {codes[1]} |"


def _codes(kind: type) -> tuple[str, str]:
    """Return the codes for an exception: at the daemon and in the host protocol."""
    problem = kind.__new__(kind)
    vars(problem).update(status=0, ahead=0)
    return f"`{as_rpc_error(problem).code}`", f"`{code_of(problem)}`"


def _event_row(event: type) -> str:
    fields = ", ".join(f"`{field.name}`" for field in msgspec.structs.fields(event))
    return f"| `{event.__name__}` | {fields} | {_line(event)} |"


def _described(value: Any) -> str:
    name = value.__name__
    lines = [f"### {name}\n"]
    if not isinstance(value, type):
        lines.append(f"`zot.{name}{_signature(value)}`\n")
    elif not issubclass(value, msgspec.Struct) and value not in _MADE_BY_ZOT:
        lines.append(f"`zot.{name}{_signature(value.__init__)}`\n")
    lines += [_text(value), ""]
    if isinstance(value, type) and issubclass(value, msgspec.Struct) and value is not zot.Config:
        lines += [f"Fields: {', '.join(_fields(value))}.", ""]
    elif (
        isinstance(value, type)
        and value is not zot.Config
        and (members := [*_members(value, _INTERNAL.get(value, ()))])
    ):
        lines += [*members, ""]
    return "\n".join(lines)


def _fields(kind: type[msgspec.Struct]) -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        default = "" if field.required else f" = {field.default!r}"
        yield f"`{field.name}: {kind.__annotations__[field.name]}{default}`".replace("'", '"')


def _members(kind: type, internal: tuple[str, ...]) -> Iterator[str]:
    for name, value in vars(kind).items():
        if name.startswith("_") or name in internal:
            continue
        if isinstance(value, property):
            yield f"- `{name}: {value.fget.__annotations__['return']}`: {_line(value)}"
        elif inspect.isfunction(value) or isinstance(value, classmethod | staticmethod):
            function = getattr(kind, name)
            awaited = "await " if inspect.iscoroutinefunction(function) else ""
            yield f"- `{awaited}{name}{_signature(function)}`: {_line(value)}"


def _signature(function: Any) -> str:
    """Return the parameters and the result of a function as its source has them, on one line."""
    source = textwrap.dedent(inspect.getsource(function))
    [node] = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    lines = source.splitlines()
    head = " ".join(line.strip() for line in lines[node.lineno - 1 : node.body[0].lineno - 1])
    head = re.sub(r"\( *(self|cls)(, *)?", "(", head.partition(node.name)[2], count=1).rstrip(": ")
    return head.replace("( ", "(").replace(", )", ")").replace(" )", ")").replace(" -> None", "")


def _text(value: Any) -> str:
    """Return a docstring as Markdown."""
    return inspect.cleandoc(value.__doc__ or "").replace("``", "`")


def _line(value: Any) -> str:
    """Return a docstring as one line of Markdown."""
    return " ".join(_text(value).split())


if __name__ == "__main__":
    API_PATH.write_text(api())
    ERRORS_PATH.write_text(errors_page(ERRORS_PATH.read_text()))
