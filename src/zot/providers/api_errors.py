"""Errors of model services: classified by status, code and wording, with advice for the user."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import ceil
from typing import Any

import msgspec

from zot.config.vendors import VENDORS
from zot.encoding import learned
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
        # Google's: the canonical names of gRPC, and what it says of a key behind INVALID_ARGUMENT.
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

#: Words that say no more than "bad request", which is also what some services say to a wrong key: a status says more.
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
_HOST = re.compile(r"[A-Za-z0-9._-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?")
#: By which a request is called bad, and nothing else is said of it.
_MALFORMED = (400, 422)


class _Hint(msgspec.Struct, rename="camel"):
    """What Google adds to an error; of each kind of hint we know one field."""

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
            return msgspec.convert(self.details, learned(list[_Hint]))
        except msgspec.ValidationError:
            return []  # Others have a field of that name, too.

    @property
    def words(self) -> tuple[str, ...]:
        """The words for the kind of error, the most telling first."""
        known = (hint.reason for hint in self.hints if hint.reason in BY_CODE)
        status = self.status if isinstance(self.status, str) else None
        return _named(*known, status, self.code, self.type)

    @property
    def delay_s(self) -> float | None:
        """The seconds it asks us to wait, as in ``"retryDelay": "34.07s"``."""
        delays = (_seconds((hint.retry_delay or "").removesuffix("s")) for hint in self.hints)
        return next((delay for delay in delays if delay is not None), None)


class _Body(msgspec.Struct):
    """Whatever has been seen: most put the details into ``error``, some beside it."""

    error: _Detail | str | None = None
    message: Any = None
    type: str | None = None
    code: str | int | None = None
    request_id: str | None = None


class _Told(msgspec.Struct, frozen=True):
    """What a body says. ``words`` are those by which a service names the kind of error, the most telling first.

    ``behind`` is what the service behind the service had told it: without that, many say nothing at all.
    """

    text: str
    words: tuple[str, ...] = ()
    request_id: str = ""
    delay_s: float | None = None
    behind: _Told | None = None


def refusal(status: int, headers: Mapping[str, str], body: bytes, *, now: float) -> ProviderError:
    """Return the error for a response with a status that is not a success. ``now`` is in seconds since the epoch."""
    if 300 <= status < 400:
        return NotFound(f"http {status}: the address has moved{_whither(headers)}", status=status)
    told, asked_s = _read(body), _retry_after(headers, now)
    usual = BY_STATUS.get(status) or (ServiceFailed if status >= 500 else BadRequest)
    kind = _by_words(told.words) or usual
    return (_closer(told) if kind is BadRequest and status in _MALFORMED else kind)(
        f"http {status}: {told.text or 'no reason was given'}",
        status=status,
        code=next(iter(told.words), ""),
        request_id=told.request_id or headers.get("request-id", "") or headers.get("x-request-id", ""),
        retry_after_s=told.delay_s if asked_s is None else asked_s,
    )


def sign(error: ProviderError, *, provider: str, mask: Callable[[str], str]) -> None:
    """Say whose error it is, in few words, without what ``mask`` hides. Once: it may be raised again."""
    if error.provider:
        return
    error.provider = provider
    # Before it is shortened: half a key would not be recognised.
    text = mask(str(error))
    error.code, error.request_id = mask(error.code), mask(error.request_id)
    short = text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]} ..."
    error.args = (f"{provider}: {short}",)


def not_a_stream(kind: str, opening: bytes, mask: Callable[[str], str]) -> ProviderError:
    """Return the error for an answer that should have been a stream of events and is ``kind``, beginning so."""
    try:
        told = msgspec.json.decode(opening, type=learned(_Body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        told = _Body()
    if told.error is not None:
        return reported(opening)  # Some say 200, and then what is wrong.
    shown = mask(_words(opening))  # All of it, before it is shortened: half a key would not be recognised.
    begins = f", which begins: {shown[:_MAX_OPENING]}" if shown else ", which is empty"
    return StreamBroken(f"http 200: not a stream of events but {kind}{begins}", status=200)


def in_stream(code: str, text: str) -> ProviderError:
    """Return the error for an error event inside a stream that had begun well."""
    return _in_stream(_Told(text, _named(code)))


def reported(body: bytes) -> ProviderError:
    """Return the error for an event inside a stream that has the form of an error's body."""
    return _in_stream(_read(body))


def _in_stream(told: _Told) -> ProviderError:
    code = next(iter(told.words), "")
    by_status = BY_STATUS.get(int(code)) if code.isascii() and code.isdecimal() and len(code) == 3 else None
    vague = BadRequest if VAGUE.intersection(told.words) else None
    kind = _by_words(told.words) or by_status or vague or ServiceFailed
    text = f"{code}: {told.text}" if code else told.text
    return (_closer(told) if kind is BadRequest else kind)(text, code=code, retry_after_s=told.delay_s)


