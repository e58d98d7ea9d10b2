"""The extensions of a session that can be replaced while it goes on: all of them, or none."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from zot.agent.hooks import CallDecision, Extensions, MessageDecision, NoExtensions
from zot.errors import UserError
from zot.events import AgentEvent, ExtNotify
from zot.messages import CallBlock
from zot.slash import CommandAnswer, CommandInfo
from zot.store import Guarded

if TYPE_CHECKING:
    from zot.extensions.discovery import Located
    from zot.tools.base import Tool


#: What is wrong with one that does not run because of that.
_WRONG = {
    "broken": "it is broken",
    "refused": "it cannot be confined",
    "untrusted": "it has changed, and is not trusted as it is now",
}


class Reloadable:
    """What `agent.hooks.Extensions` promises, by whichever set is in use.

    ``find`` returns a new one, not started; ``locate`` what there is, and why something of it would not run.
    """

    def __init__(self, find: Callable[[], Extensions | None], locate: Callable[[], Sequence[Located]]) -> None:
        self._find = find
        self._locate = locate
        self._now: Extensions = find() or NoExtensions()
        self._show: Callable[[Sequence[AgentEvent]], None] = lambda events: None
        self._guards: dict[str, Guarded] = {}

    @property
    def now(self) -> Extensions:
        """Those that are in use."""
        return self._now

    async def reload(self, check_idle: Callable[[], None]) -> list[str]:
        """Use what is there now; return the names. Raise UserError, and keep what was in use, if one does not start.

        The same if something is wrong with one that has run, or if ``check_idle`` raises at the end: what has begun by
        then is guarded to its end by what was in use when it began.
        """
        fresh = self._find() or NoExtensions()
        try:
            self._check_kept()
            fresh.attach(self._but_failures(fresh))
            await fresh.ready()
            _check(fresh)
            for guarded in self._guards.values():  # They stay away, and what they guard stays blocked.
                fresh.recall(guarded)
            check_idle()
        except BaseException:
            fresh.attach(lambda events: None)
            await fresh.close()
            raise
        fresh.attach(self._show)
        former, self._now = self._now, fresh
        await former.close()
        return _names(fresh)

    def _but_failures(self, fresh: Extensions) -> Callable[[Sequence[AgentEvent]], None]:
        """Return what shows what happens while they start, but not why one does not: that is the answer."""

        def show(events: Sequence[AgentEvent]) -> None:
            failures = _problems(fresh)
            if shown := [one for one in events if not _is_one_of(one, failures)]:
                self._show(shown)

        return show

    def _check_kept(self) -> None:
        """Raise UserError if something keeps one from running that has run. What was removed or disabled was meant."""
        now = {one.directory: one for one in self._locate()}
        reasons = []
        for former in _located(self._now):
            # If the place where it stood cannot be read, nobody knows if it is still there.
            found = now.get(former.directory) or now.get(os.path.dirname(former.directory))
            if found is not None and found.standing in _WRONG:
                reasons.append(f"{former.name}: {found.problem or _WRONG[found.standing]}")
        if reasons:
            raise UserError(f"the extensions stay as they were, because {'; '.join(reasons)}")

    def attach(self, show: Callable[[Sequence[AgentEvent]], None]) -> None:
        self._show = show
        self._now.attach(show)

    def recall(self, guarded: Guarded) -> None:
        self._guards[guarded.name] = guarded
        self._now.recall(guarded)

    def attends(self, name: str) -> bool:
        return self._now.attends(name)

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

    def text_held(self) -> None:
        self._now.text_held()

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


def reloadable(extensions: Extensions) -> Reloadable:
    """Return extensions that can be replaced. Raise UserError if these cannot."""
    if not isinstance(extensions, Reloadable):
        raise UserError("extensions cannot be reloaded here")
    return extensions


def _check(extensions: Extensions) -> None:
    from zot.extensions.manager import Manager

    if isinstance(extensions, Manager):
        failed = [one for one in extensions.extensions if one.condition != "running"]
        if failed:
            reasons = "; ".join(f"{one.name}: {one.explained or 'it did not start in time'}" for one in failed)
            raise UserError(f"the extensions stay as they were, because {reasons}")


def _located(extensions: Extensions) -> Sequence[Located]:
    from zot.extensions.manager import Manager

    return extensions.located if isinstance(extensions, Manager) else ()


def _problems(extensions: Extensions) -> set[tuple[str, str]]:
    """Return who has failed, and why."""
    from zot.extensions.manager import Manager

    return {(one.name, one.explained) for one in extensions.extensions} if isinstance(extensions, Manager) else set()


def _is_one_of(event: AgentEvent, failures: set[tuple[str, str]]) -> bool:
    return isinstance(event, ExtNotify) and (event.extension, event.message) in failures


def _names(extensions: Extensions) -> list[str]:
    from zot.extensions.manager import Manager

    return [one.name for one in extensions.extensions] if isinstance(extensions, Manager) else []
