"""When a model fails: the same prompt again, or another model for it."""

from __future__ import annotations

from collections.abc import Sequence

from zot.ui.conversation import ModelInfo, Snapshot
from zot.ui.readable import one_line
from zot.ui.terminal.terminal import Option, Terminal

#: So many other models of the same provider are offered.
_SAME = 4


async def rescue(terminal: Terminal, failure: str) -> None:
    """Offer what may help, and do it."""
    conversation = terminal.conversation
    now = await conversation.state()
    again = ModelInfo(now.provider, now.model)
    options = [Option(again, f"{now.provider}/{now.model}, once more")]
    options += [Option(one, f"{one.provider}/{one.id}") for one in _others(now, await conversation.models())]
    if terminal.conversation is not conversation:
        return  # Somebody has gone elsewhere.
    title = "The model call failed. Ask again?"
    chosen = await terminal.choose(title, options, body=one_line(failure, 600), sudden=True)
    if chosen is None:
        return
    if chosen != again:
        await conversation.use_model(chosen)
        terminal.note(f"asking {chosen.provider}/{chosen.id}")
    await terminal.retry()


def _others(now: Snapshot, models: Sequence[ModelInfo]) -> list[ModelInfo]:
    """Return a few others of this provider, and the first of each other one."""
    same = [one for one in models if one.provider == now.provider and one.id != now.model]
    firsts: dict[str, ModelInfo] = {}
    for one in models:
        if one.provider != now.provider:
            firsts.setdefault(one.provider, one)
    return [*same[:_SAME], *firsts.values()]
