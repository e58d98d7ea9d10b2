"""Errors of model services: classified by status, code and wording, with advice for the user."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from functools import cache
from math import ceil
from typing import Any

import msgspec

from zot.config.vendors import VENDORS
from zot.encoding import UNREADABLE, thread_safe_type
from zot.errors import (
    AuthFailed,
    BadRequest,
    ContentRefused,
    ContextTooLong,
    NoCredit,
    NotFound,
    Overloaded,
    ProviderError,
    RateLimited,
    ServiceFailed,
    Stalled,
    StreamBroken,
)

BY_STATUS: Mapping[int, type[ProviderError]] = {
    400: BadRequest,
    401: AuthFailed,
    402: NoCredit,
    403: AuthFailed,
    404: NotFound,
    413: ContextTooLong,
    422: BadRequest,
    429: RateLimited,
    503: Overloaded,
    529: Overloaded,
}

_BY_KIND: Mapping[type[ProviderError], tuple[str, ...]] = {
    NoCredit: (
        "insufficient_quota",
        "exceeded_current_quota_error",
        "billing_not_active",
        "billing_hard_limit_reached",
        "billing_error",
    ),
    AuthFailed: (
        "authentication_error",
        "permission_error",
        "invalid_api_key",
        "invalid_authentication_error",
        "incorrect_api_key_error",
        # Google's: gRPC's canonical names, and the reason it adds to INVALID_ARGUMENT for a wrong key.
        "API_KEY_INVALID",
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
    ),
    RateLimited: (
        "rate_limit_error",
        "rate_limit_exceeded",
        "rate_limit_reached_error",
        "too_many_requests",
        "RESOURCE_EXHAUSTED",
    ),
    Overloaded: (
        "overloaded_error",
        "engine_overloaded_error",
        "server_is_overloaded",
        "slow_down",
        "UNAVAILABLE",
    ),
    NotFound: (
        "not_found_error",
        "resource_not_found_error",
        "model_not_found",
        "model_decommissioned",
        "invalid_model",
        "NOT_FOUND",
    ),
    ContextTooLong: ("context_length_exceeded", "exceed_context_size_error"),
    ContentRefused: (
        "content_filter",
        "content_policy_violation",
        "image_content_policy_violation",
        "invalid_prompt",
        "bio_policy",
        "cyber_policy",
        "misalignment_policy_violation",
    ),
    ServiceFailed: ("INTERNAL", "DEADLINE_EXCEEDED", "ABORTED", "CANCELLED", "UNKNOWN", "DATA_LOSS"),
}
BY_CODE: Mapping[str, type[ProviderError]] = {code: kind for kind, codes in _BY_KIND.items() for code in codes}

#: Codes that say no more than "bad request", which some services also send for a wrong key: the status says more.
VAGUE = frozenset(
    {
        "invalid_request_error",
        "invalid_image",
        "invalid_image_format",
        "invalid_base64_image",
        "image_too_large",
        "image_too_small",
        "image_parse_error",
        "image_file_too_large",
        "unsupported_image_media_type",
        "empty_image_file",
        "INVALID_ARGUMENT",
        "FAILED_PRECONDITION",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
    }
)


_MAX_MESSAGE = 2000
_MAX_OPENING = 200
_HOST = r"[A-Za-z0-9._-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?"
#: Statuses that call a request bad without a reason.
_MALFORMED = (400, 422)

#: Codes without meaning: all that were seen together with one of the sentences below.
_MEANINGLESS = frozenset(
    {
        "400", "422", "invalid_request_error", "INVALID_ARGUMENT", "None", "badRequest", "bad_request",
        "BadRequestError",  # vLLM
        "invalid_request_prompt", "3051",  # Mistral
        "invalid-argument", "Client specified an invalid argument",  # xAI
        "api_error",  # ollama
    }
)  # fmt: skip

_MOVED = range(300, 400)
#: The server knows the address but not the request.
_OTHER_API = (405, 406, 415, 501)
#: Temporary conditions.
_UNTIMELY = (408, 409, 425)
_TOO_LARGE = 413

#: Beginnings of messages, and their meaning. ``N`` stands for a number. Where a message separates the tokens of the
#: conversation (``INPUT``) from those of the answer, the conversation is too long only if it fills half of the
#: window (``LIMIT``): otherwise the answer does not fit, and compaction would not help.
_FORMS: tuple[tuple[type[ProviderError], str], ...] = (
    # Anthropic
    (ContextTooLong, r"prompt is too long(: N tokens > N maximum)?\.?$"),
    (ContextTooLong, r"input length and `max_tokens` exceed context limit: INPUT \+ N > LIMIT\b"),
    (NoCredit, r"your credit balance is too low to access the \w+ API\b"),
    (NoCredit, r"you have reached your specified (\w+ )?API usage limits\b"),
    # Gemini
    (ContextTooLong, r"the input token count (\(N\) )?exceeds the maximum number of tokens allowed\b"),
    # Old OpenAI, DeepSeek, vLLM, OpenRouter and most self-hosted servers
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


class _Hint(msgspec.Struct, rename="camel"):
    """Google's extra details of an error; one known field per kind."""

    reason: str | None = None
    retry_delay: str | None = None


