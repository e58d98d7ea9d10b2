"""The characters of a terminal: those that its locale can show, and bytes that are none."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable
from functools import partial

from rich.cells import cell_len

from zot.ui.terminal.looks import charset

_AS_WIDE = "zot.as_wide"


def write_only_known(file: object) -> None:
    """Have question marks written for what the locale has no characters for, as wide as it would be."""
    if isinstance(file, io.TextIOWrapper):
        codecs.register_error(_AS_WIDE, _as_wide)
        file.reconfigure(encoding=charset(), errors=_AS_WIDE)


def _as_wide(problem: UnicodeError) -> tuple[str, int]:
    assert isinstance(problem, UnicodeEncodeError)
    return "?" * cell_len(problem.object[problem.start : problem.end]), problem.end


def decoder(_: str) -> Callable[[], codecs.IncrementalDecoder]:
    """Return what reads bytes that are no characters as such, where others give up."""
    name = charset()
    return partial(codecs.getincrementaldecoder("utf-8" if name == "ascii" else name), "replace")
