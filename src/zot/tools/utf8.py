"""Text from bytes that come piece by piece and may be anything."""

from __future__ import annotations

import codecs

_Decoder = codecs.getincrementaldecoder("utf-8")


class Utf8:
    """Decodes a stream. What is not UTF-8 is replaced, and remembered: ``is_valid`` tells if there was any."""

    def __init__(self) -> None:
        self.is_valid = True
        self._decoder = _Decoder("strict")

    def decode(self, data: bytes, *, final: bool = False) -> str:
        """Return the text that ``data`` completes."""
        try:
            return self._decoder.decode(data, final)
        except UnicodeDecodeError:
            self.is_valid = False
            lenient = _Decoder("replace")
            lenient.setstate(self._decoder.getstate())
            self._decoder = lenient
            return lenient.decode(data, final)
