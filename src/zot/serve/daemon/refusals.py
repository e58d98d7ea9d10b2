"""What is refused is written down, but not for ever: whoever is refused must not push out what others did."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from zot.serve.daemon.audit import Audit, Who

if TYPE_CHECKING:
    from zot.serve.daemon.metrics import Metrics

#: So many refusals are written down in so many seconds.
_NOTED, _NOTED_S = 100, 10.0


class Refusals:
    """What is refused: counted, and written down as long as it is not too much. How much more it was is written, too.

    Needs a running loop; what is left to be written when the audit log is closed is written then.
    """

    def __init__(self, audit: Audit, metrics: Metrics, *, within_s: float = _NOTED_S) -> None:
        self._audit = audit
        self._metrics = metrics
        self._within_s = within_s
        self._since = 0.0
        self._noted = 0
        self._transport = ""
        self._summing_up: asyncio.TimerHandle | None = None
        audit.when_closing.append(self._sum_up)

    def note(self, who: Who, method: str, outcome: str) -> bool:
        """Count a refusal, and write down whose it is. False if it is too much to be written down.

        Nothing of it that a stranger chose is written.
        """
        self._metrics.refused += 1
        if (now := time.monotonic()) - self._since > self._within_s:
            self._sum_up()
            self._since, self._noted = now, 0
        self._noted += 1
        if self._noted <= _NOTED:
            self._audit.note("refused", who, method=method, outcome=outcome)
            return True
        self._transport = who.transport
        if self._summing_up is None:
            self._summing_up = asyncio.get_running_loop().call_later(self._within_s, self._sum_up)
        return False

    def _sum_up(self) -> None:
        """Write down how many there were that nobody wrote down, if there were any."""
        if self._summing_up is not None:
            self._summing_up.cancel()
            self._summing_up = None
            self._audit.note("refused", Who(self._transport), outcome=f"{self._noted - _NOTED} more")
            self._since, self._noted = time.monotonic(), 0
