"""Which service a Config asks, through which API, over which transport and with which key.

Besides `runtime` and `toolbox` the only file that picks concrete parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from zot.config import PROXY_NAMES, Config, keyless_environment
from zot.credentials import Credential, find, missing
from zot.providers.models import Catalogue, catalogue
from zot.providers.vendors import COMPATIBLE, VENDORS, ApiName, Endpoint, endpoint

if TYPE_CHECKING:
    from zot.providers.base import Api, Provider, ReadKey, RenewKey, Transport
    from zot.providers.recording import Header


def catalogue_of(config: Config) -> Catalogue:
    """Return the models that may be asked for. Those of a recording are priced as they were, its own first."""
    if not config.replay:
        listed = catalogue(config.provider)
        return catalogue(config.provider, unlisted=True) if _endpoint(config).foreign else listed
    recorded = _recorded(config)
    known = catalogue(recorded.provider, unlisted=True)
    first = known.find(recorded.model)
    return Catalogue(recorded.provider, (first, *(model for model in known.models if model != first)), open=True)


def credential_of(config: Config) -> Credential | None:
    """Return the key, or how to get it; None if there is none and none is needed. Raise ConfigError."""
    vendor, is_foreign = VENDORS[config.provider], _endpoint(config).foreign
    found = find(vendor, config.api_key, config.environment, foreign=is_foreign)
    if found is None and vendor.needs_key and not is_foreign:
        raise missing(vendor)
    return found


def provider_of(config: Config, model_id: str) -> Provider:
    """Return the service that is to be asked. Raise ConfigError."""
    from zot.providers.service import Service

    where = _endpoint(config)
    name = _recorded(config).provider if config.replay else config.provider
    secrets = _address_secrets(config, where)
    transport, jitter = _transport(config), None
    if config.record:
        from zot.providers.recorder import RecordingTransport
        from zot.providers.recording import VERSION, Header

        header = Header(VERSION, name, where.api, model_id)
        transport = RecordingTransport(transport, config.record, header, secrets=secrets)
    if config.record or config.replay:
        from random import Random

        jitter = Random(0).random  # A replay waits before its retries as the recorded run did: events tell of it.
    read, renew = _key(config)
    api = _APIS[where.api](name, where)
    return Service(name, api, transport, key=read, renew=renew, secrets=secrets, jitter=jitter)


def _endpoint(config: Config) -> Endpoint:
    """Return where and how the model is asked; a recording is understood as it was made."""
    api = config.api or (_recorded(config).api if config.replay else None)
    return endpoint(VENDORS[config.provider], api=api, base_url=config.base_url, env=config.environment)


def _recorded(config: Config) -> Header:
    from zot.providers.recording import header_of

    assert config.replay is not None
    return header_of(config.replay)


def _key(config: Config) -> tuple[ReadKey, RenewKey]:
    """Return what reads the key before each call, and what is told when it was refused."""
    found = credential_of(config)
    if found is not None and found.command:
        from zot.key_command import KeyCommand

        command = KeyCommand(config.provider, found.command, keyless_environment(config.environment))
        return command.read, command.renew
    key = "" if found is None else found.key

    async def read() -> str:
        return key

    return read, lambda _: False


def _address_secrets(config: Config, where: Endpoint) -> tuple[str, ...]:
    """Return what is secret in the addresses that are used: a service or a proxy may quote it."""
    from zot.providers.mask import userinfo

    addresses = (where.base_url, *(config.environment.get(name, "") for name in PROXY_NAMES))
    return tuple(secret for address in addresses for secret in userinfo(address))


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
