"""A Config becomes a live session. The only file that picks concrete parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from zot.config import TOOL_NAMES, Config, credential, tool_environment, tool_names
from zot.errors import ConfigError
from zot.providers.models import Catalogue, catalogue
from zot.providers.vendors import VENDORS, ApiName, Endpoint, endpoint

if TYPE_CHECKING:
    from zot.agent.policy import Policy
    from zot.providers.base import Api, Provider, Transport
    from zot.session import Session
    from zot.store import Store


def check(config: Config) -> str:
    """Return the model that will be used. Raise ConfigError, or UserError, for what `open_session` would not take.

    Loads next to nothing: whoever waits for a first answer waits for this, too.
    """
    model = _catalogue(config).find(config.model)
    _key(config)
    _directory(config.cwd)
    tool_names(config)
    if config.script and config.provider != "lab":
        raise ConfigError("--script is for --provider lab")
    if config.script and not os.path.exists(config.script):
        raise ConfigError(f"{config.script}: no such file")
    if config.script and os.path.isfile(config.script):  # A pipe can be read only once, so it is read later.
        from zot.providers.lab.script import Script

        Script.load(config.script)
    if config.policy:
        from zot.agent.policy import Policy

        Policy.parse(config.policy)
    if config.frozen_time is not None:
        _clock(config.frozen_time)
    return model.id


def open_session(config: Config, store: Store | None = None, *, own_process: bool = False) -> Session:
    """Return a session that works as ``config`` says. Raise ConfigError if it makes no sense.

    In a process of our own, commands that tools run are kept out of its memory and environment; an embedding program
    decides that for itself.
    """
    from zot.agent.approvals import Approvals
    from zot.agent.loop import Agent
    from zot.agent.prompt import system_prompt
    from zot.messages import timestamp
    from zot.session import Session
    from zot.toolbox import Toolbox

    model_id = check(config)
    cwd, key = _directory(config.cwd), os.urandom(6).hex()
    toolbox = Toolbox(config, cwd=cwd, key=key, own_process=own_process)
    agent = Agent(
        _provider(config),
        _catalogue(config),
        model_id=model_id,
        system=system_prompt(
            cwd=cwd,
            date=timestamp()[:10],
            replaced_by=config.system_prompt,
            appended=(*config.append_system_prompt, toolbox.manifest),
        ),
        tools=toolbox.tools,
        cwd=cwd,
        env=tool_environment(config.environment),
        max_steps=config.max_steps,
        reasoning=config.reasoning,
        approver=Approvals(_policy(config), cwd=cwd, timeout_s=config.approval_timeout_s),
    )
    return Session(agent, store, jobs=toolbox, key=key, now=_clock(config.frozen_time))


def _policy(config: Config) -> Policy:
    """Return the rules for tools. One about a tool that we do not have may be a mistake, which would have no effect."""
    import logging

    from zot.agent.policy import Policy

    policy, log = Policy.parse(config.policy), logging.getLogger("zot")
    for rule in policy.rules:
        if rule.tool not in ("*", *TOOL_NAMES):
            log.warning("policy: no tool of zot is named %r; its own are %s", rule.tool, ", ".join(TOOL_NAMES))
    return policy


def _clock(frozen_time: str | None) -> Callable[[], str]:
    """Return what tells the time in events: the clock, or a time of its own that is the same in every run."""
    from zot.messages import timestamp

    if frozen_time is None:
        return timestamp
    from datetime import datetime

    import msgspec

    try:
        start = msgspec.convert(frozen_time, datetime).timestamp()
    except msgspec.ValidationError:
        raise ConfigError(f"{frozen_time!r} is not a time such as 2026-01-31T12:00:00Z") from None
    ticks = count()
    return lambda: timestamp(start + next(ticks) / 1000)


def _endpoint(config: Config) -> Endpoint:
    vendor = VENDORS[config.provider]
    return endpoint(vendor, api=config.api, base_url=config.base_url, env=config.environment)


def _catalogue(config: Config) -> Catalogue:
    """Return the models that may be asked for."""
    listed = catalogue(config.provider)
    return catalogue(config.provider, unlisted=True) if _endpoint(config).foreign else listed


def _key(config: Config) -> str:
    return credential(config.provider, config.api_key, config.environment, needed=not _endpoint(config).foreign)


def _provider(config: Config) -> Provider:
    """Return the service that is to be asked."""
    from zot.providers.service import Service

    where, key = _endpoint(config), _key(config)

    async def read_key() -> str:
        return key

    return Service(config.provider, _APIS[where.api](config, where), _transport(config), key=read_key)


def _transport(config: Config) -> Transport:
    """Return what carries the requests: the network, or a script."""
    if config.provider != "lab":
        from zot.providers.http import HttpTransport

        return HttpTransport(config.environment)
    from zot.providers.lab.script import Script, demo
    from zot.providers.lab.transport import LabTransport

    return LabTransport(Script.load(config.script) if config.script else demo())


def _anthropic(config: Config, where: Endpoint) -> Api:
    from zot.providers.anthropic import AnthropicMessages

    return AnthropicMessages(base_url=where.base_url, origin=config.provider)


def _to_come(config: Config, where: Endpoint) -> Api:
    raise ConfigError(f"{config.provider}: the API {where.api!r} is not available in this version of zot")


_APIS: Mapping[ApiName, Callable[[Config, Endpoint], Api]] = {
    "anthropic": _anthropic,
    "responses": _to_come,
    "chat": _to_come,
    "gemini": _to_come,
}


def _directory(path: str | None) -> str:
    """Return the working directory, absolute. Raise ConfigError if there is none."""
    try:
        directory = os.path.abspath(path or os.getcwd())
    except FileNotFoundError:
        raise ConfigError("the current directory no longer exists; use --cwd DIR") from None
    if not os.path.isdir(directory):
        raise ConfigError(f"{directory} is not a directory")
    return directory


def checked(settings: Mapping[str, Any], base: Config | None = None) -> Config:
    """Return ``base`` with ``settings``. Raise ConfigError if one is unknown or of the wrong type."""
    import msgspec

    if not isinstance(base, Config | None):
        raise ConfigError("the configuration must be a zot.Config; settings are given by name")
    fields = {} if base is None else msgspec.structs.asdict(base)
    paths = {name: os.fspath(value) for name, value in settings.items() if isinstance(value, os.PathLike)}
    try:
        return msgspec.convert({**fields, **settings, **paths}, Config)
    except msgspec.ValidationError as problem:
        raise ConfigError(str(problem)) from None
