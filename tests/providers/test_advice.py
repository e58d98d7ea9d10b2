"""Every failure of a model service comes with advice for the user."""

from __future__ import annotations

import pytest

from zot import errors
from zot.errors import (
    AuthFailed,
    BadRequest,
    ConnectionFailed,
    ConnectionImpossible,
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
from zot.providers.api_errors import advice

LATER = "try again later, or use another model"
ADDRESS = "check --base-url and --api"
AGAIN = "try again"
ADVICE: list[tuple[ProviderError, str, str]] = [
    (AuthFailed("m", status=401), "groq", "check GROQ_API_KEY, or run `zot login groq`"),
    (AuthFailed("m", status=403), "kimi", "check KIMI_API_KEY or MOONSHOT_API_KEY, or run `zot login kimi`"),
    (AuthFailed("m", code="x"), "groq", "check GROQ_API_KEY, or run `zot login groq`"),
    (AuthFailed("the command failed"), "kimi", ""),
    (AuthFailed("m", status=401), "lab", ""),
    (AuthFailed("m", status=401), "somebody", ""),
    (
        NoCredit("m", status=402),
        "deepseek",
        "the account has no credit left, or may not spend more: see the provider's page for billing",
    ),
    (RateLimited("m", status=429), "xai", "try again later, or ask the provider for a higher limit"),
    (RateLimited("m", status=429, retry_after_s=90.2), "xai", "try again in 91 s"),
    (
        RateLimited("m", status=413),
        "groq",
        "this request alone is more than the account may send in a minute: compact or clear the conversation",
    ),
    (Overloaded("m", status=529), "xai", LATER),
    (ServiceFailed("m", status=500), "xai", LATER),
    (
        NotFound("m", status=404),
        "ollama",
        "`zot models --provider ollama` lists the models; if you gave a --base-url, check it, too",
    ),
    (NotFound("m", status=308), "ollama", "use the final address as --base-url"),
    (ContextTooLong("m"), "xai", "compact or clear the conversation"),
    (ContentRefused("m"), "xai", "rephrase it, or use another model"),
    (BadRequest("m", status=400), "xai", "try another model or another --api"),
    (BadRequest("m", status=409), "xai", AGAIN),
    (BadRequest("m", status=405), "openai", ADDRESS),
    (BadRequest("the recording ends"), "lab", ""),
    (Stalled("m"), "xai", AGAIN),
    (StreamBroken("m"), "xai", AGAIN),
    (StreamBroken("m", status=200), "xai", ADDRESS),
    (StreamBroken("m", code="recording"), "lab", ""),
    # What stands in the way of a connection is known only where it is made: the message says it.
    (ConnectionFailed("m"), "xai", ""),
    (ConnectionImpossible("m"), "xai", ""),
]


@pytest.mark.parametrize(("error", "provider", "text"), ADVICE)
def test_an_error_that_the_user_can_fix_has_advice(error: ProviderError, provider: str, text: str) -> None:
    assert advice(error, provider) == text


def test_every_kind_of_error_is_covered() -> None:
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ProviderError)}
    assert {type(error) for error, _, _ in ADVICE} == kinds - {ProviderError}
