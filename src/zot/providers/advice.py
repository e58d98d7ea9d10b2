"""What a person can do about an error of a model service."""

from __future__ import annotations

from math import ceil

from zot.config.vendors import VENDORS
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
