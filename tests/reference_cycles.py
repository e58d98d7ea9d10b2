"""Reference cycles: objects that only the garbage collector can free."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def left_over() -> Iterator[list[str]]:
    """Fill a list, on leaving, with the class names of zot's unreachable objects."""
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
