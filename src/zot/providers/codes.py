"""The words by which services name errors, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping

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
