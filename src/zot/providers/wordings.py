"""What services say in a sentence because they have no word for it. The only place that reads one.

Why there is such a place, and how little it may do: docs/decisions/wordings.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from zot.errors import AuthFailed, ContextTooLong, NoCredit, ProviderError

#: What is said instead of a word that would tell: all that we have heard together with one of the sentences below.
_UNTELLING = frozenset(
    {
        "400", "422", "invalid_request_error", "INVALID_ARGUMENT", "None", "badRequest", "bad_request",
        "BadRequestError",  # vLLM
        "invalid_request_prompt", "3051",  # Mistral
        "invalid-argument", "Client specified an invalid argument",  # xAI
        "api_error",  # ollama
    }
)  # fmt: skip

#: How a sentence begins, and what it means. ``N`` stands for a number. Where it tells the part of the conversation
#: (``INPUT``) from that of the answer, the conversation counts only if it fills half of the window (``LIMIT``): below
#: that it is the answer that does not fit, and shortening the conversation would be no use.
_FORMS: tuple[tuple[type[ProviderError], str], ...] = (
    # Anthropic
    (ContextTooLong, r"prompt is too long(: N tokens > N maximum)?\.?$"),
    (ContextTooLong, r"input length and `max_tokens` exceed context limit: INPUT \+ N > LIMIT\b"),
    (NoCredit, r"your credit balance is too low to access the \w+ API\b"),
    (NoCredit, r"you have reached your specified (\w+ )?API usage limits\b"),
    # Gemini
    (ContextTooLong, r"the input token count (\(N\) )?exceeds the maximum number of tokens allowed\b"),
    # OpenAI of old, DeepSeek, vLLM, OpenRouter and most servers of one's own
    (
        ContextTooLong,
        r"('max_tokens' or 'max_completion_tokens' is too large: N\. )?"
        r"this (model|endpoint)'s maximum context length is LIMIT tokens"
        r"(.*?[ (]INPUT (in the messages|in your prompt|of text input|input tokens)\b)?",
    ),
    (ContextTooLong, r"your input exceeds the context window of this model\b"),
    # xAI
    (ContextTooLong, r"this model's maximum prompt length is N but the request contains N tokens\b"),
    (AuthFailed, r"incorrect API key provided\b"),
    # Mistral
    (ContextTooLong, r"prompt contains N tokens( and N draft tokens)?, too large for model with N maximum context "),
    # Groq, Kimi
    (ContextTooLong, r"please reduce the length of the messages or completion\.?$"),
    (ContextTooLong, r"(invalid request: )?your request exceeded model token limit: N\b"),
    # llama.cpp, LM Studio, ollama, Together, LiteLLM
    (ContextTooLong, r"(the )?request (\(N tokens\) )?exceeds the available context size\b"),
    (ContextTooLong, r"the number of tokens to keep from the initial prompt is greater than the context length\b"),
    (ContextTooLong, r"trying to keep the first N tokens when context the overflows\b"),
    (ContextTooLong, r"(the )?input length exceeds the context length\b"),
    (ContextTooLong, r"prompt too long; exceeded (max )?context length\b"),
    (ContextTooLong, r"the input \(N tokens\) is longer than the model's context length \(N tokens\)"),
    (ContextTooLong, r"litellm\.(BadRequestError: litellm\.)?ContextWindowExceededError: "),
)  # fmt: skip
_NUMBERS = {"INPUT": r"(?P<input>\d[\d,]{0,14})", "LIMIT": r"(?P<limit>\d[\d,]{0,14})", "N": r"\d[\d,]{0,14}"}


def meant(words: Sequence[str], sentence: str) -> type[ProviderError] | None:
    """Return what a refusal means that names itself by ``words`` and says ``sentence``; None if it is what it seems.

    Only for a request that was called bad. Any word that may tell more counts more than what is said.
    """
    if not _UNTELLING.issuperset(words):
        return None
    plain = " ".join(sentence.split())
    found = ((kind, match) for kind, form in _forms() if (match := form.match(plain)))
    return next((kind for kind, match in found if _is_conversation(match)), None)


def _is_conversation(match: re.Match[str]) -> bool:
    """Tell if it is the conversation that is too long, as far as the numbers say."""
    told = match.groupdict()
    if not told.get("input") or not told.get("limit"):
        return True
    tokens, limit = (int(told[name].replace(",", "")) for name in ("input", "limit"))
    return tokens * 2 >= limit


@cache
def _forms() -> tuple[tuple[type[ProviderError], re.Pattern[str]], ...]:
    return tuple((kind, re.compile(_written(form), re.IGNORECASE)) for kind, form in _FORMS)


def _written(form: str) -> str:
    return re.sub(r"\b(INPUT|LIMIT|N)\b", lambda name: _NUMBERS[name[0]], form)
