"""When a failed model call is tried again, and after how long."""

from __future__ import annotations

from zot.errors import (
    AuthFailed,
    ConnectionFailed,
    ConnectionImpossible,
    Overloaded,
    ProviderError,
    RateLimited,
    ServiceFailed,
)

ATTEMPTS = 3
_STATUSES = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
#: Told by a service instead of an answer.
IN_PASSING = (RateLimited, Overloaded, ServiceFailed)
_FIRST_DELAY_S = 0.5
_LONGEST_WAIT_S = 60.0


def retry_delay(error: ProviderError, *, attempt: int, jitter: float) -> float | None:
    """Return the seconds to wait after the failed ``attempt`` (1 is the first); None if trying again is no use.

    ``jitter`` is a random number from 0 to 1. Only for failures before the first delta: after it, a second try
    would show the answer twice. An error without a status came as the first event of a stream. A service that asks
    for more than a minute gets its error reported instead.
    """
    if attempt >= ATTEMPTS or isinstance(error, ConnectionImpossible | AuthFailed):
        return None
    if not isinstance(error, ConnectionFailed) and not _is_passing(error):
        return None
    if error.retry_after_s is not None:
        return error.retry_after_s if error.retry_after_s <= _LONGEST_WAIT_S else None
    return float(_FIRST_DELAY_S * 2 ** (attempt - 1) * (0.5 + jitter))


def _is_passing(error: ProviderError) -> bool:
    """Whether the service may do better the next time."""
    if error.status:
        return error.status in _STATUSES
    return isinstance(error, IN_PASSING)
