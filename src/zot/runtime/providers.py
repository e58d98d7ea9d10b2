"""Providers for a Config: which service, API, transport and key."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from zot.config.config import OF_PROVIDER, PROXY_NAMES, Config, keyless_environment, may_exist, zot_home
from zot.config.credentials import Credential, find, missing, stored_for
from zot.config.vendors import COMPATIBLE, VENDORS, ApiName, Endpoint, endpoint
from zot.errors import AuthFailed, ConfigError, ConnectionImpossible
from zot.providers.models import Catalogue, Model, catalogue

if TYPE_CHECKING:
    from zot.providers.base import Api, Provider, ReadKey, RenewKey, Transport
    from zot.providers.lab.script import Script
    from zot.providers.recording import RecordingHeader
    from zot.providers.service import Service
    from zot.runtime.shared import SharedResources


def models_of(config: Config) -> Catalogue:
    """Return the models that can be used, the user's own included.

    With --replay, the recorded model comes first, at its recorded price. Raise ConfigError.
    """
    if not config.replay:
        catalogue(config.provider)  # Raises a clear error for an unknown provider.
        return _with_own(catalogue(config.provider, unlisted=_endpoint(config).foreign), config)
    recorded = _recorded(config)
    known = _with_own(catalogue(recorded.provider, unlisted=True), config)
    first = known.find(recorded.model)
    return Catalogue(recorded.provider, (first, *(model for model in known.models if model != first)), open=True)


def credential_of(config: Config, model: Model | None = None) -> Credential | None:
    """Return the key, or how to get it; None if there is none and none is needed. Raise ConfigError."""
    vendor, where = VENDORS[config.provider], _endpoint(config, model)
    found = find(vendor, config.api_key, config.environment, base_url=where.base_url)
    if found is None and vendor.needs_key and not where.elsewhere:
        raise missing(vendor, config.environment)
    return found


def unused_key(config: Config) -> str:
    """Return a notice that no key is sent because the address is not the vendor's own; "" if it does not apply."""
    vendor, where = VENDORS[config.provider], _endpoint(config)
    if not (vendor.needs_key and where.elsewhere) or credential_of(config) is not None:
        return ""
    from zot.config.address import split_url

    try:
        place = split_url(where.base_url).origin.authority
    except ConnectionImpossible as problem:
        raise ConfigError(f"--base-url: {problem}") from None
    stored = "; the stored one is for another address" if stored_for(vendor, config.environment) else ""
    return f"no key is used: {place} is not {vendor.name}'s own address{stored}"


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
        from zot.providers.recording import VERSION, RecordingHeader, RecordingTransport

        where = _endpoint(config, models.find(model_id))
        header = RecordingHeader(VERSION, models.provider, where.api, model_id)
        transport = RecordingTransport(transport, config.record, header, secrets=_address_secrets(config, where))
    services = _Services(config, models.provider, transport, resources, left_s)
    usual = services.service(None)
    away = () if config.base_url else tuple(model for model in models.models if model.base_url)
    if not away:
        return usual
    from zot.providers.service import ModelRouter

    return ModelRouter(usual, {model.id: services.service(model) for model in away})


def masked(config: Config, text: str) -> str:
    """Return ``text`` with our keys masked, including those in addresses."""
    from zot.providers.mask import Mask

    open_names = keyless_environment(config.environment)
    secrets = {value for name, value in config.environment.items() if name not in open_names}
    try:
        credential, where = credential_of(config), _endpoint(config)
    except ConfigError:
        return Mask(secrets)(text)  # Opening a session reports the problem.
    key = "" if credential is None else credential.key
    return Mask({*secrets, key, *_address_secrets(config, where)})(text)


async def with_served(config: Config) -> list[tuple[Model, bool]]:
    """Return the models that we know or the service lists, each with whether the service lists it.

    Raise ConfigError, ProviderError.
    """
    from zot.providers.listing import list_models, merged
    from zot.runtime.shared import SharedResources

    listed, where = models_of(config), _endpoint(config)
    dialect = "ollama" if config.provider == "ollama" else where.api
    async with SharedResources() as resources:
        transport, (read, _) = _transport(config, resources), _key(config, None, resources)
        served = await list_models(config.provider, dialect, transport, base_url=where.base_url, key=await read())
    return merged(listed, served)


def script_of(config: Config) -> Script:
    """Return the script that lab plays. Raise ConfigError if it cannot be read."""
    from zot.providers.lab.script import Script, demo

    return Script.load(config.script) if config.script else demo()


def _with_own(listed: Catalogue, config: Config) -> Catalogue:
    """Return a catalogue with the user's models added."""
    home = zot_home(config.environment)
    if home is None or not may_exist(path := os.path.join(home, "models.json")):
        return listed
    from zot.providers.own_models import load, overlaid

    # Entries of unknown providers are ignored: other programs may share the file.
    return overlaid(listed, load(path).get(listed.provider, ()))