def _closer(told: _Told) -> type[ProviderError]:
    """Return what is meant by a request being called bad: some services call everything so."""

    source = told.behind or told
    by_words = _by_words(source.words) if told.behind is not None else None
    return by_words or meant((*told.words, *source.words), source.text) or BadRequest


def _by_words(words: tuple[str, ...]) -> type[ProviderError] | None:
    return next((kind for word in words if (kind := BY_CODE.get(word)) is not None), None)


def _read(body: bytes) -> _Told:
    """Return what an error body says, whatever its shape."""
    try:
        # Google wraps the object in an array where it would have streamed one.
        parsed: _Body | list[_Body] = msgspec.json.decode(body, type=learned(_Body | list[_Body]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Told(_words(body))
    if isinstance(parsed, list):
        parsed = parsed[0] if parsed else _Body()
    request_id = parsed.request_id or ""
    match parsed.error:
        case _Detail() as detail:
            return _explained(detail, body, request_id)
        case str(text):
            return _Told(text, _named(parsed.code, parsed.type), request_id)
        case None:
            text = parsed.message if isinstance(parsed.message, str) and parsed.message else _words(body)
            return _Told(text, _named(parsed.code, parsed.type), request_id)


def _named(*words: str | int | None) -> tuple[str, ...]:
    return tuple(str(word) for word in words if word)


def _explained(detail: _Detail, body: bytes, request_id: str) -> _Told:
    text, raw = detail.message or _words(body), (detail.metadata or {}).get("raw")
    behind = _read(raw.encode(errors="replace")) if isinstance(raw, str) and raw.strip() else None
    said = f"{text}: {behind.text}" if behind is not None else text
    return _Told(said, detail.words, request_id, detail.delay_s, behind)


def _words(body: bytes) -> str:
    return " ".join(body.decode("utf-8", "replace").split())


def _whither(headers: Mapping[str, str]) -> str:
    """Return which host a redirect names. Not more of it: the rest may have secrets in it."""
    from urllib.parse import urlsplit

    try:
        target = urlsplit(headers.get("location", ""), scheme="https")
        _ = target.port  # Raises, too, if it is none.
    except ValueError:
        return ""
    host = target.netloc.rpartition("@")[2]
    return f" to {target.scheme}://{host}" if _HOST.fullmatch(host) and target.scheme in ("http", "https") else ""


def _retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds the service asked for, or those until the date it named."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if (seconds := _seconds(headers.get(name, ""))) is not None:
            return seconds * scale
    date = _seconds_since_the_epoch(headers.get("retry-after", ""))
    return None if date is None else max(0.0, date - now)


def _seconds(text: str) -> float | None:
    """Read a number of seconds; None if it is none that can be waited."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _seconds_since_the_epoch(date: str) -> float | None:
    """Read the date of an HTTP header; None if it is none."""
    if ":" not in date:
        return None
    from datetime import UTC
    from email.utils import parsedate_to_datetime

    try:
        parsed = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return None
    # HTTP knows no other zone; a date that names none is meant so, too.
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


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


_MOVED = range(300, 400)
#: Said by a server that knows the address, and not what is done with it there.
_OTHER_API = (405, 406, 415, 501)
#: Said of the moment, not of what was asked for.
_UNTIMELY = (408, 409, 425)
_TOO_LARGE = 413


def advise(error: ProviderError, provider: str) -> None:
    """Add to an error of ``provider`` what helps against it, if anything is known to."""
    if todo := advice(error, provider):
        error.args = (f"{error} ({todo})",)


def advice(error: ProviderError, provider: str) -> str:
    """Return what helps against an error of ``provider``; "" if nobody knows, or the error says so itself."""
    match error:
        case NoCredit():
            return "the account has no credit left, or may not spend more: see the provider's page for billing"
        case AuthFailed() if error.status or error.code:
            return _about_the_key(provider)
        case RateLimited():
            return _about_the_limit(error)
        case Overloaded() | ServiceFailed():
            return "try again later, or ask another model"
        case NotFound() if error.status in _MOVED:
            return "give the address that answers itself as --base-url"
        case NotFound():
            return f"`zot models --provider {provider}` lists the models; if you gave a --base-url, check it, too"
        case ContextTooLong():
            return "compact or clear the conversation"
        case ContentRefused():
            return "say it differently, or ask another model"
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
            return "check --base-url, and whether --api is what is spoken there"
        case BadRequest() if error.status or error.code:
            return "another model or --api may take it"
        case StreamBroken() if error.status:
            return "check --base-url, and whether --api is what is spoken there"
        case StreamBroken() | Stalled() if not error.code:
            return "try again"
        case _:
            return ""
