"""Compaction: a long conversation becomes a summary and its newest messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from zot.agent.headroom import SUMMARY_TOKENS, size_of
from zot.agent.pruning import shorten
from zot.errors import EmptySummary, UserError
from zot.messages import (
    CallBlock,
    ImageBlock,
    Message,
    ResultBlock,
    TextBlock,
    ThinkingBlock,
    TranscriptBlock,
    text_of,
)
from zot.store import Spliced

if TYPE_CHECKING:
    from zot.agent.loop import Agent  # It asks us to make room, and we ask it for a summary.
    from zot.agent.run import Run
    from zot.agent.transcript import Transcript

#: How many of the newest messages stay as they are, at least.
KEEP_MESSAGES = 4
_MAX_BLOCK_CHARS = 4000
#: Of a conversation that is too long to be read at once: how much may be filled, from the newest message back, with
#: messages of up to so many characters.
_SHARES = ((0.5, 1_000_000), (0.8, 1000), (1.0, 200))
#: The empty line between two messages.
_GAP = 2
#: Bytes that a token stands for, at worst, in what is to be summarised.
_BYTES_PER_TOKEN = 3
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
    return max(window - SUMMARY_TOKENS, window // 2) * 3 // 4 * _BYTES_PER_TOKEN


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
