"""Compaction: estimate the context, prune old tool output, summarise, retry when a request does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec

from zot.errors import BadRequest, ContextExhausted, ContextTooLong, EmptySummary, ProviderError, UserError
from zot.messages import (
    CallBlock,
    Counters,
    ImageBlock,
    Message,
    ResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolSpec,
    TranscriptBlock,
    text_of,
)
from zot.providers.base import Model, common_prefix
from zot.store import MessagesReplaced

if TYPE_CHECKING:
    from zot.agent.loop import Agent  # Mutual dependency: it calls us to make room, we call it for a summary.
    from zot.agent.run import Run
    from zot.agent.transcript import Transcript

#: Longest summary.
SUMMARY_TOKENS = 4096
#: Newest messages that a summary does not replace, at least.
KEEP_MESSAGES = 4
#: Newest messages that pruning does not touch: the model is still working with them.
KEEP_RECENT = 8
#: Longest result that pruning leaves unchanged.
MAX_RESULT_CHARS = 2000

#: Most tokens reserved for an answer: few answers are longer, and the reserve is otherwise wasted.
_ANSWER_TOKENS = 16_384
#: Least room for an answer, however full the window is.
_LEAST_ANSWER_TOKENS = 4096
_BYTES_PER_TOKEN = 4
#: Upper bound of bytes in a token: the longest tokens known, in any vocabulary, have 128.
_MOST_BYTES_PER_TOKEN = 256
#: Tokens that most services count for an image.
_IMAGE_TOKENS = 1600
#: Overhead of a block or message besides its content.
_FORM_BYTES = 16
#: A real window is never smaller than the configured one by this factor.
_WRONG_BY = 16
#: Below this, the overhead a service adds distorts the ratio.
_TELLING_TOKENS = 2000

_HEAD_CHARS = 700
_TAIL_CHARS = 500
_MAX_BLOCK_CHARS = 4000
#: For a conversation too long to summarise whole, from the newest message back: fill this share of the budget with
#: messages cut to this many characters.
_SHARES = ((0.5, 1_000_000), (0.8, 1000), (1.0, 200))
#: The empty line between two messages.
_GAP = 2
#: Worst case for the text to summarise.
_SUMMARY_BYTES_PER_TOKEN = 3
_HEADING = "## Context Summary (compacted)"
_CUT_OFF = "[These notes were cut off at the length limit.]"
_SYSTEM = (
    "You write hand-over notes for a coding agent whose conversation has become too long. "
    "You are given that conversation as plain text. Do not continue it and do not call tools: only summarise."
)
_HEADINGS = (
    "Use these headings and leave out those with nothing under them: Goal; Constraints and preferences; Done; "
    "In progress; Blocked; Decisions and why; Next steps; Facts to keep (paths, names, commands, error texts, exactly "
    "as they were)."
)
_TASK = f"Write the notes the agent needs to carry on without the conversation. {_HEADINGS}"
_UPDATE = (
    "The conversation follows the notes above, which were written earlier. Write them anew, so that they alone are "
    f"what the agent needs to carry on: keep what still holds, change what does not, add what is new. {_HEADINGS}"
)

#: Share of the limit to fill after making room. Compact rarely but much: a change near the beginning invalidates
#: the service's cache of all that follows.
_GOAL = 0.7
#: Least gain that is worth a compaction.
_PROGRESS = 0.1
#: HTTP status about bytes, not tokens: says nothing about the window.
_TOO_MANY_BYTES = 413
#: An unexplained refusal may mean "too long" if the request takes this share of the window.
_SUSPECT = 0.7
#: The user's request stays verbatim up to this share of the limit.
_MAX_REQUEST = 0.25


class ContextShares(NamedTuple):
    """The estimated tokens of each part of a request: what fills the model's window."""

    system: int
    tools: int
    messages: int
    results: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)


