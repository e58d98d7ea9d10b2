"""Assembly of a session's provider: its service, API, transport and key, made from a Config."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from importlib import import_module

import msgspec

from zot.config.config import PROXY_NAMES, Config, keyless_environment
from zot.config.vendors import COMPATIBLE, VENDORS, ApiName, Endpoint
from zot.errors import AuthFailed, ConfigError
from zot.providers.base import Api, FixedKey, KeySource, Provider, Transport
from zot.providers.mask import Mask, userinfo
from zot.providers.models import Catalogue, Model
from zot.providers.service import ModelRouter, RetryTiming, Service
from zot.runtime.provider_choice import credential_of, endpoint_of, models_of, script_of
from zot.runtime.shared import SharedResources


def provider_of(
    config: Config,
    models: Catalogue,
    model_id: str,
    resources: SharedResources,
    *,
    left_s: Callable[[], float] | None = None,
) -> Provider:
    """Return the provider to call: one service, or several where models have addresses of their own.

    ``left_s`` returns the seconds until the answer is useless. Connections and keys are those of ``resources``.
    """
    transport = _transport(config, resources)
    if config.record:
        from zot.providers.recording import VERSION, RecordingHeader, RecordingTransport  # Imported lazily: `--record`.

        where = endpoint_of(config, models.find(model_id))
        header = RecordingHeader(VERSION, models.provider, where.api, model_id)
        transport = RecordingTransport(transport, config.record, header, secrets=_address_secrets(config, where))
    services = _Services(config, models.provider, transport, resources, left_s)
    usual = services.service(None)
    away = () if config.base_url else tuple(model for model in models.models if model.base_url)
    if not away:
        return usual
    return ModelRouter(usual, {model.id: services.service(model) for model in away})


def masked(config: Config, text: str) -> str:
    """Return ``text`` with our keys masked, including those in addresses."""
    open_names = keyless_environment(config.environment)
    secrets = {value for name, value in config.environment.items() if name not in open_names}
    try:
        credential, where = credential_of(config), endpoint_of(config)
    except ConfigError:
        return Mask(secrets)(text)  # Opening a session reports the problem.
    key = "" if credential is None else credential.key
    return Mask({*secrets, key, *_address_secrets(config, where)})(text)


def served_models(config: Config) -> list[tuple[Model, bool]]:
    """Return the models as `with_served` does, in an event loop of its own."""
    return asyncio.run(with_served(config))


async def with_served(config: Config) -> list[tuple[Model, bool]]:
    """Return the models that we know or the service lists, each with whether the service lists it.

    Raise ConfigError, ProviderError.
    """
    from zot.providers.model_listing import list_models, merged  # Imported lazily: only `zot models` needs it.

    listed, where = models_of(config), endpoint_of(config)
    dialect = "ollama" if config.provider == "ollama" else where.api
    async with SharedResources() as resources:
        transport, key = _transport(config, resources), await _key(config, None, resources).read()
        served = await list_models(config.provider, dialect, transport, base_url=where.base_url, key=key)
    return merged(listed, served)


class _Services(msgspec.Struct, frozen=True):
    """Makes the services of one provider, which share a transport."""

    config: Config
    name: str
    transport: Transport
    resources: SharedResources
    left_s: Callable[[], float] | None

    def service(self, model: Model | None) -> Service:
        """Return the service for ``model``; for None, the one most models use."""
        where = endpoint_of(self.config, model)
        return Service(
            self.name,
            _api(self.name, where),
            self.transport,
            key=_key(self.config, model, self.resources),
            secrets=_address_secrets(self.config, where),
            retries=_retry_timing(self.config, self.left_s),
        )


def _retry_timing(config: Config, left_s: Callable[[], float] | None) -> RetryTiming:
    timing = RetryTiming() if left_s is None else RetryTiming(left_s=left_s)
    if not (config.record or config.replay):
        return timing
    from random import Random  # Imported lazily: recordings are rare.

    # Retry delays appear in events: a replay must reproduce them.
    return msgspec.structs.replace(timing, jitter=Random(0).random)


def _key(config: Config, model: Model | None, resources: SharedResources) -> KeySource:
    """Return the source of the key for ``model``."""
    try:
        found = credential_of(config, model)
    except ConfigError as problem:
        return _MissingKey(str(problem))
    if found is not None and found.command:
        return resources.key_command(config.provider, found.command, keyless_environment(config.environment))
    return FixedKey("" if found is None else found.key)


class _MissingKey(msgspec.Struct, frozen=True):
    """A key that is not configured, reported when it is read: a model with an address of its own may need none."""

    reason: str

    async def read(self) -> str:
        raise AuthFailed(self.reason)

    def renew(self, refused: str) -> bool:
        return False


def _address_secrets(config: Config, where: Endpoint) -> tuple[str, ...]:
    """Return the secrets in the addresses used: a service or proxy may quote them in errors."""
    addresses = (where.base_url, *(config.environment.get(name, "") for name in PROXY_NAMES))
    return tuple(secret for address in addresses for secret in userinfo(address))


def _transport(config: Config, resources: SharedResources) -> Transport:
    """Return the transport of requests: the network, a script or a recording."""
    if config.provider != "lab":
        return resources.transport(config.environment)
    if config.replay:
        from zot.providers.recording import Recording, ReplayTransport  # Imported lazily: only `--replay` needs it.

        recording = Recording.load(config.replay)
        return ReplayTransport(recording, paced=config.replay_paced, checked=config.replay_checked)
    from zot.providers.lab.transport import LabTransport  # Imported lazily: not part of a call to a service.

    return LabTransport(script_of(config))


def _api(provider: str, where: Endpoint) -> Api:
    """Return the API of an address. Its module is imported now: a session needs one."""
    module, kind = _APIS[where.api]
    quirks = {"quirks": COMPATIBLE if where.foreign else VENDORS[provider].chat} if where.api == "chat" else {}
    made: Api = getattr(import_module(module), kind)(base_url=where.base_url, origin=provider, **quirks)
    return made


#: The module and class of each API. A session imports only its own.
_APIS: Mapping[ApiName, tuple[str, str]] = {
    "anthropic": ("zot.providers.anthropic", "AnthropicMessages"),
    "responses": ("zot.providers.openai_responses", "OpenAIResponses"),
    "chat": ("zot.providers.openai_chat", "ChatCompletions"),
    "gemini": ("zot.providers.gemini", "GeminiGenerateContent"),
}
