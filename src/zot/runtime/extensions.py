"""Extensions of one session: discovered, and checked for trust."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from zot.agent.hooks import Extensions
from zot.config.config import TOOL_NAMES, Config, data_directory, extension_places, tool_environment, zot_home
from zot.errors import ConfigError, UserError
from zot.text import printable

if TYPE_CHECKING:
    from zot.extensions.discovery import Located
    from zot.extensions.launch import LaunchSettings
    from zot.extensions.manager import Manager
    from zot.extensions.manifest import Manifest
    from zot.runtime.open import OpenRequest
    from zot.runtime.toolbox import Toolbox


def open_extensions(request: OpenRequest, toolbox: Toolbox, model_id: str) -> Manager | None:
    """Return the extensions of a session; None if there are none and none can `join` or be loaded later.

    Raise ConfigError for a broken --ext.
    """
    config, cwd = request.config, toolbox.cwd
    if not extension_places(config) and not request.joinable and not request.reloadable:
        return None
    from zot.extensions.manager import Manager

    return Manager(
        find_extensions(config, cwd),
        _launch_settings(config, toolbox, model_id),
        taken=TOOL_NAMES,
        wanted=config.tools,
        joinable=request.joinable,
        find=(lambda: find_extensions(config, cwd)) if request.reloadable else None,
    )


def _launch_settings(config: Config, toolbox: Toolbox, model_id: str) -> LaunchSettings:
    from zot.extensions.confinement import Confinement
    from zot.extensions.launch import LaunchSettings
    from zot.extensions.peer import ExtensionDeadlines
    from zot.version import __version__

    processes, cwd = toolbox.processes, toolbox.cwd
    env, home = tool_environment(config.environment), zot_home(config.environment)
    return LaunchSettings(
        processes,
        env,
        data_directory(config),
        config.provider,
        model_id,
        cwd,
        __version__,
        ExtensionDeadlines(**{f"{name}_s": seconds for name, seconds in config.ext_deadlines.items()}),
        Confinement(processes, env, cwd=cwd, zot_home=home),
        config.unsandboxed_ext,
        logs_are_home=data_directory(config) == home,
    )


def manager_of(extensions: Extensions) -> Manager:
    """Return the manager of a session's extensions. Raise UserError if they cannot change while it is open."""
    from zot.extensions.manager import Manager

    if not isinstance(extensions, Manager):
        raise UserError("this session has no extensions, and none can join or be loaded")
    return extensions


def find_extensions(config: Config, cwd: str) -> list[Located]:
    """Return the extensions that ``config`` selects, in order. Raise ConfigError if an explicitly named one is
    broken."""

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
