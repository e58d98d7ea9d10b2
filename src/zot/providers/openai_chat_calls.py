"""The calls of a Chat Completions stream, put together from pieces that are numbered, named, both or neither."""

from __future__ import annotations

from typing import Any

from zot.encoding import encode
from zot.events import ToolUseArgs, ToolUseEnd, ToolUseStart
from zot.messages import CallBlock
from zot.providers.base import StreamEvent
from zot.providers.calls import CallIds, finished_call, is_object
from zot.providers.openai_chat_frames import CallPiece, Function


class OpenCall:
    """A call that is being received. It is announced when its name is known, and what came before that with it."""

    __slots__ = ("announced", "closed", "given_id", "id", "name", "pieces")

    def __init__(self, call_id: str, given_id: str) -> None:
        self.id = call_id
        self.given_id = given_id
        self.name = ""
        self.pieces: list[str] = []
        self.announced = False
        self.closed = False

    def take(self, name: str, text: str, events: list[StreamEvent]) -> None:
        """Take a piece."""
        self.name = self.name or name
        if text:
            self.pieces.append(text)
        if self.announced:
            if text:
                events.append(ToolUseArgs(self.id, text))
        elif self.name:
            self._announce(events)

    def close(self, events: list[StreamEvent]) -> None:
        """Nothing follows."""
        if self.closed:
            return
        if not self.announced:
            self._announce(events)
        self.closed = True
        events.append(ToolUseEnd(self.id))

    def finished(self) -> CallBlock | None:
        """Return the call once it is closed."""
        return finished_call(self.id, self.name, "".join(self.pieces)) if self.closed else None

    def is_whole(self) -> bool:
        return is_object("".join(self.pieces))

    def _announce(self, events: list[StreamEvent]) -> None:
        self.announced = True
        events.append(ToolUseStart(self.id, self.name))
        if text := "".join(self.pieces):
            events.append(ToolUseArgs(self.id, text))


class OpenCalls:
    """All calls of a reply."""

    def __init__(self, ids: CallIds) -> None:
        self._ids = ids
        self._calls: list[OpenCall] = []
        self._by_index: dict[int, OpenCall] = {}
        self._by_id: dict[str, OpenCall] = {}

    def take(self, piece: CallPiece, events: list[StreamEvent]) -> OpenCall | None:
        """Take a piece of a call. Return the call if this began it."""
        function = piece.function or Function()
        name, text, given_id = function.name or "", _text(function.arguments), piece.id or ""
        known = self._known(piece.index, given_id, name, text)
        call = known or self._begin(piece.index, given_id)
        call.take(name, text, events)
        return call if known is None else None

    def close(self, events: list[StreamEvent]) -> None:
        """The model has written all of them."""
        for call in self._calls:
            call.close(events)

    def _begin(self, index: int | None, given_id: str) -> OpenCall:
        call = OpenCall(self._ids.take(given_id), given_id)
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        if given_id:
            self._by_id[given_id] = call
        return call

    def _known(self, index: int | None, given_id: str, name: str, text: str) -> OpenCall | None:
        """Return the call that a piece belongs to; None if it is the first of another one."""
        if index is not None:
            call = self._by_index.get(index)
        elif given_id:
            return self._by_id.get(given_id)
        else:
            call = self._calls[-1] if self._calls else None
        if call is None or call.closed:
            return None
        return None if _begins_another(call, given_id, name, text, numbered=index is not None) else call


def _begins_another(call: OpenCall, given_id: str, name: str, text: str, *, numbered: bool) -> bool:
    """Whether a piece that seems to belong to ``call`` does not.

    Some servers give every call the number 0, some repeat name and id with every piece, and some give no ids at all.
    """
    if not name:
        return False
    if given_id and call.given_id:
        return given_id != call.given_id
    if not numbered and call.name and name != call.name:
        return True
    return text.lstrip()[:1] == "{" and call.is_whole()


def _text(arguments: Any) -> str:
    """Return arguments as they are written: most servers send text, some what it stands for."""
    match arguments:
        case None:
            return ""
        case str():
            return arguments
        case _:
            return encode(arguments).decode()
