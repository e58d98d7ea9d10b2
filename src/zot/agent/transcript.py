"""The conversation as sent to the model. Always acceptable to a provider."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from zot.messages import CallBlock, Message, ResultBlock, TextBlock
from zot.store import (
    CallStarted,
    Change,
    FileChanged,
    GuardSet,
    LockChanged,
    MessageAdded,
    MessagesReplaced,
    PermissionGranted,
    SettingsChanged,
    UsageCounted,
)

#: The result for the model of a call whose run was interrupted.
LOST_RESULT = "the result was lost: the run was interrupted"


class Transcript:
    """The messages so far. Changes only through `apply`, so the store can rebuild it."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        #: The change that undoes the newest compaction; None if there is none, or a later splice prevents it.
        self.undo: MessagesReplaced | None = None

    @property
    def messages(self) -> Sequence[Message]:
        """The messages, oldest first. A view: do not keep it across changes."""
        return self._messages

    def __len__(self) -> int:
        return len(self._messages)

    def apply(self, change: Change) -> None:
        """Apply a change. Results of one turn are merged into one message."""
        match change:
            case MessageAdded(message=message):
                self._append(message)
            case MessagesReplaced():
                self._splice(change)
            case (
                SettingsChanged()
                | FileChanged()
                | PermissionGranted()
                | CallStarted()
                | GuardSet()
                | LockChanged()
                | UsageCounted()
            ):
                pass  # settings, permissions and files: not messages

    def unanswered(self) -> list[CallBlock]:
        """Return the calls of the newest assistant message that have no result yet, in order."""
        answered: set[str] = set()
        for message in reversed(self._messages):
            match message.role:
                case "tool":
                    answered |= {block.call_id for block in message.content if isinstance(block, ResultBlock)}
                case "assistant":
                    calls = (block for block in message.content if isinstance(block, CallBlock))
                    return [call for call in calls if call.id not in answered]
                case "user":
                    break
        return []

    def _splice(self, change: MessagesReplaced) -> None:
        replaced = tuple(self._messages[change.start : change.stop])
        self._messages[change.start : change.stop] = change.messages
        # Only the newest is kept: memory for an undo must not grow with the conversation.
        is_view = change.why == "compaction"
        stop = change.start + len(change.messages)
        self.undo = MessagesReplaced(change.start, stop, replaced, "undo") if is_view else None

    def _append(self, message: Message) -> None:
        if message.role == "tool" and self._messages and self._messages[-1].role == "tool":
            last = self._messages[-1]
            message = msgspec.structs.replace(last, content=last.content + message.content)
            self._messages[-1] = message
        else:
            self._messages.append(message)


def repaired(messages: Sequence[Message]) -> list[Message]:
    """Return ``messages`` with exactly one result right after every call, and no result without its call."""
    whole: list[Message] = []
    open_calls: dict[str, CallBlock] = {}
    for message in messages:
        if message.role == "tool":
            results = tuple(
                block
                for block in message.content
                if isinstance(block, ResultBlock) and open_calls.pop(block.call_id, None) is not None
            )
            if results:
                whole.append(msgspec.structs.replace(message, content=results))
            continue
        whole += _lost_results(open_calls, message.time)
        open_calls = {block.id: block for block in message.content if isinstance(block, CallBlock)}
        whole.append(message)
    whole += _lost_results(open_calls, messages[-1].time if messages else "")
    transcript = Transcript()
    for message in whole:
        transcript.apply(MessageAdded(message))
    return list(transcript.messages)


def _lost_results(calls: dict[str, CallBlock], time: str) -> list[Message]:
    """Return a message with error results for ``calls``; none without calls."""
    if not calls:
        return []
    lost = TextBlock(LOST_RESULT)
    return [Message("tool", tuple(ResultBlock(call_id, True, (lost,)) for call_id in calls), time)]
