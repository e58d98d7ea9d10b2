"""Extensions of one session: those that its Config selects, with their trust, and their manager."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from zot.agent.hooks import Extensions
from zot.config.config import TOOL_NAMES, Config, data_directory, zot_home
from zot.config.trust import TrustStore, fingerprint
from zot.errors import ConfigError, UserError
from zot.extensions.confinement import Confinement, refusal
from zot.extensions.discovery import Located, discover
from zot.extensions.manager import Manager
from zot.extensions.manifest import changeable
from zot.extensions.peer import ExtensionDeadlines
from zot.extensions.sources import LaunchSettings
from zot.text import printable
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
        Confinement(processes, env, config, cwd=cwd),
        config.unsandboxed_ext,
        zot_home=home,
        logs_are_home=data_directory(config) == home,
    )


def manager_of(extensions: Extensions) -> Manager:
    """Return the manager of a session's extensions. Raise UserError if they cannot change while it is open."""
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
    home = zot_home(config.environment)

    def is_trusted(directory: str, data: Sequence[str]) -> bool:
        if config.trust_project or home is None:
            return config.trust_project
        return TrustStore(home).is_trusted(directory, data)

    found = discover(cwd=cwd, home=home, explicit=config.ext, look=not config.no_ext, is_trusted=is_trusted)
    return [_with_content(_confinable(one, config, cwd), config, home) for one in found]


def _confinable(one: Located, config: Config, cwd: str) -> Located:
    """Refuse an extension that cannot be confined here; no other of its name takes its place."""
    if one.standing != "runs" or one.manifest is None or config.unsandboxed_ext:
        return one
    problem = refusal(one.manifest, one.directory, config.environment, cwd=cwd)
    return msgspec.structs.replace(one, standing="refused", problem=problem) if problem else one


def _with_content(one: Located, config: Config, home: str | None) -> Located:
    """Bind a project's extension that runs to its content: the one that was trusted, or the present one."""
    if one.source != "project" or one.standing != "runs" or one.manifest is None or home is None:
        return one
    try:
        if config.trust_project:
            content = fingerprint(one.directory, changeable(one.manifest, one.directory))
        else:
            content = TrustStore(home).recorded(one.directory)
    except UserError as problem:
        return msgspec.structs.replace(one, standing="untrusted", problem=str(problem))
    if not content:  # Revoked meanwhile.
        return msgspec.structs.replace(one, standing="untrusted")
    return msgspec.structs.replace(one, fingerprint=content)
