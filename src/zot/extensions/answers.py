"""What an extension answered, made into what zot can use; and what stands in for an answer that did not come."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from typing import Final

from zot.extensions.happenings import CommandAnswered, Decided, Decision, ToolAnswered
from zot.messages import ImageBlock, TextBlock
from zot.wire.extension import CommandResponse, ContentBlock, EventInterceptResponse, Intercepted, ToolResult

#: What is said of a block for which the extension gave no reason.
_BLOCKED: Final[dict[Intercepted, str]] = {
    "tool_call": "tool call refused by extension {}",
    "turn_start": "turn blocked by extension {}",
    "assistant_message": "message held back by extension {}",
}


def tool_answer(result: ToolResult, extension: str) -> ToolAnswered:
    """Return a tool's result as the model can be told it: never empty, and wrong images as words."""
    content: list[TextBlock | ImageBlock] = []
    is_error = result.is_error
    for block in result.content:
        made = _block(block, extension)
        is_error = is_error or made is None
        if made is None:
            content.append(TextBlock(f"[the data of an image from extension {extension} is not base64]"))
        elif not isinstance(made, TextBlock) or made.text:
            content.append(made)
    return ToolAnswered(result.id, tuple(content) or (TextBlock("(extension returned no content)"),), is_error)


def _block(block: ContentBlock, extension: str) -> TextBlock | ImageBlock | None:
    match block.type:
        case "text":
            return TextBlock(block.text)
        case "image":
            try:
                return ImageBlock(block.mime_type, b64decode(block.data, validate=True))
            except (NotBase64, ValueError):
                return None
        case kind:
            return TextBlock(f"[unknown block type {kind!r} from extension {extension}]")


def command_answer(response: CommandResponse, extension: str) -> CommandAnswered:
    """Return what a command wants done; if it lacks what its action needs, a failure."""
    if response.action == "prompt" and not response.prompt.strip() and not response.error:
        return command_failure(response.id, f"extension {extension} answered with an empty prompt")
    if response.action == "open_panel" and response.open_panel is None and not response.error:
        return command_failure(response.id, f"extension {extension} opened a panel without saying what is in it")
    return CommandAnswered(response.id, response)


def decision(response: EventInterceptResponse, event: Intercepted, extension: str) -> Decided:
    """Return a decision with what it may have for ``event``."""
    if response.block:
        return Decided(response.id, Decision(block=True, reason=response.reason or _BLOCKED[event].format(extension)))
    changed = Decision(
        reason=response.reason,
        modified_args=response.modified_args if event == "tool_call" else None,
        # As the first zot has it: an empty text replaces nothing. Block to show none.
        replace_text=response.replace_text or None if event == "assistant_message" else None,
    )
    return Decided(response.id, changed)


def tool_failure(call_id: str, failure: str) -> ToolAnswered:
    """Return what the model hears of a call that the extension did not answer."""
    return ToolAnswered(call_id, (TextBlock(failure),), is_error=True, failure=failure)


def command_failure(call_id: str, failure: str) -> CommandAnswered:
    """Return what becomes of a command that the extension did not answer."""
    return CommandAnswered(call_id, CommandResponse(call_id, error=failure), failure)


def decision_failure(failure: str, *, closed: bool) -> Decision:
    """Return what holds when the extension did not decide: blocked if it fails closed, else allowed."""
    return Decision(block=closed, reason=failure if closed else "", failure=failure)