class _Detail(msgspec.Struct):
    type: str | None = None
    message: str | None = None
    code: str | int | None = None
    status: str | int | None = None
    metadata: dict[str, Any] | None = None
    details: Any = None

    @property
    def hints(self) -> list[_Hint]:
        try:
            return msgspec.convert(self.details, thread_safe_type(list[_Hint]))
        except msgspec.ValidationError:
            return []  # Other services use the field differently.

    @property
    def words(self) -> tuple[str, ...]:
        """The codes of the error, most specific first."""
        known = (hint.reason for hint in self.hints if hint.reason in BY_CODE)
        status = self.status if isinstance(self.status, str) else None
        return _named(*known, status, self.code, self.type)

    @property
    def delay_s(self) -> float | None:
        """The delay the service asks for, as in ``"retryDelay": "34.07s"``."""
        delays = (_seconds((hint.retry_delay or "").removesuffix("s")) for hint in self.hints)
        return next((delay for delay in delays if delay is not None), None)


class _Body(msgspec.Struct):
    """Union of the known shapes: most services put the details into ``error``, some beside it."""

    error: _Detail | str | None = None
    message: Any = None
    type: str | None = None
    code: str | int | None = None
    request_id: str | None = None


class _ErrorInfo(msgspec.Struct, frozen=True):
    """The content of an error body. ``words`` are the codes of the error, most specific first.

    ``upstream`` is the upstream service's error: a router's own often says nothing.
    """

    text: str
    words: tuple[str, ...] = ()
    request_id: str = ""
    delay_s: float | None = None
    upstream: _ErrorInfo | None = None


def response_error(status: int, headers: Mapping[str, str], body: bytes, *, now: float) -> ProviderError:
    """Return the error for an unsuccessful response. ``now`` is in seconds since the epoch."""
    if 300 <= status < 400:
        return NotFound(f"http {status}: the address has moved{_redirect_host(headers)}", status=status)
    info, asked_s = _read(body), _retry_after(headers, now)
    usual = BY_STATUS.get(status) or (ServiceFailed if status >= 500 else BadRequest)
    kind = _by_words(info.words) or usual
    return (_closer(info) if kind is BadRequest and status in _MALFORMED else kind)(
        f"http {status}: {info.text or 'no reason was given'}",
        status=status,
        code=next(iter(info.words), ""),
        request_id=info.request_id or headers.get("request-id", "") or headers.get("x-request-id", ""),
        retry_after_s=info.delay_s if asked_s is None else asked_s,
    )


def attribute_error(error: ProviderError, *, provider: str, mask: Callable[[str], str]) -> None:
    """Name the provider in an error, shorten it and ``mask`` its secrets. Idempotent: it may be raised again."""
    if error.provider:
        return
    error.provider = provider
    # Before shortening: a truncated key would not be recognised.
    text = mask(str(error))
    error.code, error.request_id = mask(error.code), mask(error.request_id)
    short = text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]} ..."
    error.args = (f"{provider}: {short}",)


