"""Compaction: a long conversation becomes a summary and its newest messages."""

from __future__ import annotations

from collections.abc import Sequence

from zot.agent.loop import Agent
from zot.agent.run import Run
from zot.errors import UserError
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

#: How many of the newest messages stay as they are, at least.
KEEP_MESSAGES = 4
_MAX_SUMMARY_TOKENS = 4096
_MAX_BLOCK_CHARS = 4000
_HEADING = "## Context Summary (compacted)"
_SYSTEM = (
    "You write hand-over notes for a coding agent whose conversation has become too long. "
    "You are given that conversation as plain text. Do not continue it and do not call tools: only summarise."
)
_TASK = (
    "Write the notes the agent needs to carry on without the conversation. Use these headings and leave out those "
    "with nothing under them: Goal; Constraints and preferences; Done; In progress; Blocked; Decisions and why; "
    "Next steps; Facts to keep (paths, names, commands, error texts, exactly as they were)."
)


async def compact(agent: Agent, run: Run) -> None:
    """Replace all but the newest messages by a summary. Raise UserError if there is nothing to gain."""
    messages = run.recorder.transcript.messages
    boundary = _boundary(messages)
    question = Message("user", (TextBlock(_question(messages[:boundary])),), run.now())
    reply = await agent.ask_plainly(_SYSTEM, [question], run, max_tokens=_MAX_SUMMARY_TOKENS)
    text = text_of(reply.content).strip()
    if not text:
        raise UserError("nothing was compacted: the model gave an empty summary")
    summary = Message("user", (TextBlock(f"{_HEADING}\n\n{text}"),), run.now())
    run.compacted(summary, boundary, text)


def _boundary(messages: Sequence[Message]) -> int:
    """Return where the part that is kept begins. It never begins with the results of a call that is not kept."""
    boundary = len(messages) - KEEP_MESSAGES
    while boundary > 0 and messages[boundary].role == "tool":
        boundary -= 1
    if boundary <= 0:
        raise UserError(f"nothing to compact: the newest {KEEP_MESSAGES} messages are kept as they are")
    return boundary


def _question(messages: Sequence[Message]) -> str:
    parts = [f"[{message.role}]\n" + "\n".join(_render(block) for block in message.content) for message in messages]
    conversation = "\n\n".join(parts)
    return f"<conversation>\n{conversation}\n</conversation>\n\n{_TASK}"


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
    if len(text) <= _MAX_BLOCK_CHARS:
        return text
    half = _MAX_BLOCK_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
