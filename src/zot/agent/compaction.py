"""Compaction: estimate the context, prune old tool output, summarise, retry when a request does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

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
from zot.messages import TranscriptBlock as Block
from zot.providers.base import Model, common_prefix
from zot.store import Spliced

if TYPE_CHECKING:
    from zot.agent.loop import Agent  # It asks us to make room, and we ask it for a summary.
    from zot.agent.run import Run
    from zot.agent.transcript import Transcript

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


#: How many of the newest messages are not touched: the model is still working with them.
KEEP_RECENT = 8
#: Results up to this length stay as they are.
MAX_RESULT_CHARS = 2000
_HEAD_CHARS = 700
_TAIL_CHARS = 500


def prune(messages: Sequence[Message], upto: int) -> tuple[list[Message], int]:
    """Return ``messages`` with shorter results in the first ``upto`` of them, and how many results that were.

    What is not changed is the same object as before. Calls and results stay together: nothing is left out.
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
    """Return the beginning and the end of ``text``, and how much is missing between them."""
    if len(text) <= head + tail:
        return text
    end = text[len(text) - tail :]
    return f"{text[:head]}\n[... {len(text) - head - tail} characters left out ...]\n{end}"


def _pruned(block: TranscriptBlock) -> TranscriptBlock:
    """Return a result that is short; the same one if it is short already."""
    if not isinstance(block, ResultBlock):
        return block
    has_image = any(isinstance(item, ImageBlock) for item in block.content)
    if (
        not has_image
        and sum(len(item.text) for item in block.content if isinstance(item, TextBlock)) <= MAX_RESULT_CHARS
    ):
        return block
    text = "\n".join(_told(item) for item in block.content)
    return ResultBlock(block.call_id, block.is_error, (TextBlock(shorten(text, _HEAD_CHARS, _TAIL_CHARS)),))


def _told(item: TextBlock | ImageBlock) -> str:
    if isinstance(item, TextBlock):
        return item.text
    return f"[an image was here: {item.mime_type}, {len(item.data)} bytes]"


#: How many of the newest messages stay as they are, at least.
KEEP_MESSAGES = 4
_MAX_BLOCK_CHARS = 4000
#: Of a conversation that is too long to be read at once: how much may be filled, from the newest message back, with
#: messages of up to so many characters.
_SHARES = ((0.5, 1_000_000), (0.8, 1000), (1.0, 200))
#: The empty line between two messages.
_GAP = 2
#: Bytes that a token stands for, at worst, in what is to be summarised.
_compaction_BYTES_PER_TOKEN = 3
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


async def compact(agent: Agent, run: Run) -> None:
    """Replace all but the newest messages by a summary. Raise UserError if there is nothing to gain."""
    messages = run.recorder.transcript.messages
    upto = boundary(messages, KEEP_MESSAGES)
    if upto <= first_new(messages):
        raise UserError(f"nothing to compact: {_how_many(messages)}, and the newest {KEEP_MESSAGES} stay as they are")
    summary = await summarise(agent, run, messages[:upto], window=agent.gauge.window(agent.model))
    run.compacted(Spliced(0, upto, (summary_of(summary, run.now()),), "compaction"), summary.shown)


def _how_many(messages: Sequence[Message]) -> str:
    return f"the conversation has {len(messages)} message{'' if len(messages) == 1 else 's'}"


def undo_compaction(transcript: Transcript) -> Spliced:
    """Return the change that takes the newest compaction back. Raise UserError if there is none."""
    if transcript.undo is None:
        raise UserError("there is no compaction to undo")
    return transcript.undo


def boundary(messages: Sequence[Message], keep: int) -> int:
    """Return where the newest ``keep`` messages begin, or a little before: a result is never parted from its call."""
    at = max(0, len(messages) - keep)
    while at > 0 and messages[at].role == "tool":
        at -= 1
    return at


def first_new(messages: Sequence[Message]) -> int:
    """Return where what has not been summarised yet begins."""
    return 1 if messages and _earlier_notes(messages[0]) else 0


class Summary(msgspec.Struct, frozen=True):
    """What the model said about a conversation, and what of that clients may see."""

    text: str
    shown: str


def summary_of(summary: Summary, time: str) -> Message:
    """Return the message that stands for what was summarised."""
    shown = None if summary.shown == summary.text else f"{_HEADING}\n\n{summary.shown}"
    return Message("user", (TextBlock(f"{_HEADING}\n\n{summary.text}"),), time, shown_text=shown)