def not_a_stream(kind: str, opening: bytes, mask: Callable[[str], str]) -> ProviderError:
    """Return the error for a response that is not an event stream but ``kind``, starting with ``opening``."""
    try:
        info = msgspec.json.decode(opening, type=thread_safe_type(_Body))
    except UNREADABLE:
        info = _Body()
    if info.error is not None:
        return error_from_body(opening)  # Some services send an error with status 200.
    shown = mask(_words(opening))  # Mask all of it before shortening: a truncated key would not be recognised.
    begins = f", which begins: {shown[:_MAX_OPENING]}" if shown else ", which is empty"
    return StreamBroken(f"http 200: not a stream of events but {kind}{begins}", status=200)


def stream_error(code: str, text: str) -> ProviderError:
    """Return the error for an error event inside a stream."""
    return _in_stream(_ErrorInfo(text, _named(code)))


def error_from_body(body: bytes) -> ProviderError:
    """Return the error for a stream event shaped like an error body."""
    return _in_stream(_read(body))


def _in_stream(info: _ErrorInfo) -> ProviderError:
    code = next(iter(info.words), "")
    by_status = BY_STATUS.get(int(code)) if code.isascii() and code.isdecimal() and len(code) == 3 else None
    vague = BadRequest if VAGUE.intersection(info.words) else None
    kind = _by_words(info.words) or by_status or vague or ServiceFailed
    text = f"{code}: {info.text}" if code else info.text
    return (_closer(info) if kind is BadRequest else kind)(text, code=code, retry_after_s=info.delay_s)


def _closer(info: _ErrorInfo) -> type[ProviderError]:
    """Return the real kind of a "bad request", which some services send for every error."""
    source = info.upstream or info
    by_words = _by_words(source.words) if info.upstream is not None else None
    return by_words or classify_message((*info.words, *source.words), source.text) or BadRequest


def _by_words(words: tuple[str, ...]) -> type[ProviderError] | None:
    return next((kind for word in words if (kind := BY_CODE.get(word)) is not None), None)


def _read(body: bytes) -> _ErrorInfo:
    """Parse an error body of any shape."""
    try:
        # Google wraps the object in an array where it would have streamed.
        parsed: _Body | list[_Body] = msgspec.json.decode(body, type=thread_safe_type(_Body | list[_Body]))
    except UNREADABLE:
        return _ErrorInfo(_words(body))
    if isinstance(parsed, list):
        parsed = parsed[0] if parsed else _Body()
    request_id = parsed.request_id or ""
    match parsed.error:
        case _Detail() as detail:
            return _explained(detail, body, request_id)
        case str(text):
            return _ErrorInfo(text, _named(parsed.code, parsed.type), request_id)
        case None:
            text = parsed.message if isinstance(parsed.message, str) and parsed.message else _words(body)
            return _ErrorInfo(text, _named(parsed.code, parsed.type), request_id)


def _named(*words: str | int | None) -> tuple[str, ...]:
    return tuple(str(word) for word in words if word)


def _explained(detail: _Detail, body: bytes, request_id: str) -> _ErrorInfo:
    text, raw = detail.message or _words(body), (detail.metadata or {}).get("raw")
    upstream = _read(raw.encode(errors="replace")) if isinstance(raw, str) and raw.strip() else None
    message = f"{text}: {upstream.text}" if upstream is not None else text
    return _ErrorInfo(message, detail.words, request_id, detail.delay_s, upstream)


def _words(body: bytes) -> str:
    return " ".join(body.decode("utf-8", "replace").split())


def _redirect_host(headers: Mapping[str, str]) -> str:
    """Return the host of a redirect. Only the host: the rest may contain secrets."""
    from urllib.parse import urlsplit  # Imported lazily: redirects are rare, and decoders import this module.

    try:
        target = urlsplit(headers.get("location", ""), scheme="https")
        _ = target.port  # Raises if invalid.
    except ValueError:
        return ""
    host = target.netloc.rpartition("@")[2]
    return f" to {target.scheme}://{host}" if re.fullmatch(_HOST, host) and target.scheme in ("http", "https") else ""


