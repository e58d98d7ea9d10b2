"""Extensions of one session: discovered, checked for trust, started, and reloaded as a whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from zot.agent.hooks import CallDecision, Extensions, MessageDecision, NoExtensions
from zot.config.config import TOOL_NAMES, Config, data_directory, extension_places, tool_environment, zot_home
from zot.errors import ConfigError, UserError
from zot.events import AgentEvent, ExtNotify
from zot.messages import CallBlock
from zot.panels import CommandAnswer, CommandInfo
from zot.store import GuardSet

if TYPE_CHECKING:
    from zot.extensions.connection import Carrier
    from zot.extensions.discovery import Located
    from zot.extensions.launch import LaunchSettings
    from zot.extensions.manager import Manager
    from zot.extensions.manifest import Manifest
    from zot.extensions.supervisor import SupervisedExtension
    from zot.runtime.open import OpenRequest
    from zot.runtime.toolbox import Toolbox
    from zot.tools.base import Tool


def open_extensions(request: OpenRequest, toolbox: Toolbox, model_id: str) -> Extensions | None:
    """Return the extensions of a session; None if there are none and none can `join` or be loaded later.

    Raise ConfigError for a broken --ext.
    """
    finder = ExtensionFinder(request.config, toolbox, model_id, request.joinable)
    return Reloadable(finder) if request.reloadable else finder.open()


class ExtensionFinder(msgspec.Struct, frozen=True):
    """Finds the extensions of one session, each time anew."""

    config: Config
    toolbox: Toolbox
    model_id: str
    #: Further extensions can connect.
    joinable: bool

    def locate(self) -> list[Located]:
        """Return the extensions found, each with whether it may run."""
        return locate_extensions(self.config, self.toolbox.cwd)

    def open(self) -> Manager | None:
        """Return the extensions found, not started; None if there are none and none can join. Raise ConfigError."""
        config, joinable = self.config, self.joinable
        if not extension_places(config) and not joinable:
            return None
        from zot.extensions.manager import Manager

        located, wanted = find_extensions(config, self.toolbox.cwd), config.tools
        if not located and not joinable:
            _warn_of_missing(wanted or (), ())
            return None
        return Manager(
            located,
            self._launch_settings(),
            taken=TOOL_NAMES,
            offered=lambda name: wanted is None or name in wanted,
            up=lambda tools: None if joinable else _warn_of_missing(wanted or (), tools),
            joinable=joinable,
        )

    def _launch_settings(self) -> LaunchSettings:
        from zot.extensions.confinement import Confinement
        from zot.extensions.launch import LaunchSettings
        from zot.extensions.peer import ExtensionDeadlines
        from zot.version import __version__

        config, processes, cwd = self.config, self.toolbox.processes, self.toolbox.cwd
        env, home = tool_environment(config.environment), zot_home(config.environment)
        return LaunchSettings(
            processes,
            env,
            data_directory(config),
            config.provider,
            self.model_id,
            cwd,
            __version__,
            ExtensionDeadlines(**{f"{name}_s": seconds for name, seconds in config.ext_deadlines.items()}),
            Confinement(processes, env, cwd=cwd, zot_home=home),
            config.unsandboxed_ext,
            logs_are_home=data_directory(config) == home,
        )


def _warn_of_missing(wanted: Sequence[str], tools: Collection[str]) -> None:
    """Warn of wanted tools that neither zot nor an extension has."""
    import logging

    from zot.text import printable

    for name in wanted:
        if name not in TOOL_NAMES and name not in tools:
            logging.getLogger("zot").warning("no extension has the tool %s that is wanted", printable(name))


def join(
    extensions: Extensions, name: str, carrier: Carrier, guards: Callable[[GuardSet], None] = lambda guarded: None
) -> SupervisedExtension:
    """Let an extension that connected by itself join the session that ``extensions`` belong to.

    ``guards`` is called with each guard that it declares. `Extension.over` reports its departure. Raise UserError if
    the session is closed to it, or the name is taken.
    """
    from zot.extensions.manager import Manager

    if not isinstance(extensions, Manager | Reloadable):
        raise UserError(_NOT_JOINABLE)
    return extensions.join(name, carrier, guards)


def find_extensions(config: Config, cwd: str) -> list[Located]:
    """Return the extensions that ``config`` selects, in order. Raise ConfigError if an explicitly named one is
    broken."""
    import logging

    from zot.text import printable

    located, log = locate_extensions(config, cwd), logging.getLogger("zot")
    for one in located:
        if one.source == "ext" and one.standing == "broken":
            raise ConfigError(one.problem)
        if one.standing in ("broken", "refused", "shadowed"):
            log.warning("extension %s: %s", printable(one.name), printable(one.problem))
        elif one.standing == "untrusted":
            log.warning(
                "%s is not trusted and was not started; try: zot ext trust %s", printable(one.directory), one.name
            )
    return located


def locate_extensions(config: Config, cwd: str) -> list[Located]:
    """Return the extensions that ``config`` selects, in order, each with whether it may run."""
    from zot.extensions.confinement import refusal
    from zot.extensions.discovery import discover

    home = zot_home(config.environment)

    def is_trusted(directory: str, data: Sequence[str]) -> bool:
        if config.trust_project or home is None:
            return config.trust_project
        from zot.config.trust import TrustStore

        return TrustStore(home).is_trusted(directory, data)

    def is_refused(manifest: Manifest, directory: str) -> str:
        return "" if config.unsandboxed_ext else refusal(manifest, directory, config.environment, cwd=cwd)

    return discover(
        cwd=cwd,
        home=home,
        explicit=config.ext,
        look=not config.no_ext,
        is_trusted=is_trusted,
        refusal=is_refused,
    )


_NOT_JOINABLE = "no extension can join this session"

#: Why an extension with this standing does not run.
_WRONG = {
    "broken": "it is broken",
    "refused": "it cannot be confined",
    "untrusted": "it has changed, and is not trusted as it is now",
}


class Reloadable:
    """`agent.hooks.Extensions` that delegates to the set in use and can replace it by what ``finder`` finds.

    The manager is imported only if there are extensions: most sessions have none.
    """

    def __init__(self, finder: ExtensionFinder) -> None:
        self._finder = finder
        self._manager = finder.open()
        self._now: Extensions = self._manager or NoExtensions()
        self._show: Callable[[Sequence[AgentEvent]], None] = lambda events: None
        self._guards: dict[str, GuardSet] = {}

    def join(self, name: str, carrier: Carrier, guards: Callable[[GuardSet], None]) -> SupervisedExtension:
        """See `Manager.join`. Raise UserError also if the session is not joinable."""
        if self._manager is None:
            raise UserError(_NOT_JOINABLE)
        return self._manager.join(name, carrier, guards)

    async def reload(self, check_idle: Callable[[], None]) -> list[str]:
        """Replace the set by the extensions found now; return their names.

        Raise UserError and keep the old set if one does not start, or if one that ran is now broken or untrusted.
        ``check_idle`` raises if a run has begun meanwhile: the old set guards that run to its end.
        """
        manager = self._finder.open()
        fresh: Extensions = manager or NoExtensions()
        try:
            self._check_kept()
            if manager is not None:
                manager.attach(self._show_without_failures(manager))
                await manager.ready()
                _check_running(manager)
            for guarded in self._guards.values():  # A guard that is disconnected keeps blocking.
                fresh.recall(guarded)
            check_idle()
        except BaseException:
            fresh.attach(lambda events: None)
            await fresh.close()
            raise
        fresh.attach(self._show)
        former, self._now, self._manager = self._now, fresh, manager
        await former.close()
        return [] if manager is None else [one.name for one in manager.extensions]

    def _show_without_failures(self, fresh: Manager) -> Callable[[Sequence[AgentEvent]], None]:
        """Return a callback that shows events while they start, except the failures that `reload` raises."""

        def show(events: Sequence[AgentEvent]) -> None:
            failures = {(one.name, one.explained) for one in fresh.extensions}
            if shown := [one for one in events if not _is_one_of(one, failures)]:
                self._show(shown)

        return show

    def _check_kept(self) -> None:
        """Raise UserError if an extension that ran may not run now. Removed or disabled ones are intended."""
        now = {one.directory: one for one in self._finder.locate()}
        reasons = []
        for former in () if self._manager is None else self._manager.located:
            # If its parent directory cannot be read, the extension may still be there.
            found = now.get(former.directory) or now.get(os.path.dirname(former.directory))
            if found is not None and found.standing in _WRONG:
                reasons.append(f"{former.name}: {found.problem or _WRONG[found.standing]}")
        if reasons:
            raise UserError(f"the extensions stay as they were, because {'; '.join(reasons)}")

    def attach(self, show: Callable[[Sequence[AgentEvent]], None]) -> None:
        self._show = show
        self._now.attach(show)

    def recall(self, guarded: GuardSet) -> None:
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
    """Return ``extensions`` as a set that can be replaced. Raise UserError if it cannot."""
    if not isinstance(extensions, Reloadable):
        raise UserError("extensions cannot be reloaded here")
    return extensions


def _check_running(manager: Manager) -> None:
    """Raise UserError if an extension does not run."""
    failed = [one for one in manager.extensions if one.condition != "running"]
    if failed:
        reasons = "; ".join(f"{one.name}: {one.explained or 'it did not start in time'}" for one in failed)
        raise UserError(f"the extensions stay as they were, because {reasons}")


def _is_one_of(event: AgentEvent, failures: set[tuple[str, str]]) -> bool:
    return isinstance(event, ExtNotify) and (event.extension, event.message) in failures
