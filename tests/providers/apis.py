"""Every model API: the writer of its streams, and the strictest reader of its requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import chat_validator
import gemini_validator
import msgspec
import responses_validator
import validator

import claude
import completions
import gemini
import gpt
from zot.config.vendors import VENDORS, ApiName
from zot.providers.anthropic import AnthropicMessages
from zot.providers.base import Api
from zot.providers.gemini import GeminiGenerateContent
from zot.providers.openai_chat import ChatCompletions
from zot.providers.openai_responses import OpenAIResponses

_CHAT = VENDORS["lab"].chat


class Words(Protocol):
    """Writes the streams of an API. Only `reply` interprets the parts."""

    def text(self, *pieces: str) -> Any: ...
    def thinking(self, *pieces: str, signature: str) -> Any: ...
    def redacted(self, data: str) -> Any: ...
    def tool(self, call_id: str, name: str, *pieces: str) -> Any: ...
    def reply(self, *parts: Any, ends: str = "end_turn") -> list[bytes]: ...


class _ChatWords:
    """Chat Completions: calls are numbered on their own, and nothing is sealed."""

    def text(self, *pieces: str) -> Any:
        return lambda _: completions.text(*pieces)

    def thinking(self, *pieces: str, signature: str) -> Any:
        return lambda _: completions.thinking(*pieces)

    def redacted(self, data: str) -> Any:
        return lambda _: []

    def tool(self, call_id: str, name: str, *pieces: str) -> Any:
        return lambda index: completions.tool(index, call_id, name, *pieces)

    def reply(self, *parts: Any, ends: str = "end_turn") -> list[bytes]:
        reasons = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length"}
        return completions.reply(*(part(index) for index, part in enumerate(parts)), ends=reasons[ends])


class Spoken(msgspec.Struct, frozen=True):
    """An API as lab serves it, and a validator of its requests."""

    words: Words
    at: Callable[..., Api]
    problems: Callable[[bytes], list[str]]

    def api(self, base_url: str = "http://lab.invalid", origin: str = "lab") -> Api:
        return self.at(base_url=base_url, origin=origin)


APIS: Mapping[ApiName, Spoken] = {
    "anthropic": Spoken(claude, AnthropicMessages, validator.problems),
    "responses": Spoken(gpt, OpenAIResponses, responses_validator.problems),
    "chat": Spoken(
        _ChatWords(), partial(ChatCompletions, quirks=_CHAT), lambda body: chat_validator.problems(body, _CHAT)
    ),
    "gemini": Spoken(gemini, GeminiGenerateContent, gemini_validator.problems),
}
