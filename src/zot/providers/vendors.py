"""Who serves models: which API each speaks, where, and under which names its key is looked for.

Facts alone: this file is read before anything is answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from zot.errors import ConfigError

ApiName: TypeAlias = Literal["anthropic", "responses", "chat", "gemini"]


class ChatQuirks(msgspec.Struct, frozen=True):
    """Where the servers of Chat Completions differ."""

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """One model service. The first of ``apis`` is the one it is asked through unless another is named.

    ``open`` says that it serves models nobody can list: any id may be asked for. ``compatible`` is the API that
    everybody's servers speak, and not only proxies of this one.
    """

    name: str
    apis: tuple[ApiName, ...]
    base_url: str
    base_url_names: tuple[str, ...] = ()
    key_names: tuple[str, ...] = ()
    needs_key: bool = True
    open: bool = False
    compatible: ApiName | None = None
    chat: ChatQuirks = ChatQuirks()


_ALL = (
    Vendor(
        name="anthropic",
        apis=("anthropic",),
        base_url="https://api.anthropic.com",
        base_url_names=("ANTHROPIC_BASE_URL",),
        key_names=("ANTHROPIC_API_KEY",),
    ),
    Vendor(
        name="openai",
        apis=("responses", "chat"),
        base_url="https://api.openai.com",
        base_url_names=("OPENAI_BASE_URL",),
        key_names=("OPENAI_API_KEY",),
        compatible="chat",
        chat=ChatQuirks(max_tokens_field="max_completion_tokens"),
    ),
    Vendor(
        name="gemini",
        apis=("gemini",),
        base_url="https://generativelanguage.googleapis.com",
        base_url_names=("GEMINI_BASE_URL",),
        key_names=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    ),
    Vendor(name="deepseek", apis=("chat",), base_url="https://api.deepseek.com", key_names=("DEEPSEEK_API_KEY",)),
    Vendor(
        name="kimi",
        apis=("chat",),
        base_url="https://api.moonshot.ai",
        key_names=("KIMI_API_KEY", "MOONSHOT_API_KEY"),
    ),
    Vendor(
        name="openrouter",
        apis=("chat",),
        base_url="https://openrouter.ai/api",
        key_names=("OPENROUTER_API_KEY",),
        open=True,
    ),
    Vendor(
        name="ollama",
        apis=("chat",),
        base_url="http://localhost:11434",
        base_url_names=("OLLAMA_HOST",),
        key_names=("OLLAMA_API_KEY",),
        needs_key=False,
        open=True,
    ),
    Vendor(name="groq", apis=("chat",), base_url="https://api.groq.com/openai", key_names=("GROQ_API_KEY",)),
    Vendor(name="mistral", apis=("chat",), base_url="https://api.mistral.ai", key_names=("MISTRAL_API_KEY",)),
    Vendor(name="xai", apis=("chat",), base_url="https://api.x.ai", key_names=("XAI_API_KEY",)),
    Vendor(
        name="lab",
        apis=("anthropic", "responses", "chat", "gemini"),
        base_url="http://lab.invalid",
        needs_key=False,
    ),
)

VENDORS: Mapping[str, Vendor] = {vendor.name: vendor for vendor in _ALL}

#: Every name under which a key may stand in the environment.
KEY_NAMES = frozenset(name for vendor in _ALL for name in vendor.key_names)


class Endpoint(msgspec.Struct, frozen=True):
    """Where and how a service is asked. At a ``foreign`` address another server speaks its API, with its own models."""

    api: ApiName
    base_url: str
    foreign: bool


def endpoint(vendor: Vendor, *, api: ApiName | None, base_url: str | None, env: Mapping[str, str]) -> Endpoint:
    """Return where ``vendor`` is asked, by what was given and by the environment. Raise ConfigError."""
    if api is not None and api not in vendor.apis:
        raise ConfigError(f"{vendor.name} does not speak the API {api!r}; it speaks: {', '.join(vendor.apis)}")
    address = base_url or next((env[name] for name in vendor.base_url_names if env.get(name)), "")
    elsewhere = bool(address) and address.rstrip("/").removesuffix("/v1") != vendor.base_url
    foreign = elsewhere and vendor.compatible is not None
    usual = vendor.compatible if foreign else None
    return Endpoint(api or usual or vendor.apis[0], address or vendor.base_url, foreign)
