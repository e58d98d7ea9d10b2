"""Discovery of the extensions that a Config selects, with their trust."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from zot.config.config import Config, zot_home
from zot.config.trust import TrustStore, fingerprint
from zot.errors import ConfigError, UserError
from zot.extensions.confinement import refusal
from zot.extensions.discovery import Located, discover
from zot.extensions.manifest import Manifest, changeable
from zot.text import printable


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
