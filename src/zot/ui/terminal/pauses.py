"""How long the garbage collector may stop us: nobody who types should feel it."""

from __future__ import annotations

import gc

#: New objects until they are looked through, and how many times until those that are left are, and all.
_OFTEN = (4_000, 10, 60)
#: While we begin, nearly everything stays: looking through it again and again would be a tenth of all the work.
_SELDOM = (200_000, 10, 10)


def put_off() -> None:
    """Look for garbage seldom, until the first frame and what follows is there."""
    gc.set_threshold(*_SELDOM)


def keep_short() -> None:
    """Look for garbage often, in little at a time, and never again among what is there by now: modules and styles."""
    gc.freeze()
    gc.set_threshold(*_OFTEN)
