"""Extensions of one session: discovered, checked for trust, started, and reloaded as a whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

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
    from zot.extensions.manifest import Manifest
    from zot.extensions.supervisor import SupervisedExtension
    from zot.runtime.toolbox import Toolbox
    from zot.tools.base import Tool


def open_extensions(
    config: Config, toolbox: Toolbox, *, cwd: str, model_id: str, joinable: bool = False, reloadable: bool = False
) -> Extensions | None:
    """Return the extensions of a session; None if there are none and none can `join` or be loaded later.

    Raise ConfigError for a broken --ext.
    """
    if reloadable:
        return Reloadable(
            lambda: open_extensions(config, toolbox, cwd=cwd, model_id=model_id, joinable=joinable),
            lambda: locate_extensions(config, cwd),
        )
    if not extension_places(config) and not joinable:
        return None
    from zot.config.private_paths import private_paths
    from zot.extensions.confinement import Confinement
    from zot.extensions.launch import LaunchSettings
    from zot.extensions.manager import Manager
    from zot.extensions.peer import ExtensionDeadlines
    from zot.version import __version__

    located, wanted = find_extensions(config, cwd), config.tools
    if not located and not joinable:
        _warn_of_missing(wanted or (), ())
        return None
    env, home = tool_environment(config.environment), zot_home(config.environment)
    around = LaunchSettings(
        toolbox.processes,
        env,
        data_directory(config),
        config.provider,
        model_id,
        cwd,
        __version__,
        ExtensionDeadlines(**{f"{name}_s": seconds for name, seconds in config.ext_deadlines.items()}),
        Confinement(toolbox.processes, env, cwd=cwd, private=private_paths(config, cwd)),
        config.unsandboxed_ext,
        zot_home=home,
        logs_are_home=data_directory(config) == home,
    )
    return Manager(
        located,
        around,
        taken=TOOL_NAMES,
        offered=lambda name: wanted is None or name in wanted,
        up=lambda tools: None if joinable else _warn_of_missing(wanted or (), tools),
        joinable=joinable,
    )


def _warn_of_missing(wanted: Sequence[str], tools: Collection[str]) -> None:
    """Warn of wanted tools that neither zot nor an extension has."""
    import logging

    from zot.text import printable

    for name in wanted:
        if name not in TOOL_NAMES and name not in tools:
            logging.getLogger("zot").warning("no extension has the tool %s that is wanted", printable(name))


def join(
    extensions: Extensions,
    name: str,
    carrier: Carrier,
    guards: Callable[[GuardSet], None] = lambda guarded: None,
    *,
    token: str = "",
) -> SupervisedExtension:
    """Let an extension that connected by itself join the session that ``extensions`` belong to.

    ``guards`` is called with each guard that it declares, which is bound to ``token``. `Extension.over` reports its
    departure. Raise UserError if the session is closed to it, or the name is taken.
    """
    from zot.extensions.manager import Manager

    if isinstance(extensions, Reloadable):
        extensions = extensions.now
    if not isinstance(extensions, Manager):
        raise UserError("no extension can join this session")
    return extensions.join(name, carrier, guards, token=token)


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

    found = discover(
        cwd=cwd,
        home=home,
        explicit=config.ext,
        look=not config.no_ext,
        is_trusted=is_trusted,
        refusal=is_refused,
    )
    return [_with_content(one, config, home) for one in found]


def _with_content(one: Located, config: Config, home: str | None) -> Located:
    """Bind a project's extension that runs to its content: the one that was trusted, or the present one."""
    if one.source != "project" or one.standing != "runs" or one.manifest is None or home is None:
        return one
    import msgspec

    from zot.config.trust import TrustStore, fingerprint
    from zot.extensions.manifest import changeable

    try:
        if config.trust_project:
            content = fingerprint(one.directory, changeable(one.manifest, one.directory))
        else:
            content = TrustStore(home).recorded(one.directory)
    except UserError as problem:
        return msgspec.structs.replace(one, standing="untrusted", problem=str(problem))
    if not content:  # revoked meanwhile
        return msgspec.structs.replace(one, standing="untrusted")
    return msgspec.structs.replace(one, fingerprint=content)


#: Why an extension with this standing does not run.
_WRONG = {
    "broken": "it is broken",
    "refused": "it cannot be confined",
    "untrusted": "it has changed, and is not trusted as it is now",
}


class Reloadable:
    """`agent.hooks.Extensions` that delegates to the set in use and can replace it.

    ``find`` returns a new set, not started; ``locate`` lists the extensions found, each with whether it may run.
    """

    def __init__(self, find: Callable[[], Extensions | None], locate: Callable[[], Sequence[Located]]) -> None:
        self._find = find
        self._locate = locate
        self._now: Extensions = find() or NoExtensions()
        self._show: Callable[[Sequence[AgentEvent]], None] = lambda events: None
        self._guards: dict[str, GuardSet] = {}

    @property
    def now(self) -> Extensions:
        """The set in use."""
        return self._now

    async def reload(self, check_idle: Callable[[], None]) -> list[str]:
        """Replace the set by the extensions found now; return their names.

        Raise UserError and keep the old set if one does not start, or if one that ran is now broken or untrusted.
        ``check_idle`` raises if a run has begun meanwhile: the old set guards that run to its end.
        """
        fresh = self._find() or NoExtensions()
        try:
            self._check_kept()
            fresh.attach(self._show_without_failures(fresh))
            await fresh.ready()
            _check(fresh)
            for guarded in self._guards.values():  # A guard that is disconnected keeps blocking.
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

    def _show_without_failures(self, fresh: Extensions) -> Callable[[Sequence[AgentEvent]], None]:
        """Return a callback that shows events while they start, except the failures that `reload` raises."""

        def show(events: Sequence[AgentEvent]) -> None:
            failures = _problems(fresh)
            if shown := [one for one in events if not _is_one_of(one, failures)]:
                self._show(shown)

        return show

    def _check_kept(self) -> None:
        """Raise UserError if an extension that ran may not run now. Removed or disabled ones are intended."""
        now = {one.directory: one for one in self._locate()}
        reasons = []
        for former in _located(self._now):
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
    """Return the names of failed extensions with the reasons."""
    from zot.extensions.manager import Manager

    return {(one.name, one.explained) for one in extensions.extensions} if isinstance(extensions, Manager) else set()


def _is_one_of(event: AgentEvent, failures: set[tuple[str, str]]) -> bool:
    return isinstance(event, ExtNotify) and (event.extension, event.message) in failures


def _names(extensions: Extensions) -> list[str]:
    from zot.extensions.manager import Manager

    return [one.name for one in extensions.extensions] if isinstance(extensions, Manager) else []