def _retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the delay the service asked for, in seconds."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if (seconds := _seconds(headers.get(name, ""))) is not None:
            return seconds * scale
    date = _seconds_since_the_epoch(headers.get("retry-after", ""))
    return None if date is None else max(0.0, date - now)


def _seconds(text: str) -> float | None:
    """Parse a number of seconds; None if it is not finite and non-negative."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _seconds_since_the_epoch(date: str) -> float | None:
    """Parse an HTTP date; None if it is invalid."""
    if ":" not in date:
        return None
    from email.utils import parsedate_to_datetime  # Imported lazily: few services send a date.

    try:
        parsed = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return None
    # HTTP dates are in UTC, also without a zone.
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def classify_message(words: Sequence[str], sentence: str) -> type[ProviderError] | None:
    """Return the real kind of a "bad request" with codes ``words`` and message ``sentence``; None if unknown.

    Any meaningful code wins over the message.
    """
    if not _MEANINGLESS.issuperset(words):
        return None
    plain = " ".join(sentence.split())
    found = ((kind, match) for kind, form in _forms() if (match := form.match(plain)))
    return next((kind for kind, match in found if _is_conversation(match)), None)


def _is_conversation(match: re.Match[str]) -> bool:
    """True if the conversation, not the answer, is too long, as far as the numbers say."""
    info = match.groupdict()
    if not info.get("input") or not info.get("limit"):
        return True
    tokens, limit = (int(info[name].replace(",", "")) for name in ("input", "limit"))
    return tokens * 2 >= limit


@cache
def _forms() -> tuple[tuple[type[ProviderError], re.Pattern[str]], ...]:
    return tuple((kind, re.compile(_written(form), re.IGNORECASE)) for kind, form in _FORMS)


def _written(form: str) -> str:
    return re.sub(r"\b(INPUT|LIMIT|N)\b", lambda name: _NUMBERS[name[0]], form)


def advise(error: ProviderError, provider: str) -> None:
    """Append advice to an error of ``provider``, if there is any."""
    if todo := advice(error, provider):
        error.args = (f"{error} ({todo})",)


def advice(error: ProviderError, provider: str) -> str:
    """Return advice for an error of ``provider``; "" if there is none, or the error has it already."""
    match error:
        case NoCredit():
            return "the account has no credit left, or may not spend more: see the provider's page for billing"
        case AuthFailed() if error.status or error.code:
            return _about_the_key(provider)
        case RateLimited():
            return _about_the_limit(error)
        case Overloaded() | ServiceFailed():
            return "try again later, or use another model"
        case NotFound() if error.status in _MOVED:
            return "use the final address as --base-url"
        case NotFound():
            return f"`zot models --provider {provider}` lists the models; if you gave a --base-url, check it, too"
        case ContextTooLong():
            return "compact or clear the conversation"
        case ContentRefused():
            return "rephrase it, or use another model"
        case _:
            return _about_the_answer(error)


def _about_the_key(provider: str) -> str:
    names = VENDORS[provider].key_names if provider in VENDORS else ()
    return f"check {' or '.join(names)}, or run `zot login {provider}`" if names else ""


def _about_the_limit(error: RateLimited) -> str:
    if error.status == _TOO_LARGE:
        return "this request alone is more than the account may send in a minute: compact or clear the conversation"
    if error.retry_after_s:
        return f"try again in {ceil(error.retry_after_s)} s"
    return "try again later, or ask the provider for a higher limit"


def _about_the_answer(error: ProviderError) -> str:
    match error:
        case BadRequest() if error.status in _UNTIMELY:
            return "try again"
        case BadRequest() if error.status in _OTHER_API:
            return "check --base-url and --api"
        case BadRequest() if error.status or error.code:
            return "try another model or another --api"
        case StreamBroken() if error.status:
            return "check --base-url and --api"
        case StreamBroken() | Stalled() if not error.code:
            return "try again"
        case _:
            return ""
