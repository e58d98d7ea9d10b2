"""Every model API that can be asked, and the strictest reader of its requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import chat_validator
import msgspec
import validator

from zot.providers.anthropic import AnthropicMessages
from zot.providers.base import Api
from zot.providers.openai_chat import ChatCompletions
from zot.providers.vendors import VENDORS


class Spoken(msgspec.Struct, frozen=True):
    """An API as lab speaks it, and what is wrong with a request to it."""

    api: Callable[[], Api]
    problems: Callable[[bytes], list[str]]


_WHERE = "http://lab.test"
_CHAT = VENDORS["lab"].chat

APIS: Mapping[str, Spoken] = {
    "anthropic": Spoken(lambda: AnthropicMessages(base_url=_WHERE, origin="lab"), validator.problems),
    "chat": Spoken(
        lambda: ChatCompletions(base_url=_WHERE, origin="lab", quirks=_CHAT),
        lambda body: chat_validator.problems(body, _CHAT),
    ),
}
