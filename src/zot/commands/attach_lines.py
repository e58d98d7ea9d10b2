"""What happens in a session as lines for people, also on a terminal that can do nothing but lines."""

from __future__ import annotations

from zot.encoding import encode
from zot.events import (
    AgentEvent,
    ApprovalAnswer,
    ApprovalRequest,
    CompactDone,
    ConversationReplaced,
    Done,
    Error,
    ExtNotify,
    Retry,
    TextDelta,
    ToolCall,
    ToolResult,
    TurnEnd,
    UserMessage,
)
from zot.messages import text_of
from zot.run_summary import CUT_OFF
from zot.text import printable, printable_line
from zot.ui.readable import escaped
from zot.ui.terminal.call_text import beyond_summary, until

_WIDTH = 200


class Lines:
    """Turns events into text. What the model says comes as it is said; all else has lines of its own."""

    def __init__(self) -> None:
        self._in_text = False

    def shown(self, event: AgentEvent) -> str:
        """Return what is written for an event; "" if nothing is."""
        if isinstance(event, TextDelta):
            self._in_text = not event.delta.endswith("\n")
            return escaped(event.delta)
        said = _said(event)
        if said is None:
            return ""
        before = "\n" if self._in_text else ""
        self._in_text = False
        return f"{before}{said}\n"


def _said(event: AgentEvent) -> str | None:
    """Return the line for an event; None for what needs no words."""
    match event:
        case UserMessage(content=content):
            return f"> {escaped(text_of(content))}"
        case ToolCall(name=name, args=args):
            return f"* {printable(name)} {printable_line(encode(args).decode(), _WIDTH)}"
        case ToolResult(content=content, is_error=is_error):
            return f"  {'failed' if is_error else 'done'}: {printable_line(text_of(content), _WIDTH)}"
        case ApprovalRequest(summary=summary):
            lines = [f"    {line}\n" for line in beyond_summary(event)]
            return f"{''.join(lines)}? {printable(summary)} -- /approve or /reject, until {until(event)}"
        case ApprovalAnswer(decision=decision, by=by):
            return f"? {decision}{f' by {printable(by)}' if by else ''}"
        case Error(message=message):
            return f"! {printable_line(message, _WIDTH)}"
        case Retry(reason=reason, attempt=attempt):
            return f"! {printable_line(reason, _WIDTH)}; attempt {attempt} follows"
        case TurnEnd(stop="aborted"):
            return "! cancelled"
        case TurnEnd(stop="length"):
            return f"! {CUT_OFF}"
        case CompactDone():
            return "! the conversation was made shorter"
        case ConversationReplaced(messages=messages):
            return "! the conversation was changed" if messages else "! the conversation begins anew"
        case ExtNotify(extension=extension, message=message):
            return f"! {printable(extension)}: {printable_line(message, _WIDTH)}"
        case Done():
            return ""
        case _:
            return None
