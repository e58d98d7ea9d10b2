"""What handlers may answer with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from zot.wire.extension import CommandResponse, ContentBlock, EventInterceptResponse, Panel

#: Stands for the id that an answer gets when it is sent.
_NO_ID = "-"


class ToolError(Exception):
    """Raise it in a tool: the model hears its text, and that the call failed."""


class Image(msgspec.Struct, frozen=True):
    """A picture that a tool returns."""

    data: bytes
    mime_type: str = "image/png"


#: A tool may also return anything else that is JSON: it is told to the model as that.
ToolOutput: TypeAlias = str | Image | list[str | Image] | None


class Response(msgspec.Struct, frozen=True):
    """What zot is to do for a command. Make one with `prompt`, `insert`, `display`, `noop` or `Panel.open`."""

    frame: CommandResponse


class Decision(msgspec.Struct, frozen=True):
    """What becomes of what is about to happen. Make one with `allow`, `block`, `modify` or `replace`."""

    frame: EventInterceptResponse


def prompt(text: str) -> Response:
    """Let the agent run a turn on ``text``, as if the person had said it."""
    if not text.strip():
        raise ValueError("a prompt must not be empty")
    return Response(CommandResponse(_NO_ID, "prompt", prompt=text))


def insert(text: str) -> Response:
    """Put ``text`` into the editor, where the cursor is, for the person to go on with."""
    return Response(CommandResponse(_NO_ID, "insert", insert=text))


def display(text: str) -> Response:
    """Show a note. The model does not hear of it."""
    return Response(CommandResponse(_NO_ID, "display", display=text))


def noop() -> Response:
    """Do nothing: the handler has done it all."""
    return Response(CommandResponse(_NO_ID))


def opened(panel: Panel) -> Response:
    """Open a panel."""
    return Response(CommandResponse(_NO_ID, "open_panel", open_panel=panel))


def allow(note: str = "") -> Decision:
    """Let it happen as it is. Returning None does the same."""
    return Decision(EventInterceptResponse(_NO_ID, reason=note))


def block(reason: str) -> Decision:
    """Do not let it happen. The reason is told: to the model about a tool call, else to the person."""
    return Decision(EventInterceptResponse(_NO_ID, block=True, reason=reason))


def modify(args: dict[str, Any], note: str = "") -> Decision:
    """Let the tool run, but with these arguments. Raise TypeError if they are not JSON."""
    msgspec.json.encode(args)
    return Decision(EventInterceptResponse(_NO_ID, reason=note, modified_args=args))


def replace(text: str, note: str = "") -> Decision:
    """Show the person another text than the model wrote. An empty one means that nothing is shown."""
    if not text:
        return block(note or "the message was removed")
    return Decision(EventInterceptResponse(_NO_ID, reason=note, replace_text=text))


def content_of(output: Any) -> tuple[ContentBlock, ...]:
    """Return what a tool returned as content."""
    pieces: Iterable[Any] = output if _is_pieces(output) else () if output is None else (output,)
    return tuple(map(_block, pieces))


def _is_pieces(output: Any) -> bool:
    return isinstance(output, list) and bool(output) and all(isinstance(piece, str | Image) for piece in output)


def _block(piece: Any) -> ContentBlock:
    if isinstance(piece, Image):
        from base64 import b64encode  # Not needed to say hello, and few tools draw.

        return ContentBlock("image", mime_type=piece.mime_type, data=b64encode(piece.data).decode())
    return ContentBlock("text", piece if isinstance(piece, str) else msgspec.json.encode(piece).decode())
