"""What was denied where there is nobody to ask: told once to whoever reads the log, with what can be done about it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from zot.text import printable_line

log = logging.getLogger("zot")

_MAX_ABOUT = 200
#: What was denied for good is not to be allowed by anybody.
_FINAL = "no policy allows that"


class Denials:
    """The denials of one request. ``where`` names it; ``advice`` says how more would be allowed.

    ``mask`` takes out of a line what must not be shown.
    """

    def __init__(self, where: str, *, advice: str, mask: Callable[[str], str]) -> None:
        self._where = where
        self._advice = advice
        self._mask = mask
        self._told: set[str] = set()

    def note(self, tool: str, about: str, *, is_final: bool) -> str:
        """Tell the log that a call was denied, unless it knows; return what can be done about it."""
        advice = _FINAL if is_final else self._advice
        # Masked first: half of a secret would not be known for one.
        said = printable_line(self._mask(about), _MAX_ABOUT)
        line = f"{self._where}: {printable_line(tool, _MAX_ABOUT)} was denied: {said}"
        if line not in self._told:
            self._told.add(line)
            log.warning("%s; %s", line, advice)
        return advice
