"""What is refused is written down, but not for ever: whoever is refused must not push out what others did."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from zot.serve.audit import Audit, Who

if TYPE_CHECKING:
    from zot.serve.metrics import Metrics

#: So many refusals are written down in so many seconds.
_NOTED, _NOTED_S = 100, 10.0


class Refusals:
    """What is refused: counted, and written down as long as it is not too much."""

    def __init__(self, audit: Audit, metrics: Metrics) -> None:
        self._audit = audit
        self._metrics = metrics
        self._since = 0.0
        self._noted = 0

    def note(self, who: Who, method: str, outcome: str) -> bool:
        """Count a refusal, and write down whose it is. False if it is too much to be written down.

        Nothing of it that a stranger chose is written.
        """
        self._metrics.refused += 1
        if (now := time.monotonic()) - self._since > _NOTED_S:
            if self._noted > _NOTED:
                self._audit.note("refused", Who(who.transport), outcome=f"{self._noted - _NOTED} more")
            self._since, self._noted = now, 0
        self._noted += 1
        if self._noted <= _NOTED:
            self._audit.note("refused", who, method=method, outcome=outcome)
        return self._noted <= _NOTED