class ContextEstimator:
    """Estimator of the tokens a conversation takes: the service's last count plus the bytes added since.

    Each message is weighed once, so the cost of an estimate does not grow with the conversation.
    """

    #: System prompt, tools and their weight in the newest request of any session: most sessions share them.
    _constant: ClassVar[tuple[str, tuple[ToolSpec, ...], float]] = ("", (), 0.0)

    def __init__(self) -> None:
        self._messages: list[Message] = []
        #: Running sum of the messages' estimated tokens.
        self._sums: list[float] = []
        #: Number of messages the service counted, and the tokens it counted for the whole request.
        self._measured = 0
        self._tokens = 0.0
        #: Counted tokens per estimated token, at the last count.
        self._ratio = 1.0
        #: Smallest size each model refused as too long: its window is smaller than configured.
        self._refused: dict[str, int] = {}

    def need(self, system: str, tools: Iterable[ToolSpec], messages: Sequence[Message]) -> int:
        """Return the estimated tokens of a request."""
        self._follow(messages)
        if self._measured:
            return round(self._tokens + self._ratio * (self._sum() - self._sums[self._measured - 1]))
        return round(self._ratio * (self._fixed(system, tuple(tools)) + self._sum()))

    def shares(self, system: str, tools: Iterable[ToolSpec], messages: Sequence[Message]) -> ContextShares:
        """Return the parts of `need`. The service counts whole requests only, so each part has its estimated share."""
        tools = tuple(tools)
        need = self.need(system, tools, messages)
        results = sum(_weight(message) for message in messages if message.role == "tool")
        parts = _weight_of_constant(system, ()), _weight_of_constant("", tools), self._sum() - results, results
        scale = need / (sum(parts) or 1.0)
        fixed, described, answered = round(parts[0] * scale), round(parts[1] * scale), round(results * scale)
        return ContextShares(fixed, described, need - fixed - described - answered, answered)

    def measured(self, counters: Counters, system: str, tools: Iterable[ToolSpec], messages: Sequence[Message]) -> None:
        """Record the service's count for ``messages``, the last of which is its reply."""
        tokens = counters.input + counters.cache_read + counters.cache_write + counters.output
        self._follow(messages)
        if not tokens or not messages:
            return
        self._measured, self._tokens = len(messages), tokens
        estimate = self._fixed(system, tuple(tools)) + self._sum()
        if estimate >= _TELLING_TOKENS:
            self._ratio = min(3.0, max(0.5, tokens / estimate))

    def weigh(self, messages: Iterable[Message]) -> float:
        """Return the estimated tokens of ``messages``."""
        return self._ratio * sum(map(_weight, messages))

    def rebased(self, messages: Sequence[Message], tokens: float) -> None:
        """Record that the conversation was shortened and a request now takes ``tokens``."""
        self._follow(messages)
        self._measured, self._tokens = len(messages), tokens

    def refused(self, model: Model, tokens: int) -> None:
        """Record that the service refused a request of ``tokens`` as too long. A small one must have another cause."""
        if tokens < model.context_window // _WRONG_BY:
            return
        self._refused[model.id] = min(tokens, self._refused.get(model.id, tokens))

    def window(self, model: Model) -> int:
        """Return the model's window in tokens, as far as known."""
        return min(model.context_window, self._refused.get(model.id, model.context_window))

    def limit(self, model: Model, at: int | None) -> int:
        """Return the tokens a request may take before room must be made; ``at`` is the user's own limit."""
        window = self.window(model)
        free = max(window - min(model.max_output, _ANSWER_TOKENS) - SUMMARY_TOKENS, window // 2)
        return free if at is None else min(free, at)

    def _fixed(self, system: str, tools: tuple[ToolSpec, ...]) -> float:
        """Return the weight of the system prompt and tools, which hardly ever change."""
        *known, weight = ContextEstimator._constant
        if known != [system, tools]:
            weight = _weight_of_constant(system, tools)
            ContextEstimator._constant = system, tools, weight
        return weight

    def _sum(self) -> float:
        return self._sums[-1] if self._sums else 0.0

    def _follow(self, messages: Sequence[Message]) -> None:
        """Update the sums for ``messages``, most of which are known already."""
        same = common_prefix(self._messages, messages)
        del self._messages[same:], self._sums[same:]
        if self._measured > same:
            self._measured = 0  # The count no longer describes the messages to send.
        for message in messages[same:]:
            self._sums.append(self._sum() + _weight(message))
            self._messages.append(message)


def answer_tokens(model: Model, need: int) -> int:
    """Return the most tokens an answer may have after a request of ``need``: services refuse a possible overflow.

    If ``need`` exceeds the configured window, that window is wrong and does not limit the answer.
    """
    left = model.context_window - need - need // 20
    if need >= model.context_window or left >= model.max_output:
        return model.max_output
    return max(left, min(model.max_output, _LEAST_ANSWER_TOKENS))


def min_tokens(text: str) -> int:
    """Return a lower bound of tokens for ``text`` in any tokenizer, which may merge or drop white space."""
    return sum(map(utf8_length, text.split())) // _MOST_BYTES_PER_TOKEN


def utf8_length(text: str) -> int:
    """Return the length of ``text`` in UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _weight_of_constant(system: str, tools: Iterable[ToolSpec]) -> float:
    described = sum(
        utf8_length(tool.name) + utf8_length(tool.description) + len(msgspec.json.encode(tool.schema)) for tool in tools
    )
    return (utf8_length(system) + described) / _BYTES_PER_TOKEN


def _weight(message: Message) -> float:
    return _FORM_BYTES / _BYTES_PER_TOKEN + sum(map(_block_weight, message.content))


def _block_weight(block: TranscriptBlock) -> float:
    match block:
        case ImageBlock():
            return _IMAGE_TOKENS
        case ResultBlock(content=content):
            return _FORM_BYTES / _BYTES_PER_TOKEN + sum(map(_block_weight, content))
        case TextBlock(text=text):
            size = utf8_length(text)
        case ThinkingBlock(text=text, signature=signature, redacted=redacted):
            size = utf8_length(text) + len(signature) + len(redacted)
        case CallBlock(name=name, args=args, malformed=malformed, signature=signature):
            size = utf8_length(name) + len(msgspec.json.encode(args)) + utf8_length(malformed) + len(signature)
    return (_FORM_BYTES + size) / _BYTES_PER_TOKEN


def prune(messages: Sequence[Message], upto: int) -> tuple[list[Message], int]:
    """Return ``messages`` with results in the first ``upto`` shortened, and how many were.

    Unchanged messages are the same objects. No call loses its result.
    """
    pruned, count = list(messages), 0
    for at, message in enumerate(messages[:upto]):
        if message.role == "tool":
            content = tuple(_pruned(block) for block in message.content)
            changed = sum(new is not old for new, old in zip(content, message.content, strict=True))
            if changed:
                pruned[at] = msgspec.structs.replace(message, content=content)
                count += changed
    return pruned, count


def shorten(text: str, head: int, tail: int) -> str:
    """Return the beginning and end of ``text``, with a note of the omitted length between them."""
    if len(text) <= head + tail:
        return text
    end = text[len(text) - tail :]
    return f"{text[:head]}\n[... {len(text) - head - tail} characters left out ...]\n{end}"


def _pruned(block: TranscriptBlock) -> TranscriptBlock:
    """Return a shortened result; the same object if it is short already."""
    if not isinstance(block, ResultBlock):
        return block
    has_image = any(isinstance(item, ImageBlock) for item in block.content)
    if (
        not has_image
        and sum(len(item.text) for item in block.content if isinstance(item, TextBlock)) <= MAX_RESULT_CHARS
    ):
        return block
    text = "\n".join(_text_of_item(item) for item in block.content)
    return ResultBlock(block.call_id, block.is_error, (TextBlock(shorten(text, _HEAD_CHARS, _TAIL_CHARS)),))


def _text_of_item(item: TextBlock | ImageBlock) -> str:
    if isinstance(item, TextBlock):
        return item.text
    return f"[an image was here: {item.mime_type}, {len(item.data)} bytes]"


async def compact(agent: Agent, run: Run) -> None:
    """Replace all but the newest messages by a summary. Raise UserError if there is nothing to gain."""
    messages = run.recorder.transcript.messages
    upto = boundary(messages, KEEP_MESSAGES)
    if upto <= first_new(messages):
        raise UserError(f"nothing to compact: {_how_many(messages)}, and the newest {KEEP_MESSAGES} stay as they are")
    summary = await summarise(agent, run, messages[:upto], window=agent.gauge.window(agent.model))
    run.compacted(MessagesReplaced(0, upto, (summary_of(summary, run.now()),), "compaction"), summary.shown)


def _how_many(messages: Sequence[Message]) -> str:
    return f"the conversation has {len(messages)} message{'' if len(messages) == 1 else 's'}"


def undo_compaction(transcript: Transcript) -> MessagesReplaced:
    """Return the change that undoes the newest compaction. Raise UserError if there is none."""
    if transcript.undo is None:
        raise UserError("there is no compaction to undo")
    return transcript.undo


def boundary(messages: Sequence[Message], keep: int) -> int:
    """Return the index of the newest ``keep`` messages, or an earlier one that does not split a call from its
    result."""
    at = max(0, len(messages) - keep)
    while at > 0 and messages[at].role == "tool":
        at -= 1
    return at


def first_new(messages: Sequence[Message]) -> int:
    """Return the index of the first message that is not a summary."""
    return 1 if messages and _earlier_notes(messages[0]) else 0


class Summary(msgspec.Struct, frozen=True):
    """The model's summary of a conversation, and the text of it that clients may see."""

    text: str
    shown: str


def summary_of(summary: Summary, time: str) -> Message:
    """Return the message that replaces the summarised ones."""
    shown = None if summary.shown == summary.text else f"{_HEADING}\n\n{summary.shown}"
    return Message("user", (TextBlock(f"{_HEADING}\n\n{summary.text}"),), time, shown_text=shown)


async def summarise(agent: Agent, run: Run, messages: Sequence[Message], *, window: int) -> Summary:
    """Return the model's summary of ``messages``, from a request that fits into ``window`` tokens.

    Extensions that intercept messages also decide about the text shown: it repeats the conversation.

    Raise EmptySummary, BudgetExhausted, ProviderError and the like.
    """
    question = Message("user", (TextBlock(_question(messages, _budget_bytes(window))),), run.now())
    reply = await agent.ask_plainly(_SYSTEM, [question], run, max_tokens=min(SUMMARY_TOKENS, max(1, window // 4)))
    text = text_of(reply.content).strip()
    if not text:
        raise EmptySummary("nothing was compacted: the model returned an empty summary")
    text = f"{text}\n\n{_CUT_OFF}" if reply.stop == "length" else text
    return Summary(text, await _shown(agent, run, text))


async def _shown(agent: Agent, run: Run, text: str) -> str:
    if not agent.extensions.holds_messages:
        return text
    await run.recorder.store.settled()
    decision = await agent.extensions.message_written(text)
    return decision.text if decision.refusal is None else f"(held back: {decision.refusal})"


def _budget_bytes(window: int) -> int:
    """Return the longest question. A quarter of the window stays free for the answer and for estimation errors."""
    return max(window - SUMMARY_TOKENS, window // 2) * 3 // 4 * _SUMMARY_BYTES_PER_TOKEN


def _earlier_notes(message: Message) -> str:
    """Return the summary in ``message``; "" if it is not one."""
    text = text_of(message.content)
    return text.removeprefix(_HEADING).strip() if message.role == "user" and text.startswith(_HEADING) else ""


def _question(messages: Sequence[Message], budget_bytes: int) -> str:
    start = first_new(messages)
    notes = _earlier_notes(messages[0]) if start else ""
    parts = [
        f"[{message.role}]\n" + "\n".join(_render(block) for block in message.content) for message in messages[start:]
    ]
    conversation = "\n\n".join(_fitted(parts, budget_bytes - utf8_length(notes)))
    asked = f"<conversation>\n{conversation}\n</conversation>\n\n"
    return f"<notes>\n{notes}\n</notes>\n\n{asked}{_UPDATE}" if notes else f"{asked}{_TASK}"


def _fitted(parts: Sequence[str], budget_bytes: int) -> list[str]:
    """Return ``parts`` cut to fit the budget: older ones shortened, the oldest omitted."""
    if sum(utf8_length(part) + _GAP for part in parts) <= budget_bytes:
        return list(parts)
    fitted: list[str] = []
    used = 0
    for part in reversed(parts):
        shorter = ((shorten(part, chars // 2, chars // 2), share * budget_bytes) for share, chars in _SHARES)
        text = next((text for text, allowed in shorter if used + utf8_length(text) + _GAP <= allowed), None)
        if text is None:
            break
        fitted.append(text)
        used += utf8_length(text) + _GAP
    missing = len(parts) - len(fitted)
    return [*([f"(the oldest {missing} messages are left out)"] if missing else []), *reversed(fitted)]


def _render(block: TranscriptBlock) -> str:
    match block:
        case TextBlock(text=text):
            return _shorten(text)
        case ThinkingBlock():
            return "(thought about it)"
        case ImageBlock(mime_type=mime_type, data=data):
            return f"(image: {mime_type}, {len(data)} bytes)"
        case CallBlock(name=name, args=args, malformed=malformed):
            return _shorten(f"(calls {name} with {args if args is not None else malformed})")
        case ResultBlock(is_error=is_error, content=content):
            inner = "\n".join(_render(item) for item in content)
            return f"({'failed' if is_error else 'result'}: {_shorten(inner)})"


def _shorten(text: str) -> str:
    return shorten(text, _MAX_BLOCK_CHARS // 2, _MAX_BLOCK_CHARS // 2)


class AutoCompact(msgspec.Struct, frozen=True):
    """Automatic compaction: whether it is on, and from how many tokens (None: when the window requires it)."""

    on: bool = True
    at: int | None = None


class ContextCompactor:
    """Makes room in the context for one model call."""

    def __init__(self, agent: Agent, run: Run, tools: Sequence[ToolSpec]) -> None:
        self._agent = agent
        self._run = run
        self._tools = tools

    async def before(self) -> int:
        """Make room if the estimated request would not fit. If no room can be made, the service decides.

        Return the estimated tokens of the request. Raise ContextExhausted if the service finds even a part of it too
        long, or ProviderError.
        """
        need = self._need()
        if not self._agent.auto_compact.on or self._run.cramped:
            return need
        limit = self._agent.gauge.limit(self._agent.model, self._agent.auto_compact.at)
        if need <= limit:
            return need
        self._run.cramped = not await self._free(need, limit)
        return self._need()

    async def after(self, refusal: ProviderError) -> int:
        """Make room after a refusal for length, once in a run. Return the estimated tokens of the request now.

        Raise ``refusal``, or ContextExhausted.
        """
        need, window = self._need(), self._window()
        if isinstance(refusal, ContextTooLong):
            if refusal.status != _TOO_MANY_BYTES:
                self._agent.gauge.refused(self._agent.called_model, need)
        elif not (isinstance(refusal, BadRequest) and need > _SUSPECT * window):
            raise refusal
        if not self._agent.auto_compact.on:
            raise refusal
        if self._run.relieved:
            if not isinstance(refusal, ContextTooLong):
                raise refusal
            raise self._exhausted(need, refusal) from refusal
        self._run.relieved = True
        try:
            is_shorter = await self._free(need, need // 2)
        except ContextExhausted:
            is_shorter = False
        if not is_shorter:
            raise self._exhausted(need, refusal) from refusal
        return self._need()

    async def _free(self, need: int, limit: int) -> bool:
        """Shorten the conversation from ``need`` to ``limit`` tokens, or at least noticeably.

        Prune old tool output first; then replace old messages by a summary; then prune new output too. Return
        False, with no change, if hardly anything is gained.

        Raise ContextExhausted if the service finds even the text to summarise too long.
        """
        old = list(self._run.recorder.transcript.messages)
        excess = need - self._weigh(old)
        new, pruned = prune(old, boundary(old, KEEP_RECENT))
        summary: Summary | None = None
        if excess + self._weigh(new) > _GOAL * limit:
            summary, shorter = await self._summarised(old, limit)
            new, pruned = (shorter, 0) if summary is not None else (new, pruned)
        if excess + self._weigh(new) > limit:
            new, more = prune(new, len(new))
            pruned += more
        left = excess + self._weigh(new)
        if left > limit and left > (1 - _PROGRESS) * need:
            return False
        self._run.compacted(_splice(old, new), "" if summary is None else summary.shown, pruned=pruned)
        self._agent.gauge.rebased(self._run.recorder.transcript.messages, left)
        return True

    async def _summarised(self, messages: Sequence[Message], limit: int) -> tuple[Summary | None, list[Message]]:
        """Return a summary and the conversation that starts with it; None and no change if nothing is gained."""
        upto = boundary(messages, KEEP_MESSAGES)
        if upto <= first_new(messages) or self._weigh(messages[:upto]) < _PROGRESS * limit:
            return None, list(messages)
        try:
            summary = await summarise(self._agent, self._run, messages[:upto], window=self._window())
        except EmptySummary:
            return None, list(messages)
        except ContextTooLong as refusal:
            raise self._exhausted(self._need()) from refusal
        return summary, [summary_of(summary, self._run.now()), *self._request(messages, upto, limit), *messages[upto:]]

    def _request(self, messages: Sequence[Message], upto: int, limit: int) -> list[Message]:
        """Return the user's last request if it would be summarised away: it should stay verbatim."""
        if any(message.role == "user" for message in messages[upto:]):
            return []
        said = [message for message in messages[first_new(messages) : upto] if message.role == "user"][-1:]
        return said if self._weigh(said) <= _MAX_REQUEST * limit else []

    def _need(self) -> int:
        agent = self._agent
        return agent.gauge.need(agent.system, self._tools, self._run.recorder.transcript.messages)

    def _weigh(self, messages: Sequence[Message]) -> float:
        return self._agent.gauge.weigh(messages)

    def _window(self) -> int:
        return self._agent.gauge.window(self._agent.model)

    def _exhausted(self, need: int, refusal: ProviderError | None = None) -> ContextExhausted:
        window, said = self._window(), "" if refusal is None else f" ({refusal})"
        return ContextExhausted(
            f"context exhausted: the next request takes about {need} tokens, more than the model's window, "
            f"and almost nothing is left to compact; clear the conversation, or use a model with a larger window{said}",
            needed=need,
            window=window,
        )


def _splice(old: Sequence[Message], new: Sequence[Message]) -> MessagesReplaced:
    """Return the change from ``old`` to ``new`` that leaves common messages at both ends untouched."""
    shorter = min(len(old), len(new))
    head = next((at for at in range(shorter) if old[at] is not new[at]), shorter)
    tail = next((at for at in range(shorter - head) if old[-1 - at] is not new[-1 - at]), shorter - head)
    return MessagesReplaced(head, len(old) - tail, tuple(new[head : len(new) - tail]), "compaction")
