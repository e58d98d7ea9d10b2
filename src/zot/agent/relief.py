"""Relief: the conversation is made shorter where the next request would not fit, or did not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from zot.agent.compaction import KEEP_MESSAGES, Summary, boundary, first_new, summarise, summary_of
from zot.agent.pruning import KEEP_RECENT, prune
from zot.errors import BadRequest, ContextExhausted, ContextTooLong, EmptySummary, ProviderError
from zot.messages import Message, ToolSpec
from zot.store import Spliced

if TYPE_CHECKING:
    from zot.agent.loop import Agent
    from zot.agent.run import Run

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
