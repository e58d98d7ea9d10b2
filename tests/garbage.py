"""What is left for the garbage collector: what holds itself, and so stays until somebody looks for it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def left_over() -> Iterator[list[str]]:
    """Fill a list, at the end, with the names of our own things that nobody needed and that were still there."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += [type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith("zot.")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
