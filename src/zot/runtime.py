"""A Config becomes a live session. The only file that picks concrete parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from zot.config import Config, credential, tool_environment, tool_names, zot_home
from zot.errors import ConfigError
from zot.providers.models import Catalogue, Model, catalogue
from zot.providers.vendors import VENDORS, ApiName, Endpoint, endpoint

if TYPE_CHECKING:
    from zot.agent.expected import Expected
    from zot.providers.base import Api, Provider, Transport
    from zot.providers.recording import Header
    from zot.session import Session
    from zot.store import Store
    from zot.toolbox import Toolbox


def check(config: Config) -> str:
    """Return the model that will be used. Raise ConfigError, or UserError, for what `open_session` would not take.

    Loads next to nothing: whoever waits for a first answer waits for this, too.
    """
    model = models_of(config).find(config.model)
    _key(config, _endpoint(config, model))
    _directory(config.cwd)
    tool_names(config)
    for flag, file in (("--script", config.script), ("--replay", config.replay)):
        if file and config.provider != "lab":
            raise ConfigError(f"{flag} is for --provider lab")
    if config.script and config.replay:
        raise ConfigError("--script and --replay exclude each other: lab plays one of them")
    if config.script and not os.path.exists(config.script):
        raise ConfigError(f"{config.script}: no such file")
    if config.script and os.path.isfile(config.script):  # A pipe can be read only once, so it is read later.
        from zot.providers.lab.script import Script

        Script.load(config.script)
    if config.output_schema is not None:
        from zot.schema import load

        load(config.output_schema)
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
    from zot.agent.budget import Budget
    from zot.agent.loop import Agent
    from zot.agent.policy import Policy
    from zot.session import Session
    from zot.toolbox import Toolbox

    model_id, models = check(config), models_of(config)
    cwd, key = _directory(config.cwd), os.urandom(6).hex()
    toolbox = Toolbox(config, cwd=cwd, key=key, own_process=own_process)
    agent = Agent(
        _provider(config, models, model_id),
        models,
        model_id=model_id,
        system=_system(config, toolbox, cwd),
        tools=toolbox.tools,
        cwd=cwd,
        env=tool_environment(config.environment),
        max_steps=config.max_steps,
        budget=Budget(config.max_cost, config.max_tokens_total),
        reasoning=config.reasoning,
        expected=_expected(config),
        approver=Approvals(Policy.parse(config.policy), cwd=cwd, timeout_s=config.approval_timeout_s),
    )
    return Session(agent, store, jobs=toolbox, key=key, now=_clock(config.frozen_time))


def models_of(config: Config) -> Catalogue:
    """Return the models that may be asked for: those we know, and the user's. Raise ConfigError, or UserError.

    Those of a recording are priced as they were, its own first.
    """
    if not config.replay:
        listed = catalogue(config.provider)
        return _with_own(catalogue(config.provider, unlisted=True) if _endpoint(config).foreign else listed, config)
    recorded = _recorded(config)
    known = _with_own(catalogue(recorded.provider, unlisted=True), config)
    first = known.find(recorded.model)
    return Catalogue(recorded.provider, (first, *(model for model in known.models if model != first)), open=True)


def _with_own(listed: Catalogue, config: Config) -> Catalogue:
    """Return a catalogue with the user's models."""
    home = zot_home(config.environment)
    if home is None or not os.path.lexists(path := os.path.join(home, "models.json")):
        return listed
    from zot.providers.own_models import load, overlaid

    # Of a provider that is not ours nothing is used: the file may be shared with programs that have more.
    return overlaid(listed, load(path).get(listed.provider, ()))


async def with_served(config: Config) -> list[tuple[Model, bool]]:
    """Ask the service which models it serves; return them and those we know, and whether it serves each.

    Raise ConfigError, or ProviderError, which says what to do.
    """
    from zot.providers.listing import list_models, merged

    listed, where, transport = models_of(config), _endpoint(config), _transport(config)
    dialect = "ollama" if config.provider == "ollama" else where.api
    try:
        served = await list_models(
            config.provider, dialect, transport, base_url=where.base_url, key=_key(config, where)
        )
    finally:
        await transport.close()
    return merged(listed, served)