class _Services(msgspec.Struct, frozen=True):
    """Makes the services of one provider, which share a transport."""

    config: Config
    name: str
    transport: Transport
    resources: SharedResources
    left_s: Callable[[], float] | None

    def service(self, model: Model | None) -> Service:
        """Return the service for ``model``; for None, the one most models use."""
        from zot.providers.service import Service

        config, where, jitter = self.config, _endpoint(self.config, model), None
        if config.record or config.replay:
            from random import Random

            jitter = Random(0).random  # Retry delays appear in events: a replay must reproduce them.
        read, renew = _key(config, model, self.resources)
        return Service(
            self.name,
            _APIS[where.api](self.name, where),
            self.transport,
            key=read,
            renew=renew,
            secrets=_address_secrets(config, where),
            jitter=jitter,
            left_s=self.left_s,
        )


def _endpoint(config: Config, model: Model | None = None) -> Endpoint:
    """Return address and API for a model; for None, those that most models use. A recording's API is as recorded.

    A configured address wins over the model's own.
    """
    api = config.api or (_recorded(config).api if config.replay else None)
    address = config.base_url or (model.base_url if model is not None else "")
    return endpoint(VENDORS[config.provider], api=api, base_url=address or None, env=config.environment)


def _recorded(config: Config) -> RecordingHeader:
    from zot.providers.recording import header_of

    assert config.replay is not None
    return header_of(config.replay)


def _key(config: Config, model: Model | None, resources: SharedResources) -> tuple[ReadKey, RenewKey]:
    """Return a function that reads the key before each call, and one to call when the key was refused.

    A missing key is reported when it is read: a model with an address of its own may need none.
    """
    try:
        found = credential_of(config, model)
    except ConfigError as problem:
        return _missing_key(str(problem)), lambda _: False
    if found is not None and found.command:
        command = resources.key_command(config.provider, found.command, keyless_environment(config.environment))
        return command.read, command.renew
    key = "" if found is None else found.key

    async def read() -> str:
        return key

    return read, lambda _: False


def _missing_key(reason: str) -> ReadKey:
    async def read() -> str:
        raise AuthFailed(reason)

    return read


def _address_secrets(config: Config, where: Endpoint) -> tuple[str, ...]:
    """Return the secrets in the addresses used: a service or proxy may quote them in errors."""
    from zot.providers.mask import userinfo

    addresses = (where.base_url, *(config.environment.get(name, "") for name in PROXY_NAMES))
    return tuple(secret for address in addresses for secret in userinfo(address))


def _transport(config: Config, resources: SharedResources) -> Transport:
    """Return the transport of requests: the network, a script or a recording."""
    if config.provider != "lab":
        return resources.transport(config.environment)
    if config.replay:
        from zot.providers.recording import Recording, ReplayTransport

        recording = Recording.load(config.replay)
        return ReplayTransport(recording, paced=config.replay_paced, checked=config.replay_checked)
    from zot.providers.lab.transport import LabTransport

    return LabTransport(script_of(config))


def _anthropic(provider: str, where: Endpoint) -> Api:
    from zot.providers.anthropic import AnthropicMessages

    return AnthropicMessages(base_url=where.base_url, origin=provider)


def _responses(provider: str, where: Endpoint) -> Api:
    from zot.providers.openai_responses import OpenAIResponses

    return OpenAIResponses(base_url=where.base_url, origin=provider)


def _chat(provider: str, where: Endpoint) -> Api:
    from zot.providers.openai_chat import ChatCompletions

    quirks = COMPATIBLE if where.foreign else VENDORS[provider].chat
    return ChatCompletions(base_url=where.base_url, origin=provider, quirks=quirks)


def _gemini(provider: str, where: Endpoint) -> Api:
    from zot.providers.gemini import GeminiGenerateContent

    return GeminiGenerateContent(base_url=where.base_url, origin=provider)


_APIS: Mapping[ApiName, Callable[[str, Endpoint], Api]] = {
    "anthropic": _anthropic,
    "responses": _responses,
    "chat": _chat,
    "gemini": _gemini,
}


class EarlierProviders:
    """The providers used earlier in a conversation, by name."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[dict[str, Any], Model]] = {}

    def leave(self, name: str, config: Config, model: Model) -> None:
        """Remember a provider's settings and its last model."""
        self._left[name] = {field: getattr(config, field) for field in ("provider", *OF_PROVIDER)}, model

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def settings(self, name: str) -> dict[str, Any]:
        """Return a provider's settings: the remembered ones, or defaults."""
        return self._left[name][0] if name in self._left else {"provider": name, **dict.fromkeys(OF_PROVIDER)}

    def elsewhere(self, provider: str, config: Config) -> list[Model]:
        """Return the models of all providers but ``provider`` that were used before or have a key."""
        found: list[Model] = []
        for name, vendor in VENDORS.items():
            if name == provider or not (vendor.key_names or name in self._left):
                continue
            try:
                found += self.models(name, config)
            except ConfigError:
                continue  # Not set up; `zot doctor` reports why.
        return found

    def models(self, name: str, config: Config) -> list[Model]:
        """Return a provider's models, the last used one first; none if it was never used and has no key.

        Raise ConfigError if it is not set up.
        """
        asked = msgspec.structs.replace(config, model=None, **self.settings(name))
        if name not in self._left:
            return [*models_of(asked).models] if credential_of(asked) is not None else []
        last = self._left[name][1]
        return [last, *(model for model in models_of(asked).models if model.id != last.id)]
