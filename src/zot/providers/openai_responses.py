"""The stream of OpenAI Responses: bytes in, events and the reply out. Does no I/O."""

from __future__ import annotations

from typing import Literal, TypeAlias, TypeVar

from zot.errors import ContentRefused, ProviderError, StreamBroken
from zot.events import TextDelta
from zot.messages import CallBlock, Counters, Stop
from zot.providers import openai_responses_frames as f
from zot.providers.base import Reply, StreamEvent
from zot.providers.calls import CallIds
from zot.providers.decoding_part import StreamDecoder
from zot.providers.openai_responses_items import OpenCall, OpenMessage, OpenThought, Part

_Open: TypeAlias = OpenMessage | OpenThought | OpenCall
_O = TypeVar("_O", OpenMessage, OpenThought, OpenCall)


class ResponsesDecoder(StreamDecoder):
    """Turns the bytes of one streamed reply into events."""

    def __init__(self, ids: CallIds) -> None:
        super().__init__()
        self._open: dict[int, _Open] = {}
        self._item: int | None = None
        self._part: int | None = None
        self._say = Part().add
        self._call_ids = ids
        self._usage = f.Usage()
        self._begun = False
        self._ending: Literal["completed", "incomplete"] | None = None
        self._shortfall = ""

    def finish(self) -> list[StreamEvent]:
        """Raise StreamBroken if the reply is not whole, ContentRefused if the model would not give one."""
        if self._ending is None:
            raise StreamBroken("the answer ended without its final event")
        is_filtered = self._shortfall == "content_filter"
        if is_filtered or self._is_refusal():
            code = self._shortfall if is_filtered else "refusal"
            raise ContentRefused("the model refused to answer this", code=code)
        return []

    def reply(self) -> Reply:
        """Return what has been received so far, without a half-written tool call."""
        content = tuple(block for _, item in sorted(self._open.items()) for block in item.blocks())
        stop: Stop = "tool_use" if any(isinstance(block, CallBlock) for block in content) else "end_turn"
        return Reply(content, _counters(self._usage), "length" if self._ending == "incomplete" else stop)

    def _is_refusal(self) -> bool:
        """Whether all that came of it are words of refusal."""
        acts = [item for item in self._open.values() if not isinstance(item, OpenThought) and item.blocks()]
        return bool(acts) and all(isinstance(item, OpenMessage) and item.is_refusal for item in acts)

    def _feed(self, data: bytes, events: list[StreamEvent]) -> None:
        for payload in self._sse.feed(data):
            frame: f.Frame | None
            try:
                frame = f.frames.decode(payload)
            except (ValueError, RecursionError):
                if payload == b"[DONE]":  # Some servers end every stream so.
                    continue
                frame = f.frames.decode_with_care(payload)
            if type(frame) is f.TextDelta:
                if frame.output_index != self._item or frame.content_index != self._part:
                    self._turn_to(frame.output_index, frame.content_index)
                if text := self._say(frame.delta):
                    events.append(TextDelta(text))
            elif frame is not None:
                if self._is_idle(frame):
                    continue
                self._take(frame, events)
            self.progress += 1

    def _turn_to(self, item: int, part: int) -> None:
        """Find where a text belongs; nearly always the next one belongs there, too."""
        self._say = self._at(item, OpenMessage).parts[part].add
        self._item, self._part = item, part

    def _is_idle(self, frame: f.Frame) -> bool:
        """Whether an event only says that somebody is there. That work has begun is news once."""
        if isinstance(frame, f.InProgress | f.Queued):
            self._count(frame.response)
            was_begun, self._begun = self._begun, True
            return was_begun
        return isinstance(frame, f.KeepAlive | f.Ping)

    def _take(self, frame: f.Frame, events: list[StreamEvent]) -> None:
        match frame:
            case f.ArgumentsDelta():
                self._at(frame.output_index, OpenCall).write(frame.delta, events)
            case f.SummaryDelta():
                thought = self._at(frame.output_index, OpenThought)
                thought.think(thought.summary[frame.summary_index], frame.delta, events)
            case f.ThoughtDelta():
                thought = self._at(frame.output_index, OpenThought)
                thought.think(thought.content[frame.content_index], frame.delta, events)
            case f.RefusalDelta():
                message = self._at(frame.output_index, OpenMessage)
                message.parts[frame.content_index].is_refusal = True
                message.say(frame.content_index, frame.delta, events)
            case f.ItemAdded():
                self._begin(frame.output_index, f.read_item(frame.item), events)
            case f.ItemDone():
                self._close(frame.output_index, f.read_item(frame.item), events)
            case f.Created() | f.Completed() | f.Incomplete() | f.Failed() | f.Error():
                self._turn(frame, events)
            case _:
                self._take_whole(frame, events)

    def _take_whole(self, frame: f.Frame, events: list[StreamEvent]) -> None:
        """Take what tells the whole of one part."""
        match frame:
            case f.ArgumentsDone():
                self._at(frame.output_index, OpenCall).written(frame.arguments, events)
            case f.SummaryDone():
                thought = self._at(frame.output_index, OpenThought)
                thought.thought(thought.summary[frame.summary_index], frame.text, events)
            case f.ThoughtDone():
                thought = self._at(frame.output_index, OpenThought)
                thought.thought(thought.content[frame.content_index], frame.text, events)
            case f.TextDone():
                self._at(frame.output_index, OpenMessage).said(frame.content_index, frame.text, events)
            case f.RefusalDone():
                message = self._at(frame.output_index, OpenMessage)
                message.parts[frame.content_index].is_refusal = True
                message.said(frame.content_index, frame.refusal, events)
            case _:
                pass

    def _turn(
        self, frame: f.Created | f.Completed | f.Incomplete | f.Failed | f.Error, events: list[StreamEvent]
    ) -> None:
        """Take what is about the reply as a whole. Raise the error that it ends with."""
        if isinstance(frame, f.Error):
            raise _failure(frame.error or f.Fault(frame.code, None, frame.message))
        self._count(frame.response)
        match frame:
            case f.Completed():
                self._ending = "completed"
                self.is_complete = True
                self._complete(frame.response, events)
            case f.Incomplete(response=f.Response(incomplete_details=details)):
                self._ending = "incomplete"
                self.is_complete = True
                self._shortfall = (details.reason if details else None) or ""
            case f.Failed():
                raise _failure(frame.response.error or f.Fault())
            case _:
                pass

    def _complete(self, response: f.Response, events: list[StreamEvent]) -> None:
        """End what was left open. A reply of which nothing was streamed is read from the last event."""
        if not self._open:
            for index, raw in enumerate(response.output or ()):
                self._close(index, f.read_item(raw), events)
        for item in self._open.values():
            if isinstance(item, OpenCall):
                item.end(events)

    def _at(self, index: int, kind: type[_O]) -> _O:
        """Return the item at a place of the reply. It need not have been announced."""
        item = self._open.get(index)
        if type(item) is kind:
            return item
        if item is not None:
            raise StreamBroken("the service mixed up the items of its answer")
        made = self._open[index] = kind()
        return made

    def _begin(self, index: int, item: f.Item | None, events: list[StreamEvent]) -> None:
        match item:
            case f.CallItem():
                self._at(index, OpenCall).start(item, self._call_ids, events)
            case f.MessageItem():
                self._at(index, OpenMessage)
            case f.ReasoningItem():
                self._at(index, OpenThought)
            case None:
                pass

    def _close(self, index: int, item: f.Item | None, events: list[StreamEvent]) -> None:
        match item:
            case f.CallItem():
                self._at(index, OpenCall).close(item, self._call_ids, events)
            case f.MessageItem():
                self._at(index, OpenMessage).close(item, events)
            case f.ReasoningItem():
                self._at(index, OpenThought).close(item, events)
            case None:
                pass

    def _count(self, response: f.Response) -> None:
        # Usage may be told twice; the last one counts, once.
        self._usage = response.usage or self._usage


def _counters(usage: f.Usage) -> Counters:
    """Return the counters; what the service says was read from or written to its cache is part of its input."""
    given = usage.input_tokens_details or f.InputDetails()
    made = usage.output_tokens_details or f.OutputDetails()
    read, written = given.cached_tokens or 0, given.cache_write_tokens or 0
    fresh = max(0, (usage.input_tokens or 0) - read - written)
    return Counters(fresh, usage.output_tokens or 0, read, written, 0.0, reasoning=made.reasoning_tokens or 0)


def _failure(fault: f.Fault) -> ProviderError:
    from zot.providers.api_errors import in_stream  # Who asks for the first time waits for what is loaded.

    code = str(fault.code or fault.type or "server_error")
    return in_stream(code, fault.message or "the service gave no reason")
