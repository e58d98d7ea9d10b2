"""What a reply of OpenAI Responses consists of, while it is received: messages, thoughts and calls.

Whatever is streamed is told again when it is done. What was heard already is not repeated, and what was not is
made up for; so it does not matter which of the events a server leaves out, doubles or sends late.
"""

from __future__ import annotations

from typing import Any, Literal

from zot.events import TextDelta, ThinkingDelta, ToolUseArgs, ToolUseEnd, ToolUseStart
from zot.messages import CallBlock, TextBlock, ThinkingBlock
from zot.providers.base import StreamEvent
from zot.providers.calls import CallIds, finished_call
from zot.providers.openai_responses_frames import CallItem, MessageItem, ReasoningItem

_BETWEEN_THOUGHTS = "\n\n"


class Part:
    """A text that is being received."""

    __slots__ = ("_pieces", "_whole", "is_refusal")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._whole = False
        self.is_refusal = False

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def has_begun(self) -> bool:
        return bool(self._pieces)

    def add(self, piece: str) -> str:
        """Take a piece and return what is new of it: nothing, if the whole is known already."""
        if self._whole or not piece:
            return ""
        self._pieces.append(piece)
        return piece

    def complete(self, whole: str) -> str:
        """Take the whole text and return what had been missing at its end. Where the two differ, the whole counts."""
        if self._whole:
            return ""
        heard, missing = self.text, ""
        if whole.startswith(heard):
            missing = self.add(whole[len(heard) :])
        elif whole:
            self._pieces = [whole]
        self._whole = True
        return missing


class Parts(dict[int, Part]):
    """Parts by their number; they begin when they are first heard of."""

    def __missing__(self, index: int) -> Part:
        part = self[index] = Part()
        return part

    def texts(self) -> list[str]:
        """Return what they say, in order, without the empty ones."""
        return [part.text for _, part in sorted(self.items()) if part.has_begun]


class OpenMessage:
    """What the model says. Words of refusal are words, too."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts = Parts()

    def say(self, index: int, piece: str, events: list[StreamEvent]) -> None:
        if text := self.parts[index].add(piece):
            events.append(TextDelta(text))

    def said(self, index: int, whole: str, events: list[StreamEvent]) -> None:
        if text := self.parts[index].complete(whole):
            events.append(TextDelta(text))

    def close(self, item: MessageItem, events: list[StreamEvent]) -> None:
        for index, content in enumerate(item.content or ()):
            if content.refusal is not None:
                self.parts[index].is_refusal = True
            self.said(index, content.text or content.refusal or "", events)

    @property
    def is_refusal(self) -> bool:
        """Whether it is nothing but a refusal."""
        parts = [part for part in self.parts.values() if part.has_begun]
        return bool(parts) and all(part.is_refusal for part in parts)

    def blocks(self) -> list[TextBlock]:
        return [TextBlock(text) for text in self.parts.texts()]


class OpenThought:
    """What the model thinks: a summary in parts, the thought itself, or only its sealed form."""

    __slots__ = ("_id", "_seal", "content", "summary")

    def __init__(self) -> None:
        self.summary = Parts()
        self.content = Parts()
        self._id = ""
        self._seal = ""

    def think(self, part: Part, piece: str, events: list[StreamEvent]) -> None:
        between = self._between(part)
        if text := part.add(piece):
            events += [*between, ThinkingDelta(text)]

    def thought(self, part: Part, whole: str, events: list[StreamEvent]) -> None:
        between = self._between(part)
        if text := part.complete(whole):
            events += [*between, ThinkingDelta(text)]

    def close(self, item: ReasoningItem, events: list[StreamEvent]) -> None:
        for parts, contents in ((self.summary, item.summary), (self.content, item.content)):
            for index, content in enumerate(contents or ()):
                self.thought(parts[index], content.text or "", events)
        # Not before it is done: what is sealed until then need not be all of it.
        self._id, self._seal = item.id or self._id, item.encrypted_content or self._seal

    def _between(self, part: Part) -> list[StreamEvent]:
        """Return what stands between an earlier part and the beginning of this one."""
        if part.has_begun or not any(other.has_begun for other in (*self.summary.values(), *self.content.values())):
            return []
        return [ThinkingDelta(_BETWEEN_THOUGHTS)]

    def blocks(self) -> list[ThinkingBlock]:
        text = _BETWEEN_THOUGHTS.join((*self.summary.texts(), *self.content.texts()))
        return [ThinkingBlock(text, self._seal, id=self._id)] if text or self._seal else []


class OpenCall:
    """A call that the model writes. Before its name is known its arguments are kept back."""

    __slots__ = ("_id", "_name", "_state", "_told", "_written")

    def __init__(self) -> None:
        self._id = ""
        self._name = ""
        self._told: str | dict[str, Any] = ""
        self._written = Part()
        self._state: Literal["unnamed", "open", "whole", "cut off"] = "unnamed"

    def start(self, item: CallItem, ids: CallIds, events: list[StreamEvent]) -> None:
        if self._state != "unnamed":
            return
        self._state = "open"
        self._id, self._name = ids.take(item.call_id or ""), item.name or ""
        self._told = item.arguments or ""
        events.append(ToolUseStart(self._id, self._name))
        self._show(self._written.text, events)

    def write(self, piece: str, events: list[StreamEvent]) -> None:
        self._show(self._written.add(piece), events)

    def written(self, whole: str, events: list[StreamEvent]) -> None:
        self._show(self._written.complete(whole), events)

    def close(self, item: CallItem, ids: CallIds, events: list[StreamEvent]) -> None:
        self.start(item, ids, events)
        self._told = item.arguments or self._told
        if item.status == "incomplete":
            self._state = "cut off"  # At the length limit: what there is of it may even look whole.
        self.end(events)

    def end(self, events: list[StreamEvent]) -> None:
        """Nothing more will be written. What was told of the arguments without being written counts, too."""
        if self._state == "open":
            if isinstance(self._told, str):
                self.written(self._told, events)
            self._state = "whole"
            events.append(ToolUseEnd(self._id))

    def _show(self, text: str, events: list[StreamEvent]) -> None:
        if text and self._state != "unnamed":
            events.append(ToolUseArgs(self._id, text))

    def blocks(self) -> list[CallBlock]:
        if self._state != "whole":
            return []
        given = self._told if isinstance(self._told, dict) else None
        return [finished_call(self._id, self._name, self._written.text, given=given)]
