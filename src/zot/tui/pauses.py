"""How long the garbage collector may stop us: nobody who types should feel it."""

from __future__ import annotations

import gc

#: New objects until they are looked through, and how many times until those that are left are, and all.
_OFTEN = (4_000, 10, 60)


def keep_short() -> None:
    """Look for garbage often, in little at a time, and never again among what is there by now: modules and styles."""
    gc.freeze()
    gc.set_threshold(*_OFTEN)
