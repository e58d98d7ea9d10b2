"""Answers of handlers: tool output, command responses and decisions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from zot.wire.extension import CommandResponse, ContentBlock, EventInterceptResponse, Panel

#: Placeholder of the id, which is set when the answer is sent.
_NO_ID = "-"


class ToolError(Exception):
    """Raise it in a tool: the model gets its text as the error of the call."""


class Image(msgspec.Struct, frozen=True):
    """Image returned by a tool."""

    data: bytes
    mime_type: str = "image/png"


#: A tool may also return any other JSON value: the model gets it as JSON text.
ToolOutput: TypeAlias = str | Image | list[str | Image] | None


class Response(msgspec.Struct, frozen=True):
    """Action of zot after a command. Create it with `prompt`, `insert`, `display`, `noop` or `Panel.open`."""

    frame: CommandResponse


class Decision(msgspec.Struct, frozen=True):
    """Decision about an event. Create it with `allow`, `block`, `modify` or `replace`."""

    frame: EventInterceptResponse


def prompt(text: str) -> Response:
    """Start a run with ``text`` as the user's prompt."""
    if not text.strip():
        raise ValueError("a prompt must not be empty")
    return Response(CommandResponse(_NO_ID, "prompt", prompt=text))


def insert(text: str) -> Response:
    """Insert ``text`` into the editor at the cursor, for the user to continue."""
    return Response(CommandResponse(_NO_ID, "insert", insert=text))


def display(text: str) -> Response:
    """Show a note to the user only; the model does not see it."""
    return Response(CommandResponse(_NO_ID, "display", display=text))


def noop() -> Response:
    """Do nothing more: the handler has done everything."""
    return Response(CommandResponse(_NO_ID))


def opened(panel: Panel) -> Response:
    return Response(CommandResponse(_NO_ID, "open_panel", open_panel=panel))


def allow(note: str = "") -> Decision:
    """Allow the event unchanged. Returning None does the same."""
    return Decision(EventInterceptResponse(_NO_ID, reason=note))


def block(reason: str) -> Decision:
    """Block the event. The model gets the reason for a tool call, the user for other events."""
    return Decision(EventInterceptResponse(_NO_ID, block=True, reason=reason))


def modify(args: dict[str, Any], note: str = "") -> Decision:
    """Run the tool with these arguments instead. Raise TypeError if they are not JSON."""
    msgspec.json.encode(args)
    return Decision(EventInterceptResponse(_NO_ID, reason=note, modified_args=args))


def replace(text: str, note: str = "") -> Decision:
    """Show the user another text than the model's. An empty one shows nothing."""
    if not text:
        return block(note or "the message was removed")
    return Decision(EventInterceptResponse(_NO_ID, reason=note, replace_text=text))


def content_of(output: Any) -> tuple[ContentBlock, ...]:
    """Return a tool's output as content blocks."""
    pieces: Iterable[Any] = output if _is_pieces(output) else () if output is None else (output,)
    return tuple(map(_block, pieces))


def _is_pieces(output: Any) -> bool:
    return isinstance(output, list) and bool(output) and all(isinstance(piece, str | Image) for piece in output)


def _block(piece: Any) -> ContentBlock:
    if isinstance(piece, Image):
        from base64 import b64encode  # Imported lazily: not needed before hello, and few tools return images.

        return ContentBlock("image", mime_type=piece.mime_type, data=b64encode(piece.data).decode())
    return ContentBlock("text", piece if isinstance(piece, str) else msgspec.json.encode(piece).decode())
