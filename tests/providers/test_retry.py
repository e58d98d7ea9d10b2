"""Retries of failed calls, and their delays."""

from __future__ import annotations

import pytest

from zot.errors import AuthFailed, ConnectionFailed, ProviderError, Stalled, StreamBroken
from zot.providers.service import retry_delay

AGAIN = {408, 409, 429, 500, 502, 503, 504, 529}


@pytest.mark.parametrize("status", [0, *range(300, 600)])
def test_only_these_statuses_are_retried(status: int) -> None:
    delay = retry_delay(ProviderError("no", status=status), attempt=1, jitter=0.5)
    assert (delay is not None) == (status in AGAIN)


@pytest.mark.parametrize(
    ("error", "delay"), [(ConnectionFailed("refused"), 0.5), (Stalled("slow"), None), (StreamBroken("cut"), None)]
)
def test_without_an_answer_only_a_failed_connection_is_retried(error: ProviderError, delay: float | None) -> None:
    assert retry_delay(error, attempt=1, jitter=0.5) == delay


@pytest.mark.parametrize(
    ("attempt", "jitter", "delay"),
    [(1, 0.0, 0.25), (1, 0.5, 0.5), (1, 1.0, 0.75), (2, 0.0, 0.5), (2, 1.0, 1.5), (3, 0.5, None), (4, 0.5, None)],
)
def test_the_wait_doubles_is_spread_and_ends_after_three_attempts(
    attempt: int, jitter: float, delay: float | None
) -> None:
    assert retry_delay(ConnectionFailed("refused"), attempt=attempt, jitter=jitter) == delay


@pytest.mark.parametrize(
    ("asked", "delay"), [(0.0, 0.0), (1.5, 1.5), (60.0, 60.0), (60.1, None), (3600.0, None), (None, 0.5)]
)
def test_the_service_s_delay_counts_up_to_a_minute(asked: float | None, delay: float | None) -> None:
    assert retry_delay(ProviderError("no", status=429, retry_after_s=asked), attempt=1, jitter=0.5) == delay


def test_the_service_s_delay_does_not_add_attempts() -> None:
    assert retry_delay(ProviderError("no", status=429, retry_after_s=1), attempt=3, jitter=0.5) is None


def test_an_account_without_credit_is_not_retried_whatever_the_status() -> None:
    assert retry_delay(AuthFailed("no", status=429, code="insufficient_quota"), attempt=1, jitter=0.5) is None
