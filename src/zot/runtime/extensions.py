"""Extensions of one session: their manager and its settings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from zot.agent.hooks import Extensions
from zot.config.config import TOOL_NAMES, Config, data_directory, zot_home
from zot.config.private_paths import private_paths
from zot.errors import UserError
from zot.extensions.confinement import Confinement
from zot.extensions.manager import Manager
from zot.extensions.peer import ExtensionDeadlines
from zot.extensions.sources import LaunchSettings
from zot.runtime.extension_discovery import find_extensions
from zot.version import __version__

if TYPE_CHECKING:
    from zot.runtime.open import OpenRequest
    from zot.runtime.toolbox import Toolbox


def open_extensions(request: OpenRequest, toolbox: Toolbox, model_id: str) -> Manager:
    """Return the extensions of a session. Raise ConfigError for a broken --ext."""
    config, cwd = request.config, toolbox.cwd
    return Manager(
        find_extensions(config, cwd),
        _launch_settings(config, toolbox, model_id),
        taken=TOOL_NAMES,
        wanted=config.tools,
        joinable=request.joinable,
        find=(lambda: find_extensions(config, cwd)) if request.reloadable else None,
    )


def _launch_settings(config: Config, toolbox: Toolbox, model_id: str) -> LaunchSettings:
    processes, cwd = toolbox.processes, toolbox.cwd
    env, home = toolbox.resources.tool_environment(config.environment), zot_home(config.environment)
    return LaunchSettings(
        processes,
        env,
        data_directory(config),
        config.provider,
        model_id,
        cwd,
        __version__,
        ExtensionDeadlines(**{f"{name}_s": seconds for name, seconds in config.ext_deadlines.items()}),
        Confinement(processes, env, cwd=cwd, private=partial(private_paths, config, cwd)),
        config.unsandboxed_ext,
        zot_home=home,
        logs_are_home=data_directory(config) == home,
    )


def manager_of(extensions: Extensions) -> Manager:
    """Return the manager of a session's extensions. Raise UserError if they cannot change while it is open."""
    if not isinstance(extensions, Manager):
        raise UserError("this session has no extensions, and none can join or be loaded")
    return extensions