async def summarise(agent: Agent, run: Run, messages: Sequence[Message], *, window: int) -> Summary:
    """Return what the model says about ``messages``, in a request that fits into ``window`` tokens.

    Extensions that decide about messages decide about what is shown of it, too: it has all that was said in it.

    Raise EmptySummary, BudgetExhausted, ProviderError and the like.
    """
    question = Message("user", (TextBlock(_question(messages, _budget_bytes(window))),), run.now())
    reply = await agent.ask_plainly(_SYSTEM, [question], run, max_tokens=min(SUMMARY_TOKENS, max(1, window // 4)))
    text = text_of(reply.content).strip()
    if not text:
        raise EmptySummary("nothing was compacted: the model gave an empty summary")
    text = f"{text}\n\n{_CUT_OFF}" if reply.stop == "length" else text
    return Summary(text, await _shown(agent, run, text))


async def _shown(agent: Agent, run: Run, text: str) -> str:
    if not agent.extensions.holds_messages:
        return text
    await run.recorder.settled()
    decision = await agent.extensions.message_written(text)
    return decision.text if decision.refusal is None else f"(held back: {decision.refusal})"


def _budget_bytes(window: int) -> int:
    """Return how long the question may be. A quarter of the window stays free: for the answer, and for our errors."""
    return max(window - SUMMARY_TOKENS, window // 2) * 3 // 4 * _compaction_BYTES_PER_TOKEN


def _earlier_notes(message: Message) -> str:
    """Return the summary that a message is; "" if it is none."""
    text = text_of(message.content)
    return text.removeprefix(_HEADING).strip() if message.role == "user" and text.startswith(_HEADING) else ""


def _question(messages: Sequence[Message], budget_bytes: int) -> str:
    start = first_new(messages)
    notes = _earlier_notes(messages[0]) if start else ""
    parts = [
        f"[{message.role}]\n" + "\n".join(_render(block) for block in message.content) for message in messages[start:]
    ]
    conversation = "\n\n".join(_fitted(parts, budget_bytes - size_of(notes)))
    asked = f"<conversation>\n{conversation}\n</conversation>\n\n"
    return f"<notes>\n{notes}\n</notes>\n\n{asked}{_UPDATE}" if notes else f"{asked}{_TASK}"


def _fitted(parts: Sequence[str], budget_bytes: int) -> list[str]:
    """Return ``parts`` so that they fit together: the older ones shorter, and the oldest left out, if they must be."""
    if sum(size_of(part) + _GAP for part in parts) <= budget_bytes:
        return list(parts)
    told: list[str] = []
    used = 0
    for part in reversed(parts):
        shorter = ((shorten(part, chars // 2, chars // 2), share * budget_bytes) for share, chars in _SHARES)
        text = next((text for text, allowed in shorter if used + size_of(text) + _GAP <= allowed), None)
        if text is None:
            break
        told.append(text)
        used += size_of(text) + _GAP
    missing = len(parts) - len(told)
    return [*([f"(the oldest {missing} messages are left out)"] if missing else []), *reversed(told)]


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


#: How full the conversation may be afterwards, of what it may be: room is made seldom, and then a lot of it, because
#: whatever changes near the beginning costs what the service has cached behind it.
_GOAL = 0.7
#: What must be gained for it to be worth anything.
_PROGRESS = 0.1
#: The HTTP status that says nothing about tokens, and so nothing about the window.
_TOO_MANY_BYTES = 413
#: A request that the service does not accept, without saying why, may be too long if it takes so much of the window.
_SUSPECT = 0.7
#: What a user asked for stays as it was said if it takes no more than this of what fits.
_MAX_REQUEST = 0.25


class AutoCompact(msgspec.Struct, frozen=True):
    """Whether room is made without being asked for, and from how many tokens on (None: when the window demands it)."""

    on: bool = True
    at: int | None = None


class Relief:
    """Makes room for one model call."""

    def __init__(self, agent: Agent, run: Run, tools: Sequence[ToolSpec]) -> None:
        self._agent = agent
        self._run = run
        self._tools = tools

    async def before(self) -> None:
        """Make room if the request would not fit, as far as we can tell. If none can be made, the service decides.

        Raise ContextExhausted if the service finds even a part of it too long, ProviderError.
        """
        if not self._agent.auto_compact.on or self._run.cramped:
            return
        need, limit = self._need(), self._agent.gauge.limit(self._agent.model, self._agent.auto_compact.at)
        if need > limit:
            self._run.cramped = not await self._free(need, limit)

    async def after(self, refusal: ProviderError) -> None:
        """Make room if that is why the service refused, once in a run. Raise ``refusal``, or ContextExhausted."""
        need, window = self._need(), self._window()
        if isinstance(refusal, ContextTooLong):
            if refusal.status != _TOO_MANY_BYTES:
                self._agent.gauge.refused(self._agent.asked, need)
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

    async def _free(self, need: int, limit: int) -> bool:
        """Make the conversation so short that it takes ``limit`` tokens instead of ``need``, or much less than it did.

        Old output of tools goes first; then a summary takes the place of all that is old; then also new output is
        shortened. False if hardly anything is gained: then it stays as it is.

        Raise ContextExhausted if the service finds even what is to be summarised too long.
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
        """Return a summary, and the conversation with it instead of what is old; None if there is nothing to gain."""
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
        """Return what the user asked for last, if that is about to be summarised: it should stay as it was said."""
        if any(message.role == "user" for message in messages[upto:]):
            return []
        said = [message for message in messages[first_new(messages) : upto] if message.role == "user"][-1:]
        return said if self._weigh(said) <= _MAX_REQUEST * limit else []

    def _need(self) -> int:
        return self._agent.need(self._run.recorder.transcript, self._tools)

    def _weigh(self, messages: Sequence[Message]) -> float:
        return self._agent.gauge.weigh(messages)

    def _window(self) -> int:
        return self._agent.gauge.window(self._agent.model)

    def _exhausted(self, need: int, refusal: ProviderError | None = None) -> ContextExhausted:
        window, said = self._window(), "" if refusal is None else f" ({refusal})"
        return ContextExhausted(
            f"context exhausted: the next request takes about {need} tokens, too much for the model, and hardly "
            f"anything more can be left out of it; clear the conversation, or use a model that holds more{said}",
            needed=need,
            window=window,
        )


def _splice(old: Sequence[Message], new: Sequence[Message]) -> Spliced:
    """Return the change that makes ``new`` of ``old`` and touches no message that is in both, at either end."""
    shorter = min(len(old), len(new))
    head = next((at for at in range(shorter) if old[at] is not new[at]), shorter)
    tail = next((at for at in range(shorter - head) if old[-1 - at] is not new[-1 - at]), shorter - head)
    return Spliced(head, len(old) - tail, tuple(new[head : len(new) - tail]), "compaction")
