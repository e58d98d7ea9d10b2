"""The extensions of a session that can be replaced while it goes on: all of them, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from zot.agent.hooks import CallDecision, Extensions, MessageDecision, NoExtensions
from zot.errors import UserError
from zot.events import AgentEvent
from zot.messages import CallBlock
from zot.slash import CommandAnswer, CommandInfo
from zot.store import Guarded

if TYPE_CHECKING:
    from zot.tools.base import Tool


class Reloadable:
    """What `agent.hooks.Extensions` promises, by whichever set is in use. ``find`` returns a new one, not started."""

    def __init__(self, find: Callable[[], Extensions | None]) -> None:
        self._find = find
        self._now: Extensions = find() or NoExtensions()
        self._show: Callable[[Sequence[AgentEvent]], None] = lambda events: None

    async def reload(self) -> list[str]:
        """Use what is there now; return the names. Raise UserError, and keep what was in use, if one does not start."""
        fresh = self._find() or NoExtensions()
        try:
            await fresh.ready()
            _check(fresh)
        except BaseException:
            await fresh.close()
            raise
        former, self._now = self._now, fresh
        fresh.attach(self._show)
        await former.close()
        return _names(fresh)

    def attach(self, show: Callable[[Sequence[AgentEvent]], None]) -> None:
        self._show = show
        self._now.attach(show)

    def recall(self, guarded: Guarded) -> None:
        self._now.recall(guarded)

    def start(self) -> None:
        self._now.start()

    async def close(self) -> None:
        await self._now.close()

    def commands(self) -> Sequence[CommandInfo]:
        return self._now.commands()

    async def run_command(self, name: str, args: str) -> CommandAnswer:
        return await self._now.run_command(name, args)

    def press(self, panel_id: str, key: str, text: str) -> None:
        self._now.press(panel_id, key, text)

    def close_panel(self, panel_id: str) -> None:
        self._now.close_panel(panel_id)

    @property
    def attentive(self) -> bool:
        return self._now.attentive

    @property
    def holds_messages(self) -> bool:
        return self._now.holds_messages

    def tools(self) -> Sequence[Tool]:
        return self._now.tools()

    async def ready(self) -> None:
        await self._now.ready()

    async def turn_starting(self, step: int) -> str | None:
        return await self._now.turn_starting(step)

    async def tool_called(self, call: CallBlock, args: dict[str, Any]) -> CallDecision:
        return await self._now.tool_called(call, args)

    async def message_written(self, text: str) -> MessageDecision:
        return await self._now.message_written(text)

    def observe(self, events: Sequence[AgentEvent]) -> None:
        self._now.observe(events)


def _check(extensions: Extensions) -> None:
    from zot.extensions.manager import Manager

    if isinstance(extensions, Manager):
        failed = [one for one in extensions.extensions if one.condition != "running"]
        if failed:
            reasons = "; ".join(f"{one.name}: {one.problem or 'it did not start in time'}" for one in failed)
            raise UserError(f"the extensions stay as they were, because {reasons}")


def _names(extensions: Extensions) -> list[str]:
    from zot.extensions.manager import Manager

    return [one.name for one in extensions.extensions] if isinstance(extensions, Manager) else []
