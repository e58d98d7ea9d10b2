"""The extensions of one session: found, trusted or not, and given what they run in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from zot.config.config import TOOL_NAMES, Config, extension_places, kept_in, tool_environment, zot_home
from zot.errors import ConfigError, UserError

if TYPE_CHECKING:
    from zot.agent.hooks import Extensions
    from zot.extensions.carrier import Carrier
    from zot.extensions.discovery import Located
    from zot.extensions.manifest import Manifest
    from zot.extensions.supervisor import Extension
    from zot.runtime.toolbox import Toolbox
    from zot.store import Guarded


def open_extensions(
    config: Config, toolbox: Toolbox, *, cwd: str, model_id: str, joinable: bool = False, reloadable: bool = False
) -> Extensions | None:
    """Return what keeps the extensions of a session; None if there are none, and none can `join` or come later.

    Raise ConfigError for a broken --ext.
    """
    if reloadable:
        from zot.runtime.extensions import Reloadable

        return Reloadable(
            lambda: open_extensions(config, toolbox, cwd=cwd, model_id=model_id, joinable=joinable),
            lambda: locate_extensions(config, cwd),
        )
    if not extension_places(config) and not joinable:
        return None
    from zot.extensions.confinement_part import Confinement
    from zot.extensions.deadlines import Deadlines
    from zot.extensions.launch import Surroundings
    from zot.extensions.manager import Manager
    from zot.version import __version__

    located, wanted = find_extensions(config, cwd), config.tools
    if not located and not joinable:
        _warn_of_missing(wanted or (), ())
        return None
    env, home = tool_environment(config.environment), zot_home(config.environment)
    around = Surroundings(
        toolbox.processes,
        env,
        kept_in(config),
        config.provider,
        model_id,
        cwd,
        __version__,
        Deadlines(**{f"{name}_s": seconds for name, seconds in config.ext_deadlines.items()}),
        Confinement(toolbox.processes, env, cwd=cwd, zot_home=home),
        config.unsandboxed_ext,
        logs_are_home=kept_in(config) == home,
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
    """Say which tools somebody wants that neither we nor extensions have."""
    import logging

    from zot.text import printable

    for name in wanted:
        if name not in TOOL_NAMES and name not in tools:
            logging.getLogger("zot").warning("no extension has the tool %s that is wanted", printable(name))


def join(
    extensions: Extensions, name: str, carrier: Carrier, guards: Callable[[Guarded], None] = lambda guarded: None
) -> Extension:
    """Let an extension that has connected by itself take part in the session that ``extensions`` belong to.

    ``guards`` hears what it guards whether it is there or not.

    Raise UserError if nobody can join it, or not under this name. `Extension.over` tells when it has gone again.
    """
    from zot.extensions.manager import Manager
    from zot.runtime.extensions import Reloadable

    if isinstance(extensions, Reloadable):
        extensions = extensions.now
    if not isinstance(extensions, Manager):
        raise UserError("no extension can join this session")
    return extensions.join(name, carrier, guards)


def find_extensions(config: Config, cwd: str) -> list[Located]:
    """Return the extensions that ``config`` leads to, in order. Raise ConfigError if one that was named is broken."""
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
    """Return the extensions that ``config`` leads to, in order, and whether they run."""
    from zot.extensions.confinement_part import refusal
    from zot.extensions.discovery import discover

    home = zot_home(config.environment)

    def is_trusted(directory: str, data: Sequence[str]) -> bool:
        if config.trust_project or home is None:
            return config.trust_project
        from zot.config.trust_part import TrustStore

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
