"""What a stream of Chat Completions is made of: the union of what its servers send, as far as we use it."""

from __future__ import annotations

from typing import Any

import msgspec

from zot.messages import Counters


class Function(msgspec.Struct, gc=False):
    """Part of a call. ``arguments`` is a text that grows, or, with some servers, the whole object."""

    name: str | None = None
    arguments: Any = None


class CallPiece(msgspec.Struct, gc=False):
    """A piece of one call; which one is said by its index, its id, both or neither."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Words(msgspec.Struct, gc=False):
    text: str | None = None


class Part(msgspec.Struct, gc=False):
    """A part of content that is a list: text, or a thought, which is a text or a list of texts itself."""

    text: str | None = None
    thinking: str | list[Words] | None = None

    @property
    def thought(self) -> str:
        if isinstance(self.thinking, list):
            return "".join(words.text or "" for words in self.thinking)
        return self.thinking or ""


class Delta(msgspec.Struct, gc=False):
    content: str | list[Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    tool_calls: list[CallPiece] | None = None
    function_call: Function | None = None
    refusal: str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _CompletionDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    """Tokens, in every spelling: what was cached is told in three places."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    cached_tokens: int | None = None

    def counters(self) -> Counters:
        """Return what was used. What was cached is part of the prompt everywhere, and is taken out of it."""
        prompt, output = self.prompt_tokens or 0, self.completion_tokens or 0
        details = self.prompt_tokens_details or _PromptDetails()
        cached = details.cached_tokens or self.prompt_cache_hit_tokens or self.cached_tokens or 0
        written = details.cache_write_tokens or 0
        reasoning = (self.completion_tokens_details or _CompletionDetails()).reasoning_tokens or 0
        # Where the sum says so, thoughts come on top of the answer.
        if reasoning and self.total_tokens == prompt + output + reasoning:
            output += reasoning
        return Counters(max(0, prompt - cached - written), output, cached, written, 0.0, reasoning=reasoning)


class Choice(msgspec.Struct, gc=False):
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    usage: Usage | None = None


class _Groq(msgspec.Struct, gc=False):
    usage: Usage | None = None


class Chunk(msgspec.Struct, gc=False):
    """One event. ``error`` and ``message`` are read by those who know errors."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    x_groq: _Groq | None = None
    error: Any = None
    message: Any = None
