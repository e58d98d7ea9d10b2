"""Checks of a Config that need no session: the first answer of a process waits for them."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from zot.config.config import Config, rule_warning, tool_names
from zot.errors import ConfigError
from zot.runtime.provider_choice import credential_of, models_of, script_of

if TYPE_CHECKING:
    from zot.agent.output_schema import Expected


def check(config: Config) -> str:
    """Return the id of the model to use. Raise ConfigError or UserError for settings that `open_session` would refuse.

    Imports next to nothing: the first answer waits for this.
    """
    model = models_of(config).find(config.model)
    credential_of(config, model)
    check_settings(config)
    return model.id


def check_settings(config: Config) -> None:
    """Raise ConfigError for settings that are invalid with any provider."""
    working_directory(config.cwd)
    tool_names(config)
    for setting, file in (("script", config.script), ("replay", config.replay)):
        if file and config.provider != "lab":
            raise ConfigError(f"{setting} needs the provider lab, not {config.provider}")
    if config.script and config.replay:
        raise ConfigError("script and replay exclude each other: lab plays one of them")
    if config.script and not os.path.exists(config.script):
        raise ConfigError(f"{config.script}: no such file")
    if config.script and os.path.isfile(config.script):  # A pipe can be read only once: not here.
        script_of(config)
    expected_of(config)
    if config.policy:
        from zot.config.policy import Policy  # Imported lazily: most sessions have no rule.

        for rule in Policy.parse(config.policy).rules:
            rule_warning(config, rule.tool)
    if config.frozen_time is not None:
        clock_of(config.frozen_time)


def expected_of(config: Config) -> Expected | None:
    """Return the form that ``config`` requires of an answer. Raise ConfigError."""
    if config.output_schema is None:
        return None
    from zot.agent.output_schema import load  # Imported lazily: few sessions have a schema.

    return load(config.output_schema)


def working_directory(path: str | None) -> str:
    """Return the working directory, absolute. Raise ConfigError if there is none."""
    try:
        directory = os.path.abspath(path or os.getcwd())
    except FileNotFoundError:
        raise ConfigError("the current directory no longer exists; choose another cwd") from None
    if not os.path.isdir(directory):
        raise ConfigError(f"{directory} is not a directory; choose another cwd")
    return directory


def clock_of(frozen_time: str | None) -> Callable[[], str]:
    """Return the source of timestamps in events: the clock, or a deterministic one that starts at ``frozen_time``."""
    from zot.messages import timestamp  # Imported lazily: hello is answered without it.

    if frozen_time is None:
        return timestamp

    try:
        start = msgspec.convert(frozen_time, datetime).timestamp()
    except msgspec.ValidationError:
        raise ConfigError(f"{frozen_time!r} is not a time such as 2026-01-31T12:00:00Z") from None
    ticks = count()
    return lambda: timestamp(start + next(ticks) / 1000)
