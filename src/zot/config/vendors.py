"""Vendors: the API each one speaks, its address, its key variables and its quirks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from zot.errors import ConfigError, ConnectionImpossible

ApiName: TypeAlias = Literal["anthropic", "responses", "chat", "gemini"]


class ImageLimits(msgspec.Struct, frozen=True):
    """Limits on images, single and per request. Sizes are before base64, which adds a third."""

    max_bytes: int
    max_count: int
    max_total_bytes: int
    types: frozenset[str] = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


#: Request fields for each level of reasoning; a missing level adds none.
Levels: TypeAlias = Mapping[str, Mapping[str, Any]]


class ChatQuirks(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between Chat Completions servers in the requests they accept. Responses are read uniformly.

    ``reasoning`` has levels by prefix of the model's id; the first match wins. ``thoughts`` is the field that
    returns a model's thinking: ``reasoning_content`` goes with tool calls, and the service requires it, so
    ``no_thought`` is sent if none is known; ``reasoning_details`` goes with all messages. ``think_tags``: models
    may think in ``<think>`` tags at the beginning of their text. A call id that does not match ``call_ids`` is
    replaced. If ``user_after_tool`` is false, an assistant message must stand between a result and a user message.
    """

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    usage_on_request: bool = True
    reasoning: tuple[tuple[str, Levels], ...] = ()
    thoughts: Literal["", "reasoning_content", "reasoning_details"] = ""
    no_thought: str = "(no thought is known)"
    think_tags: bool = False
    images: ImageLimits = ImageLimits(15_000_000, 100, 30_000_000)
    call_ids: str = "[!-~]{1,64}"
    user_after_tool: bool = True


_EFFORT: Levels = {level: {"reasoning_effort": level} for level in ("low", "medium", "high")}
_THINKING: Levels = {level: {"thinking": {"type": "enabled"}} for level in ("low", "medium", "high")}
_NO_THINKING = {"thinking": {"type": "disabled"}}