def prompt_of(config: Config) -> str:
    """Return the system prompt of a session that works as ``config`` says. Raise ConfigError."""
    from zot.toolbox import Toolbox

    cwd = _directory(config.cwd)
    return _system(config, Toolbox(config, cwd=cwd, key="", own_process=False), cwd)


def _system(config: Config, toolbox: Toolbox, cwd: str) -> str:
    from zot.agent.prompt import system_prompt
    from zot.instructions import discover

    home, expected = zot_home(config.environment), _expected(config)
    found = () if config.no_instructions else discover(cwd=cwd, home=home)
    return system_prompt(
        cwd=cwd,
        date=_clock(config.frozen_time)()[:10],
        tools=[tool.spec.name for tool in toolbox.tools],
        replaced_by=_own_words(home) if config.system_prompt is None else config.system_prompt,
        instructions=[(item.path, item.text) for item in found],
        appended=(
            *config.append_system_prompt,
            toolbox.manifest,
            expected.instruction if expected is not None else "",
        ),
    )


def _expected(config: Config) -> Expected | None:
    if config.output_schema is None:
        return None
    from zot.agent.expected import Expected
    from zot.schema import load

    return Expected(load(config.output_schema))


def _own_words(home: str | None) -> str | None:
    """Return what the user wrote to take the place of our words; None if there is no such file."""
    if home is None:
        return None
    path = os.path.join(home, "SYSTEM.md")
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8-sig").strip()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8") from None


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


def _endpoint(config: Config, model: Model | None = None) -> Endpoint:
    """Return where and how a model is asked; where most are, for None. A recording is understood as it was made.

    An address that was given wins over the model's own.
    """
    api = config.api or (_recorded(config).api if config.replay else None)
    address = config.base_url or (model.base_url if model is not None else "")
    return endpoint(VENDORS[config.provider], api=api, base_url=address or None, env=config.environment)


def _recorded(config: Config) -> Header:
    from zot.providers.recording import header_of

    assert config.replay is not None
    return header_of(config.replay)


def _key(config: Config, where: Endpoint) -> str:
    return credential(config.provider, config.api_key, config.environment, needed=not where.foreign)


def _provider(config: Config, models: Catalogue, model_id: str) -> Provider:
    """Return the service that is to be asked, or several, where models have addresses of their own."""
    transport = _transport(config)
    if config.record:
        from zot.providers.recorder import RecordingTransport
        from zot.providers.recording import VERSION, Header

        api = _endpoint(config, models.find(model_id)).api
        transport = RecordingTransport(transport, config.record, Header(VERSION, models.provider, api, model_id))
    usual = _service(config, models.provider, _endpoint(config), transport)
    away = () if config.base_url else tuple(model for model in models.models if model.base_url)
    if not away:
        return usual
    from zot.providers.by_model import ByModel

    services = (_service(config, models.provider, _endpoint(config, model), transport) for model in away)
    return ByModel(usual, dict(zip((model.id for model in away), services, strict=True)))


def _service(config: Config, name: str, where: Endpoint, transport: Transport) -> Provider:
    from zot.providers.service import Service

    jitter = None
    if config.record or config.replay:
        from random import Random

        jitter = Random(0).random  # A replay waits before its retries as the recorded run did: events tell of it.

    async def read_key() -> str:
        return _key(config, where)

    return Service(name, _APIS[where.api](name, where.base_url), transport, key=read_key, jitter=jitter)


def _transport(config: Config) -> Transport:
    """Return what carries the requests: the network, a script or a recording."""
    if config.provider != "lab":
        from zot.providers.http import HttpTransport

        return HttpTransport(config.environment)
    if config.replay:
        from zot.providers.recording import Recording
        from zot.providers.replay import ReplayTransport

        recording = Recording.load(config.replay)
        return ReplayTransport(recording, paced=config.replay_paced, checked=config.replay_checked)
    from zot.providers.lab.script import Script, demo
    from zot.providers.lab.transport import LabTransport

    return LabTransport(Script.load(config.script) if config.script else demo())


def _anthropic(provider: str, base_url: str) -> Api:
    from zot.providers.anthropic import AnthropicMessages

    return AnthropicMessages(base_url=base_url, origin=provider)


def _to_come(provider: str, base_url: str) -> Api:
    raise ConfigError(f"{provider}: its API is not available in this version of zot")


_APIS: Mapping[ApiName, Callable[[str, str], Api]] = {
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
