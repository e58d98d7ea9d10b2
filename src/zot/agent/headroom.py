"""How much of a model's window the next request takes: measured where we can, estimated where we must. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import msgspec

from zot.messages import CallBlock, Counters, ImageBlock, Message, ResultBlock, TextBlock, ThinkingBlock, ToolSpec
from zot.messages import TranscriptBlock as Block
from zot.providers.base import Model, common_prefix

#: How long a summary may be.
SUMMARY_TOKENS = 4096
#: How much is left free for an answer, at most: few are longer, and what is left free is never used.
_ANSWER_TOKENS = 16_384
#: An answer gets at least so much, however full the window is.
_LEAST_ANSWER_TOKENS = 4096
_BYTES_PER_TOKEN = 4
#: No token stands for so many bytes: the longest that are known, in any vocabulary, have 128.
_MOST_BYTES_PER_TOKEN = 256
#: What most services count for an image.
_IMAGE_TOKENS = 1600
#: What the form of a block or message takes, besides what is said in it.
_FORM_BYTES = 16
#: No window is so many times smaller than we were told.
_WRONG_BY = 16
#: Below this, what a service adds by itself says more than what we sent.
_TELLING_TOKENS = 2000


class Gauge:
    """Tells how many tokens a conversation takes, by what the service counted last and by the bytes added since.

    Each message is weighed once: what a request costs here does not grow with the conversation.
    """

    #: What came with the newest request, of any session, besides the messages, and its weight: most have the same.
    _constant: ClassVar[tuple[str, tuple[ToolSpec, ...], float]] = ("", (), 0.0)

    def __init__(self) -> None:
        self._messages: list[Message] = []
        #: The weight of all messages up to and including each, in tokens as estimated.
        self._sums: list[float] = []
        #: How many messages were measured, and what they took together with everything else in the request.
        self._measured = 0
        self._tokens = 0.0
        #: How many tokens an estimated one was, when we last knew.
        self._ratio = 1.0
        #: What models have refused as too long: the window is smaller than we were told.
        self._refused: dict[str, int] = {}

    def need(self, system: str, tools: Iterable[ToolSpec], messages: Sequence[Message]) -> int:
        """Return how many tokens a request with all this takes."""
        self._follow(messages)
        if self._measured:
            return round(self._tokens + self._ratio * (self._sum() - self._sums[self._measured - 1]))
        return round(self._ratio * (self._fixed(system, tuple(tools)) + self._sum()))

    def measured(self, counters: Counters, system: str, tools: Iterable[ToolSpec], messages: Sequence[Message]) -> None:
        """A service has counted: ``messages``, the last of which is its answer, have taken so much."""
        tokens = counters.input + counters.cache_read + counters.cache_write + counters.output
        self._follow(messages)
        if not tokens or not messages:
            return
        self._measured, self._tokens = len(messages), tokens
        estimate = self._fixed(system, tuple(tools)) + self._sum()
        if estimate >= _TELLING_TOKENS:
            self._ratio = min(3.0, max(0.5, tokens / estimate))

    def weigh(self, messages: Iterable[Message]) -> float:
        """Return how many tokens ``messages`` take, as estimated by what was measured before."""
        return self._ratio * sum(map(_weight, messages))

    def rebased(self, messages: Sequence[Message], tokens: float) -> None:
        """The conversation has been made shorter; a request now takes ``tokens``."""
        self._follow(messages)
        self._measured, self._tokens = len(messages), tokens

    def refused(self, model: Model, tokens: int) -> None:
        """The service found so many tokens too long. What is small must have been refused for another reason."""
        if tokens < model.context_window // _WRONG_BY:
            return
        self._refused[model.id] = min(tokens, self._refused.get(model.id, tokens))

    def window(self, model: Model) -> int:
        """Return how many tokens a model can hold, as far as we know."""
        return min(model.context_window, self._refused.get(model.id, model.context_window))

    def limit(self, model: Model, at: int | None) -> int:
        """Return how many tokens a request may take before room must be made; ``at`` is what the user wants."""
        window = self.window(model)
        free = max(window - min(model.max_output, _ANSWER_TOKENS) - SUMMARY_TOKENS, window // 2)
        return free if at is None else min(free, at)

    def _fixed(self, system: str, tools: tuple[ToolSpec, ...]) -> float:
        """Return the weight of what comes with every request, which hardly ever changes."""
        *known, weight = Gauge._constant
        if known != [system, tools]:
            weight = _weight_of_constant(system, tools)
            Gauge._constant = system, tools, weight
        return weight

    def _sum(self) -> float:
        return self._sums[-1] if self._sums else 0.0

    def _follow(self, messages: Sequence[Message]) -> None:
        """Know ``messages``, of which most are known already."""
        same = common_prefix(self._messages, messages)
        del self._messages[same:], self._sums[same:]
        if self._measured > same:
            self._measured = 0  # What was measured is no longer what would be sent.
        for message in messages[same:]:
            self._sums.append(self._sum() + _weight(message))
            self._messages.append(message)


def answer_tokens(model: Model, need: int) -> int:
    """Return how long an answer may be to a request that takes ``need``: services refuse what could overflow.

    What is larger than the window we were told of tells us that it is not the window.
    """
    left = model.context_window - need - need // 20
    if need >= model.context_window or left >= model.max_output:
        return model.max_output
    return max(left, min(model.max_output, _LEAST_ANSWER_TOKENS))


def least_tokens(text: str) -> int:
    """Return how many tokens ``text`` takes at least, whoever counts: white space may be merged, or be dropped."""
    return sum(map(size_of, text.split())) // _MOST_BYTES_PER_TOKEN


def size_of(text: str) -> int:
    """Return how many bytes ``text`` is."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _weight_of_constant(system: str, tools: Iterable[ToolSpec]) -> float:
    described = sum(
        size_of(tool.name) + size_of(tool.description) + len(msgspec.json.encode(tool.schema)) for tool in tools
    )
    return (size_of(system) + described) / _BYTES_PER_TOKEN


def _weight(message: Message) -> float:
    return _FORM_BYTES / _BYTES_PER_TOKEN + sum(map(_block_weight, message.content))


def _block_weight(block: Block) -> float:
    match block:
        case ImageBlock():
            return _IMAGE_TOKENS
        case ResultBlock(content=content):
            return _FORM_BYTES / _BYTES_PER_TOKEN + sum(map(_block_weight, content))
        case TextBlock(text=text):
            size = size_of(text)
        case ThinkingBlock(text=text, signature=signature, redacted=redacted):
            size = size_of(text) + len(signature) + len(redacted)
        case CallBlock(name=name, args=args, malformed=malformed, signature=signature):
            size = size_of(name) + len(msgspec.json.encode(args)) + size_of(malformed) + len(signature)
    return (_FORM_BYTES + size) / _BYTES_PER_TOKEN