#: A server of which only the address is known.
COMPATIBLE = ChatQuirks(reasoning=(("", _EFFORT),), think_tags=True)


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """One model service. The first of ``apis`` is the default.

    ``open``: it serves unlisted models, so any id is accepted. ``compatible`` is the API that unrelated servers
    speak too, not only proxies of this one.
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
        chat=ChatQuirks(max_tokens_field="max_completion_tokens", reasoning=(("", _EFFORT),)),
    ),
    Vendor(
        name="gemini",
        apis=("gemini",),
        base_url="https://generativelanguage.googleapis.com",
        base_url_names=("GEMINI_BASE_URL",),
        key_names=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    ),
    Vendor(
        name="deepseek",
        apis=("chat",),
        base_url="https://api.deepseek.com",
        key_names=("DEEPSEEK_API_KEY",),
        chat=ChatQuirks(
            # Thinks unless disabled.
            reasoning=(
                ("", {"off": _NO_THINKING, **{level: {**_THINKING[level], **_EFFORT[level]} for level in _EFFORT}}),
            ),
            thoughts="reasoning_content",
            images=ImageLimits(0, 0, 0),
        ),
    ),
    Vendor(
        name="kimi",
        apis=("chat",),
        base_url="https://api.moonshot.ai",
        key_names=("KIMI_API_KEY", "MOONSHOT_API_KEY"),
        chat=ChatQuirks(
            # Older models have no switch: the model's name decides whether it thinks.
            reasoning=(("moonshot-", {}), ("kimi-k2-", {}), ("", {"off": _NO_THINKING, **_THINKING})),
            thoughts="reasoning_content",
        ),
    ),
    Vendor(
        name="openrouter",
        apis=("chat",),
        base_url="https://openrouter.ai/api",
        key_names=("OPENROUTER_API_KEY",),
        open=True,
        chat=ChatQuirks(
            reasoning=(("", {level: {"reasoning": {"effort": level}} for level in _EFFORT}),),
            thoughts="reasoning_details",
        ),
    ),
    Vendor(
        name="ollama",
        apis=("chat",),
        base_url="http://localhost:11434",
        base_url_names=("OLLAMA_HOST",),
        key_names=("OLLAMA_API_KEY",),
        needs_key=False,
        open=True,
        chat=ChatQuirks(reasoning=(("", {"off": {"reasoning_effort": "none"}, **_EFFORT}),), think_tags=True),
    ),
    Vendor(
        name="groq",
        apis=("chat",),
        base_url="https://api.groq.com/openai",
        key_names=("GROQ_API_KEY",),
        chat=ChatQuirks(
            max_tokens_field="max_completion_tokens",
            reasoning=(
                ("openai/gpt-oss", _EFFORT),
                (
                    "qwen/",
                    {
                        "off": {"reasoning_effort": "none"},
                        **{level: {"reasoning_effort": "default", "reasoning_format": "parsed"} for level in _EFFORT},
                    },
                ),
            ),
            think_tags=True,
            images=ImageLimits(3_000_000, 5, 3_000_000),
        ),
    ),
    Vendor(
        name="mistral",
        apis=("chat",),
        base_url="https://api.mistral.ai",
        key_names=("MISTRAL_API_KEY",),
        chat=ChatQuirks(
            usage_on_request=False,
            call_ids="[a-zA-Z0-9]{9}",
            user_after_tool=False,
            images=ImageLimits(7_500_000, 8, 30_000_000),
        ),
    ),
    Vendor(
        name="xai",
        apis=("chat",),
        base_url="https://api.x.ai",
        key_names=("XAI_API_KEY",),
        chat=ChatQuirks(
            max_tokens_field="max_completion_tokens",
            # The other models refuse a reasoning level.
            reasoning=(("grok-3-mini", {**_EFFORT, "medium": {"reasoning_effort": "high"}}),),
            images=ImageLimits(7_500_000, 100, 30_000_000, frozenset({"image/png", "image/jpeg"})),
        ),
    ),
    Vendor(
        name="lab",
        apis=("anthropic", "responses", "chat", "gemini"),
        base_url="http://lab.invalid",
        needs_key=False,
        chat=ChatQuirks(reasoning=(("", _EFFORT),), thoughts="reasoning_content"),
    ),
)

VENDORS: Mapping[str, Vendor] = {vendor.name: vendor for vendor in _ALL}

#: All environment variables that may hold a key.
KEY_NAMES = frozenset(name for vendor in _ALL for name in vendor.key_names)


class Endpoint(msgspec.Struct, frozen=True):
    """Address and API of a service. ``elsewhere``: not the vendor's own address, so it may need no key, or another.

    ``foreign``: an unrelated server speaks the API, with its own models.
    """

    api: ApiName
    base_url: str
    foreign: bool
    elsewhere: bool


def endpoint(vendor: Vendor, *, api: ApiName | None, base_url: str | None, env: Mapping[str, str]) -> Endpoint:
    """Return the endpoint of ``vendor`` from the given values and the environment. Raise ConfigError."""
    if api is not None and api not in vendor.apis:
        raise ConfigError(f"{vendor.name} does not speak the API {api!r}; it speaks: {', '.join(vendor.apis)}")
    address = _whole(base_url or next((env[name] for name in vendor.base_url_names if env.get(name)), ""), vendor)
    elsewhere = bool(address) and not same_address(address, vendor.base_url)
    foreign = elsewhere and vendor.compatible is not None
    usual = vendor.compatible if foreign else None
    return Endpoint(api or usual or vendor.apis[0], address or vendor.base_url, foreign, elsewhere)


def same_address(one: str, other: str) -> bool:
    """True if two base URLs mean the same place, however they are spelled."""
    return one == other or _place(one) == _place(other)


def _place(base_url: str) -> object:
    """Return a canonical form of a base URL, as the transport reads it."""
    from zot.config.base_url import COMPLETIONS, split_url  # Imported lazily: few users set an address.

    try:
        target = split_url(base_url)
    except ConnectionImpossible:
        return base_url
    origin = msgspec.structs.replace(target.origin, host=target.origin.host.removesuffix("."))
    path = target.path.rstrip("/").removesuffix(COMPLETIONS).rstrip("/")
    return origin, path.removesuffix("/v1beta").removesuffix("/v1").rstrip("/")


def _whole(address: str, vendor: Vendor) -> str:
    """Return the address of a local server as a URL: ``OLLAMA_HOST`` may be as short as ``:8080``."""
    if not address or "://" in address or not vendor.base_url.startswith("http://localhost:"):
        return address
    has_port = ":" in address and not address.endswith("]")
    host, port = (address[: address.rindex(":")], address[address.rindex(":") + 1 :]) if has_port else (address, "")
    # A wildcard listen address cannot be connected to.
    host = "localhost" if host in ("", "0.0.0.0", "[::]") else host
    return f"http://{host}:{port or vendor.base_url.rpartition(':')[2]}"
