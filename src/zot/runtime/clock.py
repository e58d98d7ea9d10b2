"""What tells the time in events."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import msgspec

from zot.errors import ConfigError


def clock_of(frozen_time: str | None) -> Callable[[], str]:
    """Return what tells the time in events: the clock, or a time of its own that is the same in every run."""
    from zot.messages import timestamp

    if frozen_time is None:
        return timestamp
    from datetime import datetime

    try:
        start = msgspec.convert(frozen_time, datetime).timestamp()
    except msgspec.ValidationError:
        raise ConfigError(f"{frozen_time!r} is not a time such as 2026-01-31T12:00:00Z") from None
    ticks = count()
    return lambda: timestamp(start + next(ticks) / 1000)
