"""A budget: how much a session may use before the model is not asked again. Does no I/O."""

from __future__ import annotations

import msgspec

from zot.errors import BudgetExhausted
from zot.messages import Counters


class Budget(msgspec.Struct, frozen=True):
    """Bounds for all model calls of a session together; None is no bound."""

    max_cost: float | None = None
    max_tokens_total: int | None = None

    def check(self, used: Counters) -> None:
        """Raise BudgetExhausted if nothing is left for another call.

        Of calls whose price is not known only the tokens count: what they cost may be nothing, or anything.
        """
        if self.max_cost is not None and used.cost_usd >= self.max_cost:
            raise BudgetExhausted(
                f"stopped: the session has cost ${_dollars(used.cost_usd)}, and max-cost allows "
                f"${_dollars(self.max_cost)}; to go on, start with a higher --max-cost",
                setting="max_cost",
                used=used.cost_usd,
                allowed=self.max_cost,
            )
        tokens = used.input + used.output + used.cache_read + used.cache_write
        if self.max_tokens_total is not None and tokens >= self.max_tokens_total:
            raise BudgetExhausted(
                f"stopped: the session has used {tokens} tokens, and max-tokens-total allows "
                f"{self.max_tokens_total}; to go on, start with a higher --max-tokens-total",
                setting="max_tokens_total",
                used=tokens,
                allowed=self.max_tokens_total,
            )


def _dollars(amount: float) -> str:
    """Return an amount to the cent, or to as many places as it takes to see it."""
    text = f"{amount:.6f}"
    return text[:-4] + text[-4:].rstrip("0")
